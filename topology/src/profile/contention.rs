//! What is shared: every suspect is tried, and the fewest are kept that explain all that was seen.
//!
//! The principal function is [`find`]. Nothing that carries L flows at a cost of s µs per byte each can cost more than
//! s / L itself, whoever is to blame, nor more than its fastest pair alone; so every suspect is bounded. With all suspects at their bounds,
//! one after the other is dropped, narrow ones first, as long as every trial stays explained. What remains has evidence
//! that nothing else accounts for: a port is not blamed for what a NIC does, nor a NIC for the network behind it.

use super::bench::{Bench, Load, Slope};
use super::scout::View;
use super::suspects::{Scene, Suspect};
use super::{ProfileError, ProfileOptions};
use crate::rounds::{Pair, Round};
use std::collections::{BTreeMap, BTreeSet};

/// A trial is explained if it costs no more than this factor over what is known.
pub(super) const EXPLAINED: f64 = 1.12;
/// The least message of a trial.
const LEAST: u64 = 64 << 10;

/// Flows that ran at the same time, and what a byte more of each cost until the last arrived.
pub(super) struct Trial {
    pub(super) flows: Round,
    pub(super) slope: Slope,
}

/// Something shared, with its evidence.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) suspect: Suspect,
    /// µs per byte of all its flows together.
    pub(super) slope: Slope,
    /// By which factor its flows were slower together than anything else explains.
    pub(super) factor: f64,
}

/// What a pair costs alone, as far as that is known.
pub(super) struct Alone {
    known: BTreeMap<Pair, f64>,
    exact: BTreeSet<Pair>,
    /// What pairs cost in rounds, which is no less.
    seen: BTreeMap<Pair, f64>,
}

impl Alone {
    /// What was seen in rounds, divided by how much pairs disturb each other there.
    pub(super) fn guess(view: &View, disturbance: &dyn Fn(&Pair) -> f64) -> Self {
        let guess = |(pair, glimpse): (&Pair, &super::scout::Glimpse)| (*pair, glimpse.slope.beta / disturbance(pair));
        let seen = view.pairs.iter().map(|(pair, glimpse)| (*pair, glimpse.slope.beta)).collect();
        Self { known: view.pairs.iter().map(guess).collect(), exact: BTreeSet::new(), seen }
    }

    /// What the fastest of some pairs cost: whatever they share costs no more. Of many pairs some are left out, because
    /// of many measurements some are too good.
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

    fn slowest(&self, flows: &[Pair]) -> f64 {
        flows.iter().map(|pair| self.of(pair)).fold(0.0, f64::max)
    }

    pub(super) fn learn(&mut self, pair: Pair, beta: f64) {
        self.known.insert(pair, beta);
        self.exact.insert(pair);
    }

    /// Measures a pair alone, unless that was done.
    pub(super) fn measure(&mut self, pair: Pair, view: &View, bench: &mut Bench<'_>) -> Result<f64, ProfileError> {
        if !self.exact.contains(&pair) {
            let slopes = bench.slopes(&[view.load(pair)], 0.04, 4)?;
            self.learn(pair, slopes.all.beta);
        }
        Ok(self.of(&pair))
    }
}

/// The investigation so far.
pub(super) struct Case<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) alone: Alone,
    pub(super) suspects: Vec<Suspect>,
    pub(super) trials: Vec<Trial>,
}

impl Case<'_> {
    /// How long messages of these flows are, so that together they take about as long as a sample should.
    fn loads(&self, flows: &[Pair]) -> Vec<Load> {
        let shortest = flows.iter().map(|pair| self.scene.view.load(*pair).1).min().unwrap_or(LEAST);
        let bytes = (shortest * 4 / flows.len().max(4) as u64).max(LEAST);
        flows.iter().map(|pair| (*pair, bytes)).collect()
    }

    /// Runs the flows of a suspect, and makes sure of the pair that is last where that matters.
    pub(super) fn charge(&mut self, suspect: Suspect, bench: &mut Bench<'_>) -> Result<(), ProfileError> {
        let slopes = bench.slopes(&self.loads(&suspect.flows), 0.05, 5)?;
        if slopes.all.beta - slopes.all.margin > EXPLAINED * self.alone.slowest(&suspect.flows) {
            self.alone.measure(suspect.flows[slopes.last], self.scene.view, bench)?;
        }
        self.trials.push(Trial { flows: suspect.flows.clone(), slope: slopes.all });
        self.suspects.push(suspect);
        Ok(())
    }

    fn loads_of(&self, suspect: &Suspect) -> Vec<f64> {
        let load = |trial: &Trial| trial.flows.iter().filter(|pair| suspect.users.contains(pair)).count() as f64;
        self.trials.iter().map(load).collect()
    }

    /// The fewest suspects that explain every trial: their positions, and the cost of a byte in each.
    pub(super) fn verdict(&self) -> Vec<(usize, f64)> {
        let loads: Vec<Vec<f64>> = self.suspects.iter().map(|suspect| self.loads_of(suspect)).collect();
        let own: Vec<f64> = self.trials.iter().map(|trial| self.alone.slowest(&trial.flows)).collect();
        let bound = |(suspect, loads): (&Suspect, &Vec<f64>)| {
            let loaded = self.trials.iter().zip(loads).filter(|(_, load)| **load > 0.0);
            let bounds = loaded.map(|(trial, load)| trial.slope.beta / load);
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
            beta - margin <= EXPLAINED * explained(trial, kept)
        };
        let mut order: Vec<usize> = (0..loads.len()).filter(|&id| kept[id]).collect();
        // Both directions as one only where one at a time does not do.
        order.sort_by_key(|&id| (!self.suspects[id].both, self.suspects[id].users.len()));
        for id in order {
            // What nothing explains is no reason to keep anybody.
            let concerned: Vec<usize> =
                (0..self.trials.len()).filter(|&trial| loads[id][trial] > 0.0 && is_clear(trial, &kept)).collect();
            kept[id] = false;
            kept[id] = !concerned.iter().all(|&trial| is_clear(trial, &kept));
        }
        (0..loads.len()).filter(|&id| kept[id]).map(|id| (id, bounds[id])).collect()
    }

    /// What flows should cost if they run together, given what is kept.
    pub(super) fn explained(&self, kept: &[(usize, f64)], flows: &[Pair], flow: &Pair) -> f64 {
        let shared = kept.iter().filter(|(id, _)| self.suspects[*id].users.contains(flow)).map(|(id, beta)| {
            let users = flows.iter().filter(|pair| self.suspects[*id].users.contains(pair)).count();
            users as f64 * beta
        });
        shared.fold(self.alone.of(flow), f64::max)
    }

    /// Measures what is kept again, as well as links are measured.
    pub(super) fn findings(
        &self,
        kept: &[(usize, f64)],
        options: &ProfileOptions,
        bench: &mut Bench<'_>,
    ) -> Result<Vec<Finding>, ProfileError> {
        let mut findings = Vec::new();
        for (done, &(id, bound)) in kept.iter().enumerate() {
            let suspect = self.suspects[id].clone();
            let load = suspect.flows.iter().filter(|pair| suspect.users.contains(pair)).count() as f64;
            let slopes = bench.slopes(&self.loads(&suspect.flows), options.precision, options.most_turns)?;
            let rest: Vec<(usize, f64)> = kept.iter().copied().filter(|(other, _)| *other != id).collect();
            let without = suspect.flows.iter().map(|flow| self.explained(&rest, &suspect.flows, flow));
            let without = without.fold(0.0, f64::max);
            // Where something else is in the way of its own flows, what bounds it was seen in those of another.
            let Slope { beta, margin } = slopes.all;
            let beta = if beta > without * EXPLAINED.sqrt() { beta } else { bound * load };
            let factor = if without > 0.0 { beta / without } else { 1.0 };
            let beta = (beta / load).min(self.alone.fastest(&suspect.users));
            findings.push(Finding { suspect, slope: Slope { beta, margin: margin / load }, factor });
            bench.report(done + 1, kept.len());
        }
        Ok(findings)
    }
}
