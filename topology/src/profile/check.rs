//! Checks a profile: predicts exchanges that were not used to make it, and then times them.
//!
//! The principal function is [`check`]. It uses single messages of other sizes, and random sets of messages at the same
//! time, which load ports, NICs and networks in ways that no trial of the profiler did.

use super::ProfileError;
use super::bench::{Bench, spans};
use super::{ProfileOptions, ProfileProgress};
use crate::concurrent::{Sharing, together};
use crate::robust::median;
use crate::{Exchange, Micros, Probe, Rank, Topology};
use std::time::Instant;

/// Repetitions of each exchange; the median counts.
const REPETITIONS: u32 = 7;

/// One check: exchanges with their predicted and their measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldOut {
    /// What ran at the same time.
    pub exchanges: Vec<Exchange>,
    /// Until the last exchange has arrived, by the model.
    pub predicted: Micros,
    /// The same, measured: the median of several repetitions.
    pub measured: Micros,
}

impl HeldOut {
    /// |predicted / measured − 1|.
    pub fn error(&self) -> f64 {
        (self.predicted / self.measured - 1.0).abs()
    }

    /// The median and the largest error of some answers.
    pub fn errors(answers: &[Self]) -> (f64, f64) {
        let errors: Vec<f64> = answers.iter().map(Self::error).collect();
        (median(errors.clone()), errors.into_iter().fold(0.0, f64::max))
    }
}

/// Makes `questions` checks, half of them of single messages; `seed` decides which exchanges they use. Only two are made if `until`
/// has passed.
///
/// # Errors
/// [`ProfileError`] if the probe fails.
pub fn check(
    probe: &mut dyn Probe,
    topology: &Topology,
    options: &ProfileOptions,
    sharing: Sharing,
    questions: usize,
    seed: u64,
    until: Option<Instant>,
) -> Result<Vec<HeldOut>, ProfileError> {
    let mut heard = |_: ProfileProgress| {};
    let mut bench = Bench::new(probe, &mut heard);
    let mut dice = Dice(seed);
    let mut answers = Vec::new();
    for question in 0..questions {
        if question >= 2 && until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        let exchanges =
            if question % 2 == 0 { single(topology, options, &mut dice) } else { set(topology, options, &mut dice) };
        let Some(predicted) = together(topology, &exchanges, sharing).filter(|times| !times.is_empty()) else {
            continue;
        };
        let last = |times: Vec<Micros>| times.into_iter().fold(Micros::ZERO, Micros::max);
        let runs = bench.run(&exchanges, REPETITIONS)?;
        let flows: Vec<Vec<f64>> =
            (0..exchanges.len()).map(|flow| runs.iter().map(|times| times[flow].0).collect()).collect();
        let measured = Micros(median(spans(&flows)));
        answers.push(HeldOut { exchanges, predicted: last(predicted), measured });
    }
    Ok(answers)
}

/// One message, of about the length of a long sample.
fn single(topology: &Topology, options: &ProfileOptions, dice: &mut Dice) -> Vec<Exchange> {
    let Some(link) = dice.of(topology.links()) else { return Vec::new() };
    let long = options.long(link.beta.0) as f64 * (0.75 + 0.5 * dice.uniform());
    vec![Exchange { from: link.from, to: link.to, bytes: long as u64, messages: 1 }]
}

/// Messages of one length between random pairs: at most two out of each rank, and two into it.
fn set(topology: &Topology, options: &ProfileOptions, dice: &mut Dice) -> Vec<Exchange> {
    let ranks = topology.rank_count();
    let wanted = 2 + dice.below(2 * ranks.clamp(1, 32));
    let (mut sent, mut received) = (vec![0; ranks], vec![0; ranks]);
    let mut pairs: Vec<(Rank, Rank)> = Vec::new();
    let mut slowest: f64 = 0.0;
    for _ in 0..4 * wanted {
        let Some(link) = dice.of(topology.links()).filter(|_| pairs.len() < wanted) else { break };
        let (from, to) = (link.from.index(), link.to.index());
        if sent[from] < 2 && received[to] < 2 && !pairs.contains(&(link.from, link.to)) {
            sent[from] += 1;
            received[to] += 1;
            slowest = slowest.max(link.beta.0);
            pairs.push((link.from, link.to));
        }
    }
    let bytes = (options.long(slowest) as f64 * (0.5 + 0.5 * dice.uniform())) as u64;
    pairs.into_iter().map(|(from, to)| Exchange { from, to, bytes, messages: 1 }).collect()
}

/// A small multiplicative generator of our own, so that the exchanges do not depend on the version of a crate.
struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.uniform() * end as f64) as usize).min(end.saturating_sub(1))
    }

    fn of<'t, T>(&mut self, items: &'t [T]) -> Option<&'t T> {
        let index = self.below(items.len());
        items.get(index)
    }
}
