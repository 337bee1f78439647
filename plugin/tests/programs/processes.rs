//! Compiles programs in C, and runs them as several processes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// How long a program may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);

/// The folder where Cargo has put the shared library of this build.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    // Beside the tests, or one folder up where Cargo has copied it.
    let found = [folder, folder.parent().unwrap()].into_iter().find(|at| at.join("libantiphon.so").exists());
    found.unwrap_or_else(|| panic!("no libantiphon.so near {}", test.display())).to_owned()
}

/// Compiles a program in C with all warnings.
pub(crate) fn compiled(source: &str, folder: &TempDir) -> PathBuf {
    compiled_by(&["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-sign-compare", "-Werror"], source, folder)
}

pub(crate) fn compiled_by(compiler: &[&str], source: &str, folder: &TempDir) -> PathBuf {
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
        // Before LD_LIBRARY_PATH, in which Cargo names a folder where an older library may lie.
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// How the ranks of a program are started.
#[derive(Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) ranks: usize,
    /// Ranks share memory if they are equal modulo this.
    pub(crate) machines: usize,
    /// Seconds that a call may go without progress.
    pub(crate) timeout: u32,
}

pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) said: String,
}

/// An address that nobody else uses right now.
pub(crate) fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs a program as several processes, until those that `must_end` have ended; the others are killed. By rank.
pub(crate) fn run(program: &Path, args: &[&str], how: Ranks, must_end: impl Fn(usize) -> bool) -> Vec<Ended> {
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

pub(crate) fn succeeded(ended: &[Ended], context: &str) {
    for (rank, Ended { status, said }) in ended.iter().enumerate() {
        assert!(status.success(), "{context}, rank {rank}: {said}");
    }
}

/// Says why a test cannot run here, and adds it to the list of `.ci/run`.
#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(list) = std::env::var_os("ANTIPHON_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        writeln!(list.unwrap(), "{reason}").unwrap();
    }
}

pub(crate) fn is_long() -> bool {
    std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long")
}
