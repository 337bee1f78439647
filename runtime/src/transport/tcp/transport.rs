//! TCP as a transport of one rank.
//!
//! The principal type is [`TcpTransport`].

use super::Streams;
use crate::memory::poller::Poller;
use crate::transport::hosts::Hosts;
use crate::transport::{LaneRequest, MemoryKind, Readiness, ReceiveLane, SendLane, Transport};
use program::{Connection, ConnectionId};
use std::io;

/// One rank's sockets, and the poller on which it sleeps. Addresses are exchanged and sockets connected before
/// ([`Meeting`](super::Meeting)).
pub(crate) struct TcpTransport {
    hosts: Hosts,
    streams: Streams,
    poller: Poller,
}

impl TcpTransport {
    /// A transport between ranks of different `hosts`.
    ///
    /// # Errors
    /// If the operating system provides no poller.
    pub(crate) fn new(hosts: Hosts, streams: Streams) -> io::Result<Self> {
        Ok(Self { hosts, streams, poller: Poller::new()? })
    }
}

impl Transport for TcpTransport {
    fn joins(&self, connection: &Connection) -> bool {
        self.hosts.apart(connection.from, connection.to)
    }

    fn memory(&self) -> MemoryKind {
        MemoryKind::Network
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Poll(&self.poller)
    }

    fn sender(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn SendLane>> {
        self.streams.sender(ConnectionId(lane.first + lane.id.0), lane.backlog, lane.paced, &self.poller)
    }

    fn receiver(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn ReceiveLane>> {
        self.streams.receiver(ConnectionId(lane.first + lane.id.0), &self.poller)
    }
}
