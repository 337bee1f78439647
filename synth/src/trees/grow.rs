//! One out-tree at the lowest price.
//!
//! The principal type is [`Grower`]. The tree grows from all holders of a chunk by the cheapest link that leaves it, as Prim's
//! algorithm would, but late arrivals cost something too, so that trees are shallow where that is cheap. Prices rise
//! while the tree uses links; entries of the queue are looked at again when they come up. Ranks that only relay are
//! joined by the whole path to the next rank that wants the chunk.

use super::load::Load;
use super::machine::Machine;
use crate::distance::Key;
use crate::{Problem, Way};
use schedule::ChunkId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{Bytes, LinkId, Rank};

/// What a tree carries.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// The chunks; all start at the same ranks, and are wanted by the same.
    pub(super) chunks: Vec<ChunkId>,
    /// All of them together.
    pub(super) bytes: Bytes,
    /// Which of the sizes that the load knows.
    pub(super) size: usize,
}

/// What an arrival costs for each mean transfer time that it comes later.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Haste(pub(super) f64);

/// Where the search for a tree stands at one rank.
#[derive(Clone, Copy)]
struct Place {
    /// Over which link it is reached; `None` at a holder.
    parent: Option<LinkId>,
    /// The price of the path from the tree, for a relay that is not in the tree yet.
    price: f64,
    /// When the chunk leaves for it and arrives, in µs, if nothing moves but this tree.
    departure: f64,
    arrival: f64,
    way: Way,
    in_tree: bool,
}

/// Grows trees; keeps its memory between them.
pub(super) struct Grower<'a> {
    problem: &'a Problem,
    machine: &'a Machine,
    mean_time: f64,
    /// From when on this tree leaves each slot free, in µs.
    free: Vec<f64>,
    places: Vec<Option<Place>>,
    queue: BinaryHeap<Reverse<(Key, u32, LinkId)>>,
}

impl<'a> Grower<'a> {
    pub(super) fn new(problem: &'a Problem, machine: &'a Machine) -> Self {
        let topology = &*problem.topology;
        let all = (0..machine.sizes()).flat_map(|size| topology.link_ids().map(move |id| machine.duration(size, id)));
        let mean_time = all.sum::<f64>() / (machine.sizes() * topology.links().len()).max(1) as f64;
        let (places, free) = (vec![None; topology.rank_count()], vec![0.0; machine.slot_count()]);
        Self { problem, machine, mean_time: mean_time.max(1e-9), free, places, queue: BinaryHeap::new() }
    }

    /// The links of a tree for `unit`, each after the one that feeds it, and its price; they are added to `load`.
    /// `None` if nothing leads from what was reached to the others.
    pub(super) fn grow(
        &mut self,
        unit: &Unit,
        load: &mut Load<'_>,
        haste: Haste,
        salt: u32,
    ) -> Option<(Vec<LinkId>, f64)> {
        let chunk = self.problem.demand.chunk(unit.chunks[0]);
        self.places.fill(None);
        self.free.fill(0.0);
        self.queue.clear();
        let step = Step { unit, haste, salt };
        for holder in chunk.holders.iter().copied() {
            let place =
                Place { parent: None, price: 0.0, departure: 0.0, arrival: 0.0, way: Way::default(), in_tree: true };
            self.places[holder.index()] = Some(place);
        }
        for holder in chunk.holders.iter().copied() {
            self.offer(holder, &step, load);
        }
        let mut missing = chunk.lacking().count();
        let mut tree = Vec::with_capacity(missing);
        let mut spent = 0.0;
        while missing > 0 {
            let Reverse((key, tie, link)) = self.queue.pop()?;
            let Some((now, place)) = self.look(link, &step, load) else { continue };
            if now > key {
                self.queue.push(Reverse((now, tie, link)));
                continue;
            }
            let to = self.problem.topology.link(link).to;
            self.places[to.index()] = Some(place);
            if !chunk.wanted_by.has(to) {
                self.offer(to, &step, load);
                continue;
            }
            missing -= 1;
            spent += self.join(to, &step, load, &mut tree);
        }
        Some((tree, spent))
    }

    /// What it costs to add `tree`, which is added.
    pub(super) fn again(&mut self, unit: &Unit, tree: &[LinkId], load: &mut Load<'_>, haste: Haste) -> f64 {
        let topology = &*self.problem.topology;
        let chunk = self.problem.demand.chunk(unit.chunks[0]);
        self.free.fill(0.0);
        let mut arrival = vec![0.0; topology.rank_count()];
        let mut price = 0.0;
        for &id in tree {
            let link = topology.link(id);
            let departure = self.departure(id, arrival[link.from.index()]);
            arrival[link.to.index()] = departure + self.machine.duration(unit.size, id);
            self.occupy(unit.size, id, departure);
            price += load.price(unit.size, id);
            load.add(unit.size, id);
            if chunk.wanted_by.has(link.to) {
                price += haste.0 * arrival[link.to.index()] / self.mean_time;
            }
        }
        price
    }

    /// When a chunk that is there from `held` on can leave over `link`.
    fn departure(&self, link: LinkId, held: f64) -> f64 {
        let slots = &self.machine.slots()[self.machine.range(link)];
        slots.iter().map(|&slot| self.free[slot as usize]).fold(held, f64::max)
    }

    fn occupy(&mut self, size: usize, link: LinkId, departure: f64) {
        let machine = self.machine;
        let range = machine.range(link);
        for (&slot, busy) in machine.slots()[range.clone()].iter().zip(&machine.busy(size)[range]) {
            self.free[slot as usize] = departure + busy;
        }
    }

    /// Puts the links that leave `rank` into the queue.
    fn offer(&mut self, rank: Rank, step: &Step<'_>, load: &Load<'_>) {
        let problem = self.problem;
        for &link in problem.topology.outgoing(rank) {
            if let Some((key, _)) = self.look(link, step, load) {
                let tie = (link.0 ^ step.salt).wrapping_mul(0x9E37_79B9);
                self.queue.push(Reverse((key, tie, link)));
            }
        }
    }

    /// What it costs to reach the end of a link over it, and how it is then reached; `None` if that is useless.
    fn look(&self, id: LinkId, step: &Step<'_>, load: &Load<'_>) -> Option<(Key, Place)> {
        let link = self.problem.topology.link(id);
        if self.places[link.to.index()].is_some() || !self.problem.allows(step.unit.chunks[0], id) {
            return None;
        }
        let from = self.places[link.from.index()]?;
        let way = self.problem.constraints.after(&self.problem.topology, from.way, id)?;
        let before = if from.in_tree { 0.0 } else { from.price };
        let price = before + load.price(step.unit.size, id);
        let departure = self.departure(id, from.arrival);
        let arrival = departure + self.machine.duration(step.unit.size, id);
        let key = Key::new(price + step.haste.0 * arrival / self.mean_time);
        Some((key, Place { parent: Some(id), price, departure, arrival, way, in_tree: false }))
    }

    /// Adds the path to `rank` to the tree; its price, and that of the late arrival.
    fn join(&mut self, rank: Rank, step: &Step<'_>, load: &mut Load<'_>, tree: &mut Vec<LinkId>) -> f64 {
        let mut path = Vec::new();
        let mut at = rank;
        while let Some(Place { parent: Some(link), in_tree: false, .. }) = self.places[at.index()] {
            path.push(link);
            at = self.problem.topology.link(link).from;
        }
        let late = self.places[rank.index()].map_or(0.0, |place| place.arrival);
        let mut spent = step.haste.0 * late / self.mean_time;
        for &link in path.iter().rev() {
            spent += load.price(step.unit.size, link);
            load.add(step.unit.size, link);
            let to = self.problem.topology.link(link).to;
            let departure = self.places[to.index()].map_or(0.0, |place| place.departure);
            self.occupy(step.unit.size, link, departure);
            tree.push(link);
        }
        for &link in path.iter().rev() {
            let joined = self.problem.topology.link(link).to;
            if let Some(place) = &mut self.places[joined.index()] {
                place.in_tree = true;
            }
            self.offer(joined, step, load);
        }
        spent
    }
}

/// What stays the same while one tree grows.
struct Step<'a> {
    unit: &'a Unit,
    haste: Haste,
    /// Decides between links of the same price.
    salt: u32,
}
