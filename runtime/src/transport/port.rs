//! Messages between two ranks of a session, whatever carries them.
//!
//! The principal trait is [`MessagePort`], a rank's ends of what carries messages to and from one peer. A port carries the
//! messages of all communicators that its two ranks share. Every message has a [`MessageHead`] that says whose it is.
//!
//! * A **short** message travels at once.
//! * A **long** message is only *offered*. A receiver that can read the sender's memory copies it from there. Any other
//!   receiver asks for it, and it comes in *fragments*: messages with the tag [`FRAGMENT`]. The sender leaves the message
//!   unchanged until the offer has ended. A sender that gives up *revokes* the offer. A receiver that gives up *refuses* it.

use crate::transport::MemoryKind;
use crate::transport::notice::{BreachNotice, WaitNotice};
use crate::transport::sink::Sink;
use serde::Serialize;
use std::io;
use topology::Rank;

/// The tag of a part of a long message. No connection of a plan has this number.
pub(crate) const FRAGMENT: u32 = u32::MAX;

/// What stands before a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageHead {
    /// Bytes of a short message, or of the part of a fragment that is here.
    pub(crate) bytes: u32,
    /// Of a long message: which of the sender's offers it is.
    pub(crate) offer: Option<u32>,
    /// The communicator.
    pub(crate) communicator: u64,
    /// What the communicator's call is: equal on both ends if they make the same call with the same plan.
    pub(crate) stamp: u64,
    /// Which connection of the plan.
    pub(crate) tag: u32,
}

/// A long message that was offered.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Which of the sender's offers it is.
    pub(crate) slot: u32,
    /// Bytes that were sent in fragments.
    pub(crate) sent: usize,
}

impl Offer {
    pub(crate) fn new(slot: u32) -> Self {
        Self { slot, sent: 0 }
    }
}

/// How far an offer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OfferState {
    /// The receiver does not have the whole message yet; whether another fragment of it was sent just now.
    Open { moved: bool },
    /// The receiver has the message, and the offer has ended.
    Taken,
    /// The receiver has given up.
    Refused,
}

/// Why a message cannot be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MessageFault {
    #[error("it has given up")]
    Revoked,
    #[error("its message has another length")]
    Length,
}

/// How many long messages a rank has received, by the way they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LongMessages {
    /// Read where they lay: in a thread of the same process, or in memory that was allocated or registered.
    pub in_place: u64,
    /// Copied out of another process by the kernel.
    pub by_kernel: u64,
    /// Copied through shared memory, because the system does not allow the other ways.
    pub in_fragments: u64,
    /// Through sockets, from another machine.
    pub by_socket: u64,
}

/// From which ports messages are put aside that nobody waits for yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PortRelief {
    /// From those that may be full: the call that this rank waits for may come after one for which the peer finds no room.
    Full,
    /// From those, and from other machines: behind the message, a peer may ask for what this rank has offered.
    Network,
    /// From all: while this rank waits for room at a port, a peer may wait for room at one to this rank.
    All,
}

/// A rank's ends of what carries messages to and from one peer. No function waits.
pub(crate) trait MessagePort: Send {
    /// The memory that it reaches.
    fn memory(&self) -> MemoryKind;

    /// The longest message that travels at once; longer ones are offered. It is between
    /// [`SHORT_EVERYWHERE`](crate::transport::SHORT_EVERYWHERE) and [`SHORT_AT_MOST`](crate::transport::SHORT_AT_MOST).
    fn longest_short(&self) -> usize;

    /// Tells the peer that this rank takes a long message, which has this head, as soon as it is offered: it then comes in fragments
    /// without being asked for. If the call ends before, what comes of it is dropped ([`Self::refuse`]). False if there is no need,
    /// because long messages do not come in fragments here, or no way.
    fn expect(&mut self, _head: MessageHead) -> bool {
        false
    }

    /// About how many bytes were sent to the peer and have not arrived; 0 where that is not known.
    fn unsent(&self) -> usize {
        0
    }

    /// Sends a short message; false if there is no room for it now.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn send(&mut self, head: MessageHead, data: &[u8]) -> io::Result<bool>;

    /// Offers a long message, which lies in the segment of this name (0: in none); `None` if there is no room for it now.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn offer(&mut self, head: MessageHead, data: &[u8], segment: u64) -> io::Result<Option<Offer>>;

    /// Carries an offer on: sees whether the receiver has read it, and sends the fragments that it asked for. `head` and
    /// `data` are those of [`Self::offer`].
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn advance(&mut self, offer: &mut Offer, head: MessageHead, data: &[u8]) -> io::Result<OfferState>;

    /// Takes an offer back. Afterwards nobody uses what was offered.
    fn revoke(&mut self, offer: &Offer);

    /// Sends what the port still keeps; whether nothing is left.
    ///
    /// # Errors
    /// If the peer cannot be reached any more.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// The head of the message at the front, if a part of it that can be taken is here.
    ///
    /// # Errors
    /// If the peer cannot be reached any more, or has sent something that is no message.
    fn head(&mut self) -> io::Result<Option<MessageHead>>;

    /// Drops the message at the front, or a part of a fragment.
    fn release(&mut self, bytes: u32);

    /// Receives the message at the front, or a part of a fragment, as the part of the sink that begins at `at`.
    fn take(&mut self, bytes: u32, at: usize, sink: &mut Sink<'_>);

    /// Receives a long message that was offered, and counts it; false if it will come in fragments.
    ///
    /// # Errors
    /// If the peer has given up, or its message has another length.
    fn take_long(&mut self, offer: u32, sink: &mut Sink<'_>, counts: &mut LongMessages) -> Result<bool, MessageFault>;

    /// All fragments of a message have come.
    fn finish(&mut self, _offer: u32) {}

    /// Receives an offered message of at most so many bytes before its turn, if the peer may have no room for another offer. The
    /// offer is over then, also if the peer has taken the message back.
    fn keep(&mut self, _offer: u32, _most: usize, _counts: &mut LongMessages) -> Option<Result<Vec<u8>, MessageFault>> {
        None
    }

    /// Whether the peer has taken back what this rank has asked for.
    fn is_revoked(&self, offer: u32) -> bool;

    /// Refuses a long message that this rank has not asked for; whether parts of it may come all the same, because this rank has
    /// expected it.
    fn refuse(&mut self, offer: u32) -> bool;

    /// Refuses the rest of a long message that this rank has asked for.
    fn abandon(&mut self, offer: u32);

    /// Whether this relief puts messages of the port aside.
    fn is_relieved(&mut self, relief: PortRelief) -> bool;

    /// Tells the peer that a communicator is broken, if it does not read the board of this rank.
    fn tell(&mut self, _notice: BreachNotice) {}

    /// What the peer has told of a communicator.
    fn told(&self, communicator: u64) -> Option<BreachNotice>;

    /// Tells the peer for whom this rank waits, if it does not read the board of this rank.
    fn tell_wait(&mut self, _notice: WaitNotice) {}

    /// For whom the peer waits in a communicator, and has waited for long.
    fn waits_for(&self, communicator: u64) -> Option<Rank>;
}
