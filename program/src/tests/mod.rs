//! Lowering, checking and executing together.

mod checker;
mod excerpts;
mod options;
mod orbits;

use super::*;
use expect_test::expect;
use schedule::{Collective, Message, TIME_TOLERANCE, TransferKind, VerifiedSchedule};
use std::collections::{BTreeMap, BTreeSet};
use testing::executor::{self, Executor, Transport};
use testing::mutants::{self, Mutant, Slip};
use testing::schedules::{self, Random};
use testing::{STANDARD, checked, lowered};
use topology::{Micros, Rank};

/// Among the steps that may come next, the one that starts first in the schedule does.
#[test]
fn a_rank_does_its_steps_in_the_order_of_their_times() {
    let (topology, demand) = (schedules::clique(4), schedules::demand(Collective::Broadcast, 4, 1));
    let (mut digests, mut traffic) = (BTreeSet::new(), BTreeSet::new());
    for starts in [[0.0, 1.0, 2.0], [2.0, 0.0, 1.0], [1.0, 2.0, 0.0]] {
        let transfers = (1..4).zip(starts).map(|(to, start)| {
            let link = topology.between(Rank(0), Rank(to)).next().unwrap();
            let message = Message { chunks: demand.chunk_ids().collect(), link, kind: TransferKind::Copy };
            let mut transfer = schedule::replay(&demand, &topology, &[message]).unwrap().remove(0);
            let time = transfer.end.0 - transfer.start.0;
            (transfer.start, transfer.end) = (Micros(start * time), Micros((start + 1.0) * time));
            transfer
        });
        let program = checked(lowered(&schedules::timed(&topology, &demand, transfers.collect()), true));
        let steps = program.sequences().unwrap().swap_remove(0);
        let own = &program.program().ranks[0].threadblocks;
        let sent = steps.iter().map(|at| own[at.threadblock as usize].steps[at.step as usize].transfer.unwrap());
        let started: Vec<Micros> = sent.map(|transfer| program.program().tempo.times[transfer as usize][0]).collect();
        assert!(started.len() == 3 && started.is_sorted(), "{started:?}");
        digests.insert(digest(program.program()));
        traffic.insert(traffic_digest(program.program()));
    }
    // The same messages in three orders.
    assert_eq!((digests.len(), traffic.len()), (3, 1));
}

/// Where all ranks end with the same sum of the same parts, lowering says so, and where they cannot, too.
#[test]
fn sums_of_different_parts_are_told() {
    let random = &mut Random(3);
    for ranks in 2..9 {
        assert_eq!(adds_differently(&schedules::ring_allreduce(ranks, 2)), None);
        assert_eq!(adds_differently(&schedules::direct(&schedules::demand(Collective::AllReduce, ranks, 1))), None);
        let demand = schedules::demand(Collective::AllReduce, ranks, 3);
        assert_eq!(adds_differently(&schedules::random_trees(&schedules::clique(ranks), &demand, random)), None);
    }
    // Rank 0 ends with ((a + b) + c) + d, the others with (a + b) + (c + d), which rank 2 shows to rank 1. What it takes from
    // ranks 2 and 3 departs before they add, and lands late.
    let (topology, demand) = (schedules::clique(4), schedules::demand(Collective::AllReduce, 4, 1));
    let ways = [(1, 0), (0, 1), (3, 2), (2, 0), (2, 1), (0, 2), (3, 0), (2, 3)];
    let starts = [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.5];
    let transfers = ways.into_iter().zip(starts).enumerate().map(|(index, ((from, to), start))| {
        let kind = if index == 7 { TransferKind::Copy } else { TransferKind::Reduce };
        let link = topology.between(Rank(from), Rank(to)).next().unwrap();
        let message = Message { chunks: demand.chunk_ids().collect(), link, kind };
        let mut transfer = schedule::replay(&demand, &topology, &[message]).unwrap().remove(0);
        let time = transfer.end.0 - transfer.start.0;
        (transfer.start, transfer.end) = (Micros(start * time), Micros(start * time + time));
        transfer
    });
    let plan = schedules::timed(&topology, &demand, transfers.collect());
    assert_eq!(adds_differently(&plan).map(|chunk| chunk.index()), Some(0));
}

/// Lowers, checks and runs in several orders, with several counts and tiles.
fn both_ways(schedule: &VerifiedSchedule, random: &mut Random) {
    for in_place in [false, true] {
        let program = checked(lowered(schedule, in_place));
        assert_eq!(program.window(), 0, "lowered programs need no buffers");
        let program = program.into_program();
        for (count, tiles) in [(0, 1), (1, 1), (2, 3), (7, 2), (13, 1)] {
            for transport in [Transport::Buffered, Transport::Window(0)] {
                let executor = Executor { program: &program, count, tiles, transport };
                let state = executor.run(random).expect("the program runs to its end");
                executor.judge(&state).unwrap();
            }
        }
    }
}

#[test]
fn rings_are_right() {
    for ranks in [2, 3, 4, 7] {
        for chunks in [1, 3] {
            let random = &mut Random(7);
            both_ways(&schedules::ring_allgather(ranks, chunks), random);
            both_ways(&schedules::ring_reducescatter(ranks, chunks), random);
            both_ways(&schedules::ring_allreduce(ranks, chunks), random);
        }
    }
}

#[test]
fn direct_exchange_is_right() {
    for collective in STANDARD {
        for ranks in [1, 2, 3, 5] {
            let demand = schedules::demand(collective, ranks, 2);
            both_ways(&schedules::direct(&demand), &mut Random(11));
        }
    }
}

#[test]
fn random_trees_with_relays_are_right() {
    let random = &mut Random(3);
    for round in 0..12 {
        for collective in STANDARD {
            let ranks = 2 + round % 6;
            let topology = schedules::random_topology(ranks, random);
            let demand = schedules::random_demand(collective, ranks, random);
            both_ways(&schedules::random_trees(&topology, &demand, random), random);
        }
    }
}

/// Times that were printed with few digits: departures slightly before the arrivals that they depend on, by almost the
/// tolerance of the verifier.
#[test]
fn rounded_times_are_right() {
    let random = &mut Random(23);
    for collective in STANDARD {
        let topology = schedules::random_topology(5, random);
        let demand = schedules::random_demand(collective, 5, random);
        let mut transfers = schedules::random_trees(&topology, &demand, random).into_schedule().transfers;
        for transfer in &mut transfers {
            let duration = transfer.end.0 - transfer.start.0;
            transfer.start.0 *= 1.0 + (random.below(3) as f64 - 1.0) * 0.45 * TIME_TOLERANCE;
            transfer.end.0 = transfer.start.0 + duration;
        }
        both_ways(&schedules::timed(&topology, &demand, transfers), random);
    }
}

/// A chunk is forwarded over a link without cost, slightly before it has arrived; also with the two messages listed in
/// the wrong order.
#[test]
fn what_takes_no_time_is_lowered_after_what_brings_it() {
    let free = |from, to| topology::Link {
        beta: topology::MicrosPerByte(0.0),
        ..schedules::link(from, to, 0.0, topology::Latency::Occupies)
    };
    let late = topology::Link { alpha: topology::Micros(10.000_000_5), ..free(0, 1) };
    let topology = schedules::topology("chain", 3, vec![late, free(1, 2)]);
    let demand = schedules::demand(Collective::Broadcast, 3, 1);
    let hop = |link: u32, start: f64, end: f64| schedule::Transfer {
        chunks: [schedule::ChunkId(0)].into_iter().collect(),
        from: topology::Rank(link),
        to: topology::Rank(link + 1),
        link: topology::LinkId(link),
        kind: schedule::TransferKind::Copy,
        start: topology::Micros(start),
        end: topology::Micros(end),
    };
    let transfers = vec![hop(0, 0.0, 10.000_000_5), hop(1, 10.0, 10.0)];
    both_ways(&schedules::timed(&topology, &demand, transfers), &mut Random(5));
    let topology = schedules::topology("chain", 3, vec![free(0, 1), free(1, 2)]);
    both_ways(&schedules::timed(&topology, &demand, vec![hop(1, 0.0, 0.0), hop(0, 0.0, 0.0)]), &mut Random(5));
}

#[test]
fn the_listing_reads_like_a_program() {
    let program = checked(lowered(&schedules::ring_allreduce(3, 1), false));
    expect![[r#"
        allreduce over 3 of 3 ranks, sum, out of place, blocks of 3 slots
        c0: rank 0 -> rank 1, channel 0, link 0
        c1: rank 1 -> rank 2, channel 0, link 1
        c2: rank 2 -> rank 0, channel 0, link 2
        rank 0: input 3, output 3, scratch 0
          0.0  c0 <- input[0]  transfer 0
          0.1  c0 <- output[2]  transfer 5  after 1.0
          0.2  c0 <- output[1]  transfer 7  after 1.1
          0.3  c0 <- output[0]  transfer 9  after 1.2
          1.0  output[2] <- input[2] + c2  transfer 2
          1.1  output[1] <- input[1] + c2  transfer 4
          1.2  output[0] <- c2  transfer 6
          1.3  output[2] <- c2  transfer 11  after 0.1
        rank 1: input 3, output 3, scratch 0
          0.0  output[0] <- input[0] + c0  transfer 0
          0.1  output[2] <- input[2] + c0  transfer 5
          0.2  output[1] <- c0  transfer 7
          0.3  output[0] <- c0  transfer 9  after 1.1
          1.0  c1 <- input[1]  transfer 1
          1.1  c1 <- output[0]  transfer 3  after 0.0
          1.2  c1 <- output[2]  transfer 8  after 0.1
          1.3  c1 <- output[1]  transfer 10  after 0.2
        rank 2: input 3, output 3, scratch 0
          0.0  output[1] <- input[1] + c1  transfer 1
          0.1  output[0] <- input[0] + c1  transfer 3
          0.2  output[2] <- c1  transfer 8
          0.3  output[1] <- c1  transfer 10  after 1.1
          1.0  c2 <- input[2]  transfer 2
          1.1  c2 <- output[1]  transfer 4  after 0.0
          1.2  c2 <- output[0]  transfer 6  after 0.1
          1.3  c2 <- output[2]  transfer 11  after 0.2
    "#]]
    .assert_eq(&program.program().to_string());
}

#[test]
fn the_digest_covers_what_ranks_do() {
    let program = |chunks, in_place| lowered(&schedules::ring_allgather(4, chunks), in_place);
    let digests = [digest(&program(1, false)), digest(&program(2, false)), digest(&program(1, true))];
    assert_eq!(digests[0], digest(&program(1, false)));
    assert!(digests[0] != digests[1] && digests[0] != digests[2] && digests[1] != digests[2]);
    assert_eq!(digests[0].len(), 64);
}

/// Whether any order of a small program's steps fails, with this much room or with unlimited room; `None` if there are
/// too many orders.
fn explored(program: &Program, window: u32, most: usize) -> Option<Result<(), String>> {
    let request = program.demand.request();
    let listed = request.collective.is_listed();
    let count = if listed { request.size_bytes } else { u64::from(program.shape.parts()) };
    for transport in [Transport::Buffered, Transport::Window(window)] {
        let found = Executor { program, count, tiles: 1, transport }.explore(most)?;
        if found.is_err() {
            return Some(found);
        }
    }
    Some(Ok(()))
}

/// Programs that are small enough to try every order of their steps.
fn small_programs() -> Vec<Program> {
    let direct = |collective, ranks| schedules::direct(&schedules::demand(collective, ranks, 1));
    vec![
        lowered(&schedules::ring_allgather(3, 1), false),
        lowered(&schedules::ring_allreduce(2, 1), false),
        lowered(&schedules::ring_allreduce(3, 1), true),
        lowered(&direct(Collective::AllToAll, 2), false),
        lowered(&direct(Collective::AllToAll, 2), true),
        lowered(&direct(Collective::AllReduce, 2), true),
        lowered(&direct(Collective::Reduce, 3), false),
        lowered(&direct(Collective::ReduceScatter, 3), true),
        lowered(&direct(Collective::SendRecv, 3), true),
        lower(&schedules::ring_allgather(3, 1), &options::fused(false)).unwrap(),
        lower(&schedules::ring_allreduce(3, 1), &options::fused(true)).unwrap(),
        lower(&direct(Collective::AllToAll, 2), &LowerOptions { instances: 2, ..options::fused(false) }).unwrap(),
        lower(&schedules::ring_allgather(2, 2), &LowerOptions { channels: 2, ..LowerOptions::default() }).unwrap(),
    ]
}

/// Compares the checker with every order of one program; returns the verdict, if all orders could be tried.
fn agreed(program: &Program, what: &dyn std::fmt::Debug, most: usize) -> Option<bool> {
    let violations = match check(program.clone()) {
        Ok(verified) => {
            let window = verified.window();
            explored(program, window, most)?
                .unwrap_or_else(|wrong| panic!("{what:?} was accepted: {wrong}\n{program}"));
            if window > 0 {
                explored(program, window - 1, most)?.expect_err("less room does not suffice");
            }
            return Some(true);
        }
        Err(violations) => violations,
    };
    // A program with a wrong structure cannot be executed at all.
    if !violations.iter().any(breaks_form) && explored(program, u32::MAX, most)?.is_ok() {
        // The steps of the explorer are atomic, so it does not see races within a step.
        let races = violations.iter().all(|violation| matches!(violation, ProgramViolation::Race { .. }));
        assert!(races, "{what:?} was refused but is right in every order: {violations:?}\n{program}");
    }
    Some(false)
}

#[test]
fn the_checker_agrees_with_every_interleaving() {
    let mut refused = 0;
    for program in small_programs() {
        assert_eq!(agreed(&program, &"a lowered program", 100_000), Some(true));
        for Mutant { slip, program } in mutants::all(&program) {
            refused += usize::from(agreed(&program, &slip, 100_000) == Some(false));
        }
    }
    assert!(refused > 600, "{refused} mutants were refused");
}

/// Hundreds of small programs from random schedules and options, with one mistake in each.
#[test]
fn the_checker_agrees_on_random_programs_and_slips() {
    const STATES: usize = 2_000;
    let random = &mut Random(31);
    let (mut right, mut refused, mut slips) = (0, 0, BTreeSet::new());
    for round in 0..240 {
        let ranks = 2 + round % 3;
        let topology = schedules::random_topology(ranks, random);
        let demand = match round % 4 {
            0 => schedules::random_listed(ranks, random),
            _ => schedules::random_demand(STANDARD[random.below(STANDARD.len())], ranks, random),
        };
        let schedule = schedules::random_trees(&topology, &demand, random);
        let program = lower(&schedule, &options::random(&demand, random)).unwrap();
        if program.ranks.iter().flat_map(|rank| &rank.threadblocks).map(|block| block.steps.len()).sum::<usize>() > 16 {
            continue;
        }
        right += usize::from(agreed(&program, &"a lowered program", STATES) == Some(true));
        let demand = &program.demand;
        if demand.chunk_ids().any(|id| demand.bytes_of(id).0 < 1.0) {
            continue; // nobody can tell from what it does whether an empty message was sent
        }
        let mutants = mutants::all(&program);
        for _ in 0..mutants.len().min(4) {
            let Mutant { slip, program } = &mutants[random.below(mutants.len())];
            slips.insert(*slip);
            refused += usize::from(agreed(program, slip, STATES) == Some(false));
        }
    }
    assert!(right > 60 && refused > 100, "{right} programs, {refused} mutants");
    assert!(slips.len() > 10, "{slips:?}");
}

fn breaks_form(violation: &ProgramViolation) -> bool {
    use ProgramViolation as V;
    !matches!(
        violation,
        V::Race { .. }
            | V::Deadlock { .. }
            | V::Unmatched { .. }
            | V::Uninitialised { .. }
            | V::MixedReduce { .. }
            | V::DoubleReduce { .. }
            | V::WrongResult { .. }
    )
}

#[test]
fn slips_in_large_programs_are_refused() {
    let random = &mut Random(17);
    let mut accepted: BTreeMap<Slip, u32> = BTreeMap::new();
    let mut refused = 0;
    for round in 0..27 {
        let collective = STANDARD[round % STANDARD.len()];
        let topology = schedules::random_topology(6, random);
        let demand = schedules::random_demand(collective, 6, random);
        let schedule = schedules::random_trees(&topology, &demand, random);
        let mutants = mutants::all(&lowered(&schedule, round % 2 == 0));
        for _ in 0..mutants.len().min(60) {
            let Mutant { slip, program } = &mutants[random.below(mutants.len())];
            if check(program.clone()).is_err() {
                refused += 1;
                continue;
            }
            *accepted.entry(*slip).or_default() += 1;
            let executor = Executor { program, count: 7, tiles: 2, transport: Transport::Buffered };
            let state = executor.run(random).expect("an accepted program runs to its end");
            executor.judge(&state).unwrap_or_else(|wrong| panic!("{slip:?} was accepted: {wrong}\n{program}"));
        }
    }
    // The only harmless mistakes change an order that does not matter, or exchange connections that carry the same.
    let harmless = [Slip::DropDependency, Slip::WaitForNothing, Slip::RepeatStep, Slip::SwapSteps, Slip::AddDependency];
    assert!(accepted.keys().all(|slip| harmless.contains(slip)), "{accepted:?}");
    assert!(refused > 900, "{refused} mutants were refused");
}

/// Many ranks and many small messages. With full effort: 64 ranks with 64 chunks each, a million steps.
#[test]
fn long_a_large_program_is_right() {
    let long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let (ranks, chunks) = if long { (64, 64) } else { (24, 4) };
    let programs = [
        (schedules::ring_allreduce(ranks, chunks), LowerOptions::default()),
        (schedules::ring_allreduce(ranks, chunks), options::fused(true)),
        (schedules::direct(&schedules::demand(Collective::AllToAll, ranks, chunks)), LowerOptions::default()),
    ];
    let random = schedules::demand(Collective::AllReduce, ranks, chunks);
    let random = schedules::random_trees(&schedules::clique(ranks), &random, &mut Random(1));
    for (schedule, options) in programs.into_iter().chain([(random, LowerOptions::default())]) {
        let program = lower(&schedule, &options).unwrap();
        let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).map(|block| block.steps.len());
        let steps: usize = steps.sum();
        let start = std::time::Instant::now();
        checked(program);
        println!("{ranks} ranks, {chunks} chunks: {steps} steps checked in {:.2?}", start.elapsed());
    }
}
