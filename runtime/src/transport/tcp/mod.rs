//! Lanes between computers: one TCP connection per connection of a program, or one for each interface of the receiver.
//!
//! The principal type is [`Streams`]: the sockets of one rank for its programs. Each lane has its own TCP connection,
//! so TCP's flow control is enough: no lane waits for another, no length is parsed, and payload moves between socket
//! and buffer without a copy in between.
//!
//! * [`meeting`] forms the connections. No socket listens before or after.
//! * [`handshake`] lets the two ends prove to each other that they know the job's [`secret`], before they read anything
//!   else.
//! * [`lane`] moves bytes without blocking, over one socket or over one for each interface ([`stripes`]). If messages
//!   keep the order of a plan, [`credit`] says how much may be sent. [`options`] then keep a socket from accepting
//!   more, or sending faster, than the plan assumes.
//! * [`network`] lets a rank tell where it listens, and makes of its sockets one [`transport`], or the [`port`]s of a session.
//!   A rank with sockets sleeps in a [`Poller`] until a socket, or a rank of its own computer, wakes it.
//! * [`port`] carries the messages of a session over one socket for each peer, as [`frame`]s. [`offers`] says which long
//!   messages may be sent.
//! * [`handles`] keep sockets open until it is known which ranks were cut off, and tell which connections have ended.

mod credit;
mod frame;
mod handles;
mod handshake;
pub(crate) mod lane;
mod meeting;
mod network;
mod offers;
#[expect(unsafe_code, reason = "sets options of sockets that have no safe form")]
mod options;
pub(crate) mod port;
mod secret;
mod stripes;
mod transport;

pub(crate) use frame::SHORT_FRAME;
pub(crate) use handles::raise_open_files;
pub(crate) use handshake::{Claim, Gate, Proven, introduce};
pub(crate) use meeting::{ListenAddresses, Meeting, UnreachableAddresses, listen};
pub(crate) use network::TcpNetwork;
pub use secret::Secret;
pub(crate) use secret::nonce;

use crate::memory::poller::Poller;
use crate::memory::socket::Socket;
use crate::transport::{Paced, ReceiveLane, SendLane};
use handles::Handles;
use lane::{TcpReceiver, TcpSender};
use options::suit_session;
use program::{Connection, ConnectionId};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use topology::Rank;

/// How many unsent bytes a socket accepts if messages keep the order of a plan.
const UNSENT: u32 = 32 << 10;

/// The longest time of a packet on the wire; the kernel cuts it into frames. A paced socket makes packets of 1 ms.
const PACKET_SECONDS: f64 = 0.9e-3;

/// The least and the most bytes of a packet. The kernel makes no packet of more than 64 KiB with headers.
const PACKETS: [usize; 2] = [4 << 10, 60 << 10];

/// The sockets of each connection.
type Sockets = BTreeMap<ConnectionId, Vec<TcpStream>>;

/// The sockets of one rank, connected and authenticated.
#[derive(Default)]
pub(crate) struct Streams {
    /// One socket for each interface of the receiver.
    outgoing: Sockets,
    incoming: Sockets,
}

impl Streams {
    /// Second handles of all sockets. `connections` are the connections that the sockets belong to.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub(crate) fn handles(&self, connections: &[Connection]) -> io::Result<Handles> {
        let to = self.outgoing.iter().map(|(id, sockets)| (connections[id.index()].to, sockets));
        let from = self.incoming.iter().map(|(id, sockets)| (connections[id.index()].from, sockets));
        let each = to.chain(from).flat_map(|(peer, sockets)| sockets.iter().map(move |socket| (peer, socket)));
        each.map(|(peer, socket)| Ok((peer, socket.try_clone()?))).collect::<io::Result<Vec<_>>>().map(Handles::new)
    }

    /// The one socket of each connection, with the other end's rank. `connections` are the connections that the sockets
    /// belong to.
    pub(crate) fn into_sockets(self, connections: &[Connection]) -> Vec<(Rank, TcpStream)> {
        let to = self.outgoing.into_iter().map(|(id, sockets)| (connections[id.index()].to, sockets));
        let from = self.incoming.into_iter().map(|(id, sockets)| (connections[id.index()].from, sockets));
        to.chain(from).filter_map(|(peer, sockets)| Some((peer, sockets.into_iter().next()?))).collect()
    }

    /// Takes the sender's end of a connection. It buffers at least `backlog` bytes that the receiver does not take.
    /// With `turns`, it waits for the receiver's credit.
    ///
    /// # Errors
    /// If there is no such socket, or it was already taken.
    pub(crate) fn sender(
        &mut self,
        id: ConnectionId,
        backlog: usize,
        turns: Option<Paced>,
        poller: &Poller,
    ) -> io::Result<Box<dyn SendLane>> {
        let mut sockets = watched(&mut self.outgoing, id, poller)?;
        sockets.iter().try_for_each(|socket| options::suit_computer(socket.stream()))?;
        let Some(Paced { rate }) = turns else { return Ok(Box::new(TcpSender::new(sockets, backlog))) };
        // Of several sockets, each sends as much as it can.
        if let [socket] = &mut sockets[..] {
            options::limit_unsent(socket.stream(), UNSENT)?;
            socket.write_eagerly();
            if let Some(rate) = rate {
                options::pace(socket.stream(), rate)?;
                options::heed_losses(socket.stream())?;
            }
        }
        let sender = TcpSender::new(sockets, backlog).with_credit();
        Ok(Box::new(match rate {
            Some(rate) => sender.in_packets(((rate * PACKET_SECONDS) as usize).clamp(PACKETS[0], PACKETS[1])),
            None => sender,
        }))
    }

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    pub(crate) fn receiver(&mut self, id: ConnectionId, poller: &Poller) -> io::Result<Box<dyn ReceiveLane>> {
        Ok(Box::new(TcpReceiver::new(watched(&mut self.incoming, id, poller)?)))
    }
}

/// Takes the sockets of a connection, and lets `poller` watch them.
fn watched(all: &mut Sockets, id: ConnectionId, poller: &Poller) -> io::Result<Vec<Socket>> {
    let missing = || io::Error::other("no socket was connected for it, or it is in use");
    all.remove(&id).ok_or_else(missing)?.into_iter().map(|stream| poller.watch(stream)).collect()
}
