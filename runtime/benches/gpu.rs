//! What the interpreter kernel does on one GPU, with all ranks of a plan on it: `make gpu-bench`.
//!
//! Prints tables in Markdown. Times are those of the GPU's own clock, medians of several rounds. Ranks on one GPU share its memory
//! instead of links, so nothing here says how fast a plan is between GPUs.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(clippy::print_stdout, reason = "the tables are the result")]
#![expect(unsafe_code, reason = "a copy between two pieces of memory of the driver")]

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, DevicePtr};
use program::testing::schedules::{demand, direct, ring_allgather, ring_allreduce, ring_reducescatter};
use program::{LowerOptions, Program, Threadblocks, VerifiedProgram, check, lower};
use runtime::{DType, GpuDevice, GpuError, GpuLaunch, GpuRankBuffers, GpuRanks, KernelPlan};
use schedule::{Collective, VerifiedSchedule};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const ROUNDS: usize = 7;
const MIB: usize = 1 << 20;

/// How a program is carried out.
#[derive(Clone, Copy)]
struct Setting {
    count: u64,
    dtype: DType,
    tile_bytes: usize,
    threads: u32,
}

impl Setting {
    fn bytes(count: usize) -> Self {
        Self { count: (count / 4) as u64, dtype: DType::F32, tile_bytes: 256 << 10, threads: 512 }
    }

    /// Nothing if the GPU has no room for all blocks at the same time.
    fn ranks(&self, gpu: &GpuDevice, program: &VerifiedProgram) -> Option<GpuRanks> {
        let plan = KernelPlan::new(program, self.count, self.dtype, self.tile_bytes).unwrap();
        let buffers = GpuRankBuffers::of(program.program(), self.count, self.dtype).unwrap();
        match GpuRanks::new(gpu, plan, self.dtype, &buffers, (self.threads, u64::MAX)) {
            Ok(ranks) => Some(ranks),
            Err(GpuError::NotResident { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Microseconds of a call.
    fn time(&self, gpu: &GpuDevice, program: &VerifiedProgram, launch: GpuLaunch) -> Option<f64> {
        let mut ranks = self.ranks(gpu, program)?;
        let mut micros = |calls| ranks.repeat(calls, launch, LIMIT).unwrap().as_secs_f64() * 1e6 / f64::from(calls);
        // About a millisecond, but at least two calls.
        let calls = (1e3 / micros(3)).clamp(2.0, 50.0) as u32;
        Some(median((0..ROUNDS).map(|_| micros(calls)).collect()))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn program(schedule: &VerifiedSchedule, options: LowerOptions) -> VerifiedProgram {
    let program: Program = lower(schedule, &options).unwrap();
    check(program).unwrap()
}

fn in_place(instances: u32) -> LowerOptions {
    LowerOptions { in_place: true, instances, ..LowerOptions::default() }
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "no room".to_owned(), |value| format!("{value:.digits$}"))
}

fn row(first: impl std::fmt::Display, cells: impl IntoIterator<Item = String>) {
    println!("| {first} | {} |", cells.into_iter().collect::<Vec<_>>().join(" | "));
}

fn head(title: &str, columns: &[String]) {
    println!("\n{title}\n");
    row("", columns.iter().cloned());
    println!("|{}", "---|".repeat(columns.len() + 1));
}

/// GB/s of the driver's copy within the GPU; each byte is read once and written once.
fn copy_rate(bytes: usize) -> f64 {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (from, to) = (stream.alloc_zeros::<u8>(bytes).unwrap(), stream.alloc_zeros::<u8>(bytes).unwrap());
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let rates = (0..ROUNDS).map(|_| {
        let begun = stream.record_event(timed).unwrap();
        for _ in 0..10 {
            let (to, from) = (to.device_ptr(&stream).0, from.device_ptr(&stream).0);
            // SAFETY: both are so long, and live until the stream has done the copy.
            unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.unwrap();
        }
        let done = stream.record_event(timed).unwrap();
        stream.synchronize().unwrap();
        10.0 * bytes as f64 / f64::from(begun.elapsed_ms(&done).unwrap()) / 1e6
    });
    median(rates.collect())
}

/// Two ranks, one of which has data for the other one.
fn one_to_one(gpu: &GpuDevice) {
    let bytes = 256 * MIB;
    let limit = copy_rate(bytes);
    println!("The driver copies {} MiB at {limit:.0} GB/s.", bytes / MIB);
    let broadcast = direct(&demand(Collective::Broadcast, 2, 1));
    let rate = |setting: Setting, instances: u32| {
        let micros = setting.time(gpu, &program(&broadcast, in_place(instances)), GpuLaunch::Graph);
        micros.map(|micros| bytes as f64 / micros / 1e3)
    };
    let threads = [32, 128, 256, 512];
    let columns: Vec<String> = threads.iter().map(|threads| format!("{threads} threads")).collect();
    head(
        "Broadcast of 256 MiB to one other rank, GB/s, by blocks of each rank (tiles of 256 KiB per block):",
        &columns,
    );
    for instances in [1, 2, 4, 8, 16, 32, 64, 128] {
        let tile_bytes = instances as usize * (256 << 10);
        let setting = Setting { tile_bytes, ..Setting::bytes(bytes) };
        row(instances, threads.map(|threads| cell(rate(Setting { threads, ..setting }, instances), 0)));
    }
    let tiles = [4, 16, 64, 256, 1024];
    let columns: Vec<String> = tiles.iter().map(|tile| format!("{tile} KiB")).collect();
    head("The same with 512 threads, by bytes of a tile and block:", &columns);
    for instances in [1, 8, 32] {
        let rates = tiles.map(|tile| {
            let tile_bytes = instances as usize * (tile << 10);
            cell(rate(Setting { tile_bytes, ..Setting::bytes(bytes) }, instances), 0)
        });
        row(instances, rates);
    }
}

/// The least time of a message, and of a launch.
fn latencies(gpu: &GpuDevice) {
    let setting = Setting::bytes(4);
    let threads = [32, 128, 512];
    let columns: Vec<String> = threads.iter().map(|threads| format!("{threads} threads")).collect();
    head(
        "AllGather of 4 bytes around a ring, µs of a call, by ranks, which pass on ranks − 1 messages in turn:",
        &columns,
    );
    let mut ends = Vec::new();
    for ranks in [2, 3, 4, 8, 16, 32, 64] {
        let ring = program(&ring_allgather(ranks, 1), in_place(1));
        let micros = threads.map(|threads| Setting { threads, ..setting }.time(gpu, &ring, GpuLaunch::Graph));
        row(ranks, micros.map(|micros| cell(micros, 2)));
        ends.push((ranks, micros));
    }
    let slope = |at: usize| {
        let ((few, least), (many, most)) = (ends[0], ends[ends.len() - 1]);
        Some((most[at]? - least[at]?) / (many - few) as f64)
    };
    row("each further message", [0, 1, 2].map(|at| cell(slope(at), 3)));
    head("One message of 4 bytes, by launch:", &["µs of the GPU".to_owned(), "µs of the CPU".to_owned()]);
    let pair = program(&ring_allgather(2, 1), in_place(1));
    for launch in [GpuLaunch::Direct, GpuLaunch::Graph] {
        let mut ranks = setting.ranks(gpu, &pair).unwrap();
        ranks.repeat(10, launch, LIMIT).unwrap();
        let times = (0..ROUNDS).map(|_| {
            let begun = Instant::now();
            let gpu = ranks.repeat(500, launch, LIMIT).unwrap().as_secs_f64() * 1e6 / 500.0;
            (gpu, begun.elapsed().as_secs_f64() * 1e6 / 500.0)
        });
        let (gpu, cpu): (Vec<f64>, Vec<f64>) = times.unzip();
        row(format!("{launch:?}"), [cell(Some(median(gpu)), 2), cell(Some(median(cpu)), 2)]);
    }
}

/// One instruction that receives, reduces and sends, next to three.
fn fused(gpu: &GpuDevice) {
    let sizes = [1 << 10, 64 << 10, MIB, 16 * MIB, 128 * MIB];
    let columns = ["1 KiB", "64 KiB", "1 MiB", "16 MiB", "128 MiB"].map(str::to_owned);
    head("AllReduce of 8 ranks around a ring, 4 instances, µs, by threadblocks:", &columns);
    let ring = ring_allreduce(8, 1);
    let ways = [
        ("one for each end of a connection", Threadblocks::PerConnection, false),
        ("paired", Threadblocks::Paired, false),
        ("paired and fused", Threadblocks::Paired, true),
    ];
    for (name, threadblocks, fuse) in ways {
        let program = program(&ring, LowerOptions { threadblocks, fuse, window: 4, ..in_place(4) });
        let micros = sizes.map(|bytes| {
            let tile_bytes = (8 * 4 * (64 << 10)).min(bytes);
            cell(Setting { tile_bytes, ..Setting::bytes(bytes) }.time(gpu, &program, GpuLaunch::Graph), 1)
        });
        row(name, micros);
    }
}

/// How fast each type is reduced.
fn types(gpu: &GpuDevice) {
    head("ReduceScatter of 128 MiB between two ranks, 32 instances:", &["GB/s".to_owned()]);
    let program = program(&ring_reducescatter(2, 1), in_place(32));
    for &dtype in DType::ALL {
        let bytes = 128 * MIB;
        let count = (bytes / dtype.size() / 2) as u64;
        let setting = Setting { count, dtype, tile_bytes: 32 * (256 << 10), threads: 512 };
        let rate = setting.time(gpu, &program, GpuLaunch::Graph).map(|micros| bytes as f64 / micros / 1e3);
        row(dtype, [cell(rate, 0)]);
    }
}

/// How long a call takes to end after its time is over.
fn ends(gpu: &GpuDevice) {
    let program = program(&ring_allreduce(8, 1), in_place(1));
    let mut ranks = Setting { threads: 32, ..Setting::bytes(512 * MIB) }.ranks(gpu, &program).unwrap();
    let limit = Duration::from_millis(2);
    let micros = (0..21).map(|_| {
        let begun = Instant::now();
        let late = ranks.call(limit);
        let micros = (begun.elapsed() - limit).as_secs_f64() * 1e6;
        assert_eq!(late, Err(GpuError::Late { limit }));
        ranks.reset().unwrap();
        micros
    });
    let micros: Vec<f64> = micros.collect();
    let most = micros.iter().copied().fold(0.0, f64::max);
    println!("\nA call that is ended after its time ends {:.0} µs later, at most {most:.0} µs.", median(micros));
}

fn main() {
    let gpu = match GpuDevice::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("nothing was measured: {error}");
            return;
        }
    };
    println!("{}, {} multiprocessors.", gpu.name(), gpu.multiprocessors());
    one_to_one(&gpu);
    latencies(&gpu);
    fused(&gpu);
    types(&gpu);
    ends(&gpu);
}
