//! Sums that several ranks want, planned as two requests of their own: first collected, then spread.
//!
//! The principal function is [`Planning::join_halves`]. Most strategies compose such a sum from two halves that they
//! plan themselves. The best strategy for one half need not be the best for the other, and each half alone is easier
//! than the whole. So here the whole portfolio plans each half within a share of the time, and the best pairs are
//! joined. A joined schedule takes no longer than its two halves one after the other. The strategies that follow have
//! to beat it.
//!
//! Where every link has a counterpart in the other direction, a plan of one half turned around is a plan of the other,
//! which is then planned from that warm start.

use super::again::SearchRound;
use super::search::CountSearch;
use super::{BOUNDS_PART, FoundSoFar, Planning, Searched, SynthError, opened};
use crate::bounds::{Bounds, bounds};
use crate::problem::reversed::{Halves, choices};
use crate::problem::tolerance::reaches;
use crate::problem::{Deadline, Problem, SearchOptions, StopReason};
use crate::strategies::Attempt;
use crate::strategies::reversal::joined;
use schedule::{ChunkId, Message, Schedule, Transfer, replay};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;
use topology::{LinkId, Micros, Topology};

/// Each half may take one part in this many of the time left, if one plan serves both or they are planned side by side.
const PART: u32 = 2;
/// The same if they are planned one after the other.
const SMALL_PART: u32 = 3;
/// The same where the bounds of both halves are far above the bound of the whole: plans that do not separate the halves
/// may be much better.
const FAR_PART: u32 = 6;
/// They are far if they are above it by so much (relative).
const FAR: f64 = 0.05;
/// How many pairs of halves are joined, the best sums of makespans first.
const JOINED: usize = 3;
/// Halves of more transfers than this are joined only once, because that takes seconds.
const MANY: usize = 1 << 16;

/// The makespan of no schedule.
const UNKNOWN: Micros = Micros(f64::INFINITY);

/// The best schedule of a part of the demand at one chunk count.
pub(super) struct PartialPlan {
    pub(super) schedule: Schedule,
    pub(super) chunks: u32,
}

impl<'a> Planning<'a, '_> {
    /// Plans the halves of the problems, if they are sums that several ranks want, and judges the joined schedules.
    ///
    /// # Errors
    /// As [`super::synthesize`], except that halves without a schedule are left out.
    pub(super) fn join_halves(
        &self,
        searches: &mut Vec<CountSearch<'a>>,
        found: &mut FoundSoFar,
    ) -> Result<(), SynthError> {
        let Some(halves) = self.halves() else { return Ok(()) };
        if self.deadline.has_passed() {
            return Ok(());
        }
        let started = Instant::now();
        let collects: Vec<Problem> = halves.iter().map(|halves| halves.collect.clone()).collect();
        let spreads: Vec<Problem> = halves.iter().filter_map(|halves| halves.spread.clone()).collect();
        let whole = searches.first().map_or(UNKNOWN, |search| search.bound.value);
        let (collects, spreads) = (HalfProblems::new(collects), HalfProblems::new(spreads));
        let is_far = self.are_far(&collects, &spreads, whole);
        if is_far && self.round == SearchRound::First {
            self.plan_as_one(searches)?;
        }
        let (collect, spread) = self.both(&collects, &spreads, is_far, found);
        let makespans =
            |halves: &[PartialPlan]| halves.iter().map(|half| half.schedule.makespan().0).collect::<Vec<_>>();
        let is_new = |new: &[PartialPlan], old: &[PartialPlan]| makespans(new) != makespans(old);
        if !is_new(&collect, &found.collect) && !is_new(&spread, &found.spread) {
            return Ok(());
        }
        for (name, index, joint) in self.pairs(&halves, &collect, &spread)? {
            while searches.len() <= index && self.open_next(searches) {}
            let attempt = Attempt { name, schedule: Some(joint), stop: StopReason::Done, note: None };
            self.judge_all(&mut searches[index], vec![attempt], started.elapsed().as_secs_f64());
        }
        (found.collect, found.spread) = (collect, spread);
        Ok(())
    }

    /// Whether the bounds of both halves are far above a bound of the whole.
    fn are_far(&self, collects: &HalfProblems, spreads: &HalfProblems, whole: Micros) -> bool {
        let other = if serves_both(collects) { spreads } else { collects };
        self.least_time(spreads) + self.least_time(other) > whole * (1.0 + FAR)
    }

    /// The best schedules of both halves at each chunk count, which are no worse than those found so far.
    fn both(
        &self,
        collects: &HalfProblems,
        spreads: &HalfProblems,
        is_far: bool,
        found: &FoundSoFar,
    ) -> (Vec<PartialPlan>, Vec<PartialPlan>) {
        let known = |halves: &[PartialPlan]| halves.iter().map(|half| half.schedule.clone()).collect::<Vec<_>>();
        let (known_collect, known_spread) = (known(&found.collect), known(&found.spread));
        let serves_both = serves_both(collects);
        let part = |near: u32| self.deadline.part(if is_far { FAR_PART } else { near });
        if !serves_both && self.threads() > 1 && !self.goes_in_turn() {
            let deadline = part(PART);
            return rayon::join(
                || self.best_of(collects, &known_collect, deadline.clone()),
                || self.best_of(spreads, &known_spread, deadline.clone()),
            );
        }
        let near = if serves_both { PART } else { SMALL_PART };
        let spread = self.best_of(spreads, &known_spread, part(near));
        let turned = turned_around(&spread, &collects.problems);
        let least = |all: &mut dyn Iterator<Item = &Schedule>| all.map(Schedule::makespan).fold(UNKNOWN, Micros::min);
        let best = least(&mut spread.iter().map(|half| &half.schedule));
        if !turned.is_empty() && reaches(least(&mut turned.iter()), best) {
            return (turned.into_iter().map(PartialPlan::of).collect(), spread);
        }
        let warm: Vec<Schedule> = turned.into_iter().chain(known_collect).collect();
        (self.best_of(collects, &warm, part(near)), spread)
    }

    /// A time that no schedule of a half beats.
    fn least_time(&self, half: &HalfProblems) -> Micros {
        let first = half.bounds[0].get_or_init(|| match self.options.time_limit {
            Some(limit) => bounds(&half.problems[0], &self.deadline.within(limit / (2 * BOUNDS_PART))),
            None => bounds(&half.problems[0], self.deadline),
        });
        first.best_at_any_chunking().value
    }

    /// The halves of each problem; `None` if one of them has only one half.
    fn halves(&self) -> Option<Vec<Halves<'a>>> {
        let halves = |problem: &'a Problem| {
            if !problem.demand.chunks().iter().any(|chunk| chunk.combine && chunk.wanted_by.len() > 1) {
                return None;
            }
            let halves = Halves::new(problem, choices(problem).first()?).ok()?;
            halves.spread.is_some().then_some(halves)
        };
        let all: Option<Vec<Halves<'a>>> = self.problems.iter().map(halves).collect();
        all.filter(|halves| !halves.is_empty())
    }

    /// The best schedule at each chunk count that the portfolio finds. None if there is no schedule, for example
    /// because a sketch admits the whole but not this half.
    fn best_of(&self, half: &HalfProblems, warm: &[Schedule], deadline: Deadline) -> Vec<PartialPlan> {
        let HalfProblems { problems, bounds } = half;
        let options = SearchOptions { time_limit: deadline.remaining(), ..self.options.clone() };
        let round = if self.round == SearchRound::First { SearchRound::Half } else { self.round };
        let planning = Planning { problems, bounds, warm, options: &options, deadline: &deadline, round, ..*self };
        let Ok(Searched { searches, .. }) = planning.searched() else { return Vec::new() };
        let best = searches.into_iter().filter_map(|search| search.best);
        best.map(|best| PartialPlan::of(best.schedule.into_schedule())).collect()
    }

    /// The best pairs, joined: the name of each, the place of its problem, and its schedule.
    fn pairs(
        &self,
        halves: &[Halves<'a>],
        collect: &[PartialPlan],
        spread: &[PartialPlan],
    ) -> Result<Vec<(String, usize, Schedule)>, SynthError> {
        let mut pairs: Vec<(f64, usize, &PartialPlan, &PartialPlan)> = Vec::new();
        for first in collect {
            for second in spread {
                let count = |halves: &Halves<'_>| halves.problem.demand.request().chunks_per_rank;
                let fits = |halves: &Halves<'_>| [first, second].iter().all(|half| count(halves) % half.chunks == 0);
                let sum = first.schedule.makespan() + second.schedule.makespan();
                pairs.extend(halves.iter().position(fits).map(|index| (sum.0, index, first, second)));
            }
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut found = Vec::new();
        for (_, index, first, second) in pairs.into_iter().take(JOINED) {
            let many = first.schedule.transfers.len() + second.schedule.transfers.len() > MANY;
            if !found.is_empty() && (many || self.deadline.has_passed()) {
                break;
            }
            let halves = &halves[index];
            let messages = [first, second].map(|half| half.cut(halves.problem.demand.request().chunks_per_rank));
            let names = [first, second].map(|half| half.schedule.produced_by.strategy.as_str());
            let name = if names[0] == names[1] { names[0].to_owned() } else { names.join("+") };
            let name = format!("halves/{name}");
            let messages = [&messages[0][..], &messages[1]];
            let whole = joined(halves, messages, self.joining(), self.deadline, &name)?;
            found.push((name, index, whole));
        }
        Ok(found)
    }
}

/// Whether a plan of the one half turned around is a plan of the other.
fn serves_both(half: &HalfProblems) -> bool {
    counterparts(&half.problems[0].topology).is_some()
}

/// One half at each chunk count, and the bounds of each once somebody needs them.
struct HalfProblems {
    problems: Vec<Problem>,
    bounds: Vec<OnceLock<Bounds>>,
}

impl HalfProblems {
    fn new(problems: Vec<Problem>) -> Self {
        Self { bounds: opened(&problems), problems }
    }
}

impl PartialPlan {
    pub(super) fn of(schedule: Schedule) -> Self {
        let chunks = schedule.demand.request().chunks_per_rank;
        Self { schedule, chunks }
    }

    /// Its transfers where each rank has `chunks` smaller chunks, a multiple of those it has: the parts of a chunk stay
    /// together.
    pub(super) fn cut(&self, chunks: u32) -> Vec<Transfer> {
        let parts = chunks / self.chunks;
        let cut = |transfer: &Transfer| {
            let all =
                transfer.chunks.iter().flat_map(|chunk| (0..parts).map(move |part| ChunkId(chunk.0 * parts + part)));
            Transfer { chunks: all.collect(), ..transfer.clone() }
        };
        self.schedule.transfers.iter().map(cut).collect()
    }
}

/// The plans of one half as plans of the other, on the reversed topology. Each takes the links in the other direction;
/// none where some link has no counterpart of the same cost.
fn turned_around(spread: &[PartialPlan], collects: &[Problem]) -> Vec<Schedule> {
    let Some(Problem { topology, .. }) = collects.first() else { return Vec::new() };
    let Some(counterparts) = counterparts(topology) else { return Vec::new() };
    let turned = |half: &PartialPlan| {
        let problem = collects.iter().find(|problem| problem.demand.request().chunks_per_rank == half.chunks)?;
        if half.schedule.demand.chunks() != problem.demand.chunks() {
            return None;
        }
        let turn = |transfer: &Transfer| {
            let message = Message::from(transfer);
            let link = counterparts[message.link.index()];
            problem.allows_link(link).then_some(Message { link, ..message })
        };
        let messages = half.schedule.transfers.iter().map(turn).collect::<Option<Vec<_>>>()?;
        let transfers = replay(&problem.demand, topology, &messages).ok()?;
        let name = &half.schedule.produced_by.strategy;
        Some(Schedule::new(topology, problem.demand.clone(), transfers, name))
    };
    spread.iter().filter_map(turned).collect()
}

/// For each link, a link in the other direction with the same cost; `None` if some link has none.
fn counterparts(topology: &Topology) -> Option<Vec<LinkId>> {
    let cost = |id: LinkId| {
        let link = topology.link(id);
        (link.alpha.0.to_bits(), link.beta.0.to_bits(), link.resources.len())
    };
    let mut backward: BTreeMap<_, Vec<LinkId>> = BTreeMap::new();
    for id in topology.link_ids().collect::<Vec<_>>().into_iter().rev() {
        let link = topology.link(id);
        backward.entry((link.to, link.from, cost(id))).or_default().push(id);
    }
    let of = |id: LinkId| {
        let link = topology.link(id);
        backward.get_mut(&(link.from, link.to, cost(id)))?.pop()
    };
    topology.link_ids().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::synthesize;
    use crate::problem::{Limits, StrategyKind};
    use crate::strategies::classic::Classic;
    use crate::strategies::{Context, Joining, Strategy};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::resolve;

    fn problems(spec: &str, collective: Collective, size: u64, counts: &[u32]) -> Vec<Problem> {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), size);
        let demand = |&count: &u32| Demand::new(request.clone().with_chunks(count)).expect("a valid request");
        counts.iter().map(|count| Problem::new(topology.clone(), Arc::new(demand(count)))).collect()
    }

    /// A plan from few restarts and solver calls.
    fn planned(spec: &str, collective: Collective, size: u64, counts: &[u32]) -> (f64, Vec<String>) {
        let limits = Limits { restarts: 4, solver_iterations: 600, solver_calls: 4 };
        let options = SearchOptions { limits, ..SearchOptions::default() };
        let found = synthesize(&problems(spec, collective, size, counts), &options, &|_| {}).expect("a schedule");
        (found.report.makespan_us, found.report.candidates.into_iter().map(|it| it.strategy).collect())
    }

    #[test]
    fn a_sum_for_all_is_never_slower_than_its_two_halves() {
        for (spec, size, counts) in [
            ("fat-tree:2x4", 8_000, &[1][..]),
            ("fat-tree:3x3", 9_000_000, &[1, 2]),
            ("dgx1", 1_000_000, &[1, 2]),
            ("mesh2d:2x4", 80_000, &[1]),
            ("switch:6", 600_000, &[1]),
        ] {
            let (whole, names) = planned(spec, Collective::AllReduce, size, counts);
            let [collect, spread] =
                [Collective::ReduceScatter, Collective::AllGather].map(|half| planned(spec, half, size, counts).0);
            assert!(names.iter().any(|name| name.starts_with("halves/")), "{spec}: {names:?}");
            assert!(whole <= (collect + spread) * (1.0 + 1e-9), "{spec}: {whole} is more than {collect} and {spread}");
        }
    }

    #[test]
    fn what_is_no_sum_or_has_one_destination_has_no_halves() {
        for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::Reduce] {
            let (_, names) = planned("ring:4", collective, 4_000, &[1]);
            assert!(!names.iter().any(|name| name.starts_with("halves/")), "{collective}: {names:?}");
        }
        let options = SearchOptions { strategy: Some(StrategyKind::Classic), ..SearchOptions::default() };
        let found = synthesize(&problems("fat-tree:2x4", Collective::AllReduce, 8_000, &[1]), &options, &|_| {});
        let names: Vec<String> =
            found.expect("a schedule").report.candidates.into_iter().map(|it| it.strategy).collect();
        assert!(names.iter().all(|name| name.starts_with("classic")), "a named strategy runs alone: {names:?}");
    }

    fn gathered(problem: &Problem) -> Vec<PartialPlan> {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempts = Classic.propose(problem, &context).expect("textbook algorithms");
        attempts.into_iter().filter_map(|attempt| attempt.schedule).map(PartialPlan::of).collect()
    }

    #[test]
    fn a_plan_turned_around_is_a_plan_of_the_other_half() {
        for spec in ["fat-tree:2x4", "dgx1", "torus2d:3x3", "switch:5"] {
            let whole = problems(spec, Collective::AllReduce, 1_000_000, &[2]).remove(0);
            let halves = Halves::new(&whole, &choices(&whole)[0]).expect("two halves");
            let spread = gathered(halves.spread.as_ref().expect("a second half"));
            let turned = turned_around(&spread, std::slice::from_ref(&halves.collect));
            assert_eq!(turned.len(), spread.len(), "{spec}");
            for (turned, half) in turned.into_iter().zip(&spread) {
                let (there, back) = (half.schedule.makespan(), turned.makespan());
                assert!((there / back - 1.0).abs() < 1e-9, "{spec}: {there} and {back}");
                verify(turned, &halves.collect.topology).expect("a right schedule");
            }
        }
        // The links of a one-way ring have no counterparts.
        let whole = problems("ring:4", Collective::AllReduce, 4_000, &[1]).remove(0);
        let halves = Halves::new(&whole, &choices(&whole)[0]).expect("two halves");
        let spread = gathered(halves.spread.as_ref().expect("a second half"));
        assert!(turned_around(&spread, std::slice::from_ref(&halves.collect)).is_empty());
    }

    #[test]
    fn halves_of_different_chunk_counts_are_joined() {
        let [coarse, fine] = [1, 3].map(|count| problems("dgx1", Collective::AllReduce, 999_000, &[count]).remove(0));
        let [first, second] =
            [&coarse, &fine].map(|problem| Halves::new(problem, &choices(problem)[0]).expect("halves"));
        for collect in gathered(&first.collect) {
            let copies = gathered(second.spread.as_ref().expect("a second half"));
            let spread = copies.first().expect("a textbook algorithm");
            let deadline = Deadline::default();
            let halves = [&collect.cut(3)[..], &spread.cut(3)];
            let whole = joined(&second, halves, Joining::Exchanging, &deadline, "halves").expect("a valid order");
            let sum = collect.schedule.makespan() + spread.schedule.makespan();
            assert!(whole.makespan().0 <= sum.0 * (1.0 + 1e-9), "{} is more than {sum}", whole.makespan());
            verify(whole, &fine.topology).expect("a right schedule");
        }
    }
}
