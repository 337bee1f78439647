//! Plans written for these tests, judged.

mod samples;
mod verdicts;
