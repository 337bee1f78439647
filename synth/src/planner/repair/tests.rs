//! Plans of real machines, repaired after links or ranks are gone or slower; the verifier judges every repaired plan.

use super::*;
use crate::planner::{accept, synthesize};
use crate::problem::{Limits, SearchOptions, StrategyKind};
use schedule::{Collective, Demand, Request};
use std::sync::Arc;
use topology::{Link, Rank, ResourceId, Topology, TopologyParts, resolve};

/// Collectives, and into how many chunks for each rank they are cut.
const COLLECTIVES: [(Collective, u32); 6] = [
    (Collective::AllGather, 2),
    (Collective::ReduceScatter, 1),
    (Collective::AllReduce, 2),
    (Collective::AllToAll, 1),
    (Collective::Broadcast, 2),
    (Collective::Reduce, 1),
];

fn problem(topology: Arc<Topology>, collective: Collective, chunks: u32) -> Problem {
    let request = Request::new(collective, topology.rank_count(), 1 << 20).with_chunks(chunks);
    Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
}

/// A plan by one strategy, if it has one.
fn planned(problem: &Problem, strategy: StrategyKind) -> Option<Schedule> {
    let limits = Limits { restarts: 1, ..Limits::default() };
    let options = SearchOptions { limits, strategy: Some(strategy), gap: 0.5, ..SearchOptions::default() };
    let found = synthesize(std::slice::from_ref(problem), &options, &|_| {}).ok()?;
    Some(found.schedule.into_schedule())
}

/// The machine without some links and without some of its last or first ranks, and its links slower by a factor.
fn changed(topology: &Topology, keep: impl Fn(&Link) -> bool, gone: &[Rank], slower: f64) -> Arc<Topology> {
    let number = |rank: Rank| Rank(rank.0 - gone.iter().filter(|&&it| it < rank).count() as u32);
    let stays = |link: &&Link| keep(link) && !gone.contains(&link.from) && !gone.contains(&link.to);
    let links = topology.links().iter().filter(stays).map(|link| {
        let mut link = Link { from: number(link.from), to: number(link.to), ..link.clone() };
        if link.from == Rank(0) && link.resources.is_empty() {
            link.beta = link.beta * slower;
        }
        link
    });
    let machines = topology
        .machines()
        .iter()
        .map(|machine| machine.iter().copied().filter(|rank| !gone.contains(rank)).map(number).collect::<Vec<Rank>>());
    Arc::new(
        Topology::new(TopologyParts {
            name: "changed".to_owned(),
            ranks: topology.rank_count() - gone.len(),
            machines: machines.filter(|machine| !machine.is_empty()).collect(),
            links: links.collect(),
            resources: (0..topology.resources().len())
                .map(|id| topology.resource(ResourceId::from_index(id)).clone())
                .collect(),
        })
        .expect("a valid machine"),
    )
}

#[test]
fn plans_survive_what_happens_to_machines() {
    for spec in ["dgx1", "torus2d:3x4", "switch:6", "h800x2"] {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let pair = [Rank(0), Rank(1)];
        let cut = |link: &Link| !(pair.contains(&link.from) && pair.contains(&link.to));
        let changes = [
            ("unchanged", changed(&topology, |_| true, &[], 1.0)),
            ("slower", changed(&topology, |_| true, &[], 3.0)),
            ("without a cable", changed(&topology, cut, &[], 1.0)),
            ("without rank 0", changed(&topology, |_| true, &[Rank(0)], 1.0)),
            ("without rank 3", changed(&topology, |_| true, &[Rank(3)], 1.0)),
        ];
        let (mut rerouted, mut repairs) = ([0; 5], 0);
        for strategy in [StrategyKind::Matching, StrategyKind::Classic] {
            for (collective, chunks) in COLLECTIVES {
                let before = problem(topology.clone(), collective, chunks);
                let Some(plan) = planned(&before, strategy) else { continue };
                repairs += 1;
                for ((label, new), rerouted) in changes.iter().zip(&mut rerouted) {
                    let (now, label) =
                        (problem(new.clone(), collective, chunks), format!("{spec} {label} {collective}"));
                    let repaired = repaired(&now, &plan, &Deadline::default());
                    let repaired = repaired.unwrap_or_else(|error| panic!("{label}: {error}"));
                    *rerouted += repaired.rerouted * usize::from(strategy == StrategyKind::Matching);
                    accept(repaired.schedule, &now).unwrap_or_else(|error| panic!("{label}: {error}"));
                }
            }
        }
        assert!(repairs > 9, "{spec}: both strategies plan most collectives, not {repairs}");
        assert_eq!(rerouted[..2], [0, 0], "{spec}: nothing takes another way where nothing is gone");
        assert!(rerouted[2] > 0, "{spec}: without a cable");
    }
}

/// Without a rank, a plan for rank numbers that are gone is matched to the right ranks: nothing on a line of links takes
/// another way when its last rank leaves, or its first.
#[test]
fn the_rank_that_is_gone_is_found() {
    let topology = Arc::new(resolve("line:5").expect("a known topology"));
    let plan = planned(&problem(topology.clone(), Collective::AllGather, 1), StrategyKind::Matching).expect("a plan");
    let apart = changed(&topology, |_| true, &[Rank(4)], 1.0);
    let now = problem(apart, Collective::AllGather, 1);
    let found = repaired(&now, &plan, &Deadline::default()).expect("a line of four");
    assert_eq!((found.gone.len(), found.rerouted), (1, 0));
    assert_eq!(found.schedule.transfers.len(), 12);
}

#[test]
fn what_cannot_be_repaired_is_refused() {
    let topology = Arc::new(resolve("ring:4,direction=both").expect("a known topology"));
    let plan = planned(&problem(topology.clone(), Collective::AllGather, 1), StrategyKind::Matching).expect("a plan");
    let alone = |link: &Link| link.from != Rank(2) && link.to != Rank(2);
    let cut = problem(changed(&topology, alone, &[], 1.0), Collective::AllGather, 1);
    assert!(matches!(repaired(&cut, &plan, &Deadline::default()), Err(SynthError::Infeasible { .. })));
    let other = problem(topology, Collective::AllToAll, 1);
    assert!(matches!(repaired(&other, &plan, &Deadline::default()), Err(SynthError::NotApplicable { .. })));
    let larger = problem(Arc::new(resolve("ring:5").expect("a topology")), Collective::AllGather, 1);
    assert!(matches!(repaired(&larger, &plan, &Deadline::default()), Err(SynthError::NotApplicable { .. })));
}
