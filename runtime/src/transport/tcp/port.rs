//! The connection between this rank and a rank of another machine.
//!
//! The principal type is [`SocketPort`]. One TCP connection carries the messages of all communicators in both directions, as
//! frames of a header and a payload. A short message is one frame. A long message is announced, and its receiver asks for it
//! when it is that message's turn. Then it comes in fragments, between which other messages may come. So a receiver keeps
//! only short messages for later.

use super::frame::{FRAGMENT_BYTES, FrameKind, HEADER, SHORT_FRAME, SocketFrame, strange};
use super::offers::{OwnOffer, OwnOffers, PeerOffers};
use crate::memory::socket::Socket;
use crate::transport::MemoryKind;
use crate::transport::notice::{BreachNotice, WaitNotice};
use crate::transport::port::{
    FRAGMENT, LongMessages, MessageFault, MessageHead, MessagePort, Offer, OfferState, PortRelief,
};
use crate::transport::sink::Sink;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use topology::Rank;

/// Bytes that are read at once.
const INPUT: usize = 256 << 10;
/// So many bytes may wait to be sent before short messages have to wait.
const MOST_UNSENT: usize = 128 << 10;
/// Fragments are handed on in multiples of this: no element is longer.
const ELEMENT: usize = 8;
/// So many notices of a peer are remembered.
const MOST_NOTICES: usize = 64;

/// One rank's end of the connection with a peer.
pub(crate) struct SocketPort {
    socket: Socket,
    /// Bytes that must be sent before all others, from `unsent_at` on.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Frames that come after the fragment that is being sent.
    queued: Vec<u8>,
    offers: OwnOffers,
    /// A fragment whose header was sent: of which offer, and how many bytes are still to be sent.
    sending: Option<(u32, usize)>,
    /// Bytes that have arrived: those between `start` and `end`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The message at the front, whose header was taken from the input. Of a fragment, `bytes` is what is still to come.
    front: Option<MessageHead>,
    announced: PeerOffers,
    /// What the peer has told of broken communicators, the latest last.
    notices: VecDeque<BreachNotice>,
    /// For whom it waits, as it has told last.
    wait: Option<WaitNotice>,
}

impl SocketPort {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            unsent: Vec::new(),
            unsent_at: 0,
            queued: Vec::new(),
            offers: OwnOffers::default(),
            sending: None,
            input: Vec::new(),
            start: 0,
            end: 0,
            front: None,
            announced: PeerOffers::default(),
            notices: VecDeque::new(),
            wait: None,
        }
    }

    /// Whether everything was sent.
    fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && self.queued.is_empty() && self.sending.is_none()
    }

    /// Sends what must be sent first; whether all of it went. As all others, it fails if the connection has ended.
    fn send_unsent(&mut self) -> io::Result<bool> {
        while self.unsent_at < self.unsent.len() {
            let rest = IoSlice::new(&self.unsent[self.unsent_at..]);
            match self.socket.send(&[rest], SendFlags::empty())? {
                None => return Ok(false),
                Some(bytes) => self.unsent_at += bytes,
            }
        }
        self.unsent.clear();
        self.unsent_at = 0;
        Ok(true)
    }

    /// Sends a frame, at once or later.
    fn push(&mut self, frame: SocketFrame, payload: &[u8]) -> io::Result<()> {
        let header = frame.to_bytes();
        if self.sending.is_some() {
            self.queued.extend_from_slice(&header);
            self.queued.extend_from_slice(payload);
            return Ok(());
        }
        let mut sent = 0;
        if self.send_unsent()? {
            let parts = [IoSlice::new(&header), IoSlice::new(payload)];
            sent = self.socket.send(&parts, SendFlags::empty())?.unwrap_or(0);
        }
        self.unsent.extend_from_slice(&header[sent.min(HEADER)..]);
        self.unsent.extend_from_slice(&payload[sent.saturating_sub(HEADER)..]);
        Ok(())
    }

    /// Whether another frame may be sent, or wait for the end of the fragment that is being sent.
    fn has_room(&mut self) -> io::Result<bool> {
        Ok(match self.sending {
            Some(_) => self.queued.len() <= MOST_UNSENT,
            None => self.send_unsent()? || self.unsent.len() - self.unsent_at <= MOST_UNSENT,
        })
    }

    /// Begins a fragment; whether more can be sent now.
    fn send_fragment(&mut self, offer: &mut Offer, data: &[u8]) -> io::Result<bool> {
        if !self.send_unsent()? {
            return Ok(false);
        }
        let piece = &data[offer.sent..data.len().min(offer.sent + FRAGMENT_BYTES)];
        let frame = SocketFrame::about(FrameKind::Fragment, offer.slot);
        let head = MessageHead { bytes: piece.len() as u32, ..frame.head };
        let header = SocketFrame { head, ..frame }.to_bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(piece)];
        let Some(sent) = self.socket.send(&parts, SendFlags::empty())? else { return Ok(false) };
        self.unsent.extend_from_slice(&header[sent.min(HEADER)..]);
        let taken = sent.saturating_sub(HEADER);
        offer.sent += taken;
        self.note_rest(offer.slot, piece.len() - taken);
        Ok(self.sending.is_none())
    }

    /// So much of a fragment is still to be sent. After its end come the frames that had to wait for it.
    fn note_rest(&mut self, slot: u32, left: usize) {
        self.sending = (left > 0).then_some((slot, left));
        if left == 0 {
            self.unsent.append(&mut self.queued);
        }
    }

    /// Nobody wants the rest of a message. A fragment of it has the length that its header says, whatever it holds.
    fn end_fragment(&mut self, slot: u32) {
        if let Some((_, left)) = self.sending.filter(|(of, _)| *of == slot) {
            self.unsent.resize(self.unsent.len() + left, 0);
            self.note_rest(slot, 0);
        }
    }

    /// Goes on with a fragment; whether more can be sent now.
    fn send_rest(&mut self, offer: &mut Offer, left: usize, data: &[u8]) -> io::Result<bool> {
        if !self.send_unsent()? {
            return Ok(false);
        }
        let rest = IoSlice::new(&data[offer.sent..offer.sent + left]);
        let sent = self.socket.send(&[rest], SendFlags::empty())?.unwrap_or(0);
        offer.sent += sent;
        self.note_rest(offer.slot, left - sent);
        Ok(sent == left)
    }

    /// Makes sure that so many bytes of the stream are in the input; whether they are.
    fn has(&mut self, bytes: usize) -> io::Result<bool> {
        while self.end - self.start < bytes {
            if self.start > 0 {
                self.input.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.input.is_empty() {
                self.input.resize(INPUT, 0);
            }
            match self.socket.read(&mut self.input[self.end..])? {
                None => return Ok(false),
                Some(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection has ended")),
                Some(read) => self.end += read,
            }
        }
        Ok(true)
    }

    /// What can be taken of the message at the front: a short one as a whole, a fragment in parts.
    fn visible(&mut self, head: MessageHead) -> io::Result<Option<MessageHead>> {
        let whole = head.bytes as usize;
        if head.tag != FRAGMENT {
            return Ok(self.has(whole)?.then_some(head));
        }
        if self.end - self.start < whole {
            self.has(ELEMENT.min(whole))?;
        }
        let here = (self.end - self.start).min(whole);
        let ready = if here == whole { whole } else { here / ELEMENT * ELEMENT };
        Ok((ready > 0).then_some(MessageHead { bytes: ready as u32, ..head }))
    }

    /// The bytes of the message that [`Self::head`] told.
    fn payload(&self, bytes: u32) -> &[u8] {
        &self.input[self.start..self.start + bytes as usize]
    }

    /// Asks for a long message of `expected` bytes, unless it comes unasked.
    ///
    /// # Errors
    /// If the peer has given up, or its message has another length.
    fn ask(&mut self, offer: u32, expected: usize) -> Result<(), MessageFault> {
        match self.announced.accept(offer, expected) {
            Ok(false) => Ok(()),
            Ok(true) => self.push(SocketFrame::about(FrameKind::Ask, offer), &[]).map_err(|_| MessageFault::Revoked),
            Err(fault) => {
                if fault == MessageFault::Length {
                    self.refuse(offer);
                }
                Err(fault)
            }
        }
    }
}

impl MessagePort for SocketPort {
    fn memory(&self) -> MemoryKind {
        MemoryKind::Network
    }

    fn longest_short(&self) -> usize {
        SHORT_FRAME
    }

    fn expect(&mut self, head: MessageHead) -> bool {
        let frame = SocketFrame { kind: FrameKind::Expect, head: MessageHead { bytes: 0, ..head }, length: 0 };
        let is_told = self.push(frame, &[]).is_ok();
        if is_told {
            self.announced.expect(&head);
        }
        is_told
    }

    fn unsent(&self) -> usize {
        let rest = self.sending.map_or(0, |(_, left)| left);
        self.unsent.len() - self.unsent_at + self.queued.len() + rest + super::options::unsent(self.socket.stream())
    }

    fn send(&mut self, head: MessageHead, payload: &[u8]) -> io::Result<bool> {
        let has_room = self.has_room()?;
        if has_room {
            self.push(SocketFrame { kind: FrameKind::Short, head, length: 0 }, payload)?;
        }
        Ok(has_room)
    }

    fn offer(&mut self, head: MessageHead, data: &[u8], _segment: u64) -> io::Result<Option<Offer>> {
        if !self.has_room()? {
            return Ok(None);
        }
        let slot = self.offers.next();
        let head = MessageHead { offer: Some(slot), ..head };
        self.push(SocketFrame { kind: FrameKind::Announce, head, length: data.len() as u64 }, &[])?;
        self.offers.add(&head);
        Ok(Some(Offer::new(slot)))
    }

    fn advance(&mut self, offer: &mut Offer, _head: MessageHead, data: &[u8]) -> io::Result<OfferState> {
        // Asking and refusing arrive between messages.
        self.head()?;
        match self.offers.state(offer.slot) {
            Some(OwnOffer::Open) => return Ok(OfferState::Open { moved: false }),
            Some(OwnOffer::Wanted) => {}
            Some(OwnOffer::Refused) | None => {
                self.offers.end(offer.slot);
                self.end_fragment(offer.slot);
                return Ok(OfferState::Refused);
            }
        }
        let before = offer.sent;
        while offer.sent < data.len() || self.sending.is_some() {
            let is_going = match self.sending {
                Some((slot, _)) if slot != offer.slot => false,
                Some((_, left)) => self.send_rest(offer, left, data)?,
                None => self.send_fragment(offer, data)?,
            };
            if !is_going {
                return Ok(OfferState::Open { moved: offer.sent > before });
            }
        }
        self.offers.end(offer.slot);
        Ok(OfferState::Taken)
    }

    fn revoke(&mut self, offer: &Offer) {
        self.end_fragment(offer.slot);
        self.offers.end(offer.slot);
        // If the connection has ended, nobody receives anything.
        let _ = self.push(SocketFrame::about(FrameKind::Revoke, offer.slot), &[]);
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(self.is_flushed() || self.send_unsent()? && self.is_flushed())
    }

    fn head(&mut self) -> io::Result<Option<MessageHead>> {
        if self.unsent_at < self.unsent.len() {
            self.send_unsent()?;
        }
        loop {
            if let Some(head) = self.front {
                return self.visible(head);
            }
            if !self.has(HEADER)? {
                return Ok(None);
            }
            let header = self.input[self.start..].first_chunk().ok_or_else(strange)?;
            let SocketFrame { kind, head, length } = SocketFrame::of_bytes(header)?;
            self.start += HEADER;
            let slot = head.offer.unwrap_or(0);
            match kind {
                FrameKind::Short => self.front = Some(head),
                FrameKind::Announce => {
                    self.announced.announce(slot, &head, length);
                    self.front = Some(head);
                }
                FrameKind::Fragment => self.front = Some(MessageHead { tag: FRAGMENT, ..head }),
                FrameKind::Revoke => self.announced.revoke(slot),
                FrameKind::Broken => {
                    if self.notices.len() == MOST_NOTICES {
                        self.notices.pop_front();
                    }
                    self.notices.push_back(BreachNotice::of_word(head.communicator, head.stamp));
                }
                FrameKind::Wait => self.wait = Some(WaitNotice::of_word(head.communicator, head.stamp)),
                FrameKind::Ask => self.offers.set(slot, OwnOffer::Wanted),
                FrameKind::Refuse => self.offers.set(slot, OwnOffer::Refused),
                FrameKind::Expect => self.offers.expected(&head)?,
            }
        }
    }

    fn release(&mut self, bytes: u32) {
        self.start += bytes as usize;
        self.front = self.front.filter(|head| head.tag == FRAGMENT && head.bytes > bytes);
        if let Some(head) = &mut self.front {
            head.bytes -= bytes;
        }
    }

    fn take(&mut self, bytes: u32, at: usize, sink: &mut Sink<'_>) {
        sink.put(at, self.payload(bytes));
        self.release(bytes);
    }

    fn take_long(&mut self, offer: u32, sink: &mut Sink<'_>, counts: &mut LongMessages) -> Result<bool, MessageFault> {
        counts.by_socket += 1;
        self.ask(offer, sink.len()).map(|()| false)
    }

    fn finish(&mut self, offer: u32) {
        self.announced.end(offer);
    }

    fn is_revoked(&self, offer: u32) -> bool {
        self.announced.is_revoked(offer)
    }

    fn refuse(&mut self, offer: u32) -> bool {
        let may_come = self.announced.end(offer);
        // If the connection has ended, the next one who waits for it finds out.
        let _ = self.push(SocketFrame::about(FrameKind::Refuse, offer), &[]);
        may_come
    }

    fn abandon(&mut self, offer: u32) {
        self.refuse(offer);
    }

    /// A port may be full if more has come than is read at once, and notices may be unsent. An error shows at the next call.
    fn is_relieved(&mut self, relief: PortRelief) -> bool {
        drop(self.send_unsent());
        relief >= PortRelief::Network || self.has(INPUT).unwrap_or(false)
    }

    fn tell(&mut self, notice: BreachNotice) {
        // If the connection has ended, the peer knows.
        let _ = self.push(SocketFrame::notice(notice), &[]);
    }

    fn told(&self, communicator: u64) -> Option<BreachNotice> {
        self.notices.iter().find(|notice| notice.communicator == communicator).copied()
    }

    fn tell_wait(&mut self, notice: WaitNotice) {
        let _ = self.push(SocketFrame::wait(notice), &[]);
    }

    fn waits_for(&self, communicator: u64) -> Option<Rank> {
        self.wait.filter(|notice| notice.communicator == communicator)?.awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::lane::tests::pair;
    use std::io::Write;
    use std::time::Instant;

    fn ports() -> [SocketPort; 2] {
        let (near, far) = pair();
        [near, far].map(|stream| SocketPort::new(Socket::from(stream)))
    }

    fn head(bytes: usize, number: u64) -> MessageHead {
        MessageHead { bytes: bytes as u32, offer: None, communicator: 7, stamp: number, tag: 3 }
    }

    fn data(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    /// Looks again and again until something is there.
    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            match found() {
                Some(found) => return found,
                None => assert!(begin.elapsed().as_secs() < 20, "nothing came"),
            }
        }
    }

    #[test]
    fn short_messages_arrive_whole_and_in_order() {
        let [mut near, mut far] = ports();
        let lengths = [0, 1, 7, 40, 1000, SHORT_FRAME, 3, SHORT_FRAME - 1];
        let (mut sent, mut received) = (0, 0);
        until(|| {
            if sent < 200 && near.send(head(lengths[sent % 8], sent as u64), &data(lengths[sent % 8])).unwrap() {
                sent += 1;
            }
            near.flush().unwrap();
            while let Some(found) = far.head().unwrap() {
                assert_eq!(found, head(lengths[received % 8], received as u64));
                assert_eq!(far.payload(found.bytes), data(lengths[received % 8]));
                far.release(found.bytes);
                received += 1;
            }
            (received == 200).then_some(())
        });
    }

    /// The whole message may be sent before its receiver has seen that it was offered.
    #[test]
    fn a_long_message_that_is_expected_comes_unasked() {
        let [mut near, mut far] = ports();
        let long = data(200_000);
        assert!(far.expect(head(0, 9)));
        until(|| near.head().unwrap().is_none().then_some(()).filter(|()| near.offers.expects(&head(0, 9))));
        let mut offer = near.offer(head(0, 9), &long, 0).unwrap().unwrap();
        let mut received = Vec::new();
        until(|| {
            near.advance(&mut offer, head(0, 9), &long).unwrap();
            while let Some(found) = far.head().unwrap() {
                if found.tag == FRAGMENT {
                    received.extend_from_slice(far.payload(found.bytes));
                } else {
                    assert_eq!(far.announced.accept(found.offer.unwrap(), long.len()), Ok(false));
                }
                far.release(found.bytes);
            }
            (received.len() == long.len()).then_some(())
        });
        assert!(received == long && near.offers.state(offer.slot).is_none());
    }

    /// A fragment is under way when the receiver gives up.
    #[test]
    fn what_is_refused_in_the_middle_is_in_nobodys_way() {
        let [mut near, mut far] = ports();
        let long = data(30_000_000);
        let mut offer = near.offer(head(0, 9), &long, 0).unwrap().unwrap();
        let slot = until(|| far.head().unwrap()).offer.unwrap();
        far.release(0);
        far.ask(slot, long.len()).unwrap();
        until(|| {
            near.advance(&mut offer, head(0, 9), &long).unwrap();
            near.sending.is_some().then_some(())
        });
        far.abandon(slot);
        until(|| (near.advance(&mut offer, head(0, 9), &long).unwrap() == OfferState::Refused).then_some(()));
        near.send(head(3, 1), b"abc").unwrap();
        let found = until(|| {
            near.flush().unwrap();
            let found = far.head().unwrap()?;
            (found.tag != FRAGMENT).then_some(found).or_else(|| {
                far.release(found.bytes);
                None
            })
        });
        assert_eq!((found, far.payload(3)), (head(3, 1), &b"abc"[..]));
    }

    /// Two long messages at once, in both directions, and short ones in between.
    #[test]
    fn long_messages_come_in_fragments_when_they_are_asked_for() {
        let mut ports = ports();
        let long = data(3_000_001);
        let mut offers = [0, 1].map(|end| [0, 1].map(|_| ports[end].offer(head(0, 9), &long, 0).unwrap().unwrap()));
        let mut received = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        let (mut short, mut open) = (0, 4);
        until(|| {
            for end in [0, 1] {
                for offer in &mut offers[end] {
                    if offer.sent < long.len()
                        && ports[end].advance(offer, head(0, 9), &long).unwrap() == OfferState::Taken
                    {
                        open -= 1;
                        assert_eq!(offer.sent, long.len());
                    }
                }
                ports[end].send(head(3, 1), b"abc").unwrap();
                while let Some(found) = ports[end].head().unwrap() {
                    match (found.tag, found.offer) {
                        (FRAGMENT, Some(slot)) => {
                            received[end][slot as usize].extend_from_slice(ports[end].payload(found.bytes));
                        }
                        (_, Some(slot)) => ports[end].ask(slot, long.len()).unwrap(),
                        _ => short += 1,
                    }
                    ports[end].release(found.bytes);
                }
            }
            (received.iter().flatten().all(|it| it.len() == long.len()) && open == 0).then_some(())
        });
        assert!(received.iter().flatten().all(|it| *it == long) && short > 0);
    }

    #[test]
    fn offers_are_revoked_or_refused() {
        let [mut near, mut far] = ports();
        let long = data(10_000_000);
        let announced = |far: &mut SocketPort| {
            until(|| {
                let found = far.head().unwrap()?;
                far.release(found.bytes);
                found.offer
            })
        };
        // Before it is asked for, and in the middle of a fragment.
        for is_asked in [false, true] {
            let mut offer = near.offer(head(0, 1), &long, 0).unwrap().unwrap();
            let slot = announced(&mut far);
            if is_asked {
                far.ask(slot, long.len()).unwrap();
                until(|| {
                    (near.advance(&mut offer, head(0, 1), &long).unwrap() == OfferState::Open { moved: true })
                        .then_some(())
                });
            }
            near.revoke(&offer);
            until(|| {
                near.flush().unwrap();
                while let Some(found) = far.head().unwrap() {
                    assert_eq!(found.tag, FRAGMENT);
                    far.release(found.bytes);
                }
                far.is_revoked(slot).then_some(())
            });
            assert_eq!(far.ask(slot, long.len()), Err(MessageFault::Revoked));
        }
        let mut offer = near.offer(head(0, 2), &long, 0).unwrap().unwrap();
        let slot = announced(&mut far);
        assert_eq!(far.ask(slot, 5), Err(MessageFault::Length));
        until(|| (near.advance(&mut offer, head(0, 1), &long).unwrap() == OfferState::Refused).then_some(()));
        // The connection serves other messages.
        assert!(near.send(head(2, 3), b"ok").unwrap());
        until(|| far.head().unwrap().filter(|found| *found == head(2, 3)));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let short = |bytes| SocketFrame { kind: FrameKind::Short, head: head(bytes, 1), length: 0 }.to_bytes();
        let mut unknown = short(3);
        unknown[0] = 99;
        for bytes in [unknown, short(SHORT_FRAME + 1), [255; HEADER], [0; HEADER]] {
            let (near, far) = pair();
            (&near).write_all(&bytes).unwrap();
            let mut port = SocketPort::new(Socket::from(far));
            let error = until(|| port.head().err());
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        let (near, far) = pair();
        drop(near);
        let mut port = SocketPort::new(Socket::from(far));
        assert_eq!(until(|| port.head().err()).kind(), ErrorKind::UnexpectedEof);
    }
}
