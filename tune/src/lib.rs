//! Chooses between stock and plans: turns of measurements, statistics, the decision, and the table that stores it.
//!
//! The principal type is [`TuningTable`]: for every collective, a map from all sizes to plans, without overlaps. A plan gets
//! into the table only if it is faster than stock beyond the noise of both ([`decide`]); in a tie, stock stays.
//! Candidates are names; this crate never plans and never runs anything itself.

mod accuracy;
mod choose;
mod composed;
mod decide;
mod export;
mod files;
mod guidelines;
mod key;
mod links;
mod merge;
mod nccl;
mod statistics;
mod store;
mod textbook;
mod turns;

pub use accuracy::{kendall_tau, q_error, robust_line};
pub use choose::{CandidateTimes, ChoiceEdge, LEAST_GAIN, MeasuredSize, ranges, remaining, smooth, winner};
pub use composed::Composition;
pub use decide::{Choice, TuningDecision, decide};
pub use export::{ExportTarget, ExportedTable, export};
pub use files::{LONGEST_FILE, TableError};
pub use guidelines::{Guideline, GuidelineViolation, Substitution, substitutions, violations};
pub use key::{RankTransport, TableKey};
pub use links::MachineLinks;
pub use merge::{MergeConflict, merge};
pub use nccl::{NcclAlgorithm, NcclCall, NcclChoice, NcclProtocol, NcclRule};
pub use statistics::{Summary, summarize};
pub use store::{CellClass, ChoiceRange, Evidence, FunctionRange, RankedTime, STOCK, TableCell, TuningTable};
pub use turns::{Turn, interleaved};
