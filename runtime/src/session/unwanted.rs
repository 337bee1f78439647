//! Messages that nobody wants.
//!
//! The principal type is [`UnwantedMessages`].

use crate::transport::port::{FRAGMENT, MessageHead};
use std::collections::{BTreeSet, VecDeque};
use topology::Rank;

/// So many communicators that are gone are remembered, to refuse what still comes for them.
const MOST_GONE: usize = 1 << 14;

/// Which messages nobody wants.
#[derive(Default)]
pub(super) struct UnwantedMessages {
    gone: GoneStreams,
    /// Long messages whose receiver gave up before all of their fragments came.
    abandoned: BTreeSet<(Rank, u32)>,
}

impl UnwantedMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.abandoned.is_empty() && self.gone.known.is_empty()
    }

    /// All messages of a communicator, or of a stream of messages.
    pub(super) fn add_stream(&mut self, stream: u64) {
        self.gone.add(stream);
    }

    /// The fragments of a long message.
    pub(super) fn abandon(&mut self, peer: Rank, offer: u32) {
        self.abandoned.insert((peer, offer));
    }

    /// Whether the message at the front of a lane is one of them.
    pub(super) fn contain(&mut self, peer: Rank, head: &MessageHead) -> bool {
        match head.offer {
            Some(offer) if head.tag == FRAGMENT => return self.abandoned.contains(&(peer, offer)),
            // The slot is used for the next message.
            Some(offer) => drop(self.abandoned.remove(&(peer, offer))),
            None => {}
        }
        self.gone.known.contains(&head.communicator)
    }
}

/// Communicators and streams of messages that are gone: the latest of them.
#[derive(Default)]
struct GoneStreams {
    known: BTreeSet<u64>,
    /// The latest last.
    order: VecDeque<u64>,
}

impl GoneStreams {
    fn add(&mut self, stream: u64) {
        if !self.known.insert(stream) {
            return;
        }
        self.order.push_back(stream);
        if self.order.len() > MOST_GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}
