//! Work in the background, for communicators that were made without blocking: their functions return at once, and NCCL's
//! `ncclCommGetAsyncError` says when the work is done.
//!
//! The principal type is [`Background`].

use crate::names::NcclName;
use crate::real::{address, inside};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SUCCESS: c_int = 0;
const INTERNAL_ERROR: c_int = 3;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;
/// Between two looks at what NCCL does.
const LOOK: Duration = Duration::from_micros(50);
/// How long the end of a communicator waits for work that was told to end.
const GRACE: Duration = Duration::from_secs(10);

/// The state of a communicator's work.
#[derive(Default)]
struct BackgroundProgress {
    /// Pieces of work that are not done.
    pieces: usize,
    /// The first error.
    code: c_int,
}

/// The work for one communicator.
#[derive(Default)]
pub(crate) struct Background {
    progress: Mutex<BackgroundProgress>,
    changed: Condvar,
    /// The communicator is about to end, and so is the work for it.
    stop: Arc<AtomicBool>,
}

impl Background {
    fn progress(&self) -> MutexGuard<'_, BackgroundProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `ncclCommGetAsyncError` gives as long as this library has something to say; otherwise NCCL says it.
    pub(crate) fn state(&self) -> Option<c_int> {
        let progress = self.progress();
        match (progress.pieces, progress.code) {
            (0, SUCCESS) => None,
            (0, code) => Some(code),
            _ => Some(IN_PROGRESS),
        }
    }

    /// Whether work is not done yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.progress().pieces > 0
    }

    /// Whether the communicator is about to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Is set when the communicator is about to end.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    pub(crate) fn begin(&self) {
        self.progress().pieces += 1;
    }

    pub(crate) fn end(&self, code: c_int) {
        let mut progress = self.progress();
        progress.pieces -= 1;
        if progress.code == SUCCESS {
            progress.code = code;
        }
        self.changed.notify_all();
    }

    /// Ends the work, so that NCCL's communicator can end. False: a thread may use it still.
    pub(crate) fn stop(&self) -> bool {
        self.stop.store(true, Ordering::Release);
        let waited = self.changed.wait_timeout_while(self.progress(), GRACE, |progress| progress.pieces > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.pieces == 0
    }

    /// What became of the work is of no interest: NCCL says what becomes of the communicator.
    pub(crate) fn forget(&self) {
        self.progress().code = SUCCESS;
    }

    /// Waits until NCCL has done what it was given, however long NCCL takes for it. False: it has failed, as NCCL will say, or is
    /// about to end.
    pub(crate) fn wait_for_nccl(&self, comm: *mut c_void) -> bool {
        while !self.is_stopped() {
            let mut code = SUCCESS;
            // SAFETY: NCCL's function takes a communicator, which ends only after this has returned, and the address of a number.
            let asked = unsafe {
                let ask: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int =
                    std::mem::transmute(address(NcclName::ncclCommGetAsyncError));
                ask(comm, &raw mut code)
            };
            match (asked, code) {
                (SUCCESS, IN_PROGRESS) => std::thread::sleep(LOOK),
                (SUCCESS, SUCCESS) => return true,
                _ => return false,
            }
        }
        false
    }
}

/// Does work in a thread, for communicators that are busy meanwhile. `work` gives the first error of each of them.
pub(crate) fn spawn(of: Vec<Arc<Background>>, work: impl FnOnce() -> Vec<c_int> + Send + 'static) -> c_int {
    of.iter().for_each(|background| background.begin());
    let all = of.clone();
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut codes = Vec::new();
            inside(|| {
                codes = work();
                SUCCESS
            });
            codes
        }));
        let codes = done.unwrap_or_default();
        for (at, background) in all.iter().enumerate() {
            background.end(codes.get(at).copied().unwrap_or(INTERNAL_ERROR));
        }
    };
    if std::thread::Builder::new().spawn(run).is_ok() {
        return IN_PROGRESS;
    }
    of.iter().for_each(|background| background.end(INTERNAL_ERROR));
    INTERNAL_ERROR
}
