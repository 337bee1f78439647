//! Finds what pairs of ranks share: tries every suspect, and keeps the fewest that explain all trials.
//!
//! The principal type is [`Case`]. It works by elimination:
//!
//! 1. Every suspect gets the lowest cost per byte that the trials allow. If L flows through it cost s µs per byte each, the
//!    suspect costs at most s / L per byte; and it costs at most what its fastest pair costs alone.
//! 2. Suspects are dropped one by one, those with few users first, as long as the others still explain every trial. So a port
//!    is not kept for what a NIC causes, nor a NIC for what the network behind it causes.
//! 3. Every suspect that is left must show its effect in a second trial.
//!
//! A flow gets a length in proportion to the speed of its pair. All flows of a trial then take equally long alone, and
//! no slow flow hides the others. If another resource limits a trial, the trial is repeated with the flows that show
//! its suspect best.

use super::bench::{Bench, ProbeFlow, Slope};
use super::scout::View;
use super::suspects::{Scene, Suspect};
use super::{ProfileError, ProfileOptions};
use crate::rounds::{Pair, Round};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A trial is explained if it takes at most this factor longer than the known resources explain.
pub(super) const EXPLAINED: f64 = 1.12;
/// The same where ranks send and receive at once. There acknowledgements queue behind data, which costs BBR up to a
/// third of the rate; two directions that really share a resource take twice as long.
const DUPLEX: f64 = 1.5;
/// A trial can show a suspect only if the suspect would slow its flows by this factor more than everything else does.
const VISIBLE: f64 = 1.2;
/// Flows are of about the same speed if the ratio is above this.
const UNLIKE: f64 = 0.55;
/// The shortest message of a trial, in bytes.
const LEAST: u64 = 64 << 10;

/// Flows that ran at the same time, and the cost of one more byte of the longest flow until the last arrival.
pub(super) struct ContentionTrial {
    /// The suspect that the trial is about.
    of: usize,
    loads: Vec<ProbeFlow>,
    slope: Slope,
}

/// A shared resource with its evidence.
#[derive(Clone, Debug)]
pub(super) struct DetectedResource {
    pub(super) suspect: Suspect,
    /// µs per byte of all its flows together.
    pub(super) slope: Slope,
    /// µs per message of all its flows together, beside the α of links.
    pub(super) message: Slope,
    /// By which factor its flows were slower together than anything else explains, if that was asked.
    pub(super) factor: Option<f64>,
}

/// The cost of pairs that send alone, where it is known.
pub(super) struct Alone {
    known: BTreeMap<Pair, f64>,
    exact: BTreeSet<Pair>,
    /// The cost of pairs in rounds, which is an upper limit of their cost alone.
    seen: BTreeMap<Pair, f64>,
}

impl Alone {
    /// The costs of the rounds, divided by how much pairs disturb each other there.
    pub(super) fn guess(view: &View, disturbance: &dyn Fn(&Pair) -> f64) -> Self {
        let guess = |(pair, glimpse): (&Pair, &super::scout::Glimpse)| (*pair, glimpse.slope.beta / disturbance(pair));
        let seen =
            view.pairs.iter().map(|(pair, glimpse)| (*pair, glimpse.slope.beta + glimpse.slope.margin)).collect();
        Self { known: view.pairs.iter().map(guess).collect(), exact: BTreeSet::new(), seen }
    }

    /// The cost of the fastest of some pairs: a resource that they share does not cost more. Of many pairs some are
    /// left out, because a few of many measurements are too good.
    fn fastest(&self, pairs: &BTreeSet<Pair>) -> f64 {
        let least = |pair: &Pair| {
            let costs = if self.exact.contains(pair) { &self.known } else { &self.seen };
            costs.get(pair).copied()
        };
        let mut costs: Vec<f64> = pairs.iter().filter_map(least).collect();
        costs.sort_by(f64::total_cmp);
        costs.get(costs.len() / 16).copied().unwrap_or(f64::INFINITY)
    }

    pub(super) fn of(&self, pair: &Pair) -> f64 {
        self.known.get(pair).copied().unwrap_or(0.0)
    }

    pub(super) fn learn(&mut self, pair: Pair, beta: f64) {
        self.known.insert(pair, beta);
        self.exact.insert(pair);
    }

    /// Measures a pair alone, unless this was done before.
    pub(super) fn measure(&mut self, pair: Pair, view: &View, bench: &mut Bench<'_>) -> Result<f64, ProfileError> {
        if !self.exact.contains(&pair) {
            let slopes = bench.slopes(&[view.load(pair)], 0.04, 2..=4)?;
            self.learn(pair, slopes.all.beta);
        }
        Ok(self.of(&pair))
    }
}

/// The length of all flows of `users` together, over the length of the longest flow.
fn load_of(users: &BTreeSet<Pair>, loads: &[ProbeFlow]) -> f64 {
    let sum: u64 = loads.iter().filter(|(pair, _)| users.contains(pair)).map(|(_, bytes)| bytes).sum();
    sum as f64 / longest(loads)
}

fn longest(loads: &[ProbeFlow]) -> f64 {
    loads.iter().map(|(_, bytes)| *bytes).max().unwrap_or(1).max(1) as f64
}

/// Whether a rank sends and receives.
fn is_duplex(loads: &[ProbeFlow]) -> bool {
    let senders: BTreeSet<_> = loads.iter().map(|(pair, _)| pair.from).collect();
    loads.iter().any(|(pair, _)| senders.contains(&pair.to))
}

/// The investigation so far.
pub(super) struct Case<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) alone: Alone,
    pub(super) suspects: Vec<Suspect>,
    pub(super) trials: Vec<ContentionTrial>,
}

impl Case<'_> {
    /// The lengths of the messages of these flows. One after the other, they take as long as two samples, and all take
    /// about the same time alone. Flows of about the same speed get equal lengths; otherwise a resource that they share
    /// would not be full at the end.
    fn loads(&self, flows: &[Pair]) -> Vec<ProbeFlow> {
        // A cost seen only in rounds is uncertain: no pair is assumed to be faster than those that were timed alone.
        let least = |far: bool| {
            let timed = self.alone.exact.iter().filter(|pair| self.scene.is_far(pair) == far);
            timed.map(|pair| self.alone.of(pair)).fold(f64::INFINITY, f64::min)
        };
        let least = [least(false), least(true)].map(|cost| if cost.is_finite() { cost } else { f64::MIN_POSITIVE });
        let cost = |pair: &Pair| self.alone.of(pair).max(least[usize::from(self.scene.is_far(pair))]);
        let longest = |pair: &Pair| self.scene.view.load(*pair).1;
        let sample = flows.iter().map(|pair| longest(pair) as f64 * cost(pair)).fold(0.0, f64::max);
        let fastest = flows.iter().map(cost).fold(f64::INFINITY, f64::min);
        let like = |pair: &Pair| if fastest / cost(pair) < UNLIKE { cost(pair) } else { fastest };
        let time = 2.0 * sample / flows.len().max(2) as f64;
        let bytes = |pair: &Pair| ((time / like(pair)) as u64).clamp(LEAST, (2 * longest(pair)).max(LEAST));
        flows.iter().map(|pair| (*pair, bytes(pair))).collect()
    }

    /// The cost of the flow that takes longest alone; like all costs of loads, for a byte of the longest flow.
    fn own(&self, loads: &[ProbeFlow]) -> f64 {
        let longest = longest(loads);
        loads.iter().map(|(pair, bytes)| self.alone.of(pair) * *bytes as f64 / longest).fold(0.0, f64::max)
    }

    /// The cost of loads if only the given resources are shared.
    fn cost(&self, kept: impl Iterator<Item = (usize, f64)>, loads: &[ProbeFlow]) -> f64 {
        let shared = kept.map(|(id, beta)| load_of(&self.suspects[id].users, loads) * beta);
        shared.fold(self.own(loads), f64::max)
    }

    /// Runs the flows of a suspect. Measures the pair that is last alone, if its cost matters.
    pub(super) fn measure_suspect(&mut self, suspect: Suspect, bench: &mut Bench<'_>) -> Result<(), ProfileError> {
        let loads = self.loads(&suspect.flows);
        self.suspects.push(suspect);
        self.hear(self.suspects.len() - 1, loads, (0.05, 2..=4), bench)
    }

    /// Makes a trial, which replaces the earlier trial of the suspect. The flows are repeated until the cost is known
    /// to `precision`, at most `turns` times.
    fn hear(
        &mut self,
        of: usize,
        loads: Vec<ProbeFlow>,
        (precision, turns): (f64, RangeInclusive<u32>),
        bench: &mut Bench<'_>,
    ) -> Result<(), ProfileError> {
        let slopes = bench.slopes(&loads, precision, turns)?;
        if slopes.all.beta - slopes.all.margin > EXPLAINED * self.own(&loads) {
            self.alone.measure(loads[slopes.last].0, self.scene.view, bench)?;
        }
        self.trials.retain(|trial| trial.of != of);
        self.trials.push(ContentionTrial { of, loads, slope: slopes.all });
        Ok(())
    }

    /// By what factor these loads would slow down if the suspect were as slow as its fastest pair.
    fn visibility(&self, suspect: &Suspect, kept: &[(usize, f64)], loads: &[ProbeFlow]) -> f64 {
        let shared = load_of(&suspect.users, loads) * self.alone.fastest(&suspect.users);
        shared / self.cost(kept.iter().copied(), loads).max(f64::MIN_POSITIVE)
    }

    /// The flows that show a suspect best: flows are left out one by one as long as this makes the suspect more
    /// visible.
    fn clearest(&self, suspect: &Suspect, kept: &[(usize, f64)]) -> Vec<ProbeFlow> {
        let mut loads = self.loads(&suspect.flows);
        let mut best = self.visibility(suspect, kept, &loads);
        while loads.len() > 2 {
            let without = (0..loads.len()).map(|out| {
                let flows: Round = loads.iter().map(|(pair, _)| *pair).collect();
                let rest: Round = [&flows[..out], &flows[out + 1..]].concat();
                let loads = self.loads(&rest);
                (self.visibility(suspect, kept, &loads), loads)
            });
            match without.max_by(|one, other| one.0.total_cmp(&other.0)) {
                Some((better, fewer)) if better > best * 1.01 => (best, loads) = (better, fewer),
                _ => break,
            }
        }
        loads
    }

    /// Tries suspects again, with better flows, if something else limited their first trials.
    pub(super) fn look_closer(&mut self, bench: &mut Bench<'_>) -> Result<(), ProfileError> {
        let kept = self.verdict();
        for id in 0..self.suspects.len() {
            let (suspect, trial) = (&self.suspects[id], self.trials.iter().find(|trial| trial.of == id));
            let shown = trial.is_some_and(|trial| self.visibility(suspect, &kept, &trial.loads) >= VISIBLE);
            if suspect.both || shown || kept.iter().any(|(other, _)| *other == id) {
                continue;
            }
            let loads = self.clearest(suspect, &kept);
            if self.visibility(suspect, &kept, &loads) >= VISIBLE {
                self.hear(id, loads, (0.05, 2..=4), bench)?;
            }
            bench.report(id + 1, self.suspects.len());
        }
        Ok(())
    }

    /// The fewest suspects that explain every trial: their positions, and the cost of a byte in each.
    pub(super) fn verdict(&self) -> Vec<(usize, f64)> {
        let loads_of =
            |suspect: &Suspect| self.trials.iter().map(|trial| load_of(&suspect.users, &trial.loads)).collect();
        let loads: Vec<Vec<f64>> = self.suspects.iter().map(loads_of).collect();
        let own: Vec<f64> = self.trials.iter().map(|trial| self.own(&trial.loads)).collect();
        let bound = |(suspect, loads): (&Suspect, &Vec<f64>)| {
            let loaded = self.trials.iter().zip(loads).filter(|(_, load)| **load > 0.0);
            let bounds = loaded.map(|(trial, load)| (trial.slope.beta + trial.slope.margin) / load);
            bounds.fold(self.alone.fastest(&suspect.users), f64::min)
        };
        let bounds: Vec<f64> = self.suspects.iter().zip(&loads).map(bound).collect();
        let mut kept: Vec<bool> = bounds.iter().map(|bound| bound.is_finite()).collect();
        let explained = |trial: usize, kept: &[bool]| {
            let shared = (0..loads.len()).filter(|&id| kept[id]).map(|id| loads[id][trial] * bounds[id]);
            shared.fold(own[trial], f64::max)
        };
        let is_clear = |trial: usize, kept: &[bool]| {
            let Slope { beta, margin } = self.trials[trial].slope;
            let clearly = if is_duplex(&self.trials[trial].loads) { DUPLEX } else { EXPLAINED };
            beta - margin <= clearly * explained(trial, kept)
        };
        let mut order: Vec<usize> = (0..loads.len()).filter(|&id| kept[id]).collect();
        // Keep both directions as one resource only where one resource for each direction does not explain the trials.
        order.sort_by_key(|&id| (!self.suspects[id].both, self.suspects[id].users.len()));
        for id in order {
            // A trial that all kept suspects together do not explain is no reason to keep one.
            let concerned: Vec<usize> =
                (0..self.trials.len()).filter(|&trial| loads[id][trial] > 0.0 && is_clear(trial, &kept)).collect();
            kept[id] = false;
            kept[id] = !concerned.iter().all(|&trial| is_clear(trial, &kept));
        }
        (0..loads.len()).filter(|&id| kept[id]).map(|id| (id, bounds[id])).collect()
    }

    /// The cost of flows that run together, given the suspects that are kept.
    pub(super) fn explained(&self, kept: &[(usize, f64)], flows: &[Pair], flow: &Pair) -> f64 {
        let shared = kept.iter().filter(|(id, _)| self.suspects[*id].users.contains(flow)).map(|(id, beta)| {
            let users = flows.iter().filter(|pair| self.suspects[*id].users.contains(pair)).count();
            users as f64 * beta
        });
        shared.fold(self.alone.of(flow), f64::max)
    }

    /// Repeats the trials of all kept suspects, as precisely as links are measured, until every kept suspect was seen
    /// twice.
    pub(super) fn confirm(
        &mut self,
        options: &ProfileOptions,
        bench: &mut Bench<'_>,
    ) -> Result<Vec<(usize, f64)>, ProfileError> {
        let mut sure = BTreeSet::new();
        loop {
            let kept = self.verdict();
            let open: Vec<usize> = kept.iter().map(|(id, _)| *id).filter(|id| !sure.contains(id)).collect();
            if open.is_empty() {
                return Ok(kept);
            }
            for id in open {
                let Some(trial) = self.trials.iter().find(|trial| trial.of == id) else { continue };
                self.hear(id, trial.loads.clone(), (options.precision, 2..=options.most_turns.max(2)), bench)?;
                sure.insert(id);
                bench.report(sure.len(), kept.len().max(sure.len()));
            }
        }
    }

    /// The kept suspects with their evidence.
    pub(super) fn findings(&self, kept: &[(usize, f64)]) -> Vec<DetectedResource> {
        let finding = |&(id, bound): &(usize, f64)| {
            let trial = self.trials.iter().find(|trial| trial.of == id)?;
            let suspect = self.suspects[id].clone();
            let load = load_of(&suspect.users, &trial.loads);
            let without = self.cost(kept.iter().copied().filter(|(other, _)| *other != id), &trial.loads);
            // Where another resource limits the suspect's own flows, its bound comes from the trial of another suspect.
            let Slope { beta, margin } = trial.slope;
            let beta = if beta > without * EXPLAINED.sqrt() { beta } else { bound * load };
            let factor = if without > 0.0 { beta / without } else { 1.0 };
            // A shared resource is at least as fast as its fastest pair, but the cost of this pair is less exact than that
            // of all flows together.
            let (beta, fastest) = (beta / load, self.alone.fastest(&suspect.users));
            let beta = if beta > EXPLAINED * fastest { fastest } else { beta };
            let slope = Slope { beta, margin: margin / load };
            Some(DetectedResource { suspect, slope, message: Slope { beta: 0.0, margin: 0.0 }, factor: Some(factor) })
        };
        kept.iter().filter_map(finding).collect()
    }
}
