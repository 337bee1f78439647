//! Grows one out-tree at the lowest price.
//!
//! The principal type is [`Grower`]. Like Prim's algorithm, the tree grows from all holders of a chunk by the cheapest
//! link that leaves it. Late arrivals cost something too, so that trees are shallow where that is cheap. Prices rise
//! while the tree uses links, so a queue entry is evaluated again when it reaches the front. An entry stands for all
//! links of a rank that use the same slots; under symmetries those are many. A relay joins only with the whole path to
//! the next rank that wants the chunk.

use super::load::Load;
use super::machine::LoadedMachine;
use crate::problem::distance::Key;
use crate::problem::{Problem, Way};
use schedule::ChunkId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use topology::{Bytes, LinkId, Rank};

/// The chunks that one tree carries.
#[derive(Clone, Debug)]
pub(super) struct TreeUnit {
    /// The chunks; all have the same holders and the same receivers.
    pub(super) chunks: Vec<ChunkId>,
    /// The bytes of all chunks together.
    pub(super) bytes: Bytes,
    /// The index of this size in the machine.
    pub(super) size: usize,
}

/// The price of an arrival, per mean transfer time that it comes later.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LatenessPrice(pub(super) f64);

/// The state of the search for a tree at one rank.
#[derive(Clone, Copy)]
struct TreeLabel {
    /// The link over which the rank is reached; `None` at a holder.
    parent: Option<LinkId>,
    /// The price of the path from the tree; used for a relay that is not in the tree yet.
    price: f64,
    /// When the chunk leaves for the rank and arrives, in µs, if only this tree is sent.
    departure: f64,
    arrival: f64,
    way: Way,
    in_tree: bool,
}

/// Links of one rank that cost the same as long as they lead to a new rank.
#[derive(Clone, Debug)]
struct Bundle {
    links: Vec<LinkId>,
    /// The index of the first link that may still lead to a new rank.
    next: usize,
}

/// The bundles of all links, and for each rank the range of its bundles.
fn bundles(problem: &Problem, machine: &LoadedMachine) -> (Vec<Bundle>, Vec<Range<usize>>) {
    let topology = &*problem.topology;
    let alike = |&a: &LinkId, &b: &LinkId| {
        let of = |id: LinkId| &machine.slots()[machine.range(id)];
        let costs = |id: LinkId| {
            let range = machine.range(id);
            (0..machine.sizes()).flat_map(move |size| {
                let busy = machine.busy(size)[range.clone()].iter().copied();
                busy.chain(std::iter::once(machine.duration(size, id)))
            })
        };
        let costs = || costs(a).zip(costs(b)).map(|(a, b)| a.total_cmp(&b)).find(|order| order.is_ne());
        of(a).cmp(of(b)).then_with(|| costs().unwrap_or(std::cmp::Ordering::Equal))
    };
    let mut bundles = Vec::new();
    let of_rank = topology.ranks().map(|rank| {
        let first = bundles.len();
        let mut links = topology.outgoing(rank).to_vec();
        links.sort_by(alike);
        let chunks = links.chunk_by(|a, b| alike(a, b).is_eq());
        bundles.extend(chunks.map(|links| Bundle { links: links.to_vec(), next: 0 }));
        first..bundles.len()
    });
    let of_rank = of_rank.collect();
    (bundles, of_rank)
}

/// Grows trees, and reuses its memory for all of them.
pub(super) struct Grower<'a> {
    problem: &'a Problem,
    machine: &'a LoadedMachine,
    mean_time: f64,
    /// When each slot becomes free again in this tree, in µs.
    free: Vec<f64>,
    places: Vec<Option<TreeLabel>>,
    bundles: Vec<Bundle>,
    of_rank: Vec<Range<usize>>,
    /// Bundles by price.
    queue: BinaryHeap<Reverse<(Key, u32, usize)>>,
}

impl<'a> Grower<'a> {
    pub(super) fn new(problem: &'a Problem, machine: &'a LoadedMachine) -> Self {
        let topology = &*problem.topology;
        let all = (0..machine.sizes()).flat_map(|size| topology.link_ids().map(move |id| machine.duration(size, id)));
        let mean_time = all.sum::<f64>() / (machine.sizes() * topology.links().len()).max(1) as f64;
        let (places, free) = (vec![None; topology.rank_count()], vec![0.0; machine.slot_count()]);
        let (bundles, of_rank) = bundles(problem, machine);
        let mean_time = mean_time.max(1e-9);
        Self { problem, machine, mean_time, free, places, bundles, of_rank, queue: BinaryHeap::new() }
    }

    /// The mean time of a message over all links, in µs.
    pub(super) fn mean_time(&self) -> f64 {
        self.mean_time
    }

    /// The links of a tree for `unit`, each after the one that feeds it, and the tree's price; the links are added to
    /// `load`. `None` if some rank cannot be reached.
    pub(super) fn grow(
        &mut self,
        unit: &TreeUnit,
        load: &mut Load<'_>,
        lateness_price: LatenessPrice,
        salt: u32,
    ) -> Option<(Vec<LinkId>, f64)> {
        let chunk = self.problem.demand.chunk(unit.chunks[0]);
        self.places.fill(None);
        self.free.fill(0.0);
        self.queue.clear();
        let step = GrowthParameters { unit, lateness_price, salt };
        for holder in chunk.holders.iter().copied() {
            let place = TreeLabel {
                parent: None,
                price: 0.0,
                departure: 0.0,
                arrival: 0.0,
                way: Way::default(),
                in_tree: true,
            };
            self.places[holder.index()] = Some(place);
        }
        for holder in chunk.holders.iter().copied() {
            self.offer(holder, &step, load);
        }
        let mut missing = chunk.lacking().count();
        let mut tree = Vec::with_capacity(missing);
        let mut spent = 0.0;
        while missing > 0 {
            let Reverse((key, tie, bundle)) = self.queue.pop()?;
            let Some((now, link, place)) = self.look_at_next(bundle, &step, load) else { continue };
            let next = (now, step.tie(link), bundle);
            self.queue.push(Reverse(next));
            if next > (key, tie, bundle) {
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

    /// Adds `tree` to `load`, and returns its price.
    pub(super) fn again(
        &mut self,
        unit: &TreeUnit,
        tree: &[LinkId],
        load: &mut Load<'_>,
        lateness_price: LatenessPrice,
    ) -> f64 {
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
                price += lateness_price.0 * arrival[link.to.index()] / self.mean_time;
            }
        }
        price
    }

    /// When a chunk that is at the sender from `held` on can leave over `link`.
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
    fn offer(&mut self, rank: Rank, step: &GrowthParameters<'_>, load: &Load<'_>) {
        for number in self.of_rank[rank.index()].clone() {
            let bundle = &mut self.bundles[number];
            bundle.links.sort_unstable_by_key(|&link| step.tie(link));
            bundle.next = 0;
            if let Some((key, link, _)) = self.look_at_next(number, step, load) {
                self.queue.push(Reverse((key, step.tie(link), number)));
            }
        }
    }

    /// The first link of a bundle that leads to a new rank, with its result of [`Self::look`].
    fn look_at_next(
        &mut self,
        bundle: usize,
        step: &GrowthParameters<'_>,
        load: &Load<'_>,
    ) -> Option<(Key, LinkId, TreeLabel)> {
        while let Some(&link) = self.bundles[bundle].links.get(self.bundles[bundle].next) {
            if let Some((key, place)) = self.look(link, step, load) {
                return Some((key, link, place));
            }
            self.bundles[bundle].next += 1;
        }
        None
    }

    /// The price of the end of a link if it is reached over this link, and its place then; `None` if the link is
    /// useless.
    fn look(&self, id: LinkId, step: &GrowthParameters<'_>, load: &Load<'_>) -> Option<(Key, TreeLabel)> {
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
        let key = Key::new(price + step.lateness_price.0 * arrival / self.mean_time);
        Some((key, TreeLabel { parent: Some(id), price, departure, arrival, way, in_tree: false }))
    }

    /// Adds the path to `rank` to the tree; returns the price of the path and of the arrival.
    fn join(&mut self, rank: Rank, step: &GrowthParameters<'_>, load: &mut Load<'_>, tree: &mut Vec<LinkId>) -> f64 {
        let mut path = Vec::new();
        let mut at = rank;
        while let Some(TreeLabel { parent: Some(link), in_tree: false, .. }) = self.places[at.index()] {
            path.push(link);
            at = self.problem.topology.link(link).from;
        }
        let late = self.places[rank.index()].map_or(0.0, |place| place.arrival);
        let mut spent = step.lateness_price.0 * late / self.mean_time;
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

/// The parameters that stay the same while one tree grows.
struct GrowthParameters<'a> {
    unit: &'a TreeUnit,
    lateness_price: LatenessPrice,
    /// Decides between links of the same price.
    salt: u32,
}

impl GrowthParameters<'_> {
    fn tie(&self, link: LinkId) -> u32 {
        (link.0 ^ self.salt).wrapping_mul(0x9E37_79B9)
    }
}
