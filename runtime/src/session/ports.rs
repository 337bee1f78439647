//! A rank's ends of all lanes to the other ranks.
//!
//! The principal type is [`LanePorts`]. Lanes are shared by all communicators. A message that comes for a communicator that
//! does not wait for it now is put aside ([`LanePorts::next`]), so that no communicator waits for another.

use crate::error::{RunError, RunResult};
use crate::session::gone_streams::GoneStreams;
use crate::session::lane::{FRAGMENT, MessageHead, Offer, OfferState, SHORT};
use crate::session::memory_port::{LongMessages, MemoryPort};
use crate::session::notice::BreachNotice;
use crate::session::peer_port::{MessageFault, PeerPort, PortRelief};
use crate::session::places::{Directory, RankLocation};
use crate::session::segments::OwnSegments;
use crate::session::sink::Sink;
use crate::session::socket_frame::SHORT_FRAME;
use crate::session::socket_port::SocketPort;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use topology::Rank;

/// Bytes of messages that are put aside for other communicators, at most; more wait in their lanes.
const MOST_ASIDE: usize = 64 << 20;

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
    ports: Vec<Option<PeerPort>>,
    /// What this rank has made known to the processes of its machine.
    segments: Arc<OwnSegments>,
    /// Long messages that were received.
    pub(crate) long_messages: LongMessages,
    /// The peers that are reached through sockets.
    remote: Vec<Rank>,
    aside: BTreeMap<(Rank, u64), VecDeque<Aside>>,
    aside_bytes: usize,
    /// Long messages whose receiver gave up while their fragments came.
    abandoned: BTreeSet<(Rank, u32)>,
    gone: GoneStreams,
}

impl LanePorts {
    /// The ends of a rank, which reaches those of other machines through `sockets`.
    pub(crate) fn new(
        directory: Arc<Directory>,
        rank: Rank,
        sockets: Vec<(Rank, SocketPort)>,
        segments: Arc<OwnSegments>,
    ) -> Self {
        let mut ports: Vec<Option<PeerPort>> = (0..directory.ranks()).map(|_| None).collect();
        let remote = sockets.iter().map(|(peer, _)| *peer).collect();
        for (peer, port) in sockets {
            ports[peer.index()] = Some(PeerPort::Socket(Box::new(port)));
        }
        let (aside, abandoned, gone) = (BTreeMap::new(), BTreeSet::new(), GoneStreams::default());
        let long_messages = LongMessages::default();
        Self { directory, rank, ports, segments, long_messages, remote, aside, aside_bytes: 0, abandoned, gone }
    }

    /// The ends of the lanes to and from a rank; those in memory are formed when they are first used.
    fn port(&mut self, peer: Rank) -> RunResult<&mut PeerPort> {
        let Self { directory, rank, ports, .. } = self;
        let place = &mut ports[peer.index()];
        match place {
            Some(port) => Ok(port),
            None => {
                let port = MemoryPort::new(directory, *rank, peer).map_err(RunError::lane(*rank, peer))?;
                Ok(place.insert(PeerPort::Memory(Box::new(port))))
            }
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
    pub(crate) fn short(&self, peer: Rank) -> usize {
        match self.directory.of(peer) {
            RankLocation::Elsewhere => SHORT_FRAME,
            RankLocation::Thread(_) | RankLocation::Process(..) => SHORT,
        }
    }

    /// Whether a rank is on another machine.
    pub(crate) fn is_elsewhere(&self, peer: Rank) -> bool {
        matches!(self.directory.of(peer), RankLocation::Elsewhere)
    }

    /// Sends what waits for room in sockets; a peer for which not all of it went.
    ///
    /// # Errors
    /// [`RunError::Lane`] if a peer cannot be reached; so do all.
    pub(crate) fn flush(&mut self) -> RunResult<Option<Rank>> {
        let mut waits = None;
        for index in 0..self.remote.len() {
            let peer = self.remote[index];
            let broken = self.broken(peer);
            if let Some(PeerPort::Socket(port)) = &mut self.ports[peer.index()]
                && !port.is_flushed()
                && !(port.flush().map_err(broken)? && port.is_flushed())
            {
                waits = Some(peer);
            }
        }
        Ok(waits)
    }

    /// Sends a short message; false if there is no room for it now.
    #[inline]
    pub(crate) fn send(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<bool> {
        let broken = self.broken(to);
        match self.port(to)? {
            PeerPort::Memory(port) => Ok(port.sender.send(head, data)),
            PeerPort::Socket(port) => port.send(head, data).map_err(broken),
        }
    }

    /// Offers a long message; `None` if there is no room for it now.
    pub(crate) fn offer(&mut self, to: Rank, head: MessageHead, data: &[u8]) -> RunResult<Option<Offer>> {
        let (broken, segment) = (self.broken(to), self.segments.name_of(data));
        match self.port(to)? {
            PeerPort::Memory(port) => Ok(port.sender.offer(head, data, segment)),
            PeerPort::Socket(port) => port.offer(head, data.len()).map_err(broken),
        }
    }

    /// Carries an offer on. See [`LaneSender::advance`](super::lane::LaneSender::advance).
    pub(crate) fn advance(
        &mut self,
        to: Rank,
        offer: &mut Offer,
        head: MessageHead,
        data: &[u8],
    ) -> RunResult<OfferState> {
        let broken = self.broken(to);
        match self.port(to)? {
            PeerPort::Memory(port) => Ok(port.sender.advance(offer, head, data)),
            PeerPort::Socket(port) => port.advance(offer, data).map_err(broken),
        }
    }

    /// Takes an offer back.
    pub(crate) fn revoke(&mut self, to: Rank, offer: &Offer) {
        match &mut self.ports[to.index()] {
            Some(PeerPort::Memory(port)) => port.sender.revoke(offer),
            // If the connection has ended, nobody receives anything.
            Some(PeerPort::Socket(port)) => drop(port.revoke(offer)),
            None => {}
        }
    }

    /// The message at the front of a lane, once all that nobody wants is gone.
    #[inline]
    fn front(&mut self, peer: Rank) -> RunResult<Option<MessageHead>> {
        loop {
            let broken = self.broken(peer);
            let Some(head) = self.port(peer)?.head().map_err(broken)? else { return Ok(None) };
            if self.abandoned.is_empty() && self.gone.is_empty() || !self.discard(peer, &head)? {
                return Ok(Some(head));
            }
        }
    }

    /// Drops a message if nobody wants it; whether it did.
    fn discard(&mut self, peer: Rank, head: &MessageHead) -> RunResult<bool> {
        let is_fragment = head.tag == FRAGMENT;
        let mut is_unwanted = !is_fragment && self.gone.contains(head.communicator);
        if let Some(offer) = head.offer {
            match is_fragment {
                true => is_unwanted = self.abandoned.contains(&(peer, offer)),
                // The slot is used for the next message.
                false => drop(self.abandoned.remove(&(peer, offer))),
            }
            if is_unwanted && !is_fragment {
                self.port(peer)?.refuse(offer);
            }
        }
        if is_unwanted {
            self.port(peer)?.release(head.bytes);
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
        let payload = self.port(peer)?.take_copy(head.bytes);
        let aside = Aside { head, payload };
        self.aside_bytes += aside.bytes();
        self.aside.entry((peer, head.communicator)).or_default().push_back(aside);
        Ok(())
    }

    /// Puts aside what has come and nobody waits for yet; whether there was anything.
    pub(crate) fn relieve(&mut self, relief: PortRelief) -> bool {
        let mut moved = false;
        for index in 0..self.ports.len() {
            if !self.ports[index].as_mut().is_some_and(|port| relief.includes(port)) {
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
        moved
    }

    /// Receives the message that [`Self::next`] found, which is short.
    #[inline]
    pub(crate) fn take_short(&mut self, peer: Rank, head: &MessageHead, sink: &mut Sink<'_>) -> RunResult<()> {
        let aside = self.take_aside(peer, head.communicator);
        if head.bytes as usize != sink.len() {
            return Err(self.fault(peer, sink.len(), MessageFault::Length));
        }
        match aside {
            Some(aside) => sink.put(0, &aside.payload),
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
        let taken = match port {
            PeerPort::Memory(port) => port.take_long(offer, sink, &mut counts),
            PeerPort::Socket(port) => {
                counts.by_socket += 1;
                port.ask(offer, sink.len()).map(|()| false)
            }
        };
        self.long_messages = counts;
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
        if let PeerPort::Socket(port) = self.port(peer)? {
            port.finish(offer);
        }
        Ok(done)
    }

    /// Gives up a long message whose fragments this rank has asked for.
    pub(crate) fn abandon(&mut self, peer: Rank, offer: u32) {
        match &mut self.ports[peer.index()] {
            Some(PeerPort::Memory(port)) => port.receiver.refuse_rest(offer),
            Some(PeerPort::Socket(port)) => port.refuse(offer),
            None => return,
        }
        self.abandoned.insert((peer, offer));
    }

    /// Tells all peers that a communicator is broken.
    pub(crate) fn tell(&mut self, notice: BreachNotice) {
        if let Ok(own) = self.directory.memory(self.rank) {
            own.notices().write(notice);
        }
        for peer in &self.remote {
            if let Some(PeerPort::Socket(port)) = &mut self.ports[peer.index()] {
                port.tell(notice);
            }
        }
    }

    /// What a peer has told of a communicator.
    pub(crate) fn told(&self, peer: Rank, communicator: u64) -> Option<BreachNotice> {
        match &self.ports[peer.index()] {
            Some(PeerPort::Socket(port)) => port.told(communicator),
            _ => self.directory.memory(peer).ok()?.notices().find(communicator),
        }
    }

    /// How many bytes are kept that nobody waits for yet.
    pub(crate) fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Refuses what has come, and what will come, for communicators (or streams of messages) that are gone.
    pub(crate) fn forget(&mut self, streams: impl IntoIterator<Item = u64>) {
        let gone: BTreeSet<u64> = streams.into_iter().collect();
        let keys: Vec<(Rank, u64)> = self.aside.keys().copied().filter(|(_, of)| gone.contains(of)).collect();
        for key in keys {
            for aside in self.aside.remove(&key).into_iter().flatten() {
                self.aside_bytes -= aside.bytes();
                if let (Some(offer), Some(port)) = (aside.head.offer, &mut self.ports[key.0.index()]) {
                    port.refuse(offer);
                }
            }
        }
        gone.into_iter().for_each(|stream| self.gone.add(stream));
    }
}
