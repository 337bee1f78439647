//! The bound, compared with brute force and with plans.

use super::batches::{CountSpace, Server};
use super::relay::relayed;
use super::*;
use crate::bounds::{bounds, thorough_bounds};
use crate::problem::by_hand::{asked, optimum, random_machine, wired};
use crate::problem::{Limits, SearchOptions};
use crate::strategies::classic::Classic;
use crate::strategies::matching::{Matching, Symmetric};
use crate::strategies::reversal::propose;
use crate::strategies::{Context, Strategy};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use schedule::Collective;
use topology::{Latency, Topology, resolve};

fn of(problem: &Problem) -> Option<f64> {
    let found = bounds(problem, &Deadline::default()).list.into_iter().find(|bound| bound.name == "crossing");
    found.map(|bound| bound.value.0)
}

/// A chain of two machines with two ranks each: 1 − 0 = 2 − 3. The cable takes 2 µs and 4 µs a chunk, the other links 1 µs and 1 µs.
fn chain() -> Topology {
    let cables = [(0, 1, 1.0, 1.0), (2, 3, 1.0, 1.0), (0, 2, 2.0, 4.0)];
    let both = cables.iter().flat_map(|&(a, b, alpha, beta)| [(a, b, alpha, beta, false), (b, a, alpha, beta, false)]);
    Topology::new(wired(4, &both.collect::<Vec<_>>(), Latency::Occupies, 1.0)).expect("a machine")
}

/// A row 0 − 1 − {2, 3}: ranks 2 and 3 share the port by which rank 1 receives, so parts of a sum come to it in messages of both.
fn star() -> Topology {
    let slow = [(0, 1, 1.0, 1.0, false), (1, 0, 1.0, 1.0, false)];
    let fast = [2, 3].into_iter().flat_map(|rank| [(1, rank, 1.0, 0.01, false), (rank, 1, 1.0, 0.01, true)]);
    let wires: Vec<_> = slow.into_iter().chain(fast).collect();
    Topology::new(wired(4, &wires, Latency::Occupies, 0.01)).expect("a machine")
}

#[test]
fn what_a_cable_brings_together_goes_on_together() {
    // Rank 3's chunk is at rank 2 after 2. Both cross by 2 + 2 + 8 = 12, and go on by 12 + 1 + 2 = 15. One after the other they cross by
    // 6 and 12, and the second one goes on by 12 + 2 = 14.
    assert!((of(&asked(chain(), Collective::AllGather, 4)).expect("a bound") - 14.0).abs() < 1e-9);
    // Four chunks cross in one or two messages: 2 + 2 + 16 = 20, or two of them by 10 and the others by 20, of which one goes on.
    assert!((of(&asked(chain(), Collective::AllToAll, 4)).expect("a bound") - 22.0).abs() < 1e-9);
    // What rank 1 contributes to four sums takes three links. In two messages of two it crosses by 3 + 2 · (2 + 8) = 23, in three of one,
    // two and one by 2 + 6 + 10 + 6 = 24. It goes on by 23 + 3 or 24 + 2.
    assert!((of(&asked(chain(), Collective::AllReduce, 4)).expect("a bound") - 26.0).abs() < 1e-9);
}

#[test]
fn sums_cross_whole_or_in_parts() {
    let linked = |cables: &[(u32, u32)], ranks: usize| {
        let both = cables.iter().flat_map(|&(a, b)| [(a, b, 1.0, 1.0, false), (b, a, 1.0, 1.0, false)]);
        Topology::new(wired(ranks, &both.collect::<Vec<_>>(), Latency::Occupies, 1.0)).expect("a machine")
    };
    for (cables, ranks, best) in [
        // Two ranks exchange both chunks, in one message each.
        (&[(0, 1)][..], 2, 3.0),
        // In a row of three, what an end contributes to three chunks takes two links in a row: all of it 4 + 4, or one chunk after the
        // other 2 + 2 + 2 + 2.
        (&[(0, 1), (1, 2)], 3, 8.0),
        // Three ranks get two chunks in parts, of which each takes a message of its neighbours, and one chunk from whom it is whole at.
        (&[(0, 1), (1, 2), (0, 2)], 3, 4.0),
    ] {
        let found = of(&asked(linked(cables, ranks), Collective::AllReduce, ranks as u64)).expect("a bound");
        assert!(found <= best * (1.0 + 1e-9), "{ranks} ranks: {found}");
        assert!(found >= best * 0.85, "{ranks} ranks: {found}");
    }
}

/// Where α is a delay, each link of the way adds it once: in a row of four, neighbours exchange the sums of both halves, chunk by chunk,
/// and the last one is at the ends after 3 α and the time of six chunks.
#[test]
fn delays_count_once_on_each_link() {
    let machine = resolve("line:4,alpha=1us,bandwidth=1GBps,latency=pipelines").expect("a family");
    let found = of(&asked(machine, Collective::AllReduce, 4_000)).expect("a bound");
    assert!((8.0..=9.0 + 1e-9).contains(&found), "{found}");
}

#[test]
fn what_is_known_of_a_server_has_its_lag_and_tails() {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    let space = CountSpace::new(vec![2, 1]);
    let only = Server { lag: 5.0, ..random_server(&mut random, &space, true) };
    let known: Vec<f64> = (0..space.states()).map(|state| 10.0 * state as f64).collect();
    let one = Server::as_one(vec![only], known.clone());
    assert!(one.is_one && one.lag == 5.0);
    assert_eq!(space.earliest(&[one]), known);
}

/// The best time to which some chunks can be carried, by trying all: chunk i has class `of[i]`; `servers` as in [`CountSpace::fits`].
fn tried(of: &[usize], space: &CountSpace, servers: &[Server]) -> f64 {
    let state = |set: usize| -> usize {
        of.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, &class)| space.one_of(class)).sum()
    };
    fn batches(left: usize, free: f64, server: &Server, state: &dyn Fn(usize) -> usize) -> f64 {
        let mut best = if left == 0 { 0.0 } else { f64::INFINITY };
        let mut message = left;
        while message > 0 {
            let number = state(message);
            let end = server.end_of(number, free.max(server.ready[number]));
            let rest = batches(left & !message, end, server, state);
            best = best.min(rest.max(end + server.lag + server.tails[number]));
            message = (message - 1) & left;
        }
        best
    }
    fn split(left: usize, servers: &[Server], state: &dyn Fn(usize) -> usize) -> f64 {
        let [first, others @ ..] = servers else { return if left == 0 { 0.0 } else { f64::INFINITY } };
        let mut best = split(left, others, state);
        let mut part = left;
        while part > 0 {
            best = best.min(batches(part, 0.0, first, state).max(split(left & !part, others, state)));
            part = (part - 1) & left;
        }
        best
    }
    split((1 << of.len()) - 1, servers, &state)
}

fn random_server(random: &mut Pcg64Mcg, space: &CountSpace, has_one_tail: bool) -> Server {
    let mut number = |limit: u32| f64::from(random.random_range(0..limit));
    let classes = space.digits(0).len();
    let heads: Vec<f64> = (0..classes).map(|_| number(6)).collect();
    let one = number(6);
    let tails: Vec<f64> = (0..classes).map(|_| if has_one_tail { one } else { number(6) }).collect();
    let most = |of: &[f64], digits: &[u32]| {
        digits.iter().zip(of).filter(|(count, _)| **count > 0).map(|(_, it)| *it).fold(0.0, f64::max)
    };
    Server {
        setup: number(4),
        per_byte: 1.0 + number(3),
        lag: number(3) - 1.0,
        ready: space.table(|digits| most(&heads, digits)),
        tails: space.table(|digits| most(&tails, digits)),
        bytes: space.table(|digits| digits.iter().sum::<u32>().into()),
        known: None,
        is_one: true,
    }
}

#[test]
fn no_order_of_batches_is_better_than_the_best() {
    for seed in 0..60 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let counts: Vec<u32> = (0..random.random_range(1..4)).map(|_| random.random_range(1..3)).collect();
        let of: Vec<usize> = counts.iter().enumerate().flat_map(|(at, &count)| vec![at; count as usize]).collect();
        let space = CountSpace::new(counts);
        let servers: Vec<Server> =
            (0..random.random_range(1..4)).map(|_| random_server(&mut random, &space, seed % 2 == 0)).collect();
        let best = tried(&of, &space, &servers);
        assert!(space.fits(&servers, best + 1e-9), "seed {seed}: {best}");
        assert!(!space.fits(&servers, best - 1e-9), "seed {seed}: {best}");
        if seed % 2 == 0 {
            let together = space.earliest_end(&servers.iter().collect::<Vec<_>>());
            assert!((together[space.states() - 1] - best).abs() < 1e-9, "seed {seed}: {together:?}, not {best}");
        }
    }
}

/// Two servers in a row, and what has come over the first one and when.
struct InARow<'a> {
    space: &'a CountSpace,
    into: &'a Server,
    on: &'a Server,
}

impl InARow<'_> {
    fn state(&self, set: usize) -> usize {
        (0..self.space.digits(0).len()).filter(|at| set >> at & 1 == 1).map(|at| self.space.one_of(at)).sum()
    }

    /// The best end by trying all orders, when the chunks of `left` have left and the servers are free at `free`.
    fn best(&self, come: &[f64], free: [f64; 2], end: f64, left: usize) -> f64 {
        let set = |of: &dyn Fn(usize) -> bool| (0..come.len()).filter(|&at| of(at)).map(|at| 1 << at).sum::<usize>();
        let (lacking, all) = (set(&|at| come[at].is_infinite()), set(&|_| true));
        let mut best = if left == all { end } else { f64::INFINITY };
        for message in (1..=lacking).filter(|message| message & !lacking == 0) {
            let number = self.state(message);
            let with_others = self.state(all & !lacking | message);
            let known = self.into.known.as_ref().map_or(0.0, |known| known[with_others] - self.into.lag);
            let end_of_it = self.into.end_of(number, free[0].max(self.into.ready[number]));
            let free = [end_of_it.max(known), free[1]];
            let arrived =
                |(at, &come): (usize, &f64)| if message >> at & 1 == 1 { free[0] + self.into.lag } else { come };
            let come: Vec<f64> = come.iter().enumerate().map(arrived).collect();
            best = best.min(self.best(&come, free, end, left));
        }
        let here = all & !lacking & !left;
        for message in (1..=here).filter(|message| message & !here == 0) {
            let arrived = (0..come.len()).filter(|at| message >> at & 1 == 1).map(|at| come[at]).fold(0.0, f64::max);
            let free = [free[0], self.on.end_of(self.state(message), free[1].max(arrived))];
            let end = end.max(free[1] + self.on.lag + self.on.tails[1]);
            best = best.min(self.best(come, free, end, left | message));
        }
        best
    }
}

#[test]
fn no_order_at_two_servers_is_better_than_the_best() {
    for seed in 0..40 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let classes = random.random_range(1..4);
        let space = CountSpace::new(vec![1; classes]);
        let (into, on) = (random_server(&mut random, &space, true), random_server(&mut random, &space, true));
        let known = (seed % 2 == 1).then(|| random_server(&mut random, &space, true).ready);
        let known = known.map(|heads| heads.into_iter().map(|head| 2.0 * head).collect());
        let into = Server { lag: into.lag.max(0.0), known, ..into };
        let found = relayed(&space, &into, &[&on], &vec![false; classes], &mut 1e9).expect("enough work");
        let row = InARow { space: &space, into: &into, on: &on };
        let best = row.best(&vec![f64::INFINITY; classes], [0.0; 2], 0.0, 0);
        let all = found[space.states() - 1];
        assert!((all - best).abs() < 1e-9, "seed {seed}: {all}, not {best}");
    }
}

#[test]
fn no_bound_is_above_an_optimum() {
    let (mut judged, mut met) = (0, 0);
    for seed in 0..2000 {
        let machine = random_machine(seed);
        if machine.rank_count() > 3 || machine.links().len() > 4 {
            continue;
        }
        for collective in [Collective::AllGather, Collective::Scatter] {
            let problem = asked(machine.clone(), collective, 3000);
            let Some(found) = of(&problem) else { continue };
            let best = optimum(&problem, true);
            assert!(found <= best * (1.0 + 1e-9), "machine {seed} {collective}: {found} > {best}");
            judged += 1;
            met += usize::from(found >= best * (1.0 - 1e-9));
        }
    }
    assert!(judged >= 250 && met >= 50, "{met} of {judged} are met");
}

#[test]
fn no_plan_is_below() {
    let limits = Limits { restarts: 4, ..Limits::default() };
    let (options, deadline) = (SearchOptions { limits, ..SearchOptions::default() }, Deadline::default());
    let context = Context::among_others(&options, &deadline, Micros::ZERO);
    let strategies: [&dyn Strategy; 3] = [&Classic, &Matching, &Symmetric];
    let mut judged = 0;
    let mut check = |topology: Topology, label: &str| {
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllReduce,
            Collective::AllToAll,
            Collective::Broadcast,
            Collective::Gather,
            Collective::Scatter,
            Collective::Reduce,
        ] {
            for size in [60, 4_000, 60_000] {
                let problem = asked(topology.clone(), collective, size);
                let mut known = bounds(&problem, &deadline);
                if topology.rank_count() < 6 {
                    known.list.extend(thorough_bounds(&problem, &known, &deadline));
                }
                let found = known.list.iter().filter(|bound| bound.name == "crossing");
                let Some(found) = found.map(|bound| bound.value.0).reduce(f64::max) else { continue };
                let attempts = strategies.iter().filter_map(|strategy| propose(&problem, &context, *strategy).ok());
                for plan in attempts.flatten().filter_map(|attempt| attempt.schedule) {
                    let makespan = plan.makespan().0;
                    assert!(found <= makespan * (1.0 + 1e-9), "{label} {collective} {size}: {found} > {makespan}");
                    judged += 1;
                }
            }
        }
    };
    for spec in
        ["fat-tree:2x3", "fat-tree:3x2,alpha=2us", "dragonfly:2x2x2", "switch:7", "dgx1", "mesh2d:3x3", "ndv2x2"]
    {
        check(resolve(spec).expect("a family"), spec);
    }
    for spec in ["line:4", "ring:5", "mesh2d:2x3", "switch:4"] {
        check(resolve(&format!("{spec},alpha=2us,latency=pipelines")).expect("a family"), spec);
    }
    check(chain(), "chain");
    check(star(), "star");
    for seed in 0..24 {
        check(random_machine(seed), &format!("machine {seed}"));
    }
    assert!(judged > 500, "{judged}");
}
