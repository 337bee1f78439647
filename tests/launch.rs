//! Ranks that another program starts: real processes over loopback, some of which pretend to be on other machines.

mod faults;
mod refusals;

use crate::binary::{Ran, skip};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A port that is not in use.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The processes of one launch; they are killed when this is dropped.
pub(crate) struct Launched {
    children: Vec<Option<Child>>,
    _home: tempfile::TempDir,
}

impl Launched {
    /// Starts `antiphon ARGUMENTS` for every machine named in `hosts`, rank by rank; `place` gives each rank its
    /// options and variables.
    pub(crate) fn start(
        hosts: &[&str],
        arguments: &str,
        place: impl Fn(usize) -> (String, Vec<(String, String)>),
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let start = |(rank, host): (usize, &&str)| {
            let (options, variables) = place(rank);
            let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
            command.args(arguments.split_whitespace()).args(options.split_whitespace());
            command.env("ANTIPHON_HOST", host).env("HOME", home.path()).env_remove("XDG_STATE_HOME").envs(variables);
            Some(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let children = hosts.iter().enumerate().map(start).collect();
        Self { children, _home: home }
    }

    /// With explicit options.
    pub(crate) fn explicit(hosts: &[&str], arguments: &str) -> Self {
        let (port, ranks) = (free_port(), hosts.len());
        Self::start(hosts, arguments, |rank| {
            (format!("--rank {rank} --world-size {ranks} --master 127.0.0.1:{port}"), Vec::new())
        })
    }

    /// With explicit options and the same variables for all.
    pub(crate) fn explicit_with(hosts: &[&str], arguments: &str, variables: &[(String, String)]) -> Self {
        let (port, ranks) = (free_port(), hosts.len());
        Self::start(hosts, arguments, |rank| {
            (format!("--rank {rank} --world-size {ranks} --master 127.0.0.1:{port}"), variables.to_vec())
        })
    }

    /// The processes that have been started, by rank.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.children.iter().flatten().map(Child::id).collect()
    }

    /// Waits until rank 0 prints a row; returns the rest of its output.
    fn first_row(&mut self) -> BufReader<ChildStdout> {
        let mut rows = BufReader::new(self.children[0].as_mut().unwrap().stdout.take().unwrap());
        let mut row = String::new();
        assert!(rows.read_line(&mut row).unwrap() > 0, "rank 0 has ended without a row");
        rows
    }

    /// Gives away the process of a rank; `end` will not wait for it.
    pub(crate) fn take(&mut self, rank: usize) -> Option<Child> {
        self.children[rank].take()
    }

    /// Waits for all processes; returns the results by rank.
    pub(crate) fn end(mut self) -> Vec<Ran> {
        let wait = |child: Child| {
            let output = child.wait_with_output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
        };
        let children: Vec<Child> = self.children.iter_mut().filter_map(Option::take).collect();
        let threads: Vec<JoinHandle<Ran>> =
            children.into_iter().map(|child| std::thread::spawn(move || wait(child))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Checks that all ranks succeeded, only rank 0 printed, and no result is wrong.
fn assert_right(ran: Vec<Ran>, lines: usize) {
    for (rank, ran) in ran.into_iter().enumerate() {
        let ran = ran.ok();
        let rows: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), if rank == 0 { lines } else { 0 }, "rank {rank}: {}", ran.stdout);
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{}", ran.stdout);
    }
}

const SPREAD: [&[&str]; 4] = [&["a", "a", "a"], &["a", "b", "c"], &["a", "a", "b", "b", "a"], &["a", "b", "b", "b"]];

#[test]
fn ranks_on_one_machine_and_on_several_run_every_collective() {
    for hosts in SPREAD {
        for collective in ["allreduce", "allgather", "alltoall", "broadcast", "reducescatter"] {
            let arguments = format!("run --collective {collective} --size 0,4004,400000 --iterations 3 --json");
            assert_right(Launched::explicit(hosts, &arguments).end(), 6);
        }
    }
}

#[test]
fn groups_of_ranks_of_several_machines_run_at_the_same_time() {
    for hosts in SPREAD {
        let last = hosts.len() - 1;
        let split = format!("--split 0-{last}/0,{last}/1-{last}");
        for collective in ["allreduce", "alltoall"] {
            let arguments = format!("run --collective {collective} --size 4004,400000 --iterations 3 --json {split}");
            assert_right(Launched::explicit(hosts, &arguments).end(), 12);
        }
    }
}

#[test]
fn a_plan_that_only_rank_0_has_travels_to_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let made = format!(
        "synth --topology ring:4,direction=both --collective allreduce --size 1MB --time-limit 1s -o {}",
        plan.display()
    );
    crate::binary::antiphon(&made).ok();
    let (port, path) = (free_port(), plan.display().to_string());
    let run = Launched::start(&["a", "b", "a", "b"], "run --json --iterations 2", |rank| {
        let file = if rank == 0 { path.as_str() } else { "nowhere.json" };
        (format!("{file} --rank {rank} --world-size 4 --master 127.0.0.1:{port}"), Vec::new())
    });
    assert_right(run.end(), 2);
}

/// Ranks that somebody else has started are not started again: they join again, in sessions with other memory and connections.
#[test]
fn ranks_of_a_launcher_tune_in_several_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let (table, log) = (folder.path().join("table.json"), folder.path().join("log"));
    let sizes = "--collective broadcast,allgather --sizes 64KiB,1MiB --budget 8s";
    let line = format!("tune {sizes} --launches 3 --json --log {} -o {}", log.display(), table.display());
    let ran: Vec<Ran> = Launched::explicit(&["a", "a", "b", "b"], &line).end().into_iter().map(Ran::ok).collect();
    let said: serde_json::Value = serde_json::from_str(&ran[0].stdout).unwrap();
    let table = crate::binary::read(&table);
    assert_eq!(table["key"]["machines"], serde_json::json!([0, 0, 1, 1]));
    let dropped =
        |bytes: &serde_json::Value| said["dropped"].as_array().unwrap().iter().any(|of| of["bytes"] == *bytes);
    let ranges = table["cells"].as_array().unwrap().iter().flat_map(|cell| cell["ranges"].as_array().unwrap());
    for evidence in ranges.filter(|range| !range["plan"].is_null()).map(|range| &range["evidence"][0]) {
        // Where stock was another plan in a later launch, that launch does not count.
        let is_late = !said["undecided"].is_null();
        let is_confirmed = evidence["launches"].as_u64().unwrap() >= 2 || dropped(&evidence["bytes"]) || is_late;
        assert!(is_confirmed, "a choice is confirmed: {evidence}\n{said}");
    }
    let lines = std::fs::read_to_string(log.join("rank-3.jsonl")).unwrap();
    let launches: std::collections::BTreeSet<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["launch"].as_u64().unwrap())
        .collect();
    assert_eq!(launches, [1, 2, 3].into());
}

#[test]
fn launchers_are_understood_by_their_variables() {
    let torchrun = |rank: usize, port: u16| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_owned()),
            ("MASTER_ADDR", "localhost".to_owned()),
            ("MASTER_PORT", (port - 1).to_string()),
        ]
    };
    let open_mpi = |rank: usize, port: u16| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "3".to_owned()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3".to_owned()),
            ("ANTIPHON_PORT", port.to_string()),
            ("OMPI_MCA_orte_precondition_transports", "0123456789abcdef-0123456789abcdef".to_owned()),
        ]
    };
    let slurm = |rank: usize, port: u16| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "3".to_owned()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_JOB_NODELIST", "localhost".to_owned()),
            ("ANTIPHON_PORT", port.to_string()),
        ]
    };
    type Variables = Vec<(&'static str, String)>;
    let kinds: [&dyn Fn(usize, u16) -> Variables; 3] = [&torchrun, &open_mpi, &slurm];
    for kind in kinds {
        let port = free_port();
        let run =
            Launched::start(&["a", "b", "a"], "run --collective allgather --size 10KB --iterations 1 --json", |rank| {
                let variables = kind(rank, port).into_iter().map(|(name, value)| (name.to_owned(), value));
                (String::new(), variables.collect())
            });
        assert_right(run.end(), 2);
    }
}

/// The children of a process.
pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |process: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    processes.filter(|child| parent(child) == Some(process)).collect()
}

pub(crate) fn is_running(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn addresses_may_be_ipv6() {
    let port = free_port();
    let run = Launched::start(&["a", "b", "b"], "run --collective allgather --size 10KB --json", |rank| {
        (format!("--rank {rank} --world-size 3 --master [::1]:{port}"), Vec::new())
    });
    assert_right(run.end(), 2);
}

#[test]
fn data_takes_turns_over_several_interfaces() {
    let port = free_port();
    let arguments = "run --collective alltoall --size 0,4004,4000000 --iterations 2 --json";
    let run = Launched::start(&["a", "b", "b", "c"], arguments, |rank| {
        // Ranks may have different numbers of interfaces.
        let interfaces = ["127.0.0.1,127.0.0.2", "127.0.0.0/8", "127.0.0.3,::1,127.0.0.4", "lo"][rank];
        (format!("--rank {rank} --world-size 4 --master 127.0.0.1:{port} --interface {interfaces}"), Vec::new())
    });
    assert_right(run.end(), 6);
}

#[test]
fn a_limit_of_open_files_is_raised_or_named() {
    let limited = |limit: &str| {
        let run = format!(
            "ulimit {limit}; exec {} run --collective alltoall --ranks 20 --size 8KB --transport tcp --iterations 1 -q --json",
            env!("CARGO_BIN_EXE_antiphon")
        );
        Command::new("sh").args(["-c", &run]).output().unwrap()
    };
    // 19 peers with two connection ends each.
    let output = limited("-S -n 30");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = limited("-n 30");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && words.contains("30 open files"), "{words}");
}

#[test]
fn long_mpi_ranks_of_a_real_mpirun_need_no_options() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", "4", env!("CARGO_BIN_EXE_antiphon")]);
    command.args(["run", "--collective", "allreduce", "--size", "4KB,1MB", "--json"]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").env("HOME", home.path());
    match command.output() {
        Err(error) => skip(&format!("ranks of a real mpirun: it cannot be started: {error}")),
        Ok(output) => {
            let text = |bytes| String::from_utf8(bytes).unwrap();
            let ran = Ran {
                code: output.status.code().unwrap_or(-1),
                stdout: text(output.stdout),
                stderr: text(output.stderr),
            };
            assert_right(vec![ran], 4);
        }
    }
}
