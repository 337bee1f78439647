//! What a schedule of the simulation is: who takes part, and what goes wrong when.

use std::time::Duration;

/// Longer than anybody waits, in milliseconds.
pub(super) const FOR_EVER: u64 = 1_000_000;
/// The plan that the coordinator has.
pub(super) const PLAN: &str = "the plan";

/// A small generator with a fixed stream (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % limit
    }

    pub(super) fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_micros(50 + self.below(1000 * limit))
    }
}

/// Who acts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    Coordinator,
    /// What looks after a rank but 0.
    Agent(usize),
    Worker(usize),
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Crash(Party),
    /// For so many milliseconds.
    Stop(Party, u64),
    /// Nothing passes between the coordinator and an agent for so many milliseconds.
    Silence(usize, u64),
    /// Nothing passes between the coordinator and any agent any more.
    Isolation,
    /// All connections of the coordinator break.
    CutOff,
    /// The data connection between two neighbours breaks.
    CutLane(usize),
    /// All data connections of a rank break.
    CutLanes(usize),
    /// The worker prepares another plan.
    OtherPlan(usize),
    /// It finds none.
    NoPlan(usize),
    /// It speaks another version of the protocol.
    OtherProtocol(usize),
    /// It works so slowly that others nearly give up.
    Slow(usize),
}

/// One schedule.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) tasks: u64,
    /// The longest that a message takes, in milliseconds.
    pub(super) delay: u64,
    /// How many of a hundred messages are lost, and doubled.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// After so many milliseconds.
    pub(super) faults: Vec<(u64, Fault)>,
}
