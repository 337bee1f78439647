//! Credit: how many bytes the receiver of a lane lets its sender send.
//!
//! The principal types are [`Credit`], the sender's side, and [`Admitting`], the receiver's side. A receiver adds up
//! the bytes of all messages that it has admitted, and sends this sum from time to time, backwards over the first
//! socket of the lane. A sender may always send [`AHEAD`] bytes more than its credit, so small messages never wait.

use crate::memory::socket::Socket;
use rustix::net::SendFlags;
use std::io::{self, ErrorKind, IoSlice};

/// How many bytes a sender may be ahead of its credit. More hide a longer round trip; fewer keep the order better.
const AHEAD: u64 = 64 << 10;

/// What a sender may send.
#[derive(Default)]
pub(super) struct Credit {
    admitted: u64,
    sent: u64,
    /// The first bytes of a number that has not arrived completely.
    partial: Vec<u8>,
}

impl Credit {
    /// How many of `wanted` bytes may be sent now.
    pub(super) fn most(&mut self, socket: &Socket, wanted: usize) -> io::Result<usize> {
        if self.free() < wanted as u64 {
            self.listen(socket)?;
        }
        Ok(self.free().min(wanted as u64) as usize)
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    fn free(&self) -> u64 {
        (self.admitted + AHEAD).saturating_sub(self.sent)
    }

    fn listen(&mut self, socket: &Socket) -> io::Result<()> {
        let mut words = [0; 512];
        while let Some(bytes) = socket.read(&mut words)? {
            if bytes == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the peer closed the connection"));
            }
            self.partial.extend(&words[..bytes]);
        }
        let (numbers, _) = self.partial.as_chunks::<8>();
        // A later number includes the earlier ones.
        if let Some(&last) = numbers.last() {
            self.admitted = self.admitted.max(u64::from_le_bytes(last));
            self.partial.drain(..8 * numbers.len());
        }
        Ok(())
    }
}

/// What a receiver has admitted.
#[derive(Default)]
pub(super) struct Admitting {
    admitted: u64,
    told: u64,
    /// Bytes that the kernel has not accepted.
    unsent: Vec<u8>,
}

impl Admitting {
    /// Admits `bytes` more bytes.
    pub(super) fn admit(&mut self, socket: &Socket, bytes: usize) -> io::Result<()> {
        self.admitted += bytes as u64;
        if self.admitted - self.told >= AHEAD / 2 {
            self.told = self.admitted;
            self.unsent.extend(self.told.to_le_bytes());
        }
        self.flush(socket)
    }

    /// Sends what the kernel has not accepted so far.
    pub(super) fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let parts = [IoSlice::new(&self.unsent)];
            let Some(taken) = socket.send(&parts, SendFlags::empty())? else { break };
            self.unsent.drain(..taken);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> [Socket; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        [near, far].map(Socket::from)
    }

    #[test]
    fn a_sender_is_a_little_ahead_of_its_credit() {
        let [near, far] = pair();
        let (mut credit, mut admitting) = (Credit::default(), Admitting::default());
        let ahead = AHEAD as usize;
        assert_eq!(credit.most(&near, 2 * ahead).unwrap(), ahead);
        credit.sent(ahead);
        assert_eq!(credit.most(&near, 1).unwrap(), 0);
        // Too few bytes for a message to the sender, then enough.
        admitting.admit(&far, ahead / 2 - 1).unwrap();
        assert_eq!(credit.most(&near, 1).unwrap(), 0);
        admitting.admit(&far, 1).unwrap();
        admitting.admit(&far, ahead).unwrap();
        // The numbers may take a moment to arrive.
        assert!((0..1_000_000).any(|_| credit.most(&near, 2 * ahead).unwrap() == 3 * ahead / 2));
        drop(far);
        assert!((0..1_000_000).any(|_| credit.most(&near, 2 * ahead).is_err()));
    }
}
