//! Lanes between computers: one TCP connection per connection of a program, or one for each interface of the receiver.
//!
//! The principal type is [`Streams`]: the sockets of one rank for one program. A connection of its own for each lane
//! keeps the promise of a lane without a second flow control on top of TCP's: no lane waits for another, no length is
//! ever parsed, and payload moves between socket and buffer without a copy in between.
//!
//! * [`meeting`] forms the connections; nothing listens before or after.
//! * [`handshake`] lets the two ends prove to each other that they know the job's [`secret`], before anything else is read.
//! * [`lane`] moves bytes without ever blocking, over as many sockets as there are ways ([`stripes`]).
//! * [`poller`] lets a rank sleep until one of its sockets, or a rank of its own computer, has something for it.

mod handshake;
mod lane;
mod meeting;
mod poller;
mod secret;
mod stripes;

pub(crate) use handshake::{Claim, Gate, Proven, introduce};
pub(crate) use meeting::{Closed, Doors, Meeting, listen};
pub(crate) use poller::{Pipe, Poller};
pub use secret::Secret;
pub(crate) use secret::nonce;

use crate::transport::{ReceiveLane, SendLane};
use lane::{TcpReceiver, TcpSender};
use schedule::program::ConnectionId;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;

/// The sockets of each connection.
type Sockets = BTreeMap<ConnectionId, Vec<TcpStream>>;

/// The sockets of one rank, connected and authenticated.
#[derive(Default)]
pub(crate) struct Streams {
    /// One for each interface of the receiver's.
    outgoing: Sockets,
    incoming: Sockets,
}

impl Streams {
    /// Second handles of all sockets: while they live, no peer sees a connection end.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub(crate) fn handles(&self) -> std::io::Result<Vec<TcpStream>> {
        self.outgoing.values().chain(self.incoming.values()).flatten().map(TcpStream::try_clone).collect()
    }

    /// Takes the sender's end of a connection. It buffers at least `backlog` bytes that the receiver does not take.
    ///
    /// # Errors
    /// If there is no such socket, or it was taken.
    pub(crate) fn sender(
        &mut self,
        id: ConnectionId,
        backlog: usize,
        poller: &Poller,
    ) -> io::Result<Box<dyn SendLane>> {
        let sockets = self.outgoing.remove(&id).ok_or_else(missing)?;
        sockets.iter().try_for_each(|socket| poller.watch(socket))?;
        Ok(Box::new(TcpSender::new(sockets, backlog)))
    }

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    pub(crate) fn receiver(&mut self, id: ConnectionId, poller: &Poller) -> io::Result<Box<dyn ReceiveLane>> {
        let sockets = self.incoming.remove(&id).ok_or_else(missing)?;
        sockets.iter().try_for_each(|socket| poller.watch(socket))?;
        Ok(Box::new(TcpReceiver::new(sockets)))
    }
}

fn missing() -> io::Error {
    io::Error::other("no socket was connected for it, or it is in use")
}
