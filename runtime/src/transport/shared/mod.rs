//! Lanes through memory that the ranks of one computer share.
//!
//! The principal type is [`SharedMemoryTransport`]. Small messages are copied into a [`ring`]. Large messages are read in place,
//! in the heap of the sender. The messages of a session go through a [`port`].

pub(crate) mod arena;
pub(crate) mod port;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
pub(crate) mod ring;

use crate::error::{RunError, RunResult};
use crate::memory::heap::{Heap, PeerHeap};
use crate::memory::segment::Segment;
use crate::transport::{LaneRequest, MemoryKind, Readiness, ReceiveLane, SendLane, Transport};
use program::Connection;
use ring::{RingReceiver, RingSender};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use topology::Rank;

/// The rings of one rank, and the heaps of other ranks that it reads.
pub(crate) struct SharedMemoryTransport<'a> {
    segment: &'a Segment,
    rank: Rank,
    heap: Heap,
    peers: BTreeMap<Rank, Arc<PeerHeap>>,
}

impl<'a> SharedMemoryTransport<'a> {
    /// For `rank`, whose buffers are in `heap`.
    pub(crate) fn new(segment: &'a Segment, rank: Rank, heap: Heap) -> Self {
        Self { segment, rank, heap, peers: BTreeMap::new() }
    }
}

impl Transport for SharedMemoryTransport<'_> {
    fn joins(&self, _connection: &Connection) -> bool {
        true
    }

    fn publish(&self) -> RunResult<()> {
        let place = self.heap.place().map_err(RunError::system("publishing buffers"))?;
        self.segment.heaps.publish(self.rank, place);
        Ok(())
    }

    fn attach(&mut self, senders: &BTreeSet<Rank>) {
        // Messages of a heap that cannot be opened are copied through the ring.
        let open = |&from: &Rank| Some((from, Arc::new(PeerHeap::open(self.segment.heaps.of(from)).ok()?)));
        self.peers = senders.iter().filter_map(open).collect();
    }

    fn memory(&self) -> MemoryKind {
        MemoryKind::Mapped
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Bell
    }

    fn sender(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn SendLane>> {
        let (memory, place) = (self.segment.region().clone(), lane.arena.ring(lane.id)?);
        let heap = lane.direct.then(|| self.heap.clone());
        Ok(Box::new(RingSender::new(memory, place, self.segment.bells.of(lane.connection.to), heap)?))
    }

    fn receiver(&mut self, lane: &LaneRequest<'_>) -> io::Result<Box<dyn ReceiveLane>> {
        let (memory, place) = (self.segment.region().clone(), lane.arena.ring(lane.id)?);
        let from = lane.connection.from;
        let peer = self.peers.get(&from).filter(|_| lane.direct).cloned();
        Ok(Box::new(RingReceiver::new(memory, place, self.segment.bells.of(from), peer)?))
    }
}
