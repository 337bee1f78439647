//! Programs of all collectives, judged by the naive reference.

use super::job::{Job, MODULE, Outcome, Terms, run, with_op};
use crate::device::kernel_plan::KernelPlan;
use crate::dtype::DType;
use program::testing::schedules::{
    Random, demand, direct, random_listed, random_topology, random_trees, ring_allgather, ring_allreduce,
    ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{LowerOptions, VerifiedProgram, lower, replicate};
use schedule::{Collective, ReduceOp};
use topology::Rank;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

fn right(program: &VerifiedProgram, terms: Terms, what: &str) {
    assert_eq!(run(program, terms), Outcome::Right, "{what}, {terms:?}");
}

#[test]
fn rings_of_two_to_sixteen_ranks() {
    for ranks in (2..=8).chain([11, 16]) {
        for in_place in [false, true] {
            let programs = [ring_allgather(ranks, 2), ring_reducescatter(ranks, 1), ring_allreduce(ranks, 1)];
            for (which, schedule) in programs.iter().enumerate() {
                let program = checked(lowered(schedule, in_place));
                for seed in 0..if ranks > 8 { 1 } else { 3 } {
                    let terms =
                        Terms { seed, count: 8 * ranks as u64 + seed, threads: 1 + seed as u32, ..Terms::PLAIN };
                    right(&program, terms, &format!("ring {which}, {ranks} ranks, in place {in_place}"));
                }
            }
        }
    }
}

#[test]
fn random_trees_of_every_collective() {
    let mut random = Random(7);
    for round in 0..8 {
        for collective in STANDARD {
            // The last rounds have many ranks.
            let ranks = if round > 5 { 9 + random.below(8) } else { 2 + random.below(5) };
            let topology = random_topology(ranks, &mut random);
            let demand = demand(collective, ranks, 1 + random.below(3) as u32);
            let schedule = random_trees(&topology, &demand, &mut random);
            let fused =
                lower(&schedule, &LowerOptions { in_place: round % 2 == 1, ..LowerOptions::default() }).unwrap();
            let program = if round % 3 == 2 { fused.unfused() } else { fused };
            let terms = Terms {
                count: [0, 1, 7, 32, 61][random.below(5)],
                dtype: DType::ALL[random.below(DType::ALL.len())],
                tile_bytes: [8, 40, 1 << 20][random.below(3)],
                threads: 1 + random.below(5) as u32,
                seed: random.draw(),
                ..Terms::PLAIN
            };
            right(&checked(program), terms, &format!("{collective} of {ranks} ranks"));
        }
    }
}

#[test]
fn listed_demands_and_parallel_instances() {
    let mut random = Random(11);
    for _ in 0..8 {
        let ranks = 2 + random.below(4);
        let topology = random_topology(ranks, &mut random);
        let demand = random_listed(ranks, &mut random);
        let program = checked(lowered(&random_trees(&topology, &demand, &mut random), false));
        let terms = Terms { count: 64, seed: random.draw(), ..Terms::PLAIN };
        right(&program, terms, &format!("listed, {ranks} ranks"));
    }
    let program = checked(replicate(lowered(&ring_allreduce(3, 1), false), 2).unwrap());
    right(&program, Terms::PLAIN, "two instances");
    let alltoall = checked(lowered(&direct(&demand(Collective::AllToAll, 5, 1)), false));
    right(&alltoall, Terms { threads: 2, ..Terms::PLAIN }, "direct exchange");
}

#[test]
fn every_type_with_every_reduction() {
    for &dtype in DType::ALL {
        for (seed, op) in (0..).zip(OPS) {
            for in_place in [false, true] {
                let program = with_op(checked(lowered(&ring_allreduce(3, 1), in_place)), op);
                let terms = Terms { dtype, seed, count: 40, ..Terms::PLAIN };
                right(&program, terms, &format!("{op}, in place {in_place}"));
            }
        }
    }
}

/// More steps than the window in shared memory holds, and tiles that follow each other through rings of few slots.
#[test]
fn long_programs_and_many_tiles() {
    let mut random = Random(2);
    let topology = random_topology(3, &mut random);
    let trees = random_trees(&topology, &demand(Collective::AllGather, 3, 60), &mut random);
    let program = checked(lowered(&trees, false));
    let longest =
        program.program().ranks.iter().flat_map(|rank| &rank.threadblocks).map(|block| block.steps.len()).max();
    assert!(longest.unwrap() > 32, "{longest:?}");
    for seed in 0..3 {
        right(&program, Terms { seed, count: 97, tile_bytes: 4, ..Terms::PLAIN }, "60 chunks");
        let average = with_op(checked(lowered(&ring_allreduce(4, 2), false)), ReduceOp::Avg);
        right(&average, Terms { seed, count: 300, tile_bytes: 16, calls: 3, ..Terms::PLAIN }, "many tiles");
    }
}

/// A rank that never comes: the others give up after so many polls, and say where. Their abort words end everything.
#[test]
fn waits_are_bounded_and_say_where_they_ended() {
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    let terms = Terms { poll_limit: 128, ..Terms::PLAIN };
    let plan = KernelPlan::new(&program, terms.count, terms.dtype, terms.tile_bytes).unwrap();
    // Rank 1 has been told to stop before it begins, so it sends nothing.
    let mut job = Job::new(program.program(), &plan, terms, |_, _| {}).unwrap();
    let aborted = job.ranks[1].abort;
    job.machine.write(aborted, &1u32.to_le_bytes()).unwrap();
    job.launch(&MODULE, 0).unwrap();
    let mut said = 0;
    for (rank, memory) in job.ranks.iter().enumerate() {
        for block in 0..memory.needs.blocks {
            let at = memory.private + plan.report_offset(Rank::from_index(rank), block);
            let report = u64::from_le_bytes(job.machine.read(at, 8).unwrap().try_into().unwrap());
            assert!(report == 0 || rank != 1, "rank {rank} has waited");
            said += u32::from(report > 0);
        }
        assert_eq!(job.machine.read(memory.abort, 4).unwrap(), 1u32.to_le_bytes(), "rank {rank}");
    }
    assert!(said >= 2, "both others say where they gave up");
}
