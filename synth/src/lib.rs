//! How an answer is found: a problem, what a sketch allows, bounds, and a portfolio of strategies.
//!
//! The entry point is [`synthesize`]: bounds first, then strategies from cheap to dear, each returning the same
//! kind of [`schedule::Schedule`]; every candidate is judged by `schedule`'s verifier and replay, never by the
//! strategy that made it. The report lists every candidate with its time and why it stopped.
//!
//! This crate does no IO, knows no runtime, and reads the clock only to honour a deadline.

mod bounds;
#[cfg(test)]
mod by_hand;
mod chunking;
mod classic;
mod constraints;
mod distance;
mod ease;
mod error;
mod exact;
mod flow;
mod improve;
mod interleave;
mod levels;
mod levers;
mod matching;
pub mod matrix;
mod milp;
mod multicommodity;
mod options;
mod orbits;
mod planner;
mod prefer;
mod problem;
mod reach;
mod report;
mod reversal;
mod sizes;
pub mod sketch;
mod strategy;
mod trees;

pub use bounds::{Bound, Bounds, Certificate, LinkPeriods, Multiplier, Proof, ResourcePeriods, Row, Scope, bounds};
pub use chunking::chunk_counts;
pub use classic::Classic;
pub use constraints::{ConnectionWish, Constraints, Hindrance, Stages, Way};
pub use error::SynthError;
pub use exact::{Effort, Exact, Front, Point, Reach, Reason, Refuted, Relaxation, horizon, pareto};
pub use flow::Flow;
pub use improve::Improve;
pub use levels::Levels;
pub use levers::{Lever, Leverage, levers};
pub use matching::{Matching, Symmetric};
pub use milp::Milp;
pub use options::{Cancel, Deadline, Limits, Options, StrategyKind};
pub use orbits::{CompressedSynthesis, OrbitWalk, is_too_large_for_plain, synthesize_compressed, wants_compression};
pub use planner::{Synthesis, synthesize, synthesize_from};
pub use problem::Problem;
pub use reach::check_reachable;
pub use report::{Candidate, Milestone, Progress, Report, StopReason};
pub use sizes::{
    AtSize, FROM_BYTES, SizeSweep, SizeTask, TO_BYTES, TOLERANCE, Windowed, retimed, select_sizes, synthesize_sizes,
};
pub use strategy::{Attempt, Context, Strategy};
pub use topology::symmetry::Automorphism;
pub use trees::Trees;
