//! Orders in which everybody moves at once: all chunks whose hop it is go over a link as one message.
//!
//! The principal function is [`rounds`]. A round costs every link one α, however many chunks wait, so that small
//! chunks take as many α as the longest way has links; and where routes are balanced, as on tori, the next round's
//! chunks arrive when the link has sent the last ones, so that large chunks keep every link busy as well.

use schedule::{ChunkId, ChunkList, Message, TransferKind};
use topology::LinkId;

/// Which round a hop belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aligned {
    /// Everybody starts in the first round.
    First,
    /// Everybody arrives in the last round.
    Last,
}

/// The messages of all rounds along `routes` over `links` links: one per link and round, in which chunks stand in order.
pub(crate) fn rounds(routes: &[Vec<LinkId>], links: usize, aligned: Aligned) -> Vec<Message> {
    let longest = routes.iter().map(Vec::len).max().unwrap_or(0);
    let mut messages = Vec::new();
    let mut waiting: Vec<ChunkList> = vec![ChunkList::new(); links];
    for round in 0..longest {
        for (chunk, route) in routes.iter().enumerate() {
            let hop = match aligned {
                Aligned::First => Some(round),
                Aligned::Last => (round + route.len()).checked_sub(longest),
            };
            if let Some(link) = hop.and_then(|hop| route.get(hop)) {
                waiting[link.index()].push(ChunkId(chunk as u32));
            }
        }
        for (link, chunks) in waiting.iter_mut().enumerate().filter(|(_, chunks)| !chunks.is_empty()) {
            let link = LinkId::from_index(link);
            messages.push(Message { chunks: std::mem::take(chunks), link, kind: TransferKind::Copy });
        }
    }
    messages
}
