//! `profile` and `tune` on GPUs: over the fake CUDA driver, the fake NCCL and a fake NVML. Their clock is counted, so that times follow
//! from a file and not from what else this computer does.

mod dump;
mod faults;
mod kernels;

use crate::binary::{Ran, read, repository, skip};
use crate::launch::Launched;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with the fakes under the names of what they stand for, and what a machine is.
struct FakeGpus {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

/// A library of this build.
fn built(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder, folder.parent().unwrap()].map(|at| at.join(name)).into_iter().find(|path| path.exists())
}

impl FakeGpus {
    /// So many GPUs on a machine of these facts (`FAKE_NCCL_MACHINE`), with these libraries.
    fn with(gpus: usize, machine: &str, libraries: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, fake) in [("libcuda.so", "libfake_cuda.so"), ("libnccl.so.2", "libfake_nccl.so")] {
            if libraries.contains(&name) {
                std::os::unix::fs::symlink(built(fake).unwrap(), folder.path().join(name)).unwrap();
            }
        }
        let facts = folder.path().join("machine.txt");
        std::fs::write(&facts, machine).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let variables = [
            ("LD_LIBRARY_PATH", text(folder.path())),
            ("FAKE_CUDA_CLOCK", "counted".to_owned()),
            // Nobody maps memory of others, unless a test is about it: what runs on the PTX machine takes long.
            ("FAKE_CUDA_LACKS", "descriptors,ipc".to_owned()),
            ("FAKE_CUDA_DEVICES", gpus.to_string()),
            ("FAKE_NCCL_MACHINE", text(&facts)),
            ("FAKE_NCCL_LIMIT_MS", "120000".to_owned()),
            ("FAKE_NCCL_CONNECT", "1".to_owned()),
        ];
        Self { variables: variables.map(|(name, value)| (name.to_owned(), value)).into(), folder }
    }

    fn new(gpus: usize, machine: &str) -> Self {
        Self::with(gpus, machine, &["libcuda.so", "libnccl.so.2"])
    }

    /// Adds the fake NVML with these links.
    fn with_nvml(mut self, links: &str) -> Self {
        let (source, library) = (repository("tests/gpu/nvml.c"), self.folder.path().join("libnvidia-ml.so.1"));
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(library).arg(source);
        assert!(command.status().unwrap().success());
        self.variables.push(("FAKE_NVML_LINKS".to_owned(), links.to_owned()));
        self
    }

    /// Runs `antiphon` in the folder, with more variables.
    fn run(&self, line: &str, more: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
        command.args(line.split_whitespace()).current_dir(self.folder.path());
        command.env_remove("ANTIPHON_NCCL").envs(self.variables.iter().cloned()).envs(more.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How often stock was measured at 64 bytes, and how many others were, by `samples.jsonl`.
    fn measured(&self) -> (usize, usize) {
        let text = std::fs::read_to_string(self.path("samples.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let counts = lines
            .filter(|line| line["bytes"] == 64)
            .map(|line| (line["name"] == "stock", line["spans_us"].as_array().map_or(0, Vec::len)));
        let counts: Vec<(bool, usize)> = counts.filter(|(_, count)| *count > 0).collect();
        let stock = counts.iter().filter(|(is_stock, _)| *is_stock).map(|(_, count)| count).sum();
        (stock, counts.iter().filter(|(is_stock, _)| !is_stock).count())
    }

    /// A measured topology.
    fn topology(&self, file: &str) -> Value {
        self.run(&format!("topology show ./{file} --json"), &[]).ok().json()
    }
}

/// Three GPUs. Whatever leaves or enters the last one shares its way.
const THREE: &str = "link 0 1 10 0.002\nlink 1 0 12 0.004\nlink 0 2 30 0.008 way\nlink 2 0 30 0.008 way\nlink 1 2 30 0.008 way\n\
    link 2 1 30 0.008 way\nshared way 0.008\ncollective AllGather 7 0\n";

/// The facts about links as `from to α β`, and what is wrong with measured ones: their margins are percents.
fn differences(machine: &str, measured: &Value) -> Vec<String> {
    let known = machine.lines().filter_map(|line| line.strip_prefix("link "));
    let known = known.map(|line| line.split(' ').take(4).map(|word| word.parse::<f64>().unwrap()).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for link in known {
        let is_it = |of: &&Value| of["from"].as_f64() == Some(link[0]) && of["to"].as_f64() == Some(link[1]);
        let found = measured["links"].as_array().unwrap().iter().find(is_it).unwrap();
        for (cost, truth) in [("alpha_us", link[2]), ("beta_us_per_byte", link[3])] {
            let ratio = found[cost].as_f64().unwrap() / truth;
            if !(0.97..1.03).contains(&ratio) {
                wrong.push(format!("{cost} of {found}, and {truth} is true"));
            }
        }
    }
    wrong
}

#[test]
fn a_profile_of_gpus_has_their_costs_and_what_they_share() {
    let gpus = FakeGpus::new(3, THREE).with_nvml("0-1:4 1-0:4 2-s:18");
    // As many ranks as there are GPUs.
    let ran = gpus.run("profile --device gpu --quick --check 4 -o t.yaml", &[]).ok();
    let (measured, text) = (gpus.topology("t.yaml"), std::fs::read_to_string(gpus.path("t.yaml")).unwrap());
    assert_eq!(differences(THREE, &measured), Vec::<String>::new(), "{text}");
    for link in measured["links"].as_array().unwrap() {
        let shared = link["resources"].as_array().map_or(0, Vec::len);
        assert_eq!(shared, usize::from(link["from"] == 2 || link["to"] == 2), "{link}");
    }
    assert_eq!(measured["resources"][0]["beta_us_per_byte"], 0.008);
    for note in [
        "over NCCL 2.30.7, timed by events",
        "Rank 2: Antiphon's fake GPU, which is no hardware, at 0000:12:00.0.",
        "NVLinks, says NVML of driver 0.0 (fake): 0–1 4, 18 to switches from rank 2.",
        "errors: median 0.0 %",
    ] {
        assert!(text.contains(note), "{note}: {text} {}", ran.stderr);
    }
}

/// Ranks that somebody else has started, on two machines.
#[test]
fn gpus_of_two_machines_share_their_ways_out() {
    let mut machine = "collective AllGather 7 0\nshared out0 0.008\nshared out1 0.008\n".to_owned();
    for (from, to) in (0..16).map(|at| (at / 4, at % 4)).filter(|(from, to)| from != to) {
        let line = match from / 2 == to / 2 {
            true => format!("link {from} {to} 10 0.002"),
            false => format!("link {from} {to} 30 0.008 out{}", from / 2),
        };
        writeln!(machine, "{line}").unwrap();
    }
    let gpus = FakeGpus::new(4, &machine);
    let output = gpus.path("t.yaml");
    let line = format!("profile --device gpu --quick --check 0 -o {}", output.display());
    let launched = Launched::explicit_with(&["a", "a", "b", "b"], &line, &gpus.variables);
    let ended = launched.end();
    assert!(ended.iter().all(|ran| ran.code == 0), "{:?}", ended.iter().map(|ran| &ran.stderr).collect::<Vec<_>>());
    let measured = gpus.topology("t.yaml");
    assert_eq!(differences(&machine, &measured), Vec::<String>::new());
    assert_eq!(measured["machines"], serde_json::json!([[0, 1], [2, 3]]));
    for link in measured["links"].as_array().unwrap() {
        let is_far = link["from"].as_u64().unwrap() / 2 != link["to"].as_u64().unwrap() / 2;
        assert_eq!(link["resources"].as_array().map_or(0, Vec::len), usize::from(is_far), "{link}");
    }
    let text = std::fs::read_to_string(output).unwrap();
    assert!(text.contains("measured only, because NVML says nothing: libnvidia-ml.so.1 was not found"), "{text}");
}

/// One link of which NVML does not tell something hides no other one, and an NVML that does not begin is not ended.
#[test]
fn links_that_nvml_does_not_tell_are_counted() {
    let gpus = FakeGpus::new(2, "link 0 1 10 0.002\nlink 1 0 10 0.002\ncollective AllGather 7 0\n");
    let gpus = gpus.with_nvml("0-1:4 0-s:2 1-0:4");
    let notes = |variable| {
        gpus.run("profile --device gpu --quick --check 0 --force -o t.yaml", &[variable]).ok();
        std::fs::read_to_string(gpus.path("t.yaml")).unwrap().replace("\n# ", " ")
    };
    let text = notes(("FAKE_NVML_FAULTS", "0.1 0-2 1-0 1-1 1.2"));
    let right =
        "0–1 2, 2 to switches from rank 0, 2 of rank 0 that it does not tell, 3 of rank 1 that it does not tell.";
    assert!(text.contains(right), "{text}");
    let text = notes(("FAKE_NVML_INIT", "no"));
    assert!(text.contains("NVML says nothing: initializing: NVML says a fake error"), "{text}");
}

/// What is missing is named, with a rank and a hint, and nobody waits.
#[test]
fn what_gpus_lack_is_said() {
    let cases: [(usize, &[&str], &[&str]); 4] = [
        (2, &[], &["there is no CUDA driver", "hint"]),
        (2, &["libcuda.so"], &["rank 0: there is no libnccl.so.2", "ANTIPHON_NCCL"]),
        (
            2,
            &["libcuda.so", "libnccl.so.2"],
            &["rank 2: there are 2 GPUs for the 3 ranks", "NCCL_MULTI_RANK_GPU_ENABLE=1"],
        ),
        (1, &["libcuda.so", "libnccl.so.2"], &["ranks 0 and 1 have the same GPU, 0000:10:00.0", "hint"]),
    ];
    for (gpus, libraries, expected) in cases {
        let place = FakeGpus::with(gpus, "", libraries);
        let profile = "profile --device gpu --quick --ranks 3 -o t.yaml";
        let tune = "tune --device gpu --ranks 3 --collective allreduce --sizes 64 --launches 1 --budget 2s -o t.json";
        for line in [profile, tune] {
            let ran = place.run(line, &[]);
            assert_eq!(ran.code, 1, "{line}: {}", ran.stderr);
            assert!(expected.iter().all(|text| ran.stderr.contains(text)), "{line}: {}", ran.stderr);
        }
        assert!(!place.path("t.yaml").exists() && !place.path("t.json").exists());
    }
    let place = FakeGpus::new(2, "");
    for (line, expected) in [
        ("profile --device gpu --ranks 2 --emulate ring:2", "GPUs emulate no other machine"),
        ("tune --device gpu --ranks 2 --collective gather --sizes 64 --budget 1s -o t.json", "gather"),
        ("tune --device gpu --ranks 2 --sizes 64 --budget 1s -o t.json -- /bin/true", "functions of a program"),
    ] {
        let ran = place.run(line, &[]);
        assert!(ran.code != 0 && ran.stderr.contains(expected), "{line}: {}", ran.stderr);
    }
}

/// By construction plans win short AllReduces, and NCCL wins long ones and all AllGathers. A program that knows nothing of it is then
/// served so.
#[test]
fn a_tuning_on_gpus_chooses_plans_where_they_beat_nccl_and_a_program_uses_them() {
    let mut machine = "collective AllReduce 60000 0.01\ncollective AllGather 500 0\n".to_owned();
    for (from, to) in [(0, 1), (1, 0)] {
        writeln!(machine, "link {from} {to} 2000 1").unwrap();
    }
    let gpus = FakeGpus::new(2, &machine);
    let line = "tune --device gpu --ranks 2 --collective allreduce,allgather --sizes 16,64,256KiB --least-samples 12 --launches 1 \
                --budget 20s -o table.json --samples samples.jsonl --json";
    let told = gpus.run(line, &[]).ok().json();
    assert_eq!(told["refused"], serde_json::json!([]), "{told}");
    let table = read(&gpus.path("table.json"));
    let (key, fake) = (&table["key"], "2 × Antiphon's fake GPU, which is no hardware, NCCL 2.30.7");
    assert_eq!((&key["transport"], &key["hardware"]), (&"nccl".into(), &serde_json::json!([fake])), "{key}");
    let choice = |collective: &str, bytes: u64| {
        let cell = table["cells"].as_array().unwrap().iter().find(|cell| cell["collective"] == collective).unwrap();
        let holds = |range: &&Value| {
            range["from_bytes"].as_u64().unwrap() <= bytes && range["to_bytes"].as_u64().is_none_or(|end| bytes < end)
        };
        cell["ranges"].as_array().unwrap().iter().find(holds).unwrap()["plan"].clone()
    };
    assert!(choice("allreduce", 16).is_string() && choice("allreduce", 20) == choice("allreduce", 64), "{table}");
    assert!(choice("allreduce", 256 << 10).is_null() && choice("allgather", 40).is_null(), "{table}");
    let stock = std::fs::read_to_string(gpus.path("samples.jsonl")).unwrap();
    let stock: Vec<Value> = stock.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stock = stock.iter().find(|line| line["name"] == "stock" && line["bytes"] == 16).unwrap();
    // 60 ms, and 16 bytes.
    let spans = stock["spans_us"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap());
    assert!(spans.clone().count() > 0 && spans.clone().all(|time| (time - 60_000.16).abs() < 1.0), "{stock}");
    serves(&gpus);
    // Ranks on hosts do not use it.
    let ran = gpus.run("run --ranks 2 --collective allreduce --size 64 --table table.json", &[]);
    assert!(ran.stderr.contains("the transport nccl, not shm"), "{} {}", ran.stdout, ran.stderr);
}

/// NCCL serves each of its collectives right, and in the time that the file says: as stock, no plan beats it here.
#[test]
fn all_collectives_of_nccl_are_stock() {
    let of_nccl = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AllToAll", "Reduce"];
    let mut machine = String::new();
    for (at, name) in of_nccl.iter().enumerate() {
        writeln!(machine, "collective {name} {} 0", 1000 * (at + 1)).unwrap();
    }
    for (from, to) in (0..9).map(|at| (at / 3, at % 3)).filter(|(from, to)| from != to) {
        writeln!(machine, "link {from} {to} 20000 0").unwrap();
    }
    let gpus = FakeGpus::new(3, &machine);
    let names = of_nccl.map(str::to_lowercase);
    let line = format!(
        "tune --device gpu --ranks 3 --collective {} --sizes 96 --launches 1 --least-samples 3 --budget 6s",
        names.join(",")
    );
    let told = gpus.run(&format!("{line} -o table.json --samples samples.jsonl --json"), &[]).ok().json();
    assert_eq!(told["refused"], serde_json::json!([]), "{told}");
    let samples = std::fs::read_to_string(gpus.path("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (at, name) in names.iter().enumerate() {
        let stock = samples.iter().find(|line| line["name"] == "stock" && line["collective"] == **name).unwrap();
        let spans: Vec<f64> = stock["spans_us"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        let right = 1000.0 * (at + 1) as f64;
        assert!(!spans.is_empty() && spans.iter().all(|time| (time - right).abs() < 1.0), "{name}: {spans:?}");
    }
    let table = read(&gpus.path("table.json"));
    let ranges = table["cells"].as_array().unwrap().iter().flat_map(|cell| cell["ranges"].as_array().unwrap());
    assert!(ranges.clone().count() >= 6 && ranges.clone().all(|range| range["plan"].is_null()), "{table}");
}

/// Two ranks that somebody else has started, on two machines: each machine has a GPU.
#[test]
fn ranks_of_a_launcher_tune_on_gpus() {
    let machine = "collective AllReduce 60000 0\nlink 0 1 2000 1\nlink 1 0 2000 1\n";
    let gpus = FakeGpus::new(2, machine);
    let output = gpus.path("table.json");
    let line = "tune --device gpu --collective allreduce --sizes 64 --launches 2 --least-samples 12 --budget 10s -o";
    let ended = Launched::explicit_with(&["a", "b"], &format!("{line} {}", output.display()), &gpus.variables).end();
    assert!(ended.iter().all(|ran| ran.code == 0), "{:?}", ended.iter().map(|ran| &ran.stderr).collect::<Vec<_>>());
    assert!(ended[0].stderr.contains("LD_PRELOAD=/path/to/libantiphon_nccl.so"), "{}", ended[0].stderr);
    let table = read(&output);
    let one = "1 × Antiphon's fake GPU, which is no hardware, NCCL 2.30.7";
    assert_eq!(table["key"]["machines"], serde_json::json!([0, 1]));
    assert_eq!(table["key"]["hardware"], serde_json::json!([one, one]));
    let ranges = table["cells"][0]["ranges"].as_array().unwrap();
    assert!(ranges.iter().any(|range| range["plan"].is_string()), "{table}");
}

/// Ctrl-C keeps the cells that are complete, and no rank is left.
#[test]
fn an_interrupted_tuning_on_gpus_keeps_complete_cells() {
    let gpus = FakeGpus::new(2, "collective AllReduce 60000 0\nlink 0 1 2000 1\nlink 1 0 2000 1\n");
    let (log, table) = (gpus.path("log"), gpus.path("table.json"));
    let line = "tune --device gpu --ranks 2 --collective allreduce --sizes 64B..64KiB --launches 1 --least-samples 12 --budget 60s";
    let line = format!("{line} --log {} -o {}", log.display(), table.display());
    let mut launched = Launched::start(&["a"], &line, |_| (String::new(), gpus.variables.clone()));
    let begin = Instant::now();
    while std::fs::metadata(log.join("rank-0.jsonl")).map_or(0, |file| file.len()) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(120), "no cell was complete");
        std::thread::yield_now();
    }
    let child = launched.take(0).unwrap();
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(130) && said.contains("cells that were complete"), "{said}");
    let table = read(&table);
    assert!(!table["cells"][0]["ranges"].as_array().unwrap().is_empty(), "{table}");
}

/// The program in C of `plugin/nccl`, with two ranks and the table that was measured: what it says, and what the library says. `None` where
/// the library is not built.
fn run_program(gpus: &FakeGpus, mode: &str, more: &[(&str, &str)]) -> Option<[String; 2]> {
    let Some(library) = built("libantiphon_nccl.so") else {
        skip("libantiphon_nccl.so is not built, so no program was served by a table of GPUs");
        return None;
    };
    let program = gpus.path("ranks");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(repository("plugin/nccl/tests/c/ranks.c"));
    command.args(["libnccl.so.2", "libcuda.so"].map(|name| gpus.path(name))).args(["-ldl", "-lpthread"]);
    assert!(command.status().unwrap().success());
    let mut command = Command::new(program);
    command.args(["2", mode]).envs(gpus.variables.iter().cloned()).env("LD_PRELOAD", library);
    command.env("ANTIPHON_TABLE", gpus.path("table.json")).env("ANTIPHON_DEBUG", "info").envs(more.iter().copied());
    let output = command.output().unwrap();
    Some([output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()))
}

/// It calls an AllReduce of 20 bytes, which a plan serves, and AllGathers, which NCCL serves.
fn serves(gpus: &FakeGpus) {
    let Some([out, said]) = run_program(gpus, "right", &[]) else { return };
    assert!(out.lines().count() == 2 && out.lines().all(|line| line == "right 0"), "{out} {said}");
    assert!(said.contains("allreduce of 2 ranks, 20 bytes: the plan "), "{said}");
    assert!(said.contains("allgather of 2 ranks, 40 bytes: NCCL, because the table chooses stock"), "{said}");
}
