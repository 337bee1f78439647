//! The two lanes between this rank and another one of its machine.
//!
//! The principal type is [`MemoryPort`].

use super::lane::{LaneReceiver, LaneSender, OfferedMessage, Revoked};
use super::lane_place::FIRST;
use super::process_memory::ProcessReader;
use super::rank_memory::{ProcessPlace, RankMemory};
use super::segments::PeerSegments;
use crate::transport::MemoryKind;
use crate::transport::notice::{BreachNotice, NoticeBoard};
use crate::transport::port::{LongMessages, MessageFault, MessageHead, MessagePort, Offer, OfferState, PortRelief};
use crate::transport::sink::Sink;
use std::io;
use topology::Rank;

/// How many bytes of another process are copied at once: they stay in the second cache until they are used.
const AT_ONCE: usize = 128 << 10;

/// One rank's ends of the lanes to and from a peer.
pub(crate) struct MemoryPort {
    sender: LaneSender,
    receiver: LaneReceiver,
    reading: OfferReading,
    /// What the peer, a process, has made known.
    segments: Option<PeerSegments>,
    notices: NoticeBoard,
    /// What is copied here is used at once.
    space: Vec<u8>,
}

/// How this rank reads long messages of the peer.
enum OfferReading {
    /// Through a pointer: the peer is a thread of this process.
    Pointer,
    /// By copying out of the peer's process.
    Copy(ProcessReader),
    /// Not at all: the peer sends fragments.
    Fragments,
}

impl From<Revoked> for MessageFault {
    fn from(_: Revoked) -> Self {
        Self::Revoked
    }
}

impl MemoryPort {
    /// The ends of `own` at the lanes to and from `peer`, which is a thread of this process, or in this `process`:
    /// another one, or this one as well.
    pub(crate) fn new(own: (Rank, &RankMemory), peer: (Rank, &RankMemory), process: Option<&ProcessPlace>) -> Self {
        let ((own, mine), (peer, theirs)) = (own, peer);
        // Threads of one process may have met as processes do. Both ends decide alike, as a sender that takes an offer
        // back must.
        let process = process.filter(|place| !place.probe.is_of_this_process());
        let reading = match process.map(|place| ProcessReader::new(place.probe)) {
            None => OfferReading::Pointer,
            Some(Ok(reader)) => OfferReading::Copy(reader),
            Some(Err(error)) => {
                tracing::info!(
                    "rank {own} cannot read the memory of rank {peer}, so long messages are copied twice: {error}"
                );
                OfferReading::Fragments
            }
        };
        let segments = process.map(|place| PeerSegments::new(theirs.segments(), place.memory.process));
        let by_pointer = matches!(reading, OfferReading::Pointer);
        let sender = LaneSender::new(theirs.lane(own), theirs.bell(), by_pointer);
        let receiver = LaneReceiver::new(mine.lane(peer), theirs.bell());
        Self { sender, receiver, reading, segments, notices: theirs.notices(), space: Vec::new() }
    }
}

impl MessagePort for MemoryPort {
    fn memory(&self) -> MemoryKind {
        MemoryKind::Mapped
    }

    fn longest_short(&self) -> usize {
        self.sender.longest()
    }

    fn send(&mut self, head: MessageHead, data: &[u8]) -> io::Result<bool> {
        Ok(self.sender.send(head, data))
    }

    fn offer(&mut self, head: MessageHead, data: &[u8], segment: u64) -> io::Result<Option<Offer>> {
        Ok(self.sender.offer(head, data, segment))
    }

    fn advance(&mut self, offer: &mut Offer, head: MessageHead, data: &[u8]) -> io::Result<OfferState> {
        Ok(self.sender.advance(offer, head, data))
    }

    fn revoke(&mut self, offer: &Offer) {
        self.sender.revoke(offer);
    }

    fn head(&mut self) -> io::Result<Option<MessageHead>> {
        Ok(self.receiver.head())
    }

    fn release(&mut self, bytes: u32) {
        self.receiver.release(bytes);
    }

    fn take(&mut self, bytes: u32, at: usize, sink: &mut Sink<'_>) {
        let Self { receiver, space, .. } = self;
        let length = bytes as usize;
        if length <= FIRST {
            sink.put(at, receiver.beginning(bytes));
        } else if let Some(into) = sink.plain() {
            receiver.copy(&mut into[at..at + length]);
        } else {
            if space.len() < length {
                space.resize(length, 0);
            }
            receiver.copy(&mut space[..length]);
            sink.put(at, &space[..length]);
        }
        receiver.release(bytes);
    }

    fn take_long(&mut self, offer: u32, sink: &mut Sink<'_>, counts: &mut LongMessages) -> Result<bool, MessageFault> {
        let Self { receiver, reading, segments, space, .. } = self;
        let OfferedMessage { address, bytes, segment } = receiver.begin(offer)?;
        if bytes != sink.len() {
            receiver.end(offer)?;
            return Err(MessageFault::Length);
        }
        if let Some(segments) = segments
            && let Some(message) = segments.read(segment, address, bytes)
        {
            // If the peer gives up meanwhile, the bytes may change, and `end` tells that they mean nothing.
            sink.put(0, message);
            receiver.end(offer)?;
            counts.in_place += 1;
            return Ok(true);
        }
        match reading {
            OfferReading::Pointer => {
                let data = std::ptr::with_exposed_provenance::<u8>(address as usize);
                // SAFETY: the peer is a thread of this process, and these are the bytes that it has offered. It keeps them as they
                // are until `end`, or until it revokes the offer, for which it waits while this rank reads.
                sink.put(0, unsafe { std::slice::from_raw_parts(data, bytes) });
                counts.in_place += 1;
            }
            OfferReading::Fragments => {
                receiver.ask(offer)?;
                counts.in_fragments += 1;
                return Ok(false);
            }
            // The process has ended, or taken the memory back. `MemberWatch` finds out which.
            OfferReading::Copy(reader) => {
                copy(*reader, space, address, sink).map_err(|_| MessageFault::Revoked)?;
                counts.by_kernel += 1;
            }
        }
        receiver.end(offer)?;
        Ok(true)
    }

    fn is_revoked(&self, offer: u32) -> bool {
        self.receiver.is_revoked(offer)
    }

    fn refuse(&mut self, offer: u32) -> bool {
        self.receiver.refuse(offer);
        false
    }

    fn abandon(&mut self, offer: u32) {
        self.receiver.refuse_rest(offer);
    }

    fn is_relieved(&mut self, relief: PortRelief) -> bool {
        // This rank waits, so it has time for this as well.
        self.segments.iter_mut().for_each(PeerSegments::unmap_freed);
        relief == PortRelief::All || self.receiver.may_be_full() || self.receiver.may_lack_offers()
    }

    fn keep(&mut self, offer: u32, most: usize, counts: &mut LongMessages) -> Option<Result<Vec<u8>, MessageFault>> {
        if !self.receiver.may_lack_offers() || matches!(self.reading, OfferReading::Fragments) {
            return None;
        }
        let mut message = vec![0; self.receiver.offered_bytes(offer).filter(|bytes| *bytes <= most)?];
        let taken = self.take_long(offer, &mut Sink::Copy(&mut message), counts);
        Some(taken.map(|_| message))
    }

    fn told(&self, communicator: u64) -> Option<BreachNotice> {
        self.notices.find(communicator)
    }

    fn waits_for(&self, communicator: u64) -> Option<Rank> {
        self.notices.waits_for(communicator)
    }
}

/// Copies a message out of another process.
fn copy(reader: ProcessReader, space: &mut Vec<u8>, address: u64, sink: &mut Sink<'_>) -> io::Result<()> {
    if let Some(into) = sink.plain() {
        return reader.read(address, into);
    }
    let bytes = sink.len();
    if space.len() < AT_ONCE.min(bytes) {
        space.resize(AT_ONCE, 0);
    }
    for at in (0..bytes).step_by(AT_ONCE) {
        let piece = &mut space[..AT_ONCE.min(bytes - at)];
        reader.read(address + at as u64, piece)?;
        sink.put(at, piece);
    }
    Ok(())
}
