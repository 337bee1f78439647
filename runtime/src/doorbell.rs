//! How a rank sleeps until a peer has something for it.
//!
//! The principal types are [`Doorbell`], a futex in shared memory that peers ring, and [`Waiter`], which decides
//! between spinning and sleeping. A rank polls all its lanes, so one bell per rank is enough. Ringing costs a
//! fence and a load unless somebody sleeps: the sleeper announces itself, polls once more, and only then waits, so
//! no ring is lost.

use crate::clock::Moment;
use crate::region::Region;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The bytes of a bell: two words on their own cache line.
pub(crate) const BELL_BYTES: usize = 64;
/// A sleeper looks around at least this often, whatever happened to its peers.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// One rank's bell.
#[derive(Clone)]
pub(crate) struct Doorbell {
    region: Arc<Region>,
    offset: usize,
}

impl Doorbell {
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { region, offset }
    }

    fn rings(&self) -> &std::sync::atomic::AtomicU32 {
        self.region.word32(self.offset)
    }

    fn sleeping(&self) -> &std::sync::atomic::AtomicU32 {
        self.region.word32(self.offset + 4)
    }

    /// Wakes the owner if it sleeps; what was written before is visible to it.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `listen`: either the owner's poll sees what we wrote, or we see it asleep.
        fence(Ordering::SeqCst);
        if self.sleeping().load(Ordering::Relaxed) != 0 {
            self.rings().fetch_add(1, Ordering::Relaxed);
            // It can only fail for a bad address.
            let _ = futex::wake(self.rings(), futex::Flags::empty(), 1);
        }
    }

    /// Announces that the owner is about to sleep; it must poll once more before [`Self::sleep`].
    fn listen(&self) -> u32 {
        let seen = self.rings().load(Ordering::Relaxed);
        self.sleeping().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        seen
    }

    /// Sleeps until the bell rings after `seen`, or until `until`.
    fn sleep(&self, seen: u32, until: Moment) {
        let wait = until.since(Moment::now()).min(LONGEST_SLEEP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        // Interrupted, timed out, already rung: in each case the caller polls again.
        let _ = futex::wait(self.rings(), futex::Flags::empty(), seen, Some(&timeout));
    }

    fn mute(&self) {
        self.sleeping().store(0, Ordering::Relaxed);
    }
}

/// The owner's side of a bell: what to do after a poll that found nothing.
pub(crate) struct Waiter {
    bell: Doorbell,
    patience: Duration,
    idle_since: Option<Moment>,
    listening: Option<u32>,
}

impl Waiter {
    /// A waiter that polls for `patience` before it sleeps.
    pub(crate) fn new(bell: Doorbell, patience: Duration) -> Self {
        Self { bell, patience, idle_since: None, listening: None }
    }

    /// After a poll that found something.
    pub(crate) fn progressed(&mut self) {
        self.idle_since = None;
        if self.listening.take().is_some() {
            self.bell.mute();
        }
    }

    /// After a poll that found nothing: spins, or sleeps until the bell rings, `until`, or 50 ms.
    pub(crate) fn idle(&mut self, now: Moment, until: Moment) {
        let idle_since = *self.idle_since.get_or_insert(now);
        if now.since(idle_since) < self.patience {
            std::hint::spin_loop();
            return;
        }
        match self.listening.take() {
            None => self.listening = Some(self.bell.listen()),
            Some(seen) => {
                self.bell.sleep(seen, until);
                self.bell.mute();
            }
        }
    }
}
