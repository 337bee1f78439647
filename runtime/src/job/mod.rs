//! Ranks as processes of this computer, and the one who coordinates them.
//!
//! The principal type is [`Job`]. The launcher starts one worker per rank, each with one end of a socket pair as
//! its standard input: commands and answers travel there, never on the data path, and nothing listens. Data moves
//! through shared memory. The launcher alone decides: when a rank dies, stops, or lags, it pronounces one verdict
//! that every wait of every rank sees within milliseconds, collects what the live ranks say, and reaps all
//! processes. A job ends with its first verdict; its ranks never meet again.
//!
//! ```text
//! launcher                          worker
//!   memory, Welcome  ─────────────▶
//!                    ◀─────────────  Hello            protocol compared
//!   Prepare(plan)    ─────────────▶                   loads, verifies, allocates
//!                    ◀─────────────  Ready(hash)      hashes compared
//!   Run              ─────────────▶                   all repetitions
//!                    ◀─────────────  Done(report)
//! ```

mod frame;
mod launcher;
mod worker;

pub use launcher::{Job, JobSpec};
pub use worker::{Loader, control_from_stdin, serve};
