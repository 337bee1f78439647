//! Programs in C that use the library as any program would: `tests/c`, as several processes.
#![allow(clippy::unwrap_used, missing_docs)]

mod faults;
mod processes;
mod tables;

use processes::{Ended, Ranks, address, compiled, compiled_by, is_long, run, skip, succeeded};
use std::path::Path;
use std::process::Command;

/// Runs a program that must succeed on all ranks, in memory, over sockets, and with both. It gets an empty folder.
fn succeeds(source: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(source, &folder);
    for ranks in [1, 2, 3, 5] {
        for machines in [1, 2, ranks].into_iter().take(if ranks == 1 { 1 } else { 3 }) {
            let notes = tempfile::tempdir().unwrap();
            let args = [notes.path().to_str().unwrap()];
            let how = Ranks { ranks, machines, timeout: 60 };
            let context = format!("{source}, {ranks} ranks, {machines} machines");
            succeeded(&run(&program, &args, how, |_| true), &context);
        }
    }
}

#[test]
fn every_collective_of_processes() {
    succeeds("tests/c/collectives.c");
}

#[test]
fn shared_memory_and_calls_that_go_on_by_themselves() {
    succeeds("tests/c/memory.c");
}

#[test]
fn forks_do_not_touch_the_calls_of_their_parents() {
    succeeds("tests/c/forks.c");
}

#[test]
fn some_ranks_begin_a_call_and_others_make_it() {
    succeeds("tests/c/mixed.c");
}

#[test]
fn candidates_of_a_program_compete() {
    succeeds("tests/c/tuning.c");
}

#[test]
fn examples_in_c() {
    succeeds("examples/all_reduce.c");
    succeeds("examples/overlap.c");
}

#[test]
fn long_example_in_fortran() {
    if Command::new("gfortran").arg("--version").output().is_err() {
        // `.ci/setup fortran` has told why.
        return eprintln!("skipped: there is no gfortran");
    }
    let folder = tempfile::tempdir().unwrap();
    let compiler = ["gfortran", "-std=f2008", "-O1", "-Wall", "-Wextra", "-Werror"];
    let program = compiled_by(&compiler, "examples/all_reduce.f90", &folder);
    for ended in run(&program, &[], Ranks { ranks: 3, machines: 2, timeout: 60 }, |_| true) {
        assert!(ended.status.success() && ended.said.contains("sum 6.0"), "{}", ended.said);
    }
}

#[test]
fn calls_under_way_messages_and_groups() {
    succeeds("tests/c/calls.c");
}

/// Random calls of several seeds: a quarter of them in several threads. With more effort, more of them with longer vectors.
fn random_calls(seeds: std::ops::Range<u32>, calls: u32, most: u32) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/random.c", &folder);
    let places = [(2, 1), (3, 2), (7, 3), (4, 4), (5, 1), (8, 2), (1, 1)];
    for (seed, (ranks, machines)) in seeds.zip(places.into_iter().cycle()) {
        let threads = if seed % 4 == 3 { 3 } else { 1 };
        let args = [seed, calls / threads, most, threads].map(|number| number.to_string());
        let args: Vec<&str> = std::iter::once(".").chain(args.iter().map(String::as_str)).collect();
        let how = Ranks { ranks, machines, timeout: 60 };
        succeeded(&run(&program, &args, how, |_| true), &format!("{args:?}, {ranks} ranks, {machines} machines"));
    }
}

#[test]
fn random_calls_give_what_they_must() {
    random_calls(0..7, 150, 30_000);
}

#[test]
fn long_random_calls_give_what_they_must() {
    let (last, calls, most) = if is_long() { (108, 600, 2_000_000) } else { (107, 300, 70_000) };
    random_calls(100..last, calls, most);
}

/// Memory that programs can have now, in bytes.
fn available() -> Option<u64> {
    let report = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = report.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// All ranks together use 3 GB at most. Where there is more memory, vectors that 32 bits cannot count come after that.
#[test]
fn long_vectors_of_two_hundred_megabytes_and_of_four_gigabytes() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/large.c", &folder);
    let most = if is_long() { 200_000_000 } else { 3_000_000 };
    for (ranks, machines, bytes) in [(2, 1, most), (3, 3, most / 2), (4, 1, most), (4, 2, most / 5), (2, 2, most)] {
        let how = Ranks { ranks, machines, timeout: 60 };
        let context = format!("{bytes} bytes, {ranks} ranks, {machines} machines");
        succeeded(&run(&program, &[&bytes.to_string()], how, |_| true), &context);
    }
    let bytes: u64 = if is_long() { (1 << 32) + 10_000_000 } else { 20_000_001 };
    if available().is_none_or(|memory| memory < 3 * bytes) {
        return skip("vectors of more than 4 GiB: less than 13 GB of memory are free");
    }
    let how = Ranks { ranks: 2, machines: 1, timeout: 60 };
    succeeded(&run(&program, &[&bytes.to_string(), "huge"], how, |_| true), "more than 4 GiB");
}

/// Nothing depends on memory that nobody has written or that is not the rank's own, and no memory is lost.
#[test]
fn long_memory_is_clean_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        // `.ci/setup valgrind` has told why.
        return eprintln!("skipped: there is no valgrind");
    }
    let folder = tempfile::tempdir().unwrap();
    let checks = ["--quiet", "--error-exitcode=99", "--leak-check=full"];
    let leaks = ["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    // Of random calls: seed, calls, most bytes, threads.
    let programs = [("random", &["3", "60", "3000", "2"][..]), ("mixed", &[]), ("calls", &[]), ("memory", &[])];
    for (source, more) in programs.into_iter().take(if is_long() { 4 } else { 1 }) {
        let program = compiled(&format!("tests/c/{source}.c"), &folder);
        for (ranks, machines) in [(2, 1), (3, 2)] {
            let notes = tempfile::tempdir().unwrap();
            let own = [program.to_str().unwrap(), notes.path().to_str().unwrap()];
            let args = [&checks[..], &leaks, &own, more].concat();
            let ended = run(Path::new("valgrind"), &args, Ranks { ranks, machines, timeout: 60 }, |_| true);
            succeeded(&ended, &format!("{source}, {ranks} ranks, {machines} machines"));
        }
    }
}

/// Ranks find each other as processes do, though all are threads of one.
#[test]
fn ranks_may_be_threads_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/random.c", &folder);
    let output = Command::new(&program)
        .args([".", "5", "150", "30000", "1", "rank-threads"])
        .env("ANTIPHON_SIZE", "4")
        .env("ANTIPHON_MASTER", address())
        .env("ANTIPHON_SECRET", "a secret for tests only")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Long messages are right whatever the system allows and the user asks for, and the statistics say how they have come.
#[test]
fn long_messages_take_the_way_that_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/ways.c", &folder);
    for (way, expected) in [("denied", Some("in_fragments")), ("tcp", Some("by_socket")), ("plain", None)] {
        let notes = tempfile::tempdir().unwrap();
        let args = [notes.path().to_str().unwrap(), way];
        let all = run(&program, &args, Ranks { ranks: 3, machines: 1, timeout: 60 }, |_| true);
        for (rank, Ended { status, said }) in all.iter().enumerate() {
            assert!(status.success(), "{way}, rank {rank}: {said}");
            let complaint = format!("rank {rank} cannot read the memory of other processes");
            let times = said.matches(&complaint).count();
            assert!(times == usize::from(way == "denied") || way == "plain", "{way}, rank {rank}: {said}");
        }
        let text = std::fs::read_to_string(notes.path().join("statistics.json")).unwrap();
        let count = |name: &str| -> u64 {
            let rest = text.split(&format!("\"{name}\": ")).nth(1).unwrap();
            rest.split([',', '\n']).next().unwrap().parse().unwrap()
        };
        for name in ["in_place", "by_kernel", "in_fragments", "by_socket"] {
            assert!(expected.is_none_or(|expected| (count(name) > 0) == (name == expected)), "{way}: {text}");
        }
        // Whether one process may read another is the system's choice.
        assert!(count("by_kernel") + count("in_fragments") > 0 || way == "tcp", "{way}: {text}");
    }
    for way in ["nowhere", "rdma"] {
        for ended in run(&program, &[".", way], Ranks { ranks: 2, machines: 1, timeout: 60 }, |_| true) {
            assert!(ended.status.success(), "{way}: {}", ended.said);
        }
    }
}
