//! Orders of messages that tests write down.

use schedule::{ChunkId, Message, TransferKind};
use topology::{Rank, Topology};

/// Copies of a chunk from a rank to another, in order, over the first link between them.
pub(crate) fn copies(topology: &Topology, sent: &[(u32, u32, u32)]) -> Vec<Message> {
    let message = |&(chunk, from, to): &(u32, u32, u32)| Message {
        chunks: [ChunkId(chunk)].into_iter().collect(),
        link: topology.between(Rank(from), Rank(to)).next().expect("the ranks are linked"),
        kind: TransferKind::Copy,
    };
    sent.iter().map(message).collect()
}
