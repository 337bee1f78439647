//! The report of a synthesis: every candidate, its makespan, and why its search ended.

use super::Cancel;
use schedule::LowerBound;
use serde::Serialize;
use std::fmt;
use topology::Micros;

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The makespan equals a proven bound.
    Optimal,
    /// The gap fell below the requested one.
    GapLimit,
    /// The time limit passed; the incumbent stands.
    TimeLimit,
    /// The user interrupted; the incumbent stands.
    Interrupted,
    /// The strategy has no algorithm for this problem.
    NotApplicable,
    /// The constraints admit no schedule.
    Infeasible,
    /// The search tried everything within its clock-free limits.
    Done,
    /// The strategy, or its solver, ended with an error.
    Failed,
    /// Restarts with other seeds gain little.
    Settled,
}

impl StopReason {
    /// Of a search that its deadline ended: the time was up, or the user interrupted.
    pub(crate) fn out_of_time(cancel: &Cancel) -> Self {
        if cancel.is_cancelled() { Self::Interrupted } else { Self::TimeLimit }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Optimal => "optimal",
            Self::GapLimit => "gap limit",
            Self::TimeLimit => "time limit",
            Self::Interrupted => "interrupted",
            Self::NotApplicable => "not applicable",
            Self::Infeasible => "infeasible",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Settled => "settled: restarts gain little",
        })
    }
}

/// One attempt of one strategy, judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// Such as `classic/ring` or `milp`.
    pub strategy: String,
    /// Chunks per rank of the candidate.
    pub chunks_per_rank: u32,
    /// Its verified makespan, in microseconds; `None` if there is no valid schedule.
    pub makespan_us: Option<f64>,
    /// The number of transfers.
    pub transfers: usize,
    /// Why its search ended.
    pub stop_reason: StopReason,
    /// How long its search took.
    pub seconds: f64,
    /// A remark for the user, such as why the strategy does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An improvement of the best makespan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Milestone {
    /// Time since the search began.
    pub seconds: f64,
    /// The best verified makespan from then on.
    pub makespan_us: f64,
    /// The strategy that found it.
    pub strategy: String,
}

/// The planner's account of a synthesis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The best verified makespan, in microseconds.
    pub makespan_us: f64,
    /// The best proven bound for this demand, in microseconds.
    pub lower_bound_us: f64,
    /// The name of that bound.
    pub bound: String,
    /// makespan / bound − 1; `None` where the bound is zero.
    pub gap: Option<f64>,
    /// The strategy that found the best schedule.
    pub strategy: String,
    /// The strategy of the schedule that the search began with; `None` if it began with nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<String>,
    /// Why the search ended that found the best schedule.
    pub stop_reason: StopReason,
    /// Wall-clock seconds in all.
    pub seconds: f64,
    /// All candidates.
    pub candidates: Vec<Candidate>,
    /// The improvements of the best makespan, over all chunk counts.
    pub milestones: Vec<Milestone>,
}

/// A progress report, for a progress bar.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// The strategy that runs.
    pub strategy: &'static str,
    /// The best makespan so far.
    pub incumbent: Option<Micros>,
    /// The best bound so far.
    pub bound: Option<LowerBound>,
    /// What the strategy is doing, in a few words.
    pub activity: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_search_does_not_say_time_limit() {
        let cancel = Cancel::default();
        assert_eq!(StopReason::out_of_time(&cancel), StopReason::TimeLimit);
        cancel.cancel();
        assert_eq!(StopReason::out_of_time(&cancel), StopReason::Interrupted);
    }
}
