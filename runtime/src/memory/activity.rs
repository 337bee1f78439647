//! What each rank is doing, for the ranks that wait for it.
//!
//! The principal type is [`Activity`]: signs of life, counters of movement, and phases.

use crate::memory::atomics::AtomicU64;
use crate::memory::segment::{BEATS, ELSEWHERE, MOVES, PHASE, PROGRESS, Words};
use crate::verdict::Phase;
use std::sync::atomic::Ordering;
use topology::Rank;

/// Counters of all ranks. Only messages and deadlines use them, so relaxed ordering is enough.
#[derive(Clone)]
pub(crate) struct Activity {
    words: Words,
}

impl Activity {
    pub(super) fn new(words: Words) -> Self {
        Self { words }
    }

    /// How many signs of life a rank has given.
    pub(crate) fn beats(&self, rank: Rank) -> &AtomicU64 {
        self.words.of_rank(rank, BEATS)
    }

    /// How many steps a rank has finished since the job began.
    pub(crate) fn progress(&self, rank: Rank) -> &AtomicU64 {
        self.words.of_rank(rank, PROGRESS)
    }

    /// How many times a rank has moved bytes.
    pub(crate) fn moves(&self, rank: Rank) -> &AtomicU64 {
        self.words.of_rank(rank, MOVES)
    }

    pub(crate) fn phase(&self, rank: Rank) -> Phase {
        Phase::from_word(self.words.of_rank(rank, PHASE).load(Ordering::Relaxed))
    }

    pub(crate) fn enter(&self, rank: Rank, phase: Phase) {
        self.words.of_rank(rank, PHASE).store(phase as u64, Ordering::Relaxed);
    }

    /// Records the activity of a rank on another machine.
    pub(crate) fn mirror(&self, rank: Rank, beats: u64, (moves, progress): (u64, u64), phase: Phase) {
        // Reports older than the last sign of life are ignored.
        if beats >= self.beats(rank).fetch_max(beats, Ordering::Relaxed) {
            self.moves(rank).store(moves, Ordering::Relaxed);
            self.progress(rank).store(progress, Ordering::Relaxed);
            self.enter(rank, phase);
        }
    }

    /// Records the activity of the whole job. The coordinator counts it, because all ranks report to it.
    pub(crate) fn heard_of(&self, activity: u64) {
        self.words.of_all(ELSEWHERE).store(activity, Ordering::Relaxed);
    }

    /// A number that changes when any rank moves bytes or enters a phase. Changes on other machines arrive as reports.
    pub(crate) fn sum(&self) -> u64 {
        let phase = |rank| self.words.of_rank(rank, PHASE).load(Ordering::Relaxed);
        let of = |rank| self.moves(rank).load(Ordering::Relaxed) * 8 + phase(rank);
        let elsewhere = self.words.of_all(ELSEWHERE).load(Ordering::Relaxed);
        self.words.ranks().map(of).fold(elsewhere, u64::wrapping_add)
    }
}
