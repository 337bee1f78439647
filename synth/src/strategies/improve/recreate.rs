//! Brings chunks to the ranks that lack them, one chunk after the other, each on the cheapest way.
//!
//! The principal function is [`recreate`]. For one chunk it searches from the ranks that have it to all that lack it,
//! nearest first. On a link, the chunk either joins an existing message or gets its own. A new message is placed in a
//! gap or, sometimes, before others. The cost is the arrival, plus a price for the time that links are kept busy, plus
//! some noise. The price makes joining cheaper where α is large.

use super::chunk_history::ChunkHistory;
use super::draft::{Draft, SendingId};
use crate::problem::merging::merging_pays;
use crate::problem::{Problem, Way};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use schedule::ChunkId;
use topology::{LinkId, Micros, Rank, Topology};

/// The weights and probabilities of one repair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RepairWeights {
    /// The cost of a microsecond for which a link is kept busy, relative to a microsecond of arrival.
    pub(super) price: f64,
    /// The most noise that is added to an arrival, in durations of the message.
    pub(super) noise: f64,
    /// The probability that a message takes its place without looking for a gap.
    pub(super) push: f64,
    /// The probability that a way is overlooked.
    pub(super) overlook: f64,
}

/// How a chunk uses a link.
#[derive(Clone, Copy, PartialEq, Debug)]
enum MessageChoice {
    Join(SendingId),
    New(Micros),
}

/// A way to a rank, over one link.
#[derive(Clone, Copy, PartialEq, Debug)]
struct PathLabel {
    cost: f64,
    arrival: Micros,
    link: LinkId,
    choice: MessageChoice,
    way: Way,
}

/// The state of a rank with respect to the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Attached,
    Missing,
    /// Gets the chunk from a rank that lacks it.
    Detached,
    /// Could relay the chunk.
    Free,
}

/// The factor on the cost of an overlooked way, which is then taken only if there is no other.
const OVERLOOKED: f64 = 1e3;

/// Brings `chunk` to all ranks that lack it; whether that was possible.
pub(super) fn recreate(
    problem: &Problem,
    draft: &mut Draft,
    history: &ChunkHistory<'_>,
    chunk: ChunkId,
    weights: RepairWeights,
    random: &mut Pcg64Mcg,
) -> bool {
    let mut growth = TreeGrowth {
        problem,
        topology: &problem.topology,
        draft,
        history,
        chunk,
        weights,
        random,
        standing: Vec::new(),
        arrival: Vec::new(),
        ways: vec![Way::default(); problem.topology.rank_count()],
        labels: vec![None; problem.topology.rank_count()],
        settled: vec![false; problem.topology.rank_count()],
        fresh: Vec::new(),
    };
    growth.run()
}

/// The tree of one chunk while it grows.
struct TreeGrowth<'a, 'b> {
    problem: &'a Problem,
    topology: &'a Topology,
    draft: &'b mut Draft,
    history: &'b ChunkHistory<'a>,
    chunk: ChunkId,
    weights: RepairWeights,
    random: &'b mut Pcg64Mcg,
    standing: Vec<Standing>,
    /// When an attached rank has the chunk.
    arrival: Vec<Micros>,
    /// The way by which an attached or labelled rank gets the chunk.
    ways: Vec<Way>,
    labels: Vec<Option<PathLabel>>,
    /// Ranks whose label no longer changes, so that labels never form a cycle.
    settled: Vec<bool>,
    /// New messages that the history does not contain: link, start and end.
    fresh: Vec<(LinkId, Micros, Micros)>,
}

impl TreeGrowth<'_, '_> {
    fn run(&mut self) -> bool {
        self.look_around();
        let missing = |standing: &Standing| *standing == Standing::Missing;
        let mut left = self.standing.iter().filter(|it| missing(it)).count();
        if left == 0 {
            return true;
        }
        for rank in self.topology.ranks() {
            if self.standing[rank.index()] == Standing::Attached {
                self.relax_from(rank, self.arrival[rank.index()]);
            }
        }
        while left > 0 {
            let open = self.topology.ranks().filter(|rank| !self.settled[rank.index()]);
            let labelled = open.filter_map(|rank| self.labels[rank.index()].map(|label| (label, rank)));
            let Some((label, rank)) = labelled.min_by(|a, b| a.0.cost.total_cmp(&b.0.cost)) else { return false };
            self.settled[rank.index()] = true;
            self.ways[rank.index()] = label.way;
            if self.standing[rank.index()] == Standing::Missing {
                left -= self.commit(rank);
            } else {
                self.relax_from(rank, label.arrival);
            }
        }
        true
    }

    /// Finds the state of every rank.
    fn look_around(&mut self) {
        let (described, ranks) = (self.problem.demand.chunk(self.chunk), self.topology.rank_count());
        self.standing = vec![Standing::Free; ranks];
        self.arrival = vec![Micros(f64::INFINITY); ranks];
        described.wanted_by.iter().for_each(|rank| self.standing[rank.index()] = Standing::Missing);
        for id in self.draft.ways(self.chunk).iter().flatten() {
            let link = self.topology.link(self.draft.sending(*id).link);
            // A rank that passes the chunk on must get it.
            if self.standing[link.from.index()] == Standing::Free {
                self.standing[link.from.index()] = Standing::Missing;
            }
        }
        for rank in self.topology.ranks() {
            if self.draft.via(self.chunk, rank).is_some() {
                self.standing[rank.index()] = Standing::Detached;
            }
        }
        for &holder in described.holders.iter() {
            self.standing[holder.index()] = Standing::Attached;
            self.arrival[holder.index()] = described.release;
        }
        self.attach_descendants();
    }

    /// Attaches the ranks that get the chunk from attached ranks; returns them.
    fn attach_descendants(&mut self) -> Vec<Rank> {
        let mut attached = Vec::new();
        loop {
            let before = attached.len();
            for rank in self.topology.ranks() {
                if self.standing[rank.index()] != Standing::Detached {
                    continue;
                }
                let Some(id) = self.draft.via(self.chunk, rank) else { continue };
                let link = self.draft.sending(id).link;
                let parent = self.topology.link(link).from;
                if self.standing[parent.index()] == Standing::Attached {
                    self.standing[rank.index()] = Standing::Attached;
                    // A draft that uses a forbidden way is refused later, by the clock.
                    let way = self.ways[parent.index()];
                    self.ways[rank.index()] = self.problem.constraints.after(self.topology, way, link).unwrap_or(way);
                    self.arrival[rank.index()] = self.expected(rank).max(self.arrival[parent.index()]);
                    attached.push(rank);
                }
            }
            if attached.len() == before {
                return attached;
            }
        }
    }

    /// When the message that brings the chunk to `rank` is expected to arrive: as in the history, or later if it now
    /// carries more chunks.
    fn expected(&self, rank: Rank) -> Micros {
        let known = self.history.held(self.chunk, rank);
        let known = if known.0.is_finite() { known } else { Micros::ZERO };
        self.draft.via(self.chunk, rank).map_or(known, |id| {
            let sending = self.draft.sending(id);
            let bytes = self.problem.demand.message_bytes(&sending.chunks);
            known.max(sending.key + self.topology.link(sending.link).transfer_time(bytes))
        })
    }

    /// Offers the ways over the links of `rank`, which has the chunk at `ready`.
    fn relax_from(&mut self, rank: Rank, ready: Micros) {
        let topology = self.topology;
        for &link in topology.outgoing(rank) {
            let to = topology.link(link).to.index();
            let open = !self.settled[to] && matches!(self.standing[to], Standing::Missing | Standing::Free);
            if !open || !self.problem.allows(self.chunk, link) {
                continue;
            }
            if let Some(way) = self.problem.constraints.after(topology, self.ways[rank.index()], link) {
                let label = PathLabel { way, ..self.label_over(link, ready) };
                if self.labels[to].is_none_or(|known| label.cost < known.cost) {
                    self.labels[to] = Some(label);
                }
            }
        }
    }

    /// The best way to use link `id` for a chunk that is at its sender at `ready`.
    fn label_over(&mut self, id: LinkId, ready: Micros) -> PathLabel {
        let (link, demand) = (self.topology.link(id), &self.problem.demand);
        let bytes = demand.bytes_of(self.chunk);
        let duration = link.transfer_time(bytes);
        let noise = duration * (self.weights.noise * self.random.random::<f64>());
        let start = if self.random.random::<f64>() < self.weights.push {
            ready
        } else {
            let gap = self.history.gap(id, self.chunk, ready, |id| !self.draft.sending(id).chunks.is_empty());
            let fresh = self.fresh.iter().filter(|&&(other, start, end)| {
                let shared = || self.topology.link(other).resources.iter().any(|it| link.resources.contains(it));
                start < gap + duration && gap < end && (other == id || shared())
            });
            fresh.fold(gap, |start, &(.., end)| start.max(end))
        };
        let cost = (start + duration + noise).0 + self.weights.price * link.occupancy(bytes).0;
        let cost = if self.blinks() { cost * OVERLOOKED } else { cost };
        let mut best = PathLabel {
            cost,
            arrival: start + duration,
            link: id,
            choice: MessageChoice::New(start),
            way: Way::default(),
        };
        if !merging_pays(self.topology, link) {
            return best;
        }
        let visits = self.history.visits(id);
        let next = visits.partition_point(|visit| visit.start < ready);
        for visit in visits[next.saturating_sub(2)..].iter().take(4) {
            let carried = &self.draft.sending(visit.id).chunks;
            if carried.is_empty() || self.draft.sending(visit.id).link != id {
                continue;
            }
            let all = demand.message_bytes(carried);
            let departs = visit.start.max(ready);
            let arrival = departs + link.transfer_time(all + bytes);
            // The chunks already in the message arrive later; this delay is part of the cost.
            let delay = (arrival - visit.start - link.transfer_time(all)).0;
            let cost = (arrival + noise).0 + self.weights.price * link.byte_time(bytes).0.max(delay);
            if cost < best.cost && !self.blinks() {
                best = PathLabel { cost, arrival, choice: MessageChoice::Join(visit.id), ..best };
            }
        }
        best
    }

    fn blinks(&mut self) -> bool {
        self.random.random::<f64>() < self.weights.overlook
    }

    /// Takes the labelled way to `rank`; returns how many ranks that lacked the chunk get it.
    fn commit(&mut self, rank: Rank) -> usize {
        let mut path = Vec::new();
        let mut at = rank;
        while self.standing[at.index()] != Standing::Attached {
            let label = self.labels[at.index()].expect("the way to a labelled rank is labelled");
            path.push((at, label));
            at = self.topology.link(label.link).from;
        }
        let mut served = 0;
        for (to, label) in path.into_iter().rev() {
            served += usize::from(self.standing[to.index()] == Standing::Missing);
            match label.choice {
                MessageChoice::Join(id) => self.draft.join(id, to, self.chunk),
                MessageChoice::New(start) => {
                    self.draft.send(label.link, to, self.chunk, start);
                    self.fresh.push((label.link, start, label.arrival));
                }
            }
            self.standing[to.index()] = Standing::Attached;
            self.arrival[to.index()] = label.arrival;
            self.relax_from(to, label.arrival);
        }
        for attached in self.attach_descendants() {
            self.relax_from(attached, self.arrival[attached.index()]);
        }
        served
    }
}
