//! Programs in C that use the library as any program would: `tests/c`, as several processes.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(100);

/// The folder where Cargo has put the shared library of this build.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    // Beside the tests, or one folder up where Cargo has copied it.
    let found = [folder, folder.parent().unwrap()].into_iter().find(|at| at.join("libantiphon.so").exists());
    found.unwrap_or_else(|| panic!("no libantiphon.so near {}", test.display())).to_owned()
}

/// Compiles a program in C with all warnings.
fn compiled(source: &str, folder: &TempDir) -> PathBuf {
    compiled_by(&["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-sign-compare", "-Werror"], source, folder)
}

fn compiled_by(compiler: &[&str], source: &str, folder: &TempDir) -> PathBuf {
    let program = folder.path().join(Path::new(source).file_stem().unwrap());
    let library = library();
    let output = Command::new(compiler[0])
        .current_dir(folder.path())
        .args(&compiler[1..])
        .arg("-I")
        .arg(Path::new(CRATE).join("../include"))
        .arg(Path::new(CRATE).join(source))
        .arg("-L")
        .arg(&library)
        .args(["-lantiphon", "-o"])
        .arg(&program)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// How the ranks of a program are started.
#[derive(Clone, Copy)]
struct Ranks {
    ranks: usize,
    /// Ranks share memory if they are equal modulo this.
    machines: usize,
    /// Seconds that a call may go without progress.
    timeout: u32,
}

struct Ended {
    status: ExitStatus,
    said: String,
}

/// An address that nobody else uses right now.
fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs a program as several processes, until those that `must_end` have ended; the others are killed. By rank.
fn run(program: &Path, args: &[&str], how: Ranks, must_end: impl Fn(usize) -> bool) -> Vec<Ended> {
    let master = address();
    let start = |rank: usize| -> Child {
        Command::new(program)
            .args(args)
            .env("ANTIPHON_RANK", rank.to_string())
            .env("ANTIPHON_SIZE", how.ranks.to_string())
            .env("ANTIPHON_MASTER", &master)
            .env("ANTIPHON_SECRET", "a secret for tests only")
            .env("ANTIPHON_HOST", format!("machine {}", rank % how.machines))
            .env("ANTIPHON_TIMEOUT", how.timeout.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..how.ranks).map(start).collect();
    let begin = Instant::now();
    while (0..how.ranks).any(|rank| must_end(rank) && children[rank].try_wait().unwrap().is_none()) {
        if begin.elapsed() > LIMIT {
            children.iter_mut().for_each(|child| drop(child.kill()));
            panic!("{} {args:?} did not end within {LIMIT:?}", program.display());
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let end = |mut child: Child| {
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        Ended { status: child.wait().unwrap(), said }
    };
    children.into_iter().map(end).collect()
}

fn succeeded(ended: &[Ended], context: &str) {
    for (rank, Ended { status, said }) in ended.iter().enumerate() {
        assert!(status.success(), "{context}, rank {rank}: {said}");
    }
}

/// Says why a test cannot run here, and adds it to the list of `.ci/run`.
#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(list) = std::env::var_os("ANTIPHON_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        writeln!(list.unwrap(), "{reason}").unwrap();
    }
}

fn is_long() -> bool {
    std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long")
}

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

/// What each fault looks like to the other ranks, and whether the rank lives on.
const FAULTS: [(&str, &[u32], bool); 7] = [
    ("kill", &[4], false),
    ("cut", &[4], false),
    ("exit", &[4], false),
    ("stop", &[4], false),
    ("abort", &[7], true),
    ("other", &[6], true),
    ("free", &[4], false),
];

/// All other ranks get an error of the right kind that names the rank, long before the time limit unless the rank is
/// stopped. Then they go on without it. Of two groups, the one without the rank hears of it only if the rank is lost.
fn fails(
    program: &Path,
    (fault, results, lives): (&str, &[u32], bool),
    place: &str,
    victim: usize,
    among: (usize, &str),
) {
    let (machines, count) = among;
    let timeout = if fault == "stop" { 4 } else { 60 };
    let how = Ranks { ranks: 4, machines, timeout };
    let begin = Instant::now();
    let ended = run(program, &[fault, &victim.to_string(), count, place], how, |rank| lives || rank != victim);
    let context = format!("{fault} of rank {victim} in {place}, {count} elements, {machines} machines");
    assert!(begin.elapsed() < Duration::from_secs(20), "{context}: {:?}", begin.elapsed());
    for (rank, Ended { status, said }) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        assert!(status.success(), "{context}, rank {rank}: {said}");
        let result = said.split("result ").nth(1).and_then(|rest| rest.split(':').next());
        let result: Option<u32> = result.and_then(|text| text.parse().ok());
        let is_spared = place == "groups" && rank % 2 != victim % 2 && (lives || fault == "free");
        let expected = if is_spared { &[0] } else { results };
        assert!(result.is_some_and(|result| expected.contains(&result)), "{context}, rank {rank}: {said}");
        let is_named = said.contains(&format!("rank {victim}"));
        assert!(is_named || is_spared && lives, "{context}, rank {rank}: {said}");
        if !is_spared {
            let machine = format!("rank {victim} is on machine {}", victim % machines);
            assert_eq!(said.contains(&machine), machines > 1, "{context}, rank {rank}: {said}");
            let is_over = ["4", "6"].iter().any(|result| said.contains(&format!("result {result}")));
            assert_eq!(said.contains("; hint: "), is_over, "{context}, rank {rank}: {said}");
        }
    }
}

/// How ranks share machines, and how many elements calls have.
const AMONG: [(usize, &str); 4] = [(1, "10"), (2, "300000"), (1, "300000"), (2, "10")];

#[test]
fn a_rank_that_fails_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for ((index, fault), victim) in FAULTS.into_iter().enumerate().flat_map(|it| [(it, 0), (it, 2)]) {
        for among in AMONG.into_iter().skip(2 * (index % 2)).take(2) {
            fails(&program, fault, "calls", victim, among);
        }
    }
}

/// Where else a rank may fail, and with which fault. A communicator cannot be freed while its calls are under way.
fn faults_elsewhere() -> impl Iterator<Item = (usize, &'static str, (&'static str, &'static [u32], bool))> {
    let places = ["requests", "groups", "messages"];
    let all = places.into_iter().flat_map(|place| FAULTS.map(|fault| (place, fault)));
    let possible = all.filter(|(place, (fault, ..))| *place == "groups" || *fault != "free");
    possible.enumerate().map(|(index, (place, fault))| (index, place, fault))
}

/// With more effort, in all the ways in which ranks share machines.
#[test]
fn long_a_rank_that_fails_among_requests_groups_and_messages_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for (index, place, fault) in faults_elsewhere() {
        let ways = AMONG.into_iter().zip([0, 1, 2, 3]).cycle().skip(index % 4);
        for (among, victim) in ways.take(if is_long() { 4 } else { 1 }) {
            fails(&program, fault, place, victim, among);
        }
    }
}

/// Who leads the others to a new communicator may die as well.
#[test]
fn the_leader_of_a_meeting_may_die() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for machines in [1, 2] {
        let ended =
            run(&program, &["twice", "2", "10"], Ranks { ranks: 4, machines, timeout: 20 }, |rank| rank % 2 == 1);
        for rank in [1, 3] {
            assert!(ended[rank].status.success(), "{machines} machines, rank {rank}: {}", ended[rank].said);
        }
    }
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
