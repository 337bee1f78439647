//! Trees for a strategy that chooses them itself: packed ones, the cheapest ones at given prices, and a schedule of the chosen ones.
//!
//! The principal type is [`TreeChoice`]. Each chunk has a tree of its own; a chunk with one destination has a path.

use super::grow::{Grower, LatenessPrice};
use super::justify::{JustifyEffort, justified};
use super::load::Load;
use super::machine::LoadedMachine;
use super::messages::TreeMessages;
use super::packing::{Packing, PackingStyle, TreeUnits, pack};
use super::transfers;
use crate::problem::Problem;
use crate::strategies::Context;
use crate::symmetry::Mirror;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::Schedule;
use std::ops::Range;
use topology::LinkId;

/// The links of a tree, each after the one that feeds it.
pub(in crate::strategies) type ChunkTree = Vec<LinkId>;

/// The most pairs of plays of one schedule.
const PASSES: u32 = 200;

/// The chunks that need trees.
pub(in crate::strategies) struct TreeChoice<'a> {
    problem: &'a Problem,
    units: TreeUnits,
}

/// Prices at which trees are grown.
pub(in crate::strategies) struct TreePrices {
    /// Of a microsecond of each slot.
    pub(in crate::strategies) slots: Vec<f64>,
    /// Of a microsecond that a receiver waits, for each tree.
    pub(in crate::strategies) lateness: Vec<f64>,
}

impl<'a> TreeChoice<'a> {
    pub(in crate::strategies) fn new(problem: &'a Problem) -> Self {
        Self { problem, units: TreeUnits::new(problem, &Mirror::plain(&problem.topology), usize::MAX, false) }
    }

    /// Runs of chunks that have the same holders, receivers and bytes.
    pub(in crate::strategies) fn classes(&self) -> Vec<Range<usize>> {
        let chunk = |unit: usize| self.problem.demand.chunk(self.units.all[unit].chunks[0]);
        let mut classes: Vec<Range<usize>> = Vec::new();
        for unit in 0..self.units.all.len() {
            match classes.last_mut() {
                Some(last) if chunk(last.start) == chunk(unit) => last.end = unit + 1,
                _ => classes.push(unit..unit + 1),
            }
        }
        classes
    }

    /// The number of links and resources.
    pub(in crate::strategies) fn slots(&self) -> usize {
        self.units.machine.slot_count()
    }

    /// How long the tree of a unit keeps slots busy, in µs; a slot may occur several times.
    pub(in crate::strategies) fn busy(&self, unit: usize, tree: &[LinkId]) -> Vec<(usize, f64)> {
        let (machine, size) = (&self.units.machine, self.units.all[unit].size);
        let of = |&link: &LinkId| {
            let range = machine.range(link);
            let slots = machine.slots()[range.clone()].iter().map(|&slot| slot as usize);
            slots.zip(machine.busy(size)[range].iter().copied()).collect::<Vec<_>>()
        };
        tree.iter().flat_map(of).collect()
    }

    /// When the last receiver has the chunk if nothing else is sent, in µs.
    pub(in crate::strategies) fn height(&self, unit: usize, tree: &[LinkId]) -> f64 {
        let topology = &*self.problem.topology;
        let mut there = vec![0.0_f64; topology.rank_count()];
        for &id in tree {
            let link = topology.link(id);
            there[link.to.index()] =
                there[link.from.index()] + self.units.machine.duration(self.units.all[unit].size, id);
        }
        there.into_iter().fold(0.0, f64::max)
    }

    /// A tree for each unit, packed such that no slot is busy for much longer than `target` (µs), where links with up to `idle` of
    /// it are used freely; `None` if some rank cannot be reached or the time is up.
    pub(in crate::strategies) fn packed(
        &self,
        idle: f64,
        target: f64,
        context: &Context<'_>,
        random: &mut Pcg64Mcg,
    ) -> Option<Vec<ChunkTree>> {
        let style = PackingStyle { idle, target, both_ways: false };
        pack(self.problem, &self.units, style, context.deadline, random).map(|packing| packing.trees)
    }

    /// Trees of some units that are cheap at these prices; `None` if some rank cannot be reached.
    pub(in crate::strategies) fn cheapest(
        &self,
        units: impl Iterator<Item = usize>,
        prices: TreePrices,
        random: &mut Pcg64Mcg,
    ) -> Option<Vec<ChunkTree>> {
        let mut load = Load::fixed(&self.units.machine, prices.slots);
        let mut grower = Grower::new(self.problem, &self.units.machine);
        let mut grow = |(unit, price): (usize, f64)| {
            let lateness = LatenessPrice(price * grower.mean_time());
            grower.grow(&self.units.all[unit], &mut load, lateness, random.next_u32()).map(|(tree, _)| tree)
        };
        units.zip(prices.lateness).map(&mut grow).collect()
    }

    /// A schedule of a tree for each unit.
    pub(in crate::strategies) fn schedule(
        &self,
        trees: Vec<ChunkTree>,
        context: &Context<'_>,
        name: &str,
        random: &mut Pcg64Mcg,
    ) -> Option<Schedule> {
        let Self { problem, units } = self;
        let jobs = TreeMessages::spreading(problem, units, &Packing { trees, peak: 0.0 });
        let sizes = problem.demand.chunk_ids().map(|id| problem.demand.bytes_of(id)).collect();
        let machine = LoadedMachine::new(problem, &Mirror::plain(&problem.topology), sizes);
        let effort = JustifyEffort { passes: PASSES, bound: context.goal().0, is_symmetric: false };
        let timed = justified(problem, &machine, jobs, effort, context.deadline, random)?;
        let transfers = transfers(problem, &timed.jobs.messages())?;
        Some(Schedule::new(&problem.topology, problem.demand.clone(), transfers, name))
    }
}
