//! Schedules from outside: made by hand, mutated, written and read, judged by two verifiers.

mod files;
mod mutations;
mod plans;
mod second_opinion;
mod valid;
