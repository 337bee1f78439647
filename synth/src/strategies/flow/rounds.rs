//! Orders in which all chunks move at once: in each round, all chunks whose next hop is a link cross it as one message.
//!
//! The principal function is [`rounds`]. A round costs each link one α, however many chunks wait. So small chunks take
//! as many α as the longest way has links. Where routes are balanced, as on tori, the chunks of the next round arrive
//! when the link has sent the last ones, so that large chunks also keep every link busy.

use schedule::{ChunkId, ChunkList, Message, TransferKind};
use topology::LinkId;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aligned {
    /// All chunks start in the first round.
    First,
    /// All chunks arrive in the last round.
    Last,
}

/// The messages of all rounds along `routes` over `links` links: one per link and round, with its chunks in order.
pub(crate) fn rounds(routes: &[Vec<LinkId>], links: usize, aligned: Aligned) -> Vec<Message> {
    let longest = routes.iter().map(Vec::len).max().unwrap_or(0);
    let place = |route: &[LinkId], hop: usize| match aligned {
        Aligned::First => hop * links + route[hop].index(),
        Aligned::Last => (longest - route.len() + hop) * links + route[hop].index(),
    };
    // A counting sort of chunks by round and link, because there may be tens of millions of hops.
    let mut starts = vec![0u32; longest * links + 1];
    for route in routes {
        (0..route.len()).for_each(|hop| starts[place(route, hop) + 1] += 1);
    }
    (1..starts.len()).for_each(|place| starts[place] += starts[place - 1]);
    let mut next = starts.clone();
    let mut chunks = vec![ChunkId(0); starts.last().map_or(0, |&all| all as usize)];
    for (chunk, route) in (0..).zip(routes) {
        for hop in 0..route.len() {
            let next = &mut next[place(route, hop)];
            chunks[*next as usize] = ChunkId(chunk);
            *next += 1;
        }
    }
    let message = |(place, ends): (usize, &[u32])| {
        let chunks = &chunks[ends[0] as usize..ends[1] as usize];
        let link = LinkId::from_index(place % links);
        let message = || Message { chunks: ChunkList::from_slice(chunks), link, kind: TransferKind::Copy };
        (!chunks.is_empty()).then(message)
    };
    starts.windows(2).enumerate().filter_map(message).collect()
}
