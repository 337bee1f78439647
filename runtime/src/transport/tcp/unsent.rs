//! How many bytes of a session wait in a socket.
//!
//! The principal type is [`UnsentLimit`]. A rank's requests for messages travel on the connection on which it sends its own
//! messages. They wait behind the rest of a fragment, and behind what lies in the socket. So between computers both are as short
//! as they can be while the network always has something to send: about what it sends in half a millisecond. A rank that is kept
//! from its core for longer may leave the network idle.

use super::frame::FRAGMENT_BYTES;
use super::options::{delivery_rate, heed_losses, is_local, limit_unsent};
use std::ffi::c_uint;
use std::io;
use std::net::TcpStream;

/// Bytes that may wait, at least and at most.
const WAITING: [usize; 2] = [32 << 10, 1 << 20];
/// How long sending them takes, in seconds.
const WAITING_SECONDS: f64 = 0.5e-3;
/// The rate is looked up after so many bytes.
const LOOK: usize = 1 << 20;

/// The limit of one socket.
pub(super) struct UnsentLimit {
    /// Bytes that the socket accepts before they are sent; `None` where both ends are on one computer, and nothing waits long.
    bytes: Option<usize>,
    /// Bytes until the next look at the rate.
    until_look: usize,
}

impl UnsentLimit {
    /// Prepares a socket of a session.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn of(socket: &TcpStream) -> io::Result<Self> {
        let is_local = is_local(socket);
        if is_local {
            heed_losses(socket)?;
        } else {
            limit_unsent(socket, WAITING[0] as c_uint)?;
        }
        Ok(Self { bytes: (!is_local).then_some(WAITING[0]), until_look: LOOK })
    }

    /// How many of `left` bytes of a message the next fragment has.
    pub(super) fn fragment(&mut self, socket: &TcpStream, left: usize) -> usize {
        let Some(bytes) = &mut self.bytes else { return left.min(FRAGMENT_BYTES) };
        if self.until_look == 0 {
            self.until_look = LOOK;
            let fitting = waiting_at(delivery_rate(socket));
            // If the kernel refuses, the limit stays.
            if limit_unsent(socket, fitting as c_uint).is_ok() {
                *bytes = fitting;
            }
        }
        let fragment = left.min(*bytes).min(FRAGMENT_BYTES);
        self.until_look = self.until_look.saturating_sub(fragment);
        fragment
    }
}

/// How many bytes may wait at a rate in bytes per second.
fn waiting_at(rate: f64) -> usize {
    ((rate * WAITING_SECONDS) as usize).clamp(WAITING[0], WAITING[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::lane::tests::pair;
    use std::io::{Read, Write};

    #[test]
    fn what_waits_takes_half_a_millisecond_within_limits() {
        for (rate, bytes) in [(0.0, 32 << 10), (25e6, 32 << 10), (125e6, 62_500), (1.25e9, 625_000), (50e9, 1 << 20)] {
            assert_eq!(waiting_at(rate), bytes, "{rate} bytes per second");
        }
    }

    #[test]
    fn fragments_between_computers_are_short_and_follow_the_rate() {
        let (mut near, mut far) = pair();
        let mut local = UnsentLimit::of(&near).unwrap();
        assert_eq!(local.fragment(&near, 10 << 20), FRAGMENT_BYTES);
        let mut limit = UnsentLimit { bytes: Some(WAITING[0]), until_look: LOOK };
        let mut sent = 0;
        while sent < LOOK {
            sent += limit.fragment(&near, 10 << 20);
        }
        assert_eq!((sent, limit.bytes), (LOOK, Some(WAITING[0])));
        near.set_nonblocking(false).unwrap();
        far.set_nonblocking(false).unwrap();
        near.write_all(&[0; 4096]).unwrap();
        far.read_exact(&mut [0; 4096]).unwrap();
        assert_eq!(limit.fragment(&near, 100), 100);
        assert_eq!(limit.bytes, Some(waiting_at(delivery_rate(&near))));
    }
}
