//! Which answer to use: turns, statistics, the decision, and the table that remembers it.
//!
//! The principal type is [`Table`]: for every collective a total, disjoint map from sizes to plans. A plan gets
//! into it only by beating stock beyond the noise of both ([`decide`]); ties keep stock. Candidates arrive as
//! names; this crate never plans and never runs anything itself.

mod decide;
mod statistics;
mod table;
mod turns;

pub use decide::{Choice, Decision, decide};
pub use statistics::{Summary, summarize};
pub use table::{Entry, Plan, STOCK, Table, TableError};
pub use turns::{Turn, interleaved};
