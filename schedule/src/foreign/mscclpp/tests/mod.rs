//! Plans written for these tests, judged.

mod round_trip;
mod samples;
mod verdicts;
