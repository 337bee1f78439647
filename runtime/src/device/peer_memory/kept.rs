//! Allocations that others may have open still.
//!
//! The principal function is [`until_all_have_left`]. Nobody waits for others here: memory is freed when somebody comes next.

use super::driver::MappedMemory;
use super::sockets::PeerSockets;
use std::sync::{Arc, Mutex, PoisonError};

/// An allocation, and those who had it open.
struct KeptMemory {
    _memory: MappedMemory,
    sockets: Arc<PeerSockets>,
}

static KEPT: Mutex<Vec<KeptMemory>> = Mutex::new(Vec::new());

/// Frees what nobody has open any more.
pub(super) fn free_ended() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let (ended, others) = kept.drain(..).partition(|kept| kept.sockets.are_ended());
    *kept = others;
    let ended: Vec<KeptMemory> = ended;
    drop(kept);
    drop(ended);
}

/// Keeps an allocation until all others have said that they leave, or are gone. This rank has unmapped theirs, and says so.
pub(super) fn until_all_have_left(memory: MappedMemory, sockets: Arc<PeerSockets>) {
    sockets.leave();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(KeptMemory { _memory: memory, sockets });
    free_ended();
}
