//! A schedule of the simulation: the parties, the faults and their times.

use std::time::Duration;

/// Longer than any wait, in milliseconds.
pub(super) const FOR_EVER: u64 = 1_000_000;
/// The coordinator's plan.
pub(super) const PLAN: &str = "the plan";

/// A small generator with a fixed sequence (SplitMix64).
pub(in crate::launch) struct Random(pub(in crate::launch) u64);

impl Random {
    pub(in crate::launch) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % limit
    }

    pub(super) fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_micros(50 + self.below(1000 * limit))
    }
}

/// A process of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    Coordinator,
    /// The agent of a rank other than 0.
    Agent(usize),
    Worker(usize),
}

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InjectedFault {
    Crash(Party),
    /// The party is stopped for this many milliseconds.
    Stop(Party, u64),
    /// No message passes between the coordinator and an agent for this many milliseconds.
    Silence(usize, u64),
    /// From now on, no message passes between the coordinator and any agent.
    Isolation,
    /// All connections of the coordinator break.
    CutOff,
    /// The data connection between two neighbours breaks.
    CutLane(usize),
    /// All data connections of a rank break.
    CutLanes(usize),
    /// The worker prepares another plan.
    OtherPlan(usize),
    /// The worker finds no plan.
    NoPlan(usize),
    /// The worker speaks another version of the protocol.
    OtherProtocol(usize),
    /// The worker is so slow that the others nearly give up.
    Slow(usize),
}

/// One schedule.
#[derive(Clone, Debug)]
pub(super) struct SimulationSetup {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) tasks: u64,
    /// The longest time of a message, in milliseconds.
    pub(super) delay: u64,
    /// How many of a hundred messages are lost, and how many are duplicated.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Each fault with its time, in milliseconds.
    pub(super) faults: Vec<(u64, InjectedFault)>,
}
