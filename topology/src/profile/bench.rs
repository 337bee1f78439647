//! Timing sets of exchanges, and what a byte more costs in them.
//!
//! The principal types are [`Bench`], which asks the probe and checks its answers, and [`Slope`]. The cost of a byte is
//! the difference between two sizes, so that α cancels, and with it the credit that shaped links give to the first
//! bytes. The two sizes take turns, so that a drift of the machine hits both alike.

use super::ProfileError;
use crate::fit::CONFIDENCE;
use crate::robust::{robust_middle, undisturbed, usual};
use crate::rounds::Pair;
use crate::{Exchange, Micros, Probe};
use std::ops::RangeInclusive;

/// Repetitions in one run of the probe.
pub(super) const REPETITIONS: u32 = 4;

/// What a byte more costs, and how well that is known (half a 95 % interval): in microseconds per byte of each flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Slope {
    pub(super) beta: f64,
    pub(super) margin: f64,
}

/// What came out of a set of flows.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Slopes {
    /// Until the last has arrived, in the quicker half of the repetitions; of a byte of the longest flow.
    pub(super) all: Slope,
    /// Of each flow, in the order given.
    pub(super) each: Vec<Slope>,
    /// What a byte of each flow took at whole length, on the average: flows that share something take turns at being
    /// first, and no middle value shows that.
    pub(super) lasting: Vec<f64>,
    /// Which flow is last, as a rule.
    pub(super) last: usize,
}

/// A flow of one message: who to whom, and how long it is at its longest.
pub(super) type Load = (Pair, u64);

/// The ranks, ready to exchange.
pub(super) struct Bench<'p> {
    probe: &'p mut dyn Probe,
    /// Runs of the probe so far.
    pub(super) runs: usize,
    heard: &'p mut dyn FnMut(super::Progress),
    pub(super) stage: &'static str,
}

impl<'p> Bench<'p> {
    pub(super) fn new(probe: &'p mut dyn Probe, heard: &'p mut dyn FnMut(super::Progress)) -> Self {
        Self { probe, runs: 0, heard, stage: "sizes" }
    }

    /// Tells how far the stage is.
    pub(super) fn report(&mut self, done: usize, total: usize) {
        (self.heard)(super::Progress { stage: self.stage, done, total, runs: self.runs });
    }

    /// The times of all exchanges in each of `repetitions`.
    pub(super) fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProfileError> {
        self.runs += 1;
        let times = self.probe.run(exchanges, repetitions)?;
        let whole = times.iter().all(|times| times.len() == exchanges.len());
        if times.len() == repetitions as usize && whole {
            return Ok(times);
        }
        let asked = exchanges.len() * repetitions as usize;
        Err(ProfileError::WrongCount { asked, returned: times.iter().map(Vec::len).sum() })
    }

    /// Runs flows at half and at whole length until the cost of a byte is known to `precision` (relative), as many times
    /// as `turns` allows.
    pub(super) fn slopes(
        &mut self,
        loads: &[Load],
        precision: f64,
        turns: RangeInclusive<u32>,
    ) -> Result<Slopes, ProfileError> {
        let mut times = [vec![Vec::new(); loads.len()], vec![Vec::new(); loads.len()]];
        let longest = loads.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let mut all = Slope { beta: 0.0, margin: 0.0 };
        for turn in 1..=*turns.end() {
            for (whole, divisor) in [(0, 2), (1, 1)] {
                let exchange = |&(Pair { from, to }, bytes): &Load| Exchange {
                    from,
                    to,
                    bytes: (bytes / divisor).max(1),
                    messages: 1,
                };
                let exchanges: Vec<Exchange> = loads.iter().map(exchange).collect();
                for run in self.run(&exchanges, REPETITIONS)? {
                    times[whole].iter_mut().zip(run).for_each(|(times, time)| times.push(time.0));
                }
            }
            if turn < *turns.start() {
                continue;
            }
            all = slope([undisturbed(&spans(&times[0])), undisturbed(&spans(&times[1]))], longest);
            if all.margin <= precision * all.beta {
                break;
            }
        }
        let each = loads.iter().enumerate().map(|(flow, (_, bytes))| {
            let middles = [&times[0][flow], &times[1][flow]].map(|times| robust_middle(times));
            slope(middles, *bytes)
        });
        let middle = |flow: &usize| undisturbed(&times[1][*flow]).0;
        let last = (0..loads.len()).max_by(|one, other| middle(one).total_cmp(&middle(other))).unwrap_or(0);
        let lasting =
            loads.iter().enumerate().map(|(flow, (_, bytes))| usual_mean(&times[1][flow]) / (*bytes).max(1) as f64);
        Ok(Slopes { all, each: each.collect(), lasting: lasting.collect(), last })
    }
}

/// When the last flow of each repetition arrived, given the times of each flow. What is an outlier among the times of
/// its flow counts as their median: with many flows one of them always hiccups.
pub(super) fn spans(flows: &[Vec<f64>]) -> Vec<f64> {
    let mut spans = vec![0.0; flows.first().map_or(0, Vec::len)];
    for times in flows {
        let (low, middle, high) = usual(times);
        for (span, &time) in spans.iter_mut().zip(times) {
            let time = if (low..=high).contains(&time) { time } else { middle };
            *span = time.max(*span);
        }
    }
    spans
}

/// The mean without outliers.
fn usual_mean(times: &[f64]) -> f64 {
    let (low, _, high) = usual(times);
    let (count, sum) = times
        .iter()
        .filter(|time| (low..=high).contains(*time))
        .fold((0.0, 0.0), |(count, sum), time| (count + 1.0, sum + time));
    sum / f64::max(count, 1.0)
}

/// From the times, with variances, of a half and of a whole.
fn slope([(half, half_variance), (whole, whole_variance)]: [(f64, f64); 2], bytes: u64) -> Slope {
    let more = (bytes - (bytes / 2).max(1)).max(1) as f64;
    Slope {
        beta: ((whole - half) / more).max(0.0),
        margin: CONFIDENCE * (half_variance + whole_variance).sqrt() / more,
    }
}
