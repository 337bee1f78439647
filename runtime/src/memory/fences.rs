//! A memory fence of which one side costs nothing.
//!
//! The principal functions are [`light`] and [`heavy`]. A rank that sends a message writes the message and then reads whether
//! its peer sleeps. A rank that goes to sleep writes that it sleeps and then reads whether a message is there. Each must see the
//! other's write, so each needs a full fence between its write and its read. Messages are frequent, and going to sleep is rare.
//! So the rank that goes to sleep asks the kernel (`membarrier`) to run the fence on all cores of all processes that have
//! registered for it. Registering changes nothing else in a process. Without such a kernel, both sides run a fence.

use crate::memory::atomics::fence;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

/// Whether this process takes part: then its [`light`] fences are complete if the other side's are [`heavy`].
pub(crate) fn is_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        // Where no other process is, or none is real, both sides run a fence.
        !cfg!(any(miri, feature = "model"))
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    })
}

/// The fence of the side that runs it often. `is_paired` says that both sides are registered.
#[inline]
pub(crate) fn light(is_paired: bool) {
    match is_paired {
        // The other side's fence runs on this core as well, between any two of this thread's instructions.
        true => compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

/// The fence of the side that runs it seldom.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if is_registered() {
        // It worked when the process registered.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
}
