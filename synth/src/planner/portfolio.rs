//! The table of strategies: one line each, in the order in which they are tried.
//!
//! The principal constant is [`PORTFOLIO`]. It contains everything that the planner knows about a strategy.

use crate::problem::StrategyKind;
use crate::strategies::Strategy;
use crate::strategies::classic::Classic;
use crate::strategies::exact::Exact;
use crate::strategies::flow::Flow;
use crate::strategies::improve::Improve;
use crate::strategies::levels::Levels;
use crate::strategies::matching::{Matching, Symmetric};
use crate::strategies::milp::Milp;
use crate::strategies::orbits::OrbitWalk;
use crate::strategies::trees::Trees;
use std::time::Duration;

/// Every strategy; a line states only what differs from [`line()`].
#[rustfmt::skip]
pub(super) const PORTFOLIO: &[StrategyLine] = &[
    StrategyLine { time: LimitedTime::Opening(5), due: Due::Never, ..line(&OrbitWalk) },
    StrategyLine { time: LimitedTime::Opening(5), due: Due::EvenInterrupted, ..line(&Classic) },
    line(&Flow),
    StrategyLine { begins: Begins::Beside, ..line(&Levels) },
    StrategyLine { begins: Begins::Beside, time: LimitedTime::Rest(2), ..line(&Trees) },
    StrategyLine { begins: Begins::Beside, restarts: Restarts::Always, ..line(&Symmetric) },
    StrategyLine { begins: Begins::InTrack, counts: ChunkCounts::BestIfLedBy(StrategyKind::Symmetric), restarts: Restarts::Always, ..line(&Matching) },
    StrategyLine { counts: ChunkCounts::Best, restarts: Restarts::Always, ..line(&Improve) },
    StrategyLine { begins: Begins::WithRestarts, counts: ChunkCounts::Best, longest: SOLVER, auto: Auto::UnlessClose, restarts: Restarts::Alone, ..line(&Milp) },
    StrategyLine { longest: SOLVER, auto: Auto::Never, ..line(&Exact) },
];

/// How the planner runs a strategy.
pub(super) struct StrategyLine {
    pub(super) strategy: &'static dyn Strategy,
    pub(super) begins: Begins,
    pub(super) counts: ChunkCounts,
    /// Its part of a limited time, unless it runs alone.
    pub(super) time: LimitedTime,
    pub(super) longest: Option<LongestRun>,
    /// Whether it must run after the time is up, as long as there is no schedule.
    pub(super) due: Due,
    pub(super) auto: Auto,
    pub(super) restarts: Restarts,
}

/// When a strategy runs again with another seed, because it draws random numbers. One that was named does so only where time is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Restarts {
    Never,
    /// If it was named. Among others, those that always restart find more.
    Alone,
    Always,
}

/// When a strategy begins, if none is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// After all lines before it have ended.
    After,
    /// Together with the line before it, in a track of its own.
    Beside,
    /// In the track of the line before it, after that one.
    InTrack,
    /// After all lines before it, while the restarts run.
    WithRestarts,
}

/// The chunk counts that a strategy tries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkCounts {
    /// All counts, coarse cuts first, then finer ones while they gain.
    All,
    /// Like [`Self::All`], but only the best so far if the given strategy found it, because that one has tried all
    /// counts.
    BestIfLedBy(StrategyKind),
    /// Only the most promising so far.
    Best,
}

/// The part of a limited time that a strategy gets, unless it runs alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitedTime {
    /// One part in this many of the whole time, for all chunk counts together.
    Opening(u32),
    /// One part in this many of the time left. Each chunk count gets half of that, so that some is left for finer cuts.
    Rest(u32),
}

/// How long a strategy may take if time is not limited.
#[derive(Clone, Copy)]
pub(super) struct LongestRun {
    /// If it was named and runs alone.
    pub(super) alone: Duration,
    /// If it is one of several.
    pub(super) among_others: Duration,
}

/// The limit for solvers. Their work is counted and nearly always ends long before this time. The limit catches models
/// on which HiGHS exceeds its counts.
const SOLVER: Option<LongestRun> =
    Some(LongestRun { alone: Duration::from_secs(30), among_others: Duration::from_secs(15) });

/// Whether a strategy must run after the time is up, as long as there is no schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// No, because later strategies must.
    Never,
    /// Yes, unless the user interrupted.
    UnlessInterrupted,
    /// Yes, even after an interrupt, because it takes very little time.
    EvenInterrupted,
}

/// When a strategy runs if none is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Auto {
    Always,
    /// Unless the best schedule is within the requested gap: then this strategy takes the longest and finds the least.
    UnlessClose,
    Never,
}

impl StrategyLine {
    /// Whether it runs again if it was named, or if it is one of several.
    pub(super) fn restarts(&self, is_alone: bool) -> bool {
        match self.restarts {
            Restarts::Never => false,
            Restarts::Alone => is_alone,
            Restarts::Always => true,
        }
    }

    pub(super) fn kind(&self) -> StrategyKind {
        self.strategy.kind()
    }
}

/// The line of most strategies.
const fn line(strategy: &'static dyn Strategy) -> StrategyLine {
    StrategyLine {
        strategy,
        begins: Begins::After,
        counts: ChunkCounts::All,
        time: LimitedTime::Rest(1),
        longest: None,
        due: Due::UnlessInterrupted,
        auto: Auto::Always,
        restarts: Restarts::Never,
    }
}

/// The strategies to run, in their order: the portfolio, or the one that was named.
pub(super) fn chosen(named: Option<StrategyKind>) -> impl Iterator<Item = &'static StrategyLine> {
    PORTFOLIO.iter().filter(move |line| match named {
        None => line.auto != Auto::Never,
        Some(named) => line.kind() == named,
    })
}

/// Strategies that run one after the other.
pub(super) type SearchTrack = Vec<&'static StrategyLine>;

/// Tracks that run side by side.
pub(super) type Wave = Vec<SearchTrack>;

/// `lines` as waves, which run one after the other.
pub(super) fn waves(lines: impl Iterator<Item = &'static StrategyLine>) -> Vec<Wave> {
    let mut waves: Vec<Wave> = Vec::new();
    for line in lines {
        match (line.begins, waves.last_mut()) {
            (Begins::InTrack, Some(wave)) if !wave.is_empty() => wave.last_mut().expect("a track").push(line),
            (Begins::Beside, Some(wave)) => wave.push(vec![line]),
            _ => waves.push(vec![vec![line]]),
        }
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_has_one_line() {
        let listed: Vec<StrategyKind> = PORTFOLIO.iter().map(|line| line.kind()).collect();
        assert_eq!(listed, StrategyKind::ALL);
    }

    #[test]
    fn a_named_strategy_runs_alone() {
        for &kind in StrategyKind::ALL {
            let names: Vec<_> = chosen(Some(kind)).map(|line| line.kind()).collect();
            assert_eq!(names, [kind]);
        }
        assert!(chosen(None).all(|line| line.kind() != StrategyKind::Exact));
    }
}
