//! Options of a synthesis: how hard to search, and when to stop.

use super::StrategyKind;
use super::passages::verification_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request to stop, shared between threads (Ctrl-C).
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    raised: Arc<AtomicBool>,
    /// A request to a part of the search is also raised where the request to the whole is.
    whole: Option<Arc<Cancel>>,
}

impl Cancel {
    /// Asks all holders of a clone to stop and return what they have.
    pub fn cancel(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// A request to a part of the search: raised on its own, or with this one.
    pub(crate) fn of_part(&self) -> Self {
        Self { raised: Arc::default(), whole: Some(Arc::new(self.clone())) }
    }

    /// Whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.raised.load(Ordering::Relaxed) || self.whole.as_ref().is_some_and(|whole| whole.is_cancelled())
    }
}

/// A search that has found nothing yet may exceed its limit by this part of the limit and by [`GRACE`].
const GRACE_PART: u32 = 8;
/// See [`GRACE_PART`].
const GRACE: Duration = Duration::from_millis(150);

/// To plan, verify and write a plain schedule takes at least so many times as long as to verify it.
const VERIFYING: usize = 3;

/// A point in time, or never, joined with a [`Cancel`].
#[derive(Clone, Debug, Default)]
pub struct Deadline {
    at: Option<Instant>,
    /// When a search also ends that has found nothing yet.
    latest: Option<Instant>,
    cancel: Cancel,
    /// Whether a schedule exists already, so that a search may end with nothing.
    strict: bool,
    /// Whether there is no other way to a schedule, so that a search that has found nothing goes on.
    open_ended: bool,
}

impl Deadline {
    /// A deadline `limit` from now, or as soon as `cancel` is raised. A search that has found nothing by then has a
    /// little longer; if the limit is zero, it has as long as it takes.
    pub fn after(limit: Option<Duration>, cancel: Cancel) -> Self {
        let now = Instant::now();
        let at = limit.and_then(|limit| now.checked_add(limit));
        let patient = limit.filter(|limit| !limit.is_zero()).map(|limit| limit + limit / GRACE_PART + GRACE);
        let latest = patient.and_then(|patient| now.checked_add(patient));
        Self { at, latest, cancel, ..Self::default() }
    }

    /// The sooner of this and `limit` from now on.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        let sooner = Instant::now().checked_add(limit);
        let at = self.at.into_iter().chain(sooner).min();
        Self { at, ..self.clone() }
    }

    /// One of `parts` equal parts of the time left; without a limit, the deadline itself.
    #[must_use]
    pub fn part(&self, parts: u32) -> Self {
        self.at.map_or_else(|| self.clone(), |at| self.within(at.saturating_duration_since(Instant::now()) / parts))
    }

    /// The same deadline for a part of the search, and the request that ends this part early.
    pub(crate) fn of_part(&self) -> (Self, Cancel) {
        let cancel = self.cancel.of_part();
        (Self { cancel: cancel.clone(), ..self.clone() }, cancel)
    }

    /// The same deadline for a search that may end with nothing, because a schedule exists already.
    #[must_use]
    pub(crate) fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// The same deadline where a search that has found nothing goes on as long as it takes: there is hardly another way to an answer.
    pub(crate) fn open_ended(self) -> Self {
        Self { open_ended: true, ..self }
    }

    /// Whether a search that has found nothing goes on as long as it takes.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.open_ended
    }

    /// The same deadline for the first answer of a search: it ends only when a search also ends that has found nothing.
    pub(crate) fn patient(&self) -> Self {
        Self { at: self.latest, cancel: self.cancel.clone(), ..Self::default() }
    }

    /// Whether a schedule exists already, so that a search may end with nothing.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether to stop now, even with no schedule.
    pub(crate) fn has_passed_for_all(&self) -> bool {
        self.strict && self.has_passed() || self.latest.is_some_and(|latest| Instant::now() >= latest)
    }

    /// The time limit alone, for code that does not check the [`Cancel`].
    pub(crate) fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// Whether there is a time limit.
    pub fn is_limited(&self) -> bool {
        self.at.is_some()
    }

    /// Whether to stop now.
    pub fn has_passed(&self) -> bool {
        self.cancel.is_cancelled() || self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// Whether there is time to verify a plain schedule that is there already, in which chunks pass links so often.
    pub(crate) fn leaves_time_to_verify(&self, passages: usize) -> bool {
        self.leaves_time_for(passages / VERIFYING)
    }

    /// Whether there is time to plan and to verify a plain schedule in which chunks pass links so often.
    pub(crate) fn leaves_time_for(&self, passages: usize) -> bool {
        self.remaining().is_none_or(|left| verification_time(passages as f64) <= left)
    }

    /// The time left; `None` means without limit.
    pub fn remaining(&self) -> Option<Duration> {
        if self.cancel.is_cancelled() {
            return Some(Duration::ZERO);
        }
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Checks a deadline only after so much work. So small searches always finish, and there is always some schedule. If
/// the deadline is strict, or even [`Deadline::has_passed_for_all`], the search ends earlier: this is checked at least
/// [`OFTEN`] times as often.
#[derive(Clone, Debug)]
pub(crate) struct DeadlinePoll<'a> {
    deadline: &'a Deadline,
    every: u64,
    spent: u64,
    /// Work until the next check of any kind.
    left: u64,
}

/// How much more often the deadline is checked for a search that may end with nothing.
const OFTEN: u64 = 64;

impl<'a> DeadlinePoll<'a> {
    /// Checks the deadline after every `every` units of work.
    pub(crate) fn new(deadline: &'a Deadline, every: u64) -> Self {
        let every = if deadline.strict { every / OFTEN } else { every };
        Self { deadline, every, spent: 0, left: every / OFTEN }
    }

    /// Counts `work` that was done; returns whether to stop now.
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
    /// Limits for a solver that is one of several strategies. They are lower than for a solver that runs alone, because
    /// the strategies before it often found a good schedule already.
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

/// The gap (relative to the bound) at which a makespan is good enough by default. A gap this small spares only the MILP
/// solver, which takes the longest and finds the least that close to the bound. A larger gap ends every search.
pub const DEFAULT_GAP: f64 = 1e-3;

/// How hard to search, and when to stop.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// Only this strategy, alone; `None` runs the portfolio, cheapest first.
    pub strategy: Option<StrategyKind>,
    /// Wall-clock limit, meant for interactive use: results may then depend on the machine's speed.
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
