//! What happens before what.

use crate::code::Scope;
use std::collections::BTreeMap;

/// For each thread, how many of its periods have happened before. A period of a thread ends where it releases or meets others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VectorClock(Vec<u32>);

impl VectorClock {
    pub(crate) fn new(threads: usize, own: usize) -> Self {
        let mut clock = Self(vec![0; threads]);
        clock.0[own] = 1;
        clock
    }

    pub(crate) fn of(&self, thread: u32) -> u32 {
        self.0[thread as usize]
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Begins a new period of a thread.
    pub(crate) fn advance(&mut self, thread: u32) {
        self.0[thread as usize] += 1;
    }
}

/// Who accesses memory, when and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) thread: u32,
    /// The period of the thread.
    pub(crate) period: u32,
    pub(crate) line: u32,
    pub(crate) block: u32,
    pub(crate) device: u32,
    /// For accesses that may meet others at the same time, how far away these may be.
    pub(crate) scope: Option<Scope>,
}

impl Access {
    fn reaches(self, other: Self) -> bool {
        match self.scope {
            None => false,
            Some(Scope::Block) => self.block == other.block,
            Some(Scope::Device) => self.device == other.device,
            Some(Scope::System) => true,
        }
    }

    /// Whether both accesses are strong, and each reaches the other.
    pub(crate) fn pairs_with(self, other: Self) -> bool {
        self.reaches(other) && other.reaches(self)
    }

    /// Whether two accesses of one byte, one of them a write, may happen at the same time. `clock` is that of the later one.
    pub(crate) fn races_with(self, later: Self, clock: &VectorClock) -> bool {
        self.thread != later.thread && self.period > clock.of(self.thread) && !self.pairs_with(later)
    }
}

/// What releases have made visible, by address.
#[derive(Default)]
pub(crate) struct Releases(BTreeMap<u64, (Access, VectorClock)>);

impl Releases {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// A store. If it releases, `clock` is what it makes visible; otherwise an earlier release at this address is covered.
    pub(crate) fn store(&mut self, address: u64, access: Access, clock: Option<&VectorClock>) {
        match clock {
            Some(clock) => drop(self.0.insert(address, (access, clock.clone()))),
            None => drop(self.0.remove(&address)),
        }
    }

    /// What an acquiring load learns.
    pub(crate) fn acquire(&self, address: u64, access: Access) -> Option<&VectorClock> {
        let (released, clock) = self.0.get(&address)?;
        released.pairs_with(access).then_some(clock)
    }
}
