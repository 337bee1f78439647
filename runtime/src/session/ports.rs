//! A rank's ends of all lanes to the other ranks.
//!
//! The principal type is [`LanePorts`]. Lanes are shared by all communicators. A message that comes for a communicator that
//! does not wait for it now is put aside ([`LanePorts::next`]), so that no communicator waits for another.

use crate::error::{RunError, RunResult};
use crate::session::lane::{FRAGMENT, MessageHead, Offer, OfferState};
use crate::session::memory_port::MemoryPort;
use crate::session::places::Directory;
use crate::session::sink::Sink;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use topology::Rank;

/// Bytes of messages that are put aside for other communicators, at most; more wait in their lanes.
const MOST_ASIDE: usize = 64 << 20;
/// So many communicators that are gone are remembered, to refuse what still comes for them.
const MOST_GONE: usize = 1024;

/// A message that was put aside.
struct Aside {
    head: MessageHead,
    payload: Vec<u8>,
}

impl Aside {
    /// What it costs to keep.
    fn bytes(&self) -> usize {
        self.payload.len() + size_of::<Self>()
    }
}

/// One rank's ends.
pub(crate) struct LanePorts {
    directory: Arc<Directory>,
    rank: Rank,
    ports: Vec<Option<MemoryPort>>,
    aside: BTreeMap<(Rank, u64), VecDeque<Aside>>,
    aside_bytes: usize,
    /// Long messages whose receiver gave up while their fragments came.
    abandoned: BTreeSet<(Rank, u32)>,
    /// Communicators that are gone, the latest last.
    gone: VecDeque<u64>,
}

/// Why a message cannot be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MessageFault {
    #[error("it has given up")]
    Revoked,
    #[error("its message has another length")]
    Length,
}

impl LanePorts {
    pub(crate) fn new(directory: Arc<Directory>, rank: Rank) -> Self {
        let ports = (0..directory.ranks()).map(|_| None).collect();
        let (aside, abandoned, gone) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Self { directory, rank, ports, aside, aside_bytes: 0, abandoned, gone }
    }

    /// The ends of the lanes to and from a rank; they are formed when they are first used.
    fn port(&mut self, peer: Rank) -> RunResult<&mut MemoryPort> {
        let Self { directory, rank, ports, .. } = self;
        let place = &mut ports[peer.index()];
        match place {
            Some(port) => Ok(port),
            None => {
                let port = MemoryPort::new(directory, *rank, peer).map_err(RunError::lane(*rank, peer))?;
                Ok(place.insert(port))
            }
        }
    }

    fn lost(&self, peer: Rank, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RunError {
        RunError::Lane { rank: self.rank, peer, source: io::Error::other(why) }
    }

    /// The longest message to a rank that travels at once; longer ones are offered.
    pub(crate) fn short(&self, _peer: Rank) -> usize {
        crate::session::lane::SHORT
    }

    /// Sends a short message; false if there is no room for it now.
    ///
    /// # Errors
    /// [`RunError::Lane`] if the peer cannot be reached; so do all.
    #[inline]
    pub(crate) fn send(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<bool> {
        Ok(self.port(to)?.sender.send(head, data))
    }

    /// Offers a long message; `None` if there is no room for it now.
    pub(crate) fn offer(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<Option<Offer>> {
        Ok(self.port(to)?.sender.offer(head, data.as_ptr(), data.len()))
    }

    /// Carries an offer on. See [`LaneSender::advance`](super::lane::LaneSender::advance).
    pub(crate) fn advance(
        &mut self,
        to: Rank,
        offer: &mut Offer,
        head: MessageHead,
        data: &[u8],
    ) -> RunResult<OfferState> {
        Ok(self.port(to)?.sender.advance(offer, head, data))
    }

    /// Takes an offer back.
    pub(crate) fn revoke(&mut self, to: Rank, offer: &Offer) {
        if let Some(port) = &mut self.ports[to.index()] {
            port.sender.revoke(offer);
        }
    }

    /// The message at the front of a lane, once all that nobody wants is gone.
    #[inline]
    fn front(&mut self, peer: Rank) -> RunResult<Option<MessageHead>> {
        loop {
            let Some(head) = self.port(peer)?.receiver.head() else { return Ok(None) };
            if self.abandoned.is_empty() && self.gone.is_empty() || !self.discard(peer, &head)? {
                return Ok(Some(head));
            }
        }
    }

    /// Drops a message if nobody wants it; whether it did.
    fn discard(&mut self, peer: Rank, head: &MessageHead) -> RunResult<bool> {
        let is_fragment = head.tag == FRAGMENT;
        let mut is_unwanted = !is_fragment && self.gone.contains(&head.communicator);
        if let Some(offer) = head.offer {
            match is_fragment {
                true => is_unwanted = self.abandoned.contains(&(peer, offer)),
                // The slot is used for the next message.
                false => drop(self.abandoned.remove(&(peer, offer))),
            }
            if is_unwanted && !is_fragment {
                self.port(peer)?.receiver.refuse(offer);
            }
        }
        if is_unwanted {
            self.port(peer)?.receiver.release(head.bytes);
        }
        Ok(is_unwanted)
    }

    /// The next message of a communicator from a rank, if there is one.
    #[inline]
    pub(crate) fn next(&mut self, peer: Rank, communicator: u64) -> RunResult<Option<MessageHead>> {
        if !self.aside.is_empty()
            && let Some(aside) = self.aside.get(&(peer, communicator)).and_then(VecDeque::front)
        {
            return Ok(Some(aside.head));
        }
        loop {
            let Some(head) = self.front(peer)? else { return Ok(None) };
            if head.tag == FRAGMENT {
                // The call that asked for it takes it.
                return Ok(None);
            }
            if head.communicator == communicator {
                return Ok(Some(head));
            }
            if self.aside_bytes > MOST_ASIDE {
                return Ok(None);
            }
            self.put_aside(peer, head)?;
        }
    }

    fn put_aside(&mut self, peer: Rank, head: MessageHead) -> RunResult<()> {
        let mut payload = vec![0; head.bytes as usize];
        let lane = &mut self.port(peer)?.receiver;
        lane.pieces(head.bytes, |at, piece| payload[at..at + piece.len()].copy_from_slice(piece));
        lane.release(head.bytes);
        let aside = Aside { head, payload };
        self.aside_bytes += aside.bytes();
        self.aside.entry((peer, head.communicator)).or_default().push_back(aside);
        Ok(())
    }

    /// Receives the message that [`Self::next`] found, which is short.
    #[inline]
    pub(crate) fn take_short(&mut self, peer: Rank, head: &MessageHead, sink: &mut Sink<'_>) -> RunResult<()> {
        let aside = self.take_aside(peer, head.communicator);
        if head.bytes as usize != sink.len() {
            return Err(self.lost(peer, MessageFault::Length));
        }
        match aside {
            Some(aside) => sink.put(0, &aside.payload),
            None => {
                let lane = &mut self.port(peer)?.receiver;
                lane.pieces(head.bytes, |at, piece| sink.put(at, piece));
                lane.release(head.bytes);
            }
        }
        Ok(())
    }

    /// Takes the oldest message of a communicator that was put aside.
    #[inline]
    fn take_aside(&mut self, peer: Rank, communicator: u64) -> Option<Aside> {
        if self.aside.is_empty() {
            return None;
        }
        let key = (peer, communicator);
        let queue = self.aside.get_mut(&key)?;
        let aside = queue.pop_front();
        if queue.is_empty() {
            self.aside.remove(&key);
        }
        self.aside_bytes -= aside.as_ref().map_or(0, Aside::bytes);
        aside
    }

    /// Receives the message that [`Self::next`] found, which is long; false if it will come in fragments.
    pub(crate) fn take_long(
        &mut self,
        peer: Rank,
        head: &MessageHead,
        offer: u32,
        sink: &mut Sink<'_>,
    ) -> RunResult<bool> {
        if self.take_aside(peer, head.communicator).is_none() {
            self.port(peer)?.receiver.release(head.bytes);
        }
        let taken = self.port(peer)?.take_long(offer, sink);
        taken.map_err(|fault| self.lost(peer, fault))
    }

    /// Receives the fragments of a long message that are here, of which `done` bytes were received before; how many are done
    /// now.
    pub(crate) fn take_fragments(
        &mut self,
        peer: Rank,
        offer: u32,
        mut done: usize,
        sink: &mut Sink<'_>,
    ) -> RunResult<usize> {
        while done < sink.len() {
            let Some(head) = self.front(peer)? else {
                let is_revoked = self.port(peer)?.receiver.is_revoked(offer);
                return if is_revoked { Err(self.lost(peer, MessageFault::Revoked)) } else { Ok(done) };
            };
            match (head.tag, head.offer) {
                (FRAGMENT, Some(of)) if of == offer => {
                    if done + head.bytes as usize > sink.len() {
                        return Err(self.lost(peer, MessageFault::Length));
                    }
                    let lane = &mut self.port(peer)?.receiver;
                    lane.pieces(head.bytes, |at, piece| sink.put(done + at, piece));
                    lane.release(head.bytes);
                    done += head.bytes as usize;
                }
                // The call that asked for it takes it first.
                (FRAGMENT, _) => return Ok(done),
                _ if self.aside_bytes > MOST_ASIDE => return Ok(done),
                _ => self.put_aside(peer, head)?,
            }
        }
        Ok(done)
    }

    /// Gives up a long message whose fragments this rank has asked for.
    pub(crate) fn abandon(&mut self, peer: Rank, offer: u32) {
        if let Some(port) = &mut self.ports[peer.index()] {
            port.receiver.refuse_rest(offer);
            self.abandoned.insert((peer, offer));
        }
    }

    /// Refuses what has come, and what will come, for a communicator that is gone.
    pub(crate) fn forget(&mut self, communicator: u64) {
        let keys: Vec<(Rank, u64)> = self.aside.keys().copied().filter(|(_, of)| *of == communicator).collect();
        for key in keys {
            for aside in self.aside.remove(&key).into_iter().flatten() {
                self.aside_bytes -= aside.bytes();
                if let (Some(offer), Some(port)) = (aside.head.offer, &self.ports[key.0.index()]) {
                    port.receiver.refuse(offer);
                }
            }
        }
        if self.gone.len() == MOST_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(communicator);
    }
}
