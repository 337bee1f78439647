//! The three buffers of one call.
//!
//! The principal type is [`CallBuffers`]. It hands out exactly the bytes that one step reads or writes, and never a whole
//! buffer: other ranks may read other parts of it at the same time, where they lie. The program checker has proved that no
//! step writes what another reads meanwhile.

use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::Call;
use crate::plan::ByteSpan;
use program::Buffer;
use std::ops::Range;
use topology::Rank;

/// The memory that the caller of a collective lends, as addresses: for calls that outlive a borrow.
///
/// Who makes one promises that the memory is valid, and that nobody else uses it, until every call that it is given to is
/// over. A call is over when its result was told, or when it was [cancelled](super::Session::cancel).
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    input: *mut u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    is_in_place: bool,
}

impl RawCall {
    /// What a collective reads, and where it writes. A buffer of no bytes may be null.
    ///
    /// # Safety
    /// The promise of the type.
    #[inline]
    pub unsafe fn out_of_place(
        (input, input_bytes): (*const u8, usize),
        (output, output_bytes): (*mut u8, usize),
    ) -> Self {
        Self { input: input.cast_mut(), input_bytes, output, output_bytes, is_in_place: false }
    }

    /// Memory that a collective both reads and writes, laid out like the larger of its two buffers.
    ///
    /// # Safety
    /// The promise of the type.
    #[inline]
    pub unsafe fn in_place(both: *mut u8, bytes: usize) -> Self {
        Self { input: both, input_bytes: bytes, output: both, output_bytes: bytes, is_in_place: true }
    }

    /// Hands the memory to a function that does the call; `None` if the two buffers share memory and the call is not in place.
    pub fn lend<T>(self, work: impl FnOnce(Call<'_>) -> T) -> Option<T> {
        if self.is_confused() {
            return None;
        }
        let start = |start: *mut u8, bytes: usize| if bytes == 0 { std::ptr::dangling_mut() } else { start };
        let (input, output) = (start(self.input, self.input_bytes), start(self.output, self.output_bytes));
        // SAFETY: the promise of the type: the memory is valid, and this call's alone until `work` returns.
        let output = unsafe { std::slice::from_raw_parts_mut(output, self.output_bytes) };
        if self.is_in_place {
            return Some(work(Call::InPlace(output)));
        }
        // SAFETY: the same; it is apart from the output, which was just checked.
        let input = unsafe { std::slice::from_raw_parts(input.cast_const(), self.input_bytes) };
        Some(work(Call::OutOfPlace { input, output }))
    }

    /// Whether input and output are the same memory.
    #[inline]
    pub(super) fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// Bytes of input and output.
    #[inline]
    pub(super) fn lengths(&self) -> [usize; 2] {
        [self.input_bytes, self.output_bytes]
    }

    /// Whether the two buffers share memory although the call is not in place, or the memory ends beyond all addresses.
    #[inline]
    pub(super) fn is_confused(&self) -> bool {
        let range = |start: *mut u8, bytes: usize| Some(start.addr()..start.addr().checked_add(bytes)?);
        let (Some(input), Some(output)) = (range(self.input, self.input_bytes), range(self.output, self.output_bytes))
        else {
            return true;
        };
        let is_empty = |range: &Range<usize>| range.start == range.end;
        let is_null = |range: &Range<usize>| range.start == 0 && !is_empty(range);
        let meet = input.start < output.end && output.start < input.end;
        is_null(&input) || is_null(&output) || !self.is_in_place && meet && !is_empty(&input) && !is_empty(&output)
    }
}

impl RawCall {
    /// What was lent for a borrow.
    ///
    /// # Safety
    /// The call is over when the borrow ends.
    pub(super) unsafe fn of(call: &mut Call<'_>) -> Self {
        match call {
            // SAFETY: the caller's promise.
            Call::InPlace(both) => unsafe { Self::in_place(both.as_mut_ptr(), both.len()) },
            // SAFETY: the same.
            Call::OutOfPlace { input, output } => unsafe {
                Self::out_of_place((input.as_ptr(), input.len()), (output.as_mut_ptr(), output.len()))
            },
        }
    }
}

/// The buffers of a call, and its scratch.
pub(crate) struct CallBuffers {
    /// Input, output and scratch; in place, input and output are the same.
    starts: [*mut u8; 3],
    lengths: [usize; 3],
    is_input_writable: bool,
    scratch: Vec<u8>,
}

// SAFETY: it is only addresses; the caller vouches that the memory is the call's, whichever thread carries it on.
unsafe impl Send for CallBuffers {}

impl CallBuffers {
    /// The buffers of a caller, and scratch.
    #[inline]
    pub(crate) fn new(call: RawCall, mut scratch: Vec<u8>) -> Self {
        Self {
            starts: [call.input, call.output, scratch.as_mut_ptr()],
            lengths: [call.input_bytes, call.output_bytes, scratch.len()],
            is_input_writable: call.is_in_place,
            scratch,
        }
    }

    /// The scratch, for another call.
    #[inline]
    pub(crate) fn into_scratch(self) -> Vec<u8> {
        self.scratch
    }

    #[inline]
    fn start(&self, span: &ByteSpan) -> *mut u8 {
        let (buffer, bytes) = (span.buffer as usize, &span.bytes);
        assert!(bytes.start <= bytes.end && bytes.end <= self.lengths[buffer], "the plan was made for these buffers");
        if bytes.start == bytes.end {
            // An empty buffer may be null.
            return std::ptr::dangling_mut();
        }
        // SAFETY: inside the buffer, just checked.
        unsafe { self.starts[buffer].add(bytes.start) }
    }

    /// The bytes of a span, to be read.
    #[inline]
    pub(crate) fn read(&self, span: &ByteSpan) -> &[u8] {
        // SAFETY: inside the buffer (`start`), which is valid until the call is over. Nobody writes these bytes meanwhile: the
        // program has no races.
        unsafe { std::slice::from_raw_parts(self.start(span), span.bytes.len()) }
    }

    /// The bytes of a span, to be written.
    #[expect(clippy::mut_from_ref, reason = "the spans of one step are apart, or equal and taken once")]
    #[inline]
    pub(crate) fn write(&self, span: &ByteSpan, rank: Rank) -> RunResult<&mut [u8]> {
        if span.buffer == Buffer::Input && !self.is_input_writable {
            let fault = "the program writes the input of a call that is not in place".to_owned();
            return Err(RunError::Program { rank, fault });
        }
        // SAFETY: as for `read`; and nobody reads them either: the program has no races, and an offer of them has ended
        // before (`CallScript` waits for it).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start(span), span.bytes.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_lent_twice_or_not_there_is_refused() {
        let mut memory = [0u8; 64];
        let at = |offset: usize| memory.as_ptr().wrapping_add(offset).cast_mut();
        // SAFETY: no call is made.
        let apart = |input, output| unsafe { RawCall::out_of_place(input, output) };
        // SAFETY: the same.
        let both = |start, bytes| unsafe { RawCall::in_place(start, bytes) };
        let call = |input, bytes, output, more| apart((at(input).cast_const(), bytes), (at(output), more));
        assert!(!call(0, 32, 32, 32).is_confused());
        assert!(!call(0, 0, 0, 64).is_confused());
        assert!(call(0, 33, 32, 32).is_confused());
        assert!(call(0, 64, 10, 1).is_confused());
        let null = std::ptr::null_mut::<u8>();
        assert!(!apart((null.cast_const(), 0), (null, 0)).is_confused());
        assert!(apart((null.cast_const(), 1), (at(0), 1)).is_confused());
        assert!(call(0, 33, 32, 32).lend(|_| ()).is_none());
        let lengths = |memory: Call<'_>| match memory {
            Call::InPlace(both) => [0, both.len()],
            Call::OutOfPlace { input, output } => [input.len(), output.len()],
        };
        assert_eq!(call(0, 16, 16, 32).lend(lengths), Some([16, 32]));
        assert_eq!(apart((null.cast_const(), 0), (null, 0)).lend(lengths), Some([0, 0]));
        assert_eq!(both(at(0), 64).lend(lengths), Some([0, 64]));
        assert!(both(null.wrapping_sub(1), 2).is_confused());
        assert!(!both(memory.as_mut_ptr(), 64).is_confused());
    }
}
