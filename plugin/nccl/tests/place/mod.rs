//! Programs over the fakes: where they lie, how they run, tables with plans, and what was counted.

use crate::built::{CRATE, compile, library, real_nccl};
use program::testing::schedules::{
    Random, clique, demand, direct, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use schedule::{Collective, VerifiedSchedule, file};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Long enough for what happens on a busy computer.
pub(crate) const PATIENT: (&str, &str) = ("FAKE_NCCL_LIMIT_MS", "60000");
/// For ranks that wait for what never comes: all ranks have to start within this time.
pub(crate) const SHORT: (&str, &str) = ("FAKE_NCCL_LIMIT_MS", "5000");

/// The two fakes under the names of what they stand for, and the program.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Alone,
    Preloaded,
    Instead,
}

impl Place {
    pub(crate) fn new(extra: &[&str]) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let built = std::env::current_exe().unwrap();
        for (name, fake) in [("libcuda.so", "libfake_cuda.so"), ("libnccl.so.2", "libfake_nccl.so")] {
            std::os::unix::fs::symlink(built.with_file_name(fake), place.path(name)).unwrap();
        }
        std::fs::create_dir(place.path("instead")).unwrap();
        let link = |program: &str, nccl: &Path| {
            let (cuda, nccl) = (place.path("libcuda.so"), nccl.to_str().unwrap().to_owned());
            let arguments = [extra, &[nccl.as_str(), cuda.to_str().unwrap()]].concat();
            compile("ranks.c", &place.path(program), &arguments);
        };
        link("ranks", &place.path("libnccl.so.2"));
        link("instead/ranks", &library());
        place
    }

    /// The program is compiled with NCCL's own header, where there is one. If not, `.ci/setup gpu` has told why.
    pub(crate) fn with_real_header() -> Option<Self> {
        let nccl = real_nccl()?;
        let stubs = Path::new(CRATE).join("tests/c/cuda");
        let headers = nccl.parent().unwrap().join("../include");
        let flags = ["-DWITH_NCCL_H", "-I", stubs.to_str().unwrap(), "-isystem", headers.to_str().unwrap()];
        Some(Self::new(&flags))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the ranks say, and what this library says.
    pub(crate) fn run(&self, way: Way, ranks: usize, mode: &str, variables: &[(&str, &str)]) -> (Vec<String>, String) {
        let program = if way == Way::Instead { "instead/ranks" } else { "ranks" };
        let mut command = Command::new(self.path(program));
        for name in ["NCCL", "TABLE", "TABLE_ANY_HARDWARE", "DEBUG", "STATS", "DISABLE"] {
            command.env_remove(format!("ANTIPHON_{name}"));
        }
        let mut folders = [self.folder.path(), library().parent().unwrap()].map(Path::to_path_buf).to_vec();
        folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
        command.args([ranks.to_string().as_str(), mode]).env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command.envs(variables.iter().copied());
        match way {
            Way::Alone => {}
            Way::Preloaded => drop(command.env("LD_PRELOAD", library())),
            Way::Instead => drop(command.env("ANTIPHON_NCCL", self.path("libnccl.so.2"))),
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let lines: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), ranks, "{lines:?} {said}");
        (lines, said)
    }
}

pub(crate) const WAYS: [Way; 3] = [Way::Alone, Way::Preloaded, Way::Instead];

/// A tuning table for so many ranks of one machine: a plan for each collective that plans serve, from so many bytes on.
pub(crate) fn table_for(ranks: usize, from_bytes: u64) -> Value {
    let trees = |collective| random_trees(&clique(ranks), &demand(collective, ranks, 1), &mut Random(5));
    let plans: [(&str, VerifiedSchedule); 6] = [
        ("allreduce", ring_allreduce(ranks, 1)),
        ("allgather", ring_allgather(ranks, 1)),
        ("reducescatter", ring_reducescatter(ranks, 1)),
        ("broadcast", trees(Collective::Broadcast)),
        ("alltoall", direct(&demand(Collective::AllToAll, ranks, 1))),
        ("reduce", trees(Collective::Reduce)),
    ];
    let (mut cells, mut texts) = (Vec::new(), serde_json::Map::new());
    for (name, schedule) in plans {
        let mut text = Vec::new();
        file::write(&schedule, &mut text).unwrap();
        texts.insert(name.to_owned(), serde_json::from_slice(&text).unwrap());
        let stock = json!({"from_bytes": 0, "to_bytes": from_bytes, "plan": null, "evidence": []});
        let ours = json!({"from_bytes": from_bytes, "to_bytes": null, "plan": name, "evidence": []});
        cells.push(json!({"collective": name, "ranges": [stock, ours]}));
    }
    let key = json!({"ranks": ranks, "machines": vec![0; ranks], "version": "0.1.0", "policy": 1});
    json!({"format": "antiphon-table/1", "key": key, "cells": cells, "plans": texts})
}

impl Place {
    /// A run with a table: what the ranks say, what this library says, and the calls that each process has counted.
    pub(crate) fn with_table(
        &self,
        (way, ranks): (Way, usize),
        mode: &str,
        table: &Value,
        more: &[(&str, &str)],
    ) -> (Vec<String>, String, Vec<Vec<Value>>) {
        let (file, numbers) = (self.path("table.json"), self.path("served-%p.json"));
        std::fs::write(&file, table.to_string()).unwrap();
        let mine = [
            ("ANTIPHON_TABLE", file.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = self.run(way, ranks, mode, &[&mine, more].concat());
        (lines, said, self.counted("served-"))
    }

    /// The calls that the processes of a run have counted, and removes the files.
    pub(crate) fn counted(&self, name: &str) -> Vec<Vec<Value>> {
        let is_ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(name);
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
        let read = |path: PathBuf| {
            let numbers: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            std::fs::remove_file(path).unwrap();
            numbers["calls"].as_array().unwrap().clone()
        };
        files.map(read).collect()
    }
}

/// How many calls of a collective were served by plans.
pub(crate) fn by_plans(calls: &[Value], collective: &str) -> u64 {
    let entries = calls.iter().filter(|entry| entry["collective"] == collective && entry["served_by"] == "plan");
    entries.map(|entry| entry["calls"].as_u64().unwrap()).sum()
}
