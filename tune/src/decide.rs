//! Whether a candidate replaces stock.

use crate::Summary;
use serde::{Deserialize, Serialize};

/// The winner of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The candidate is faster beyond the noise of both.
    Candidate,
    /// Stock is faster beyond the noise of both.
    Stock,
    /// Their confidence intervals overlap; stock stays.
    Tie,
}

/// A decision with its evidence.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TuningDecision {
    /// The winner.
    pub choice: Choice,
    /// stock median / candidate median.
    pub speedup: f64,
}

/// Compares a candidate with stock, measured interleaved in one session. Where one has so few measurements that there is no
/// interval, nothing is decided.
pub fn decide(stock: &Summary, candidate: &Summary) -> TuningDecision {
    let has_intervals = stock.has_interval() && candidate.has_interval();
    let choice = if has_intervals && candidate.high_us < stock.low_us {
        Choice::Candidate
    } else if has_intervals && stock.high_us < candidate.low_us {
        Choice::Stock
    } else {
        Choice::Tie
    };
    TuningDecision { choice, speedup: stock.median_us / candidate.median_us }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summarize;

    fn around(centre: f64) -> Summary {
        let times: Vec<f64> = (0..21).map(|step| centre + f64::from(step - 10) * 0.1).collect();
        summarize(&times).unwrap()
    }

    #[test]
    fn only_a_clear_win_replaces_stock() {
        for (stock, candidate, expected) in [
            (10.0, 5.0, Choice::Candidate),
            (5.0, 10.0, Choice::Stock),
            (10.0, 10.0, Choice::Tie),
            (10.0, 9.9, Choice::Tie),
        ] {
            assert_eq!(decide(&around(stock), &around(candidate)).choice, expected, "{stock} against {candidate}");
        }
    }

    /// Of six times of one way, in two halves, all of the first half are less than all of the second in one of twenty cases.
    #[test]
    fn few_measurements_decide_nothing() {
        let times = |centre: f64, samples: usize| summarize(&vec![centre; samples]).unwrap();
        for (samples, expected) in [(3, Choice::Tie), (5, Choice::Tie), (6, Choice::Candidate)] {
            assert_eq!(decide(&times(10.0, samples), &times(5.0, 20)).choice, expected, "{samples} samples");
            assert_eq!(decide(&times(10.0, 20), &times(5.0, samples)).choice, expected, "{samples} samples");
        }
    }
}
