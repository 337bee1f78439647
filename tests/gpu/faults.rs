//! What goes wrong while GPUs are measured, over the fakes: ranks that die, calls that stall, groups that do not launch, memory that is
//! too small; and a program that tunes itself.

use super::{FakeGpus, THREE};
use crate::launch::{Launched, free_port};
use comm::{Communicator, Config, TuneDevice, TuneOptions};
use schedule::Collective;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A rank that dies is named.
#[test]
fn ranks_that_die_while_gpus_are_measured_are_named() {
    let gpus = FakeGpus::new(3, THREE);
    let ran = gpus.run("profile --device gpu --quick --ranks 3 -o t.yaml", &[("FAKE_NCCL_FAULT", "1:40:exit")]);
    assert!(ran.code == 1 && ran.stderr.contains("rank 1"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("ended without a result") && !gpus.path("t.yaml").exists(), "{}", ran.stderr);
    let ran = gpus.run(&format!("{TUNE_THREE} --timeout 3s"), &[("FAKE_NCCL_FAULT", "1:12:exit")]);
    assert!(ran.code == 1 && ran.stderr.contains("ranks were lost again and again: rank 1"), "{}", ran.stderr);
}

/// Three GPUs, so slow that few calls make a block.
const SLOW: &str = "link 0 1 20000 0\nlink 1 0 20000 0\nlink 0 2 20000 0\nlink 2 0 20000 0\nlink 1 2 20000 0\nlink 2 1 20000 0\n\
    collective AllReduce 60000 0\ncollective AllGather 7 0\n";

/// A tuning among three ranks.
const TUNE_THREE: &str = "tune --device gpu --ranks 3 --collective allreduce --sizes 64 --launches 1 --least-samples 3 --budget 20s \
    --samples samples.jsonl --json -o t.json";

/// A candidate that stalls once is refused by the rank that has waited. The others are measured in another communicator, in which each
/// runs once before it stands behind a gate: there the fake NCCL could not make its connections.
#[test]
fn a_candidate_that_stalls_is_refused_and_the_others_are_measured() {
    // In a check, after which candidates are checked again one by one; and later, where one is timed.
    for (fault, count) in [("1:12:stall-once", 0), ("1:250:stall-once", 1)] {
        let gpus = FakeGpus::new(3, SLOW);
        let told = gpus.run(&format!("{TUNE_THREE} --timeout 3s"), &[("FAKE_NCCL_FAULT", fault)]).ok().json();
        let refused = told["refused"].as_array().unwrap();
        // If the stalled rank has given up first, the others hear that it is gone.
        let says = |of: &Value, what: &str| of["why"].as_str().unwrap().contains(what);
        let is_late = |of: &Value| says(of, "not done after 3 s") || says(of, "rank 1 is gone");
        assert!(refused.len() == count && refused.iter().all(is_late), "{told}");
        let (stock, others) = gpus.measured();
        assert!(stock >= 3 && others >= 1, "{told}");
    }
}

/// A group that NCCL cannot launch is seen while the stream stands behind a closed gate. An abort waits for the stream, so the gate has to
/// be open by then: it would open by itself after the limit of a call.
#[test]
fn an_error_behind_a_closed_gate_ends_at_once() {
    let gpus = FakeGpus::new(3, SLOW);
    let begin = Instant::now();
    // Groups of the first communicator: the checks and screenings come first.
    let fault = [("FAKE_NCCL_FAULT", "1:150:launch")];
    let told = gpus.run(&format!("{TUNE_THREE} --timeout 100s"), &fault).ok().json();
    let refused = told["refused"].as_array().unwrap();
    // Each communicator counts anew.
    assert!(!refused.is_empty() && refused.iter().all(|of| of["phase"] == "time"), "{told}");
    assert!(refused[0]["rank"] == 1 && refused[0]["why"].as_str().unwrap().contains("into its stream"), "{told}");
    let (stock, others) = gpus.measured();
    assert!(stock >= 3 && others >= 1, "{told}");
    assert!(begin.elapsed() < Duration::from_secs(90), "an abort has waited for a gate");
}

/// Ranks of a program that tunes itself, as processes of this test.
#[test]
fn a_running_program_tunes_on_gpus_and_goes_on_on_hosts() {
    const ROLE: &str = "GPU_TEST_TUNES_ITSELF";
    if std::env::var_os(ROLE).is_some() {
        return tunes_itself();
    }
    let gpus = FakeGpus::new(2, "collective AllReduce 60000 0\nlink 0 1 2000 1\nlink 1 0 2000 1\n");
    let master = format!("127.0.0.1:{}", free_port());
    let start = |rank: &str| {
        let name = "gpu::faults::a_running_program_tunes_on_gpus_and_goes_on_on_hosts";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).envs(gpus.variables.iter().cloned()).env(ROLE, "1");
        command.env("ANTIPHON_RANK", rank).env("ANTIPHON_SIZE", "2").env("ANTIPHON_MASTER", &master);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in ["0", "1"].map(start) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }
}

fn tunes_itself() {
    let comm = Communicator::connect(&Config::from_env().unwrap()).unwrap();
    let options = TuneOptions {
        collectives: vec![Collective::AllReduce],
        sizes: vec![64],
        device: TuneDevice::Gpu,
        budget: Duration::from_secs(20),
        ..TuneOptions::default()
    };
    let made = comm.tune(&options, Vec::new()).unwrap().unwrap();
    assert!(made.table.cells[0].ranges.iter().any(|range| range.plan.is_some()));
    let mut numbers = [comm.rank() as f32 + 1.0; 16];
    comm.all_reduce(&mut numbers, schedule::ReduceOp::Sum).unwrap();
    assert_eq!(numbers, [3.0; 16]);
}

/// A rank whose GPU has no room for the buffers of a size says so, and the other sizes are measured.
#[test]
fn a_size_without_room_is_refused_and_the_others_are_measured() {
    let gpus = FakeGpus::new(2, "collective AllReduce 60000 0\nlink 0 1 2000 1\nlink 1 0 2000 1\n");
    let path = |name| gpus.path(name).display().to_string();
    let line = format!(
        "tune --device gpu --collective allreduce --sizes 64,1MiB --least-samples 3 --launches 1 --budget 20s --samples {} -o {} --json",
        path("samples.jsonl"),
        path("t.json")
    );
    let master = format!("127.0.0.1:{}", free_port());
    let launched = Launched::start(&["a", "a"], &line, |rank| {
        let mut variables = gpus.variables.clone();
        variables.extend((rank == 1).then(|| ("FAKE_CUDA_MOST_BYTES".to_owned(), "1000000".to_owned())));
        (format!("--rank {rank} --world-size 2 --master {master}"), variables)
    });
    let ended = launched.end();
    assert!(ended.iter().all(|ran| ran.code == 0), "{:?}", ended.iter().map(|ran| &ran.stderr).collect::<Vec<_>>());
    let told = ended[0].json();
    let refused = told["refused"].as_array().unwrap();
    let is_room = |of: &Value| of["why"].as_str().unwrap().contains("CUDA_ERROR_OUT_OF_MEMORY");
    assert!(!refused.is_empty() && refused.iter().all(is_room), "{told}");
    assert!(refused.iter().all(|of| of["rank"] == 1), "{told}");
    let (stock, others) = gpus.measured();
    assert!(stock >= 3 && others >= 1, "{told}");
}
