//! `improve`: local search around the best plan so far.
//!
//! The principal type is [`Improve`]. A plan is taken apart a little and completed again ([`ruin`], [`recreate`]),
//! played ([`clock`]), and kept or rejected ([`anneal`]). This happens tens of thousands of times a second, because a
//! plan is only an order of messages ([`draft`]) and playing it is one pass. Several chains with different random
//! numbers run in parallel. Some start from the incumbent, some from plans that the same repair builds from nothing,
//! and some from the best plan by another name. The best is chosen by makespan, then by chain, so that the result does
//! not depend on the number of threads.
//!
//! The scheme is ruin and recreate [1]. Particular to collectives are the changes, and that chunks may join messages
//! where α is large.
//!
//! [1] Schrimpf et al., "Record Breaking Optimization Results Using the Ruin and Recreate Principle", J. Comput. Phys.
//! 159 (2000).

mod anneal;
mod chunk_history;
mod clock;
mod draft;
mod recreate;
mod ruin;

use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::beats;
use crate::problem::{Limits, Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::matching::Matching;
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy, starts};
use anneal::Chain;
use draft::Draft;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rayon::prelude::*;
use recreate::RepairWeights;
use schedule::{Schedule, Transfer, makespan, replay};

/// The strategy.
#[derive(Clone, Copy, Debug)]
pub struct Improve;

/// The work of one chain, in deliveries played: about two seconds of one core.
const WORK: usize = 12_000_000;
/// The most steps of a chain per delivery, and in all: small plans have few arrangements.
const STEPS_PER_DELIVERY: usize = 1_000;
const MOST_STEPS: usize = 50_000;
/// With fewer steps than this, the search is not worthwhile.
const LEAST_STEPS: usize = 2_000;
/// The rounds: each takes 1/n of the steps. If the short first round gains nothing, a long one hardly ever does.
const ROUNDS: [u32; 2] = [4, 1];
/// The chains of a round. The first starts from the best plan so far. The others start from plans that they build; if these take more
/// than `MOST_WORSE` times as long, from the best plan by another name, but for restarts; and if that does too, as the first.
const CHAINS: u64 = 2;
const MOST_WORSE: f64 = 1.25;
/// How many plans a chain builds from nothing, to start from the best of them.
const BUILT: u64 = 8;

impl Strategy for Improve {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Improve
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, self.name())?;
        let started = match context.incumbent {
            Some(_) => None,
            None => starts::propose(problem, context, &Matching)?.into_iter().find_map(|attempt| attempt.schedule),
        };
        let Some(incumbent) = context.incumbent.or(started.as_ref()) else { return Err(SynthError::NothingYet) };
        // Restarts of the whole search come with more effort.
        let effort = context.options.limits.restarts / Limits::default().restarts;
        let steps = steps(problem, effort.max(1) as usize);
        if steps < LEAST_STEPS {
            let why = "so many deliveries leave no time to try changes".to_owned();
            return Err(SynthError::NotApplicable { strategy: self.name(), why });
        }
        let improvement = Improvement { problem, context, incumbent, steps: steps as u32 };
        let mut attempt = improvement.attempt();
        if started.is_some() {
            attempt.note = Some(format!("began with a plan of its own, by {}", StrategyKind::Matching.as_str()));
        }
        attempt.schedule = attempt.schedule.or(started);
        Ok(vec![attempt])
    }
}

/// The number of steps of a chain, `effort` times the usual. A step plays every delivery, and clears and copies a few tables.
fn steps(problem: &Problem, effort: usize) -> usize {
    let (topology, chunks) = (&problem.topology, problem.demand.chunks());
    let deliveries: usize = chunks.iter().map(|chunk| chunk.wanted_by.len()).sum();
    let tables = topology.links().len() + topology.resources().len() + topology.rank_count() * chunks.len();
    effort * (WORK / (deliveries + tables / 8).max(1)).min(deliveries * STEPS_PER_DELIVERY).min(MOST_STEPS)
}

/// Where a chain begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChainStart {
    Best,
    Built,
    /// A plan by another name, and what chains have made of it.
    Other,
}

/// The best plan of a chain.
struct ChainEnd {
    transfers: Vec<Transfer>,
    start: ChainStart,
}

struct Improvement<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    incumbent: &'a Schedule,
    steps: u32,
}

impl Improvement<'_> {
    fn attempt(&self) -> Attempt {
        let (mut best, mut other): (Option<Vec<Transfer>>, _) = (None, self.other());
        for (round, part) in (0..).zip(ROUNDS) {
            let from = best.as_deref().unwrap_or(&self.incumbent.transfers);
            let found = self.round(from, &mut other, round, self.steps / part);
            let is_done = found.is_none() || self.is_good_enough(found.as_deref());
            best = found.or(best);
            if is_done {
                break;
            }
        }
        let stop = match () {
            () if self.is_good_enough(best.as_deref()) => StopReason::Optimal,
            () if self.context.deadline.has_passed() => StopReason::TimeLimit,
            () => StopReason::Done,
        };
        let schedule = best
            .map(|transfers| Schedule::new(&self.problem.topology, self.problem.demand.clone(), transfers, "improve"));
        Attempt { name: "improve".to_owned(), schedule, stop, note: None }
    }

    /// A plan by another name. It is far from the incumbent, and may lead further though it is slower.
    fn other(&self) -> Option<Vec<Transfer>> {
        self.context.runner_up.filter(|_| !self.context.is_restart).map(|it| it.transfers.clone())
    }

    fn is_good_enough(&self, transfers: Option<&[Transfer]>) -> bool {
        let found = transfers.map_or_else(|| self.incumbent.makespan(), makespan);
        self.context.is_enough(found)
    }

    /// The best plan of all chains, if it is faster than `from`. The chain that goes on from `other` makes it faster.
    fn round(
        &self,
        from: &[Transfer],
        other: &mut Option<Vec<Transfer>>,
        round: u64,
        steps: u32,
    ) -> Option<Vec<Transfer>> {
        let chains: Vec<u64> = (0..CHAINS).map(|chain| round * CHAINS + chain).collect();
        let begins = other.as_deref();
        let found: Vec<Option<ChainEnd>> =
            chains.par_iter().map(|&number| self.chain((from, begins), number, steps)).collect();
        let mut best = makespan(from);
        let mut better = None;
        for ChainEnd { transfers, start } in found.into_iter().flatten() {
            let makespan = makespan(&transfers);
            if start == ChainStart::Other {
                *other = Some(transfers.clone());
            }
            if beats(makespan, best) {
                (best, better) = (makespan, Some(transfers));
            }
        }
        better
    }

    /// The best plan that chain `number` finds.
    fn chain(&self, (from, other): (&[Transfer], Option<&[Transfer]>), number: u64, steps: u32) -> Option<ChainEnd> {
        let is_first = number.is_multiple_of(CHAINS);
        let builds = if is_first { 0 } else { self.builds(steps) };
        let built = (0..builds).filter_map(|build| self.built(number, build));
        let built = built.min_by(|a, b| a.makespan.total_cmp(&b.makespan));
        if self.context.deadline.has_passed() {
            return None;
        }
        let hopeful = built.filter(|built| built.makespan.0 <= makespan(from).0 * MOST_WORSE);
        let other = other.filter(|other| !is_first && makespan(other) <= makespan(from) * MOST_WORSE);
        let (start, chain) = match (hopeful, other) {
            (Some(built), _) => (ChainStart::Built, built),
            (None, Some(other)) => (ChainStart::Other, self.near(other, number)?),
            (None, None) => (ChainStart::Best, self.near(from, number)?),
        };
        Some(ChainEnd { transfers: self.run(chain, steps)?, start })
    }

    fn run(&self, mut chain: Chain<'_>, steps: u32) -> Option<Vec<Transfer>> {
        chain.run(steps, self.context.goal(), self.context.deadline);
        replay(&self.problem.demand, &self.problem.topology, &chain.best.messages()).ok()
    }

    /// How many plans to build from nothing: they may cost half as much as the steps.
    fn builds(&self, steps: u32) -> u64 {
        // Each chunk is added to a plan that contains half of the chunks on average.
        let plays = self.problem.demand.chunks().len() as u64 / 2;
        (u64::from(steps) / 2 / plays.max(1)).min(BUILT)
    }

    fn near(&self, transfers: &[Transfer], number: u64) -> Option<Chain<'_>> {
        let (ranks, demand) = (self.problem.topology.rank_count(), &self.problem.demand);
        let holds = |chunk, rank| demand.chunk(chunk).holders.has(rank);
        let draft = Draft::of(transfers, ranks, holds, demand.chunks().len());
        Chain::new(self.problem, draft, self.random(number))
    }

    fn built(&self, number: u64, build: u64) -> Option<Chain<'_>> {
        let price = [0.0, 0.5, 2.0, 8.0][build as usize % 4];
        let weights = RepairWeights { price, noise: 0.2, push: 0.0, overlook: 0.0 };
        Chain::from_nothing(self.problem, weights, self.context.deadline, self.random(1000 * number + build))
    }

    fn random(&self, number: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(self.context.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (number + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, SearchOptions};
    use crate::sketch::{SketchFile, obey};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Micros, resolve};

    const WEIGHTS: RepairWeights = RepairWeights { price: 1.0, noise: 0.2, push: 0.1, overlook: 0.05 };

    fn problem(spec: &str, collective: Collective, size: u64, sketch: &str) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let demand = Demand::new(Request::new(collective, topology.rank_count(), size)).expect("a valid request");
        let mut problem = Problem::new(topology.clone(), Arc::new(demand));
        if !sketch.is_empty() {
            let sketch = SketchFile::parse(sketch, "s.yaml").expect("a sketch").resolve(&topology).expect("it fits");
            problem.constraints = Arc::new(sketch.constraints.clone());
        }
        problem
    }

    fn random() -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(5)
    }

    /// Checks that the clock agrees with replay, that the verifier accepts the plan, and that it obeys the sketch.
    fn check(problem: &Problem, draft: &Draft, makespan: Micros, label: &str) {
        let transfers =
            replay(&problem.demand, &problem.topology, &draft.messages()).expect("an order that can be played");
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "improve");
        let found = schedule.makespan();
        assert!((found / makespan - 1.0).abs() < 1e-9, "{label}: {found} is not {makespan}");
        let violations = obey(&schedule, &problem.topology, &problem.constraints);
        assert!(violations.is_empty(), "{label}: {}", violations[0]);
        verify(schedule, &problem.topology).unwrap_or_else(|rejection| panic!("{label}: {rejection}"));
    }

    #[test]
    fn what_chains_build_and_improve_is_right() {
        let hops = "relays: {0: [1], 2: [3]}\nmax_machine_hops: 1\n";
        for (spec, sketch) in [
            ("dgx1", ""),
            ("ndv2x2,costs=taccl-1mb", hops),
            ("ndv2x2,costs=taccl-1kb", "relays: all\nmax_machine_hops: 1\n"),
            ("mesh2d:3x3", ""),
            ("switch:5", ""),
        ] {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast, Collective::Scatter]
            {
                let label = format!("{collective} on {spec}");
                let problem = problem(spec, collective, 160_000, sketch);
                let mut chain = Chain::from_nothing(&problem, WEIGHTS, &Deadline::default(), random())
                    .expect("every rank can be reached");
                let built = chain.makespan;
                check(&problem, &chain.best, built, &label);
                chain.run(100, Micros::ZERO, &Deadline::default());
                assert!(chain.makespan <= built, "{label}");
                check(&problem, &chain.best, chain.makespan, &label);
            }
        }
    }

    #[test]
    fn a_plan_survives_becoming_a_draft() {
        let problem = problem("ndv2x2", Collective::AllGather, 16_000_000, "");
        let chain =
            Chain::from_nothing(&problem, WEIGHTS, &Deadline::default(), random()).expect("every rank can be reached");
        let transfers = replay(&problem.demand, &problem.topology, &chain.best.messages()).expect("playable");
        let holds = |chunk, rank| problem.demand.chunk(chunk).holders.has(rank);
        let draft = Draft::of(&transfers, 16, holds, problem.demand.chunks().len());
        let again = Chain::new(&problem, draft, random()).expect("playable");
        assert_eq!(again.makespan, chain.makespan);
    }

    #[test]
    fn small_published_instances_are_reached() {
        for (spec, size, known) in [("ndv2x1,costs=taccl-32kb", 256_000, 3.0), ("ndv2x1,costs=taccl-1kb", 8_000, 0.68)]
        {
            let problem = problem(spec, Collective::AllGather, size, "");
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let bound = bounds(&problem, &Deadline::default()).best().value;
            let context = Context::among_others(&options, &deadline, bound);
            let attempt = Improve.propose(&problem, &context).expect("a connected machine").remove(0);
            let found = attempt.schedule.expect("a schedule").makespan();
            assert!(found.0 <= known * (1.0 + 1e-9), "{spec}: {found} > {known}");
        }
    }
}
