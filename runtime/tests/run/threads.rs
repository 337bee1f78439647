//! Every collective in threads: numbers of ranks, counts, types, operators, in place and not, tiles, and tiny rings.

use crate::plans::{COLLECTIVES, PlanSpec, doubling, one_shot};
use program::{
    Buffer, Connection, ConnectionId, Instruction, LowerOptions, PartShape, Program, RankProgram, Slice, Step, Tempo,
    Threadblock, Threadblocks, VerifiedProgram, check as check_program, lower,
};
use runtime::{Call, DType, ExecutionOptions, RunError, Trial, run_threads, try_threads};
use schedule::{Collective, Demand, ReduceOp, Request};
use std::sync::Arc;
use std::time::Duration;
use topology::{LinkId, Rank};

const COUNTS: [u64; 6] = [0, 1, 3, 64, 1001, 20_011];

/// Rings and tiles so small that every message is cut.
fn cramped() -> ExecutionOptions {
    ExecutionOptions { ring_bytes: 4096, tile_bytes: Some(700), ..ExecutionOptions::default() }
}

fn check(spec: &PlanSpec, trial: &Trial, options: &ExecutionOptions) {
    let report = try_threads(&spec.program(), trial, options).unwrap_or_else(|error| panic!("{spec}: {error}"));
    assert_eq!(report.wrong(), 0, "{spec}, {} × {}", trial.count, trial.dtype);
    assert_eq!(report.spans().len(), trial.repetitions as usize);
}

#[test]
fn every_collective_on_two_to_nine_ranks_at_every_count() {
    for (index, collective) in COLLECTIVES.into_iter().enumerate() {
        for ranks in 2..=9 {
            let family = if (ranks + index).is_multiple_of(2) { "ring" } else { "clique" };
            for in_place in [false, true] {
                let spec = PlanSpec { in_place, ..PlanSpec::new(&format!("{family}:{ranks}"), collective) };
                let spec = PlanSpec { chunks: 1 + ranks as u32 % 3, ..spec };
                for (turn, count) in COUNTS.into_iter().enumerate() {
                    let dtype = DType::ALL[(turn + ranks) % DType::ALL.len()];
                    let options = if turn % 2 == 0 { cramped() } else { ExecutionOptions::default() };
                    check(&spec, &Trial::once(count, dtype), &options);
                }
            }
        }
    }
}

#[test]
fn every_type_and_operator_on_relays() {
    for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
        for &op in ReduceOp::ALL {
            let spec = PlanSpec {
                op: Some(op),
                chunks: 2,
                in_place: op == ReduceOp::Avg,
                ..PlanSpec::new("mesh2d:2x3", collective)
            };
            for &dtype in DType::ALL {
                let trial = Trial { seed: 5, repetitions: 2, ..Trial::once(777, dtype) };
                check(&spec, &trial, &cramped());
            }
        }
    }
}

#[test]
fn the_callers_own_buffers_are_used_at_any_alignment() {
    let program = PlanSpec::new("ring:3", Collective::AllReduce).program();
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for rank in 0..3u32 {
        // One extra byte first, so that no element is aligned.
        let elements = (0..100u32).flat_map(|index| ((index * rank) as f32).to_ne_bytes());
        inputs.push(std::iter::once(0).chain(elements).collect());
    }
    let mut outputs = vec![vec![0; 401]; 3];
    let calls = inputs.iter().zip(&mut outputs);
    let calls = calls.map(|(input, output)| Call::OutOfPlace { input: &input[1..], output: &mut output[1..] });
    run_threads(&program, 100, DType::F32, calls.collect(), &ExecutionOptions::default()).unwrap();
    for output in &outputs {
        let sums = output[1..].chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()));
        assert!(sums.enumerate().all(|(index, sum)| sum == 3.0 * index as f32));
    }
}

#[test]
fn hundreds_of_threadblocks_share_one_thread_per_rank() {
    let spec = PlanSpec { chunks: 3, ..PlanSpec::new("clique:12", Collective::AllToAll) };
    check(&spec, &Trial { repetitions: 3, ..Trial::once(5000, DType::I64) }, &cramped());
}

/// Both ranks send before they receive, so a transport without room for a message cannot run this program.
fn eager() -> VerifiedProgram {
    let slice = |buffer| Slice { buffer, index: 0, count: 1 };
    let step = |instruction, transfer| Step { transfer: Some(transfer), ..Step::new(instruction) };
    let of_rank = |rank: u32| RankProgram {
        input_parts: vec![0],
        output_parts: vec![0],
        threadblocks: vec![Threadblock {
            steps: vec![
                step(Instruction::Send { to: ConnectionId(rank), src: slice(Buffer::Input) }, rank),
                step(Instruction::Receive { from: ConnectionId(1 - rank), dst: slice(Buffer::Output) }, 1 - rank),
            ],
        }],
        ..RankProgram::default()
    };
    let lane = |from| Connection { from: Rank(from), to: Rank(1 - from), channel: 0, link: LinkId(from) };
    let program = Program {
        demand: Arc::new(Demand::new(Request::new(Collective::SendRecv, 2, 0)).unwrap()),
        op: None,
        in_place: false,
        shape: PartShape::Equal { parts: 1 },
        uniform: false,
        connections: vec![lane(0), lane(1)],
        ranks: vec![of_rank(0), of_rank(1)],
        tempo: Tempo::default(),
    };
    program::check(program).unwrap()
}

#[test]
fn a_program_gets_the_room_that_it_needs() {
    let program = eager();
    assert_eq!(program.window(), 1);
    let short = Duration::from_secs(5);
    for options in [
        cramped(),
        ExecutionOptions::default(),
        ExecutionOptions { tile_bytes: Some(1 << 20), ..ExecutionOptions::default() },
    ] {
        for count in [0, 1, 5000, 1_000_003] {
            let options = ExecutionOptions { work_limit: short, ..options.clone() };
            let report = try_threads(&program, &Trial { repetitions: 3, ..Trial::once(count, DType::F32) }, &options);
            assert_eq!(report.unwrap().wrong(), 0, "{count}");
        }
    }
    let tiny = ExecutionOptions { arena_bytes: 1 << 20, tile_bytes: Some(1 << 30), ..ExecutionOptions::default() };
    let error = try_threads(&program, &Trial::once(1 << 20, DType::F32), &tiny).unwrap_err();
    assert!(matches!(error, RunError::TooManyConnections { .. }), "{error}");
}

/// Offsets that do not fit into 32 bits, if there is time and memory for them.
#[test]
fn long_buffers_of_more_than_four_gibibytes() {
    let long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let count = if long { (1 << 32) + (1 << 20) + 3 } else { (1 << 20) + 3 };
    let spec = PlanSpec { in_place: true, chunks: 3, ..PlanSpec::new("ring:2", Collective::Broadcast) };
    match try_threads(&spec.program(), &Trial::once(count, DType::U8), &ExecutionOptions::default()) {
        Ok(report) => assert_eq!(report.wrong(), 0),
        // This computer has too little memory for the test.
        Err(error) => assert!(long && matches!(error, RunError::NotEnoughMemory { .. }), "{error}"),
    }
}

#[test]
fn impossible_counts_are_refused() {
    let spec = PlanSpec::new("ring:2", Collective::AllGather);
    let error = try_threads(&spec.program(), &Trial::once(u64::MAX / 3, DType::F64), &ExecutionOptions::default());
    assert!(error.unwrap_err().to_string().contains("more than this computer can address"));
    let error = try_threads(&spec.program(), &Trial::once(1 << 50, DType::F64), &ExecutionOptions::default());
    assert!(matches!(error, Err(RunError::NotEnoughMemory { .. })));
}

#[test]
fn every_way_of_lowering_runs_right() {
    let paired = LowerOptions { threadblocks: Threadblocks::Paired, fuse: true, ..LowerOptions::default() };
    let ways = [
        paired,
        LowerOptions { channels: 2, instances: 2, ..paired },
        LowerOptions { channels: 3, ..LowerOptions::default() },
        LowerOptions { in_place: true, instances: 3, ..LowerOptions::default() },
    ];
    for collective in COLLECTIVES {
        for topology in ["ring:4", "mesh2d:2x3"] {
            let spec = PlanSpec { chunks: 2, ..PlanSpec::new(topology, collective) };
            let schedule = spec.schedule();
            for options in ways {
                let program = check_program(lower(&schedule, &options).unwrap()).unwrap();
                // Paired threadblocks rely on room for their messages. Tiles are cut so that the messages fit.
                for (count, options) in
                    [(5, ExecutionOptions::default()), (20_011, ExecutionOptions::default()), (20_011, cramped())]
                {
                    let report = try_threads(&program, &Trial::once(count, DType::I32), &options);
                    let report = report.unwrap_or_else(|error| panic!("{spec}: {error}"));
                    assert_eq!(report.wrong(), 0, "{spec}, {count}");
                }
            }
        }
    }
}

/// Values of very different sizes, NaNs with payloads, zeroes and infinities. A rank that adds in another order, or
/// keeps another NaN, gets other bits.
#[test]
fn all_ranks_of_a_reduction_end_with_the_same_bits() {
    const COUNT: usize = 96;
    let value = |rank: usize, index: usize| -> u32 {
        let noise = (rank * 7919 + index * 104_729 + 12_345) as u32;
        let noise = noise.wrapping_mul(0x9e37_79b9) ^ noise.rotate_left(13);
        match index % 8 {
            0 => 0x7f80_0001 + noise % 0x40_0000,
            1 => 0xffc0_0000 + noise % 0x40_0000,
            2 => noise & 0x8000_0000,
            3 => 0x7f80_0000 | noise & 0x8000_0000,
            4 => noise & 0x807f_ffff,
            // Ordinary numbers, over ten orders of magnitude.
            _ => noise & 0x807f_ffff | (112 + noise % 32) << 23,
        }
    };
    for (topology, ranks) in [("", 2), ("", 4), ("", 8), ("ring:5", 5), ("mesh2d:2x3", 6)] {
        for &op in ReduceOp::ALL {
            let program = match topology {
                "" => doubling(ranks as u32, op),
                _ => PlanSpec { op: Some(op), ..PlanSpec::new(topology, Collective::AllReduce) }.program(),
            };
            let inputs: Vec<Vec<u8>> =
                (0..ranks).map(|rank| (0..COUNT).flat_map(|at| value(rank, at).to_ne_bytes()).collect()).collect();
            for (dtype, count) in
                [(DType::F32, COUNT), (DType::F16, 2 * COUNT), (DType::Bf16, 2 * COUNT), (DType::F64, COUNT / 2)]
            {
                let mut outputs = vec![vec![0; 4 * COUNT]; ranks];
                let calls = inputs.iter().zip(&mut outputs).map(|(input, output)| Call::OutOfPlace { input, output });
                run_threads(&program, count as u64, dtype, calls.collect(), &ExecutionOptions::default()).unwrap();
                for (rank, output) in outputs.iter().enumerate() {
                    let at = output.iter().zip(&outputs[0]).position(|(one, zero)| one != zero);
                    assert_eq!(at, None, "{topology} {op} {dtype}: rank {rank} of {ranks} has another byte");
                }
            }
        }
    }
}

/// Each rank adds up the inputs of all ranks by itself, and no two orders give the same sum.
#[test]
fn sums_that_depend_on_their_order_are_the_same_on_all_ranks() {
    let values = [1.0f32, 1e30, -1e30, 3.0, 1e-7, -1e30, 1e30, 0.1];
    let lowerings = [
        LowerOptions::default(),
        LowerOptions { in_place: true, channels: 2, ..LowerOptions::default() },
        LowerOptions { threadblocks: Threadblocks::Paired, fuse: true, instances: 2, ..LowerOptions::default() },
    ];
    for (lowering, ranks) in lowerings.iter().zip([3, 5, 8]).chain(lowerings.iter().zip([4, 8, 3])) {
        let program = one_shot(ranks as u32, ReduceOp::Sum, lowering);
        let value = |rank: usize, at: usize| values[(rank + at) % values.len()];
        for (count, options) in [(1, ExecutionOptions::default()), (1001, cramped())] {
            let expected: Vec<u8> = (0..count)
                .flat_map(|at| (1..ranks).fold(value(0, at), |sum, rank| sum + value(rank, at)).to_ne_bytes())
                .collect();
            let inputs: Vec<Vec<u8>> =
                (0..ranks).map(|rank| (0..count).flat_map(|at| value(rank, at).to_ne_bytes()).collect()).collect();
            let mut outputs = if lowering.in_place { inputs.clone() } else { vec![vec![0; 4 * count]; ranks] };
            let calls = inputs.iter().zip(&mut outputs).map(|(input, output)| match lowering.in_place {
                true => Call::InPlace(output),
                false => Call::OutOfPlace { input, output },
            });
            run_threads(&program, count as u64, DType::F32, calls.collect(), &options).unwrap();
            let others: Vec<_> = (0..ranks).filter(|&rank| outputs[rank] != expected).collect();
            assert!(others.is_empty(), "{ranks} ranks, {count} × f32, {lowering:?}: {others:?} add in another order");
        }
    }
}
