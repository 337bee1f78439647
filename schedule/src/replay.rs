//! Gives an order of messages its times.
//!
//! Strategies decide *what* goes over *which* link and in *which order*; [`replay`] is the one place that
//! turns such an order into start and end times under the topology's cost model. It is a list scheduler:
//! every message starts as soon as its chunks are at the sender, its link and its resources are free, and
//! everything earlier in the order on the same link or resource has left.

use crate::{ChunkId, ChunkList, Demand, ReplayError, Transfer, TransferKind};
use topology::{LinkId, Micros, Topology};

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

/// Times `messages` in the given order, each as early as the order allows.
///
/// The result has the same order and length as `messages`. For a combining chunk a message carries
/// everything that earlier messages of the order brought to its sender, and waits for it.
///
/// # Errors
/// [`ReplayError::NotHeld`] where a message sends what no earlier one brought.
pub fn replay(demand: &Demand, topology: &Topology, messages: &[Message]) -> Result<Vec<Transfer>, ReplayError> {
    let ranks = topology.rank_count();
    let nothing = Holding { from: None, last_departure: Micros::ZERO };
    let mut holdings = vec![nothing; demand.chunks().len() * ranks];
    let slot = |chunk: ChunkId, rank: topology::Rank| chunk.index() * ranks + rank.index();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        for &rank in chunk.holders.iter() {
            holdings[slot(id, rank)].from = Some(Micros::ZERO);
        }
    }
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
            let Some(held_from) = holdings[slot(chunk, link.from)].from else {
                return Err(ReplayError::NotHeld { message: index, chunk, rank: link.from });
            };
            start = start.max(held_from);
            if demand.chunk(chunk).combine {
                start = start.max(holdings[slot(chunk, link.to)].last_departure);
            }
        }
        let bytes = demand.message_bytes(&message.chunks);
        let end = start + link.transfer_time(bytes);
        link_free[message.link.index()] = start + link.occupancy(bytes);
        for &resource in &link.resources {
            resource_free[resource.index()] = start + topology.resource(resource).occupancy(link, bytes);
        }
        for &chunk in &message.chunks {
            let departed = &mut holdings[slot(chunk, link.from)].last_departure;
            *departed = departed.max(start);
            let combine = demand.chunk(chunk).combine;
            let arrived = &mut holdings[slot(chunk, link.to)].from;
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
