//! The two lanes between this rank and another one of its machine.
//!
//! The principal type is [`MemoryPort`].

use super::peer_port::MessageFault;
use super::process_memory::ProcessReader;
use crate::session::lane::{LaneReceiver, LaneSender, Revoked};
use crate::session::places::{Directory, RankLocation};
use crate::session::sink::Sink;
use std::io;
use topology::Rank;

/// How many bytes of another process are copied at once: they stay in the second cache until they are used.
const AT_ONCE: usize = 128 << 10;

/// One rank's ends of the lanes to and from a peer.
pub(crate) struct MemoryPort {
    pub(crate) sender: LaneSender,
    pub(crate) receiver: LaneReceiver,
    reading: OfferReading,
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
        let (to, from) = (theirs.lane(own), mine.lane(peer));
        let by_pointer = matches!(reading, OfferReading::Pointer);
        let sender = LaneSender::new(to.0, to.1, theirs.bell(), by_pointer);
        Ok(Self { sender, receiver: LaneReceiver::new(from.0, from.1, theirs.bell()), reading, space: Vec::new() })
    }

    /// Receives a long message; false if it will come in fragments.
    ///
    /// # Errors
    /// If the peer has given up, or its message has another length.
    pub(crate) fn take_long(&mut self, offer: u32, sink: &mut Sink<'_>) -> Result<bool, MessageFault> {
        let Self { receiver, reading, space, .. } = self;
        let (address, bytes) = receiver.begin(offer)?;
        if bytes != sink.len() {
            receiver.end(offer)?;
            return Err(MessageFault::Length);
        }
        match reading {
            OfferReading::Pointer => {
                let data = std::ptr::with_exposed_provenance::<u8>(address as usize);
                // SAFETY: the peer is a thread of this process, and these are the bytes that it has offered. It keeps them as they
                // are until `end`, or until it revokes the offer, for which it waits while this rank reads.
                sink.put(0, unsafe { std::slice::from_raw_parts(data, bytes) });
            }
            OfferReading::Fragments => {
                receiver.ask(offer)?;
                return Ok(false);
            }
            // The process has ended, or taken the memory back. `MemberWatch` finds out which.
            OfferReading::Copy(reader) => copy(*reader, space, address, sink).map_err(|_| MessageFault::Revoked)?,
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
