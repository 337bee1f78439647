//! Fits a profile to a budget of time.
//!
//! The unit is a *sample*: the time of the longest message of a pair. How many samples a profile takes follows from its stages;
//! so the budget gives their length before the first message, and again after the first look, which shows what samples really
//! take here. Messages never become so short that a shaped link hides its rate; with slow links a profile may therefore take longer
//! than its budget.

use super::{Micros, ProfileOptions};
use std::time::Duration;

/// From this many ranks on, messages become shorter as the number of ranks grows, because rounds and suspects grow with it.
const MANY: f64 = 16.0;
/// How long a profile without a budget repeats measurements for precision.
const PRECISE: Duration = Duration::from_secs(480);

/// Samples of the first look, for each round: lengths that grow up to the longest, and two to three turns of short and long
/// messages, four of each.
const SCOUTED: f64 = 12.0;
/// Samples of one pair that is timed alone: two to four turns.
const ALONE: f64 = 15.0;
/// Samples of a suspect: its flows take two samples together, for two turns of four repetitions.
const SUSPECTED: f64 = 20.0;
/// Samples of a suspect that is confirmed.
const CONFIRMED: f64 = 24.0;
/// The share of the usual suspects that are confirmed: both directions of a port, but not both as one resource.
const KEPT: f64 = 2.0 / 3.0;
/// Samples of a round while its pairs are measured: three passes over all settings, four repetitions each.
const SWEPT: f64 = 22.5;

/// The share of the budget after which no trial is repeated for precision.
const REPEATED: f64 = 0.8;

/// How long the rest of a profile takes after the first look, in samples.
fn rest(rounds: f64, suspects: f64) -> f64 {
    ALONE * rounds / 2.0 + (SUSPECTED + KEPT * CONFIRMED) * suspects + SWEPT * rounds
}

impl ProfileOptions {
    /// The same with lengths of messages that suit this many ranks and the budget.
    pub(super) fn among(&self, ranks: usize) -> Self {
        let ranks = ranks.max(1) as f64;
        // Each rank is a machine: a pair of all ranks in two rounds for each, and three suspects.
        let samples = SCOUTED * 2.0 * ranks + rest(2.0 * ranks, 3.0 * ranks);
        let share = (MANY / ranks).min(1.0);
        let usual = self.sample_time * share;
        let affordable = self.budget.map(|budget| Micros(budget.as_secs_f64() * 1e6 / (samples * self.slowdown)));
        let sample_time = affordable.filter(|time| *time < usual).unwrap_or(usual);
        Self { sample_time, least: (self.least as f64 * share) as u64, ..self.clone() }
    }

    /// By what factor messages should become shorter, so that the profile ends in time. The first look at `rounds` has taken
    /// `elapsed`.
    pub(super) fn shrinkage(&self, elapsed: Duration, rounds: usize, suspects: usize) -> f64 {
        let Some(budget) = self.budget.filter(|_| rounds > 0) else { return 1.0 };
        let sample = elapsed.as_secs_f64() / (SCOUTED * rounds as f64);
        let needed = sample * rest(rounds as f64, suspects as f64);
        if needed > 0.0 { (budget.saturating_sub(elapsed).as_secs_f64() / needed).min(1.0) } else { 1.0 }
    }

    /// Whether this much time is still left.
    pub(super) fn has_left(&self, elapsed: Duration, needed: Duration) -> bool {
        elapsed + needed <= self.budget.unwrap_or(PRECISE)
    }

    /// Whether trials may be repeated for precision. Afterwards the pairs themselves are measured.
    pub(super) fn may_repeat(&self, elapsed: Duration) -> bool {
        self.budget.is_none_or(|budget| elapsed <= budget.mul_f64(REPEATED))
    }
}
