//! What is remembered of communicators that are gone.

use std::collections::{BTreeSet, VecDeque};

/// So many communicators that are gone are remembered, to refuse what still comes for them.
const MOST_GONE: usize = 1 << 14;

/// Communicators and streams of messages that are gone: the latest of them.
#[derive(Default)]
pub(super) struct GoneStreams {
    known: BTreeSet<u64>,
    /// The latest last.
    order: VecDeque<u64>,
}

impl GoneStreams {
    pub(super) fn add(&mut self, stream: u64) {
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

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn contains(&self, stream: u64) -> bool {
        self.known.contains(&stream)
    }
}
