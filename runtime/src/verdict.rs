//! Why a job ended.
//!
//! The principal type is [`Verdict`]: the coordinator's decision. It ends every wait of every rank.

use serde::{Deserialize, Serialize};
use std::fmt;
use topology::Rank;

/// What a rank does in a trial.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Loads the plan, allocates buffers, compares hashes.
    Prepare,
    /// Waits for the common start.
    Start,
    /// Moves bytes.
    Work,
    /// Checks the result and reports it.
    Report,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::Prepare, Self::Start, Self::Work, Self::Report];

    /// The phase of a word of shared memory. Every word gives a phase, also a word that a faulty process wrote.
    pub(crate) fn from_word(word: u64) -> Self {
        Self::ALL[word as usize % Self::ALL.len()]
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prepare => "getting ready",
            Self::Start => "the common start",
            Self::Work => "the work",
            Self::Report => "the report",
        })
    }
}

/// Why the coordinator ended a job. "It" is the rank that the verdict names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Its process has ended.
    Died,
    /// Its process exists but does not run (it is stopped, or gets no processor time).
    Silent,
    /// It runs, but did not end a phase before the deadline.
    Late,
    /// It reported an error.
    Failed,
    /// It executes another plan, or speaks another protocol version.
    Disagrees,
    /// The launcher is gone or does not run, so no process can decide any more.
    Orphaned,
    /// It and other ranks lost their connections with each other, but none of them died.
    Cut,
    /// The connection with the process that looks after it ended: that process ended, or the connection was cut.
    Lost,
}

impl Cause {
    /// Whether the rank is lost. One that reported an error still runs.
    pub(crate) fn loses_rank(self) -> bool {
        match self {
            Self::Failed => false,
            Self::Died | Self::Silent | Self::Late | Self::Disagrees | Self::Orphaned | Self::Cut | Self::Lost => true,
        }
    }
}

/// The coordinator's decision that a job is over, and which rank was the cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The rank at fault.
    pub rank: Rank,
    /// What happened to it.
    pub cause: Cause,
    /// The phase in which it was.
    pub phase: Phase,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, cause, phase } = self;
        match cause {
            Cause::Died => write!(f, "rank {rank} died during {phase}"),
            Cause::Silent => write!(f, "rank {rank} stopped responding during {phase}"),
            Cause::Late => write!(f, "rank {rank} did not finish {phase} before the deadline"),
            Cause::Failed => write!(f, "rank {rank} failed during {phase}"),
            Cause::Disagrees => write!(f, "rank {rank} disagrees about the plan or the protocol, in {phase}"),
            Cause::Cut => write!(f, "rank {rank} was cut off from others during {phase}"),
            Cause::Orphaned => write!(f, "the launcher is gone or stopped; noticed by rank {rank} during {phase}"),
            Cause::Lost => write!(f, "rank {rank} was lost during {phase}: its process ended, or its connection"),
        }
    }
}

const CAUSES: [Cause; 8] = {
    use Cause::{Cut, Died, Disagrees, Failed, Late, Lost, Orphaned, Silent};
    [Died, Silent, Late, Failed, Disagrees, Orphaned, Cut, Lost]
};

impl Verdict {
    /// The verdict as a word of shared memory. Zero means that there is no verdict, so the word is never zero.
    pub(crate) fn to_word(self) -> u64 {
        1 + ((u64::from(self.rank.0) * 16 + self.cause as u64) * 16 + self.phase as u64)
    }

    /// The verdict of a word of shared memory. Any word but zero gives one, also a word that a faulty process wrote.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let code = word.checked_sub(1)?;
        let cause = CAUSES[(code / 16 % 16) as usize % CAUSES.len()];
        Some(Self { rank: Rank((code / 256) as u32), cause, phase: Phase::from_word(code % 16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_survives_as_a_word() {
        for cause in CAUSES {
            for phase in Phase::ALL {
                let verdict = Verdict { rank: Rank(299), cause, phase };
                assert_eq!(Verdict::from_word(verdict.to_word()), Some(verdict));
            }
        }
        assert_eq!(Verdict::from_word(0), None);
    }
}
