//! Gives an order of messages its times.
//!
//! Strategies decide *what* goes over *which* link and in *which order*; [`replay`] is the one place that
//! turns such an order into start and end times under the topology's cost model. It is a list scheduler:
//! every message starts as soon as its chunks are at the sender, its link and its resources are free, and
//! everything earlier in the order on the same link or resource has left.

use crate::{ChunkId, ChunkList, Demand, ReplayError, Transfer, TransferKind};
use std::collections::BTreeMap;
use topology::{LinkId, Micros, Rank, Topology};

/// A transfer without times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// What it carries.
    pub chunks: ChunkList,
    /// Over which link.
    pub link: LinkId,
    /// Copy or reduce.
    pub kind: TransferKind,
}

impl From<&Transfer> for Message {
    fn from(transfer: &Transfer) -> Self {
        Self { chunks: transfer.chunks.clone(), link: transfer.link, kind: transfer.kind }
    }
}

/// What replay remembers of a chunk at a rank.
#[derive(Clone, Copy)]
struct Holding {
    /// From when on its value may leave; `None` while there is none.
    from: Option<Micros>,
    /// The latest departure so far: a later message must not change the value before it.
    last_departure: Micros,
}

/// Who holds what, one row per chunk.
struct Holdings<'a> {
    demand: &'a Demand,
    rows: Vec<Row>,
}

/// A chunk that many messages carry has a place for every rank; one that few carry has places for the ranks that
/// they touch. A table of chunks × ranks would be N³ for an AllToAll among N ranks.
#[derive(Clone)]
enum Row {
    Dense(Box<[Option<Holding>]>),
    Sparse(BTreeMap<Rank, Holding>),
}

impl<'a> Holdings<'a> {
    fn new(demand: &'a Demand, ranks: usize, messages: &[Message]) -> Self {
        let mut carried = vec![0usize; demand.chunks().len()];
        messages.iter().flat_map(|message| &message.chunks).for_each(|chunk| carried[chunk.index()] += 1);
        let row = |carried| match carried {
            many if many > ranks / 8 => Row::Dense(vec![None; ranks].into()),
            _ => Row::Sparse(BTreeMap::new()),
        };
        Self { demand, rows: carried.into_iter().map(row).collect() }
    }

    fn at(&mut self, chunk: ChunkId, rank: Rank) -> &mut Holding {
        let initial = || {
            let from = self.demand.chunk(chunk).holders.has(rank).then_some(Micros::ZERO);
            Holding { from, last_departure: Micros::ZERO }
        };
        match &mut self.rows[chunk.index()] {
            Row::Dense(row) => row[rank.index()].get_or_insert_with(initial),
            Row::Sparse(row) => row.entry(rank).or_insert_with(initial),
        }
    }
}

/// Times `messages` in the given order, each as early as the order allows.
///
/// The result has the same order and length as `messages`. For a combining chunk a message carries
/// everything that earlier messages of the order brought to its sender, and waits for it.
///
/// # Errors
/// [`ReplayError::NotHeld`] where a message sends what no earlier one brought.
pub fn replay(demand: &Demand, topology: &Topology, messages: &[Message]) -> Result<Vec<Transfer>, ReplayError> {
    let mut holdings = Holdings::new(demand, topology.rank_count(), messages);
    let mut link_free = vec![Micros::ZERO; topology.links().len()];
    let mut resource_free = vec![Micros::ZERO; topology.resources().len()];
    let mut transfers = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let link = topology.link(message.link);
        let mut start = link_free[message.link.index()];
        for resource in &link.resources {
            start = start.max(resource_free[resource.index()]);
        }
        for &chunk in &message.chunks {
            let Some(held_from) = holdings.at(chunk, link.from).from else {
                return Err(ReplayError::NotHeld { message: index, chunk, rank: link.from });
            };
            start = start.max(held_from);
            if demand.chunk(chunk).combine {
                start = start.max(holdings.at(chunk, link.to).last_departure);
            }
        }
        let bytes = demand.message_bytes(&message.chunks);
        let end = start + link.transfer_time(bytes);
        link_free[message.link.index()] = start + link.occupancy(bytes);
        for &resource in &link.resources {
            resource_free[resource.index()] = start + topology.resource(resource).occupancy(link, bytes);
        }
        for &chunk in &message.chunks {
            let departed = &mut holdings.at(chunk, link.from).last_departure;
            *departed = departed.max(start);
            let combine = demand.chunk(chunk).combine;
            let arrived = &mut holdings.at(chunk, link.to).from;
            *arrived = Some(match *arrived {
                Some(earlier) if combine => earlier.max(end),
                Some(earlier) => earlier.min(end),
                None => end,
            });
        }
        let (chunks, kind) = (message.chunks.clone(), message.kind);
        transfers.push(Transfer { chunks, from: link.from, to: link.to, link: message.link, kind, start, end });
    }
    Ok(transfers)
}
