//! Schedules from outside: made by hand, mutated, written and read, judged by two verifiers.

mod files;
mod plans;
mod valid;
