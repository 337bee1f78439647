//! Ranks as threads of this process.
//!
//! They use the same segment, rings and interpreter as processes; only the launch differs. Used by tests, by the
//! profiler, and by programs in which one process owns all buffers.

use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::concurrent::{Concurrent, Work};
use crate::execution::executor::{Executor, RepetitionSample};
use crate::execution::options::ExecutionOptions;
use crate::group::Group;
use crate::interpreter::buffers::Call;
use crate::measure::assignment::{Assignment, each_trial};
use crate::measure::footprint;
use crate::measure::trial::{Trial, TrialReport, run_rank};
use crate::memory::segment::{Segment, SegmentShape};
use crate::numbers::TaskNumber;
use crate::transport::hosts::Hosts;
use crate::verdict::{Cause, Verdict};
use program::VerifiedProgram;
use topology::Rank;

/// Runs `program` once on the callers' buffers, one thread per rank; `calls[r]` belongs to rank r.
///
/// # Errors
/// The first [`RunError`] of any rank; the others have stopped by then.
pub fn run_threads(
    program: &VerifiedProgram,
    count: u64,
    dtype: DType,
    calls: Vec<Call<'_>>,
    options: &ExecutionOptions,
) -> RunResult<Vec<RepetitionSample>> {
    run_work(Work::new(program, count, dtype), calls, options)
}

fn run_work(work: Work<'_>, calls: Vec<Call<'_>>, options: &ExecutionOptions) -> RunResult<Vec<RepetitionSample>> {
    let (ranks, options) = (work.program.ranks.len(), &together(options));
    if calls.len() != ranks {
        let what = format!("{ranks} ranks need a call each, not {}", calls.len());
        return Err(RunError::Mismatch { what });
    }
    let (concurrent, segment) = (Concurrent::new(vec![work], ranks)?, segment(ranks, options)?);
    let run = |rank, call| {
        let mut executor = Executor::new(&segment, rank, &concurrent, None, options)?;
        executor.run(vec![call], TaskNumber::default().first_call())
    };
    let runs = each_rank(&segment, calls, run)?;
    Ok(runs.into_iter().flat_map(|run| run.local_ranks).map(|ran| ran.sample).collect())
}

/// Runs a trial with one thread per rank.
///
/// # Errors
/// The first [`RunError`] of any rank; the others have stopped by then.
pub fn try_threads(program: &VerifiedProgram, trial: &Trial, options: &ExecutionOptions) -> RunResult<TrialReport> {
    let ranks = program.program().ranks.len();
    let assignment = Assignment { program, group: Group::all(ranks), trial: trial.clone() };
    try_together(ranks, &[assignment], options).map(|mut reports| reports.remove(0))
}

/// Runs trials at the same time, with one thread for each of `ranks` ranks. Returns a report for each.
///
/// # Errors
/// The first [`RunError`] of any rank; the others have stopped by then.
pub fn try_together(
    ranks: usize,
    trials: &[Assignment<'_>],
    options: &ExecutionOptions,
) -> RunResult<Vec<TrialReport>> {
    try_works(Concurrent::assigned(trials, ranks)?, ranks, &each_trial(trials), options)
}

fn try_works(
    concurrent: Concurrent<'_>,
    ranks: usize,
    trials: &[&Trial],
    options: &ExecutionOptions,
) -> RunResult<Vec<TrialReport>> {
    let options = &together(options);
    footprint::check(&concurrent, trials.first().map_or(0, |trial| trial.repetitions), options, |_| true)?;
    let segment = segment(ranks, options)?;
    let run = |rank, ()| {
        let mut executor = Executor::new(&segment, rank, &concurrent, None, options)?;
        run_rank(&mut executor, trials, TaskNumber::default())
    };
    Ok(concurrent.reports(each_rank(&segment, vec![(); ranks], run)?))
}

/// Threads always share memory, whatever the options say.
fn together(options: &ExecutionOptions) -> ExecutionOptions {
    ExecutionOptions { hosts: Hosts::One, ..options.clone() }
}

fn segment(ranks: usize, options: &ExecutionOptions) -> RunResult<Segment> {
    Segment::create(SegmentShape::new(ranks, options.emulation.as_ref(), options.arena_bytes))
}

/// Runs `work` for every rank in its own thread. If one fails, a verdict ends the others.
pub(crate) fn each_rank<T: Send, R: Send>(
    segment: &Segment,
    lent: Vec<T>,
    work: impl Fn(Rank, T) -> RunResult<R> + Sync,
) -> RunResult<Vec<R>> {
    let work = &work;
    let results: Vec<RunResult<R>> = std::thread::scope(|scope| {
        let spawn = |(index, lent)| {
            let rank = Rank::from_index(index);
            scope.spawn(move || {
                let result = work(rank, lent);
                if result.is_err() {
                    segment.verdict.pronounce(Verdict {
                        rank,
                        cause: Cause::Failed,
                        phase: segment.activity.phase(rank),
                    });
                }
                result
            })
        };
        let threads: Vec<_> = lent.into_iter().enumerate().map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, RunResult<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    // The verdict that other ranks report only repeats the first error.
    let (errors, verdicts): (Vec<_>, Vec<_>) = {
        let mut values = Vec::with_capacity(results.len());
        let mut errors = Vec::new();
        for result in results {
            match result {
                Ok(value) => values.push(value),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            return Ok(values);
        }
        errors.into_iter().partition(|error| !matches!(error, RunError::Verdict(_)))
    };
    Err(errors.into_iter().chain(verdicts).next().expect("some rank failed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Check;
    use crate::pacing::pace::Emulation;
    use program::{
        Buffer, Connection, ConnectionId, Instruction, PartShape, Program, RankProgram, Slice, Step, StepRef, Tempo,
        Threadblock,
    };
    use schedule::{Collective, Demand, ReduceOp, Request};
    use std::sync::Arc;
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Resource, ResourceId, Topology, TopologyParts};

    /// Reduce to rank 0 along a line: the last rank sends, the others reduce and send on, slot by slot.
    fn line_reduce(ranks: usize, chunks: u32, op: ReduceOp) -> Program {
        let mut request = Request::new(Collective::Reduce, ranks, 0).with_chunks(chunks);
        request.op = Some(op);
        let connection = |from: usize| Connection {
            from: Rank::from_index(from),
            to: Rank::from_index(from - 1),
            channel: 0,
            link: LinkId(0),
        };
        let slice = |buffer, index| Slice { buffer, index, count: 1 };
        let of_rank = |rank: usize| {
            let (from, to) = (ConnectionId(rank as u32), ConnectionId(rank.saturating_sub(1) as u32));
            let steps = (0..chunks).flat_map(|index| {
                let (src, output, sum) =
                    (slice(Buffer::Input, index), slice(Buffer::Output, index), slice(Buffer::Scratch, index));
                match rank {
                    0 if ranks == 1 => vec![Instruction::Copy { src, dst: output }],
                    0 => vec![Instruction::ReceiveReduce { from, src, dst: output }],
                    _ if rank + 1 == ranks => vec![Instruction::Send { to, src }],
                    _ => vec![Instruction::ReceiveReduce { from, src, dst: sum }, Instruction::Send { to, src: sum }],
                }
            });
            RankProgram {
                input_parts: (0..chunks).collect(),
                output_parts: if rank == 0 { (0..chunks).collect() } else { Vec::new() },
                scratch_parts: (0..chunks).collect(),
                threadblocks: vec![Threadblock { steps: steps.map(Step::new).collect() }],
            }
        };
        Program {
            demand: Arc::new(Demand::new(request).unwrap()),
            op: Some(op),
            in_place: false,
            shape: PartShape::Equal { parts: chunks },
            uniform: false,
            connections: (1..ranks).map(connection).collect(),
            ranks: (0..ranks).map(of_rank).collect(),
            tempo: Tempo::default(),
        }
    }

    fn work(program: &Program, count: u64, dtype: DType) -> Work<'_> {
        Work { program, window: 0, digest: None, count, dtype, group: Group::all(program.ranks.len()) }
    }

    fn try_program(program: &Program, trial: &Trial, options: &ExecutionOptions) -> RunResult<TrialReport> {
        let ranks = program.ranks.len();
        let concurrent = Concurrent::new(vec![work(program, trial.count, trial.dtype)], ranks)?;
        try_works(concurrent, ranks, &[trial], options).map(|mut reports| reports.remove(0))
    }

    fn run_program(
        program: &Program,
        count: u64,
        dtype: DType,
        calls: Vec<Call<'_>>,
        options: &ExecutionOptions,
    ) -> RunResult<Vec<RepetitionSample>> {
        run_work(work(program, count, dtype), calls, options)
    }

    #[test]
    fn a_line_of_ranks_reduces_every_type_operator_and_count() {
        let options = ExecutionOptions { ring_bytes: 4096, tile_bytes: Some(1000), ..ExecutionOptions::default() };
        for ranks in 1..6 {
            for &op in ReduceOp::ALL {
                for &dtype in DType::ALL {
                    for count in [0, 1, 2, 7, 1000, 4099] {
                        let trial = Trial { repetitions: 3, ..Trial::once(count, dtype) };
                        let report = try_program(&line_reduce(ranks, 3, op), &trial, &options).unwrap();
                        assert_eq!(report.wrong(), 0, "{ranks} ranks, {op}, {dtype}, {count}");
                        assert_eq!(report.spans().len(), 3);
                    }
                }
            }
        }
    }

    #[test]
    fn a_reduction_with_the_wrong_operator_is_found() {
        let mut program = line_reduce(3, 2, ReduceOp::Sum);
        let trial = Trial { check: Check::FirstAndLast, ..Trial::once(100, DType::F32) };
        // Rank 1 leaves its own value out of the sum.
        let first = &mut program.ranks[1].threadblocks[0].steps[0].instruction;
        let Instruction::ReceiveReduce { from, dst, .. } = *first else { panic!("it reduces first") };
        *first = Instruction::Receive { from, dst };
        let wrong = try_program(&program, &trial, &ExecutionOptions::default()).unwrap().wrong();
        assert!((45..=50).contains(&wrong), "{wrong} of the 50 elements of the first slot");
    }

    #[test]
    fn a_missing_send_ends_at_the_deadline_and_names_the_rank() {
        let mut program = line_reduce(4, 2, ReduceOp::Sum);
        program.ranks[2].threadblocks[0].steps.pop();
        let options =
            ExecutionOptions { work_limit: std::time::Duration::from_millis(100), ..ExecutionOptions::default() };
        let error = try_program(&program, &Trial::once(100, DType::F32), &options).unwrap_err();
        let RunError::Deadline { rank, peer: Some(peer), .. } = error else { panic!("{error}") };
        assert!(
            rank.0 < 2 && peer.0 == rank.0 + 1,
            "each waits for the next, and rank 1 for the one at fault: {error}"
        );
    }

    #[test]
    fn what_goes_wrong_in_one_of_several_plans_ends_all_and_says_in_which() {
        let good = line_reduce(4, 2, ReduceOp::Sum);
        let mut bad = line_reduce(3, 2, ReduceOp::Sum);
        bad.ranks[2].threadblocks[0].steps.pop();
        let group = Group::new([5, 3, 1].map(Rank)).unwrap();
        let works = vec![work(&good, 1000, DType::F32), Work { group, ..work(&bad, 100, DType::F32) }];
        let concurrent = Concurrent::new(works, 6).unwrap();
        let options =
            ExecutionOptions { work_limit: std::time::Duration::from_millis(100), ..ExecutionOptions::default() };
        let trial = Trial { repetitions: 3, ..Trial::once(100, DType::F32) };
        let error = try_works(concurrent, 6, &[&trial; 2], &options).unwrap_err();
        let RunError::InWork { work: 1, works: 2, source } = error else { panic!("{error}") };
        // The error names ranks of the job.
        let RunError::Deadline { rank, peer: Some(peer), .. } = *source else { panic!("{source}") };
        assert!([(5, 3), (3, 1)].contains(&(rank.0, peer.0)), "rank {rank} waits for rank {peer}");
    }

    #[test]
    fn buffers_of_the_wrong_size_are_refused() {
        let program = line_reduce(1, 1, ReduceOp::Sum);
        let call = Call::OutOfPlace { input: &[0; 39], output: &mut [0; 40] };
        let error = run_program(&program, 10, DType::F32, vec![call], &ExecutionOptions::default()).unwrap_err();
        assert!(matches!(error, RunError::BufferSize { given: 39, needed: 40, .. }), "{error}");
    }

    #[test]
    fn ranks_with_different_plans_notice_at_the_first_message() {
        let programs = [line_reduce(2, 1, ReduceOp::Sum), line_reduce(2, 1, ReduceOp::Max)];
        let options = ExecutionOptions::default();
        let segment = segment(2, &options).unwrap();
        let run = |rank, program| {
            let concurrent = Concurrent::new(vec![work(program, 10, DType::F32)], 2)?;
            let mut executor = Executor::new(&segment, rank, &concurrent, None, &options)?;
            run_rank(&mut executor, &[&Trial::once(10, DType::F32)], TaskNumber::default())
        };
        let error = each_rank(&segment, programs.iter().collect(), run).unwrap_err();
        let RunError::Stamp { rank: Rank(0), peer: Rank(1), expected, found } = error else { panic!("{error}") };
        assert!(expected.call == found.call && expected.plan != found.plan);
    }

    /// Rank 0 sends transfers 0 and 1. Rank 1 receives transfer 0 only after it has sent transfer 2.
    fn overtaking() -> Program {
        let slice = |index| Slice { buffer: Buffer::Scratch, index, count: 1 };
        let of_transfer = |instruction, transfer| Step { transfer: Some(transfer), ..Step::new(instruction) };
        let send =
            |to, transfer| of_transfer(Instruction::Send { to: ConnectionId(to), src: slice(transfer) }, transfer);
        let receive = |from, transfer| {
            of_transfer(Instruction::Receive { from: ConnectionId(from), dst: slice(transfer) }, transfer)
        };
        let late = Step { after: vec![StepRef { threadblock: 1, step: 0 }], ..receive(0, 0) };
        let blocks =
            [[vec![send(0, 0), send(0, 1)], vec![receive(1, 2)]], [vec![late, receive(0, 1)], vec![send(1, 2)]]];
        let of_rank = |blocks: [Vec<Step>; 2]| RankProgram {
            scratch_parts: vec![0; 3],
            threadblocks: blocks.map(|steps| Threadblock { steps }).into(),
            ..RankProgram::default()
        };
        let lane = |(link, from, to)| Connection { from: Rank(from), to: Rank(to), channel: 0, link: LinkId(link) };
        Program {
            demand: Arc::new(Demand::new(Request::new(Collective::AllGather, 2, 0)).unwrap()),
            op: None,
            in_place: false,
            shape: PartShape::Equal { parts: 1 },
            uniform: false,
            connections: [(0, 0, 1), (1, 1, 0)].map(lane).into(),
            ranks: blocks.map(of_rank).into(),
            tempo: Tempo::default(),
        }
    }

    #[test]
    fn an_emulated_port_never_waits_in_a_circle() {
        let link = |from, to| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(1e-3),
            latency: Latency::Pipelines,
            resources: [ResourceId(0)].into(),
        };
        let resources = vec![Resource::new("port", MicrosPerByte(1e-3))];
        let links = vec![link(0, 1), link(1, 0)];
        let machine = Topology::new(TopologyParts { ranks: 2, links, resources, ..Default::default() }).unwrap();
        // Messages are larger than their rings, so transfer 0 is not sent completely before it is received.
        let options = ExecutionOptions {
            ring_bytes: 4096,
            work_limit: std::time::Duration::from_secs(5),
            emulation: Some(Emulation::new(Arc::new(machine), 1.0).unwrap()),
            ..ExecutionOptions::default()
        };
        let calls = (0..2).map(|_| Call::OutOfPlace { input: &[], output: &mut [] });
        run_program(&overtaking(), 100_000, DType::F32, calls.collect(), &options).unwrap();
    }
}
