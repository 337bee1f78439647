//! A second verifier, written only to be obviously right.
//!
//! It evaluates the definition top down: a transfer carries the value that its sender has at its departure, and the
//! value of a rank at a time follows from the transfers that arrived there until then. Contributions are counted, not
//! kept as sets. Intervals are compared pair by pair. Costs are computed here from α and β, and times have a tolerance
//! of their own: on the machines of these tests, all differences are either rounding or far larger.

use schedule::{Chunk, ChunkId, Schedule, Transfer, TransferKind};
use std::collections::BTreeSet;
use topology::{Latency, Link, Micros, Rank, Topology};

/// How many times each holder's contribution is in a value.
type Counts = Vec<u32>;

struct World<'a> {
    schedule: &'a Schedule,
    id: ChunkId,
    chunk: &'a Chunk,
    /// The value of a transfer, once known. The inner `None` is no value.
    carried: Vec<Option<Option<Counts>>>,
}

/// A difference of less than a picosecond is rounding; all times here are multiples of much more.
const ROUNDING: f64 = 1e-6;

fn by(a: Micros, b: Micros) -> bool {
    a.0 <= b.0 + ROUNDING
}

/// How long a message of `bytes` keeps a link or resource with these `[alpha, beta]` busy. A link has no α of its own beside that of
/// its messages.
fn busy(link: &Link, [alpha, beta]: [f64; 2], bytes: f64) -> Micros {
    let of_messages = if link.latency == Latency::Occupies { link.alpha.0 } else { 0.0 };
    Micros(beta * bytes + if alpha > of_messages { alpha } else { of_messages })
}

impl World<'_> {
    fn transfer(&self, index: usize) -> &Transfer {
        &self.schedule.transfers[index]
    }

    fn carried(&mut self, index: usize) -> Option<Counts> {
        if self.carried[index].is_none() {
            self.carried[index] = Some(None); // what depends on itself carries nothing
            let Transfer { from, start, .. } = *self.transfer(index);
            self.carried[index] = Some(self.value(from, start));
        }
        self.carried[index].clone().unwrap_or_default()
    }

    fn value(&mut self, rank: Rank, time: Micros) -> Option<Counts> {
        let own = self.chunk.holders.iter().position(|&holder| holder == rank);
        let own = own.filter(|_| by(self.chunk.release, time));
        let mut value = own.map(|own| (0..self.chunk.holders.len()).map(|i| u32::from(i == own)).collect::<Counts>());
        for index in
            self.arrivals(rank).into_iter().filter(|&index| by(self.transfer(index).end, time)).collect::<Vec<_>>()
        {
            let Some(more) = self.carried(index) else { continue };
            value = match (value, self.transfer(index).kind) {
                (Some(sum), TransferKind::Reduce) => Some(sum.iter().zip(&more).map(|(a, b)| a + b).collect()),
                _ => Some(more),
            };
        }
        value
    }

    /// What arrives at `rank`, in order of arrival.
    fn arrivals(&self, rank: Rank) -> Vec<usize> {
        let indices = 0..self.schedule.transfers.len();
        let mut arrivals: Vec<_> = indices
            .filter(|&index| self.transfer(index).to == rank && self.transfer(index).chunks.contains(&self.id))
            .collect();
        arrivals.sort_by(|&a, &b| self.transfer(a).end.total_cmp(&self.transfer(b).end));
        arrivals
    }

    /// Whether a copy lands at the same time as something else that carries a value.
    fn collides(&mut self, rank: Rank) -> bool {
        let arrivals = self.arrivals(rank);
        let landed: Vec<_> = arrivals.into_iter().filter(|&index| self.carried(index).is_some()).collect();
        landed.windows(2).any(|pair| {
            let (a, b) = (self.transfer(pair[0]), self.transfer(pair[1]));
            by(b.end, a.end) && (a.kind == TransferKind::Copy || b.kind == TransferKind::Copy)
        })
    }
}

/// The rules about values and exclusivity that `schedule` breaks, by kind.
pub(crate) fn broken_rules(schedule: &Schedule, topology: &Topology) -> BTreeSet<&'static str> {
    let mut broken = BTreeSet::new();
    for id in schedule.demand.chunk_ids() {
        let chunk = schedule.demand.chunk(id);
        let mut world = World { schedule, id, chunk, carried: vec![None; schedule.transfers.len()] };
        for index in 0..schedule.transfers.len() {
            if world.transfer(index).chunks.contains(&id) && world.carried(index).is_none() {
                broken.insert("sent_before_held");
            }
        }
        for rank in topology.ranks().filter(|_| chunk.combine) {
            if world.collides(rank) {
                broken.insert("colliding_copy");
            }
        }
        for &rank in chunk.wanted_by.iter() {
            match world.value(rank, Micros(f64::INFINITY)) {
                None => drop(broken.insert("not_delivered")),
                Some(counts) if chunk.combine => {
                    // A value that a copy overwrites may count contributions twice: only the final values matter.
                    broken.extend(counts.contains(&0).then_some("missing_contribution"));
                    broken.extend(counts.iter().any(|&count| count > 1).then_some("double_reduce"));
                }
                Some(_) => {}
            }
        }
    }
    overlaps(schedule, topology, &mut broken);
    broken
}

fn overlaps(schedule: &Schedule, topology: &Topology, broken: &mut BTreeSet<&'static str>) {
    let meet = |a: &Transfer, a_busy: Micros, b: &Transfer, b_busy: Micros| {
        let (a_end, b_end) = (a.start + a_busy, b.start + b_busy);
        a_busy.0 > 0.0 && b_busy.0 > 0.0 && !by(a_end, b.start) && !by(b_end, a.start)
    };
    for (index, a) in schedule.transfers.iter().enumerate() {
        for b in &schedule.transfers[index + 1..] {
            let (link_a, link_b) = (topology.link(a.link), topology.link(b.link));
            let bytes = |it: &Transfer| it.chunks.iter().map(|&chunk| schedule.demand.bytes_of(chunk).0).sum::<f64>();
            let (bytes_a, bytes_b) = (bytes(a), bytes(b));
            let (busy_a, busy_b) =
                (busy(link_a, [0.0, link_a.beta.0], bytes_a), busy(link_b, [0.0, link_b.beta.0], bytes_b));
            if a.link == b.link && meet(a, busy_a, b, busy_b) {
                broken.insert("link_overlap");
            }
            for &shared in link_a.resources.iter().filter(|resource| link_b.resources.contains(resource)) {
                let resource = topology.resource(shared);
                let costs = [resource.alpha.0, resource.beta.0];
                if meet(a, busy(link_a, costs, bytes_a), b, busy(link_b, costs, bytes_b)) {
                    broken.insert("resource_overlap");
                }
            }
        }
    }
}
