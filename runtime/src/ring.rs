//! A lane through shared memory: a single-producer single-consumer ring of bytes.
//!
//! The principal types are [`RingSender`] and [`RingReceiver`]. Two counters of all bytes ever sent and ever
//! consumed sit on cache lines of their own; each end owns one and only reads the other [1]. No message has a
//! header: both ends know every length from the program.
//!
//! ```text
//! offset: | head | tail | sender taken, receiver taken | capacity bytes of payload |
//!           0      64     128                            192
//! ```
//!
//! [1] Lamport, "Specifying concurrent program modules", TOPLAS 1983.

use crate::board::{Arena, Board};
use crate::doorbell::Doorbell;
use crate::region::Region;
use crate::transport::{ReceiveLane, SendLane, Transport};
use schedule::program::{Connection, ConnectionId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const HEAD: usize = 0;
const TAIL: usize = 64;
const TAKEN: usize = 128;
const DATA: usize = 192;

/// Where a ring lies. Offset and capacity are multiples of 64, so no element is ever split by the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingPlace {
    pub(crate) offset: usize,
    pub(crate) capacity: usize,
}

impl RingPlace {
    /// The bytes of a ring with this capacity.
    pub(crate) const fn footprint(capacity: usize) -> usize {
        DATA + capacity
    }

    /// Empties the ring for new ends. Only while nobody uses it.
    pub(crate) fn reset(self, region: &Region) {
        region.word64(self.offset + HEAD).store(0, Ordering::Relaxed);
        region.word64(self.offset + TAIL).store(0, Ordering::Relaxed);
        region.word32(self.offset + TAKEN).store(0, Ordering::Relaxed);
        region.word32(self.offset + TAKEN + 4).store(0, Ordering::Release);
    }
}

/// The rings that a board has for a program, one per connection.
pub(crate) struct Rings<'a> {
    pub(crate) board: &'a Board,
    pub(crate) arena: &'a Arena,
}

impl Transport for Rings<'_> {
    fn sender(&self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn SendLane>> {
        let (memory, place) = (self.board.region().clone(), self.arena.rings[id.index()]);
        Ok(Box::new(RingSender::new(memory, place, self.board.bell(connection.to))?))
    }

    fn receiver(&self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn ReceiveLane>> {
        let (memory, place) = (self.board.region().clone(), self.arena.rings[id.index()]);
        Ok(Box::new(RingReceiver::new(memory, place, self.board.bell(connection.from))?))
    }
}

/// One end: its own counter is the truth, the peer's is read when needed.
struct End {
    region: Arc<Region>,
    place: RingPlace,
    mine: u64,
    peer: Doorbell,
}

impl End {
    fn new(region: Arc<Region>, place: RingPlace, side: usize, peer: Doorbell) -> io::Result<Self> {
        assert!(place.offset.is_multiple_of(64) && place.capacity.is_multiple_of(64), "rings are aligned");
        region.pointer(place.offset, RingPlace::footprint(place.capacity));
        // Each end exists once: this is what makes the slices below exclusive.
        if region.word32(place.offset + TAKEN + 4 * side).swap(1, Ordering::AcqRel) != 0 {
            return Err(io::Error::other("this end of the connection is already in use"));
        }
        Ok(Self { region, place, mine: 0, peer })
    }

    fn counter(&self, which: usize) -> &std::sync::atomic::AtomicU64 {
        self.region.word64(self.place.offset + which)
    }

    /// The `available` bytes from this end's counter on, up to the end of the payload.
    fn window(&self, available: u64) -> (*mut u8, usize) {
        let capacity = self.place.capacity;
        let at = (self.mine % capacity as u64) as usize;
        // A peer gone mad must not lead us outside the ring.
        let length = (available.min(capacity as u64) as usize).min(capacity - at);
        (self.region.pointer(self.place.offset + DATA + at, length), length)
    }

    fn advance(&mut self, which: usize, bytes: usize) {
        self.mine += bytes as u64;
        self.counter(which).store(self.mine, Ordering::Release);
        self.peer.ring();
    }
}

/// The producer.
pub(crate) struct RingSender(End);

impl RingSender {
    /// Takes the sender's end; `peer` is the receiver's bell.
    ///
    /// # Errors
    /// If it is taken.
    pub(crate) fn new(region: Arc<Region>, place: RingPlace, peer: Doorbell) -> io::Result<Self> {
        End::new(region, place, 0, peer).map(Self)
    }
}

impl SendLane for RingSender {
    fn reserve(&mut self) -> io::Result<&mut [u8]> {
        let used = self.0.mine.wrapping_sub(self.0.counter(TAIL).load(Ordering::Acquire));
        let (pointer, length) = self.0.window((self.0.place.capacity as u64).saturating_sub(used));
        // SAFETY: in bounds (`window` checked). Bytes from head to tail + capacity belong to the only sender
        // until it commits them; the Acquire above orders the receiver's reads before our writes. The slice
        // borrows `self`, so it is gone before `commit`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.0.advance(HEAD, bytes);
        Ok(())
    }
}

/// The consumer.
pub(crate) struct RingReceiver(End);

impl RingReceiver {
    /// Takes the receiver's end; `peer` is the sender's bell.
    ///
    /// # Errors
    /// If it is taken.
    pub(crate) fn new(region: Arc<Region>, place: RingPlace, peer: Doorbell) -> io::Result<Self> {
        End::new(region, place, 1, peer).map(Self)
    }
}

impl ReceiveLane for RingReceiver {
    fn peek(&mut self) -> io::Result<&[u8]> {
        let available = self.0.counter(HEAD).load(Ordering::Acquire).wrapping_sub(self.0.mine);
        let (pointer, length) = self.0.window(available);
        // SAFETY: in bounds (`window` checked). Bytes from tail to head belong to the only receiver until it
        // releases them; the Acquire above makes the sender's writes visible.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    fn release(&mut self, bytes: usize) -> io::Result<()> {
        self.0.advance(TAIL, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::doorbell::Waiter;
    use std::time::Duration;

    /// A multiplicative generator: the pieces must differ from run to run of the loop, not be random.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 33
    }

    /// Bytes pass in order and unchanged, whatever the piece sizes, with both ends sleeping and waking.
    #[test]
    fn bytes_pass_in_order_for_every_interleaving_of_piece_sizes() {
        const BYTES: u64 = 40_000;
        for seed in 0..30u64 {
            let capacity = 64 * (1 + seed as usize % 5);
            let region = Arc::new(Region::create(4096).unwrap());
            let bell = |index: usize| Doorbell::new(region.clone(), index * 64);
            let place = RingPlace { offset: 128, capacity };
            let deadline = Moment::now().after(Duration::from_secs(20));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut lane = RingSender::new(region.clone(), place, bell(1)).unwrap();
                    let mut waiter = Waiter::new(bell(0), Duration::from_micros(seed % 3));
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
                let mut lane = RingReceiver::new(region.clone(), place, bell(0)).unwrap();
                let mut waiter = Waiter::new(bell(1), Duration::from_micros(seed % 2));
                let (mut received, mut state) = (0, !seed);
                while received < BYTES {
                    let wish = 1 + next(&mut state) % capacity as u64;
                    let data = lane.peek().unwrap();
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

    #[test]
    fn each_end_exists_once_until_the_ring_is_reset() {
        let region = Arc::new(Region::create(4096).unwrap());
        let bell = Doorbell::new(region.clone(), 0);
        let place = RingPlace { offset: 64, capacity: 64 };
        let take = || RingSender::new(region.clone(), place, bell.clone());
        assert!(take().is_ok());
        assert!(take().is_err());
        place.reset(&region);
        assert!(take().is_ok());
    }
}
