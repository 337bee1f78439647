//! A rank's ends of all lanes to the other ranks of its machine.
//!
//! The principal type is [`LanePorts`]. Lanes are shared by all communicators. A message that comes for a communicator whose turn
//! it is not is put aside ([`LanePorts::next`]), so that no communicator waits for another.

use crate::memory::doorbell::Doorbell;
use crate::memory::region::Region;
use crate::session::lane::{LANE_BYTES, LaneReceiver, LaneSender, MessageHead, Revoked};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use topology::Rank;

/// Bytes of the words of the session, and of each rank's bell.
const LINE: usize = 64;
/// Bytes of messages that are put aside for other communicators, at most; more wait in their lanes.
const MOST_ASIDE: usize = 64 << 20;

/// The memory that the ranks of a session share on one machine.
///
/// ```text
/// | who aborted | a bell for each rank | a lane for each pair of ranks |
/// ```
#[derive(Clone)]
pub(crate) struct SessionMemory {
    region: Arc<Region>,
    ranks: usize,
}

impl SessionMemory {
    /// Memory for so many ranks. Only what is used costs any.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub(crate) fn new(ranks: usize) -> std::io::Result<Self> {
        let lanes = ranks.checked_mul(ranks).and_then(|lanes| lanes.checked_mul(LANE_BYTES));
        let bytes = lanes.and_then(|lanes| lanes.checked_add(LINE * (1 + ranks)));
        let bytes = bytes.ok_or_else(|| std::io::Error::other("too many ranks for one machine"))?;
        Ok(Self { region: Arc::new(Region::create(bytes)?), ranks })
    }

    /// Zero, or one more than the rank that aborted.
    pub(crate) fn aborted(&self) -> &AtomicU64 {
        self.region.word64(0)
    }

    pub(crate) fn bell(&self, rank: Rank) -> Doorbell {
        assert!(rank.index() < self.ranks, "the session has this rank");
        Doorbell::new(self.region.clone(), LINE * (1 + rank.index()))
    }

    fn lane(&self, from: Rank, to: Rank) -> usize {
        assert!(from.index().max(to.index()) < self.ranks, "the session has these ranks");
        LINE * (1 + self.ranks) + (from.index() * self.ranks + to.index()) * LANE_BYTES
    }
}

/// A message that was put aside.
struct Aside {
    head: MessageHead,
    payload: Vec<u8>,
}

impl Aside {
    /// What it costs to keep.
    fn bytes(&self) -> usize {
        self.payload.len() + size_of::<Self>()
    }
}

/// One rank's ends.
pub(crate) struct LanePorts {
    memory: SessionMemory,
    rank: Rank,
    senders: Vec<Option<LaneSender>>,
    receivers: Vec<Option<LaneReceiver>>,
    aside: BTreeMap<(Rank, u64), VecDeque<Aside>>,
    aside_bytes: usize,
}

/// Where a long message lies in the memory of its sender.
pub(crate) struct Lent {
    pub(crate) address: *const u8,
    pub(crate) bytes: usize,
}

impl LanePorts {
    pub(crate) fn new(memory: SessionMemory, rank: Rank) -> Self {
        let senders = (0..memory.ranks).map(|_| None).collect();
        let receivers = (0..memory.ranks).map(|_| None).collect();
        Self { memory, rank, senders, receivers, aside: BTreeMap::new(), aside_bytes: 0 }
    }

    /// The lane to a rank; it is formed when it is first used.
    pub(crate) fn to(&mut self, peer: Rank) -> &mut LaneSender {
        let Self { memory, rank, .. } = self;
        let form = || LaneSender::new(memory.region.clone(), memory.lane(*rank, peer), memory.bell(peer));
        self.senders[peer.index()].get_or_insert_with(form)
    }

    fn from(&mut self, peer: Rank) -> &mut LaneReceiver {
        let Self { memory, rank, .. } = self;
        let form = || LaneReceiver::new(memory.region.clone(), memory.lane(peer, *rank), memory.bell(peer));
        self.receivers[peer.index()].get_or_insert_with(form)
    }

    /// The next message of a communicator from a rank, if there is one.
    pub(crate) fn next(&mut self, peer: Rank, communicator: u64) -> Option<MessageHead> {
        if !self.aside.is_empty()
            && let Some(aside) = self.aside.get(&(peer, communicator)).and_then(VecDeque::front)
        {
            return Some(aside.head);
        }
        loop {
            let head = self.from(peer).head()?;
            if head.communicator == communicator {
                return Some(head);
            }
            if self.aside_bytes > MOST_ASIDE {
                return None;
            }
            self.put_aside(peer, head);
        }
    }

    fn put_aside(&mut self, peer: Rank, head: MessageHead) {
        let mut payload = vec![0; head.bytes as usize];
        let lane = self.from(peer);
        lane.pieces(head.bytes, |at, piece| payload[at..at + piece.len()].copy_from_slice(piece));
        lane.release(head.bytes);
        let aside = Aside { head, payload };
        self.aside_bytes += aside.bytes();
        self.aside.entry((peer, head.communicator)).or_default().push_back(aside);
    }

    /// Hands the pieces of the message that [`Self::next`] found, which is short, to `take`.
    pub(crate) fn pieces(&mut self, peer: Rank, head: &MessageHead, mut take: impl FnMut(usize, &[u8])) {
        match self.aside.get(&(peer, head.communicator)).and_then(VecDeque::front) {
            Some(aside) => take(0, &aside.payload),
            None => self.from(peer).pieces(head.bytes, take),
        }
    }

    /// Begins to read the message that [`Self::next`] found, which is long.
    ///
    /// # Errors
    /// If its sender has taken it back.
    pub(crate) fn begin(&mut self, peer: Rank, offer: u32) -> Result<Lent, Revoked> {
        let (address, bytes) = self.from(peer).begin(offer)?;
        Ok(Lent { address, bytes })
    }

    /// Ends the message that [`Self::next`] found.
    pub(crate) fn release(&mut self, peer: Rank, head: &MessageHead) {
        if let Some(offer) = head.offer {
            self.from(peer).end(offer);
        }
        let key = (peer, head.communicator);
        let Some(queue) = self.aside.get_mut(&key) else { return self.from(peer).release(head.bytes) };
        if let Some(aside) = queue.pop_front() {
            self.aside_bytes -= aside.bytes();
        }
        if queue.is_empty() {
            self.aside.remove(&key);
        }
    }

    /// Forgets what was put aside for a communicator that is gone.
    pub(crate) fn forget(&mut self, communicator: u64) {
        let gone = self.aside.iter().filter(|((_, of), _)| *of == communicator);
        self.aside_bytes -= gone.flat_map(|(_, queue)| queue).map(Aside::bytes).sum::<usize>();
        self.aside.retain(|(_, of), _| *of != communicator);
    }

    /// Who aborted the session, if anybody did.
    pub(crate) fn aborted(&self) -> Option<Rank> {
        let word = self.memory.aborted().load(Ordering::Acquire);
        word.checked_sub(1).map(|rank| Rank::from_index(rank as usize))
    }
}
