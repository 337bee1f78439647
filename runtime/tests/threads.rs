//! The sources of the kernels, translated by g++: threads of the system run them, and ThreadSanitizer looks for races.
//!
//! Their PTX runs on the PTX machine elsewhere. Here another compiler and another judge see the same source, with real threads.
#![allow(clippy::unwrap_used, missing_docs)]

use program::testing::schedules::{
    Random, demand, random_topology, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{VerifiedProgram, lower};
use runtime::{
    DType, KernelAddresses, KernelPlan, PeerAddresses, PeerAlgorithm, PeerAllReduce, PeerCall, Reference,
    allreduce_kernel_name, kernel_name,
};
use schedule::{Collective, ReduceOp};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use topology::Rank;

/// Where the memory of the ranks is mapped: a range that ThreadSanitizer leaves to programs.
const BASE: u64 = 0x2_0000_0000;

/// Types that the host computes with as the kernels do. It has no two-byte floats of IEEE.
const TYPES: [DType; 4] = [DType::F32, DType::I64, DType::U8, DType::Bf16];

/// What g++ cannot translate of all kernels, and what stands for it. Each is in the source exactly once.
const REPLACED: &[(&str, &str)] = &[
    (
        r#"asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");"#,
        "value = host_load<u64>(address, __ATOMIC_ACQUIRE);",
    ),
    (
        r#"asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");"#,
        "value = host_load<u64>(address, __ATOMIC_ACQUIRE); /* in a rank */",
    ),
    (
        r#"asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");"#,
        "host_store<u64>(address, value, __ATOMIC_RELEASE);",
    ),
    (
        r#"asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");"#,
        "host_store<u64>(address, value, __ATOMIC_RELEASE); /* in a rank */",
    ),
    (
        r#"asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");"#,
        "value = host_load<u32>(address, __ATOMIC_RELAXED);",
    ),
    (
        r#"asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(address), "r"(1u) : "memory");"#,
        "host_store<u32>(address, 1u, __ATOMIC_RELAXED);",
    ),
    (r#"asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));"#, "value = host_wide(x);"),
    (r#"asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value) : "f"(x));"#, "value = host_narrow(x);"),
    ("__shared__ u64 epoch;", "u64 &epoch = host_shared<u64>(1 << 14);"),
    ("__shared__ Block block;", "Block &block = host_shared<Block>((1 << 14) + 64);"),
];

/// A source with what is its own of the same kind, and the entry point for a type.
struct Source {
    file: &'static str,
    replaced: &'static [(&'static str, &'static str)],
    entry: fn(DType) -> String,
}

const INTERPRETER: Source = Source {
    file: "interpreter.cu",
    replaced: &[
        ("__shared__ Step window[WINDOW];", "Step(&window)[WINDOW] = host_shared<Step[WINDOW]>(0);"),
        ("__shared__ u32 stop[DUTIES];", "u32(&stop)[DUTIES] = host_shared<u32[DUTIES]>((1 << 14) + 8);"),
    ],
    entry: kernel_name,
};

const ALLREDUCE: Source = Source {
    file: "allreduce.cu",
    replaced: &[(
        "__shared__ u32 stop[MOST_RANKS];",
        "u32(&stop)[MOST_RANKS] = host_shared<u32[MOST_RANKS]>((1 << 14) + 8);",
    )],
    entry: allreduce_kernel_name,
};

impl Source {
    /// The text with its headers.
    fn text(file: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let mut text = String::new();
        for line in std::fs::read_to_string(folder.join(file)).unwrap().lines() {
            match line.strip_prefix("#include \"") {
                Some(header) => text.push_str(&Self::text(header.trim_end_matches('"'))),
                None => text.extend([line, "\n"]),
            }
        }
        text
    }

    /// Translates it, after another change of its text; none if g++ has no ThreadSanitizer.
    fn compiled(&self, folder: &Path, change: (&str, &str)) -> Option<PathBuf> {
        let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threads");
        let mut source = Self::text(self.file);
        for (from, to) in REPLACED.iter().chain(self.replaced).chain((!change.0.is_empty()).then_some(&change)) {
            assert_eq!(source.matches(from).count(), 1, "{from}");
            source = source.replace(from, to);
        }
        let named = TYPES.map(self.entry).map(|name| format!("{{\"{name}\", {name}}}, ")).concat();
        let named = format!(
            "struct NamedKernel {{ const char *name; void (*kernel)(const Block *); }} KERNELS[] = {{{named}}};\n"
        );
        let part = |name: &str| std::fs::read_to_string(parts.join(name)).unwrap();
        let (file, program) = (folder.join("kernel.cc"), folder.join("kernel"));
        std::fs::write(&file, [part("host.h"), source, named, part("run.h")].concat()).unwrap();
        let mut compiler = Command::new("g++");
        // The kernels read structures as words.
        compiler.args(["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-fno-strict-aliasing", "-Wno-unknown-pragmas"]);
        let output = compiler.arg("-o").arg(&program).arg(&file).arg("-lpthread").output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("libtsan") || said.contains("cannot find -ltsan") {
            return None;
        }
        assert!(output.status.success(), "{said}");
        Some(program)
    }
}

/// The memory of all ranks.
#[derive(Default)]
struct Image(Vec<u8>);

impl Image {
    /// Zeroed memory of so many bytes.
    fn place(&mut self, bytes: usize) -> u64 {
        let at = self.0.len().next_multiple_of(128);
        self.0.resize(at + bytes.max(16), 0);
        BASE + at as u64
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0[(at - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, at: u64, bytes: usize) -> &[u8] {
        &self.0[(at - BASE) as usize..][..bytes]
    }

    /// Calls of a kernel on threads; what the program has said.
    fn run(
        &mut self,
        kernel: &Path,
        name: &str,
        grid: &[u8],
        (blocks, threads, calls): (usize, usize, usize),
    ) -> Output {
        let grid_at = self.place(grid.len());
        self.write(grid_at, grid);
        let file = kernel.with_file_name("image");
        std::fs::write(&file, &self.0).unwrap();
        let numbers = [BASE, grid_at, blocks as u64, threads as u64, calls as u64].map(|number| number.to_string());
        // ThreadSanitizer needs addresses that do not change; where that may not be asked for, they may suit it anyway.
        let is_fixed =
            Command::new("setarch").args(["-R", "true"]).output().is_ok_and(|output| output.status.success());
        let mut command = Command::new(if is_fixed { "setarch".as_ref() } else { kernel.as_os_str() });
        if is_fixed {
            command.arg("-R").arg(kernel);
        }
        command.arg(&file).args(numbers).arg(name);
        let output = command.env("TSAN_OPTIONS", "exitcode=66 halt_on_error=1").output().unwrap();
        self.0 = std::fs::read(&file).unwrap();
        output
    }
}

/// Two calls of a program: how many elements are wrong, and what the threads have said.
fn run(
    kernel: &Path,
    program: &VerifiedProgram,
    dtype: DType,
    (count, threads, tile_bytes): (u64, usize, usize),
) -> (u64, Output) {
    let plan = KernelPlan::new(program, count, dtype, tile_bytes).unwrap();
    let program = program.program();
    let reference = Reference::new(&program.demand, program.op, count as usize, dtype, 5);
    let mut image = Image::default();
    let ranks: Vec<Rank> = (0..plan.ranks()).map(Rank::from_index).collect();
    let shared: Vec<u64> = ranks.iter().map(|rank| image.place(plan.needs(*rank).shared_bytes as usize)).collect();
    let abort = image.place(4);
    let size = dtype.size();
    let (mut grid, mut outputs, mut blocks) = (Vec::new(), Vec::new(), 0);
    for &rank in &ranks {
        let (needs, places) = (plan.needs(rank), reference.places(rank));
        let (input, output) = (image.place(places.input * size), image.place(places.output * size));
        let private = image.place(needs.private_bytes as usize);
        let at = KernelAddresses { input, output, private, shared: shared.clone(), abort, poll_limit: u64::MAX };
        let tables = plan.tables(rank, &at);
        let mut filled = vec![0; places.input * size];
        reference.fill(rank, &mut filled, 0);
        image.write(input, &filled);
        image.write(private, &tables.private);
        grid.extend(tables.blocks);
        outputs.push((output, places.output * size));
        blocks += needs.blocks;
    }
    let output = image.run(kernel, &kernel_name(dtype), &grid, (blocks, threads, 2));
    let wrong = ranks.iter().zip(outputs).map(|(rank, (at, bytes))| reference.wrong(*rank, image.read(at, bytes), 0));
    (wrong.sum(), output)
}

/// An AllReduce on registered buffers: how many elements are wrong, and what the threads have said. In place a second call would
/// reduce results.
fn run_allreduce(kernel: &Path, call: PeerCall, threads: usize) -> (u64, Output) {
    let plan = PeerAllReduce::new(call).unwrap();
    let demand = demand(Collective::AllReduce, call.ranks, 1);
    let reference = Reference::new(&demand, Some(call.op), call.count as usize, call.dtype, 5);
    let (needs, bytes) = (plan.needs(), plan.buffer_bytes() as usize);
    let mut image = Image::default();
    let mut places = |bytes: usize| (0..call.ranks).map(|_| image.place(bytes)).collect::<Vec<u64>>();
    let (shared, output) = (places(needs.shared_bytes as usize), places(bytes));
    let input = if call.in_place { output.clone() } else { places(bytes) };
    let own = places(needs.private_bytes as usize);
    let abort = image.place(4);
    let mut grid = Vec::new();
    for (index, &private) in own.iter().enumerate() {
        let (input, output, shared) = (input.clone(), output.clone(), shared.clone());
        let mut filled = vec![0; bytes];
        reference.fill(Rank::from_index(index), &mut filled, 0);
        image.write(input[index], &filled);
        let at = PeerAddresses { input, output, shared, private, abort, poll_limit: u64::MAX };
        grid.extend(plan.tables(Rank::from_index(index), &at).blocks);
    }
    let name = allreduce_kernel_name(call.dtype);
    let said = image.run(kernel, &name, &grid, (needs.blocks * call.ranks, threads, if call.in_place { 1 } else { 2 }));
    let wrong = (0..call.ranks).map(|rank| reference.wrong(Rank::from_index(rank), image.read(output[rank], bytes), 0));
    (wrong.sum(), said)
}

#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
fn ready(source: &Source, change: (&str, &str)) -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let Some(kernel) = source.compiled(folder.path(), change) else {
        let reason = "the kernel in threads: there is no g++ with ThreadSanitizer";
        eprintln!("skipped: {reason}");
        // The list of `.ci/run`.
        if let Some(list) = std::env::var_os("ANTIPHON_SKIPPED") {
            let list = std::fs::File::options().append(true).create(true).open(list);
            writeln!(list.unwrap(), "{reason}").unwrap();
        }
        return None;
    };
    Some((folder, kernel))
}

#[test]
fn threads_run_the_kernel_without_a_race() {
    let Some((_folder, kernel)) = ready(&INTERPRETER, ("", "")) else { return };
    let mut random = Random(9);
    let right = |program: &VerifiedProgram, dtype: DType, terms: (u64, usize, usize)| {
        let (wrong, output) = run(&kernel, program, dtype, terms);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && wrong == 0,
            "{dtype:?} {terms:?}: {wrong} wrong, {:?} {said}",
            output.status
        );
    };
    for ranks in [2, 4] {
        for schedule in [ring_allgather(ranks, 1), ring_reducescatter(ranks, 1), ring_allreduce(ranks, 1)] {
            right(&checked(lowered(&schedule, false)), DType::F32, (9 * ranks as u64, 2, 1 << 20));
        }
    }
    right(&checked(lowered(&ring_allreduce(3, 1), false)), DType::I64, (70, 3, 64));
    right(&checked(lowered(&ring_allreduce(3, 1), false)), DType::Bf16, (33, 1, 16));
    for collective in STANDARD {
        let topology = random_topology(3, &mut random);
        let schedule = random_trees(&topology, &demand(collective, 3, 1), &mut random);
        right(&checked(lower(&schedule, &Default::default()).unwrap()), DType::U8, (31, 2, 1 << 20));
    }
}

const STRONG_LOAD: &str = "value = host_load<u64>(address, __ATOMIC_ACQUIRE);\n";
const STRONG_STORE: &str = "host_store<u64>(address, value, __ATOMIC_RELEASE);\n";
const WEAK_LOAD: &str = "value = host_load<u64>(address, __ATOMIC_RELAXED);\n";
const WEAK_STORE: &str = "host_store<u64>(address, value, __ATOMIC_RELAXED);\n";

/// Kernels with one mistake each are found: by a race, or by wrong results.
#[test]
fn threads_find_mistakes_in_the_kernel() {
    let changes = [
        (STRONG_LOAD, WEAK_LOAD),
        (STRONG_STORE, WEAK_STORE),
        ("            __syncthreads();\n            signal_all", "            signal_all"),
        (
            "goes_on = wait_for<true>(block, channel.arrived,",
            "if (false) goes_on = wait_for<true>(block, channel.arrived,",
        ),
    ];
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    for change in changes {
        let Some((_folder, kernel)) = ready(&INTERPRETER, change) else { return };
        let is_found = (0..10).any(|_| {
            let (wrong, output) = run(&kernel, &program, DType::F32, (60, 2, 64));
            wrong > 0 || output.status.code() == Some(66)
        });
        assert!(is_found, "{change:?}");
    }
}

const SHARED_SUM: PeerCall = PeerCall {
    algorithm: PeerAlgorithm::OneShot,
    ranks: 3,
    count: 61,
    dtype: DType::F32,
    op: ReduceOp::Sum,
    in_place: true,
    blocks: 2,
};

#[test]
fn threads_reduce_registered_buffers_without_a_race() {
    let Some((_folder, kernel)) = ready(&ALLREDUCE, ("", "")) else { return };
    for (at, dtype) in TYPES.into_iter().enumerate() {
        for (algorithm, in_place) in PeerAlgorithm::ALL.iter().flat_map(|&one| [(one, false), (one, true)]) {
            let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::Prod][at];
            let call = PeerCall { algorithm, ranks: 2 + at % 3, dtype, op, in_place, ..SHARED_SUM };
            let (wrong, output) = run_allreduce(&kernel, call, 1 + at);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && wrong == 0, "{call:?}: {wrong} wrong, {:?} {said}", output.status);
        }
    }
}

/// In one-shot calls in place, a rank's results take the place of what its peers have read. What one call leaves to the next one, only
/// the PTX machine looks at.
#[test]
fn threads_find_mistakes_with_registered_buffers() {
    let changes = [
        (STRONG_LOAD, WEAK_LOAD),
        (STRONG_STORE, WEAK_STORE),
        (
            "    __syncthreads();\n    if (!meet(block, stop, epoch, END)) return;",
            "    if (!meet(block, stop, epoch, END)) return;",
        ),
        ("if (peer != block.rank && !wait_for<true>", "if (peer != block.rank && meeting == BEGIN && !wait_for<true>"),
    ];
    for change in changes {
        let Some((_folder, kernel)) = ready(&ALLREDUCE, change) else { return };
        let is_found = (0..10).any(|_| {
            let (wrong, output) = run_allreduce(&kernel, SHARED_SUM, 2);
            wrong > 0 || output.status.code() == Some(66)
        });
        assert!(is_found, "{change:?}");
    }
}
