//! How a rank tells its peers, without the help of rank 0, that a communicator is broken.
//!
//! The principal types are [`BreachNotice`], and [`WaitNotice`]: for whom a rank waits. Rank 0's process passes news of breaches on
//! to all ranks, until it leaves. So every rank also writes its notices in its own memory, where ranks of the same machine find them, and sends them to the others. Who waits for a rank
//! reads its notices.
//!
//! ```text
//! board: | count of notices | the last 8: communicator, word | the last wait: communicator, word |
//!          8 B                8 × (8 B, 8 B)                   8 B, 8 B
//! ```
//!
//! A rank whose call has waited for half its limit says for whom. If several wait for each other in a chain, their limits end at
//! about the same time, and each of them finds the rank at the end of the chain, which waits for nobody: that one is late.

use crate::error::{Breach, RunErrorKind};
use crate::memory::region::Region;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use topology::Rank;

/// How many notices a board has.
const NOTICES: usize = 8;
/// The bytes of a board, in whole cache lines.
pub(crate) const BOARD_BYTES: usize = 192;
/// Bits of a rank in a word.
const RANK_BITS: u32 = 28;
const RANK_MASK: u64 = (1 << RANK_BITS) - 1;

/// A communicator is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BreachNotice {
    pub(crate) communicator: u64,
    /// The rank whose call failed first, as far as the teller knows.
    by: Rank,
    kind: RunErrorKind,
    /// The rank that was the cause.
    cause: Option<Rank>,
}

impl BreachNotice {
    pub(crate) fn of_breach(communicator: u64, breach: &Breach) -> Self {
        Self { communicator, by: breach.by, kind: breach.kind, cause: breach.cause }
    }

    /// A rank waits for one that is late.
    pub(crate) fn late(communicator: u64, by: Rank, late: Rank) -> Self {
        Self { communicator, by, kind: RunErrorKind::Late, cause: Some(late) }
    }

    pub(crate) fn breach(&self) -> Breach {
        let reason = match (self.kind, self.cause) {
            (RunErrorKind::Aborted, _) => format!("rank {} has aborted them", self.by),
            (RunErrorKind::PeerLost, Some(cause)) => format!("rank {cause} is gone, or has left the session"),
            (RunErrorKind::Late, Some(cause)) => format!("rank {cause} did not do its part in time"),
            (_, Some(cause)) => format!("it does not agree with rank {cause}"),
            (_, None) => "the cause is known there".to_owned(),
        };
        Breach { by: self.by, cause: self.cause, kind: self.kind, reason }
    }

    pub(crate) fn to_word(self) -> u64 {
        let kind = RunErrorKind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u64;
        let cause = self.cause.map_or(0, |cause| u64::from(cause.0) + 1);
        kind << (2 * RANK_BITS) | (cause & RANK_MASK) << RANK_BITS | u64::from(self.by.0) & RANK_MASK
    }

    /// Every word is a notice, also one that a faulty process wrote.
    pub(crate) fn of_word(communicator: u64, word: u64) -> Self {
        let kind = RunErrorKind::ALL[(word >> (2 * RANK_BITS)) as usize % RunErrorKind::ALL.len()];
        let cause = (word >> RANK_BITS & RANK_MASK).checked_sub(1).map(|cause| Rank(cause as u32));
        Self { communicator, by: Rank((word & RANK_MASK) as u32), kind, cause }
    }
}

/// For whom a rank waits, and has waited for long; or that it does so no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitNotice {
    pub(crate) communicator: u64,
    pub(crate) awaited: Option<Rank>,
}

impl WaitNotice {
    pub(crate) fn to_word(self) -> u64 {
        self.awaited.map_or(0, |awaited| u64::from(awaited.0) + 1)
    }

    /// Every word is a notice, also one that a faulty process wrote.
    pub(crate) fn of_word(communicator: u64, word: u64) -> Self {
        let rank = |number: u64| u32::try_from(number).ok().map(Rank);
        Self { communicator, awaited: word.checked_sub(1).and_then(rank) }
    }
}

/// The notices of a rank, in its memory.
pub(crate) struct NoticeBoard {
    region: Arc<Region>,
    offset: usize,
}

impl NoticeBoard {
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { region, offset }
    }

    fn place(&self, number: u64) -> usize {
        self.offset + 8 + 16 * (number as usize % NOTICES)
    }

    /// Writes a notice. Only one thread of the owner does so at a time.
    pub(crate) fn write(&self, notice: BreachNotice) {
        let count = self.region.word64(self.offset);
        let number = count.load(Ordering::Relaxed);
        let place = self.place(number);
        self.region.word64(place + 8).store(notice.to_word(), Ordering::Relaxed);
        self.region.word64(place).store(notice.communicator, Ordering::Relaxed);
        count.store(number + 1, Ordering::Release);
    }

    /// Writes for whom the owner waits. What it has written before is replaced.
    pub(crate) fn write_wait(&self, notice: WaitNotice) {
        let place = self.place(0) + 16 * NOTICES;
        self.region.word64(place).store(0, Ordering::Relaxed);
        self.region.word64(place + 8).store(notice.to_word(), Ordering::Release);
        self.region.word64(place).store(notice.communicator, Ordering::Release);
    }

    /// For whom the owner waits in a communicator, and has waited for long. What is being replaced may be misread: then a rank
    /// is blamed that is not the last of a chain.
    pub(crate) fn waits_for(&self, communicator: u64) -> Option<Rank> {
        let place = self.place(0) + 16 * NOTICES;
        let is_it = self.region.word64(place).load(Ordering::Acquire) == communicator;
        let word = self.region.word64(place + 8).load(Ordering::Acquire);
        is_it.then(|| WaitNotice::of_word(communicator, word).awaited)?
    }

    /// The notice of a communicator, if there is one. A notice that is being replaced may be misread: then a reason is wrong, and
    /// never a communicator.
    pub(crate) fn find(&self, communicator: u64) -> Option<BreachNotice> {
        let count = self.region.word64(self.offset).load(Ordering::Acquire);
        let words = (count.saturating_sub(NOTICES as u64)..count).map(|number| {
            let place = self.place(number);
            [place, place + 8].map(|at| self.region.word64(at).load(Ordering::Relaxed))
        });
        let (_, word) = words.map(|[of, word]| (of, word)).find(|(of, _)| *of == communicator)?;
        Some(BreachNotice::of_word(communicator, word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_written_and_the_oldest_are_forgotten() {
        let board = NoticeBoard::new(Arc::new(Region::create(4096).unwrap()), 64);
        assert_eq!(board.find(0), None);
        for communicator in 0..20 {
            let (by, cause, kind) = (Rank(3), Some(Rank(1000)), RunErrorKind::Late);
            let notice = BreachNotice { communicator, by, kind, cause };
            board.write(notice);
            assert_eq!(board.find(communicator), Some(notice));
            assert!(notice.breach().reason.contains("rank 1000"), "{:?}", notice.breach());
        }
        assert_eq!(board.find(11), None);
        assert!(board.find(12).is_some());
        assert_eq!(board.waits_for(12), None);
        for awaited in [Some(Rank(0)), Some(Rank(1 << 20)), None] {
            board.write_wait(WaitNotice { communicator: 12, awaited });
            assert_eq!([12, 13].map(|of| board.waits_for(of)), [awaited, None]);
        }
        assert_eq!(WaitNotice::of_word(1, u64::MAX).awaited, None);
        for word in [0, u64::MAX, 1 << 60, 7 << 56] {
            BreachNotice::of_word(1, word).breach();
        }
    }
}
