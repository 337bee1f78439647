//! `antiphon` in every host of a cluster: plans made for its true topology, launched rank by rank as a user would,
//! and the rows that rank 0 prints.

use crate::fabric::{Ended, Guest, Place};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a job may take in all.
const PATIENCE: Duration = Duration::from_secs(120);

/// The port of rank 0; the jobs of a cluster use it one after the other.
const PORT: u16 = 29_533;

/// The command line tool.
pub(crate) fn antiphon(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.args(line.split_whitespace());
    command
}

/// Starts the same command line as every rank.
pub(crate) fn start(place: Place<'_>, line: &str) -> Vec<Guest> {
    let ranks = place.ranks();
    let transport = match place {
        Place::Here(_) => "shm",
        Place::Loopback(_) => "tcp",
        Place::Hosts(..) => return start_at(place, &place.master(), line),
    };
    vec![Guest::here(antiphon(&format!("{line} --ranks {ranks} --transport {transport}")))]
}

/// The same for ranks that meet at an address of rank 0.
pub(crate) fn start_at(place: Place<'_>, address: &str, line: &str) -> Vec<Guest> {
    start_where(place, |_| address, line)
}

/// The same for ranks each of which knows an address of rank 0.
pub(crate) fn start_where<'a>(place: Place<'_>, address: impl Fn(usize) -> &'a str, line: &str) -> Vec<Guest> {
    let ranks = place.ranks();
    let rank = |rank: usize| {
        let host = address(rank);
        let master = if host.contains(':') { format!("[{host}]:{PORT}") } else { format!("{host}:{PORT}") };
        antiphon(&format!("{line} --rank {rank} --world-size {ranks} --master {master}"))
    };
    (0..ranks).map(|number| place.spawn(number, rank(number))).collect()
}

/// Waits for the end of a job; returns the output of each process.
pub(crate) fn finish(guests: Vec<Guest>) -> Vec<Ended> {
    guests.into_iter().map(|guest| guest.wait(PATIENCE)).collect()
}

/// Runs a command line that must succeed everywhere; the rows of rank 0, all of which must be right.
pub(crate) fn rows(place: Place<'_>, line: &str) -> Vec<Value> {
    right(start(place, &format!("{line} --json")))
}

/// The rows of a job that must succeed everywhere.
pub(crate) fn right(guests: Vec<Guest>) -> Vec<Value> {
    let ended = finish(guests);
    let stdout: Vec<String> = ended.into_iter().map(|end| end.ok().stdout).collect();
    let rows: Vec<Value> = stdout[0].lines().map(|row| serde_json::from_str(row).expect("rows are JSON")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["wrong"] == 0), "{}", stdout[0]);
    rows
}

/// The median time of a collective in µs, in the form that other libraries have: a broadcast in place, all others out
/// of place.
fn comparable(rows: &[Value], collective: &str) -> f64 {
    let row = rows.iter().find(|row| row["in_place"] == (collective == "broadcast"));
    time(row.expect("both kinds of calls are measured"))
}

/// A measured time of a row, in µs.
pub(crate) fn time(row: &Value) -> f64 {
    row["time_us"].as_f64().expect("a row has a time")
}

/// A plan in a file.
pub(crate) struct Plan {
    collective: String,
    file: PathBuf,
    topology: PathBuf,
    /// The predicted time, and the lower bound, in µs.
    pub makespan: f64,
    pub bound: f64,
}

impl Plan {
    /// Plans a collective of a size in bytes for a topology, given as the text of its file.
    pub(crate) fn make(topology: &str, (collective, size): (&str, u64), folder: &Path) -> Self {
        let (path, file) = (folder.join("shaped.yaml"), folder.join(format!("{collective}-{size}.json")));
        std::fs::write(&path, topology).expect("the folder is ours");
        let mut synth = antiphon(&format!("synth --collective {collective} --size {size} --json --topology"));
        let output = synth.arg(&path).arg("-o").arg(&file).output().expect("the binary was built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report is JSON");
        let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"));
        let (makespan, bound) = (number("makespan_us"), number("lower_bound_us"));
        Self { makespan, bound, collective: collective.to_owned(), file, topology: path }
    }

    /// The median time in µs (see [`comparable`]).
    pub(crate) fn run(&self, place: Place<'_>, size: u64, iterations: u32) -> f64 {
        let (file, topology) = (self.file.display(), self.topology.display());
        let line = format!("run {file} --topology {topology} --size {size} --iterations {iterations} --warmups 1");
        comparable(&rows(place, &line), &self.collective)
    }
}

/// The median time of the algorithm that runs without a plan, in µs (see [`comparable`]).
pub(crate) fn classic(place: Place<'_>, (collective, size): (&str, u64), iterations: u32) -> f64 {
    let line = format!("run --collective {collective} --size {size} --iterations {iterations} --warmups 1");
    comparable(&rows(place, &line), collective)
}
