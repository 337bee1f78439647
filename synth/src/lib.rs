//! Synthesis: from a problem and a sketch to a schedule, by lower bounds and a portfolio of strategies.
//!
//! The entry point is [`synthesize`]. It computes bounds first and then runs the strategies, the cheapest first. Every
//! strategy returns a [`schedule::Schedule`]. The verifier and the replay of `schedule` judge every candidate, never
//! the strategy that made it. The report lists each candidate with its makespan and the reason why its search ended.
//!
//! The rooms; each imports only the rooms before it:
//!
//! 1. `problem`: what is asked, what a sketch permits, options and deadlines, the report; paths and reachability.
//! 2. `symmetry`: renumberings that leave a machine, a sketch and a demand as they are.
//! 3. `sketch`: a user's sketch as a file, and whether a schedule obeys it.
//! 4. `solver`: HiGHS; only with the feature `solver`.
//! 5. `bounds`: times that no schedule can beat, and what a faster machine would buy.
//! 6. `ordering`: in which order messages leave (list scheduling).
//! 7. `epochs`: time-expanded models, as far as strategies share them.
//! 8. `strategies`: ways of finding schedules, one folder each; `milp` and `improve` use `matching`, no other uses another.
//! 9. `polish`: slack and wishes, for a schedule that is already fast.
//! 10. `planner`: which strategy runs when; it judges the candidates and writes the report.
//!
//! This crate does no IO, does not import the runtime, and reads the clock only to honour a deadline.

#![cfg_attr(
    not(feature = "solver"),
    expect(dead_code, unused_imports, reason = "only the solver and its users need them")
)]

mod bounds;
mod epochs;
mod ordering;
mod planner;
mod polish;
mod problem;
pub mod sketch;
mod solver;
mod strategies;
mod symmetry;

pub use bounds::{
    Bound, Bounds, Certificate, Lever, Leverage, LinkGroup, LinkPeriods, ModelRow, Multiplier, Proof, ResourcePeriods,
    Scope, Tail, WholeChunks, bounds, levers, thorough_bounds,
};
pub use planner::{
    AtSize, FROM_BYTES, JointTask, Repaired, SizeSweep, SizeTask, Synthesis, TO_BYTES, TOLERANCE, Windowed, in_pieces,
    repaired, retimed, select_sizes, synthesize, synthesize_from, synthesize_joint, synthesize_sizes, textbook,
    textbook_at_once, textbook_sums,
};
pub use problem::{
    Cancel, Candidate, ConnectionWish, Constraints, DEFAULT_GAP, Deadline, Hindrance, Limits, Milestone, Problem,
    Progress, Report, RuleKind, SearchOptions, Stages, StopReason, StrategyKind, SynthError, Way, check_reachable,
    chunk_counts, matrix, passages, verification_time,
};
pub use strategies::classic::Classic;
pub use strategies::exact::{
    Exact, Front, HorizonEffort, ParetoPoint, Reach, Reason, Refuted, Relaxation, horizon, pareto,
};
pub use strategies::flow::Flow;
pub use strategies::improve::Improve;
pub use strategies::levels::Levels;
pub use strategies::matching::{Matching, Symmetric};
pub use strategies::milp::Milp;
pub use strategies::orbits::{
    CompressedSynthesis, OrbitWalk, is_too_large_for_plain, synthesize_compressed, wants_compression,
};
pub use strategies::trees::Trees;
pub use strategies::{Attempt, Context, Strategy};
pub use topology::symmetry::Automorphism;
