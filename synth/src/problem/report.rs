//! What happened: every candidate, what it achieved, and why it stopped.

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
    /// The clock ran out; the incumbent stands.
    TimeLimit,
    /// The user interrupted; the incumbent stands.
    Interrupted,
    /// The strategy has nothing to say about this problem.
    NotApplicable,
    /// The constraints admit no schedule.
    Infeasible,
    /// The search tried all it had within its clock-free limits.
    Exhausted,
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
            Self::Exhausted => "exhausted",
        })
    }
}

/// One attempt of one strategy, judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// Such as `classic/ring` or `milp`.
    pub strategy: String,
    /// Chunks per rank it used.
    pub chunks_per_rank: u32,
    /// Its verified makespan; `None` if it produced nothing valid.
    pub makespan_us: Option<f64>,
    /// How many transfers.
    pub transfers: usize,
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// How long it took.
    pub seconds: f64,
    /// What else a person should know, such as why it does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// When the search got better.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Milestone {
    /// Since the search began.
    pub seconds: f64,
    /// The best verified makespan from then on.
    pub makespan_us: f64,
    /// Who found it.
    pub strategy: String,
}

/// The planner's account of a synthesis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The best verified makespan.
    pub makespan_us: f64,
    /// The best proven bound for this demand.
    pub lower_bound_us: f64,
    /// Which bound.
    pub bound: String,
    /// makespan / bound − 1; `None` where the bound is zero.
    pub gap: Option<f64>,
    /// Who won.
    pub strategy: String,
    /// The strategy of the schedule that the search began with; `None` if it began with nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<String>,
    /// Why the winner's search stopped.
    pub stop_reason: StopReason,
    /// Wall-clock seconds in all.
    pub seconds: f64,
    /// Everybody who tried.
    pub candidates: Vec<Candidate>,
    /// How the best makespan fell, over all chunk counts.
    pub milestones: Vec<Milestone>,
}

/// A sign of life for a progress bar.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// Who is at work.
    pub strategy: &'static str,
    /// The best makespan so far.
    pub incumbent: Option<Micros>,
    /// The best bound so far.
    pub bound: Option<LowerBound>,
    /// What it is doing, in a few words.
    pub activity: String,
}
