//! A rank's ends of all lanes to the other ranks.
//!
//! The principal type is [`LanePorts`]. Lanes are shared by all communicators. A message that comes for a communicator that
//! does not wait for it now is put aside ([`LanePorts::next`]), so that no communicator waits for another.

use crate::error::{RunError, RunResult};
use crate::session::places::{Directory, RankLocation};
use crate::session::unwanted::UnwantedMessages;
use crate::transport::port::{
    FRAGMENT, LongMessages, MessageFault, MessageHead, MessagePort, Offer, OfferState, PortRelief,
};
use crate::transport::shared::port::segments::OwnSegments;
use crate::transport::sink::Sink;
use crate::transport::{MemoryKind, SHORT_AT_MOST, SHORT_EVERYWHERE, local_port};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use topology::Rank;

/// Bytes of messages that are put aside, at most; more wait in their lanes.
const MOST_ASIDE: usize = 64 << 20;

/// A message that was put aside.
struct Aside {
    head: MessageHead,
    /// What was received, or why a long message could not be.
    payload: Result<Vec<u8>, MessageFault>,
}

impl Aside {
    fn bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, Vec::len) + size_of::<Self>()
    }
}

/// One rank's ends.
pub(crate) struct LanePorts {
    pub(super) directory: Arc<Directory>,
    pub(super) rank: Rank,
    pub(super) ports: Vec<Option<Box<dyn MessagePort>>>,
    /// What this rank has made known to the processes of its machine.
    segments: Arc<OwnSegments>,
    /// Long messages that were received.
    pub(crate) long_messages: LongMessages,
    /// The peers on other machines.
    pub(super) remote: Vec<Rank>,
    aside: BTreeMap<(Rank, u64), VecDeque<Aside>>,
    aside_bytes: usize,
    unwanted: UnwantedMessages,
}

impl LanePorts {
    /// The ends of a rank, which reaches those of other machines through `remote`.
    pub(crate) fn new(
        directory: Arc<Directory>,
        rank: Rank,
        remote: Vec<(Rank, Box<dyn MessagePort>)>,
        segments: Arc<OwnSegments>,
    ) -> Self {
        let mut ports: Vec<Option<Box<dyn MessagePort>>> = (0..directory.ranks()).map(|_| None).collect();
        let peers = remote.iter().map(|(peer, _)| *peer).collect();
        for (peer, port) in remote {
            debug_assert!((SHORT_EVERYWHERE..=SHORT_AT_MOST).contains(&port.longest_short()), "scripts rely on it");
            ports[peer.index()] = Some(port);
        }
        let (aside, unwanted) = (BTreeMap::new(), UnwantedMessages::default());
        let (long_messages, remote) = (LongMessages::default(), peers);
        Self { directory, rank, ports, segments, long_messages, remote, aside, aside_bytes: 0, unwanted }
    }

    /// The ends of the lanes to and from a rank; those in memory are formed when they are first used.
    #[inline]
    fn port(&mut self, peer: Rank) -> RunResult<&mut (dyn MessagePort + 'static)> {
        let Self { directory, rank, ports, .. } = self;
        let place = &mut ports[peer.index()];
        match place {
            Some(port) => Ok(&mut **port),
            None => Ok(&mut **place.insert(open(directory, *rank, peer).map_err(RunError::lane(*rank, peer))?)),
        }
    }

    /// Why a message of `expected` bytes cannot be received.
    fn fault(&self, peer: Rank, expected: usize, fault: MessageFault) -> RunError {
        match fault {
            MessageFault::Length => RunError::MessageLength { rank: self.rank, peer, expected },
            MessageFault::Revoked => RunError::Lane { rank: self.rank, peer, source: io::Error::other(fault) },
        }
    }

    fn broken(&self, peer: Rank) -> impl FnOnce(io::Error) -> RunError + use<> {
        RunError::lane(self.rank, peer)
    }

    /// The longest message to a rank that travels at once; longer ones are offered.
    #[inline]
    pub(crate) fn longest_short(&self, peer: Rank) -> usize {
        self.ports[peer.index()].as_ref().map_or(SHORT_EVERYWHERE, |port| port.longest_short())
    }

    /// Whether this rank can map the memory of a peer.
    pub(crate) fn memory(&self, peer: Rank) -> MemoryKind {
        self.ports[peer.index()].as_ref().map_or(MemoryKind::Mapped, |port| port.memory())
    }

    /// About how many bytes to a rank have not arrived yet.
    pub(crate) fn unsent(&self, peer: Rank) -> usize {
        self.ports[peer.index()].as_ref().map_or(0, |port| port.unsent())
    }

    /// Sends what waits for room at the ports to `peers`; one of them for which not all of it went.
    ///
    /// # Errors
    /// [`RunError::Lane`] if a peer cannot be reached; so do all.
    #[inline]
    pub(crate) fn flush(&mut self, peers: &[Rank]) -> RunResult<Option<Rank>> {
        if self.remote.is_empty() {
            return Ok(None);
        }
        let mut waits = None;
        for &peer in peers {
            let broken = self.broken(peer);
            if !self.port(peer)?.flush().map_err(broken)? {
                waits = Some(peer);
            }
        }
        Ok(waits)
    }

    /// Says that a long message from a rank may come before it is asked for; false if there is no need, or no way.
    pub(crate) fn expect(&mut self, from: Rank, head: MessageHead) -> bool {
        self.ports[from.index()].as_mut().is_some_and(|port| port.expect(head))
    }

    /// Sends a short message; false if there is no room for it now.
    #[inline]
    pub(crate) fn send(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<bool> {
        let broken = self.broken(to);
        self.port(to)?.send(head, data).map_err(broken)
    }

    /// Offers a long message; `None` if there is no room for it now.
    pub(crate) fn offer(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<Option<Offer>> {
        let (broken, segment) = (self.broken(to), self.segments.name_of(data));
        self.port(to)?.offer(head, data, segment).map_err(broken)
    }

    /// Carries an offer on. See [`MessagePort::advance`].
    pub(crate) fn advance(
        &mut self,
        to: Rank,
        offer: &mut Offer,
        head: MessageHead,
        data: &[u8],
    ) -> RunResult<OfferState> {
        let broken = self.broken(to);
        self.port(to)?.advance(offer, head, data).map_err(broken)
    }

    /// Takes an offer back.
    pub(crate) fn revoke(&mut self, to: Rank, offer: &Offer) {
        self.ports[to.index()].as_mut().into_iter().for_each(|port| port.revoke(offer));
    }

    /// The message at the front of a lane, once all that nobody wants is gone.
    #[inline]
    fn front(&mut self, peer: Rank) -> RunResult<Option<MessageHead>> {
        loop {
            let broken = self.broken(peer);
            let Some(head) = self.port(peer)?.head().map_err(broken)? else { return Ok(None) };
            if self.unwanted.is_empty() || !self.discard(peer, &head)? {
                return Ok(Some(head));
            }
        }
    }

    /// Drops a message if nobody wants it; whether it did.
    fn discard(&mut self, peer: Rank, head: &MessageHead) -> RunResult<bool> {
        if !self.unwanted.contain(peer, head) {
            return Ok(false);
        }
        if let Some(offer) = head.offer.filter(|_| head.tag != FRAGMENT)
            && self.port(peer)?.refuse(offer)
        {
            self.unwanted.abandon(peer, offer);
        }
        self.port(peer)?.release(head.bytes);
        Ok(true)
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
            match head.communicator == communicator {
                true => return Ok(Some(head)),
                false if self.aside_bytes > MOST_ASIDE => return Ok(None),
                false => self.put_aside(peer, head)?,
            }
        }
    }

    fn put_aside(&mut self, peer: Rank, head: MessageHead) -> RunResult<()> {
        let mut payload = vec![0; head.bytes as usize];
        self.port(peer)?.take(head.bytes, 0, &mut Sink::Copy(&mut payload));
        let aside = Aside { head, payload: Ok(payload) };
        self.aside_bytes += aside.bytes();
        self.aside.entry((peer, head.communicator)).or_default().push_back(aside);
        Ok(())
    }

    /// Puts aside the long messages at the front of a lane, which a call will ask for later: what the peer asks for lies behind them.
    /// Whether there were any.
    pub(crate) fn put_offers_aside(&mut self, peer: Rank) -> RunResult<bool> {
        let mut moved = false;
        while let Some(head) = self.front(peer)?
            && head.tag != FRAGMENT
            && head.offer.is_some()
            && self.aside_bytes <= MOST_ASIDE
        {
            self.put_aside(peer, head)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Puts aside what has come and nobody waits for yet; whether there was anything.
    pub(crate) fn relieve(&mut self, relief: PortRelief) -> bool {
        let mut moved = false;
        for index in 0..self.ports.len() {
            if !self.ports[index].as_mut().is_some_and(|port| port.is_relieved(relief)) {
                continue;
            }
            let peer = Rank::from_index(index);
            // Who waits for a rank that cannot be reached finds that out. Fragments are taken by the call that has asked for them.
            while let Ok(Some(head)) = self.front(peer)
                && head.tag != FRAGMENT
                && self.aside_bytes <= MOST_ASIDE
                && self.put_aside(peer, head).is_ok()
            {
                moved = true;
            }
        }
        moved | self.keep_offered()
    }

    /// Receives long messages that were put aside, where their senders may have no room for another offer.
    fn keep_offered(&mut self) -> bool {
        let Self { ports, aside, aside_bytes, long_messages, .. } = self;
        let mut moved = false;
        for ((peer, _), queue) in aside {
            for Aside { head, payload } in queue {
                // The rest is for short messages, which must not stay in their lanes.
                let most = (MOST_ASIDE / 2).saturating_sub(*aside_bytes);
                let offered = head.offer.zip(ports[peer.index()].as_mut());
                if let Some(message) = offered.and_then(|(offer, port)| port.keep(offer, most, long_messages)) {
                    let bytes = message.as_ref().map_or(0, Vec::len);
                    *head = MessageHead { offer: None, bytes: bytes as u32, ..*head };
                    (*payload, *aside_bytes, moved) = (message, *aside_bytes + bytes, true);
                }
            }
        }
        moved
    }

    /// Receives the message that [`Self::next`] found, which is short.
    #[inline]
    pub(crate) fn take_short(&mut self, peer: Rank, head: &MessageHead, sink: &mut Sink<'_>) -> RunResult<()> {
        let aside = self.take_aside(peer, head.communicator).map(|aside| aside.payload).transpose();
        let payload = aside.map_err(|fault| self.fault(peer, sink.len(), fault))?;
        if head.bytes as usize != sink.len() {
            return Err(self.fault(peer, sink.len(), MessageFault::Length));
        }
        match payload {
            Some(payload) => sink.put(0, &payload),
            None => self.port(peer)?.take(head.bytes, 0, sink),
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
        let is_aside = self.take_aside(peer, head.communicator).is_some();
        let mut counts = self.long_messages;
        let port = self.port(peer)?;
        if !is_aside {
            port.release(head.bytes);
        }
        let taken = port.take_long(offer, sink, &mut counts);
        let may_come = taken.is_err() && port.memory() == MemoryKind::Network;
        self.long_messages = counts;
        if may_come {
            // What this rank has expected comes all the same.
            self.unwanted.abandon(peer, offer);
        }
        taken.map_err(|fault| self.fault(peer, sink.len(), fault))
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
                let is_revoked = self.port(peer)?.is_revoked(offer);
                return if is_revoked { Err(self.fault(peer, sink.len(), MessageFault::Revoked)) } else { Ok(done) };
            };
            match (head.tag, head.offer) {
                (FRAGMENT, Some(of)) if of == offer => {
                    if done + head.bytes as usize > sink.len() {
                        return Err(self.fault(peer, sink.len(), MessageFault::Length));
                    }
                    self.port(peer)?.take(head.bytes, done, sink);
                    done += head.bytes as usize;
                }
                // The call that asked for it takes it first.
                (FRAGMENT, _) => return Ok(done),
                _ if self.aside_bytes > MOST_ASIDE => return Ok(done),
                _ => self.put_aside(peer, head)?,
            }
        }
        self.port(peer)?.finish(offer);
        Ok(done)
    }

    /// Gives up a long message whose fragments this rank has asked for.
    pub(crate) fn abandon(&mut self, peer: Rank, offer: u32) {
        self.ports[peer.index()].as_mut().into_iter().for_each(|port| port.abandon(offer));
        self.unwanted.abandon(peer, offer);
    }

    /// How many bytes are kept that nobody waits for yet.
    pub(crate) fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Refuses what has come, and what will come, for communicators (or streams of messages) that are gone.
    pub(crate) fn forget(&mut self, gone: &BTreeSet<u64>) {
        let keys: Vec<(Rank, u64)> = self.aside.keys().copied().filter(|(_, of)| gone.contains(of)).collect();
        for key in keys {
            for aside in self.aside.remove(&key).into_iter().flatten() {
                self.aside_bytes -= aside.bytes();
                if let (Some(offer), Some(port)) = (aside.head.offer, &mut self.ports[key.0.index()])
                    && port.refuse(offer)
                {
                    self.unwanted.abandon(key.0, offer);
                }
            }
        }
        gone.iter().for_each(|stream| self.unwanted.add_stream(*stream));
    }
}

/// Opens the ends of the lanes to and from a rank of this machine.
fn open(directory: &Directory, own: Rank, peer: Rank) -> io::Result<Box<dyn MessagePort>> {
    let (mine, theirs) = (directory.memory(own)?, directory.memory(peer)?);
    let process = match directory.of(peer) {
        RankLocation::Process(place, _) => Some(place),
        RankLocation::Thread(_) | RankLocation::Elsewhere => None,
    };
    Ok(local_port((own, mine), (peer, theirs), process))
}
