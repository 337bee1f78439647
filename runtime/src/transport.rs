//! What the interpreter needs of a lane of bytes between two ranks.
//!
//! The principal traits are [`SendLane`] and [`ReceiveLane`]. Both lend memory instead of copying (a reduction
//! writes straight into the lane, and reads straight out of it), never block, and make any message size work
//! with bounded memory. A transport is one file that implements both and rings the peer's doorbell.

use std::io;

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
