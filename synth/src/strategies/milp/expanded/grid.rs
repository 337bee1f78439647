//! Time cut into epochs: how many epochs a message travels, and how much a link carries in an epoch.
//!
//! The principal type is [`Grid`]. Durations are rounded to the nearest number of epochs, not up: the grid only guides
//! the search, and every schedule is timed exactly afterwards. A link that is busy for several epochs has a sliding
//! window. A link that is busy for less than an epoch takes several chunks in it. Where α occupies the link and an
//! epoch holds several chunks, these travel as one message and pay α once (in TE-CCL α never occupies).

use crate::problem::Problem;
use std::collections::BTreeSet;
use topology::{Bytes, Link, Micros, ResourceId, Topology};

/// An epoch may be overfilled by this fraction; exact timing corrects the rounding.
pub(super) const TOLERANCE: f64 = 0.02;

/// An epoch length for one problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) epoch: Micros,
    /// The size of the largest chunk, which every window must hold.
    largest: Bytes,
}

/// A limit on departures: in any `epochs` consecutive epochs they may occupy at most `room`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct OccupancyWindow {
    /// The length of the sliding window.
    pub(super) epochs: u32,
    /// The time that departures in it may occupy.
    pub(super) room: Micros,
    /// The α that chunks of the same epoch and link pay together; `None` if each pays its own.
    pub(super) shared_alpha: Option<Micros>,
}

impl Grid {
    pub(super) fn new(problem: &Problem, epoch: Micros) -> Self {
        Self { epoch, largest: largest_chunk(problem) }
    }

    /// The fewest epochs that cover `time`; slightly more than a whole number does not count as another epoch.
    pub(super) fn epochs_over(&self, time: Micros) -> u32 {
        // The cast saturates; horizons are limited to much smaller values.
        (time / self.epoch - TOLERANCE).ceil().max(0.0) as u32
    }

    /// Epochs from departure to arrival of a chunk of `bytes`; at least one.
    pub(super) fn latency(&self, link: &Link, bytes: Bytes) -> u32 {
        ((link.transfer_time(bytes) / self.epoch).round() as u32).max(1)
    }

    pub(super) fn link_window(&self, link: &Link) -> OccupancyWindow {
        self.window(link.occupancy(self.largest), link.occupancy(Bytes::ZERO))
    }

    /// The window of a resource, over all its links.
    pub(super) fn resource_window(&self, topology: &Topology, id: ResourceId) -> OccupancyWindow {
        let resource = topology.resource(id);
        let most = |bytes: Bytes| {
            let users = topology.users(id).iter().map(|&link| resource.occupancy(topology.link(link), bytes));
            users.fold(Micros::ZERO, Micros::max)
        };
        self.window(most(self.largest), most(Bytes::ZERO))
    }

    /// A window for chunks that occupy `alone` each; chunks that leave together may pay `alpha` once.
    fn window(&self, alone: Micros, alpha: Micros) -> OccupancyWindow {
        let shortest = self.epochs_over(alone).max(1);
        let chunks = |epochs: u32| (self.epoch * f64::from(epochs) / alone + TOLERANCE).floor();
        let merged = ((self.epoch - alpha) / (alone - alpha) + TOLERANCE).floor();
        if shortest == 1 && alpha > Micros::ZERO && merged > chunks(1) {
            return OccupancyWindow { epochs: 1, room: self.epoch, shared_alpha: Some(alpha) };
        }
        let rate = |epochs: u32| chunks(epochs) / f64::from(epochs);
        // If a chunk takes one and a half epochs, two chunks in three epochs is closer than one in two. A longer window
        // also allows bursts, so it must be clearly better.
        let epochs = if rate(shortest + 1) > 1.1 * rate(shortest) { shortest + 1 } else { shortest };
        OccupancyWindow { epochs, room: self.epoch * f64::from(epochs), shared_alpha: None }
    }

    /// How badly durations fit: the mean relative error of latencies and rates over the distinct costs of links.
    pub(super) fn misfit(&self, costs: &[Link]) -> f64 {
        let error = |link: &Link| {
            let time = link.transfer_time(self.largest);
            let rounded = self.epoch * f64::from(self.latency(link, self.largest));
            let alone = link.occupancy(self.largest);
            let window = self.link_window(link);
            let lost = match window.shared_alpha {
                Some(_) => 0.0,
                None => 1.0 - (window.room / alone + TOLERANCE).floor() / (window.room / alone),
            };
            ((rounded - time) / time).abs() + lost.abs()
        };
        costs.iter().map(error).sum::<f64>() / costs.len().max(1) as f64
    }
}

fn largest_chunk(problem: &Problem) -> Bytes {
    let demand = &problem.demand;
    demand.chunk_ids().map(|id| demand.bytes_of(id)).fold(Bytes::ZERO, Bytes::max)
}

/// One link of each distinct cost among those that the sketch allows.
pub(super) fn distinct_costs(problem: &Problem) -> Vec<Link> {
    let topology = &problem.topology;
    let mut costs: Vec<Link> = Vec::new();
    let mut seen = BTreeSet::new();
    for id in topology.link_ids().filter(|&id| problem.allows_link(id)) {
        let link = topology.link(id);
        if seen.insert((link.alpha.0.to_bits(), link.beta.0.to_bits(), link.occupancy(Bytes::ZERO).0.to_bits())) {
            costs.push(link.clone());
        }
    }
    costs
}

/// Epoch lengths worth trying: the durations of the problem and small fractions of them, longest first.
pub(super) fn natural_epochs(problem: &Problem, costs: &[Link]) -> Vec<Micros> {
    let largest = largest_chunk(problem);
    let mut lengths: Vec<Micros> = Vec::new();
    for link in costs {
        lengths.extend([link.occupancy(largest), link.transfer_time(largest)]);
        // Where α is large, messages of several chunks determine the times.
        if link.occupancy(Bytes::ZERO) > link.byte_time(largest) * 0.2 {
            lengths.extend([2.0, 4.0, 8.0].map(|chunks| link.occupancy(largest * chunks)));
        }
    }
    let fractions = lengths.iter().flat_map(|&length| [1.0, 2.0, 3.0, 4.0].map(|part| length * (1.0 / part)));
    let mut fractions: Vec<Micros> = fractions.filter(|length| *length > Micros::ZERO).collect();
    fractions.sort_by(|a, b| b.total_cmp(a));
    fractions.dedup_by(|next, kept| next.0 > kept.0 * (1.0 - TOLERANCE / 2.0));
    fractions
}
