//! The strategy and its bounds, compared with brute force and with published schedules.

use super::*;
use crate::bounds::{Bound, Scope, bounds};
use crate::problem::by_hand::optimum;
use crate::problem::{Deadline, SearchOptions};
use crate::strategies::matching::Matching;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use schedule::{Collective, Demand, Request, verify};
use std::sync::Arc;
use topology::{Latency, Link, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

fn gather(topology: Topology, size: u64, chunks: u32) -> Problem {
    let request = Request::new(Collective::AllGather, topology.rank_count(), size).with_chunks(chunks);
    Problem::new(Arc::new(topology), Arc::new(Demand::new(request).unwrap()))
}

fn planned(problem: &Problem, strategy: &dyn Strategy) -> Attempt {
    let options = SearchOptions::default();
    let deadline = Deadline::default();
    let bound = bounds(problem, &Deadline::default()).best().value;
    let context = Context::of_test(&options, &deadline, bound);
    strategy.propose(problem, &context).unwrap().remove(0)
}

/// The verified makespan of what `exact` finds.
fn exact(problem: &Problem) -> f64 {
    let schedule = planned(problem, &Exact).schedule.unwrap();
    verify(schedule, &problem.topology).unwrap().schedule().makespan().0
}

fn horizons(problem: &Problem) -> Vec<Bound> {
    let effort = HorizonEffort { in_all: 8_000, ..HorizonEffort::default() };
    horizon(problem, &bounds(problem, &Deadline::default()), effort, &Deadline::default()).unwrap()
}

/// A random strongly connected machine; chunks of one byte take whole microseconds.
fn machine(random: &mut Pcg64Mcg, ranks: u32, shared: bool) -> Topology {
    let mut pairs: Vec<(u32, u32)> = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
    let all = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    pairs.extend(all.filter(|&(from, to)| from != to && (from + 1) % ranks != to && random.random_bool(0.6)));
    let latency = if random.random_bool(0.5) { Latency::Occupies } else { Latency::Pipelines };
    let link = |(from, to): (u32, u32)| Link {
        from: Rank(from),
        to: Rank(to),
        alpha: Micros(f64::from(random.random_range(0..3u8))),
        beta: MicrosPerByte(f64::from(random.random_range(1..4u8))),
        latency,
        resources: if shared && random.random_bool(0.5) { [ResourceId(0)].into() } else { [].into() },
    };
    let links = pairs.into_iter().map(link).collect();
    let resources = vec![Resource::new("shared", MicrosPerByte(1.0))];
    Topology::new(TopologyParts { ranks: ranks as usize, links, resources, ..TopologyParts::default() }).unwrap()
}

#[test]
fn nothing_is_faster_than_what_is_found() {
    for seed in 0..12 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let problem = gather(machine(&mut random, 3, false), 3, 1);
        let best = optimum(&problem, false);
        assert!((exact(&problem) - best).abs() < 1e-6, "seed {seed}: {} instead of {best}", exact(&problem));
    }
}

#[test]
fn no_horizon_is_above_an_optimum() {
    let mut counted = [0, 0];
    for seed in 0..24 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let problem = gather(machine(&mut random, 3, true), 3, 1);
        for bound in horizons(&problem) {
            let merged = bound.scope == Scope::ThisChunking;
            let best = optimum(&problem, merged);
            assert!(bound.value.0 <= best, "seed {seed}: {} µs is possible, not {bound:?}", best);
            counted[usize::from(merged)] += 1;
        }
    }
    assert!(counted.iter().all(|&count| count > 8), "{counted:?}");
}

#[test]
fn no_horizon_is_above_a_plan() {
    for seed in 0..6 {
        let mut random = Pcg64Mcg::seed_from_u64(100 + seed);
        let ranks = random.random_range(4..6);
        let problem = gather(machine(&mut random, ranks, seed % 2 == 0), u64::from(ranks) * 2, 2);
        let plan = planned(&problem, &Matching).schedule.unwrap();
        let single = plan.transfers.iter().all(|transfer| transfer.chunks.len() == 1);
        for bound in horizons(&problem).into_iter().filter(|bound| single || bound.scope == Scope::ThisChunking) {
            assert!(bound.value <= plan.makespan() * (1.0 + 1e-9), "seed {seed}: {bound:?}");
        }
    }
}

/// Published optima, and that no shorter schedule exists.
#[test]
fn published_horizons() {
    for (spec, size, chunks, optimum, refuted) in [
        ("dgx1", 1_000_000_000, 1, 7502.1, 7501.0),
        ("dgx1", 1_000_000_000, 2, 6253.5, 6251.0),
        ("torus2d:4x4,alpha=0.5us,bandwidth=50GiBps", 16 << 20, 1, 4.0 * 20.03125, 3.999_999 * 20.03125),
    ] {
        let problem = gather(topology::resolve(spec).unwrap(), size, chunks);
        let found = exact(&problem);
        assert!(found <= optimum * (1.0 + 1e-9), "{spec} with {chunks} chunks: {found} > {optimum}");
        let single = horizons(&problem).into_iter().find(|bound| bound.scope == Scope::OneChunkPerMessage);
        let single = single.expect("a horizon");
        assert!((refuted..=found).contains(&single.value.0), "{spec} with {chunks} chunks: {single:?}");
    }
}

#[test]
fn what_it_cannot_do_is_refused() {
    let sum = Demand::new(Request::new(Collective::AllReduce, 3, 300)).unwrap();
    let problem = Problem::new(Arc::new(topology::resolve("ring:3").unwrap()), Arc::new(sum));
    let large = gather(topology::resolve("torus2d:16x16").unwrap(), 1 << 30, 8);
    let options = SearchOptions::default();
    let deadline = Deadline::default();
    let context = Context::of_test(&options, &deadline, Micros(1.0));
    for problem in [problem, large] {
        let refused = Exact.propose(&problem, &context);
        assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
    }
}
