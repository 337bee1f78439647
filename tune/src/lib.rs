//! Chooses between stock and plans: turns of measurements, statistics, the decision, and the table that stores it.
//!
//! The principal type is [`Table`]: for every collective, a map from all sizes to plans, without overlaps. A plan gets
//! into the table only if it is faster than stock beyond the noise of both ([`decide`]); in a tie, stock stays.
//! Candidates are names; this crate never plans and never runs anything itself.

mod choose;
mod decide;
mod files;
mod nccl;
mod statistics;
mod store;
mod table;
mod turns;

pub use choose::{ChoiceEdge, MeasuredSize, ranges, remaining, smooth, winner};
pub use decide::{Choice, Decision, decide};
pub use files::TableError;
pub use nccl::{NcclAlgorithm, NcclCall, NcclChoice, NcclProtocol, NcclRule};
pub use statistics::{Summary, summarize};
pub use store::{ChoiceRange, Evidence, TableCell, TableKey, TuningTable};
pub use table::{Entry, Plan, STOCK, Table};
pub use turns::{Turn, interleaved};
