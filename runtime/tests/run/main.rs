//! Programs on real buffers: in threads, in processes, with faults, and on emulated machines.
//!
//! Plans come from schedules that were verified and lowered. Results are judged by the reference in the crate, which
//! knows collectives only by their definition.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod agents;
mod cut;
mod emulated;
mod faults;
mod matrix;
mod plans;
mod probes;
mod processes;
mod threads;
mod together;
mod transcripts;
mod worker;
