//! Long messages between two ranks: what each has offered, and what each expects.
//!
//! The principal types are [`OwnOffers`], what this rank has offered, and [`PeerOffers`], what its peer has offered. A message that
//! its receiver expects is sent as soon as it is offered; any other one when the receiver asks for it.

use super::frame::strange;
use crate::transport::port::{MessageFault, MessageHead};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// So many messages a peer may expect that were not offered yet. Calls expect few at a time.
const MOST_AWAITED: usize = 1 << 16;

/// Which messages: those of a call on one connection of its plan. Both ends have them in the same order.
type MessageName = (u64, u64, u32);

fn name_of(head: &MessageHead) -> MessageName {
    (head.communicator, head.stamp, head.tag)
}

/// How many messages of each name.
#[derive(Default)]
struct MessageCounts(BTreeMap<MessageName, u32>);

impl MessageCounts {
    fn add(&mut self, name: MessageName) {
        let count = self.0.entry(name).or_default();
        *count = count.saturating_add(1);
    }

    /// Takes one out; whether there was one.
    fn take(&mut self, name: MessageName) -> bool {
        let Some(count) = self.0.get_mut(&name) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&name);
        }
        true
    }
}

/// What this rank knows of a long message that it has offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnOffer {
    Open,
    Wanted,
    Refused,
}

/// The long messages that this rank has offered.
#[derive(Default)]
pub(super) struct OwnOffers {
    offers: BTreeMap<u32, (OwnOffer, MessageName)>,
    next: u32,
    /// Messages that the peer expects, and that were not offered yet.
    awaited: MessageCounts,
}

impl OwnOffers {
    /// The number of the next offer.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The next offer is made.
    pub(super) fn add(&mut self, head: &MessageHead) {
        let name = name_of(head);
        let state = if self.awaited.take(name) { OwnOffer::Wanted } else { OwnOffer::Open };
        self.offers.insert(self.next, (state, name));
        self.next = self.next.wrapping_add(1);
    }

    /// How an offer stands, if it has not ended.
    pub(super) fn state(&self, slot: u32) -> Option<OwnOffer> {
        self.offers.get(&slot).map(|(state, _)| *state)
    }

    pub(super) fn end(&mut self, slot: u32) {
        self.offers.remove(&slot);
    }

    /// The peer has asked for an offer, or refuses it.
    pub(super) fn set(&mut self, slot: u32, state: OwnOffer) {
        self.offers.entry(slot).and_modify(|(known, _)| *known = state);
    }

    /// Whether the peer expects a message that was not offered yet.
    #[cfg(test)]
    pub(super) fn expects(&self, head: &MessageHead) -> bool {
        self.awaited.0.contains_key(&name_of(head))
    }

    /// The peer expects a message, which may have been offered meanwhile.
    ///
    /// # Errors
    /// If it expects more than a peer without faults does.
    pub(super) fn expected(&mut self, head: &MessageHead) -> io::Result<()> {
        let name = name_of(head);
        let open = self.offers.iter_mut().filter(|(_, offer)| **offer == (OwnOffer::Open, name));
        // The oldest one: numbers begin again after the last.
        let oldest = open.min_by_key(|(slot, _)| slot.wrapping_sub(self.next));
        match oldest {
            Some((_, (state, _))) => *state = OwnOffer::Wanted,
            None if self.awaited.0.len() >= MOST_AWAITED => return Err(strange()),
            None => self.awaited.add(name),
        }
        Ok(())
    }
}

/// The long messages that the peer has offered.
#[derive(Default)]
pub(super) struct PeerOffers {
    /// The lengths of the messages. `None` if the peer has taken one back.
    announced: BTreeMap<u32, Option<u64>>,
    /// Messages that this rank expects, and that were not announced yet.
    expected: MessageCounts,
    /// Those of the announced ones that it has expected.
    coming: BTreeSet<u32>,
}

impl PeerOffers {
    /// This rank expects a message.
    pub(super) fn expect(&mut self, head: &MessageHead) {
        self.expected.add(name_of(head));
    }

    pub(super) fn announce(&mut self, slot: u32, head: &MessageHead, length: u64) {
        self.announced.insert(slot, Some(length));
        if self.expected.take(name_of(head)) {
            self.coming.insert(slot);
        }
    }

    /// The peer takes a message back. If nobody waits for it any more, nothing is known of it.
    pub(super) fn revoke(&mut self, slot: u32) {
        self.announced.entry(slot).and_modify(|length| *length = None);
    }

    pub(super) fn is_revoked(&self, slot: u32) -> bool {
        self.announced.get(&slot) == Some(&None)
    }

    /// A message has come, or nobody wants it any more; whether it may be sent without being asked for.
    pub(super) fn end(&mut self, slot: u32) -> bool {
        self.announced.remove(&slot);
        self.coming.remove(&slot)
    }

    /// The call of a message of `expected` bytes takes it; whether the peer has to be asked for it.
    ///
    /// # Errors
    /// If the peer has given up, or its message has another length.
    pub(super) fn accept(&mut self, slot: u32, expected: usize) -> Result<bool, MessageFault> {
        match self.announced.get(&slot) {
            Some(Some(length)) if *length == expected as u64 => Ok(!self.coming.remove(&slot)),
            Some(Some(_)) => Err(MessageFault::Length),
            Some(None) | None => {
                self.end(slot);
                Err(MessageFault::Revoked)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(stamp: u64, tag: u32) -> MessageHead {
        MessageHead { bytes: 0, offer: None, communicator: 7, stamp, tag }
    }

    #[test]
    fn what_is_expected_needs_no_question_whichever_comes_first() {
        let (mut own, mut peer) = (OwnOffers { next: u32::MAX - 1, ..OwnOffers::default() }, PeerOffers::default());
        let offer = |own: &mut OwnOffers, peer: &mut PeerOffers, head: MessageHead| {
            let slot = own.next();
            own.add(&head);
            peer.announce(slot, &head, 100);
            slot
        };
        // Expected before it is offered.
        own.expected(&head(1, 3)).unwrap();
        peer.expect(&head(1, 3));
        let first = offer(&mut own, &mut peer, head(1, 3));
        assert_eq!((own.state(first), peer.accept(first, 100)), (Some(OwnOffer::Wanted), Ok(false)));
        // One of two of a name that were offered before, whose numbers begin again between them: the older one.
        let (second, third) = (offer(&mut own, &mut peer, head(1, 3)), offer(&mut own, &mut peer, head(1, 3)));
        assert_eq!((second, third), (u32::MAX, 0));
        own.expected(&head(1, 3)).unwrap();
        assert_eq!([second, third].map(|slot| own.state(slot)), [Some(OwnOffer::Wanted), Some(OwnOffer::Open)]);
        // Not expected: another call, another connection.
        for other in [head(2, 3), head(1, 4)] {
            let slot = offer(&mut own, &mut peer, other);
            assert_eq!((own.state(slot), peer.accept(slot, 100)), (Some(OwnOffer::Open), Ok(true)));
        }
        assert_eq!(peer.accept(third, 99), Err(MessageFault::Length));
        peer.revoke(third);
        assert_eq!((peer.is_revoked(third), peer.accept(third, 100)), (true, Err(MessageFault::Revoked)));
    }

    #[test]
    fn a_peer_cannot_expect_without_end() {
        let mut own = OwnOffers::default();
        let expected = (0..2 * MOST_AWAITED as u64).map(|stamp| own.expected(&head(stamp, 0)));
        assert_eq!(expected.filter(Result::is_ok).count(), MOST_AWAITED);
    }
}
