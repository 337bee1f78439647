//! Plans in rounds over NCCL, by the code that ships: communicators, groups, launches, deadlines, and the kernel's PTX.
//!
//! NCCL is the fake one of `tests/nccl`, and the driver that of `tests/cuda`, unless ANTIPHON_GPU=real asks for those of the computer
//! (`make gpu-test`). Ranks are threads with a communicator each, or processes. All of them share the first GPU, which NCCL permits from
//! 2.30.3 on with NCCL_MULTI_RANK_GPU_ENABLE=1.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "loads a library, and gives addresses to a GPU")]

mod domains;
mod rank;

use program::testing::schedules::{
    Random, demand, direct, random_topology, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{LowerOptions, VerifiedProgram, check, digest, lower};
use rank::{LIMIT, NcclCase, NcclRank, SHORT, Terms, give_id, is_real, nccl, started, take_id};
use runtime::{DType, GpuDevice, NcclCommunicator, NcclError, RoundFailure};
use schedule::{Collective, Demand, ReduceOp, Request};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use topology::Rank;

/// Numbers of ranks to try, in ascending order: as many of them as a GPU has room for.
fn sizes(all: &[usize]) -> &[usize] {
    let most = std::env::var("ANTIPHON_GPU_RANKS").ok().and_then(|text| text.parse().ok());
    // As NCCL says.
    let most = if is_real() { most.unwrap_or(2) } else { usize::MAX };
    &all[..all.partition_point(|ranks| *ranks <= most)]
}

/// Runs programs of so many ranks, one after the other, each twice.
fn right(ranks: usize, cases: &[NcclCase]) {
    let id = NcclCommunicator::unique_id(nccl()).unwrap();
    let run = |rank| {
        let mut rank = NcclRank::join(id, rank, ranks);
        for case in cases {
            let mut rounds = rank.rounds(case);
            for call in 0..2 {
                let wrong = rank.call(&mut rounds, case, call, LIMIT).unwrap_or_else(|error| panic!("{error}"));
                let (collective, in_place) = (case.0.program().demand.request().collective, case.0.program().in_place);
                assert_eq!(wrong, 0, "{collective} of {ranks} ranks, in place {in_place}, call {call}, {:?}", case.1);
            }
        }
        rank
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        // Communicators end when all ranks are done.
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        drop(done);
    });
}

fn with_op(program: VerifiedProgram, op: ReduceOp) -> VerifiedProgram {
    let mut program = program.into_program();
    let request = Request { op: Some(op), ..program.demand.request().clone() };
    let demand = Demand::new(request).unwrap().with_chunk_bytes(program.demand.chunk_bytes()).unwrap();
    (program.op, program.demand) = (Some(op), Arc::new(demand));
    check(program).unwrap()
}

const PLAIN: Terms = Terms { count: 13, dtype: DType::F32, seed: 1 };

#[test]
fn one_allreduce_of_two_ranks() {
    right(2, &[(checked(lowered(&ring_allreduce(2, 1), false)), PLAIN)]);
}

/// Programs of all collectives, in place and not, with types and sizes at random.
fn cases(ranks: usize, random: &mut Random) -> Vec<NcclCase> {
    let mut cases = Vec::new();
    for in_place in [false, true] {
        for schedule in [ring_allgather(ranks, 1), ring_reducescatter(ranks, 1), ring_allreduce(ranks, 1)] {
            // Long enough for several blocks.
            let terms = Terms { count: if ranks == 3 { 1500 } else { 8 * ranks as u64 + 1 }, ..PLAIN };
            cases.push((checked(lowered(&schedule, in_place)), terms));
        }
    }
    for collective in STANDARD {
        let topology = random_topology(ranks, random);
        let demand = demand(collective, ranks, 1 + random.below(2) as u32);
        let schedule = random_trees(&topology, &demand, random);
        let options = LowerOptions { in_place: random.below(2) == 0, ..LowerOptions::default() };
        let dtype = DType::ALL[random.below(DType::ALL.len())];
        let terms = Terms { count: [0, 1, 7, 61][random.below(4)], dtype, seed: random.draw() };
        cases.push((checked(lower(&schedule, &options).unwrap()), terms));
    }
    cases.push((checked(lowered(&direct(&demand(Collective::AllToAll, ranks, 1)), false)), PLAIN));
    cases
}

#[test]
fn programs_of_every_collective() {
    let mut random = Random(23);
    for &ranks in sizes(&[2, 3, 5, 8]) {
        right(ranks, &cases(ranks, &mut random));
    }
}

#[test]
fn every_type_with_every_reduction() {
    let operations = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
    let ranks = *sizes(&[2, 3]).last().unwrap();
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for (at, op) in operations.into_iter().enumerate() {
            let program = with_op(checked(lowered(&ring_allreduce(ranks, 1), at % 2 == 0)), op);
            cases.push((program, Terms { dtype, ..PLAIN }));
        }
    }
    right(ranks, &cases);
}

#[test]
fn ranks_with_other_plans_are_told() {
    let id = NcclCommunicator::unique_id(nccl()).unwrap();
    let ranks = *sizes(&[2, 3]).last().unwrap();
    let other = ranks as u32 - 1;
    let ask = |rank| {
        let mut rank = NcclRank::join(id, rank, ranks);
        let told = rank.comm.agree(&rank.gpu, if rank.comm.rank() == Rank(other) { 8 } else { 7 }, LIMIT);
        (told, rank)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || ask(rank))).collect();
        let told: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let disagree = |rank, other| Err(NcclError::Disagree { rank: Rank(rank), other: Rank(other) });
        assert_eq!(
            told.iter().map(|(told, _)| told.clone()).collect::<Vec<_>>(),
            (0..=other).map(|rank| disagree(rank, if rank == other { 0 } else { other })).collect::<Vec<_>>()
        );
    });
}

/// A communicator that never becomes complete.
#[test]
fn a_rank_that_never_comes_is_waited_for_until_the_deadline() {
    let (id, gpu) = (NcclCommunicator::unique_id(nccl()).unwrap(), GpuDevice::open(0).unwrap());
    let limit = Duration::from_millis(100);
    let alone = NcclCommunicator::join(nccl(), &gpu, id, (Rank(0), 2), limit);
    assert_eq!(alone.err(), Some(NcclError::Late { doing: "making a communicator", limit }));
}

/// Set for processes that are ranks: rank, ranks, milliseconds, and the file of the unique id.
const PROCESS: &str = "NCCL_TEST_RANK";
/// Rank 1 ends instead of calling.
const LEAVES: &str = "leaves";

/// A rank that is a process: one allreduce. It is a test only so that it can be started.
#[test]
fn rank_process() {
    let Ok(text) = std::env::var(PROCESS) else { return };
    let [rank, ranks, limit, file] = text.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
    let (rank, ranks): (usize, usize) = (rank.parse().unwrap(), ranks.parse().unwrap());
    let id = if rank == 0 { give_id(Path::new(file)) } else { take_id(Path::new(file)) };
    let mut rank = NcclRank::join(id, rank, ranks);
    let case = (checked(lowered(&ring_allreduce(ranks, 1), false)), PLAIN);
    let number = u64::from_str_radix(&digest(case.0.program())[..16], 16).unwrap();
    rank.comm.agree(&rank.gpu, number, LIMIT).unwrap();
    let mut rounds = rank.rounds(&case);
    if rank.comm.rank() == Rank(1) && std::env::var("NCCL_TEST_FAULT").is_ok_and(|fault| fault == LEAVES) {
        // Without any farewell.
        std::process::exit(86);
    }
    let outcome = rank.call(&mut rounds, &case, 0, Duration::from_millis(limit.parse().unwrap()));
    match outcome {
        Ok(wrong) => {
            // Nobody leaves before all are done.
            rank.comm.agree(&rank.gpu, 1, LIMIT).unwrap();
            println!("\nwrong {wrong}");
        }
        Err(NcclError::Round { rank, round, rounds, peers, why }) => {
            let peers: Vec<_> = peers.iter().map(|peer| peer.0).collect();
            let kind = if matches!(why, RoundFailure::Late { .. }) { "late" } else { "failed" };
            println!("\n{kind} {} {round} {rounds} {peers:?}", rank.0);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whoever leaves instead of calling is missed by the others, and no call lasts longer than it may.
#[test]
fn a_rank_that_leaves_before_a_call_is_missed() {
    let ranks = *sizes(&[2, 3]).last().unwrap();
    let begin = Instant::now();
    let said = processes(ranks, SHORT, Some(LEAVES));
    assert!(begin.elapsed() < Duration::from_secs(60), "{said:?}");
    assert!(said[1].contains("86"), "{said:?}");
    for (rank, line) in said.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(line.starts_with(&format!("late {rank} ")) || line.starts_with(&format!("failed {rank} ")), "{said:?}");
    }
}

/// What each process of [`rank_process`] says, or its exit status.
fn processes(ranks: usize, limit: Duration, fault: Option<&str>) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("id");
    let variable = if fault == Some(LEAVES) { "NCCL_TEST_FAULT" } else { "FAKE_NCCL_FAULT" };
    started("rank_process", ranks, &|rank| {
        let job = format!("{rank} {ranks} {} {}", limit.as_millis(), file.display());
        let fault = fault.map(|fault| (variable, fault.to_owned()));
        [(PROCESS, job)].into_iter().chain(fault).collect()
    })
}

#[test]
fn ranks_that_are_processes() {
    for &ranks in sizes(&[2, 8]) {
        assert_eq!(processes(ranks, LIMIT, None), vec!["wrong 0"; ranks], "{ranks} ranks");
    }
}

/// In a ring of four, an allreduce has six rounds of a send and a receive. Before it, each rank has one operation: the comparison of
/// plans. So its operations 6 and 7 are in the third round.
#[test]
fn a_rank_that_dies_or_stalls_is_found_in_time() {
    if is_real() {
        // The fake makes the faults.
        return;
    }
    for (fault, kinds) in [("1:6:exit", "failed"), ("1:6:stall", "late"), ("1:7:error", "failed")] {
        let limit = if kinds == "late" { SHORT } else { LIMIT };
        let begin = Instant::now();
        let said = processes(4, limit, Some(fault));
        assert!(begin.elapsed() < Duration::from_secs(60), "{fault}: {said:?}");
        for (rank, line) in said.iter().enumerate() {
            if rank == 1 && fault.contains("exit") {
                assert!(line.contains("86"), "{line}");
                continue;
            }
            let words: Vec<_> = line.splitn(5, ' ').collect();
            // Who is told by another rank's end has failed; who sees the end of its time is late.
            assert!(words[0] == kinds || words[0] == "failed", "{fault}: {said:?}");
            let (round, rounds): (usize, usize) = (words[2].parse().unwrap(), words[3].parse().unwrap());
            let mut neighbours = [(rank + 3) % 4, (rank + 1) % 4];
            neighbours.sort_unstable();
            assert_eq!((words[1], rounds, words[4]), (&*rank.to_string(), 6, &*format!("{neighbours:?}")), "{said:?}");
            // A rank is at most one round ahead of those it exchanges messages with, and in a ring rank 3 is ahead of them.
            let most = if rank == 1 { 2 } else { 3 };
            assert!(round <= most, "{fault}: {said:?}");
        }
    }
}
