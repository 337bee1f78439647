//! Whether a job has ended, for every rank of a machine.
//!
//! The principal type is [`StopFlag`]: one word of shared memory with the first verdict, and one word of this process.

use crate::error::{RunError, RunResult};
use crate::memory::atomics::AtomicU64;
use crate::memory::segment::{Bells, VERDICT, Words};
use crate::verdict::Verdict;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Ends all waits once there is a verdict.
#[derive(Clone)]
pub(crate) struct StopFlag {
    words: Words,
    bells: Bells,
    /// Why this process alone has given up: a verdict's word, or zero.
    abandoned: Arc<AtomicU64>,
}

impl StopFlag {
    pub(super) fn new(words: Words, bells: Bells) -> Self {
        Self { words, bells, abandoned: Arc::default() }
    }

    /// Publishes a verdict and wakes all ranks. Returns the verdict that stands, which is the first one.
    pub(crate) fn pronounce(&self, verdict: Verdict) -> Verdict {
        let word = self.words.of_all(VERDICT);
        let first = word.compare_exchange(0, verdict.to_word(), Ordering::AcqRel, Ordering::Acquire);
        self.bells.ring_all();
        first.err().and_then(Verdict::from_word).unwrap_or(verdict)
    }

    /// Ends every wait of this process only. A rank that has lost its launcher may not decide for others.
    pub(crate) fn abandon(&self, verdict: Verdict) {
        self.abandoned.store(verdict.to_word(), Ordering::Release);
        self.bells.ring_all();
    }

    /// # Errors
    /// The verdict, if there is one.
    pub(crate) fn check(&self) -> RunResult<()> {
        let words = [self.words.of_all(VERDICT), &self.abandoned];
        match words.into_iter().find_map(|word| Verdict::from_word(word.load(Ordering::Acquire))) {
            Some(verdict) => Err(RunError::Verdict(verdict)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::{Segment, SegmentShape};
    use crate::verdict::{Cause, Phase};
    use topology::Rank;

    fn segment(ranks: usize) -> Segment {
        Segment::create(SegmentShape { ranks, clocks: 3, room: 1 << 17, spread: false }).unwrap()
    }

    #[test]
    fn the_first_verdict_stands() {
        let segment = segment(300);
        assert!(segment.verdict.check().is_ok());
        let first = Verdict { rank: Rank(2), cause: Cause::Died, phase: Phase::Work };
        assert_eq!(segment.verdict.pronounce(first), first);
        assert_eq!(segment.verdict.pronounce(Verdict { rank: Rank(1), ..first }), first);
        assert!(matches!(segment.verdict.check(), Err(RunError::Verdict(verdict)) if verdict == first));
    }

    #[test]
    fn who_is_abandoned_ends_alone() {
        let here = segment(2);
        let there = Segment::open(here.descriptor().try_clone_to_owned().unwrap(), here.shape()).unwrap();
        let orphaned = Verdict { rank: Rank(1), cause: Cause::Orphaned, phase: Phase::Work };
        there.verdict.abandon(orphaned);
        assert!(here.verdict.check().is_ok());
        assert!(matches!(there.verdict.check(), Err(RunError::Verdict(verdict)) if verdict == orphaned));
        // A verdict for all ranks still overrides.
        let verdict = Verdict { cause: Cause::Died, ..orphaned };
        assert_eq!(here.verdict.pronounce(verdict), verdict);
        assert!(matches!(there.verdict.check(), Err(RunError::Verdict(last)) if last == verdict));
    }
}
