//! Ranks that are processes of this test: how they are started, and how they tell each other things.

use runtime::PeerGather;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use topology::Rank;

/// Bytes of all ranks, through files, with a deadline.
pub(crate) struct FileGather {
    pub(crate) folder: PathBuf,
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    pub(crate) limit: Duration,
    pub(crate) round: usize,
    /// At which of them this rank leaves without a word.
    pub(crate) leaves_at: Option<usize>,
    /// At which of them this rank gives its bytes, and does not get those of others.
    pub(crate) fails_at: Option<usize>,
}

impl FileGather {
    fn file(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("{}-{rank}", self.round))
    }
}

impl PeerGather for FileGather {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        if self.leaves_at == Some(self.round) {
            std::process::exit(86);
        }
        let (own, begin) = (self.file(self.rank.index()), Instant::now());
        let part = own.with_extension("part");
        std::fs::write(&part, bytes).unwrap();
        std::fs::rename(part, own).unwrap();
        if self.fails_at == Some(self.round) {
            return Err("this rank hears nothing".to_owned());
        }
        let mut all = Vec::new();
        while all.len() < self.ranks {
            match std::fs::read(self.file(all.len())) {
                Ok(bytes) => all.push(bytes),
                Err(_) if begin.elapsed() > self.limit => return Err(format!("rank {} did not come", all.len())),
                // Other ranks need the core.
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        self.round += 1;
        Ok(all)
    }
}

/// Ranks that are started together.
pub(crate) struct Job<'a> {
    pub(crate) ranks: usize,
    pub(crate) mode: &'a str,
    /// The environment of a rank.
    pub(crate) of_rank: &'a dyn Fn(usize) -> Vec<(&'static str, String)>,
}

/// Set for processes that are ranks: rank, ranks, a folder for all, and what to do.
pub(crate) const PROCESS: &str = "PEER_TEST_RANK";

impl Job<'_> {
    /// What each process says, or its exit status.
    pub(crate) fn run(&self) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let children: Vec<_> = (0..self.ranks).map(|rank| self.command(rank, folder.path()).spawn().unwrap()).collect();
        children.into_iter().map(|child| said(child.wait_with_output().unwrap())).collect()
    }

    fn command(&self, rank: usize, folder: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "rank_process", "--nocapture"]);
        command.env(PROCESS, format!("{rank} {} {} {}", self.ranks, folder.display(), self.mode));
        command.env("FAKE_CUDA_SEED", (rank + 1).to_string()).env("FAKE_CUDA_GPU", (100 + rank).to_string());
        command.envs((self.of_rank)(rank)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn said(Output { status, stdout, stderr }: Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    let line = out.lines().find_map(|line| line.strip_prefix("said "));
    line.map_or_else(|| format!("{status} {out} {error}"), str::to_owned)
}
