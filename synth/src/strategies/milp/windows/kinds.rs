//! Which kind of window comes next, and how much it frees.
//!
//! The principal type is [`WindowKinds`]. A kind that makes the schedule better comes more often. Windows of a kind grow while they
//! are solved to the end, and shrink where a limit left them open.

use super::contents::{ChunkGroups, GroupKind};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// What a window frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowKind {
    /// A few messages, whose deliveries get other links, turns and messages.
    Deliveries,
    /// Some chunks, which get other ways in the messages as they are.
    Contents,
}

impl WindowKind {
    /// A window may take one in so many of the iterations that the limits allow for a call of the solver.
    pub(super) fn part(self) -> u64 {
        match self {
            Self::Deliveries => 20,
            Self::Contents => 50,
        }
    }
}

/// How a window has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowEnd {
    /// Solved to the end.
    Proven,
    /// A limit left it open.
    Limited,
    /// Its model would have been too large.
    TooLarge,
}

/// How much of its gains a kind still has after a window, and after one that was too large.
const MEMORY: f64 = 0.95;
const MEMORY_OF_TOO_LARGE: f64 = 0.5;
/// The least gains: each kind comes again at some time.
const LEAST_GAINS: f64 = 0.05;
/// The gains that are assumed before any window, of deliveries and of contents: where chunks are alike, copied, or sums.
const ALIKE: [f64; 2] = [0.1, 1.0];
const COPIED: [f64; 2] = [1.0, 0.6];
const SUMMED: [f64; 2] = [0.5, 1.0];
/// The deliveries that a window frees: at first, at least and at most. Each window frees about half of it to all.
const DELIVERIES: [usize; 3] = [10, 6, 60];
/// The groups of chunks that a window of contents frees at first and at least; at most, it frees all, and is so many times as wide.
const GROUPS: [usize; 2] = [3, 1];
const WIDEST: usize = 4;

/// How a kind of window has done.
struct KindRecord {
    size: usize,
    least: usize,
    most: usize,
    gains: f64,
}

impl KindRecord {
    fn new([size, least, most]: [usize; 3], gains: f64) -> Self {
        Self { size: size.min(most), least, most, gains }
    }
}

/// The sizes and gains of both kinds.
pub(super) struct WindowKinds {
    deliveries: KindRecord,
    contents: KindRecord,
}

impl WindowKinds {
    /// For a problem with these groups of chunks.
    pub(super) fn new(groups: &ChunkGroups) -> Self {
        let contents = [GROUPS[0], GROUPS[1], groups.all.len() * WIDEST];
        let has = |kind| groups.all.iter().any(|group| group.kind == kind);
        let gains = match () {
            () if has(GroupKind::Summed) => SUMMED,
            () if has(GroupKind::Copied) => COPIED,
            () => ALIKE,
        };
        Self { deliveries: KindRecord::new(DELIVERIES, gains[0]), contents: KindRecord::new(contents, gains[1]) }
    }

    /// The kind of the next window, and its size.
    pub(super) fn draw(&self, random: &mut Pcg64Mcg) -> (WindowKind, usize) {
        let share = self.contents.gains / (self.contents.gains + self.deliveries.gains);
        match unit(random) < share {
            true => (WindowKind::Contents, self.contents.size),
            false => (WindowKind::Deliveries, self.deliveries.size),
        }
    }

    /// Hears how a window has ended, and whether its schedule was better.
    pub(super) fn hear(&mut self, kind: WindowKind, end: WindowEnd, is_gain: bool) {
        let record = match kind {
            WindowKind::Deliveries => &mut self.deliveries,
            WindowKind::Contents => &mut self.contents,
        };
        let (size, memory) = match end {
            WindowEnd::Proven => (record.size + 1, MEMORY),
            WindowEnd::Limited => (record.size * 4 / 5, MEMORY),
            WindowEnd::TooLarge => (record.size / 2, MEMORY_OF_TOO_LARGE),
        };
        record.size = size.clamp(record.least, record.most.max(record.least));
        record.gains = (record.gains * memory).max(LEAST_GAINS) + f64::from(is_gain);
    }
}

/// A number from 0 to 1.
pub(super) fn unit(random: &mut Pcg64Mcg) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::{asked, random_machine};
    use rand_pcg::rand_core::SeedableRng;
    use schedule::Collective;

    /// How many of 1000 windows free contents.
    fn contents(kinds: &WindowKinds) -> usize {
        let mut random = Pcg64Mcg::seed_from_u64(3);
        (0..1000).filter(|_| kinds.draw(&mut random).0 == WindowKind::Contents).count()
    }

    #[test]
    fn the_kind_that_gains_comes_more_often_and_one_that_is_too_large_less_often() {
        let groups = ChunkGroups::new(&asked(random_machine(1), Collective::AllToAll, 6_000));
        let mut kinds = WindowKinds::new(&groups);
        let at_first = contents(&kinds);
        (0..3).for_each(|_| kinds.hear(WindowKind::Deliveries, WindowEnd::Proven, true));
        let after_gains = contents(&kinds);
        assert!(after_gains + 200 < at_first, "{after_gains} of {at_first}");
        (0..6).for_each(|_| kinds.hear(WindowKind::Contents, WindowEnd::TooLarge, false));
        let (kind, after_too_large) = (kinds.contents.size, contents(&kinds));
        assert!(kind == GROUPS[1] && after_too_large * 2 < after_gains, "{after_too_large} of {after_gains}");
        assert!(after_too_large > 0, "it comes again at some time");
    }

    #[test]
    fn windows_grow_while_they_are_solved_and_shrink_at_limits() {
        let groups = ChunkGroups::new(&asked(random_machine(1), Collective::AllGather, 6_000));
        let mut kinds = WindowKinds::new(&groups);
        (0..1000).for_each(|_| kinds.hear(WindowKind::Contents, WindowEnd::Proven, false));
        assert_eq!(kinds.contents.size, groups.all.len() * WIDEST);
        (0..1000).for_each(|_| kinds.hear(WindowKind::Contents, WindowEnd::Limited, false));
        assert_eq!(kinds.contents.size, GROUPS[1]);
    }
}
