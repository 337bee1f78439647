//! Messages from one rank to another through memory that both map.
//!
//! The principal types are [`LaneSender`] and [`LaneReceiver`], the two ends of one lane, which are parts of a
//! [`MessagePort`](crate::transport::port::MessagePort).
//!
//! * A **short** message lies in the lane itself: a ring of lines of 64 bytes, the size of a cache line. The first line has
//!   the head and the first 32 bytes, so a message of a few bytes is one cache line that moves from core to core.
//! * Of a **long** message, the lane says where it lies in the sender's memory. Its fragments are short messages.
//!
//! ```text
//! state of an offer:   free ─offer─▶ open ─begin─▶ reading ─end─▶ read ─is seen by the sender─▶ free
//!                                     │              └─ask─▶ wanted ─last fragment─▶ free
//!                                     └─revoke─▶ revoked ─is seen by the receiver─▶ free
//! ```
//!
//! A line is full when its sequence number is that of its place in the stream; so the receiver looks at one word, and the
//! sender learns only now and then how far the receiver is.

use super::lane_place::{FIRST, LINE, LanePlace, NEXT, OFFERS};
use crate::memory::atomics::yield_now;
use crate::memory::doorbell::Doorbell;
use crate::transport::port::{FRAGMENT, MessageHead, Offer, OfferState};
use std::sync::atomic::Ordering;

/// The receiver says how far it is so often while it takes all lines once.
const REPORTS: u32 = 4;

/// What an offer is.
const FREE: u32 = 0;
const OPEN: u32 = 1;
const READING: u32 = 2;
const READ: u32 = 3;
const REVOKED: u32 = 4;
const WANTED: u32 = 5;
const REFUSED: u32 = 6;

/// How many lines a message takes.
fn lines_of(bytes: usize) -> u32 {
    1 + bytes.saturating_sub(FIRST).div_ceil(NEXT) as u32
}

/// The sender's end.
pub(crate) struct LaneSender {
    place: LanePlace,
    bell: Doorbell,
    /// Lines ever written.
    written: u32,
    /// Lines that the receiver was seen to have released.
    released: u32,
    /// Whether the receiver reads offers through a pointer, because it is a thread of this process.
    by_pointer: bool,
}

/// Where an offered message lies in the sender's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OfferedMessage {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// The name of the segment it lies in; 0 if in none.
    pub(crate) segment: u64,
}

impl LaneSender {
    /// The end of a lane; `bell` wakes its receiver. A lane has one sender.
    pub(crate) fn new(place: LanePlace, bell: Doorbell, by_pointer: bool) -> Self {
        Self { place, bell, written: 0, released: 0, by_pointer }
    }

    fn has_room(&mut self, lines: u32) -> bool {
        if self.written.wrapping_sub(self.released) + lines > self.place.lines() {
            self.released = self.place.released().load(Ordering::Acquire);
        }
        self.written.wrapping_sub(self.released) + lines <= self.place.lines()
    }

    /// The longest message that lies in the lane itself.
    pub(crate) fn longest(&self) -> usize {
        self.place.longest()
    }

    /// Sends a message of up to [`Self::longest`] bytes; false if there is no room for it now.
    pub(crate) fn send(&mut self, head: MessageHead, payload: &[u8]) -> bool {
        debug_assert!(payload.len() == head.bytes as usize && payload.len() <= self.longest(), "the message is short");
        let lines = lines_of(payload.len());
        if !self.has_room(lines) {
            return false;
        }
        let (first, rest) = payload.split_at(payload.len().min(FIRST));
        // SAFETY: the lines are the sender's until `publish` hands them over: the receiver has released them, which the Acquire in
        // `has_room` makes visible. The first piece is at most `FIRST` bytes long, and all others `NEXT`.
        unsafe {
            let line = self.place.line(self.written, true).add(LINE - FIRST);
            std::ptr::copy_nonoverlapping(first.as_ptr(), line, first.len());
            let (pieces, last) = rest.as_chunks::<NEXT>();
            let mut number = self.written;
            for piece in pieces {
                number = number.wrapping_add(1);
                self.place.line(number, true).add(LINE - NEXT).cast::<[u8; NEXT]>().write_unaligned(*piece);
            }
            // The line behind the message may be the receiver's.
            if !last.is_empty() {
                let line = self.place.line(number.wrapping_add(1), true).add(LINE - NEXT);
                std::ptr::copy_nonoverlapping(last.as_ptr(), line, last.len());
            }
        }
        self.publish(head, lines);
        true
    }

    /// Offers a message where it lies, in a segment of this name; `None` if the lane has no room or all its offers are open.
    pub(crate) fn offer(&mut self, head: MessageHead, data: &[u8], segment: u64) -> Option<Offer> {
        let slot = (0..OFFERS).find(|&slot| self.place.state(slot).load(Ordering::Acquire) == FREE)?;
        if !self.has_room(1) {
            return None;
        }
        let values = [data.as_ptr().expose_provenance() as u64, data.len() as u64, segment];
        for (word, value) in self.place.offered(slot).into_iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.place.state(slot).store(OPEN, Ordering::Release);
        self.publish(MessageHead { bytes: 0, offer: Some(slot as u32), ..head }, 1);
        Some(Offer::new(slot as u32))
    }

    /// Carries an offer on: sees whether the receiver has read it, and sends the fragments that it asked for. `head` and
    /// `data` are those of [`Self::offer`].
    pub(crate) fn advance(&mut self, offer: &mut Offer, head: MessageHead, data: &[u8]) -> OfferState {
        match self.place.state(offer.slot as usize).load(Ordering::Acquire) {
            READ => {}
            REFUSED => {
                self.free(offer);
                return OfferState::Refused;
            }
            WANTED => {
                let before = offer.sent;
                while offer.sent < data.len() {
                    let piece = &data[offer.sent..data.len().min(offer.sent + self.longest())];
                    let head =
                        MessageHead { bytes: piece.len() as u32, offer: Some(offer.slot), tag: FRAGMENT, ..head };
                    if !self.send(head, piece) {
                        return OfferState::Open { moved: offer.sent > before };
                    }
                    offer.sent += piece.len();
                }
            }
            _ => return OfferState::Open { moved: false },
        }
        self.free(offer);
        OfferState::Taken
    }

    fn free(&mut self, offer: &Offer) {
        self.place.state(offer.slot as usize).store(FREE, Ordering::Release);
    }

    /// Takes an offer back. Afterwards nobody reads what was offered through a pointer. A receiver in another process may
    /// still copy it, but finds out that the offer was revoked before it uses the copy.
    pub(crate) fn revoke(&mut self, offer: &Offer) {
        let state = self.place.state(offer.slot as usize);
        loop {
            let seen = state.load(Ordering::Acquire);
            match seen {
                // The receiver is copying, which waits for nobody.
                READING if self.by_pointer => yield_now(),
                OPEN | READING | WANTED => {
                    if state.compare_exchange(seen, REVOKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                        return self.bell.ring();
                    }
                }
                _ => return self.free(offer),
            }
        }
    }

    fn publish(&mut self, head: MessageHead, lines: u32) {
        let line = self.place.line(self.written, true);
        let offer = head.offer.map_or(0, |offer| offer + 1);
        let words = [head.communicator, head.stamp, u64::from(head.tag) << 32 | u64::from(offer)];
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: the three words behind the first lie in the line, which is aligned, and is the sender's until the store
            // below hands it over.
            unsafe { line.cast::<u64>().add(1 + index).write(word) };
        }
        let sequence = self.written.wrapping_add(1);
        self.place.front(self.written).store(u64::from(sequence) << 32 | u64::from(head.bytes), Ordering::Release);
        self.written = self.written.wrapping_add(lines);
        self.bell.ring();
    }
}

/// The receiver's end.
pub(crate) struct LaneReceiver {
    place: LanePlace,
    bell: Doorbell,
    /// Lines ever released, and when the sender was told last.
    released: u32,
    reported: u32,
}

/// Why a message cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Revoked;

impl LaneReceiver {
    /// The end of a lane; `bell` wakes its sender. A lane has one receiver.
    pub(crate) fn new(place: LanePlace, bell: Doorbell) -> Self {
        Self { place, bell, released: 0, reported: 0 }
    }

    /// The head of the next message, if there is one.
    #[inline]
    pub(crate) fn head(&self) -> Option<MessageHead> {
        let front = self.place.front(self.released).load(Ordering::Acquire);
        if (front >> 32) as u32 != self.released.wrapping_add(1) {
            return None;
        }
        let line = self.place.line(self.released, false).cast::<u64>();
        // SAFETY: the words lie in the line, which is aligned; the Acquire above made it this end's, until it is released.
        let [communicator, stamp, last] = [1, 2, 3].map(|word| unsafe { line.add(word).read() });
        let offer = (last as u32).checked_sub(1).filter(|&offer| (offer as usize) < OFFERS);
        // A faulty sender may write any length.
        let bytes = (front as u32).min(self.place.longest() as u32);
        Some(MessageHead { bytes, offer, communicator, stamp, tag: (last >> 32) as u32 })
    }

    /// Whether so much has come that the sender may find no room.
    pub(crate) fn may_be_full(&self) -> bool {
        let longest = self.place.longest();
        let mut next = self.released;
        loop {
            if next.wrapping_sub(self.reported) + lines_of(longest) > self.place.lines() {
                return true;
            }
            let front = self.place.front(next).load(Ordering::Acquire);
            if (front >> 32) as u32 != next.wrapping_add(1) {
                return false;
            }
            next = next.wrapping_add(lines_of((front as u32 as usize).min(longest)));
        }
    }

    /// Whether the sender has offered so many messages that it may have no room for another offer. It uses the last slot only then.
    pub(crate) fn may_lack_offers(&self) -> bool {
        self.place.state(OFFERS - 1).load(Ordering::Acquire) != FREE
    }

    /// How long an offered message is that this rank has not begun to read.
    pub(crate) fn offered_bytes(&self, offer: u32) -> Option<usize> {
        let is_open = self.place.state(offer as usize).load(Ordering::Acquire) == OPEN;
        is_open.then(|| self.place.offered(offer as usize)[1].load(Ordering::Relaxed) as usize)
    }

    /// The beginning of the next message: all of it, if it is no longer than [`FIRST`].
    pub(crate) fn beginning(&self, bytes: u32) -> &[u8] {
        let line = self.place.line(self.released, false);
        // SAFETY: inside the line, which is this end's from `head` until `release`.
        unsafe { std::slice::from_raw_parts(line.add(LINE - FIRST), (bytes as usize).min(FIRST)) }
    }

    /// Copies the next message, which is short and as long as `into`.
    pub(crate) fn copy(&self, into: &mut [u8]) {
        let (first, rest) = into.split_at_mut(into.len().min(FIRST));
        first.copy_from_slice(self.beginning(first.len() as u32));
        let (pieces, last) = rest.as_chunks_mut::<NEXT>();
        let mut number = self.released;
        // SAFETY: inside the lines of the message (`send`), which are this end's from `head` until `release`.
        unsafe {
            for piece in pieces {
                number = number.wrapping_add(1);
                *piece = self.place.line(number, false).add(LINE - NEXT).cast::<[u8; NEXT]>().read_unaligned();
            }
            // The line behind the message may be the sender's.
            if !last.is_empty() {
                let line = self.place.line(number.wrapping_add(1), false).add(LINE - NEXT);
                std::ptr::copy_nonoverlapping(line, last.as_mut_ptr(), last.len());
            }
        }
    }

    /// Gives the lines of the next message back.
    pub(crate) fn release(&mut self, bytes: u32) {
        self.released = self.released.wrapping_add(lines_of(bytes as usize));
        if self.released.wrapping_sub(self.reported) >= self.place.lines() / REPORTS {
            self.reported = self.released;
            self.place.released().store(self.released, Ordering::Release);
            self.bell.ring();
        }
    }

    /// Changes the state of an offer.
    ///
    /// # Errors
    /// If the sender has taken the offer back, which ends it.
    fn change(&self, offer: u32, from: u32, to: u32) -> Result<(), Revoked> {
        let state = self.place.state(offer as usize);
        match state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(found) => {
                if found == REVOKED {
                    state.store(FREE, Ordering::Release);
                }
                Err(Revoked)
            }
        }
    }

    /// Begins to read an offered message.
    ///
    /// # Errors
    /// If the sender has taken it back.
    pub(crate) fn begin(&self, offer: u32) -> Result<OfferedMessage, Revoked> {
        self.change(offer, OPEN, READING)?;
        let [address, bytes, segment] = self.place.offered(offer as usize).map(|word| word.load(Ordering::Relaxed));
        Ok(OfferedMessage { address, bytes: bytes as usize, segment })
    }

    /// Says that an offered message has been read.
    ///
    /// # Errors
    /// If the sender has taken it back meanwhile, so that what was read means nothing.
    pub(crate) fn end(&self, offer: u32) -> Result<(), Revoked> {
        self.change(offer, READING, READ)?;
        self.bell.ring();
        Ok(())
    }

    /// Asks for the fragments of an offered message that this rank has begun to read, but cannot.
    ///
    /// # Errors
    /// If the sender has taken it back.
    pub(crate) fn ask(&self, offer: u32) -> Result<(), Revoked> {
        self.change(offer, READING, WANTED)?;
        self.bell.ring();
        Ok(())
    }

    /// Whether the sender has taken back what this rank asked for.
    pub(crate) fn is_revoked(&self, offer: u32) -> bool {
        self.place.state(offer as usize).load(Ordering::Acquire) == REVOKED
    }

    /// Refuses an offered message that this rank has not begun to read.
    pub(crate) fn refuse(&self, offer: u32) {
        if self.change(offer, OPEN, REFUSED).is_ok() {
            self.bell.ring();
        }
    }

    /// Refuses a message that this rank has asked for. Fragments may still come.
    pub(crate) fn refuse_rest(&self, offer: u32) {
        if self.change(offer, WANTED, REFUSED).is_ok() {
            self.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane_place::{lane_bytes, lines_between};
    use super::*;
    use crate::memory::region::Region;
    use std::sync::Arc;

    /// The ends of a lane between the most ranks.
    fn lane() -> (LaneSender, LaneReceiver) {
        lane_of(lines_between(usize::MAX))
    }

    fn lane_of(lines: u32) -> (LaneSender, LaneReceiver) {
        let region = Arc::new(Region::create(4096 + lane_bytes(lines)).unwrap());
        let bell = |index: usize| Doorbell::new(region.clone(), index * 64);
        let place = || LanePlace::new(region.clone(), 4096, lines);
        (LaneSender::new(place(), bell(1), true), LaneReceiver::new(place(), bell(0)))
    }

    fn head(bytes: usize, number: u64) -> MessageHead {
        MessageHead { bytes: bytes as u32, offer: None, communicator: 7, stamp: number, tag: 3 }
    }

    fn byte(number: u64, at: usize) -> u8 {
        (number as usize * 7 + at * 31) as u8
    }

    fn receive(receiver: &mut LaneReceiver) -> Option<(MessageHead, Vec<u8>)> {
        let head = receiver.head()?;
        let mut message = vec![0; head.bytes as usize];
        receiver.copy(&mut message);
        receiver.release(head.bytes);
        Some((head, message))
    }

    /// Messages of all lengths, many times around the ring, while sender and receiver run freely.
    #[test]
    fn short_messages_arrive_whole_and_in_order() {
        // Miri takes too long for long lanes.
        let most: &[usize] = if cfg!(miri) { &[usize::MAX] } else { &[usize::MAX, 2] };
        most.iter().for_each(|&ranks| arrive_whole_and_in_order(lane_of(lines_between(ranks))));
    }

    fn arrive_whole_and_in_order((mut sender, mut receiver): (LaneSender, LaneReceiver)) {
        let longest = sender.longest();
        let lengths: Vec<usize> =
            (0..=if cfg!(miri) { 8 } else { 200 }).chain([longest - 1, longest, 57, 0, 1000, 32, 33]).collect();
        // Miri takes a million times as long.
        const ROUNDS: usize = if cfg!(miri) { 1 } else { 20 };
        std::thread::scope(|scope| {
            let lengths = &lengths;
            scope.spawn(move || {
                for (number, &length) in (0..).zip(std::iter::repeat_n(lengths, ROUNDS).flatten()) {
                    let payload: Vec<u8> = (0..length).map(|at| byte(number, at)).collect();
                    while !sender.send(head(length, number), &payload) {
                        std::thread::yield_now();
                    }
                }
            });
            for (number, &length) in (0..).zip(std::iter::repeat_n(lengths, ROUNDS).flatten()) {
                let (found, message) = loop {
                    if let Some(found) = receive(&mut receiver) {
                        break found;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(found, head(length, number));
                assert!(message.iter().enumerate().all(|(at, &found)| found == byte(number, at)), "message {number}");
            }
        });
    }

    #[test]
    fn a_full_lane_takes_no_more_until_something_is_released() {
        let (mut sender, mut receiver) = lane();
        let sent = (0..).take_while(|&number| sender.send(head(100, number), &[1; 100])).count();
        assert_eq!(sent, sender.place.lines() as usize / 3);
        let released = (0..).take_while(|_| receive(&mut receiver).is_some()).count();
        assert_eq!(released, sent);
        assert!(sender.send(head(100, 0), &[1; 100]));
    }

    const OPEN_STILL: OfferState = OfferState::Open { moved: false };

    #[test]
    fn an_offer_is_read_revoked_or_refused() {
        let (mut sender, mut receiver) = lane();
        let data = [9u8; 1000];
        let mut offer = |sender: &mut LaneSender, number| {
            let made = sender.offer(head(0, number), &data, number).unwrap();
            let found = receiver.head().unwrap();
            receiver.release(found.bytes);
            (made, found.offer.unwrap())
        };
        let (mut first, at) = offer(&mut sender, 1);
        let (second, other) = offer(&mut sender, 2);
        let (mut third, last) = offer(&mut sender, 3);
        assert_eq!(sender.advance(&mut first, head(0, 1), &data), OPEN_STILL);
        assert_eq!(
            receiver.begin(at),
            Ok(OfferedMessage { address: data.as_ptr().expose_provenance() as u64, bytes: 1000, segment: 1 })
        );
        assert_eq!(receiver.end(at), Ok(()));
        assert_eq!(sender.advance(&mut first, head(0, 1), &data), OfferState::Taken);
        sender.revoke(&second);
        assert_eq!(receiver.begin(other), Err(Revoked));
        receiver.refuse(last);
        assert_eq!(sender.advance(&mut third, head(0, 3), &data), OfferState::Refused);
        // Every slot is free again.
        let open = (0..).take_while(|_| sender.offer(head(0, 3), &data[..1], 0).is_some()).count();
        assert_eq!(open, OFFERS);
    }

    /// A receiver that cannot read the sender's memory gets the message in fragments, between other messages.
    #[test]
    fn a_message_comes_in_fragments_if_the_receiver_asks() {
        let (mut sender, mut receiver) = lane();
        let data: Vec<u8> = (0..100_000).map(|at| byte(5, at)).collect();
        let mut made = sender.offer(head(0, 1), &data, 0).unwrap();
        let (found, _) = receive(&mut receiver).unwrap();
        let slot = found.offer.unwrap();
        receiver.begin(slot).unwrap();
        receiver.ask(slot).unwrap();
        let (mut whole, mut others) = (Vec::new(), 0);
        loop {
            let state = sender.advance(&mut made, head(0, 1), &data);
            sender.send(head(3, 2), b"abc");
            while let Some((found, message)) = receive(&mut receiver) {
                match found.tag {
                    FRAGMENT => whole.extend(message),
                    _ => others += 1,
                }
            }
            if state == OfferState::Taken {
                break;
            }
        }
        assert!(whole == data && others > 0);
        assert!(!receiver.is_revoked(slot));
    }
}
