//! Lowering, checking and executing together.

mod checker;
pub(crate) mod executor;
pub(crate) mod mutants;
pub(crate) mod schedules;

use super::*;
use crate::{Collective, TIME_TOLERANCE, VerifiedSchedule};
use executor::{Executor, Transport};
use expect_test::expect;
use mutants::{Mutant, Slip};
use schedules::Random;
use std::collections::BTreeMap;

pub(crate) const STANDARD: [Collective; 9] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

pub(crate) fn lowered(schedule: &VerifiedSchedule, in_place: bool) -> Program {
    lower(schedule, &LowerOptions { in_place }).unwrap()
}

pub(crate) fn checked(program: Program) -> VerifiedProgram {
    check(program).unwrap_or_else(|violations| {
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        panic!("{}", list.join("\n"))
    })
}

/// Lowers, checks and runs in several orders, with several counts and tiles.
fn road(schedule: &VerifiedSchedule, random: &mut Random) {
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
            road(&schedules::ring_allgather(ranks, chunks), random);
            road(&schedules::ring_reducescatter(ranks, chunks), random);
            road(&schedules::ring_allreduce(ranks, chunks), random);
        }
    }
}

#[test]
fn direct_exchange_is_right() {
    for collective in STANDARD {
        for ranks in [1, 2, 3, 5] {
            let demand = schedules::demand(collective, ranks, 2);
            road(&schedules::direct(&demand), &mut Random(11));
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
            road(&schedules::random_trees(&topology, &demand, random), random);
        }
    }
}

/// Times that were printed with few digits: departures a little before the arrivals that they rely on, by almost as
/// much as the verifier allows.
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
        road(&schedules::timed(&topology, &demand, transfers), random);
    }
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

/// Whether any order of a small program's steps goes wrong, with so much room or without limit.
fn explored(program: &Program, window: u32) -> Result<(), String> {
    let program = &program.clone().unfused();
    let count = u64::from(program.shape.parts());
    [Transport::Buffered, Transport::Window(window)]
        .into_iter()
        .try_for_each(|transport| Executor { program, count, tiles: 1, transport }.explore())
}

/// Programs small enough for every order of their steps to be tried.
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
    ]
}

#[test]
fn the_checker_agrees_with_every_interleaving() {
    let mut refused = 0;
    for program in small_programs() {
        checked(program.clone());
        explored(&program, 0).unwrap();
        for Mutant { slip, program } in mutants::all(&program) {
            let violations = match check(program.clone()) {
                Ok(verified) => {
                    let window = verified.window();
                    explored(&program, window)
                        .unwrap_or_else(|wrong| panic!("{slip:?} was accepted: {wrong}\n{program}"));
                    if window > 0 {
                        explored(&program, window / 2).expect_err("less room does not suffice");
                    }
                    continue;
                }
                Err(violations) => violations,
            };
            refused += 1;
            // What breaks a rule of form cannot be executed at all.
            if violations.iter().any(breaks_form) || explored(&program, 8).is_err() {
                continue;
            }
            // The explorer's steps are atomic, so it misses races that only tear a step apart.
            let races = violations.iter().all(|violation| matches!(violation, ProgramViolation::Race { .. }));
            assert!(races, "{slip:?} was refused but is right in every order: {violations:?}\n{program}");
        }
    }
    assert!(refused > 400, "{refused} mutants were refused");
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
    // Only order can be changed without harm, and only where it does not matter.
    let harmless = [Slip::DropDependency, Slip::WaitForNothing, Slip::RepeatStep, Slip::SwapSteps, Slip::AddDependency];
    assert!(accepted.keys().all(|slip| harmless.contains(slip)), "{accepted:?}");
    assert!(refused > 900, "{refused} mutants were refused");
}

/// Many ranks and many small messages.
#[test]
fn a_large_program_is_right() {
    let topology = schedules::clique(32);
    let demand = schedules::demand(Collective::AllReduce, 32, 4);
    let schedule = schedules::random_trees(&topology, &demand, &mut Random(1));
    for in_place in [false, true] {
        checked(lowered(&schedule, in_place));
    }
}
