//! ReduceScatter and Reduce by playing a gather backwards.
//!
//! An AllGather on the reversed topology sends every rank's chunk down a tree; the same tree with its arrows
//! turned around sums towards the root. This file turns the *order* around; times are computed anew, because
//! intervals start at departure and mirrored ones can clash where α or β differ on a shared resource.

use crate::{ChunkId, Demand, Message, Transfer, TransferKind};
use topology::Micros;

/// The reducing messages that mirror `gather`, whose transfers spread each chunk of `forward` from its holders
/// on the *reversed* topology; in playing order.
///
/// Deliveries of a chunk to a rank that already has it are dropped: reversed, they would add twice.
pub fn reduce_of_gather(gather: &[Transfer], forward: &Demand, ranks: usize) -> Vec<Message> {
    let mut has = vec![false; forward.chunks().len() * ranks];
    for (id, chunk) in forward.chunk_ids().zip(forward.chunks()) {
        chunk.holders.iter().for_each(|rank| has[id.index() * ranks + rank.index()] = true);
    }
    let mut by_end: Vec<&Transfer> = gather.iter().collect();
    by_end.sort_by(|a, b| a.end.total_cmp(&b.end).then(a.start.total_cmp(&b.start)));
    let mut useful: Vec<(Micros, Message)> = Vec::with_capacity(gather.len());
    for transfer in by_end {
        let mut message = Message::from(transfer);
        message.kind = TransferKind::Reduce;
        message.chunks.retain(|chunk: &mut ChunkId| {
            let slot = chunk.index() * ranks + transfer.to.index();
            !std::mem::replace(&mut has[slot], true)
        });
        if !message.chunks.is_empty() {
            useful.push((transfer.end, message));
        }
    }
    useful.reverse();
    useful.into_iter().map(|(_, message)| message).collect()
}
