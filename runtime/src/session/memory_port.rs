//! The two lanes between this rank and another one of its machine.
//!
//! The principal type is [`MemoryPort`].

use super::peer_port::MessageFault;
use super::process_memory::ProcessReader;
use super::segments::PeerSegments;
use crate::session::lane::{LaneReceiver, LaneSender, OfferedMessage, Revoked};
use crate::session::places::{Directory, RankLocation};
use crate::session::sink::Sink;
use serde::Serialize;
use std::io;
use topology::Rank;

/// How many bytes of another process are copied at once: they stay in the second cache until they are used.
const AT_ONCE: usize = 128 << 10;

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

/// One rank's ends of the lanes to and from a peer.
pub(crate) struct MemoryPort {
    pub(crate) sender: LaneSender,
    pub(crate) receiver: LaneReceiver,
    reading: OfferReading,
    /// What the peer, a process, has made known.
    segments: Option<PeerSegments>,
    /// What is copied here is used at once.
    pub(crate) space: Vec<u8>,
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
    /// The ends of `own` at the lanes to and from `peer`.
    ///
    /// # Errors
    /// If the peer's process is gone, or its memory cannot be mapped.
    pub(crate) fn new(directory: &Directory, own: Rank, peer: Rank) -> io::Result<Self> {
        let (mine, theirs) = (directory.memory(own)?, directory.memory(peer)?);
        let reading = match directory.of(peer) {
            RankLocation::Thread(_) => OfferReading::Pointer,
            // `Directory::memory` has refused it.
            RankLocation::Elsewhere => OfferReading::Fragments,
            RankLocation::Process(place, _) => match ProcessReader::new(place.probe) {
                Ok(reader) => OfferReading::Copy(reader),
                Err(error) => {
                    tracing::info!(
                        "rank {own} cannot read the memory of rank {peer}, so long messages are copied twice: {error}"
                    );
                    OfferReading::Fragments
                }
            },
        };
        let segments = match directory.of(peer) {
            RankLocation::Process(place, _) => Some(PeerSegments::new(theirs.segments(), place.memory.process)),
            RankLocation::Thread(_) | RankLocation::Elsewhere => None,
        };
        let (to, from) = (theirs.lane(own), mine.lane(peer));
        let by_pointer = matches!(reading, OfferReading::Pointer);
        let sender = LaneSender::new(to.0, to.1, theirs.bell(), by_pointer);
        let receiver = LaneReceiver::new(from.0, from.1, theirs.bell());
        Ok(Self { sender, receiver, reading, segments, space: Vec::new() })
    }

    /// Receives a long message, and counts it; false if it will come in fragments.
    ///
    /// # Errors
    /// If the peer has given up, or its message has another length.
    pub(crate) fn take_long(
        &mut self,
        offer: u32,
        sink: &mut Sink<'_>,
        counts: &mut LongMessages,
    ) -> Result<bool, MessageFault> {
        let Self { receiver, reading, segments, space, .. } = self;
        let OfferedMessage { address, bytes, segment } = receiver.begin(offer)?;
        if bytes != sink.len() {
            receiver.end(offer)?;
            return Err(MessageFault::Length);
        }
        if segment != 0
            && let Some(segments) = segments
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
