//! End-to-end tests: they run the binary as a user would.

mod binary;
mod checker;
mod demo;
mod execution;
mod hostile;
mod house;
mod long;
mod schedules;
mod sketches;
