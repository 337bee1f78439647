//! Calls whose buffers are cut into blocks, and messages between two ranks.
//!
//! The principal functions are [`exchange`] and [`message`].

use crate::arrange::GivenMemory;
use crate::call_thread::CallThread;
use crate::errors::{argument, raised};
use crate::ongoing::{CoreHandle, HeldMemory, OngoingCall};
use crate::waiting::complete;
use comm::{BegunCall, CommResult, Communicator, RawCall};
use pyo3::prelude::*;
use std::ops::Range;

/// The blocks of a buffer in bytes, from their lengths in elements and where they begin: one after the other unless said
/// otherwise.
///
/// # Errors
/// `ArgumentError` if a block ends beyond the buffer.
pub(crate) fn blocks(
    name: &str,
    counts: &[usize],
    offsets: Option<&[usize]>,
    (each, bytes): (usize, usize),
) -> PyResult<Vec<Range<usize>>> {
    if offsets.is_some_and(|offsets| offsets.len() != counts.len()) {
        return Err(argument(format!("{name}: there are not as many offsets as counts")));
    }
    let mut next = 0_usize;
    let mut block = |(index, &count): (usize, &usize)| {
        if count == 0 {
            // Wherever it is said to be, it needs no memory.
            return Some(0..0);
        }
        let start = match offsets {
            Some(offsets) => offsets[index].checked_mul(each)?,
            None => next,
        };
        let end = start.checked_add(count.checked_mul(each)?)?;
        next = end;
        (end <= bytes).then_some(start..end)
    };
    let short = || argument(format!("{name} has {} elements, but a block ends beyond that", bytes / each.max(1)));
    counts.iter().enumerate().map(|pair| block(pair).ok_or_else(short)).collect()
}

/// Messages of up to so many bytes take little time.
const SHORT: usize = 16 << 10;

/// A call's memory, for another thread.
struct LentCall(RawCall);

// SAFETY: addresses of memory that whoever made it lends to the call, whichever thread carries it on.
unsafe impl Send for LentCall {}
// SAFETY: the same; a shared reference only reads addresses.
unsafe impl Sync for LentCall {}

/// Makes a call, or begins it and hands back what tells its end.
fn make(
    py: Python<'_>,
    thread: &CallThread,
    begin: impl Send + FnOnce() -> CommResult<BegunCall>,
    stream: (u64, bool),
    held: Option<HeldMemory>,
) -> PyResult<Option<CoreHandle>> {
    let Some(held) = held else { return complete(py, begin).map(|()| None) };
    let ongoing = py.detach(|| thread.begin(begin, |begun| OngoingCall::new(begun, stream, held)));
    Ok(Some(CoreHandle::new(ongoing.map_err(|error| raised(&error))?, thread.waker())))
}

/// Sends block i of the one buffer to rank i, and receives block i of the other from there.
///
/// # Safety
/// `held` keeps the memory valid, and nobody else uses it, until the call is over.
pub(crate) unsafe fn exchange(
    py: Python<'_>,
    (communicator, thread): (&Communicator, &CallThread),
    memory: GivenMemory,
    [sends, receives]: [Vec<Range<usize>>; 2],
    held: Option<HeldMemory>,
) -> PyResult<Option<CoreHandle>> {
    let (send, receive) = (memory.send.0, memory.receive.0);
    // SAFETY: the caller's promise; the blocks, of which the call needs no more, lie in the buffers (`blocks`).
    let lent = move |[input, output]: [usize; 2]| unsafe {
        RawCall::out_of_place((send.cast_const(), input), (receive, output))
    };
    // The lengths are those that the call will ask for: the ends of the last blocks.
    let end = |blocks: &[Range<usize>]| blocks.iter().map(|block| block.end).max().unwrap_or_default();
    let call = LentCall(lent([end(&sends), end(&receives)]));
    let call = &call;
    let begin = || communicator.begin_exchange(&sends, &receives, |_| call.0);
    make(py, thread, begin, (0, false), held)
}

/// Sends a message, or receives one.
///
/// # Safety
/// `held` keeps the memory valid, and nobody else uses it, until the call is over.
pub(crate) unsafe fn message(
    py: Python<'_>,
    (communicator, thread): (&Communicator, &CallThread),
    (start, bytes): (*mut u8, usize),
    (peer, is_sent): (usize, bool),
    held: Option<HeldMemory>,
) -> PyResult<Option<CoreHandle>> {
    let none = (std::ptr::null_mut(), 0);
    // SAFETY: the caller's promise.
    let call = LentCall(unsafe {
        match is_sent {
            true => RawCall::out_of_place((start.cast_const(), bytes), none),
            false => RawCall::out_of_place((none.0.cast_const(), none.1), (start, bytes)),
        }
    });
    let call = &call;
    let begin = || communicator.begin_message(call.0, bytes, peer, is_sent);
    let stream = 1 + 2 * peer as u64 + u64::from(is_sent);
    make(py, thread, begin, (stream, bytes <= SHORT), held)
}
