//! How hard to look, and when to stop.

use super::StrategyKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request to stop, shared between threads (Ctrl-C).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks everybody who holds a clone to stop and return what they have.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// By how much a limit may be exceeded by those who have found nothing yet: a part of it, and a moment.
const GRACE_PART: u32 = 8;
/// See [`GRACE_PART`].
const GRACE: Duration = Duration::from_millis(150);

/// A point in time, or never, joined with a [`Cancel`].
#[derive(Clone, Debug, Default)]
pub struct Deadline {
    at: Option<Instant>,
    /// When even those end who have found nothing yet.
    latest: Option<Instant>,
    cancel: Cancel,
    /// Whether there is an answer already.
    strict: bool,
}

impl Deadline {
    /// `limit` from now on, or whenever `cancel` is raised. Who has found nothing by then has a little longer: as long as it takes,
    /// where the limit is zero.
    pub fn after(limit: Option<Duration>, cancel: Cancel) -> Self {
        let now = Instant::now();
        let at = limit.and_then(|limit| now.checked_add(limit));
        let patient = limit.filter(|limit| !limit.is_zero()).map(|limit| limit + limit / GRACE_PART + GRACE);
        let latest = patient.and_then(|patient| now.checked_add(patient));
        Self { at, latest, cancel, strict: false }
    }

    /// The sooner of this and `limit` from now on.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        let sooner = Instant::now().checked_add(limit);
        let at = self.at.into_iter().chain(sooner).min();
        Self { at, ..self.clone() }
    }

    /// One in `parts` of the time left; never, where there is no limit.
    #[must_use]
    pub fn part(&self, parts: u32) -> Self {
        self.at.map_or_else(|| self.clone(), |at| self.within(at.saturating_duration_since(Instant::now()) / parts))
    }

    /// The same for those who need not come up with anything, because there is an answer already.
    #[must_use]
    pub(crate) fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Whether there is an answer already.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether to stop now even with nothing to show.
    pub(crate) fn has_passed_for_all(&self) -> bool {
        self.strict && self.has_passed() || self.latest.is_some_and(|latest| Instant::now() >= latest)
    }

    /// The instant itself, for those who only look at the clock.
    pub(crate) fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// Whether time is limited: what is worth its while depends on it.
    pub fn is_limited(&self) -> bool {
        self.at.is_some()
    }

    /// Whether to stop now.
    pub fn has_passed(&self) -> bool {
        self.cancel.is_cancelled() || self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// The time left; `None` means for ever.
    pub fn remaining(&self) -> Option<Duration> {
        if self.cancel.is_cancelled() {
            return Some(Duration::ZERO);
        }
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Looks at a deadline once in so much work, so that small searches, which never get that far, always finish: that is
/// how everybody gets some answer. Where there is one already, or the time is up for all, it looks [`OFTEN`] times as often.
#[derive(Clone, Debug)]
pub(crate) struct Poll<'a> {
    deadline: &'a Deadline,
    every: u64,
    spent: u64,
    /// Work until the next look of any kind.
    left: u64,
}

/// How much more often a deadline is looked at by those who may end with nothing.
const OFTEN: u64 = 64;

impl<'a> Poll<'a> {
    /// Looks after every `every` units of work.
    pub(crate) fn new(deadline: &'a Deadline, every: u64) -> Self {
        let every = if deadline.strict { every / OFTEN } else { every };
        Self { deadline, every, spent: 0, left: every / OFTEN }
    }

    /// Counts `work` that was done; whether to stop now.
    pub(crate) fn is_over_after(&mut self, work: usize) -> bool {
        self.spent += work as u64;
        self.left = self.left.saturating_sub(work as u64);
        if self.spent >= self.every {
            self.spent = 0;
            return self.deadline.has_passed();
        }
        if self.left == 0 {
            self.left = self.every / OFTEN;
            return self.deadline.has_passed_for_all();
        }
        false
    }
}

/// Clock-free limits: with these alone, the same input and seed give the same bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Restarts of randomised searches.
    pub restarts: u32,
    /// Work of one solver call, in simplex iterations.
    pub solver_iterations: u64,
    /// Solver calls of one strategy.
    pub solver_calls: u32,
}

impl Limits {
    /// Limits for a solver that is one of several strategies rather than the one asked for: it gets a share of
    /// the patience, because what came before it is often good enough already.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { solver_iterations: self.solver_iterations / 6, solver_calls: self.solver_calls / 4, ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { restarts: 48, solver_iterations: 60_000, solver_calls: 24 }
    }
}

/// How far above the bound (relative) a makespan is good enough where nobody says anything else. So close, only the solver is
/// spared, which takes the longest and finds the least there; a larger gap ends every search.
pub const DEFAULT_GAP: f64 = 1e-3;

/// How hard to look.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only this strategy, alone; `None` runs the portfolio, cheapest first.
    pub strategy: Option<StrategyKind>,
    /// Wall-clock limit for people; results may then depend on the machine's speed.
    pub time_limit: Option<Duration>,
    /// How far above the bound (relative) a makespan is good enough.
    pub gap: f64,
    /// Clock-free limits.
    pub limits: Limits,
    /// Seed of every random choice.
    pub seed: u64,
    /// Threads for restarts and strategies; `None` takes all cores. The result does not depend on it.
    pub threads: Option<usize>,
    /// Raised by Ctrl-C.
    pub cancel: Cancel,
}
