//! Drops copies that no rank uses.
//!
//! A relay may have been given a chunk that it then did not need to send on. Going backwards in time, a delivery is
//! useful if the receiver wants the chunk, or if a useful later message carries it on.

use super::bits::BitMatrix;
use schedule::{ChunkId, Demand, Message};
use topology::Topology;

/// `messages` without useless deliveries, in the same order.
pub(crate) fn without_idle_copies(messages: &[Message], topology: &Topology, demand: &Demand) -> Vec<Message> {
    let mut needed = BitMatrix::new(topology.rank_count(), demand.chunks().len());
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        chunk.wanted_by.iter().for_each(|rank| needed.set(rank.index(), id.index()));
    }
    let mut useful = Vec::with_capacity(messages.len());
    for message in messages.iter().rev() {
        let link = topology.link(message.link);
        let mut message = message.clone();
        message.chunks.retain(|chunk: &mut ChunkId| needed.has(link.to.index(), chunk.index()));
        message.chunks.iter().for_each(|chunk| needed.set(link.from.index(), chunk.index()));
        if !message.chunks.is_empty() {
            useful.push(message);
        }
    }
    useful.reverse();
    useful
}
