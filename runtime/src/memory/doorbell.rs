//! How a rank sleeps until a peer wakes it.
//!
//! The principal types are [`Doorbell`], a futex in shared memory that peers ring, and [`Waiter`], which decides
//! between polling again and sleeping: the wake-up of a core takes longer than a small collective. A rank polls all its
//! lanes, so it needs only one bell. A ring costs two loads, unless the owner sleeps ([`fences`]). The owner announces its
//! sleep, polls once more, and only then sleeps, so no ring is lost. A rank with sockets sleeps in its [`Poller`]
//! instead, and publishes its pipe.
//!
//! ```text
//! offset: | rings | sleeping: no, on the futex, in a poller | pipe: process, descriptor | inode | heavy fences: 0, 1 |
//!           0       4                                         8        12               16      24
//! ```

use crate::clock::Moment;
use crate::memory::atomics::{AtomicU32, yield_now};
use crate::memory::fences;
use crate::memory::poller::{Pipe, Poller, Ringer};
use crate::memory::region::{OpenFilePlace, Region};
#[cfg(not(feature = "model"))]
use rustix::thread::futex;
#[cfg(not(feature = "model"))]
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The bytes of a bell: its words on their own cache line.
pub(crate) const BELL_BYTES: usize = 64;
/// States of the second word, `sleeping`.
const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const IN_POLLER: u32 = 2;
/// About the time of a small message between two cores.
const SPINNING: Duration = Duration::from_micros(5);
/// About the time to put a core to sleep and to wake it up again.
const LOOKING: Duration = Duration::from_micros(100);
/// A sleeper polls again after this time, even without a ring.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// So many sleepers on one core may do so without being in the way of those that work. More sleep longer.
const SLEEPERS: usize = 16;

/// One rank's bell.
#[derive(Clone)]
pub(crate) struct Doorbell {
    region: Arc<Region>,
    offset: usize,
    ringer: Arc<Ringer>,
    /// Whether this process takes part in heavy fences.
    is_registered: bool,
}

impl Doorbell {
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { region, offset, ringer: Arc::default(), is_registered: fences::is_registered() }
    }

    fn rings(&self) -> &AtomicU32 {
        self.region.word32(self.offset)
    }

    fn sleeping(&self) -> &AtomicU32 {
        self.region.word32(self.offset + 4)
    }

    /// Whether the owner announces its sleep with a heavy barrier.
    fn is_heavy(&self) -> &AtomicU32 {
        self.region.word32(self.offset + 24)
    }

    /// Wakes the owner if it sleeps. The owner sees everything that the caller wrote before.
    #[inline]
    pub(crate) fn ring(&self) {
        // Pairs with the barrier in `listen`: the owner's next poll sees what we wrote, or we see that the owner sleeps.
        fences::light(self.is_registered && self.is_heavy().load(Ordering::Relaxed) == 1);
        // Pairs with the store in `listen`: a rank publishes its pipe before it announces that it sleeps in the poller.
        match self.sleeping().load(Ordering::Acquire) {
            AWAKE => {}
            IN_POLLER => {
                let word = |offset| self.region.word32(self.offset + offset).load(Ordering::Relaxed);
                let inode = self.region.word64(self.offset + 16).load(Ordering::Relaxed);
                // If the wake-up fails, the owner still polls again within `LONGEST_SLEEP`.
                let _ = self.ringer.ring(Pipe(OpenFilePlace { process: word(8), descriptor: word(12), inode }));
            }
            _ => {
                self.rings().fetch_add(1, Ordering::Relaxed);
                // It fails only for a bad address.
                #[cfg(not(feature = "model"))]
                let _ = futex::wake(self.rings(), futex::Flags::empty(), 1);
            }
        }
    }

    /// Publishes the pipe that wakes the owner when it sleeps in its poller.
    fn publish(&self, Pipe(pipe): Pipe) {
        for (offset, value) in [(8, pipe.process), (12, pipe.descriptor)] {
            self.region.word32(self.offset + offset).store(value, Ordering::Relaxed);
        }
        self.region.word64(self.offset + 16).store(pipe.inode, Ordering::Relaxed);
    }

    /// Announces that the owner is about to sleep. The owner must poll once more before [`Self::sleep`].
    fn listen(&self, how: u32) -> u32 {
        let seen = self.rings().load(Ordering::Relaxed);
        self.sleeping().store(how, Ordering::Release);
        fences::heavy();
        seen
    }

    /// Sleeps until the first ring after `seen`, or for `wait`.
    #[cfg(not(feature = "model"))]
    fn sleep(&self, seen: u32, wait: Duration) {
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        // Interrupted, timed out or rung: in each case the caller polls again.
        let _ = futex::wait(self.rings(), futex::Flags::empty(), seen, Some(&timeout));
    }

    /// Sleeps until the first ring after `seen`, in the model for ever, so that a ring that is lost is noticed.
    #[cfg(feature = "model")]
    fn sleep(&self, seen: u32, _wait: Duration) {
        while self.rings().load(Ordering::Relaxed) == seen {
            yield_now();
        }
    }

    fn mute(&self) {
        self.sleeping().store(AWAKE, Ordering::Relaxed);
    }
}

/// How long a rank that finds nothing keeps polling before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    /// How long it spins between polls and keeps its core.
    spinning: Duration,
    /// The whole time. After `spinning`, it yields the core between polls.
    looking: Duration,
    /// A sleeper polls again after this time, even without a ring.
    sleeping: Duration,
}

impl Patience {
    /// Sleeps at once, because nothing is urgent.
    pub(crate) const NONE: Self = Self { spinning: Duration::ZERO, looking: Duration::ZERO, sleeping: LONGEST_SLEEP };

    /// Whether a rank keeps its core while it waits.
    pub(crate) fn keeps_core(self) -> bool {
        !self.spinning.is_zero()
    }

    /// The patience of one of `ranks` ranks on this machine.
    pub(crate) fn here(ranks: usize) -> Self {
        Self::of(ranks, std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// The patience of one of `ranks` ranks on `cores` cores. With more ranks than cores it does not spin, because
    /// another rank may need the core.
    pub(crate) fn of(ranks: usize, cores: usize) -> Self {
        let spinning = if ranks <= cores { SPINNING } else { Duration::ZERO };
        let sleeping = LONGEST_SLEEP.saturating_mul(ranks.div_ceil(SLEEPERS * cores.max(1)).max(1) as u32);
        Self { spinning, looking: LOOKING, sleeping }
    }
}

/// The owner's side of a bell. It decides what to do after a poll that found nothing.
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
        let is_heavy = u32::from(bell.is_registered);
        // A store would take the line from the peers, which read it at each ring.
        if bell.is_heavy().load(Ordering::Relaxed) != is_heavy {
            bell.is_heavy().store(is_heavy, Ordering::Relaxed);
        }
        Self { bell, poller: None, patience, idle_since: None, listening: None }
    }

    /// Lets this waiter sleep in `poller`, for a rank that waits for sockets too.
    #[must_use]
    pub(crate) fn with_poller(mut self, poller: Option<&'a Poller>) -> Self {
        if let Some(poller) = poller {
            self.bell.publish(poller.pipe());
        }
        self.poller = poller;
        self
    }

    /// Call before a poll: learns which sockets have changed.
    pub(crate) fn refresh(&self) {
        if let Some(poller) = self.poller {
            poller.refresh();
        }
    }

    /// Call after a poll that found something.
    pub(crate) fn progressed(&mut self) {
        self.idle_since = None;
        if self.listening.take().is_some() {
            self.bell.mute();
        }
    }

    /// Call after a poll that found nothing, if this thread must not sleep. Spins, or lets others run.
    pub(crate) fn stay_awake(&mut self, now: Moment) {
        match now.since(*self.idle_since.get_or_insert(now)) < self.patience.spinning {
            true => std::hint::spin_loop(),
            false => yield_now(),
        }
    }

    /// Call after a poll that found nothing. Spins, yields, or sleeps until a ring, until `until`, or for a while.
    pub(crate) fn idle(&mut self, now: Moment, until: Moment) {
        let idle = now.since(*self.idle_since.get_or_insert(now));
        if idle < self.patience.spinning {
            return std::hint::spin_loop();
        }
        if idle < self.patience.looking {
            return yield_now();
        }
        match self.listening.take() {
            None => {
                let how = if self.poller.is_some() { IN_POLLER } else { ON_FUTEX };
                self.listening = Some(self.bell.listen(how));
            }
            Some(seen) => {
                let wait = until.since(Moment::now()).min(self.patience.sleeping);
                match self.poller {
                    Some(poller) => poller.sleep(wait),
                    None => self.bell.sleep(seen, wait),
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
        // A success starts the same sequence again.
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
        // A rank spins only if it has a core for itself.
        assert!(Patience::of(3, 2).spinning.is_zero() && !Patience::of(2, 2).spinning.is_zero());
    }
}
