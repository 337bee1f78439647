//! Many sizes and many problems: windows, workers that die, sweeps that are killed and continued.

use crate::binary::{Ran, antiphon, read, topology};
use crate::checker::{Wish, judge};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[test]
fn every_size_has_one_plan_and_every_plan_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plans");
    let asked = "--topology ndv2x1 --collective allgather --strategy classic --sizes 1KB..1GB:4";
    let report = antiphon(&format!("synth {asked} -o {} --json", out.display())).ok().json();
    let index = read(&out.join("index.json"));
    assert_eq!(index["format"], "antiphon-sweep/1");
    assert_eq!((&report["windows"], &report["sizes"]), (&index["windows"], &index["sizes"]));
    let windows = index["windows"].as_array().unwrap();
    let sizes = index["sizes"].as_array().unwrap();
    assert!(windows.len() > 1 && windows.len() < sizes.len(), "{index}");
    assert_eq!(
        (&windows[0]["from_bytes"], &windows[windows.len() - 1]["to_bytes"]),
        (&1000.into(), &1_000_000_001.into())
    );
    assert!(windows.windows(2).all(|pair| pair[0]["to_bytes"] == pair[1]["from_bytes"]));
    let machine = topology("ndv2x1");
    for window in windows {
        let size = window["size_bytes"].as_u64().unwrap();
        let path = out.join(window["file"].as_str().unwrap());
        let makespan = judge(&read(&path), &machine, &Wish::all("allgather", 8, size)).unwrap();
        let stated = sizes.iter().find(|at| at["size_bytes"] == size).unwrap()["makespan_us"].as_f64().unwrap();
        assert!((makespan / stated - 1.0).abs() < 1e-6, "{makespan} is not {stated}");
        // The exported file serves the same sizes.
        let xml = antiphon(&format!("export {} --format msccl-xml-executor", path.display())).ok().stdout;
        let last = window["to_bytes"].as_u64().unwrap() - 1;
        for range in [format!("minBytes=\"{}\"", window["from_bytes"]), format!("maxBytes=\"{last}\"")] {
            assert!(xml.contains(&range), "{range} is not in {}", xml.lines().next().unwrap_or_default());
        }
    }
    for at in sizes {
        let gap = at["makespan_us"].as_f64().unwrap() / at["best_us"].as_f64().unwrap() - 1.0;
        assert!(gap <= index["tolerance"].as_f64().unwrap(), "{at}");
    }
    let wrong = antiphon("synth --topology dgx1 --collective custom --demand none.yaml --sizes 1KB,1MB");
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
}

/// Cells of a small sweep: 2 topologies × 2 collectives × 3 sizes.
const SMALL: &str = "sweep --topology ring:4,direction=both,dgx1 --collective allgather,allreduce --sizes 1KB,1MB,64MB \
                     --strategy classic";
/// Cells that take a while.
const SLOW: &str = "sweep --topology ndv2x2 --collective allgather --sizes 1MB,1GB --strategy matching";

#[test]
fn the_number_of_workers_says_nothing_and_nothing_is_done_twice() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = |name: &str, more: &str| antiphon(&format!("{SMALL} -o {}/{name} -v {more}", folder.path().display()));
    sweep("one", "--jobs 1").ok();
    sweep("three", "--jobs 3").ok();
    let (one, three) = (folder.path().join("one"), folder.path().join("three"));
    assert_eq!(files(&one), files(&three));
    let again = sweep("one", "--jobs 2").ok();
    assert!(!again.stderr.contains("begins"), "{}", again.stderr);
    assert_eq!(files(&one), files(&three));
    let results = read(&one.join("results.json"));
    assert_eq!(results["cells"].as_array().unwrap().len(), 12);
    for cell in results["cells"].as_array().unwrap() {
        let (spec, collective) = (cell["topology"].as_str().unwrap(), cell["collective"].as_str().unwrap());
        let machine = topology(spec);
        let size = cell["size_bytes"].as_u64().unwrap();
        let wish = Wish::all(collective, machine["ranks"].as_u64().unwrap(), size);
        let makespan = judge(&read(&one.join(cell["plan"].as_str().unwrap())), &machine, &wish).unwrap();
        assert!((makespan / cell["makespan_us"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    for series in results["series"].as_array().unwrap() {
        let index = read(&one.join(series["index"].as_str().unwrap()));
        assert_eq!(index["windows"].as_array().unwrap().len() as u64, series["windows"].as_u64().unwrap());
    }
    let other = sweep("one", "--seed 1");
    assert_eq!(other.code, 2, "{}", other.stderr);
    assert!(other.stderr.contains("asks for something else") && other.stderr.contains("hint"), "{}", other.stderr);
}

/// The results of a sweep, by file, without the time of the search.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = vec![("results.json".to_owned(), std::fs::read_to_string(folder.join("results.json")).unwrap())];
    for entry in std::fs::read_dir(folder.join("plans")).unwrap() {
        let path = entry.unwrap().path();
        found.push((path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(&path).unwrap()));
    }
    found.sort();
    found
}

/// A running sweep; its remarks are read line by line.
struct Sweeping {
    child: Child,
    remarks: BufReader<std::process::ChildStderr>,
}

impl Sweeping {
    fn start(line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_antiphon"))
            .args(line.split_whitespace())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let remarks = BufReader::new(child.stderr.take().unwrap());
        Self { child, remarks }
    }

    /// The next remark with `word`; `None` at the end.
    fn next(&mut self, word: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.remarks.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if line.contains(word) {
                return Some(line);
            }
        }
    }

    fn end(mut self) -> i32 {
        while self.next("\n").is_some() {}
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

fn kill_worker_of(line: &str) {
    let pid = line.split("pid ").nth(1).unwrap().split(')').next().unwrap();
    assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
}

#[test]
fn a_cell_whose_worker_is_killed_is_redone() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{SLOW} --jobs 1 -v -o {}/killed", folder.path().display());
    let mut sweeping = Sweeping::start(&line);
    kill_worker_of(&sweeping.next("cell 0: worker 0 (pid").unwrap());
    assert!(sweeping.next("cell 0: worker 0 is lost").unwrap().contains("it is redone"));
    assert_eq!(sweeping.end(), 0);
    antiphon(&format!("{SLOW} --jobs 2 -o {}/whole", folder.path().display())).ok();
    assert_eq!(files(&folder.path().join("killed")), files(&folder.path().join("whole")));
}

#[test]
fn a_cell_that_kills_its_workers_is_given_up_and_tried_again_later() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{SLOW} --jobs 1 -v -o {}/out", folder.path().display());
    let mut sweeping = Sweeping::start(&line);
    for _ in 0..3 {
        kill_worker_of(&sweeping.next("cell 0: worker 0 (pid").unwrap());
    }
    assert!(sweeping.next("it is given up").is_some());
    assert_eq!(sweeping.end(), 1);
    let cells = |path: &Path| read(&path.join("results.json"))["cells"].as_array().unwrap().clone();
    let status = |cell: &Value| cell["status"].as_str().unwrap().to_owned();
    let out = folder.path().join("out");
    assert_eq!(cells(&out).iter().map(status).collect::<Vec<_>>(), ["failed", "found"]);
    assert!(cells(&out)[0]["reason"].as_str().unwrap().contains("signal: 9"), "{}", cells(&out)[0]);
    let again: Ran = antiphon(&line).ok();
    assert!(again.stderr.contains("cell 0: worker") && !again.stderr.contains("cell 1: worker"), "{}", again.stderr);
    assert_eq!(cells(&out).iter().map(status).collect::<Vec<_>>(), ["found", "found"]);
}

#[test]
fn a_sweep_that_is_killed_continues_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{SLOW} --jobs 1 -v -o {}/killed", folder.path().display());
    let mut sweeping = Sweeping::start(&line);
    sweeping.next("cell 0: finished").unwrap();
    sweeping.child.kill().unwrap();
    sweeping.child.wait().unwrap();
    let again = antiphon(&line).ok();
    assert!(!again.stderr.contains("cell 0: worker") && again.stderr.contains("cell 1: worker"), "{}", again.stderr);
    antiphon(&format!("{SLOW} -o {}/whole", folder.path().display())).ok();
    assert_eq!(files(&folder.path().join("killed")), files(&folder.path().join("whole")));
}

/// The same under `mpirun`, with as many processes as hosts would give.
#[cfg(feature = "mpi")]
#[test]
fn long_mpi_finds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let launch = "--allow-run-as-root --oversubscribe -n 3".split_whitespace();
    let sweep = format!("{SMALL} -o {}/many", folder.path().display());
    let mut mpirun = Command::new("mpirun");
    mpirun.args(launch).arg(env!("CARGO_BIN_EXE_antiphon")).args(sweep.split_whitespace());
    let ran = mpirun.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    antiphon(&format!("{SMALL} -o {}/one --jobs 1", folder.path().display())).ok();
    assert_eq!(files(&folder.path().join("many")), files(&folder.path().join("one")));
}
