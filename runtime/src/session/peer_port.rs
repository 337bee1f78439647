//! A rank's ends of the lanes to and from one peer, wherever the peer is.
//!
//! The principal type is [`PeerPort`].

use crate::session::lane::{FIRST, MessageHead, SHORT};
use crate::session::memory_port::MemoryPort;
use crate::session::sink::Sink;
use crate::session::socket_port::SocketPort;
use std::io;

/// The ends of the lanes to and from one peer.
pub(crate) enum PeerPort {
    Memory(Box<MemoryPort>),
    Socket(Box<SocketPort>),
}

/// From which lanes messages are put aside that nobody waits for yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PortRelief {
    /// From those that may be full: the call that this rank waits for may come after one for which the peer finds no room.
    Full,
    /// From those, and from sockets: behind the message, a peer may ask for what this rank has offered.
    Sockets,
    /// From all: while this rank waits for room in a lane, a peer may wait for room in one to this rank.
    All,
}

impl PortRelief {
    pub(crate) fn includes(self, port: &mut PeerPort) -> bool {
        match port {
            PeerPort::Memory(port) => self == Self::All || port.receiver.may_be_full(),
            PeerPort::Socket(port) => self >= Self::Sockets || port.may_be_full(),
        }
    }
}

impl PeerPort {
    #[inline]
    pub(crate) fn head(&mut self) -> io::Result<Option<MessageHead>> {
        match self {
            Self::Memory(port) => Ok(port.receiver.head()),
            Self::Socket(port) => port.head(),
        }
    }

    /// Ends the message at the front, or a part of a fragment.
    #[inline]
    pub(crate) fn release(&mut self, bytes: u32) {
        match self {
            Self::Memory(port) => port.receiver.release(bytes),
            Self::Socket(port) => port.release(bytes),
        }
    }

    /// Receives the message at the front, or a part of a fragment, as the part of the sink that begins at `at`.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u32, at: usize, sink: &mut Sink<'_>) {
        let length = bytes as usize;
        match self {
            Self::Socket(port) => sink.put(at, port.payload(bytes)),
            Self::Memory(port) if length <= FIRST => sink.put(at, port.receiver.beginning(bytes)),
            Self::Memory(port) => match sink.plain() {
                Some(into) => port.receiver.copy(&mut into[at..at + length]),
                None => {
                    let MemoryPort { receiver, space, .. } = &mut **port;
                    if space.len() < length {
                        space.resize(SHORT, 0);
                    }
                    receiver.copy(&mut space[..length]);
                    sink.put(at, &space[..length]);
                }
            },
        }
        self.release(bytes);
    }

    /// A copy of the message at the front, which ends.
    pub(crate) fn take_copy(&mut self, bytes: u32) -> Vec<u8> {
        let mut payload = vec![0; bytes as usize];
        match self {
            Self::Memory(port) => port.receiver.copy(&mut payload),
            Self::Socket(port) => payload.copy_from_slice(port.payload(bytes)),
        }
        self.release(bytes);
        payload
    }

    pub(crate) fn refuse(&mut self, offer: u32) {
        match self {
            Self::Memory(port) => port.receiver.refuse(offer),
            Self::Socket(port) => port.refuse(offer),
        }
    }

    pub(crate) fn is_revoked(&self, offer: u32) -> bool {
        match self {
            Self::Memory(port) => port.receiver.is_revoked(offer),
            Self::Socket(port) => port.is_revoked(offer),
        }
    }
}

/// Why a message cannot be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MessageFault {
    #[error("it has given up")]
    Revoked,
    #[error("its message has another length")]
    Length,
}
