//! Time cut into periods such that the model admits every real schedule.
//!
//! The principal type is [`Periods`]. A message that departs at time t departs in period ⌊t/τ⌋. If it takes L, it
//! arrives in period ⌊t/τ⌋ + ⌊L/τ⌋ or later; the model uses the earliest. Messages that occupy a link for o each leave
//! it at most ⌈w·τ/o⌉ times in any w consecutive periods; the model states this for the w that matter. Departures that
//! are impossible in real time do not exist in the model: the chunk cannot be there yet, or cannot be useful before the
//! end. So every schedule that ends before T is a solution of the model of T. If there is no solution, T is a bound.
//!
//! Where messages may carry several chunks, a message of n chunks is modelled as n departures, β·b apart. Each of them
//! arrives no later than the whole message. Then α is a delay only, whether it occupies the link or not.

use crate::epochs::routes::{Leeway, Routes};
use crate::problem::Problem;
use crate::problem::distance::PathTree;
use std::collections::BTreeMap;
use topology::{Bytes, Link, LinkId, Micros, ResourceId};

/// A duration this little below a whole number of periods counts as that number; bounds are lowered by the same amount.
pub(super) const SLACK: f64 = 1e-9;
/// The longest windows that are considered, in periods.
const LONGEST_WINDOW: u32 = 64;

/// What a message may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageCapacity {
    /// One chunk.
    Single,
    /// Any number of chunks.
    Merged,
}

/// At most `departures` departures in any `periods` consecutive periods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PeriodWindow {
    pub(super) periods: u32,
    pub(super) departures: u32,
}

/// Time cut into periods, for one problem whose chunks are all of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Periods<'a> {
    pub(super) problem: &'a Problem,
    /// The length of a period; no message takes less.
    pub(super) period: Micros,
    pub(super) messages: MessageCapacity,
    bytes: Bytes,
}

impl<'a> Periods<'a> {
    /// Periods of length `period`; `None` if chunks differ in size, or some message takes less time.
    pub(super) fn new(problem: &'a Problem, period: Micros, messages: MessageCapacity) -> Option<Self> {
        let bytes = chunk_size(problem)?;
        let periods = Self { problem, period, messages, bytes };
        allowed(problem).all(|link| periods.latency(link) >= 1).then_some(periods)
    }

    /// Periods from departure to arrival.
    pub(super) fn latency(&self, link: &Link) -> u32 {
        // The cast saturates.
        (link.transfer_time(self.bytes) / self.period + SLACK) as u32
    }

    fn occupancy(&self, link: &Link) -> Micros {
        match self.messages {
            MessageCapacity::Single => link.occupancy(self.bytes),
            MessageCapacity::Merged => link.byte_time(self.bytes),
        }
    }

    /// The windows of a link.
    pub(super) fn link_windows(&self, id: LinkId) -> Vec<PeriodWindow> {
        self.windows(self.occupancy(self.problem.topology.link(id)))
    }

    /// The links whose use of a resource the model limits, and the windows of the resource. With merged messages, only
    /// links as slow as the resource count. On a reversed machine, no link counts unless all users release the resource
    /// equally long before the end of a message.
    pub(super) fn resource_windows(&self, id: ResourceId, reversed: bool) -> (Vec<LinkId>, Vec<PeriodWindow>) {
        let (topology, resource) = (&self.problem.topology, self.problem.topology.resource(id));
        let link = |user: &LinkId| topology.link(*user);
        let mut users: Vec<LinkId> = topology.users(id).to_vec();
        users.retain(|&user| self.problem.allows_link(user));
        if self.messages == MessageCapacity::Merged {
            users.retain(|user| link(user).beta == resource.beta);
        }
        let before_end =
            |user: &LinkId| link(user).transfer_time(self.bytes).0 - resource.occupancy(link(user), self.bytes).0;
        let first = users.first().map_or(0.0, before_end);
        if reversed && users.iter().any(|user| (before_end(user) - first).abs() > SLACK * self.period.0) {
            return (Vec::new(), Vec::new());
        }
        let occupancy = |user: &LinkId| match self.messages {
            MessageCapacity::Single => resource.occupancy(link(user), self.bytes),
            MessageCapacity::Merged => resource.byte_time(self.bytes),
        };
        let shortest = users.iter().map(occupancy).fold(Micros(f64::INFINITY), Micros::min);
        match users.is_empty() {
            true => (users, Vec::new()),
            false => (users, self.windows(shortest)),
        }
    }

    /// The windows that no other windows imply, for departures that are `apart` from each other.
    fn windows(&self, apart: Micros) -> Vec<PeriodWindow> {
        let ratio = apart / self.period;
        if ratio <= SLACK {
            return Vec::new();
        }
        let longest = ((3.0 * ratio).ceil().max(4.0) as u32).min(LONGEST_WINDOW);
        let most = |periods: u32| (f64::from(periods) / ratio - SLACK).ceil().max(1.0) as u32;
        let implied = |periods: u32| (1..periods).map(|part| most(part) + most(periods - part)).min();
        let mut windows: Vec<PeriodWindow> = Vec::new();
        for periods in 1..=longest {
            let departures = most(periods);
            if implied(periods).is_some_and(|implied| implied <= departures) {
                continue;
            }
            windows.retain(|window| window.departures < departures);
            windows.push(PeriodWindow { periods, departures });
        }
        windows
    }

    /// The precision lost by the cut: the largest relative loss of a latency or a rate.
    fn loss(&self) -> f64 {
        let of = |link: &Link| {
            let time = link.transfer_time(self.bytes) / self.period;
            let latency = 1.0 - f64::from(self.latency(link)) / time;
            let ratio = self.occupancy(link) / self.period;
            let windows = self.windows(self.occupancy(link));
            let rate = windows.iter().map(|it| f64::from(it.departures) * ratio / f64::from(it.periods) - 1.0);
            latency.max(rate.fold(f64::INFINITY, f64::min).min(1.0))
        };
        allowed(self.problem).map(of).fold(0.0, f64::max)
    }

    /// Where each chunk can be at which time in a schedule that ends before `end`; `None` if there is no such schedule
    /// even on empty links.
    pub(super) fn routes(&self, end: Micros) -> Option<Routes> {
        let times = Times::new(self, end);
        let leeway: Vec<Leeway> = times.departures().into_iter().map(Leeway::Near).collect();
        Routes::new(self.problem, &|link, _| self.latency(link), self.horizon(end), &leeway)
    }

    /// The last period in which a message can arrive before `end`.
    pub(super) fn horizon(&self, end: Micros) -> u32 {
        last_before(end / self.period, end / self.period)
    }

    /// The times above `from` and up to `to` at which the model changes, ascending; at most `most` of them.
    pub(super) fn ends(&self, from: Micros, to: Micros, most: usize) -> Vec<Micros> {
        let mut offsets: Vec<f64> = vec![0.0];
        for lag in Times::new(self, to).lags() {
            offsets.push((lag / self.period).fract());
        }
        offsets.sort_by(f64::total_cmp);
        offsets.dedup_by(|next, kept| *next - *kept < 1e-6);
        let first = (from / self.period).floor();
        let periods = (0..=most).map(|count| first + count as f64);
        let mut ends: Vec<Micros> =
            periods.flat_map(|period| offsets.iter().map(move |offset| self.period * (period + offset))).collect();
        ends.retain(|end| end.0 > from.0 * (1.0 + 1e-7) && end.0 <= to.0);
        ends.sort_by(Micros::total_cmp);
        ends.truncate(most);
        ends
    }
}

/// The last whole number below `position`. A number just below it, within the slack relative to `end`, does not count.
fn last_before(position: f64, end: f64) -> u32 {
    // Negative positions give 0; the callers exclude them.
    ((position - SLACK * end.max(1.0)).ceil() - 1.0).max(0.0) as u32
}

/// The times at which chunks can be at ranks, on empty links.
struct Times<'a> {
    periods: &'a Periods<'a>,
    end: Micros,
    /// For each chunk, the time from its holders to each rank, and from each rank to the nearest that wants it.
    chunks: Vec<(Vec<f64>, Vec<f64>)>,
}

impl<'a> Times<'a> {
    fn new(periods: &'a Periods<'a>, end: Micros) -> Self {
        let problem = periods.problem;
        let backwards = problem.topology.reversed();
        let chunks = problem.demand.chunk_ids().map(|id| {
            let length = |link: LinkId| {
                problem.allows(id, link).then(|| problem.topology.link(link).transfer_time(periods.bytes).0)
            };
            let chunk = problem.demand.chunk(id);
            let there = PathTree::new(&problem.topology, chunk.holders.iter().copied(), length).distance;
            (there, PathTree::new(&backwards, chunk.lacking(), length).distance)
        });
        Self { periods, end, chunks: chunks.collect() }
    }

    /// For each chunk, the periods in which it may depart over each link. The first is ⌊D/τ⌋, where D is the time to
    /// come to the link. The last has t·τ < T − L − R, where L is the link's time and R the time from its end to the
    /// nearest rank that wants the chunk.
    fn departures(&self) -> Vec<BTreeMap<LinkId, std::ops::RangeInclusive<u32>>> {
        let Periods { problem, period, .. } = *self.periods;
        let all = || problem.demand.chunk_ids().zip(&self.chunks);
        let of_chunk = |(id, (there, on)): (schedule::ChunkId, &(Vec<f64>, Vec<f64>))| {
            let window = |link: LinkId| {
                let (from, to) = (problem.topology.link(link).from, problem.topology.link(link).to);
                let latest = self.end.0 - self.lag(link) - on[to.index()];
                let first = there[from.index()];
                if !problem.allows(id, link) || !first.is_finite() || latest <= 0.0 {
                    return None;
                }
                let last = last_before(latest / period.0, self.end / period);
                let first = (first / period.0 + SLACK) as u32;
                (first <= last).then_some((link, first..=last))
            };
            problem.topology.link_ids().filter_map(window).collect()
        };
        all().map(of_chunk).collect()
    }

    fn lag(&self, link: LinkId) -> f64 {
        self.periods.problem.topology.link(link).transfer_time(self.periods.bytes).0
    }

    /// The distinct lengths of time that a departure must come before the end.
    fn lags(&self) -> Vec<Micros> {
        let topology = &self.periods.problem.topology;
        let mut lags: Vec<f64> = Vec::new();
        for (_, on) in &self.chunks {
            lags.extend(topology.link_ids().map(|link| self.lag(link) + on[topology.link(link).to.index()]));
            lags.retain(|lag| lag.is_finite());
            lags.sort_by(f64::total_cmp);
            lags.dedup_by(|next, kept| *next - *kept <= SLACK * *kept);
        }
        lags.into_iter().map(Micros).collect()
    }
}

fn allowed(problem: &Problem) -> impl Iterator<Item = &Link> {
    let topology = &problem.topology;
    topology.link_ids().filter(|&id| problem.allows_link(id)).map(|id| topology.link(id))
}

/// The common size of all chunks; `None` if they differ or have no bytes.
fn chunk_size(problem: &Problem) -> Option<Bytes> {
    let demand = &problem.demand;
    let bytes = demand.chunk_ids().next().map(|id| demand.bytes_of(id))?;
    let same = demand.chunk_ids().all(|id| demand.bytes_of(id) == bytes);
    (same && bytes > Bytes::ZERO).then_some(bytes)
}

/// Cuts worth trying for schedules of about `makespan`, coarse first, each losing less than the one before.
pub(super) fn cuts<'a>(problem: &'a Problem, messages: MessageCapacity, makespan: Micros) -> Vec<Periods<'a>> {
    /// One cut is picked from each range of horizons, in periods.
    const RANGES: [(f64, f64); 5] = [(0.0, 6.5), (6.5, 12.5), (12.5, 24.5), (24.5, 48.5), (48.5, 100.5)];
    /// A loss so small that no finer cut is worthwhile.
    const NEGLIGIBLE: f64 = 1e-3;
    let Some(bytes) = chunk_size(problem) else { return Vec::new() };
    let mut lengths: Vec<f64> = Vec::new();
    for link in allowed(problem) {
        let occupancy = if messages == MessageCapacity::Single { link.occupancy(bytes) } else { link.byte_time(bytes) };
        lengths.extend([link.transfer_time(bytes).0, occupancy.0]);
        lengths.sort_by(f64::total_cmp);
        lengths.dedup_by(|next, kept| *next - *kept <= SLACK * *kept);
    }
    let fractions = lengths.iter().flat_map(|length| (1..=8).map(move |part| Micros(length / f64::from(part))));
    let mut all: Vec<(f64, f64, Periods<'a>)> = fractions
        .filter(|period| period.0 > 0.0)
        .filter_map(|period| Periods::new(problem, period, messages))
        .map(|periods| (makespan / periods.period, periods.loss(), periods))
        .collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)));
    let mut cuts: Vec<Periods<'a>> = Vec::new();
    let mut least = f64::INFINITY;
    for (low, high) in RANGES {
        let best = all.iter().find(|(horizon, ..)| (low..high).contains(horizon));
        if let Some((_, loss, periods)) = best.filter(|(_, loss, _)| *loss < 0.5 * least) {
            least = *loss;
            cuts.push(*periods);
        }
        if least <= NEGLIGIBLE {
            break;
        }
    }
    cuts
}
