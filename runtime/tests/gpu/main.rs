//! Plans on a GPU, by the code that ships: driver, memory, launch, and the kernel's PTX.
//!
//! The driver is the fake one of `tests/cuda`, unless ANTIPHON_GPU=real asks for that of the computer (`make gpu-test`). All ranks of
//! a plan are on one GPU.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "loads a library")]

mod allreduce;

use libloading::Library;
use program::testing::schedules::{
    Random, demand, direct, random_topology, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{LowerOptions, VerifiedProgram, check, lower};
use runtime::{DType, GpuBuffer, GpuDevice, GpuError, GpuLaunch, GpuRankBuffers, GpuRanks, KernelPlan, Reference};
use schedule::{Collective, Demand, ReduceOp, Request};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use topology::Rank;

/// Long enough for the slowest computer.
const LIMIT: Duration = Duration::from_secs(120);

/// The driver, which one test uses at a time.
struct Driver {
    fake: Option<&'static Library>,
    _turn: MutexGuard<'static, ()>,
}

impl Driver {
    fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static FAKE: OnceLock<Option<Library>> = OnceLock::new();
        let fake = FAKE.get_or_init(|| {
            if std::env::var("ANTIPHON_GPU").is_ok_and(|driver| driver == "real") {
                return None;
            }
            let test = std::env::current_exe().unwrap();
            let library = test.with_file_name("libfake_cuda.so");
            // cudarc finds what is loaded already, by the library's name for itself.
            // SAFETY: the library has no constructors.
            Some(unsafe { Library::new(&library) }.unwrap_or_else(|error| panic!("{}: {error}", library.display())))
        });
        Self { fake: fake.as_ref(), _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn gpu(&self) -> GpuDevice {
        let gpu = GpuDevice::open(0).unwrap();
        assert_eq!(gpu.name().contains("fake"), self.fake.is_some(), "{}", gpu.name());
        gpu
    }
}

impl Drop for Driver {
    /// All memory, streams and events have been given back.
    fn drop(&mut self) {
        if let Some(fake) = self.fake.filter(|_| !std::thread::panicking()) {
            // SAFETY: a function without arguments that returns a number.
            let held = unsafe { fake.get::<extern "C" fn() -> usize>(b"fakeCudaHeld\0").unwrap()() };
            assert_eq!(held, 0, "something was not given back");
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Terms {
    count: u64,
    dtype: DType,
    tile_bytes: usize,
    threads: u32,
    seed: u64,
}

const PLAIN: Terms = Terms { count: 13, dtype: DType::F32, tile_bytes: 1 << 20, threads: 4, seed: 1 };

fn with_op(program: VerifiedProgram, op: ReduceOp) -> VerifiedProgram {
    let mut program = program.into_program();
    let request = Request { op: Some(op), ..program.demand.request().clone() };
    let demand = Demand::new(request).unwrap().with_chunk_bytes(program.demand.chunk_bytes()).unwrap();
    (program.op, program.demand) = (Some(op), Arc::new(demand));
    check(program).unwrap()
}

fn reference<'a>(program: &'a VerifiedProgram, terms: &Terms, call: u64) -> Reference<'a> {
    let program = program.program();
    Reference::new(&program.demand, program.op, terms.count as usize, terms.dtype, terms.seed.wrapping_add(call << 32))
}

fn on_gpu(gpu: &GpuDevice, program: &VerifiedProgram, terms: Terms, poll_limit: u64) -> Result<GpuRanks, GpuError> {
    let plan = KernelPlan::new(program, terms.count, terms.dtype, terms.tile_bytes).unwrap();
    let buffers = GpuRankBuffers::of(program.program(), terms.count, terms.dtype).unwrap();
    GpuRanks::new(gpu, plan, terms.dtype, &buffers, (terms.threads, poll_limit))
}

/// Fills all buffers for a call.
fn fill(ranks: &mut GpuRanks, program: &VerifiedProgram, terms: &Terms, call: u64) {
    let (reference, size) = (reference(program, terms, call), terms.dtype.size());
    for rank in (0..program.program().ranks.len()).map(Rank::from_index) {
        let places = reference.places(rank);
        if program.program().in_place {
            let common = (places.output_at + places.output).max(places.input_at + places.input);
            let mut bytes = vec![0xA5; common * size];
            reference.fill(rank, &mut bytes, places.input_at);
            ranks.write(rank, GpuBuffer::Output, &bytes).unwrap();
        } else {
            let mut bytes = vec![0; places.input * size];
            reference.fill(rank, &mut bytes, 0);
            ranks.write(rank, GpuBuffer::Input, &bytes).unwrap();
            ranks.write(rank, GpuBuffer::Output, &vec![0xA5; places.output * size]).unwrap();
        }
    }
}

/// How many elements are wrong after a call.
fn wrong(ranks: &GpuRanks, program: &VerifiedProgram, terms: &Terms, call: u64) -> u64 {
    let (reference, size) = (reference(program, terms, call), terms.dtype.size());
    let mut wrong = 0;
    for rank in (0..program.program().ranks.len()).map(Rank::from_index) {
        let places = reference.places(rank);
        let at = if program.program().in_place { places.output_at } else { 0 };
        let output = ranks.read(rank, GpuBuffer::Output).unwrap();
        wrong += reference.wrong(rank, &output[..(at + places.output) * size], at);
        if !program.program().in_place {
            wrong += reference.changed(rank, &ranks.read(rank, GpuBuffer::Input).unwrap());
        }
    }
    wrong
}

fn right(gpu: &GpuDevice, program: &VerifiedProgram, terms: Terms, what: &str) {
    let mut ranks = on_gpu(gpu, program, terms, u64::MAX).unwrap();
    for call in 0..3 {
        fill(&mut ranks, program, &terms, call);
        ranks.call(LIMIT).unwrap_or_else(|error| panic!("{what}, call {call}, {terms:?}: {error}"));
        assert_eq!(wrong(&ranks, program, &terms, call), 0, "{what}, call {call}, {terms:?}");
    }
}

#[test]
fn programs_of_every_collective_are_right() {
    let driver = Driver::take();
    let (gpu, mut random) = (driver.gpu(), Random(3));
    for ranks in [2, 3, 5] {
        for in_place in [false, true] {
            for schedule in [ring_allgather(ranks, 2), ring_reducescatter(ranks, 1), ring_allreduce(ranks, 1)] {
                let terms = Terms { count: 8 * ranks as u64 + 1, threads: 1 + ranks as u32, ..PLAIN };
                right(&gpu, &checked(lowered(&schedule, in_place)), terms, &format!("a ring of {ranks}"));
            }
        }
    }
    for collective in STANDARD {
        let ranks = 2 + random.below(3);
        let topology = random_topology(ranks, &mut random);
        let demand = demand(collective, ranks, 1 + random.below(3) as u32);
        let schedule = random_trees(&topology, &demand, &mut random);
        let program = lower(&schedule, &LowerOptions::default()).unwrap();
        let terms = Terms {
            count: [0, 1, 7, 61][random.below(4)],
            dtype: DType::ALL[random.below(DType::ALL.len())],
            tile_bytes: [8, 1 << 20][random.below(2)],
            seed: random.draw(),
            ..PLAIN
        };
        right(&gpu, &checked(program), terms, &format!("{collective} of {ranks} ranks"));
    }
    let alltoall = checked(lowered(&direct(&demand(Collective::AllToAll, 4, 1)), false));
    right(&gpu, &alltoall, PLAIN, "direct exchange");
}

#[test]
fn every_type_is_reduced() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let operations = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
    for (at, &dtype) in DType::ALL.iter().enumerate() {
        let op = operations[at % operations.len()];
        let program = with_op(checked(lowered(&ring_allreduce(3, 1), at % 2 == 0)), op);
        // With and without vectors of which a thread reads several at once.
        for count in [40, 1500] {
            right(&gpu, &program, Terms { dtype, count, ..PLAIN }, op.as_str());
        }
    }
}

/// The kernel counts its calls on the GPU, so a graph that has recorded one may be repeated, also between other calls.
#[test]
fn a_graph_repeats_calls() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    for program in [lowered(&ring_allreduce(3, 1), false), lowered(&direct(&demand(Collective::AllToAll, 4, 1)), false)]
    {
        let program = checked(program);
        let mut ranks = on_gpu(&gpu, &program, PLAIN, u64::MAX).unwrap();
        for (call, launch) in
            [GpuLaunch::Graph, GpuLaunch::Direct, GpuLaunch::Graph, GpuLaunch::Graph].into_iter().enumerate()
        {
            fill(&mut ranks, &program, &PLAIN, call as u64);
            // A call out of place leaves its input, so that several give the same.
            ranks.repeat(1 + call as u32, launch, LIMIT).unwrap();
            assert_eq!(wrong(&ranks, &program, &PLAIN, call as u64), 0, "{launch:?}, call {call}");
        }
        // It is recorded anew after the tables have been copied anew.
        ranks.reset().unwrap();
        fill(&mut ranks, &program, &PLAIN, 7);
        ranks.repeat(2, GpuLaunch::Graph, LIMIT).unwrap();
        assert_eq!(wrong(&ranks, &program, &PLAIN, 7), 0, "after a reset");
    }
}

/// With a GPU: messages of many tiles, blocks of all their threads, and more ranks than the fake driver has time for.
#[test]
fn large_programs_are_right_on_a_gpu() {
    let driver = Driver::take();
    if driver.fake.is_some() {
        // The PTX machine would need hours. `make gpu-test` runs it.
        return;
    }
    let gpu = driver.gpu();
    for (ranks, count) in [(8, 1_000_003), (16, 70_001), (64, 4_099)] {
        for dtype in [DType::F32, DType::Bf16, DType::U8] {
            let terms = Terms { count, dtype, tile_bytes: 64 << 10, threads: 512, seed: 9 };
            right(&gpu, &checked(lowered(&ring_allreduce(ranks, 1), true)), terms, &format!("a ring of {ranks}"));
        }
    }
    let exchange = checked(lowered(&direct(&demand(Collective::AllToAll, 8, 1)), false));
    right(
        &gpu,
        &exchange,
        Terms { count: 50_021, tile_bytes: 16 << 10, threads: 256, ..PLAIN },
        "direct exchange of 8",
    );
    let mut random = Random(77);
    for round in 0..40 {
        let ranks = 2 + random.below(9);
        let collective = STANDARD[random.below(STANDARD.len())];
        let demand = demand(collective, ranks, 1 + random.below(4) as u32);
        let schedule = random_trees(&random_topology(ranks, &mut random), &demand, &mut random);
        let options = LowerOptions {
            in_place: random.below(2) == 0,
            fuse: random.below(2) == 0,
            instances: 1 + random.below(3) as u32,
            ..LowerOptions::default()
        };
        let terms = Terms {
            count: 1 + random.below(200_000) as u64,
            dtype: DType::ALL[random.below(DType::ALL.len())],
            tile_bytes: 1 << (10 + random.below(8)),
            threads: 32 << random.below(5),
            seed: random.draw(),
        };
        right(
            &gpu,
            &checked(lower(&schedule, &options).unwrap()),
            terms,
            &format!("round {round}, {collective} of {ranks}"),
        );
    }
}

#[test]
fn blocks_that_would_wait_for_each_other_in_vain_are_refused() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    // One block more than multiprocessors, each of which holds at most one such block, or four.
    let ranks = if driver.fake.is_some() { 9 } else { gpu.multiprocessors() as usize };
    let program = checked(lowered(&direct(&demand(Collective::AllToAll, ranks, 1)), false));
    let terms = Terms { threads: 512, count: 1, ..PLAIN };
    match on_gpu(&gpu, &program, terms, u64::MAX) {
        Err(GpuError::NotResident { blocks, threads: 512, room }) => {
            assert!(blocks > room && room >= gpu.multiprocessors())
        }
        other => panic!("{:?}", other.map(|_| "it was accepted")),
    }
}

#[test]
fn a_call_that_is_late_is_ended_and_the_next_one_works() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    let mut ranks = on_gpu(&gpu, &program, PLAIN, u64::MAX).unwrap();
    // Nothing is done at once; should it be once, then not a hundred times.
    let late = (0..100).find_map(|call| {
        fill(&mut ranks, &program, &PLAIN, call);
        ranks.call(Duration::ZERO).err()
    });
    assert_eq!(late, Some(GpuError::Late { limit: Duration::ZERO }));
    assert_eq!(ranks.call(LIMIT), Err(GpuError::Broken));
    ranks.reset().unwrap();
    for call in 0..2 {
        fill(&mut ranks, &program, &PLAIN, call);
        ranks.call(LIMIT).unwrap();
        assert_eq!(wrong(&ranks, &program, &PLAIN, call), 0);
    }
}

#[test]
fn a_block_that_waits_too_long_is_named() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let program = checked(lowered(&ring_allreduce(4, 1), false));
    // Each wait may look for as long as it takes until a GPU compares the number of looks, which is shorter than a message of so many
    // elements takes that few threads copy.
    let terms = Terms { count: 1 << 17, ..PLAIN };
    let mut ranks = on_gpu(&gpu, &program, terms, 1).unwrap();
    let error = (0..100).find_map(|call| {
        fill(&mut ranks, &program, &terms, call);
        ranks.call(LIMIT).err()
    });
    let Some(GpuError::GaveUp { rank, threadblock, step, .. }) = error else { panic!("{error:?}") };
    let steps = &program.program().ranks[rank.index()].threadblocks[threadblock].steps;
    assert!((step as usize) < steps.len(), "{error:?}");
}

/// Where the driver is too old for the PTX that is kept, an NVRTC of the computer makes PTX; without one, that is said. In a process of its
/// own, because libraries are looked for where it was started.
#[test]
fn an_old_driver_gets_ptx_by_nvrtc() {
    const ROLE: &str = "GPU_TEST_OLD_DRIVER";
    let name = "an_old_driver_gets_ptx_by_nvrtc";
    let driver = Driver::take();
    if driver.fake.is_none() {
        return;
    }
    if std::env::var_os(ROLE).is_none() {
        let test = std::env::current_exe().unwrap();
        let python = std::fs::read_dir("../target/python/gpu/lib").into_iter().flatten().filter_map(Result::ok);
        let folder = python.map(|of| of.path().join("site-packages/nvidia/cuda_nvrtc/lib")).find(|of| of.exists());
        // `.ci/setup gpu` has told why.
        let Some(folder) = folder else { return eprintln!("skipped: there is no NVRTC (`.ci/setup gpu` gets it)") };
        for (libraries, role) in [(folder.as_path(), "compiled"), (std::path::Path::new("/nowhere"), "refused")] {
            let mut command = std::process::Command::new(&test);
            command.args([name, "--exact", "--nocapture"]).env(ROLE, role);
            command.env("LD_LIBRARY_PATH", libraries).env("FAKE_CUDA_LACKS", "ptx");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{role}: {}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    let gpu = match GpuDevice::open(0) {
        Err(why) if std::env::var(ROLE).unwrap() == "refused" => {
            let said = why.to_string();
            assert!(said.contains("CUDA_ERROR_UNSUPPORTED_PTX_VERSION") && said.contains("libnvrtc.so"), "{said}");
            return;
        }
        // This computer may have an NVRTC elsewhere.
        opened => opened.unwrap(),
    };
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    let mut ranks = on_gpu(&gpu, &program, PLAIN, u64::MAX).unwrap();
    fill(&mut ranks, &program, &PLAIN, 0);
    ranks.call(LIMIT).unwrap();
    assert_eq!(wrong(&ranks, &program, &PLAIN, 0), 0);
}

#[test]
fn buffers_of_another_length_are_refused() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let program = checked(lowered(&ring_allgather(2, 1), false));
    let mut ranks = on_gpu(&gpu, &program, PLAIN, u64::MAX).unwrap();
    let has = ranks.read(Rank(1), GpuBuffer::Input).unwrap().len();
    let refused = ranks.write(Rank(1), GpuBuffer::Input, &vec![0; has + 1]);
    assert_eq!(refused, Err(GpuError::Length { rank: Rank(1), has, given: has + 1 }));
}
