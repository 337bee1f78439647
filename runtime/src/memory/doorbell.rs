//! How a rank sleeps until a peer has something for it.
//!
//! The principal types are [`Doorbell`], a futex in shared memory that peers ring, and [`Waiter`], which decides
//! between looking again and sleeping: a core that has gone to sleep takes longer to wake up than a small collective
//! takes. A rank polls all its lanes, so one bell per rank is enough. Ringing costs a
//! fence and a load unless somebody sleeps: the sleeper announces itself, polls once more, and only then waits, so
//! no ring is lost. A rank with sockets sleeps in its [`Poller`] instead, and says where its pipe is.
//!
//! ```text
//! offset: | rings | sleeping: no, on the futex, in a poller | pipe: process, descriptor | inode |
//!           0       4                                         8        12               16
//! ```

use crate::clock::Moment;
use crate::memory::poller::{Pipe, Poller, Ringer};
use crate::memory::region::{Place, Region};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The bytes of a bell: two words on their own cache line.
pub(crate) const BELL_BYTES: usize = 64;
/// States of the second word.
const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const IN_POLLER: u32 = 2;
/// About what a small message takes between two cores.
const SPINNING: Duration = Duration::from_micros(5);
/// About what it takes to put a core to sleep and to wake it up again.
const LOOKING: Duration = Duration::from_micros(100);
/// A sleeper looks around at least this often, whatever happened to its peers.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// One rank's bell.
#[derive(Clone)]
pub(crate) struct Doorbell {
    region: Arc<Region>,
    offset: usize,
    ringer: Arc<Ringer>,
}

impl Doorbell {
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { region, offset, ringer: Arc::default() }
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
        // Pairs with the store in `listen`: who is seen to sleep in a poller has said before where that is.
        match self.sleeping().load(Ordering::Acquire) {
            AWAKE => {}
            IN_POLLER => {
                let word = |offset| self.region.word32(self.offset + offset).load(Ordering::Relaxed);
                let inode = self.region.word64(self.offset + 16).load(Ordering::Relaxed);
                // Whoever cannot be woken looks around by itself.
                let _ = self.ringer.ring(Pipe(Place { process: word(8), descriptor: word(12), inode }));
            }
            _ => {
                self.rings().fetch_add(1, Ordering::Relaxed);
                // It can only fail for a bad address.
                let _ = futex::wake(self.rings(), futex::Flags::empty(), 1);
            }
        }
    }

    /// Says where the owner sleeps when it waits for sockets.
    fn publish(&self, Pipe(pipe): Pipe) {
        for (offset, value) in [(8, pipe.process), (12, pipe.descriptor)] {
            self.region.word32(self.offset + offset).store(value, Ordering::Relaxed);
        }
        self.region.word64(self.offset + 16).store(pipe.inode, Ordering::Relaxed);
    }

    /// Announces that the owner is about to sleep; it must poll once more before [`Self::sleep`].
    fn listen(&self, how: u32) -> u32 {
        let seen = self.rings().load(Ordering::Relaxed);
        self.sleeping().store(how, Ordering::Release);
        fence(Ordering::SeqCst);
        seen
    }

    /// Sleeps until the bell rings after `seen`, or until `until`.
    fn sleep(&self, seen: u32, until: Moment) {
        let wait = nap(until);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        // Interrupted, timed out, already rung: in each case the caller polls again.
        let _ = futex::wait(self.rings(), futex::Flags::empty(), seen, Some(&timeout));
    }

    fn mute(&self) {
        self.sleeping().store(AWAKE, Ordering::Relaxed);
    }
}

fn nap(until: Moment) -> Duration {
    until.since(Moment::now()).min(LONGEST_SLEEP)
}

/// How long a rank that finds nothing looks again, before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    /// At first it keeps its core.
    spinning: Duration,
    /// So long in all, but later whoever else is ready has the core in between.
    looking: Duration,
}

impl Patience {
    /// Nothing is urgent.
    pub(crate) const NONE: Self = Self { spinning: Duration::ZERO, looking: Duration::ZERO };

    /// That of one of so many ranks on so many cores: where ranks outnumber cores, another may need this one now.
    pub(crate) fn of(ranks: usize, cores: usize) -> Self {
        Self { spinning: if ranks <= cores { SPINNING } else { Duration::ZERO }, looking: LOOKING }
    }
}

/// The owner's side of a bell: what to do after a poll that found nothing.
pub(crate) struct Waiter<'a> {
    bell: Doorbell,
    poller: Option<&'a Poller>,
    patience: Patience,
    idle_since: Option<Moment>,
    listening: Option<u32>,
}

impl<'a> Waiter<'a> {
    /// A waiter that has `patience` before it sleeps.
    pub(crate) fn new(bell: Doorbell, patience: Patience) -> Self {
        Self { bell, poller: None, patience, idle_since: None, listening: None }
    }

    /// The same for a rank that waits for sockets too.
    #[must_use]
    pub(crate) fn with_poller(mut self, poller: Option<&'a Poller>) -> Self {
        if let Some(poller) = poller {
            self.bell.publish(poller.pipe());
        }
        self.poller = poller;
        self
    }

    /// Before a poll: hears which sockets are worth a try.
    pub(crate) fn refresh(&self) {
        if let Some(poller) = self.poller {
            poller.refresh();
        }
    }

    /// After a poll that found something.
    pub(crate) fn progressed(&mut self) {
        self.idle_since = None;
        if self.listening.take().is_some() {
            self.bell.mute();
        }
    }

    /// After a poll that found nothing: returns at once, or after others had the core, or sleeps until the bell rings,
    /// `until`, or 50 ms.
    pub(crate) fn idle(&mut self, now: Moment, until: Moment) {
        let idle = now.since(*self.idle_since.get_or_insert(now));
        if idle < self.patience.spinning {
            return std::hint::spin_loop();
        }
        if idle < self.patience.looking {
            return std::thread::yield_now();
        }
        match self.listening.take() {
            None => {
                let how = if self.poller.is_some() { IN_POLLER } else { ON_FUTEX };
                self.listening = Some(self.bell.listen(how));
            }
            Some(seen) => {
                match self.poller {
                    Some(poller) => poller.sleep(nap(until)),
                    None => self.bell.sleep(seen, until),
                }
                self.bell.mute();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_nothing_looks_again_for_a_while() {
        let region = Arc::new(Region::create(4096).unwrap());
        let at = |micros| Moment(1_000_000).after(Duration::from_micros(micros));
        let mut waiter = Waiter::new(Doorbell::new(region, 0), Patience::of(3, 2));
        // The same after every success.
        for begin in [0, 1000] {
            for (after, listens) in [(0, false), (99, false), (100, true)] {
                waiter.idle(at(begin + after), at(0));
                assert_eq!(waiter.listening.is_some(), listens, "after {after} µs");
            }
            waiter.progressed();
        }
        waiter.patience = Patience::NONE;
        waiter.idle(at(2000), at(0));
        assert!(waiter.listening.is_some());
        // Only who has a core for itself keeps it.
        assert!(Patience::of(3, 2).spinning.is_zero() && !Patience::of(2, 2).spinning.is_zero());
    }
}
