//! Programs that become files and programs again.

use super::super::*;
use super::files::written;
use program::testing::STANDARD;
use program::testing::executor::{Executor, Transport};
use program::testing::schedules::{self, Random};
use program::testing::{checked, lowered};
use program::{Program, VerifiedProgram, replicate};
use schedule::{Collective, Findings, VerifiedSchedule};

pub(super) fn options(dialect: Dialect) -> AlgorithmExportOptions {
    AlgorithmExportOptions {
        dialect,
        protocol: Protocol::Simple,
        name: "test".to_owned(),
        min_bytes: 0,
        max_bytes: 1 << 30,
        max_blocks: 108,
    }
}

/// Writes a program, reads it back, and compares and checks the result.
fn round_trip(program: &VerifiedProgram, options: &AlgorithmExportOptions, random: &mut Random) -> Algorithm {
    let algorithm = export(program, options).unwrap_or_else(|error| panic!("{error}"));
    let text = written(&algorithm);
    let parsed = parse(&text, "written").unwrap_or_else(|faults| panic!("{}", faults[0]));
    assert_eq!(parsed.notes, []);
    assert_eq!(Dialect::of(&parsed.algorithm), options.dialect);
    let verdict = judge(&parsed.algorithm, options.dialect, 1000);
    assert_eq!(verdict.violations, Findings::default());
    assert!(verdict.calls.iter().any(|call| call.in_place == program.program().in_place));
    for call in &verdict.calls {
        runs(call.program.program(), random);
    }
    parsed.algorithm
}

/// Runs a program on numbers, with as much room as Simple has, and compares with the collective's definition.
fn runs(program: &Program, random: &mut Random) {
    let (count, transport) = (u64::from(program.shape.parts()) * 2, Transport::Window(2));
    let executor = Executor { program, count, tiles: 2, transport };
    let state = executor.run(random).expect("the program runs to its end");
    executor.judge(&state).unwrap();
}

fn both(schedule: &VerifiedSchedule, dialects: &[Dialect], instances: u32, random: &mut Random) {
    for &dialect in dialects {
        for in_place in [false, true] {
            let program = checked(replicate(lowered(schedule, in_place), instances).unwrap());
            round_trip(&program, &options(dialect), random);
        }
    }
}

pub(super) const BOTH: [Dialect; 2] = [Dialect::Msccl, Dialect::Executor];

fn dialects(collective: Collective) -> &'static [Dialect] {
    match collective {
        Collective::Gather | Collective::Scatter => &BOTH[1..],
        _ => &BOTH,
    }
}

/// All but `sendrecv`, which neither dialect has.
const KNOWN: &[Collective] = STANDARD.split_last().unwrap().1;

#[test]
fn every_collective_survives() {
    let random = &mut Random(5);
    for &collective in KNOWN {
        for ranks in [2, 3, 4, 7, 8, 13, 16] {
            let demand = schedules::demand(collective, ranks, 1 + ranks as u32 % 2);
            both(&schedules::direct(&demand), dialects(collective), 1, random);
        }
    }
    for ranks in [2, 3, 5, 8, 16] {
        both(&schedules::ring_allgather(ranks, 2), &BOTH, 1, random);
        both(&schedules::ring_reducescatter(ranks, 1), &BOTH, 1, random);
        both(&schedules::ring_allreduce(ranks, 1), &BOTH, 1, random);
    }
}

#[test]
fn random_plans_with_relays_survive() {
    let random = &mut Random(17);
    for round in 0..6 {
        for &collective in KNOWN {
            let ranks = 2 + round % 6;
            let topology = schedules::random_topology(ranks, random);
            let demand = schedules::demand(collective, ranks, 1 + random.below(3) as u32);
            let schedule = schedules::random_trees(&topology, &demand, random);
            both(&schedule, dialects(collective), 1 + random.below(3) as u32, random);
        }
    }
}

#[test]
fn threadblocks_are_shared_where_there_are_too_many() {
    let random = &mut Random(29);
    for &collective in KNOWN {
        let schedule = schedules::direct(&schedules::demand(collective, 6, 2));
        let program = checked(lowered(&schedule, false));
        let dialect = dialects(collective)[0];
        let apart = round_trip(&program, &options(dialect), random);
        let shared = round_trip(&program, &AlgorithmExportOptions { max_blocks: 1, ..options(dialect) }, random);
        let most = |algorithm: &Algorithm| algorithm.gpus.iter().map(|gpu| gpu.blocks.len()).max().unwrap();
        // A rank has at most five peers in each direction, and local work.
        assert!(most(&shared) <= 6.min(most(&apart)), "{collective}: {} {}", most(&shared), most(&apart));
    }
}

/// More messages on a connection than a threadblock has steps, and more chunks in one than a step can move.
#[test]
fn long_connections_are_cut() {
    let random = &mut Random(31);
    let schedule = schedules::ring_allgather(3, 150);
    both(&schedule, &BOTH, 1, random);
    both(&schedule, &BOTH, 2, random);
    let demand = schedules::demand(Collective::Broadcast, 3, 400);
    let order = schedules::random_trees(&schedules::ring(3), &demand, random);
    both(&order, &BOTH, 1, random);
}

#[test]
fn members_become_the_communicator() {
    let random = &mut Random(37);
    let request = schedule::Request::new(Collective::AllGather, 5, 1000);
    let members = schedule::RankSet::from_iter([topology::Rank(1), topology::Rank(4)]);
    let demand = std::sync::Arc::new(schedule::Demand::new(schedule::Request { members, ..request }).unwrap());
    let program = checked(lowered(&schedules::direct(&demand), false));
    let algorithm = round_trip(&program, &options(Dialect::Msccl), random);
    assert_eq!((algorithm.ranks, algorithm.gpus.len()), (2, 2));
    // On a ring, other ranks must relay.
    let relayed = schedules::random_trees(&schedules::ring(5), &demand, random);
    let refused = export(&checked(lowered(&relayed, false)), &options(Dialect::Msccl)).unwrap_err();
    assert!(matches!(refused, AlgorithmExportError::Relay { .. }), "{refused}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let refusal = |collective, ranks, chunks, options: &AlgorithmExportOptions| {
        let schedule = schedules::direct(&schedules::demand(collective, ranks, chunks));
        export(&checked(lowered(&schedule, false)), options).unwrap_err().to_string()
    };
    let msccl = options(Dialect::Msccl);
    expect_test::expect!["microsoft/msccl has no sendrecv"].assert_eq(&refusal(Collective::SendRecv, 3, 1, &msccl));
    expect_test::expect!["microsoft/msccl has no gather"].assert_eq(&refusal(Collective::Gather, 3, 1, &msccl));
    expect_test::expect!["the program does not fit: `nchunksperloop` is 80000, more than the 32838 that microsoft/msccl has room for; an offset is 32802, more than the 32767 that microsoft/msccl has room for"].assert_eq(&refusal(Collective::AllGather, 2, 40_000, &msccl));
    let schedule = schedules::direct(&schedules::demand(Collective::AllToAll, 4, 1));
    let many = checked(replicate(lowered(&schedule, false), 40).unwrap());
    let many = export(&many, &msccl).unwrap_err().to_string();
    expect_test::expect!["the program does not fit: `nchannels` is 40, more than the 32 that microsoft/msccl has room for; channel 32 is not one of the `nchannels` 40"].assert_eq(&many);
}
