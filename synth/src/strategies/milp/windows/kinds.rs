//! Which kind of window comes next, and how much it frees.
//!
//! The principal type is [`WindowKinds`]. A kind that makes the schedule better comes more often. Windows of a kind grow while they
//! are solved to the end, and shrink where a limit left them open.

use super::contents::ChunkGroups;
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
            Self::Deliveries => 12,
            Self::Contents => 30,
        }
    }
}

/// How much of its gains a kind still has after a window.
const MEMORY: f64 = 0.95;
/// The gains that are assumed before any window, of deliveries and of contents: where chunks are alike, and where each is copied.
const ALIKE: [f64; 2] = [0.1, 1.0];
const COPIED: [f64; 2] = [1.0, 0.1];
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
    assumed: f64,
}

impl KindRecord {
    fn new([size, least, most]: [usize; 3], assumed: f64) -> Self {
        Self { size: size.min(most), least, most, gains: assumed, assumed }
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
        let gains = if groups.all.iter().any(|group| group.is_copied) { COPIED } else { ALIKE };
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

    /// Hears of a window: whether it was solved to the end, and whether its schedule was better and taken.
    pub(super) fn hear(&mut self, kind: WindowKind, is_proven: bool, is_gain: bool) {
        let record = match kind {
            WindowKind::Deliveries => &mut self.deliveries,
            WindowKind::Contents => &mut self.contents,
        };
        let KindRecord { size, least, most, assumed, gains } = *record;
        record.size = if is_proven { (size + 1).min(most) } else { (size * 4 / 5).max(least) };
        record.gains = assumed + (gains - assumed) * MEMORY + f64::from(is_gain);
    }
}

/// A number from 0 to 1.
pub(super) fn unit(random: &mut Pcg64Mcg) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX)
}
