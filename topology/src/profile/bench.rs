//! Times sets of exchanges, and computes the cost of one more byte in them.
//!
//! The principal types are [`Bench`], which calls the probe and checks its answers, and [`Slope`]. The cost of a byte
//! is the slope between short and long messages. α cancels in it, and so does the credit that shaped links give to the
//! first bytes. Short and long messages alternate, so that a drift of the machine affects both alike. Each turn uses
//! other lengths, because a shaper lets the last segment (64 KB) pass as a whole, and repeating a length would repeat
//! the same error.

use super::ProfileError;
use crate::line::{CONFIDENCE, Line, LinePoint};
use crate::robust::{robust_middle, undisturbed, usual};
use crate::rounds::Pair;
use crate::{Exchange, Micros, Probe};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Repetitions in one run of the probe.
pub(super) const REPETITIONS: u32 = 4;

/// A message length is given in this many parts of the longest message.
pub(super) const PARTS: u64 = 64;

/// By how many parts the messages of a turn are longer.
pub(super) fn shift(turn: u32) -> u64 {
    const SHIFTS: [u64; 6] = [0, 5, 10, 3, 8, 1];
    SHIFTS[(turn as usize - 1) % SHIFTS.len()]
}

/// The cost of one more byte, in microseconds per byte of each flow, and its margin (half of a 95 % interval). Of cores also
/// the cost of one more message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Slope {
    pub(super) beta: f64,
    pub(super) margin: f64,
}

/// The result of timing a set of flows.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Slopes {
    /// Until the last flow has arrived, in the quicker half of the repetitions; for a byte of the longest flow.
    pub(super) all: Slope,
    /// The slope of each flow, in the order given.
    pub(super) each: Vec<Slope>,
    /// The mean time of a byte of each flow at whole length. Flows that share a resource alternate in being first,
    /// which a median does not show.
    pub(super) lasting: Vec<f64>,
    /// The flow that usually arrives last.
    pub(super) last: usize,
}

/// A flow of one message: its pair of ranks, and its greatest length in bytes.
pub(super) type ProbeFlow = (Pair, u64);

/// The ranks, ready to exchange.
pub(super) struct Bench<'p> {
    probe: &'p mut dyn Probe,
    /// Runs of the probe so far.
    pub(super) runs: usize,
    heard: &'p mut dyn FnMut(super::ProfileProgress),
    pub(super) stage: &'static str,
    started: Instant,
    /// The measured times alone: less than what has passed, except on simulated machines.
    measured: Duration,
    /// From then on, the present part does not seek precision any more.
    until: Option<Duration>,
    /// Whether precision was given up somewhere.
    pub(super) was_late: bool,
}

impl<'p> Bench<'p> {
    pub(super) fn new(probe: &'p mut dyn Probe, heard: &'p mut dyn FnMut(super::ProfileProgress)) -> Self {
        let (started, measured) = (Instant::now(), Duration::ZERO);
        Self { probe, runs: 0, heard, stage: "sizes", started, measured, until: None, was_late: false }
    }

    /// As [`Probe::ends_together`].
    pub(super) fn ends_together(&self) -> bool {
        self.probe.ends_together()
    }

    /// From now on, precision may be sought until a share of a limit is over, counted from the very beginning.
    pub(super) fn allow(&mut self, limit: Option<Duration>, share: f64) {
        self.until = limit.map(|limit| limit.mul_f64(share));
    }

    /// How long all has taken so far.
    pub(super) fn spent(&self) -> Duration {
        self.started.elapsed().max(self.measured)
    }

    /// Whether the time for precision is over.
    pub(super) fn is_late(&mut self) -> bool {
        let is_late = self.until.is_some_and(|until| self.spent() > until);
        self.was_late |= is_late;
        is_late
    }

    /// Reports the progress of the stage.
    pub(super) fn report(&mut self, done: usize, total: usize) {
        (self.heard)(super::ProfileProgress { stage: self.stage, done, total, runs: self.runs });
    }

    /// The times of all exchanges in each of `repetitions`.
    pub(super) fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProfileError> {
        self.runs += 1;
        let times = self.probe.run(exchanges, repetitions)?;
        let longest = |times: &Vec<Micros>| times.iter().map(|time| time.0).fold(0.0, f64::max);
        // Some of many messages are always disturbed.
        let took = times.iter().map(longest).fold(f64::INFINITY, f64::min) * times.len() as f64;
        self.measured += Duration::try_from_secs_f64(took / 1e6).unwrap_or_default();
        let whole = times.iter().all(|times| times.len() == exchanges.len());
        if times.len() == repetitions as usize && whole {
            return Ok(times);
        }
        let asked = exchanges.len() * repetitions as usize;
        Err(ProfileError::WrongCount { asked, returned: times.iter().map(Vec::len).sum() })
    }

    /// Runs flows at a quarter and at the whole of their length until the cost of a byte is known to `precision`
    /// (relative), at most `turns` times.
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
            if turn >= *turns.start() && (all.margin <= precision * all.beta || self.is_late()) {
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

/// Times of flows, each at the same part of its length.
struct FlowTimes {
    parts: u64,
    /// For each flow, its repetitions.
    flows: Vec<Vec<f64>>,
}

/// When the last flow of each repetition arrived, given the times of each flow. An outlier among the times of a flow is
/// replaced by their median, because with many flows one of them is nearly always disturbed.
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

/// The slope of times, with variances, of messages that are `bytes` long at whole length.
fn slope(timed: &[FlowTimes], bytes: u64, middle: impl Fn(&FlowTimes) -> (f64, f64)) -> Slope {
    let point = |timed: &FlowTimes| {
        let (time, variance) = middle(timed);
        LinePoint { bytes: (bytes * timed.parts / PARTS).max(1) as f64, time, variance }
    };
    let points: Vec<LinePoint> = timed.iter().map(point).collect();
    let line = Line::through(&points).unwrap_or(Line { begins: 0.0, beta: 0.0, noise: 0.0 });
    Slope { beta: line.beta.max(0.0), margin: CONFIDENCE * line.noise }
}
