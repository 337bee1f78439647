//! Timing sets of exchanges, and what a byte more costs in them.
//!
//! The principal types are [`Bench`], which asks the probe and checks its answers, and [`Slope`]. The cost of a byte is
//! the slope between short and long messages, so that α cancels, and with it the credit that shaped links give to the
//! first bytes. The two take turns, so that a drift of the machine hits both alike, and no turn has the lengths of
//! another: shapers let the last segment pass as a whole, 64 KB of it, and repeating a length repeats that.

use super::ProfileError;
use crate::line::{CONFIDENCE, Line, Point};
use crate::robust::{robust_middle, undisturbed, usual};
use crate::rounds::Pair;
use crate::{Exchange, Micros, Probe};
use std::ops::RangeInclusive;

/// Repetitions in one run of the probe.
pub(super) const REPETITIONS: u32 = 4;

/// Parts of a whole message.
pub(super) const PARTS: u64 = 64;

/// By how many parts messages are longer or shorter in each turn.
pub(super) fn shift(turn: u32) -> u64 {
    const SHIFTS: [u64; 6] = [0, 5, 10, 3, 8, 1];
    SHIFTS[(turn as usize - 1) % SHIFTS.len()]
}

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
pub(super) type ProbeFlow = (Pair, u64);

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

    /// Runs flows at a quarter and at whole length until the cost of a byte is known to `precision` (relative), as many
    /// times as `turns` allows.
    pub(super) fn slopes(
        &mut self,
        loads: &[ProbeFlow],
        precision: f64,
        turns: RangeInclusive<u32>,
    ) -> Result<Slopes, ProfileError> {
        let longest = loads.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let mut timed: Vec<FlowTimes> = Vec::new();
        let mut all = Slope { beta: 0.0, margin: 0.0 };
        for turn in 1..=*turns.end() {
            let shift = shift(turn);
            for parts in [PARTS / 4 + shift, PARTS - shift] {
                let share = |bytes: u64| (bytes * parts / PARTS).max(1);
                let exchange =
                    |&(Pair { from, to }, bytes): &ProbeFlow| Exchange { from, to, bytes: share(bytes), messages: 1 };
                let exchanges: Vec<Exchange> = loads.iter().map(exchange).collect();
                let runs = self.run(&exchanges, REPETITIONS)?;
                let flow = |flow: usize| runs.iter().map(|times| times[flow].0).collect();
                timed.push(FlowTimes { parts, flows: (0..loads.len()).map(flow).collect() });
            }
            all = slope(&timed, longest, |timed| undisturbed(&spans(&timed.flows)));
            if turn >= *turns.start() && all.margin <= precision * all.beta {
                break;
            }
        }
        let each =
            |(flow, (_, bytes)): (usize, &ProbeFlow)| slope(&timed, *bytes, |timed| robust_middle(&timed.flows[flow]));
        let long = || timed.iter().filter(|timed| timed.parts > PARTS / 2);
        let at_end = |flow: &usize| long().map(|timed| undisturbed(&timed.flows[*flow]).0).sum::<f64>();
        let lasting = |(flow, (_, bytes)): (usize, &ProbeFlow)| {
            let bytes = long().map(|timed| bytes * timed.parts / PARTS).sum::<u64>().max(1);
            long().map(|timed| usual_mean(&timed.flows[flow])).sum::<f64>() / bytes as f64
        };
        Ok(Slopes {
            all,
            each: loads.iter().enumerate().map(each).collect(),
            lasting: loads.iter().enumerate().map(lasting).collect(),
            last: (0..loads.len()).max_by(|one, other| at_end(one).total_cmp(&at_end(other))).unwrap_or(0),
        })
    }
}

/// Times of flows, all at the same part of their length.
struct FlowTimes {
    parts: u64,
    /// The repetitions of each.
    flows: Vec<Vec<f64>>,
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

/// From times, with variances, of messages that are `bytes` long as a whole.
fn slope(timed: &[FlowTimes], bytes: u64, middle: impl Fn(&FlowTimes) -> (f64, f64)) -> Slope {
    let point = |timed: &FlowTimes| {
        let (time, variance) = middle(timed);
        Point { bytes: (bytes * timed.parts / PARTS).max(1) as f64, time, variance }
    };
    let points: Vec<Point> = timed.iter().map(point).collect();
    let line = Line::through(&points).unwrap_or(Line { begins: 0.0, beta: 0.0, noise: 0.0 });
    Slope { beta: line.beta.max(0.0), margin: CONFIDENCE * line.noise }
}
