//! When something happens in a program in rounds.

/// A point in time: the stage or exchange of a number, and the level within a stage. The default is before all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct RoundTime {
    pub(super) round: u32,
    pub(super) level: u32,
}

impl RoundTime {
    /// The exchange of a round, after all levels of its stage.
    pub(super) fn exchange(round: u32) -> Self {
        Self { round, level: u32::MAX }
    }

    pub(super) fn is_exchange(self) -> bool {
        self.level == u32::MAX
    }

    /// The first time after it for local work.
    pub(super) fn next_work(self) -> Self {
        match self.is_exchange() {
            true => Self { round: self.round + 1, level: 1 },
            false => Self { level: self.level + 1, ..self },
        }
    }

    /// The first round whose exchange is after it.
    pub(super) fn next_exchange(self) -> u32 {
        self.round + u32::from(self.is_exchange())
    }
}
