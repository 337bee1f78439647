//! Plans written for these tests, judged.

mod adversary;
mod mutants;
mod round_trip;
mod samples;
mod spots;
mod verdicts;
