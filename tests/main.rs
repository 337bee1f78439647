//! End-to-end tests: they run the binary as a user would.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod binary;
mod candidates;
mod certificates;
mod checker;
mod compressed;
#[path = "../runtime/tests/run/cut.rs"]
mod cut;
mod demo;
mod exact;
mod exchanging;
mod execution;
mod exports;
mod foreign;
mod full_disk;
mod gpu;
mod hostile;
mod house;
mod injection;
mod launch;
mod long;
mod machines;
mod profiles;
mod random;
mod reductions;
mod schedules;
mod sketches;
mod small_files;
mod sweep;
mod together;
mod traps;
mod tuning;
mod tuning_faults;
mod tuning_writers;
