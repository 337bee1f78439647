//! The source of the interpreter kernel, translated by g++: threads of the system run it, and ThreadSanitizer looks for races.
//!
//! Its PTX runs on the PTX machine elsewhere. Here another compiler and another judge see the same source, with real threads.
#![allow(clippy::unwrap_used, missing_docs)]

use program::testing::schedules::{
    Random, demand, random_topology, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{VerifiedProgram, lower};
use runtime::{DType, KERNEL_SOURCE, KernelAddresses, KernelPlan, Reference, kernel_name};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use topology::Rank;

/// Where the memory of the ranks is mapped: a range that ThreadSanitizer leaves to programs.
const BASE: u64 = 0x2_0000_0000;

/// What g++ cannot translate, and what stands for it. Each is in the source exactly once.
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
    ("__shared__ Step window[WINDOW];", "Step(&window)[WINDOW] = host_shared<Step[WINDOW]>(0);"),
    ("__shared__ u64 epoch;", "u64 &epoch = host_shared<u64>(1 << 14);"),
    ("__shared__ u32 stop[DUTIES];", "u32(&stop)[DUTIES] = host_shared<u32[DUTIES]>((1 << 14) + 8);"),
    ("__shared__ Block block;", "Block &block = host_shared<Block>((1 << 14) + 24);"),
];

/// Translates the kernel, after another change of its text; none if g++ has no ThreadSanitizer.
fn compiled(folder: &Path, change: (&str, &str)) -> Option<PathBuf> {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threads");
    let mut source = KERNEL_SOURCE.to_owned();
    for (from, to) in REPLACED.iter().chain((!change.0.is_empty()).then_some(&change)) {
        assert_eq!(source.matches(from).count(), 1, "{from}");
        source = source.replace(from, to);
    }
    let part = |name: &str| std::fs::read_to_string(parts.join(name)).unwrap();
    let (file, program) = (folder.join("kernel.cc"), folder.join("kernel"));
    std::fs::write(&file, [part("host.h"), source, part("run.h")].concat()).unwrap();
    let mut compiler = Command::new("g++");
    // The kernel reads structures as words.
    compiler.args(["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-fno-strict-aliasing", "-Wno-unknown-pragmas"]);
    let output = compiler.arg("-o").arg(&program).arg(&file).arg("-lpthread").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("libtsan") || said.contains("cannot find -ltsan") {
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(program)
}

/// Two calls of a program on threads: how many elements are wrong, and what the program has said.
fn run(
    kernel: &Path,
    program: &VerifiedProgram,
    dtype: DType,
    (count, threads, tile_bytes): (u64, usize, usize),
) -> (u64, Output) {
    let plan = KernelPlan::new(program, count, dtype, tile_bytes).unwrap();
    let program = program.program();
    let reference = Reference::new(&program.demand, program.op, count as usize, dtype, 5);
    let mut image: Vec<u8> = Vec::new();
    let mut place = |bytes: usize| {
        let at = image.len().next_multiple_of(128);
        image.resize(at + bytes.max(16), 0);
        BASE + at as u64
    };
    let ranks: Vec<Rank> = (0..plan.ranks()).map(Rank::from_index).collect();
    let shared: Vec<u64> = ranks.iter().map(|rank| place(plan.needs(*rank).shared_bytes as usize)).collect();
    let abort = place(4);
    let size = dtype.size();
    let (mut written, mut grid, mut outputs, mut blocks) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for &rank in &ranks {
        let (needs, places) = (plan.needs(rank), reference.places(rank));
        let (input, output) = (place(places.input * size), place(places.output * size));
        let private = place(needs.private_bytes as usize);
        let at = KernelAddresses { input, output, private, shared: shared.clone(), abort, poll_limit: u64::MAX };
        let tables = plan.tables(rank, &at);
        let mut filled = vec![0; places.input * size];
        reference.fill(rank, &mut filled, 0);
        written.extend([(input, filled), (private, tables.private)]);
        grid.extend(tables.blocks);
        outputs.push((output, places.output * size));
        blocks += needs.blocks;
    }
    let grid_at = place(grid.len());
    written.push((grid_at, grid));
    for (at, bytes) in written {
        let at = (at - BASE) as usize;
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let file = kernel.with_file_name("image");
    std::fs::write(&file, &image).unwrap();
    let numbers = [BASE, grid_at, blocks as u64, threads as u64, 2].map(|number| number.to_string());
    // ThreadSanitizer needs addresses that do not change; where that may not be asked for, they may suit it anyway.
    let is_fixed = Command::new("setarch").args(["-R", "true"]).output().is_ok_and(|output| output.status.success());
    let mut command = Command::new(if is_fixed { "setarch".as_ref() } else { kernel.as_os_str() });
    if is_fixed {
        command.arg("-R").arg(kernel);
    }
    command.arg(&file).args(numbers).arg(kernel_name(dtype));
    let output = command.env("TSAN_OPTIONS", "exitcode=66 halt_on_error=1").output().unwrap();
    let image = std::fs::read(&file).unwrap();
    let wrong = ranks.iter().zip(outputs).map(|(rank, (at, bytes))| {
        let at = (at - BASE) as usize;
        reference.wrong(*rank, &image[at..at + bytes], 0)
    });
    (wrong.sum(), output)
}

#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
fn ready(change: (&str, &str)) -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let Some(kernel) = compiled(folder.path(), change) else {
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
    let Some((_folder, kernel)) = ready(("", "")) else { return };
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

/// Kernels with one mistake each are found: by a race, or by wrong results.
#[test]
fn threads_find_mistakes_in_the_kernel() {
    let acquire = "value = host_load<u64>(address, __ATOMIC_ACQUIRE);\n";
    let release = "host_store<u64>(address, value, __ATOMIC_RELEASE);\n";
    let changes = [
        (acquire, "value = host_load<u64>(address, __ATOMIC_RELAXED);\n"),
        (release, "host_store<u64>(address, value, __ATOMIC_RELAXED);\n"),
        ("            __syncthreads();\n            signal_all", "            signal_all"),
        (
            "goes_on = wait_for<true>(block, channel.arrived,",
            "if (false) goes_on = wait_for<true>(block, channel.arrived,",
        ),
    ];
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    for change in changes {
        let Some((_folder, kernel)) = ready(change) else { return };
        let is_found = (0..10).any(|_| {
            let (wrong, output) = run(&kernel, &program, DType::F32, (60, 2, 64));
            wrong > 0 || output.status.code() == Some(66)
        });
        assert!(is_found, "{change:?}");
    }
}
