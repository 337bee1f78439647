//! Robust statistics of repeated measurements.
//!
//! Times of collectives are skewed by scheduling, so nothing here assumes a distribution. The centre is the median, and
//! its confidence interval comes from order statistics [1].
//!
//! [1] Hoefler & Belli, "Scientific Benchmarking of Parallel Computing Systems", SC 2015, §3.1.3.

use serde::{Deserialize, Serialize};

/// Statistics of a repeated measurement; all times in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value.
    pub median_us: f64,
    /// The fastest.
    pub min_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// The 99th percentile, by nearest rank.
    pub p99_us: f64,
    /// Lower end of the 95 % confidence interval of the median.
    pub low_us: f64,
    /// Upper end of the 95 % confidence interval of the median.
    pub high_us: f64,
    /// How many measurements.
    pub samples: usize,
}

/// The fewest samples whose range holds the median with 95 %.
const LEAST_SAMPLES: usize = 6;

impl Summary {
    /// Whether there is a 95 % confidence interval of the median.
    pub fn has_interval(&self) -> bool {
        self.samples >= LEAST_SAMPLES
    }
}

/// Summarises measurements in microseconds; `None` for an empty list.
///
/// With fewer than six samples no 95 % interval of the median exists, and the interval is the whole range.
pub fn summarize(times_us: &[f64]) -> Option<Summary> {
    let mut sorted = times_us.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (&min_us, &max_us) = (sorted.first()?, sorted.last()?);
    let samples = sorted.len();
    let middle = samples / 2;
    let median_us = if samples % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
    // Order statistics ⌊n/2 − 1.96·√n/2⌋ and its mirror image, counted from 1, enclose the median with 95 %.
    let reach = 1.96 * (samples as f64).sqrt() / 2.0;
    let below = ((samples as f64 / 2.0 - reach).floor().max(1.0) as usize) - 1;
    let above = samples - 1 - below;
    let p99_us = sorted[(samples * 99).div_ceil(100) - 1];
    Some(Summary { median_us, min_us, max_us, p99_us, low_us: sorted[below], high_us: sorted[above], samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn centre_and_interval_of_known_samples() {
        let times: Vec<f64> = (1..=25).rev().map(f64::from).collect();
        let summary = summarize(&times).unwrap();
        assert_eq!((summary.median_us, summary.min_us, summary.max_us), (13.0, 1.0, 25.0));
        // n = 25: 12.5 − 4.9 gives the 7th smallest, and the 7th largest on the other side.
        assert_eq!((summary.low_us, summary.high_us), (7.0, 19.0));
        // n = 9: 4.5 − 2.94 gives the smallest, and the largest.
        let nine = summarize(&times[..9]).unwrap();
        assert_eq!((nine.low_us, nine.high_us), (17.0, 25.0));
    }

    #[test]
    fn few_samples_claim_nothing_beyond_their_range() {
        let summary = summarize(&[4.0, 2.0]).unwrap();
        assert_eq!((summary.median_us, summary.low_us, summary.high_us), (3.0, 2.0, 4.0));
        assert_eq!(summarize(&[]), None);
    }

    #[test]
    fn one_outlier_does_not_move_the_centre() {
        let mut times = vec![10.0; 20];
        times.push(10_000.0);
        let summary = summarize(&times).unwrap();
        assert_eq!((summary.median_us, summary.p99_us), (10.0, 10_000.0));
        times.extend([10.0; 200]);
        assert_eq!(summarize(&times).unwrap().p99_us, 10.0);
    }
}
