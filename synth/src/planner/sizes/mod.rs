//! One request at many sizes: few plans, each for a window of sizes.
//!
//! The principal function is [`synthesize_sizes`]. A plan found for one size is cheaply timed for every other size
//! ([`retime`]: the same messages in the same order), and is a warm start there. The sizes are visited from both ends
//! towards the middle. A size is searched only where that may help:
//!
//! * not if a plan of another size is within [`TOLERANCE`] of the bound;
//! * not between two sizes, at most [`SPAN`] apart, if one plan is within [`TOLERANCE`] of the best known at both. Where
//!   one path decides, the time of a plan is a + b·size, and what is best at both ends of such lines is best between.
//!
//! The result is the Pareto set ([`windows`]): the fewest plans such that at every size that of its window is within
//! [`TOLERANCE`] of the best. Two windows meet where the plan of the larger sizes overtakes the other.

mod retime;
mod windows;

use crate::bounds::bounds;
use crate::planner::{accept, again::SearchRound, synthesize_among};
use crate::problem::{Constraints, Deadline, Problem, Progress, SearchOptions, SynthError, chunk_counts};
use crate::strategies::orbits::is_too_large_for_plain;
use crate::symmetry::Symmetries;
use retime::SendOrder;
use schedule::{Demand, LowerBound, Request, Schedule, VerifiedSchedule};
use std::sync::Arc;
use std::time::Duration;
use topology::{Micros, Topology};
use windows::{SizeWindow, best_at, windows};

/// How much slower (relative) than the best known plan the plan of a window may be.
pub const TOLERANCE: f64 = 0.01;
/// A key in a plan's provenance: the first size of its window, in bytes.
pub const FROM_BYTES: &str = "from_bytes";
/// A key in a plan's provenance: the first size after its window, in bytes.
pub const TO_BYTES: &str = "to_bytes";
/// The largest factor between two sizes that one plan may serve without a search between them.
const SPAN: u64 = 64;
/// The bounds of all sizes may take one part in this many of a limited time.
const BOUNDS_PART: u32 = 5;
/// The most plans in the warm start of a search.
const WARM: usize = 3;
/// The most messages of plans for which the meeting of two windows is computed.
const LARGE: usize = 1 << 16;

/// A request that is planned at several sizes.
#[derive(Clone, Debug)]
pub struct SizeTask {
    /// The machine.
    pub topology: Arc<Topology>,
    /// What a sketch permits.
    pub constraints: Arc<Constraints>,
    /// The request; its size and chunk count are ignored. Its chunks must follow from the collective.
    pub request: Request,
    /// The chunk count; `None` if it is searched.
    pub chunks: Option<u32>,
}

impl SizeTask {
    /// The problem of one size at one chunk count.
    ///
    /// # Errors
    /// Those of the request.
    pub fn problem(&self, size_bytes: u64, chunks: u32) -> Result<Problem, SynthError> {
        let request = Request { size_bytes, ..self.request.clone() }.with_chunks(chunks);
        let demand = Arc::new(Demand::new(request)?);
        Ok(Problem { topology: self.topology.clone(), demand, constraints: self.constraints.clone() })
    }

    /// The problems of one size, one for each chunk count worth trying.
    ///
    /// # Errors
    /// Those of the request.
    pub fn problems(&self, size_bytes: u64) -> Result<Vec<Problem>, SynthError> {
        let request = Request { size_bytes, ..self.request.clone() };
        let counts = self.chunks.map_or_else(|| chunk_counts(&self.topology, &request), |count| vec![count]);
        counts.into_iter().map(|count| self.problem(size_bytes, count).and_then(plain)).collect()
    }
}

/// The problem, if its plans are written message by message: only such plans can be timed for other sizes.
fn plain(problem: Problem) -> Result<Problem, SynthError> {
    if is_too_large_for_plain(&problem, None) {
        let why = "its plans are too large to be written message by message; plan every size with --size".to_owned();
        return Err(SynthError::NotApplicable { strategy: "a sweep over sizes", why });
    }
    Ok(problem)
}

/// The result for one of the sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct AtSize {
    /// The requested size.
    pub size_bytes: u64,
    /// The makespan of the plan of its window.
    pub makespan: Micros,
    /// The makespan of the best plan known for this size.
    pub best: Micros,
    /// The bound that it is compared with. It holds for any chunk count if the count is searched.
    pub bound: LowerBound,
    /// The index of its window.
    pub window: usize,
    /// Whether this size was searched; if not, plans of other sizes are good enough.
    pub searched: bool,
}

/// A plan and the sizes that it is for.
#[derive(Clone, Debug)]
pub struct Windowed {
    /// The first size of the window, in bytes.
    pub from_bytes: u64,
    /// The first size after the window, in bytes.
    pub to_bytes: u64,
    /// The plan, timed for the largest requested size of the window.
    pub schedule: VerifiedSchedule,
}

impl Windowed {
    fn new(from_bytes: u64, to_bytes: u64, schedule: VerifiedSchedule) -> Self {
        let mut provenance = schedule.schedule().produced_by.clone();
        for (key, bytes) in [(FROM_BYTES, from_bytes), (TO_BYTES, to_bytes)] {
            provenance.options.insert(key.to_owned(), bytes.to_string());
        }
        Self { from_bytes, to_bytes, schedule: schedule.produced_by(provenance) }
    }
}

/// The plans for all sizes.
#[derive(Clone, Debug)]
pub struct SizeSweep {
    /// Ascending.
    pub sizes: Vec<AtSize>,
    /// Ascending, disjoint, from the smallest requested size to the largest.
    pub windows: Vec<Windowed>,
}

/// The fewest plans that serve all `sizes` well. A time limit is for all sizes together; the time left is shared equally
/// among the sizes still to be searched.
///
/// # Errors
/// As [`crate::planner::synthesize`]; [`SynthError::NoProblem`] if `sizes` is empty.
pub fn synthesize_sizes(
    task: &SizeTask,
    sizes: &[u64],
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<SizeSweep, SynthError> {
    let mut search = SizesSearch::new(task, sizes, options, progress)?;
    search.visit()?;
    search.conclude()
}

/// `schedule`, found for another size, timed for `size_bytes`; not verified. `None` if its order cannot be replayed
/// there, or if it is for another request than that of `task`. The topology of `task` may have other costs.
pub fn retimed(schedule: &VerifiedSchedule, task: &SizeTask, size_bytes: u64) -> Option<Schedule> {
    let order = SendOrder::new(schedule);
    match schedule.topology().digest() == task.topology.digest() {
        true => order.at(task, size_bytes),
        false => order.replayed(task, size_bytes),
    }
}

/// The fewest of `plans` that serve all sizes well; each is for `task` at one of `sizes`. Nothing is searched.
///
/// # Errors
/// [`SynthError::NothingYet`] if some size has no plan, [`SynthError::NoProblem`] if `sizes` is empty.
pub fn select_sizes(
    task: &SizeTask,
    sizes: &[u64],
    plans: &[VerifiedSchedule],
    options: &SearchOptions,
) -> Result<SizeSweep, SynthError> {
    let mut search = SizesSearch::new(task, sizes, options, &|_| {})?;
    for plan in plans {
        search.learn(plan);
        let found_for = plan.schedule().demand.request().size_bytes;
        search.points.iter_mut().filter(|point| point.size == found_for).for_each(|point| point.searched = true);
    }
    search.conclude()
}

struct SizePoint {
    size: u64,
    bound: LowerBound,
    searched: bool,
    settled: bool,
}

impl SizePoint {
    fn new(task: &SizeTask, size: u64, deadline: &Deadline) -> Result<Self, SynthError> {
        let bounds = bounds(&plain(task.problem(size, task.chunks.unwrap_or(1))?)?, deadline);
        // A plan for another size may have a chunk count that would not be tried at this size.
        let bound = if task.chunks.is_some() { bounds.best() } else { bounds.best_at_any_chunking() };
        Ok(Self { size, bound, searched: false, settled: false })
    }
}

/// The state of [`synthesize_sizes`].
struct SizesSearch<'a> {
    task: &'a SizeTask,
    options: &'a SearchOptions,
    deadline: Deadline,
    symmetries: Symmetries,
    progress: &'a (dyn Fn(Progress) + Sync),
    points: Vec<SizePoint>,
    orders: Vec<SendOrder>,
    /// By order and point: the order's makespan there, in µs.
    times: Vec<Vec<Option<f64>>>,
}

impl<'a> SizesSearch<'a> {
    fn new(
        task: &'a SizeTask,
        sizes: &[u64],
        options: &'a SearchOptions,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Result<Self, SynthError> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.is_empty() {
            return Err(SynthError::NoProblem);
        }
        let deadline = Deadline::after(options.time_limit, options.cancel.clone());
        // The bounds get a part of a limited time, divided among the sizes.
        let part = |limit: Duration| deadline.within(limit / (BOUNDS_PART * sizes.len() as u32));
        let point =
            |&size: &u64| SizePoint::new(task, size, &options.time_limit.map_or_else(|| deadline.clone(), part));
        let points = sizes.iter().map(point).collect::<Result<Vec<_>, _>>()?;
        let symmetries = Symmetries::default();
        Ok(Self { task, options, deadline, symmetries, progress, points, orders: Vec::new(), times: Vec::new() })
    }

    /// Settles all sizes: both ends, then repeatedly the middle of an interval.
    fn visit(&mut self) -> Result<(), SynthError> {
        let last = self.points.len() - 1;
        // The largest size first: its plans were cut into chunks, and so are more useful to other sizes.
        self.settle(last)?;
        self.settle(0)?;
        let mut open = std::collections::VecDeque::from([(0, last)]);
        while let Some((low, high)) = open.pop_front() {
            if high - low < 2 {
                continue;
            }
            if self.one_plan_serves(low, high) {
                self.points[low + 1..high].iter_mut().for_each(|point| point.settled = true);
                continue;
            }
            let middle = low.midpoint(high);
            self.settle(middle)?;
            open.extend([(low, middle), (middle, high)]);
        }
        Ok(())
    }

    /// Whether one plan is good enough at both ends of a short interval, and can be timed at every size between them.
    fn one_plan_serves(&self, low: usize, high: usize) -> bool {
        if self.points[high].size > self.points[low].size.saturating_mul(SPAN) {
            return false;
        }
        let good = |times: &[Option<f64>], at: usize| {
            times[at].is_some_and(|time| time <= best_at(&self.times, at) * (1.0 + TOLERANCE))
        };
        let serves = |times: &Vec<Option<f64>>| {
            good(times, low) && good(times, high) && times[low..=high].iter().all(Option::is_some)
        };
        self.times.iter().any(serves)
    }

    /// Searches one size, unless a plan of another size is good enough for it.
    fn settle(&mut self, at: usize) -> Result<(), SynthError> {
        self.points[at].settled = true;
        let best = best_at(&self.times, at);
        let enough = self.points[at].bound.value.0 * (1.0 + TOLERANCE.max(self.options.gap));
        if best <= enough || (best < f64::INFINITY && self.deadline.has_passed()) {
            return Ok(());
        }
        let size = self.points[at].size;
        let problems = self.task.problems(size)?;
        let options = SearchOptions { time_limit: self.share(), ..self.options.clone() };
        let announce = |progress: Progress| {
            let activity = format!("{size} bytes · {}", progress.activity);
            (self.progress)(Progress { activity, ..progress });
        };
        match synthesize_among(&problems, &self.warm(at), (&self.symmetries, SearchRound::Only), &options, &announce) {
            Ok(found) => self.learn(&found.schedule),
            // For example an interrupt; plans of other sizes serve this one.
            Err(_) if best < f64::INFINITY => return Ok(()),
            Err(error) => return Err(error),
        }
        self.points[at].searched = true;
        Ok(())
    }

    /// The time for one search.
    fn share(&self) -> Option<Duration> {
        let open = 1 + self.points.iter().filter(|point| !point.settled).count() as u32;
        self.options.time_limit.and_then(|_| self.deadline.remaining()).map(|left| left / open)
    }

    /// The best plans of other sizes, timed for this one.
    fn warm(&self, at: usize) -> Vec<Schedule> {
        let time = |order: &usize| self.times[*order][at];
        let mut best: Vec<usize> = (0..self.orders.len()).filter(|order| time(order).is_some()).collect();
        best.sort_by(|a, b| time(a).partial_cmp(&time(b)).unwrap_or(std::cmp::Ordering::Equal));
        best.truncate(WARM);
        best.into_iter().filter_map(|order| self.orders[order].at(self.task, self.points[at].size)).collect()
    }

    /// Times a new plan for all sizes.
    fn learn(&mut self, schedule: &VerifiedSchedule) {
        let order = SendOrder::new(schedule);
        let time = |point: &SizePoint| order.makespan(self.task, point.size).map(|time| time.0);
        self.times.push(self.points.iter().map(time).collect());
        self.orders.push(order);
    }

    /// The plans for all sizes. If the checks refuse a plan at the size where it is to be saved, it no longer counts
    /// there, and the windows are chosen again. This ends, because every size keeps the plan that was found for it or
    /// for an end.
    fn conclude(mut self) -> Result<SizeSweep, SynthError> {
        loop {
            let chosen = windows(&self.times, TOLERANCE);
            let mut schedules = Vec::with_capacity(chosen.len());
            let mut refused = None;
            for window in &chosen {
                let at = window.sizes.end - 1;
                match self.verified(window.plan, at) {
                    Some(schedule) => schedules.push(schedule),
                    None => refused = Some((window.plan, at)),
                }
            }
            match refused {
                Some((plan, at)) => self.times[plan][at] = None,
                None => return self.assemble(&chosen, schedules),
            }
        }
    }

    /// A verified plan at a size, with the bound of that size.
    fn verified(&self, plan: usize, at: usize) -> Option<VerifiedSchedule> {
        let point = &self.points[at];
        let mut schedule = self.orders[plan].at(self.task, point.size)?;
        let value = point.bound.value.min(schedule.makespan());
        schedule.bound = Some(LowerBound { value, ..point.bound.clone() });
        let problem = self.task.problem(point.size, self.orders[plan].chunks_per_rank).ok()?;
        accept(schedule, &problem).ok()
    }

    fn assemble(&self, chosen: &[SizeWindow], schedules: Vec<VerifiedSchedule>) -> Result<SizeSweep, SynthError> {
        if chosen.iter().map(|window| window.sizes.len()).sum::<usize>() < self.points.len() {
            return Err(SynthError::NothingYet);
        }
        let mut sizes = Vec::with_capacity(self.points.len());
        for (number, window) in chosen.iter().enumerate() {
            for at in window.sizes.clone() {
                let SizePoint { size, bound, searched, .. } = &self.points[at];
                sizes.push(AtSize {
                    size_bytes: *size,
                    makespan: Micros(self.times[window.plan][at].unwrap_or(f64::INFINITY)),
                    best: Micros(best_at(&self.times, at)),
                    bound: bound.clone(),
                    window: number,
                    searched: *searched,
                });
            }
        }
        let starts: Vec<u64> = (0..chosen.len()).map(|number| self.start(chosen, number)).collect();
        let end = self.points.last().map_or(0, |point| point.size + 1);
        let ends = starts.iter().skip(1).copied().chain([end]);
        let windowed = starts.iter().zip(ends).zip(schedules);
        let windows = windowed.map(|((&from, to), schedule)| Windowed::new(from, to, schedule)).collect();
        Ok(SizeSweep { sizes, windows })
    }

    /// The first size of a window: the smallest at which its plan is as fast as that of the window before. For plans
    /// too large to be timed that often, the geometric mean of the two requested sizes.
    fn start(&self, chosen: &[SizeWindow], number: usize) -> u64 {
        let window = &chosen[number];
        let above = self.points[window.sizes.start].size;
        let Some(before) = number.checked_sub(1).map(|before| &chosen[before]) else { return above };
        let below = self.points[before.sizes.end - 1].size;
        let (left, right) = (&self.orders[before.plan], &self.orders[window.plan]);
        let half_way = |low: u64, high: u64| (low.max(1) as f64 * high as f64).sqrt() as u64;
        if left.len().max(right.len()) > LARGE {
            return half_way(below, above).clamp(below + 1, above);
        }
        // The left plan is chosen at `low`, the right one at `high`; one per cent of a size is precise enough.
        let (mut low, mut high) = (below, above);
        while high - low > 1 + high / 100 {
            let middle = half_way(low, high).clamp(low + 1, high - 1);
            let time = |order: &SendOrder| order.makespan(self.task, middle);
            match (time(left), time(right)) {
                (Some(left), Some(right)) if right > left => low = middle,
                (Some(_), None) => low = middle,
                _ => high = middle,
            }
        }
        high
    }
}

#[cfg(test)]
mod tests;
