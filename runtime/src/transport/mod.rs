//! What the interpreter needs of a lane of bytes between two ranks.
//!
//! The principal traits are [`SendLane`] and [`ReceiveLane`], and [`Transport`], which opens them. Lanes never block,
//! and make any message size work with bounded memory. Payload takes the shortest way that a transport has: a reduction
//! reads straight out of the lane ([`ReceiveLane::peek`]), other payload moves between the caller's buffer and the lane
//! as the lane likes best. A transport is one file or folder that implements all three and wakes the peer, and its line
//! in the executor.

pub(crate) mod interfaces;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
pub(crate) mod ring;
pub(crate) mod tcp;
pub(crate) mod wiring;

use program::{Connection, ConnectionId};
use std::io;

/// How the ranks of a job are connected.
pub(crate) trait Transport {
    /// Takes the sender's end of a connection.
    ///
    /// # Errors
    /// If it cannot be had, or not again.
    fn sender(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn SendLane>>;

    /// Takes the receiver's end of a connection.
    ///
    /// # Errors
    /// As for [`Self::sender`].
    fn receiver(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn ReceiveLane>>;
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
