//! The order of measurements: candidates alternate in blocks, so that a drift of the machine affects all of them alike.

/// One block of repetitions of one candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The candidate, in the caller's numbering.
    pub candidate: usize,
    /// Repetitions to discard.
    pub warmups: u32,
    /// Repetitions to keep.
    pub repetitions: u32,
}

/// `blocks` rounds over all candidates, with `repetitions` per candidate in all. Each round starts one candidate later.
/// The coordinator computes this once; no rank derives a count from its own clock.
pub fn interleaved(candidates: usize, blocks: u32, repetitions: u32) -> Vec<Turn> {
    let blocks = blocks.clamp(1, repetitions.max(1));
    let mut plan = Vec::with_capacity(candidates * blocks as usize);
    for block in 0..blocks {
        let share = repetitions * (block + 1) / blocks - repetitions * block / blocks;
        for offset in 0..candidates {
            let candidate = (block as usize + offset) % candidates;
            plan.push(Turn { candidate, warmups: 1, repetitions: share });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_candidate_gets_its_repetitions_and_no_fixed_place() {
        let plan = interleaved(3, 4, 10);
        for candidate in 0..3 {
            let of = plan.iter().filter(|trial| trial.candidate == candidate);
            assert_eq!(of.map(|trial| trial.repetitions).sum::<u32>(), 10);
        }
        let first: Vec<_> = plan.chunks(3).map(|round| round[0].candidate).collect();
        assert_eq!(first, [0, 1, 2, 0]);
    }
}
