//! Lanes of bytes between two ranks.
//!
//! The principal traits are [`Transport`], one way for bytes between ranks, and [`SendLane`] and [`ReceiveLane`], the ends
//! that it opens. Lanes never block, and make any message size work with bounded memory. Payload takes the shortest way that
//! a transport has: a reduction reads straight out of the lane ([`ReceiveLane::peek`]), other payload moves between the
//! caller's buffer and the lane as the lane likes best.
//!
//! A new transport is a folder here with a type that implements [`Transport`], and its line in [`Transports::new`].

pub(crate) mod hosts;
pub(crate) mod interfaces;
pub(crate) mod shared;
pub(crate) mod tcp;

use crate::error::RunResult;
use crate::memory::heap::Heap;
use crate::memory::poller::Poller;
use crate::memory::segment::Segment;
use program::{Connection, ConnectionId};
use shared::SharedMemory;
use shared::arena::Arena;
use std::collections::BTreeSet;
use std::io;
use tcp::Tcp;
use topology::Rank;

/// One way for bytes between ranks, as one rank has it while a task lasts. It owns where the rank is found, which memory
/// its lanes reach, and how the rank hears that a lane is ready.
pub(crate) trait Transport {
    /// Whether it can open this connection.
    fn joins(&self, connection: &Connection) -> bool;

    /// Says where peers of this machine find this rank. All ranks do so before they meet, and [`Self::attach`] after that.
    /// Where ranks of other machines are found was told by the control plane before there is a transport.
    ///
    /// # Errors
    /// If the operating system does not say.
    fn publish(&self) -> RunResult<()>;

    /// Prepares to read the messages of these ranks where they lie, as far as that is possible.
    fn attach(&mut self, senders: &BTreeSet<Rank>);

    /// Which memory its lanes reach.
    fn memory(&self) -> MemoryKind;

    /// How the rank hears that a lane is ready.
    fn readiness(&self) -> Readiness<'_>;

    /// Takes the sender's end of a connection.
    ///
    /// # Errors
    /// If it cannot be had, or not again.
    fn sender(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn SendLane>>;

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    fn receiver(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn ReceiveLane>>;
}

/// Which memory a lane reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryKind {
    /// The receiver can map the sender's buffers and read a message where it lies.
    Mapped,
    /// Bytes are copied out of one machine and into another; messages share network interfaces.
    Network,
}

/// How a rank hears that one of its lanes is ready.
pub(crate) enum Readiness<'a> {
    /// The peer rings the rank's bell.
    Bell,
    /// The kernel tells a poller, which hears the bell as well. Such a lane may keep what was sent until it is flushed.
    Poll(&'a Poller),
}

/// What a transport is asked to open.
#[derive(Clone, Copy)]
pub(crate) struct LaneRequest<'a> {
    /// Which connection of its program.
    pub(crate) id: ConnectionId,
    /// How many connections of other programs come before.
    pub(crate) first: u32,
    pub(crate) connection: &'a Connection,
    /// The program's part of the shared memory.
    pub(crate) arena: &'a Arena,
    /// Whether the sender may wait until its receiver has read a message where it lies.
    pub(crate) direct: bool,
    /// The bytes that the lane must take though its receiver does not.
    pub(crate) backlog: usize,
    /// Present where messages between computers have turns.
    pub(crate) paced: Option<Paced>,
}

/// What the sender of a lane knows where messages have turns.
#[derive(Clone, Copy)]
pub(crate) struct Paced {
    /// How fast it is to be, in bytes per second, if that matters.
    pub(crate) rate: Option<f64>,
}

/// The transports of one rank.
pub(crate) struct Transports<'a> {
    /// The first that joins two ranks is used.
    all: Vec<Box<dyn Transport + 'a>>,
}

impl<'a> Transports<'a> {
    /// Those of `rank`, whose buffers are in `heap`; `tcp` if there are ranks on other machines.
    pub(crate) fn new(segment: &'a Segment, rank: Rank, heap: Heap, tcp: Option<Tcp>) -> Self {
        let mut all: Vec<Box<dyn Transport + 'a>> = Vec::new();
        all.extend(tcp.map(|tcp| Box::new(tcp) as Box<dyn Transport>));
        all.push(Box::new(SharedMemory::new(segment, rank, heap)));
        Self { all }
    }

    /// See [`Transport::publish`].
    pub(crate) fn publish(&self) -> RunResult<()> {
        self.all.iter().try_for_each(|transport| transport.publish())
    }

    /// See [`Transport::attach`]; `connections` are those whose messages this rank reads where they lie.
    pub(crate) fn attach(&mut self, connections: &[Connection]) {
        for index in 0..self.all.len() {
            let is_its = |connection: &&Connection| self.index_of(connection) == Some(index);
            let senders = connections.iter().filter(is_its).map(|connection| connection.from).collect();
            self.all[index].attach(&senders);
        }
    }

    /// Which memory the lane of a connection reaches.
    pub(crate) fn memory(&self, connection: &Connection) -> MemoryKind {
        self.index_of(connection).map_or(MemoryKind::Mapped, |index| self.all[index].memory())
    }

    /// What the rank sleeps on, if not on its bell.
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

/// The sender's end of a connection.
pub(crate) trait SendLane: Send {
    /// Room for bytes that can be written now; empty if there is none.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn reserve(&mut self) -> io::Result<&mut [u8]>;

    /// Hands the first `bytes` of the room just written to the receiver.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn commit(&mut self, bytes: usize) -> io::Result<()>;

    /// Sends what it can of `data`; how many bytes need not be kept any more. A lane may let its receiver read the rest
    /// where it is: the caller leaves it unchanged, and calls again with it, and with nothing else, until all is sent.
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

    /// Lets the receiver read `data` where it is, once it has read all that was offered before; whether it was offered.
    /// [`Self::send`] says later how much of it has been read.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn offer(&mut self, _data: &[u8]) -> io::Result<bool> {
        Ok(false)
    }

    /// Hands on what the lane still keeps; whether all of it went.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

/// The receiver's end of a connection.
pub(crate) trait ReceiveLane: Send {
    /// Bytes that have arrived, of which `most` are of interest; empty if there are none.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn peek(&mut self, most: usize) -> io::Result<&[u8]>;

    /// Gives the first `bytes` of what arrived back to the sender as room.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn release(&mut self, bytes: usize) -> io::Result<()>;

    /// Lets the sender send so many bytes more, where it waits for that.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn admit(&mut self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    /// Receives what has arrived into the beginning of `into`; how many bytes.
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
