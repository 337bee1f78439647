//! ReduceScatter and Reduce as a gather in reversed order.
//!
//! An AllGather on the reversed topology sends every rank's chunk down a tree. The same tree with reversed links sums
//! towards the root. This file reverses only the *order*. Times are computed anew: intervals start at departure, so
//! mirrored intervals can overlap where α or β differ on a shared resource.

use crate::{ChunkId, Demand, Message, Transfer, TransferKind};

/// The reducing messages, in playing order, that reverse `gather`. The transfers of `gather` spread each chunk of
/// `forward` from its holders on the *reversed* topology.
///
/// Deliveries of a chunk to a rank that already has it are left out, because reversed they would add it twice.
pub fn reduce_of_gather(gather: &[Transfer], forward: &Demand, ranks: usize) -> Vec<Message> {
    let mut has = vec![false; forward.chunks().len() * ranks];
    for (id, chunk) in forward.chunk_ids().zip(forward.chunks()) {
        chunk.holders.iter().for_each(|rank| has[id.index() * ranks + rank.index()] = true);
    }
    let mut by_end: Vec<&Transfer> = gather.iter().collect();
    by_end.sort_by(|a, b| a.end.total_cmp(&b.end).then(a.start.total_cmp(&b.start)));
    let mut useful: Vec<Message> = Vec::with_capacity(gather.len());
    for transfer in by_end {
        let mut message = Message::from(transfer);
        message.kind = TransferKind::Reduce;
        message.chunks.retain(|chunk: &mut ChunkId| {
            let slot = chunk.index() * ranks + transfer.to.index();
            !std::mem::replace(&mut has[slot], true)
        });
        if !message.chunks.is_empty() {
            useful.push(message);
        }
    }
    useful.reverse();
    useful
}

/// The messages of `transfers` turned around in time, for the *reversed* topology: the last arrival first, and of those that take no
/// time the last in the order. What has copied adds, and what has added copies: a tree that adds a chunk up spreads it.
///
/// Sums have an order only where each rank sends a chunk to be added once at most, after all that it adds to it has come.
pub fn turned_around(transfers: &[Transfer]) -> Vec<Message> {
    let mut by_end: Vec<&Transfer> = transfers.iter().collect();
    by_end.sort_by(|a, b| a.end.total_cmp(&b.end).then(a.start.total_cmp(&b.start)));
    let turn = |transfer: &Transfer| {
        let kind = match transfer.kind {
            TransferKind::Copy => TransferKind::Reduce,
            TransferKind::Reduce => TransferKind::Copy,
        };
        Message { kind, ..Message::from(transfer) }
    };
    by_end.into_iter().rev().map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, Request};
    use topology::{LinkId, Micros, Rank};

    /// A transfer of a gather, as it is stated; the reversal uses only the receiver and the times.
    fn transfer(chunks: &[u32], (from, to): (u32, u32), link: u32, start: f64) -> Transfer {
        Transfer {
            chunks: chunks.iter().copied().map(ChunkId).collect(),
            from: Rank(from),
            to: Rank(to),
            link: LinkId(link),
            kind: TransferKind::Copy,
            start: Micros(start),
            end: Micros(start + 1.0),
        }
    }

    fn reversed(gather: &[Transfer]) -> Vec<(Vec<u32>, u32)> {
        let forward = Demand::new(Request::new(Collective::AllGather, 3, 3)).unwrap();
        let messages = reduce_of_gather(gather, &forward, 3);
        assert!(messages.iter().all(|message| message.kind == TransferKind::Reduce));
        messages.iter().map(|message| (message.chunks.iter().map(|chunk| chunk.0).collect(), message.link.0)).collect()
    }

    #[test]
    fn the_last_delivery_comes_first() {
        let gather = [transfer(&[0], (0, 1), 7, 0.0), transfer(&[0], (1, 2), 8, 1.0)];
        assert_eq!(reversed(&gather), [(vec![0], 8), (vec![0], 7)]);
    }

    #[test]
    fn a_delivery_that_brings_nothing_new_is_dropped() {
        let gather = [
            transfer(&[0, 1], (1, 2), 5, 0.0), // 0 and 1 are new at rank 2
            transfer(&[0], (0, 2), 6, 1.0),    // again
            transfer(&[1, 2], (2, 1), 7, 2.0), // rank 1 starts with 1
        ];
        assert_eq!(reversed(&gather), [(vec![2], 7), (vec![0, 1], 5)]);
    }

    #[test]
    fn a_reduce_of_a_gather_that_is_turned_around_is_that_gather() {
        let gather = [
            transfer(&[0], (0, 1), 7, 0.0),
            transfer(&[0, 1], (1, 2), 8, 1.0),
            transfer(&[2], (2, 1), 5, 1.5),
            transfer(&[1, 2], (1, 0), 9, 3.0),
        ];
        let forward = Demand::new(Request::new(Collective::AllGather, 3, 3)).unwrap();
        let reduces = reduce_of_gather(&gather, &forward, 3);
        // Each message of the reduce departs after the one before it, as in a schedule.
        let timed = reduces.iter().zip(0..).map(|(message, at)| {
            let ends = gather.iter().find(|it| it.link == message.link).map(|it| (it.to.0, it.from.0));
            let chunks: Vec<u32> = message.chunks.iter().map(|chunk| chunk.0).collect();
            Transfer { kind: message.kind, ..transfer(&chunks, ends.unwrap(), message.link.0, f64::from(at)) }
        });
        let back = turned_around(&timed.collect::<Vec<_>>());
        assert_eq!(back, gather.iter().map(Message::from).collect::<Vec<_>>());
    }
}
