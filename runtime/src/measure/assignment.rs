//! Collectives that are tried at the same time, each with its trial.
//!
//! The principal type is [`Assignment`].

use crate::error::{RunError, RunResult};
use crate::execution::concurrent::{Concurrent, Work};
use crate::group::Group;
use crate::measure::trial::{RankReport, Trial, TrialReport};
use program::VerifiedProgram;
use topology::Rank;

/// A collective to try, among some of a job's ranks.
#[derive(Clone, Debug)]
pub struct Assignment<'a> {
    /// The program to run.
    pub program: &'a VerifiedProgram,
    /// The ranks that run it: the program's rank r is number r of the group.
    pub group: Group,
    /// How often it runs, and on which data. Collectives tried together have equal repetitions and warm-ups.
    pub trial: Trial,
}

/// The trials of assignments.
pub(crate) fn each_trial<'t>(assignments: &'t [Assignment<'_>]) -> Vec<&'t Trial> {
    assignments.iter().map(|assignment| &assignment.trial).collect()
}

impl<'a> Concurrent<'a> {
    /// The works of these assignments.
    ///
    /// # Errors
    /// As for [`Self::tried`].
    pub(crate) fn assigned(assignments: &[Assignment<'a>], ranks: usize) -> RunResult<Self> {
        let work = |assignment: &Assignment<'a>| {
            let Assignment { program, group, trial } = assignment;
            Work { group: group.clone(), ..Work::new(program, trial.count, trial.dtype) }
        };
        Self::tried(assignments.iter().map(work).collect(), &each_trial(assignments), ranks)
    }

    /// Works that are tried together.
    ///
    /// # Errors
    /// As for [`Self::new`]; [`RunError::Mismatch`] if the trials differ in their repetitions.
    pub(crate) fn tried(works: Vec<Work<'a>>, trials: &[&Trial], ranks: usize) -> RunResult<Self> {
        let times = |trial: &Trial| (trial.warmups, trial.repetitions);
        if trials.windows(2).any(|pair| times(pair[0]) != times(pair[1])) {
            let what = "collectives that run together have as many repetitions".to_owned();
            return Err(RunError::Mismatch { what });
        }
        Self::new(works, ranks)
    }

    /// The report of each work, from what each rank of the job found.
    pub(crate) fn reports(&self, found: Vec<Vec<RankReport>>) -> Vec<TrialReport> {
        let empty = |work: &Work<'_>| TrialReport { ranks: vec![RankReport::default(); work.group.ranks().len()] };
        let mut reports: Vec<TrialReport> = self.works().iter().map(empty).collect();
        for (index, found) in found.into_iter().enumerate() {
            for ((work, number), found) in self.local_ranks(Rank::from_index(index)).zip(found) {
                reports[work].ranks[number.index()] = found;
            }
        }
        reports
    }
}
