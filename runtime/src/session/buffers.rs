//! The three buffers of one call.
//!
//! The principal type is [`CallBuffers`]. It hands out exactly the bytes that one step reads or writes, and never a whole
//! buffer: other ranks may read other parts of it at the same time, where they lie. The program checker has proved that no
//! step writes what another reads meanwhile.

use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::Call;
use crate::plan::Span;
use program::Buffer;
use topology::Rank;

/// Where the buffers of a call lie. They outlive the call.
#[derive(Clone, Copy)]
pub(crate) struct CallBuffers {
    /// Input, output and scratch; in place, input and output are the same.
    starts: [*mut u8; 3],
    lengths: [usize; 3],
    is_input_writable: bool,
}

// SAFETY: it is only addresses; who made it vouches that the memory is the call's, whichever thread carries it on.
unsafe impl Send for CallBuffers {}

impl CallBuffers {
    /// The buffers of a caller, and scratch.
    ///
    /// # Safety
    /// The memory stays valid, and nobody but the call and its peers touches it, until the call is over.
    pub(crate) unsafe fn new(call: &mut Call<'_>, scratch: &mut [u8]) -> Self {
        let (scratch, scratch_length) = (scratch.as_mut_ptr(), scratch.len());
        match call {
            Call::InPlace(both) => Self {
                starts: [both.as_mut_ptr(), both.as_mut_ptr(), scratch],
                lengths: [both.len(), both.len(), scratch_length],
                is_input_writable: true,
            },
            Call::OutOfPlace { input, output } => Self {
                starts: [input.as_ptr().cast_mut(), output.as_mut_ptr(), scratch],
                lengths: [input.len(), output.len(), scratch_length],
                is_input_writable: false,
            },
        }
    }

    /// The bytes of a span, to be read.
    pub(crate) fn read(&self, span: &Span) -> &[u8] {
        let (buffer, bytes) = (span.buffer as usize, &span.bytes);
        assert!(bytes.start <= bytes.end && bytes.end <= self.lengths[buffer], "the plan was made for these buffers");
        // SAFETY: inside the buffer (just checked), which is valid until the call is over. Nobody writes these bytes
        // meanwhile: the program has no races.
        unsafe { std::slice::from_raw_parts(self.starts[buffer].add(bytes.start), bytes.len()) }
    }

    /// The bytes of a span, to be written.
    #[expect(clippy::mut_from_ref, reason = "the spans of one step are apart, or equal and taken once")]
    pub(crate) fn write(&self, span: &Span, rank: Rank) -> RunResult<&mut [u8]> {
        let (buffer, bytes) = (span.buffer as usize, &span.bytes);
        if span.buffer == Buffer::Input && !self.is_input_writable {
            let fault = "the program writes the input of a call that is not in place".to_owned();
            return Err(RunError::Program { rank, fault });
        }
        assert!(bytes.start <= bytes.end && bytes.end <= self.lengths[buffer], "the plan was made for these buffers");
        // SAFETY: as for `read`; and nobody reads them either: the program has no races, and an offer of them has ended
        // before (`CallScript` waits for it).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.starts[buffer].add(bytes.start), bytes.len()) })
    }
}
