//! The table of strategies: one line each, in the order in which they are tried.
//!
//! The principal constant is [`PORTFOLIO`]. All that the planner knows about a strategy stands in its line.

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

/// Every strategy; a line says only how it differs from [`line()`].
#[rustfmt::skip]
pub(super) const PORTFOLIO: &[StrategyLine] = &[
    StrategyLine { time: LimitedTime::Opening(5), due: Due::Never, ..line(StrategyKind::Orbits, &OrbitWalk) },
    StrategyLine { time: LimitedTime::Opening(5), due: Due::EvenInterrupted, ..line(StrategyKind::Classic, &Classic) },
    line(StrategyKind::Flow, &Flow),
    line(StrategyKind::Levels, &Levels),
    StrategyLine { time: LimitedTime::Rest(2), ..line(StrategyKind::Trees, &Trees) },
    line(StrategyKind::Symmetric, &Symmetric),
    StrategyLine { counts: ChunkCounts::BestIfLedBy(StrategyKind::Symmetric), ..line(StrategyKind::Matching, &Matching) },
    StrategyLine { counts: ChunkCounts::Best, ..line(StrategyKind::Improve, &Improve) },
    StrategyLine { counts: ChunkCounts::Best, longest: SOLVER, auto: Auto::UnlessClose, ..line(StrategyKind::Milp, &Milp) },
    StrategyLine { longest: SOLVER, auto: Auto::Never, ..line(StrategyKind::Exact, &Exact) },
];

/// How a strategy runs.
pub(super) struct StrategyLine {
    pub(super) kind: StrategyKind,
    pub(super) strategy: &'static dyn Strategy,
    /// Which chunk counts it tries.
    pub(super) counts: ChunkCounts,
    /// What it gets of a limited time while it is one of many.
    pub(super) time: LimitedTime,
    /// How long it may take where time is not limited.
    pub(super) longest: Option<LongestRun>,
    /// Whether it must try although the time is up, as long as there is no schedule.
    pub(super) due: Due,
    /// When it runs unless a strategy is named.
    pub(super) auto: Auto,
}

/// Which chunk counts a strategy tries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkCounts {
    /// Coarse cuts first, then finer ones while they gain.
    All,
    /// As [`Self::All`], but only the best so far where this strategy found it: that one has been at all of them already.
    BestIfLedBy(StrategyKind),
    /// The most promising so far.
    Best,
}

/// What a strategy that is one of many gets of a limited time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitedTime {
    /// One in so many parts of the whole, for all chunk counts together.
    Opening(u32),
    /// One in so many parts of what is left; each chunk count gets half of that, so that there is some for finer cuts.
    Rest(u32),
}

/// How long a strategy may take where time is not limited.
#[derive(Clone, Copy)]
pub(super) struct LongestRun {
    /// Where it was named.
    pub(super) alone: Duration,
    /// While it is one of many.
    pub(super) among_others: Duration,
}

/// The work of a solver is counted and nearly always ends long before this, which catches the models on which HiGHS
/// overshoots.
const SOLVER: Option<LongestRun> =
    Some(LongestRun { alone: Duration::from_secs(30), among_others: Duration::from_secs(15) });

/// Whether a strategy that is one of many must try although the time is up, as long as there is no schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Others follow that will.
    Never,
    /// Unless the user interrupted.
    UnlessInterrupted,
    /// It takes so little time that an interrupt can wait for it.
    EvenInterrupted,
}

/// When a strategy runs unless one is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Auto {
    Always,
    /// It takes the longest and finds the least where the best so far is within the gap that was asked for.
    UnlessClose,
    Never,
}

/// What most strategies have in common.
const fn line(kind: StrategyKind, strategy: &'static dyn Strategy) -> StrategyLine {
    StrategyLine {
        kind,
        strategy,
        counts: ChunkCounts::All,
        time: LimitedTime::Rest(1),
        longest: None,
        due: Due::UnlessInterrupted,
        auto: Auto::Always,
    }
}

/// The strategies to run, in their order: the portfolio, or the one that was named.
pub(super) fn chosen(named: Option<StrategyKind>) -> impl Iterator<Item = &'static StrategyLine> {
    PORTFOLIO.iter().filter(move |line| match named {
        None => line.auto != Auto::Never,
        Some(named) => line.kind == named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_has_one_line_under_its_own_name() {
        let listed: Vec<StrategyKind> = PORTFOLIO.iter().map(|line| line.kind).collect();
        assert_eq!(listed, StrategyKind::ALL);
        for line in PORTFOLIO {
            assert_eq!(line.strategy.name(), line.kind.as_str());
        }
    }

    #[test]
    fn a_named_strategy_runs_alone() {
        for &kind in StrategyKind::ALL {
            let names: Vec<_> = chosen(Some(kind)).map(|line| line.kind).collect();
            assert_eq!(names, [kind]);
        }
        assert!(chosen(None).all(|line| line.kind != StrategyKind::Exact));
    }
}
