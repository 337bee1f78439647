//! The places of a trial's rings and flags in the memory that the ranks of a machine share.
//!
//! The principal type is [`Arena`]. Every process computes it from the same numbers, so no addresses are exchanged.

use crate::error::{RunError, RunResult};
use crate::memory::atomics::AtomicU64;
use crate::memory::region::Region;
use crate::transport::shared::ring::RingPlace;
use program::ConnectionId;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The smallest useful ring, in bytes.
const LEAST_RING: usize = 4096;

/// The layout for one trial, or for one program of it.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    /// By connection; a connection to another machine has no ring.
    rings: Vec<Option<RingPlace>>,
    flags: usize,
    flag_count: usize,
}

impl Arena {
    /// Places a ring of `least` to `most` bytes for each lane that needs one, and flags behind them. Resets nothing.
    ///
    /// # Errors
    /// [`RunError::TooManyConnections`] if `room` is too small.
    pub(crate) fn lay_out(
        room: Range<usize>,
        lanes: &[bool],
        [least, most]: [usize; 2],
        flags: usize,
    ) -> RunResult<Self> {
        let connections = lanes.iter().filter(|&&has_ring| has_ring).count();
        let share = room.len().saturating_sub(flags * 8) / connections.max(1) / 64 * 64;
        let capacity = share.saturating_sub(RingPlace::footprint(0)).min(most.next_multiple_of(64));
        if connections > 0 && capacity < LEAST_RING.min(most).max(least) || flags * 8 > room.len() {
            return Err(RunError::TooManyConnections { connections, bytes: room.len() });
        }
        let place = |index| RingPlace { offset: room.start + index * RingPlace::footprint(capacity), capacity };
        let mut places = (0..connections).map(place);
        let rings = lanes.iter().map(|&has_ring| if has_ring { places.next() } else { None }).collect();
        Ok(Self { rings, flags: place(connections).offset, flag_count: flags })
    }

    /// The part of the layout with these lanes and these flags.
    pub(crate) fn share(&self, lanes: Range<usize>, flags: Range<usize>) -> Self {
        let flag_count = flags.len();
        Self { rings: self.rings[lanes].to_vec(), flags: self.flags + flags.start * 8, flag_count }
    }

    /// The ring of a connection.
    ///
    /// # Errors
    /// If it has none, because its ranks are on different machines.
    pub(crate) fn ring(&self, id: ConnectionId) -> io::Result<RingPlace> {
        self.rings[id.index()].ok_or_else(|| io::Error::other("it has no shared memory"))
    }

    fn rings(&self) -> impl Iterator<Item = RingPlace> {
        self.rings.iter().flatten().copied()
    }

    /// The offset of a flag.
    fn flag_at(&self, index: usize) -> usize {
        assert!(index < self.flag_count, "the arena was laid out for this program");
        self.flags + index * 8
    }

    /// The flag of the `index`-th transfer: the last call in which its message claimed its resources.
    pub(crate) fn flag<'r>(&self, region: &'r Region, index: usize) -> &'r AtomicU64 {
        region.word64(self.flag_at(index))
    }

    /// Empties all rings and clears all flags. Call it only while every rank is idle.
    pub(crate) fn reset(&self, region: &Region) {
        self.rings().for_each(|ring| ring.reset(region));
        (0..self.flag_count).for_each(|index| self.flag(region, index).store(0, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Range<usize> = 4096..4096 + (1 << 17);

    fn all(lanes: usize, least: usize, flags: usize) -> RunResult<Arena> {
        Arena::lay_out(ROOM, &vec![true; lanes], [least, 1 << 20], flags)
    }

    #[test]
    fn rings_fit_the_arena_or_are_refused() {
        for connections in [1, 2, 7, 15] {
            let arena = all(connections, 0, 100).unwrap();
            let last = arena.rings().last().unwrap();
            assert!(last.offset + RingPlace::footprint(last.capacity) <= arena.flag_at(0));
            assert!(arena.flag_at(99) + 8 <= ROOM.end);
        }
        for (connections, least, flags) in [(1000, 0, 0), (2, 1 << 16, 0), (1, 0, 1 << 20)] {
            assert!(matches!(all(connections, least, flags), Err(RunError::TooManyConnections { .. })));
        }
    }

    #[test]
    fn lanes_between_machines_take_no_room() {
        let lanes: Vec<bool> = (0..1_000_000).map(|lane| lane % 500_000 == 7).collect();
        let (many, two) = (Arena::lay_out(ROOM, &lanes, [0, 1 << 20], 0).unwrap(), all(2, 0, 0).unwrap());
        let ring = |arena: &Arena, lane| arena.ring(ConnectionId(lane)).unwrap();
        assert_eq!([ring(&many, 7), ring(&many, 500_007)], [ring(&two, 0), ring(&two, 1)]);
        assert!(many.ring(ConnectionId(8)).is_err());
    }
}
