//! Schedules made by hand, mutated, written and read, judged by two verifiers.
#![cfg(test)]

mod causes;
mod counted;
mod files;
mod kinds;
mod mutations;
mod plans;
mod second_opinion;
mod valid;
mod views;
