//! What travels over the connection between two machines: frames of a header and a payload.
//!
//! The principal type is [`SocketFrame`], a header.
//!
//! ```text
//! frame: | kind | bytes of payload | offer | tag | communicator | stamp | length of a long message | payload |
//!          4 B    4 B                4 B     4 B   8 B            8 B     8 B
//! ```

use crate::transport::notice::{BreachNotice, WaitNotice};
use crate::transport::port::MessageHead;
use std::io::{self, ErrorKind};

/// Bytes of a header.
pub(super) const HEADER: usize = 40;
/// The longest message that is sent at once.
pub(crate) const SHORT_FRAME: usize = 64 << 10;
/// The longest fragment.
pub(super) const FRAGMENT_BYTES: usize = 256 << 10;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameKind {
    Short = 1,
    Announce = 2,
    Ask = 3,
    Fragment = 4,
    Refuse = 5,
    Revoke = 6,
    Broken = 7,
    Expect = 8,
    Wait = 9,
}

impl FrameKind {
    fn of(word: u32) -> Option<Self> {
        let all = [Self::Short, Self::Announce, Self::Ask, Self::Fragment, Self::Refuse, Self::Revoke, Self::Broken];
        all.into_iter().chain([Self::Expect, Self::Wait]).find(|kind| *kind as u32 == word)
    }
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketFrame {
    pub(super) kind: FrameKind,
    pub(super) head: MessageHead,
    /// Of a message that is announced.
    pub(super) length: u64,
}

impl SocketFrame {
    /// A frame without a payload about an offer.
    pub(super) fn about(kind: FrameKind, offer: u32) -> Self {
        let head = MessageHead { bytes: 0, offer: Some(offer), communicator: 0, stamp: 0, tag: 0 };
        Self { kind, head, length: 0 }
    }

    /// A frame without a payload about a communicator.
    pub(super) fn notice(notice: BreachNotice) -> Self {
        Self::of_word(FrameKind::Broken, notice.communicator, notice.to_word())
    }

    /// A frame without a payload that says for whom this rank waits.
    pub(super) fn wait(notice: WaitNotice) -> Self {
        Self::of_word(FrameKind::Wait, notice.communicator, notice.to_word())
    }

    fn of_word(kind: FrameKind, communicator: u64, stamp: u64) -> Self {
        Self { kind, head: MessageHead { bytes: 0, offer: None, communicator, stamp, tag: 0 }, length: 0 }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let MessageHead { bytes: payload, offer, communicator, stamp, tag } = self.head;
        for (place, word) in bytes.chunks_exact_mut(4).zip([self.kind as u32, payload, offer.unwrap_or(0), tag]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip([communicator, stamp, self.length]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// If a faulty peer has sent something else.
    pub(super) fn of_bytes(bytes: &[u8; HEADER]) -> io::Result<Self> {
        let (words, _) = bytes[..16].as_chunks::<4>();
        let (long, _) = bytes[16..].as_chunks::<8>();
        let ([kind, payload, offer, tag], [communicator, stamp, length]) = (words, long) else {
            return Err(strange());
        };
        let [kind, bytes, offer, tag] = [kind, payload, offer, tag].map(|word| u32::from_le_bytes(*word));
        let [communicator, stamp, length] = [communicator, stamp, length].map(|word| u64::from_le_bytes(*word));
        let kind = FrameKind::of(kind).ok_or_else(strange)?;
        let longest = match kind {
            FrameKind::Short => SHORT_FRAME,
            FrameKind::Fragment => FRAGMENT_BYTES,
            _ => 0,
        };
        if bytes as usize > longest {
            return Err(strange());
        }
        let offer = (kind != FrameKind::Short).then_some(offer);
        Ok(Self { kind, head: MessageHead { bytes, offer, communicator, stamp, tag }, length })
    }
}

pub(super) fn strange() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it sent something that is no message")
}
