//! What the interpreter needs of a lane of bytes between two ranks.
//!
//! The principal traits are [`SendLane`] and [`ReceiveLane`], and [`Transport`], which opens them. Lanes lend memory instead of copying (a reduction
//! writes straight into the lane, and reads straight out of it), never block, and make any message size work
//! with bounded memory. A transport is one file that implements all three and rings the peer's doorbell, and one line
//! in the executor, which picks it.

use schedule::program::{Connection, ConnectionId};
use std::io;

/// How the ranks of a job are connected.
pub(crate) trait Transport {
    /// Takes the sender's end of a connection.
    ///
    /// # Errors
    /// If it cannot be had, or not again.
    fn sender(&self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn SendLane>>;

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    fn receiver(&self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn ReceiveLane>>;
}

/// The sender's end of a connection.
pub trait SendLane: Send {
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
}

/// The receiver's end of a connection.
pub trait ReceiveLane: Send {
    /// Bytes that have arrived; empty if there are none.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn peek(&mut self) -> io::Result<&[u8]>;

    /// Gives the first `bytes` of what arrived back to the sender as room.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn release(&mut self, bytes: usize) -> io::Result<()>;
}
