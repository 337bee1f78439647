//! Candidates of a user's own in processes that `antiphon tune` starts: right, wrong, slow, hanging and crashing ones.

use crate::binary::{Ran, read};
use comm::{
    CandidateFunction, CandidateMemory, Collective, Communicator, DType, Op, TuneCandidate, TuneJob, TuneOptions,
};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names the candidates of the program below, separated by commas.
const CANDIDATES: &str = "ANTIPHON_TEST_CANDIDATES";

/// How a rank of the program below is lost, and a file that says when, or that it has happened.
const LOSS: &str = "ANTIPHON_TEST_LOSS";

fn kill_own_process() {
    let own = std::process::id().to_string();
    drop(Command::new("kill").args(["-KILL", &own]).status());
}

/// Rank 1 is killed once before it joins the others, or each time when its first cell is measured.
fn lose_rank() {
    let Ok(loss) = std::env::var(LOSS) else { return };
    let job = TuneJob::of_environment().unwrap().unwrap();
    match (std::env::var("ANTIPHON_RANK").as_deref(), loss.strip_prefix("joining ")) {
        (Ok("1"), Some(mark)) if std::fs::File::create_new(mark).is_ok() => kill_own_process(),
        (Ok("1"), None) => drop(std::thread::spawn(move || {
            while !std::fs::read_to_string(job.report_of(1)).is_ok_and(|said| said.contains(r#"{"cell":"#)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            kill_own_process();
        })),
        _ => {}
    }
}

/// An AllReduce of floats by the library, and before it on rank 1 what a candidate does wrong.
fn candidate(name: &'static str) -> TuneCandidate {
    let function: Arc<CandidateFunction> = Arc::new(move |comm, _, memory| {
        let CandidateMemory::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
        if comm.rank() == 1 {
            match name {
                "hanging" => loop {
                    std::thread::park();
                },
                "crashing" => std::process::abort(),
                "leaving" => std::process::exit(0),
                "spoiling" => drop(std::thread::spawn(|| {
                    // As a process ends that finds its memory spoiled, some time after its function has returned.
                    std::thread::sleep(Duration::from_millis(50));
                    std::process::abort();
                })),
                "slow" => std::thread::sleep(Duration::from_millis(2)),
                _ => {}
            }
        }
        let floats = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        let mut vector: Vec<f32> = floats.collect();
        comm.all_reduce(&mut vector, Op::Sum).map_err(|error| error.to_string())?;
        bytes.chunks_exact_mut(4).zip(vector).for_each(|(four, value)| four.copy_from_slice(&value.to_le_bytes()));
        if name == "wrong" && comm.rank() == 1 {
            bytes[0] ^= 1;
        }
        Ok(())
    });
    TuneCandidate::function(name, vec![Collective::AllReduce], function)
}

/// What `antiphon tune -- PROGRAM` starts in the tests below: a program with candidates of its own. By itself it is one rank,
/// which tunes in the running program.
#[test]
fn a_program_tunes_with_candidates_of_its_own() {
    lose_rank();
    let comm = Communicator::from_env().unwrap();
    let names = std::env::var(CANDIDATES).unwrap_or_else(|_| "right,wrong".to_owned());
    let given = ["right", "wrong", "slow", "hanging", "crashing", "leaving", "spoiling"];
    let given = given.into_iter().filter(|name| names.split(',').any(|of| of == *name)).map(candidate).collect();
    let options = TuneOptions {
        collectives: vec![Collective::AllReduce],
        sizes: vec![1000],
        dtype: DType::F32,
        op: Op::Sum,
        budget: Duration::from_secs(2),
        limit: Duration::from_secs(5),
        seed: 1,
        least_samples: 0,
        ..TuneOptions::default()
    };
    let made = comm.tune(&options, given).unwrap();
    assert_eq!(made.is_none(), std::env::var_os(TuneJob::VARIABLE).is_some(), "the command makes the table");
    let mut vector = [1.0_f32; 100];
    comm.all_reduce(&mut vector, Op::Sum).unwrap();
    assert_eq!(vector, [comm.size() as f32; 100]);
}

/// Tunes with the program above as the ranks.
fn tune(folder: &Path, options: &str, candidates: &str) -> Ran {
    ended(command(folder, options, candidates))
}

fn ended(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn command(folder: &Path, options: &str, candidates: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.current_dir(folder).args(options.split_whitespace()).arg("--").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "candidates::a_program_tunes_with_candidates_of_its_own", "--nocapture"]);
    command.env(CANDIDATES, candidates);
    command
}

#[test]
fn a_function_after_which_its_process_ends_is_to_blame() {
    let folder = tempfile::tempdir().unwrap();
    let line = "tune --ranks 2 --collective allreduce,allgather --sizes 1KB,64KB --budget 5s --launches 1 -o table.json --json";
    let told = tune(folder.path(), line, "right,spoiling").ok().json();
    let blamed: Vec<&str> = told["refused"].as_array().unwrap().iter().filter_map(|of| of["name"].as_str()).collect();
    assert!(blamed.contains(&"spoiling"), "{told}");
    assert_eq!((&told["lost"], &told["ended_early"]), (&serde_json::json!([]), &Value::Null), "{told}");
    assert_eq!(read(&folder.path().join("table.json"))["cells"].as_array().unwrap().len(), 2);
}

#[test]
fn a_rank_that_is_killed_while_it_joins_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let line = "tune --ranks 2 --collective allreduce --sizes 1KB --budget 2s --launches 1 -o table.json --json";
    let mut command = command(folder.path(), line, "right");
    command.env(LOSS, format!("joining {}", folder.path().join("happened").display()));
    let told = ended(command).ok().json();
    let lost = told["lost"].as_array().unwrap();
    assert!(lost.len() == 1 && lost[0]["rank"] == 1, "{told}");
    assert!(lost[0]["why"].as_str().unwrap().contains("before it had joined"), "{told}");
}

#[test]
fn what_was_measured_before_ranks_were_lost_again_and_again_is_in_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let line = "tune --ranks 2 --collective allreduce,allgather --sizes 1KB,4KB,16KB,64KB,256KB --budget 20s -o table.json \
                --log log --json";
    let mut command = command(folder.path(), line, "right");
    command.env(LOSS, "cells");
    let ran = ended(command).ok();
    assert!(ran.stderr.contains("rank 1: its process ended: signal: 9"), "{}", ran.stderr);
    let told = ran.json();
    assert!(told["ended_early"].as_str().unwrap().contains("again and again"), "{told}");
    assert_eq!(told["lost"].as_array().unwrap().len(), 3, "{told}");
    assert!(!read(&folder.path().join("table.json"))["cells"].as_array().unwrap().is_empty());
    let report = read(&folder.path().join("log/report.json"));
    assert_eq!((&report["ranks"], &report["failed"]), (&2.into(), &told["ended_early"]), "{report}");
}

/// Processes with this variable in their environment.
fn processes_with(variable: &str) -> usize {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok());
    all.filter(|environment| environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())).count()
}

#[test]
fn the_ranks_of_a_program_end_with_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        "tune --ranks 2 --collective allreduce --sizes 1KB --budget 300s --least-samples 100000000 -o table.json";
    for signal in ["-KILL", "-TERM", "-INT"] {
        let name = format!("right,{signal},{}", folder.path().display());
        let mut command =
            command(folder.path(), line, &name).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let variable = format!("{CANDIDATES}={name}");
        let until = Instant::now() + Duration::from_secs(60);
        let wait_for = |expected: usize| {
            while processes_with(&variable) != expected {
                assert!(Instant::now() < until, "{signal}: {} of {expected} processes", processes_with(&variable));
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        wait_for(3);
        assert!(Command::new("kill").args([signal, &command.id().to_string()]).status().unwrap().success());
        command.wait().unwrap();
        wait_for(0);
    }
}

/// The command and the other rank are gone before this rank has found anybody, for whom it would wait a minute.
#[test]
fn a_rank_does_not_wait_for_others_when_the_command_is_gone() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let begin = Instant::now();
    let mut rank = Command::new(std::env::current_exe().unwrap());
    rank.args(["--exact", "candidates::a_program_tunes_with_candidates_of_its_own"]);
    rank.envs([("ANTIPHON_RANK", "1"), ("ANTIPHON_SIZE", "2"), ("ANTIPHON_MASTER", "127.0.0.1:9")]);
    rank.envs([("ANTIPHON_SECRET", "a secret of one rank"), ("ANTIPHON_LAUNCHER", &gone.id().to_string())]);
    let ran = ended(rank);
    assert!(
        ran.code == 1 && begin.elapsed() < Duration::from_secs(40),
        "{:?}, {}: {}",
        begin.elapsed(),
        ran.code,
        ran.stderr
    );
}

#[test]
fn a_candidate_that_hangs_or_crashes_is_quarantined_and_the_other_cells_complete() {
    let folder = tempfile::tempdir().unwrap();
    let line = "tune --ranks 3 --collective allreduce,allgather --sizes 1KB,64KB --budget 8s --launches 2 --timeout 1s \
                -o table.json --samples samples.jsonl --log log --json";
    let begin = Instant::now();
    let told = tune(folder.path(), line, "right,wrong,slow,hanging,crashing,leaving").ok().json();
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    // Where each was refused, by whom, and why.
    let refused = told["refused"].as_array().unwrap();
    for (name, why) in [
        ("wrong", "of rank 1 are wrong"),
        ("hanging", "did not return"),
        ("crashing", "signal: 6"),
        ("leaving", "exit status: 0"),
    ] {
        let found: Vec<&Value> = refused.iter().filter(|of| of["name"] == name).collect();
        assert!(!found.is_empty(), "{name}: {told}");
        assert!(found.iter().all(|of| of["rank"] == 1 && of["why"].as_str().unwrap().contains(why)), "{name}: {told}");
        // A candidate that takes its process with it gets no second chance.
        assert!(name == "wrong" || found.len() == 1, "{name}: {told}");
    }
    assert!(refused.iter().all(|of| of["name"] != "right" && of["name"] != "slow"), "{told}");
    assert_eq!(told["lost"], serde_json::json!([]), "no rank is to blame");
    // All cells were measured, also those with the candidates that were refused later.
    let samples = std::fs::read_to_string(folder.path().join("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (collective, names) in [("allreduce", &["stock", "right", "slow"] as &[&str]), ("allgather", &["stock"])] {
        for name in names {
            let is_it = |line: &&Value| {
                line["launch"] == 1
                    && line["collective"] == collective
                    && line["name"] == *name
                    && line["refusal"].is_null()
            };
            assert_eq!(samples.iter().filter(is_it).count(), 2, "{collective} {name}");
        }
    }
    // One that takes many times as long as the best is measured no further, and is not refused either: it is ranked.
    let slow = samples.iter().find(|line| line["name"] == "slow" && line["bytes"] == 1000).unwrap();
    assert!(slow["loops_us"][0].as_f64().is_none_or(|time| time > 2000.0), "{slow}");
    let places: Vec<&Value> = told["functions"].as_array().unwrap().iter().filter(|of| of["name"] == "slow").collect();
    // Where there was no time for it, it has no place.
    let is_timed = |line: &&Value| line["launch"] == 1 && line["name"] == "slow" && !line["look_us"].is_null();
    let timed: Vec<u64> = samples.iter().filter(is_timed).map(|line| line["bytes"].as_u64().unwrap()).collect();
    assert_eq!(places.iter().map(|place| place["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), timed, "{told}");
    for place in places {
        assert!(
            place["median_us"].as_f64().unwrap() > 2000.0 && place["place"].as_u64() <= place["of"].as_u64(),
            "{place}"
        );
    }
    let table = read(&folder.path().join("table.json"));
    let cells = table["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["collective"] == "allreduce").unwrap();
    let evidence = cell["ranges"].as_array().unwrap().iter().flat_map(|range| range["evidence"].as_array().unwrap());
    for evidence in evidence.filter(|evidence| timed.contains(&evidence["bytes"].as_u64().unwrap())) {
        assert!(evidence["ranking"].as_array().unwrap().iter().any(|of| of["name"] == "slow"), "{evidence}");
    }
    let report = read(&folder.path().join("log/report.json"));
    assert_eq!(report["problem_ranks"][0]["rank"], 1, "{report}");
    assert_eq!(report["problem_ranks"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn what_is_no_program_with_candidates_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| crate::binary::antiphon_in(folder.path(), line);
    for (program, expected) in [("/bin/true", "does the program call tune?"), ("/nowhere/program", "cannot be started")]
    {
        let ran = run(&format!("tune --ranks 2 --collective allreduce --sizes 1KB --budget 1s -o t.json -- {program}"));
        assert!(ran.code == 1 && ran.stderr.contains(expected), "{program}: {} {}", ran.code, ran.stderr);
    }
    assert_eq!(run("tune --sizes 1KB -o t.json -- /bin/true").code, 2, "a launcher starts its own programs");
}

#[test]
fn a_plan_competes_under_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| crate::binary::antiphon_in(folder.path(), line);
    run("synth --topology clique:2 --collective allgather --size 64KB --chunks 3 -o mine.json").ok();
    let line =
        "tune --ranks 2 --collective allgather --sizes 4KiB --budget 2s --launches 1 -o t.json --samples s.jsonl";
    run(&format!("{line} --candidate special=mine.json")).ok();
    let samples = std::fs::read_to_string(folder.path().join("s.jsonl")).unwrap();
    assert!(samples.contains("\"special\""), "{samples}");
    let ran = run(&format!("{line} --force --candidate special"));
    assert!(ran.code == 2 && ran.stderr.contains("NAME=FILE"), "{}", ran.stderr);
    let ran = run(&format!("{line} --force --candidate a=mine.json --candidate a=mine.json"));
    assert!(ran.code == 2 && ran.stderr.contains("have the name `a`"), "{}", ran.stderr);
    let ran = run(&format!("{line} --force --candidate a=t.svg"));
    assert!(ran.code == 2 && ran.stderr.contains("t.svg"), "{}", ran.stderr);
}
