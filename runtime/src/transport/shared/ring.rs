//! A lane through shared memory: a single-producer single-consumer ring of bytes, and offers of the sender's memory.
//!
//! The principal types are [`RingSender`] and [`RingReceiver`]. Two counters, of all bytes ever sent and of all bytes
//! ever consumed, have cache lines of their own. Each end writes one counter and only reads the other [1]. No message
//! has a header: both ends know every length from the program.
//!
//! Small messages are copied into the ring. If the receiver can read the sender's heap, a large message is only
//! *offered*: the offer says where the message lies and where in the stream it belongs. The receiver reads it in place
//! and counts the bytes that it has read. An offer is a multiple of 64 bytes and the rest of its message follows in the
//! ring, so ring and stream have the same alignment.
//!
//! ```text
//! offset: | head | tail | taken: sender, receiver; direct | offers made | bytes of offers read | offers | payload |
//!           0      64     128    132       136              192           256                    320      832
//! ```
//!
//! [1] Lamport, "Specifying concurrent program modules", TOPLAS 1983.

use crate::memory::atomics::AtomicU64;
use crate::memory::doorbell::Doorbell;
use crate::memory::heap::{Heap, PeerHeap};
use crate::memory::region::Region;
use crate::transport::{ReceiveLane, SendLane};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const HEAD: usize = 0;
const TAIL: usize = 64;
const TAKEN: usize = 128;
const DIRECT: usize = 136;
const OFFERED: usize = 192;
const READ: usize = 256;
const OFFERS: usize = 320;
/// The three words of an offer: position in the stream, offset in the heap, length.
const OFFER_BYTES: usize = 32;
/// How many offers may be open on one lane.
const MOST_OFFERS: usize = 16;
const DATA: usize = OFFERS + MOST_OFFERS * OFFER_BYTES;
/// Enough capacity if large messages are offered. A ring of this size stays in cache.
pub(crate) const SHORT: usize = 64 << 10;
/// Capacities, offsets and offers are multiples of this many bytes.
const LINE: usize = 64;
/// The smallest message for which the round trip of an offer pays off.
const LEAST_OFFER: usize = 8 << 10;

/// The place of a ring. Offset and capacity are multiples of 64, so the end of the ring splits no element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingPlace {
    pub(crate) offset: usize,
    pub(crate) capacity: usize,
}

impl RingPlace {
    /// The bytes that a ring with this capacity takes.
    pub(crate) const fn footprint(capacity: usize) -> usize {
        DATA + capacity
    }

    /// Empties the ring for new ends. Call it only while nobody uses the ring.
    pub(crate) fn reset(self, region: &Region) {
        for counter in [HEAD, TAIL, OFFERED, READ] {
            region.word64(self.offset + counter).store(0, Ordering::Relaxed);
        }
        for flag in [TAKEN, TAKEN + 4, DIRECT] {
            region.word32(self.offset + flag).store(0, Ordering::Release);
        }
    }
}

/// One end of the ring. It owns its counter, and reads the counter of the peer when needed.
struct RingEnd {
    region: Arc<Region>,
    place: RingPlace,
    mine: u64,
    /// The position in the stream of the lane, including offers.
    position: u64,
    peer: Doorbell,
}

impl RingEnd {
    fn new(region: Arc<Region>, place: RingPlace, side: usize, peer: Doorbell) -> io::Result<Self> {
        assert!(place.offset.is_multiple_of(LINE) && place.capacity.is_multiple_of(LINE), "rings are aligned");
        region.pointer(place.offset, RingPlace::footprint(place.capacity));
        // Each end exists only once, which makes the slices below exclusive.
        if region.word32(place.offset + TAKEN + 4 * side).swap(1, Ordering::AcqRel) != 0 {
            return Err(io::Error::other("this end of the connection is already in use"));
        }
        // Now, so that the first messages are not slower than later ones.
        region.populate(place.offset, RingPlace::footprint(place.capacity.min(SHORT)));
        Ok(Self { region, place, mine: 0, position: 0, peer })
    }

    fn counter(&self, which: usize) -> &AtomicU64 {
        self.region.word64(self.place.offset + which)
    }

    /// The `field`-th word of the `index`-th offer ever made.
    fn offer(&self, index: u64, field: usize) -> &AtomicU64 {
        let slot = (index % MOST_OFFERS as u64) as usize;
        self.counter(OFFERS + slot * OFFER_BYTES + 8 * field)
    }

    /// The `available` bytes from this end's counter on, as far as they are contiguous in the ring.
    fn window(&self, available: u64) -> (*mut u8, usize) {
        let capacity = self.place.capacity;
        let at = (self.mine % capacity as u64) as usize;
        // A faulty peer may write any counter; the window stays inside the ring.
        let length = (available.min(capacity as u64) as usize).min(capacity - at);
        (self.region.pointer(self.place.offset + DATA + at, length), length)
    }

    fn advance(&mut self, which: usize, bytes: usize) {
        self.mine += bytes as u64;
        self.position += bytes as u64;
        self.counter(which).store(self.mine, Ordering::Release);
        self.peer.ring();
    }
}

/// The producer.
pub(crate) struct RingSender {
    end: RingEnd,
    heap: Option<Heap>,
    /// Offers ever made.
    offered: u64,
    /// For each open offer: the bytes of its message that [`SendLane::send`] has not reported as read, and how many of
    /// them are in the ring, at the end of the message.
    open: VecDeque<(usize, usize)>,
    /// The bytes of offers that it has reported as read.
    acknowledged: u64,
}

impl RingSender {
    /// Takes the sender's end; `peer` is the receiver's bell.
    ///
    /// # Errors
    /// If the end was already taken.
    pub(crate) fn new(region: Arc<Region>, place: RingPlace, peer: Doorbell, heap: Option<Heap>) -> io::Result<Self> {
        let end = RingEnd::new(region, place, 0, peer)?;
        Ok(Self { end, heap, offered: 0, open: VecDeque::new(), acknowledged: 0 })
    }

    /// How many more bytes of the oldest offer have been read, at most `most`.
    fn acknowledge(&mut self, most: usize) -> usize {
        let read = self.end.counter(READ).load(Ordering::Acquire);
        let Some((left, tail)) = self.open.front_mut() else { return 0 };
        let direct = (*left - *tail) as u64;
        let fresh = read.saturating_sub(self.acknowledged).min(direct);
        self.acknowledged += fresh;
        *left -= fresh as usize;
        // The tail was copied when the offer was made.
        let mut done = fresh as usize;
        if left == tail {
            done += *tail;
            self.open.pop_front();
        }
        done.min(most)
    }

    fn is_direct(&self) -> bool {
        self.end.region.word32(self.end.place.offset + DIRECT).load(Ordering::Acquire) != 0
    }
}

impl SendLane for RingSender {
    fn reserve(&mut self) -> io::Result<&mut [u8]> {
        let used = self.end.mine.wrapping_sub(self.end.counter(TAIL).load(Ordering::Acquire));
        let (pointer, length) = self.end.window((self.end.place.capacity as u64).saturating_sub(used));
        // SAFETY: in bounds (`window` checked). Bytes from head to tail + capacity belong to the only sender
        // until it commits them; the Acquire above orders the receiver's reads before our writes. The slice
        // borrows `self`, so it is gone before `commit`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.end.advance(HEAD, bytes);
        Ok(())
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.open.is_empty() && !self.make_offer(data)? {
            let room = self.reserve()?;
            let take = room.len().min(data.len());
            room[..take].copy_from_slice(&data[..take]);
            if take > 0 {
                self.commit(take)?;
            }
            return Ok(take);
        }
        Ok(self.acknowledge(data.len()))
    }

    fn offer(&mut self, data: &[u8]) -> io::Result<bool> {
        // Behind a message that is not offered, the offer would overtake that message.
        Ok(!self.open.is_empty() && self.make_offer(data)?)
    }
}

impl RingSender {
    /// Offers `data` if possible. Returns whether it did.
    fn make_offer(&mut self, data: &[u8]) -> io::Result<bool> {
        if data.len() < LEAST_OFFER || self.open.len() == MOST_OFFERS || !self.is_direct() {
            return Ok(false);
        }
        let Some(offset) = self.heap.as_ref().and_then(|heap| heap.offset_of(data)) else { return Ok(false) };
        let tail = data.len() % LINE;
        let direct = data.len() - tail;
        if self.reserve()?.len() < tail {
            return Ok(false);
        }
        for (field, value) in [self.end.position, offset as u64, direct as u64].into_iter().enumerate() {
            self.end.offer(self.offered, field).store(value, Ordering::Relaxed);
        }
        self.offered += 1;
        self.end.position += direct as u64;
        self.end.counter(OFFERED).store(self.offered, Ordering::Release);
        self.reserve()?[..tail].copy_from_slice(&data[direct..]);
        // Also rings the bell.
        self.end.advance(HEAD, tail);
        self.open.push_back((data.len(), tail));
        Ok(true)
    }
}

/// The consumer.
pub(crate) struct RingReceiver {
    end: RingEnd,
    peer: Option<Arc<PeerHeap>>,
    /// Offers that were read completely; bytes read of the next offer; bytes read of all offers.
    finished: u64,
    into: u64,
    read: u64,
}

impl RingReceiver {
    /// Takes the receiver's end; `bell` and `peer` are the sender's bell and heap. With a `peer`, the sender offers
    /// memory once it has met the receiver at the next barrier.
    ///
    /// # Errors
    /// If the end was already taken.
    pub(crate) fn new(
        region: Arc<Region>,
        place: RingPlace,
        bell: Doorbell,
        peer: Option<Arc<PeerHeap>>,
    ) -> io::Result<Self> {
        let end = RingEnd::new(region, place, 1, bell)?;
        end.region.word32(place.offset + DIRECT).store(u32::from(peer.is_some()), Ordering::Release);
        Ok(Self { end, peer, finished: 0, into: 0, read: 0 })
    }

    /// The next offer, if there is one: position, offset, length.
    fn next_offer(&self) -> Option<[u64; 3]> {
        let made = self.end.counter(OFFERED).load(Ordering::Acquire);
        (made > self.finished)
            .then(|| [0, 1, 2].map(|field| self.end.offer(self.finished, field).load(Ordering::Relaxed)))
    }
}

impl ReceiveLane for RingReceiver {
    fn peek(&mut self, _most: usize) -> io::Result<&[u8]> {
        // In this order: a receiver that sees the bytes behind an offer also sees the offer.
        let mut available = self.end.counter(HEAD).load(Ordering::Acquire).wrapping_sub(self.end.mine);
        if let (Some([position, offset, length]), Some(peer)) = (self.next_offer(), &self.peer) {
            if position + self.into == self.end.position {
                return peer.read((offset + self.into) as usize, length.saturating_sub(self.into) as usize);
            }
            available = available.min(position.saturating_sub(self.end.position));
        }
        let (pointer, length) = self.end.window(available);
        // SAFETY: in bounds (`window` checked). Bytes from tail to head belong to the only receiver until it
        // releases them; the Acquire above makes the sender's writes visible.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    fn release(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        match self.next_offer() {
            Some([position, _, length]) if position + self.into == self.end.position => {
                (self.into, self.read) = (self.into + bytes, self.read + bytes);
                self.end.position += bytes;
                let finished = self.into >= length;
                if finished {
                    (self.finished, self.into) = (self.finished + 1, 0);
                }
                self.end.counter(READ).store(self.read, Ordering::Release);
                // The sender only waits for the end of an offer.
                if finished {
                    self.end.peer.ring();
                }
            }
            _ => self.end.advance(TAIL, bytes as usize),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::memory::doorbell::{Patience, Waiter};
    use std::time::Duration;

    /// A linear congruential generator: the pieces must differ between rounds of the loop, not be random.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 33
    }

    /// Bytes pass in order and unchanged for all piece sizes, while both ends sleep and wake up.
    #[test]
    fn bytes_pass_in_order_for_every_interleaving_of_piece_sizes() {
        const BYTES: u64 = 40_000;
        for seed in 0..30u64 {
            let capacity = 64 * (1 + seed as usize % 5);
            let region = Arc::new(Region::create(4096).unwrap());
            let bell = |index: usize| Doorbell::new(region.clone(), index * 64);
            let place = RingPlace { offset: 128, capacity };
            let deadline = Moment::now().after(Duration::from_secs(20));
            let patience = |which| [Patience::NONE, Patience::of(2, 2), Patience::of(2, 1)][which as usize];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut lane = RingSender::new(region.clone(), place, bell(1), None).unwrap();
                    let mut waiter = Waiter::new(bell(0), patience(seed % 3));
                    let (mut sent, mut state) = (0, seed);
                    while sent < BYTES {
                        let wish = 1 + next(&mut state) % capacity as u64;
                        let room = lane.reserve().unwrap();
                        let take = (room.len() as u64).min(wish).min(BYTES - sent) as usize;
                        room[..take].iter_mut().zip(sent..).for_each(|(byte, at)| *byte = ((at * 31) >> 3) as u8);
                        if take == 0 {
                            assert!(Moment::now() < deadline);
                            waiter.idle(Moment::now(), deadline);
                        } else {
                            lane.commit(take).unwrap();
                            waiter.progressed();
                            sent += take as u64;
                        }
                    }
                });
                let mut lane = RingReceiver::new(region.clone(), place, bell(0), None).unwrap();
                let mut waiter = Waiter::new(bell(1), patience(seed % 2));
                let (mut received, mut state) = (0, !seed);
                while received < BYTES {
                    let wish = 1 + next(&mut state) % capacity as u64;
                    let data = lane.peek(usize::MAX).unwrap();
                    let take = data.len().min(wish as usize);
                    for (&byte, at) in data[..take].iter().zip(received..) {
                        assert_eq!(byte, ((at * 31) >> 3) as u8, "seed {seed}, byte {at}");
                    }
                    if take == 0 {
                        assert!(Moment::now() < deadline);
                        waiter.idle(Moment::now(), deadline);
                    } else {
                        lane.release(take).unwrap();
                        waiter.progressed();
                        received += take as u64;
                    }
                }
            });
        }
    }

    /// Messages of all sizes and alignments, some offered ahead.
    #[test]
    fn offers_and_copies_are_one_stream() {
        const MESSAGES: usize = 400;
        let region = Arc::new(Region::create(8192).unwrap());
        let bell = |index: usize| Doorbell::new(region.clone(), index * 64);
        let place = RingPlace { offset: 128, capacity: 1024 };
        let (heap, mut areas) = Heap::new(&[[1 << 18]]).unwrap();
        let [area] = &mut areas[0];
        area.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 31 % 251) as u8);
        let peer = Arc::new(PeerHeap::open(heap.place().unwrap()).unwrap());
        let mut state = 5;
        let messages: Vec<_> = (0..MESSAGES)
            .map(|_| {
                let limit = if next(&mut state).is_multiple_of(2) { 200 } else { 60_000 };
                let (start, length) = (next(&mut state) as usize % 100_000, 1 + (next(&mut state) % limit) as usize);
                start..start + length
            })
            .collect();
        let mut receiver = RingReceiver::new(region.clone(), place, bell(0), Some(peer)).unwrap();
        let mut sender = RingSender::new(region.clone(), place, bell(1), Some(heap)).unwrap();
        let expected: Vec<u8> = messages.iter().flat_map(|message| area[message.clone()].to_vec()).collect();
        let (mut current, mut done, mut ahead, mut received) = (0, 0, 0, 0);
        let mut offers = 0;
        for turn in 0.. {
            while current < MESSAGES && (turn + current) % 3 > 0 {
                let message = messages[current].clone();
                done += sender.send(&area[message.start + done..message.end]).unwrap();
                if done < message.len() {
                    break;
                }
                (current, done) = (current + 1, 0);
            }
            ahead = ahead.max(current + 1);
            while ahead < MESSAGES && sender.offer(&area[messages[ahead].clone()]).unwrap() {
                (ahead, offers) = (ahead + 1, offers + 1);
            }
            let wish = 1 + next(&mut state) as usize % 30_000;
            let found = receiver.peek(wish).unwrap();
            let take = found.len().min(wish);
            assert!(found[..take] == expected[received..received + take], "turn {turn}, after {received} bytes");
            receiver.release(take).unwrap();
            received += take;
            if current == MESSAGES {
                break;
            }
        }
        assert!(offers > 10 && received == expected.len());
    }

    #[test]
    fn an_offer_of_memory_that_is_not_there_is_an_error() {
        let region = Arc::new(Region::create(8192).unwrap());
        let bell = Doorbell::new(region.clone(), 0);
        let place = RingPlace { offset: 128, capacity: 64 };
        let (heap, _areas) = Heap::new(&[[1 << 16]]).unwrap();
        let peer = Arc::new(PeerHeap::open(heap.place().unwrap()).unwrap());
        let mut receiver = RingReceiver::new(region.clone(), place, bell, Some(peer)).unwrap();
        for (field, value) in [0, 60_000, 10_000].into_iter().enumerate() {
            receiver.end.offer(0, field).store(value, Ordering::Relaxed);
        }
        receiver.end.counter(OFFERED).store(1, Ordering::Release);
        assert_eq!(receiver.peek(1).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn each_end_exists_once_until_the_ring_is_reset() {
        let region = Arc::new(Region::create(4096).unwrap());
        let bell = Doorbell::new(region.clone(), 0);
        let place = RingPlace { offset: 64, capacity: 64 };
        let take = || RingSender::new(region.clone(), place, bell.clone(), None);
        assert!(take().is_ok());
        assert!(take().is_err());
        place.reset(&region);
        assert!(take().is_ok());
    }
}
