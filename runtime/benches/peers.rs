//! AllReduce by one kernel over memory that processes have mapped from each other: `make gpu-bench`.
//!
//! Prints a table in Markdown for each number of processes. Each has a GPU of its own as far as there are so many; two are measured in any
//! case. Processes that share a GPU take turns, so their times are those of the turns and say nothing about the kernel; the heading says
//! so. Times are those of the GPU's clock on the slowest rank, without the copies that calls in NCCL's place make.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(clippy::print_stdout, reason = "the tables are the result")]

#[path = "../tests/peers/gather.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod gather;

use gather::{FileGather, Job, PROCESS};
use runtime::{DType, GpuDevice, GpuLaunch, GpuRankAllReduce, PeerAlgorithm, PeerAllReduce, PeerCall};
use schedule::ReduceOp;
use std::time::Duration;
use topology::Rank;

const LIMIT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 5;
const CALLS: u32 = 20;
const SIZES: [u64; 8] = [256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Threads of a block, and the bytes of one thread; the most blocks.
const THREADS: u32 = 512;
const THREAD_BYTES: u64 = 16;
const MOST_BLOCKS: u64 = 16;

/// The sizes that are measured: a fake driver, which stands for a GPU where somebody tries this program, would take hours for long ones.
fn sizes(gpu: &GpuDevice) -> Vec<u64> {
    let most = if gpu.name().contains("fake") { 4 << 10 } else { u64::MAX };
    SIZES.into_iter().filter(|bytes| *bytes <= most).collect()
}

/// One rank, in a process of its own: microseconds of a call for each size and algorithm.
fn measured(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split(' ').collect();
    let (rank, ranks): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let (round, leaves_at, fails_at) = (0, None, None);
    let mut gather = FileGather {
        folder: words[2].into(),
        rank: Rank::from_index(rank),
        ranks,
        limit: LIMIT,
        round,
        leaves_at,
        fails_at,
    };
    let gpus = GpuDevice::count().map_err(|error| error.to_string())?;
    let gpu = GpuDevice::open(rank % gpus.max(1)).map_err(|error| error.to_string())?;
    let mut times = Vec::new();
    for bytes in sizes(&gpu) {
        let blocks = (bytes / (THREAD_BYTES * u64::from(THREADS))).clamp(1, MOST_BLOCKS) as u32;
        for &algorithm in PeerAlgorithm::ALL {
            let (count, dtype, op, in_place) = (bytes / 4, DType::F32, ReduceOp::Sum, false);
            let plan = PeerAllReduce::new(PeerCall { algorithm, ranks, count, dtype, op, in_place, blocks });
            let plan = plan.map_err(|error| error.to_string())?;
            let made = GpuRankAllReduce::new(&gpu, plan, &mut gather, (THREADS, u64::MAX), LIMIT);
            let mut made = made.map_err(|error| error.to_string())?;
            let mut micros = Vec::new();
            for _ in 0..ROUNDS {
                let time = made.repeat(CALLS, GpuLaunch::Graph, LIMIT).map_err(|error| error.to_string())?;
                micros.push(time.as_secs_f64() * 1e6 / f64::from(CALLS));
            }
            micros.sort_by(f64::total_cmp);
            times.push(micros[ROUNDS / 2].to_string());
            made.close(&mut gather).map_err(|error| error.to_string())?;
        }
    }
    Ok(times.join(" "))
}

/// The table of so many processes, of which each says the times of its rank.
fn table(ranks: usize, gpus: usize, gpu: &GpuDevice) {
    let said = Job { ranks, mode: "times", of_rank: &|_| Vec::new() }.run();
    let place = match ranks <= gpus {
        true => format!("{ranks} GPUs, a process for each"),
        false => format!("{ranks} processes on one GPU, which take turns: no times of the kernel"),
    };
    let numbers: Option<Vec<Vec<f64>>> = said
        .iter()
        .map(|line| line.strip_prefix("times ")?.split(' ').map(|word| word.parse().ok()).collect())
        .collect();
    let Some(numbers) = numbers else {
        println!("\n{place}: nothing was measured, because they share no memory: {}", said[0]);
        return;
    };
    println!("\nAllReduce over mapped memory, {place}; µs of a call:\n");
    println!("| bytes | one-shot | two-shot |\n|---|---|---|");
    for (at, bytes) in sizes(gpu).into_iter().enumerate() {
        let slowest = |which: usize| numbers.iter().map(|rank| rank[2 * at + which]).fold(0.0, f64::max);
        println!("| {bytes} | {:.2} | {:.2} |", slowest(0), slowest(1));
    }
}

fn main() {
    if let Ok(text) = std::env::var(PROCESS) {
        let said = measured(&text).map_or_else(|why| why, |times| format!("times {times}"));
        println!("\nsaid {said}");
        return;
    }
    let opened = GpuDevice::count().and_then(|gpus| Ok((gpus, GpuDevice::open(0)?)));
    let (gpus, gpu) = match opened {
        Ok(opened) => opened,
        Err(error) => return println!("nothing was measured between processes: {error}"),
    };
    println!("{}, {gpus} of them.", gpu.name());
    [2, 4, 8].into_iter().filter(|ranks| *ranks <= gpus.max(2)).for_each(|ranks| table(ranks, gpus, &gpu));
}
