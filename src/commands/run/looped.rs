//! `antiphon run --loop`: calls of the library one after the other, as the OSU benchmarks and nccl-tests make them.
//!
//! The principal functions are [`conduct`], and [`run_rank`] for one rank. Between the calls of a block nobody waits for all, so the
//! time of a call is that of a program that does nothing else. All ranks know the slowest one's time.

use super::fixed::Fixed;
use super::loop_job::{LoopJob, job_of, plan_of, ranks_of, unserved};
use super::report::{self, CSV, ReportRow, header};
use crate::amounts::{bus_factor, count};
use crate::cli::{BufferOwner, RunArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::config_of;
use crate::launch::library::LibraryRanks;
use crate::loading::MemoryMode;
use crate::screen::Screen;
use comm::{Communicator, Config, DType, Element, Op};
use schedule::{Collective, ReduceOp, Request};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};
use topology::Rank;
use tune::summarize;

/// About how long a block of calls takes.
const BLOCK: Duration = Duration::from_millis(5);
/// The most calls of a block.
const MOST_CALLS: f64 = 10_000.0;
/// How long ranks may take without a word.
const LIMIT: Duration = Duration::from_secs(3600);

/// What rank 0 tells of a size.
#[derive(Serialize, Deserialize)]
struct LoopTimes {
    size_bytes: u64,
    count: u64,
    /// Microseconds for one call on the slowest rank, of each block.
    times_us: Vec<f64>,
    wrong: u64,
    plan: String,
}

/// Runs the command: starts local ranks, or is one of the ranks that somebody else has started.
pub(super) fn conduct(args: &RunArgs, screen: &Screen) -> Outcome {
    let plan = plan_of(args, screen)?;
    let config = config_of(&args.launch)?;
    let ranks = ranks_of(args, config.as_ref(), plan.as_ref())?;
    let job = job_of(args, ranks, plan.as_ref())?;
    let collective = job.collective;
    if config.is_none() {
        // The ranks' own warnings are not seen.
        job.misfits(ranks)?.iter().for_each(|why| screen.note(&format!("note: {why}")));
    }
    let is_first = config.as_ref().is_none_or(|config| config.rank == 0);
    if is_first && !screen.is_json() {
        let title = format!("{collective} on {ranks} ranks, calls back to back, median of {} blocks", job.blocks);
        if args.csv { screen.line(CSV) } else { screen.say(&header(&title, false)) }
    }
    for &size in job.sizes.iter().filter(|_| is_first) {
        let request = Request::new(collective, ranks, size);
        super::note_rounding(&request, size, count(&request, size, job.dtype, 1).1, args, screen);
    }
    let mut wrong = 0;
    let mut tell = |times: &LoopTimes| {
        wrong += times.wrong;
        tell(args, &job, (ranks, plan.as_ref()), times, screen)
    };
    match config {
        None => {
            // Ends the ranks first.
            let _ = interrupt::cancels();
            as_processes(&job, ranks, |times| tell(times))?;
        }
        Some(mut config) => {
            interrupt::ends(screen);
            job.configure(&mut config);
            let comm = Communicator::connect(&config).map_err(Failure::no)?;
            measure_all(&comm, &job, |times| tell(times))?;
        }
    }
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// Starts the ranks on this computer; `tell` hears of each size.
fn as_processes(job: &LoopJob, ranks: usize, mut tell: impl FnMut(&LoopTimes)) -> Outcome {
    let folder = tempfile::tempdir().map_err(Failure::no)?;
    let path = folder.path().join("job.json");
    std::fs::write(&path, serde_json::to_vec(job).map_err(Failure::no)?).map_err(Failure::no)?;
    let mut processes = LibraryRanks::start(ranks, |command| {
        command.arg("loop-rank").arg(&path);
    })?;
    let mut told = 0;
    processes.finish(LIMIT, |line| {
        if let Ok(times) = serde_json::from_str::<LoopTimes>(line) {
            told += 1;
            tell(&times);
        }
    })?;
    match told == job.sizes.len() {
        true => Ok(()),
        false => Err(Failure::no(anyhow::anyhow!(processes.complaints()))),
    }
}

/// Runs one rank of a job that `antiphon run --loop` has written; rank 0 prints what it has measured.
pub(crate) fn run_rank(path: &Path) -> Outcome {
    let text = std::fs::read(path).map_err(Failure::bad_input)?;
    let job: LoopJob = serde_json::from_slice(&text).map_err(Failure::bad_input)?;
    let mut config = Config::from_env().map_err(Failure::bad_input)?;
    job.configure(&mut config);
    let comm = Communicator::connect(&config).map_err(Failure::no)?;
    measure_all(&comm, &job, |times| {
        use std::io::Write;
        if let Ok(line) = serde_json::to_string(times) {
            // Nobody may listen any more.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    })
}

/// Prints a line.
fn tell(args: &RunArgs, job: &LoopJob, (ranks, plan): (usize, Option<&Fixed>), times: &LoopTimes, screen: &Screen) {
    let Some(summary) = summarize(&times.times_us) else { return };
    // Stock may have served the calls.
    let plan = plan.filter(|_| job.table.is_some() && !times.plan.contains(", stock, because "));
    let predicted = plan.and_then(|plan| plan.predicted(times.size_bytes, MemoryMode::OutOfPlace, None));
    let predicted_us = predicted.map(|time| time.0);
    let request = Request::new(job.collective, ranks, times.size_bytes);
    let algbw = times.size_bytes as f64 / summary.median_us.max(1e-3) * 1e-3;
    let row = ReportRow {
        format: report::FORMAT,
        collective: job.collective,
        size_bytes: times.size_bytes,
        count: times.count,
        dtype: job.dtype,
        op: job.collective.combines().then_some(job.op),
        root: job.collective.is_rooted().then_some(Rank(job.root as u32)),
        in_place: false,
        time_us: summary.median_us,
        min_us: summary.min_us,
        p99_us: summary.p99_us,
        max_us: summary.max_us,
        algbw,
        busbw: algbw * bus_factor(&request),
        predicted_us,
        ratio: predicted_us.filter(|predicted| *predicted > 0.0).map(|predicted| summary.median_us / predicted),
        emulated: false,
        wrong: times.wrong,
        plan: times.plan.clone(),
        ranks,
        together: None,
    };
    match (args.csv, screen.is_json()) {
        (true, _) => screen.line(&row.csv()),
        (false, true) => screen.line(&serde_json::to_string(&row).unwrap_or_default()),
        (false, false) if screen.is_quiet() => {}
        (false, false) => screen.line(&row.line()),
    }
}

/// Measures all sizes; `tell` hears of them on rank 0.
fn measure_all(comm: &Communicator, job: &LoopJob, tell: impl FnMut(&LoopTimes)) -> Outcome {
    match job.dtype {
        DType::F32 => measure_sizes::<f32>(comm, job, tell),
        DType::F64 => measure_sizes::<f64>(comm, job, tell),
        DType::I32 => measure_sizes::<i32>(comm, job, tell),
        DType::I64 => measure_sizes::<i64>(comm, job, tell),
        DType::U8 => measure_sizes::<u8>(comm, job, tell),
        DType::F16 => measure_sizes::<half::f16>(comm, job, tell),
        DType::Bf16 => measure_sizes::<half::bf16>(comm, job, tell),
    }
}

fn measure_sizes<T: Element + From<u8> + PartialEq>(
    comm: &Communicator,
    job: &LoopJob,
    mut tell: impl FnMut(&LoopTimes),
) -> Outcome {
    for &size in &job.sizes {
        let request = Request::new(job.collective, comm.size(), size);
        let (count, size_bytes) = count(&request, size, job.dtype, 1);
        let mut vectors = LoopVectors::<T>::new(comm, job, count as usize)?;
        let (times_us, plan, wrong) = measure(comm, job, &mut vectors)?;
        if comm.rank() == 0 {
            tell(&LoopTimes { size_bytes, count, times_us, wrong, plan });
        }
    }
    Ok(())
}

/// The times of all blocks, what has served the calls, and how many elements are wrong afterwards.
fn measure<T: Element + From<u8> + PartialEq>(
    comm: &Communicator,
    job: &LoopJob,
    vectors: &mut LoopVectors<T>,
) -> Outcome<(Vec<f64>, String, u64)> {
    let block = |vectors: &mut LoopVectors<T>, calls: u32| -> Outcome<f64> {
        comm.barrier().map_err(Failure::no)?;
        let begin = Instant::now();
        for _ in 0..calls {
            vectors.call(comm, job)?;
        }
        let mut slowest = [begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls.max(1))];
        comm.all_reduce(&mut slowest, Op::Max).map_err(Failure::no)?;
        Ok(slowest[0])
    };
    block(vectors, job.warmups.max(1))?;
    let expected = block(vectors, job.warmups.max(1))?;
    let calls = (BLOCK.as_secs_f64() * 1e6 / expected.max(1e-3)).clamp(1.0, MOST_CALLS) as u32;
    let times_us = (0..job.blocks).map(|_| block(vectors, calls)).collect::<Outcome<Vec<f64>>>()?;
    vectors.receive.slice_mut().fill(T::from(0));
    vectors.call(comm, job)?;
    let plan = comm.last_plan();
    let mut wrong = [vectors.wrong(comm, job) as i64];
    comm.all_reduce(&mut wrong, Op::Sum).map_err(Failure::no)?;
    Ok((times_us, plan, wrong[0] as u64))
}

/// Memory of the program, or of the library.
enum LoopBuffer<T> {
    Caller(Vec<T>),
    Library(comm::SharedVector<T>),
}

impl<T: Element + From<u8>> LoopBuffer<T> {
    fn new(comm: &Communicator, owner: BufferOwner, count: usize, value: u8) -> Outcome<Self> {
        Ok(match owner {
            BufferOwner::Caller => Self::Caller(vec![T::from(value); count]),
            BufferOwner::Ours => {
                let mut vector = comm.allocate(count).map_err(Failure::no)?;
                vector.fill(T::from(value));
                Self::Library(vector)
            }
        })
    }

    fn slice(&self) -> &[T] {
        match self {
            Self::Caller(vector) => vector,
            Self::Library(vector) => vector,
        }
    }

    fn slice_mut(&mut self) -> &mut [T] {
        match self {
            Self::Caller(vector) => vector,
            Self::Library(vector) => vector,
        }
    }
}

/// What the calls of one size send and receive.
struct LoopVectors<T> {
    send: LoopBuffer<T>,
    receive: LoopBuffer<T>,
}

impl<T: Element + From<u8> + PartialEq> LoopVectors<T> {
    /// Vectors for blocks of `count` elements.
    fn new(comm: &Communicator, job: &LoopJob, count: usize) -> Outcome<Self> {
        let all = count * comm.size();
        let is_root = comm.rank() == job.root;
        let (sent, received) = match job.collective {
            Collective::AllReduce | Collective::Broadcast => (count, count),
            Collective::Reduce => (count, if is_root { count } else { 0 }),
            Collective::AllGather => (count, all),
            Collective::ReduceScatter => (all, count),
            Collective::AllToAll => (all, all),
            Collective::Gather => (count, if is_root { all } else { 0 }),
            Collective::Scatter => (if is_root { all } else { 0 }, count),
            Collective::SendRecv | Collective::AllToAllV | Collective::Custom => return Err(unserved(job.collective)),
        };
        Ok(Self {
            send: LoopBuffer::new(comm, job.buffers, sent, sent_by(comm.rank(), job))?,
            receive: LoopBuffer::new(comm, job.buffers, received, 0)?,
        })
    }

    fn call(&mut self, comm: &Communicator, job: &LoopJob) -> Outcome {
        let (send, receive) = (self.send.slice(), self.receive.slice_mut());
        let (op, root) = (job.op, job.root);
        let ended = match job.collective {
            Collective::AllReduce => comm.all_reduce_into(send, receive, op),
            Collective::AllGather => comm.all_gather(send, receive),
            Collective::ReduceScatter => comm.reduce_scatter(send, receive, op),
            Collective::AllToAll => comm.all_to_all(send, receive),
            Collective::Reduce => comm.reduce(send, receive, op, root),
            Collective::Gather => comm.gather(send, receive, root),
            Collective::Scatter => comm.scatter(send, receive, root),
            // The root sends what it has, the others get it in the same vector.
            Collective::Broadcast => {
                comm.broadcast(if comm.rank() == root { self.send.slice_mut() } else { receive }, root)
            }
            Collective::SendRecv | Collective::AllToAllV | Collective::Custom => return Err(unserved(job.collective)),
        };
        ended.map_err(Failure::no)
    }

    /// How many received elements are not what they must be.
    fn wrong(&self, comm: &Communicator, job: &LoopJob) -> u64 {
        let ranks = comm.size();
        let is_root = comm.rank() == job.root;
        let receive = self.receive.slice();
        let combined = || {
            let values = (0..ranks).map(|rank| sent_by(rank, job));
            match job.op {
                ReduceOp::Sum => values.sum(),
                ReduceOp::Prod => values.product(),
                ReduceOp::Min => values.min().unwrap_or(0),
                ReduceOp::Max => values.max().unwrap_or(0),
                ReduceOp::Avg => 1,
            }
        };
        let expected = |at: usize| match job.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => combined(),
            Collective::Broadcast | Collective::Scatter => sent_by(job.root, job),
            Collective::AllGather | Collective::AllToAll | Collective::Gather | Collective::SendRecv => {
                sent_by(at * ranks / receive.len().max(1), job)
            }
            Collective::AllToAllV | Collective::Custom => sent_by(at * ranks / receive.len().max(1), job),
        };
        // A broadcast's root receives nothing, and neither do the others where the root alone ends with the result.
        let receives = match job.collective {
            Collective::Broadcast => !is_root,
            Collective::Reduce | Collective::Gather => is_root,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => true,
            Collective::AllToAllV | Collective::Scatter | Collective::SendRecv | Collective::Custom => true,
        };
        if !receives {
            return 0;
        }
        receive.iter().enumerate().filter(|&(at, value)| *value != T::from(expected(at))).count() as u64
    }
}

/// What all elements of a rank are. Every result is a small integer, so it is exact in every type.
fn sent_by(rank: usize, job: &LoopJob) -> u8 {
    if !job.collective.combines() {
        return 1 + (rank % 250) as u8;
    }
    let odd = (rank % 2) as u8;
    match job.op {
        ReduceOp::Sum => {
            if rank < 64 {
                1 + odd
            } else {
                0
            }
        }
        ReduceOp::Prod => {
            if rank < 8 {
                1 + odd
            } else {
                1
            }
        }
        ReduceOp::Min | ReduceOp::Max => 1 + odd,
        ReduceOp::Avg => 1,
    }
}
