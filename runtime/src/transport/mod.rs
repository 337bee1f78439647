//! Lanes of bytes between two ranks.
//!
//! The principal traits are [`Transport`], one way for bytes between ranks, and [`SendLane`] and [`ReceiveLane`], the
//! two ends that it opens. Lanes never block, and any message size works with bounded memory. A reduction reads its
//! operand in the lane ([`ReceiveLane::peek`]). Other payload moves between the caller's buffer and the lane in the way
//! that suits the lane best.
//!
//! Sessions, whose programs come and go, send messages instead of bytes, through a [`MessagePort`] for each peer.
//!
//! A new transport is a folder here with a type that implements [`Transport`] and one that implements [`MessagePort`], and a
//! line for each: in [`Transports::new`] and [`local_port`] if it joins ranks of one machine; if it joins machines, it is a
//! [`Network`], which makes both, and has one line in [`network()`]. The longest short message of its ports is between
//! [`SHORT_EVERYWHERE`] and [`SHORT_AT_MOST`].

pub(crate) mod hosts;
pub(crate) mod interfaces;
pub(crate) mod network;
pub(crate) mod notice;
pub(crate) mod port;
pub(crate) mod shared;
pub(crate) mod sink;
pub(crate) mod tcp;

use crate::error::RunResult;
use crate::memory::heap::Heap;
use crate::memory::poller::Poller;
use crate::memory::segment::Segment;
use network::Network;
use port::MessagePort;
use program::{Connection, ConnectionId};
use shared::SharedMemoryTransport;
use shared::arena::Arena;
use shared::port::MemoryPort;
use shared::port::rank_memory::{ProcessPlace, RankMemory};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use tcp::{Secret, TcpNetwork};
use topology::Rank;

/// A way for bytes between ranks, for one rank and one task. It knows where peers find the rank, which memory its lanes
/// reach, and how the rank learns that a lane is ready.
pub(crate) trait Transport {
    /// Whether it can open this connection.
    fn joins(&self, connection: &Connection) -> bool;

    /// Publishes where peers of this machine find this rank. All ranks call this before a barrier, and [`Self::attach`]
    /// after it. Ranks of other machines have learned it before the transport existed ([`network::NetworkEndpoint`]).
    ///
    /// # Errors
    /// If the operating system does not identify the memory.
    fn publish(&self) -> RunResult<()> {
        Ok(())
    }

    /// Prepares to read the messages of these ranks in place, as far as possible.
    fn attach(&mut self, _senders: &BTreeSet<Rank>) {}

    /// The memory that its lanes reach.
    fn memory(&self) -> MemoryKind;

    /// How the rank learns that a lane is ready.
    fn readiness(&self) -> Readiness<'_>;

    /// Takes the sender's end of a connection.
    ///
    /// # Errors
    /// If the transport has no such end, or it was already taken.
    fn sender(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn SendLane>>;

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    fn receiver(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn ReceiveLane>>;
}

/// The memory that a lane or a port reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryKind {
    /// The receiver can map the sender's buffers and read a message in place.
    Mapped,
    /// Bytes are copied from machine to machine; messages share network interfaces.
    Network,
}

/// How a rank learns that one of its lanes is ready.
pub(crate) enum Readiness<'a> {
    /// The peer rings the rank's bell.
    Bell,
    /// The kernel tells a poller, which also wakes up for the bell. Such a lane may keep sent bytes until it is
    /// flushed.
    Poll(&'a Poller),
}

/// A request to open one end of a lane.
#[derive(Clone, Copy)]
pub(crate) struct LaneRequest<'a> {
    /// The number of the connection in its program.
    pub(crate) id: ConnectionId,
    /// How many connections the programs before this one have.
    pub(crate) first: u32,
    pub(crate) connection: &'a Connection,
    /// The program's part of the shared memory.
    pub(crate) arena: &'a Arena,
    /// Whether the sender may wait while its receiver reads a message in place.
    pub(crate) direct: bool,
    /// How many bytes the lane must accept even if its receiver takes none.
    pub(crate) backlog: usize,
    /// Present if messages between computers keep the order of a plan.
    pub(crate) paced: Option<Paced>,
}

/// For a lane whose messages keep the order of a plan.
#[derive(Clone, Copy)]
pub(crate) struct Paced {
    /// The rate of the lane in bytes per second, if it is limited.
    pub(crate) rate: Option<f64>,
}

/// The transports of one rank.
pub(crate) struct Transports<'a> {
    /// The first transport that joins two ranks is used.
    all: Vec<Box<dyn Transport + 'a>>,
}

impl<'a> Transports<'a> {
    /// The transports of `rank`, whose buffers are in `heap`. `remote` is needed if there are ranks on other machines.
    pub(crate) fn new(segment: &'a Segment, rank: Rank, heap: Heap, remote: Option<Box<dyn Transport>>) -> Self {
        let mut all: Vec<Box<dyn Transport + 'a>> = Vec::new();
        all.extend(remote.map(|remote| remote as Box<dyn Transport + 'a>));
        all.push(Box::new(SharedMemoryTransport::new(segment, rank, heap)));
        Self { all }
    }

    /// See [`Transport::publish`].
    pub(crate) fn publish(&self) -> RunResult<()> {
        self.all.iter().try_for_each(|transport| transport.publish())
    }

    /// See [`Transport::attach`]; this rank reads the messages of `connections` in place.
    pub(crate) fn attach(&mut self, connections: &[Connection]) {
        for index in 0..self.all.len() {
            let is_its = |connection: &&Connection| self.index_of(connection) == Some(index);
            let senders = connections.iter().filter(is_its).map(|connection| connection.from).collect();
            self.all[index].attach(&senders);
        }
    }

    /// The memory that the lane of a connection reaches.
    pub(crate) fn memory(&self, connection: &Connection) -> MemoryKind {
        self.index_of(connection).map_or(MemoryKind::Mapped, |index| self.all[index].memory())
    }

    /// The poller on which the rank sleeps; `None` if it sleeps on its bell.
    pub(crate) fn poller(&self) -> Option<&Poller> {
        self.all.iter().find_map(|transport| match transport.readiness() {
            Readiness::Bell => None,
            Readiness::Poll(poller) => Some(poller),
        })
    }

    /// See [`Transport::sender`].
    pub(crate) fn sender(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn SendLane>> {
        self.of(lane.connection)?.sender(lane)
    }

    /// See [`Transport::receiver`].
    pub(crate) fn receiver(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn ReceiveLane>> {
        self.of(lane.connection)?.receiver(lane)
    }

    fn index_of(&self, connection: &Connection) -> Option<usize> {
        self.all.iter().position(|transport| transport.joins(connection))
    }

    fn of(&mut self, connection: &Connection) -> io::Result<&mut (dyn Transport + 'a)> {
        let index = self.index_of(connection).ok_or_else(|| io::Error::other("no transport joins these ranks"))?;
        Ok(&mut *self.all[index])
    }
}

/// The way between machines, for a rank that has these interfaces. If `spare`, peers do without an interface, other than the
/// first, that does not answer.
pub(crate) fn network(interfaces: Vec<IpAddr>, spare: bool, secret: Secret) -> Box<dyn Network> {
    Box::new(TcpNetwork::new(interfaces, spare, secret))
}

/// The port of `own` to a `peer` of its machine, which is a thread of this process, or in this other `process`.
pub(crate) fn local_port(
    own: (Rank, &RankMemory),
    peer: (Rank, &RankMemory),
    process: Option<&ProcessPlace>,
) -> Box<dyn MessagePort> {
    Box::new(MemoryPort::new(own, peer, process))
}

/// A message of up to so many bytes is short at every [`MessagePort`].
pub(crate) const SHORT_EVERYWHERE: usize = shared::port::lane_place::SHORTEST_LIMIT;
/// A message of more bytes is long at every [`MessagePort`].
pub(crate) const SHORT_AT_MOST: usize = tcp::SHORT_FRAME;
const _: () = assert!(SHORT_EVERYWHERE <= SHORT_AT_MOST, "a message is short somewhere if it is short everywhere");

/// The sender's end of a connection.
pub(crate) trait SendLane: Send {
    /// The room that can be written now; empty if there is none.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn reserve(&mut self) -> io::Result<&mut [u8]>;

    /// Hands the first `bytes` bytes of the room that was just written to the receiver.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn commit(&mut self, bytes: usize) -> io::Result<()>;

    /// Sends as much of `data` as possible. Returns how many bytes the caller need not keep any more. The lane may let
    /// its receiver read the rest in place. So the caller leaves the rest unchanged, and calls again with it and with
    /// nothing else, until all is sent.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = self.reserve()?;
        let take = room.len().min(data.len());
        room[..take].copy_from_slice(&data[..take]);
        if take > 0 {
            self.commit(take)?;
        }
        Ok(take)
    }

    /// Lets the receiver read `data` in place, after all earlier offers. Returns whether `data` was offered. Later
    /// calls of [`Self::send`] return how much of it was read.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn offer(&mut self, _data: &[u8]) -> io::Result<bool> {
        Ok(false)
    }

    /// Sends what the lane still keeps. Returns whether nothing is left.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

/// The receiver's end of a connection.
pub(crate) trait ReceiveLane: Send {
    /// The bytes that have arrived; empty if there are none. The caller needs at most `most` bytes.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn peek(&mut self, most: usize) -> io::Result<&[u8]>;

    /// Gives the room of the first `bytes` bytes that arrived back to the sender.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn release(&mut self, bytes: usize) -> io::Result<()>;

    /// Gives the sender credit for `bytes` more bytes, if the lane works with credit.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn admit(&mut self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    /// Receives bytes that have arrived into the beginning of `into`. Returns how many.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let found = self.peek(into.len())?;
        let take = found.len().min(into.len());
        into[..take].copy_from_slice(&found[..take]);
        if take > 0 {
            self.release(take)?;
        }
        Ok(take)
    }
}
