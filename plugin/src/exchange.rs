//! The alltoallv of the C interface.

use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_request_t, communicator, dtype};
use crate::requests::give;
use crate::status::{CallRefusal, antiphon_result_t, check, guarded};
use comm::RawCall;
use std::ffi::c_void;
use std::ops::Range;

/// The blocks of a buffer, in bytes: block i has `counts[i]` elements, and begins at element `offsets[i]`.
///
/// # Safety
/// Both arrays have `size` entries.
unsafe fn blocks(
    counts: *const usize,
    offsets: *const usize,
    size: usize,
    each: usize,
) -> Result<Vec<Range<usize>>, CallRefusal> {
    if counts.is_null() || offsets.is_null() {
        return Err(CallRefusal::argument("an array of counts or offsets is NULL"));
    }
    // SAFETY: the caller's promise.
    let (counts, offsets) =
        unsafe { (std::slice::from_raw_parts(counts, size), std::slice::from_raw_parts(offsets, size)) };
    let block = |(&count, &offset): (&usize, &usize)| {
        let start = offset.checked_mul(each)?;
        Some(start..start.checked_add(count.checked_mul(each)?)?)
    };
    let too_large = || CallRefusal::argument("a block ends beyond all addresses");
    counts.iter().zip(offsets).map(|pair| block(pair).ok_or_else(too_large)).collect()
}

/// How the memory of what is sent lies to that of what is received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockPlacement {
    /// One lies before the other.
    Apart,
    /// In place, or the blocks of one lie between those of the other: what is sent has to be copied first.
    Interleaved,
    /// Blocks overlap although the call is not in place.
    Confused,
}

impl BlockPlacement {
    /// Both by the address that blocks are counted from, and the blocks.
    fn of(sent: (usize, &[Range<usize>]), received: (usize, &[Range<usize>])) -> Self {
        let filled = |(start, blocks): (usize, &[Range<usize>])| {
            let filled = blocks.iter().filter(|block| !block.is_empty());
            let mut filled: Vec<Range<usize>> =
                filled.map(|block| start.saturating_add(block.start)..start.saturating_add(block.end)).collect();
            filled.sort_unstable_by_key(|block| block.start);
            filled
        };
        // Blocks are counted from the start, so the call uses all memory from there to the end of the last block.
        let end = |blocks: &[Range<usize>]| blocks.iter().map(|block| block.end).max().unwrap_or(0);
        let (sent_end, received_end) = (sent.0.saturating_add(end(sent.1)), received.0.saturating_add(end(received.1)));
        let meet = sent.0 < received_end && received.0 < sent_end;
        if !meet {
            return Self::Apart;
        }
        let (from, to) = (filled(sent), filled(received));
        let overlap = from.iter().any(|block| {
            let after = to.partition_point(|other| other.end <= block.start);
            to.get(after).is_some_and(|other| other.start < block.end)
        });
        match overlap && sent.0 != received.0 {
            true => Self::Confused,
            false => Self::Interleaved,
        }
    }
}

/// A copy of some blocks, one after the other, and where they lie in it.
///
/// # Safety
/// The memory reaches as far as the blocks.
unsafe fn joined(start: *const u8, blocks: &[Range<usize>]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut copy = Vec::with_capacity(blocks.iter().map(ExactSizeIterator::len).sum());
    let place = |block: &Range<usize>| {
        let at = copy.len();
        // SAFETY: the caller's promise.
        copy.extend_from_slice(unsafe { std::slice::from_raw_parts(start.wrapping_add(block.start), block.len()) });
        at..copy.len()
    };
    let places = blocks.iter().map(place).collect();
    (copy, places)
}

/// Sends block i of `send` to rank i, and receives block i of `recv` from there: block i has `counts[i]` elements, and begins at
/// element `offsets[i]`. What one rank sends to another is as long as what that one receives. `send == recv` means in place: a block
/// is sent before another one takes its place. Otherwise no block that is sent may overlap with one that is received.
///
/// # Safety
/// The handle is a communicator that was not freed. All arrays have an entry for each rank. The buffers reach as far as their
/// blocks, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all_v(
    send: *const c_void,
    counts: *const usize,
    offsets: *const usize,
    recv: *mut c_void,
    rcounts: *const usize,
    roffsets: *const usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { exchange((send, counts, offsets), (recv, rcounts, roffsets), dtype, comm, None) }
}

/// The same, but this only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// As for `antiphon_all_to_all_v`, until the request is done; the arrays only until this returns. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all_v_start(
    send: *const c_void,
    counts: *const usize,
    offsets: *const usize,
    recv: *mut c_void,
    rcounts: *const usize,
    roffsets: *const usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { exchange((send, counts, offsets), (recv, rcounts, roffsets), dtype, comm, Some(request)) }
}

/// # Safety
/// As for `antiphon_all_to_all_v_start`.
unsafe fn exchange(
    (send, counts, offsets): (*const c_void, *const usize, *const usize),
    (receive, receive_counts, receive_offsets): (*mut c_void, *const usize, *const usize),
    of: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: Option<*mut antiphon_request_t>,
) -> antiphon_result_t {
    guarded(|| {
        request.map(check).transpose()?;
        let each = dtype(of)?.size();
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        let size = communicator.size();
        // SAFETY: the same.
        let (sends, receives) =
            unsafe { (blocks(counts, offsets, size, each)?, blocks(receive_counts, receive_offsets, size, each)?) };
        let (send, receive) = (send.cast::<u8>(), receive.cast::<u8>());
        let has_elements = |blocks: &[Range<usize>]| blocks.iter().any(|block| !block.is_empty());
        if send.is_null() && has_elements(&sends) || receive.is_null() && has_elements(&receives) {
            return Err(CallRefusal::argument("a buffer is NULL"));
        }
        let place = match BlockPlacement::of((send.addr(), &sends), (receive.addr(), &receives)) {
            BlockPlacement::Confused => return Err(CallRefusal::argument("blocks that are sent and received overlap")),
            placement => placement,
        };
        let (mut temporary, mut sent) = (Vec::new(), sends);
        if place == BlockPlacement::Interleaved {
            // SAFETY: the same.
            (temporary, sent) = unsafe { joined(send, &sent) };
        }
        let from = if temporary.is_empty() { send } else { temporary.as_ptr() };
        let arranged = |[input, output]: [usize; 2]| {
            // SAFETY: the same: these are the ends of the last blocks.
            unsafe { RawCall::out_of_place((from, input), (receive, output)) }
        };
        let mut begun = communicator.begin_exchange(&sent, &receives, arranged)?;
        match request {
            None => Ok(begun.wait()?),
            // SAFETY: the same.
            Some(out) => unsafe { give(begun, temporary, out) },
        }
    })
}
