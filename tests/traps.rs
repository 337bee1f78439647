//! Details that once misled users: units, ranges, silent losses, and JSON answers.

use crate::binary::{antiphon, antiphon_in, read};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PLAN: &str = "synth --topology ring:4,direction=both --collective allgather --size 1MB";

fn start(arguments: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
}

#[test]
fn bits_are_not_bytes_and_what_was_understood_is_said() {
    let shown = antiphon("topology show switch:3,bandwidth=200Gbps").ok().stdout;
    assert_eq!(shown.matches("25 GB/s (200 Gbit/s)").count(), 6 + 6, "six links and six ports in\n{shown}");
    let links = |spec: &str| antiphon(&format!("topology show {spec} --json")).ok().json()["links"].clone();
    assert_eq!(links("ring:4,bandwidth=200Gbit/s"), links("ring:4,bandwidth=25GBps"));
}

#[test]
fn ranges_of_ranks_have_both_ends_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let plan = antiphon("synth --topology dgx1 --collective broadcast --size 1M --members 0-3,6 --json --gap 5%").ok();
    assert_eq!(plan.json()["members"], serde_json::json!([0, 1, 2, 3, 6]));
    let cluster = |ranks: &str| {
        let ports = format!("ports: [{{machines: [0-1], ranks: [{ranks}], alpha: 3us, bandwidth: 100Gbps}}]");
        let text = format!(
            "format: antiphon-cluster/1\nname: lab\nmachines: [{{spec: \"switch:4\", count: 2}}]\nnetworks: {{net: {{{ports}}}}}\n"
        );
        fs::write(folder.path().join("lab.yaml"), text).unwrap();
        antiphon_in(folder.path(), "topology check lab.yaml").ok()
    };
    let whole = cluster("0-3");
    assert!(!whole.stdout.contains("note") && whole.stderr.is_empty(), "{}{}", whole.stdout, whole.stderr);
    let old = cluster("0..3");
    assert!(old.stderr.contains("`0..3` means `0-2`, without rank 3"), "{}", old.stderr);
    assert!(old.stdout.contains("machine 0: no link from or to other machines at rank 3"), "{}", old.stdout);
}

#[test]
fn the_winner_and_three_runners_up_fit_a_terminal() {
    let line = "synth --topology ndv2x2 --collective allgather --size 1MB --time-limit 3s";
    let rows = |text: &str| {
        let table = text.split_once("candidate ").expect("a table").1.to_owned();
        table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let short = antiphon(line).ok();
    assert!(short.stdout.lines().all(|line| line.chars().count() <= 100), "{}", short.stdout);
    let listed = rows(&short.stdout);
    assert_eq!(listed.len(), 5, "{}", short.stdout);
    assert!(listed[4].starts_with("… and ") && listed[4].ends_with("more (-v)"), "{}", short.stdout);
    assert!(short.stderr.contains("the plan was not kept; -o plan.json writes it"), "{}", short.stderr);
    let long = antiphon(&format!("{line} -v")).ok();
    assert!(rows(&long.stdout).len() > 5, "{}", long.stdout);
    assert!(long.stderr.contains("incumbent") && !long.stderr.contains("DEBUG"), "{}", long.stderr);
    let quiet = antiphon(&format!("{line} -q")).ok();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    fs::write(folder.path().join("plan.json"), "mine").unwrap();
    let refused = here(&format!("{PLAN} -o plan.json"));
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("plan.json exists already") && refused.stderr.contains("--force"));
    assert_eq!(fs::read_to_string(folder.path().join("plan.json")).unwrap(), "mine");
    here(&format!("{PLAN} -o plan.json --force")).ok();
    assert!(read(&folder.path().join("plan.json"))["transfers"].is_array());
    for line in ["simulate plan.json --html plan.json", "export plan.json --format dot -o plan.json"] {
        assert_eq!(here(line).code, 2, "{line}");
    }
    assert!(read(&folder.path().join("plan.json"))["transfers"].is_array());
}

#[test]
fn an_interrupted_planner_says_so_and_gives_what_it_has() {
    // Without a limit, the search would continue long after the first plans.
    let mut child = start("synth --topology fat-tree:4x4x4 --collective allreduce --size 1MB --gap 0 --json -v");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = lines.by_ref().map_while(Result::ok).find(|line| line.contains("incumbent"));
    assert!(found.is_some(), "nothing was found");
    interrupt(&child);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let output = child.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["stop_reason"]), (Some(0), &"interrupted".into()), "{answer}");
    assert!(rest.iter().any(|line| line.contains("interrupted; this is the best plan so far")), "{rest:?}");
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let parent = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let is_gone = words.next()? == "Z";
        words.next()?.parse::<u32>().ok().filter(|_| !is_gone)
    };
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    all.filter(|&process| parent(process) == Some(of)).collect()
}

#[test]
fn ranks_end_with_the_process_that_has_started_them() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir().unwrap();
    let looped = "run --loop --collective allreduce --size 1MB --ranks 2 --iterations 100000".to_owned();
    let tuned = format!(
        "tune --ranks 2 --collective allreduce --sizes 1MB --budget 100s -o {}",
        folder.path().join("table.json").display()
    );
    for (command, signal) in
        [(&looped, Signal::INT), (&looped, Signal::KILL), (&tuned, Signal::INT), (&tuned, Signal::KILL)]
    {
        let mut child = start(command);
        let deadline = Instant::now() + Duration::from_secs(60);
        let in_time = |what: &str| assert!(Instant::now() < deadline, "{what}");
        let ranks = loop {
            let ranks = children(child.id());
            if ranks.len() == 2 {
                break ranks;
            }
            in_time("no ranks");
            std::thread::yield_now();
        };
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (signal == Signal::INT).then_some(130));
        let lives = |rank: &u32| fs::read(format!("/proc/{rank}/cmdline")).is_ok_and(|text| !text.is_empty());
        while ranks.iter().any(lives) {
            in_time("a rank lives on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_interrupted_tuning_keeps_the_cells_that_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (log, table) = (folder.path().join("log"), folder.path().join("table.json"));
    let line = "tune --ranks 2 --collective allreduce --sizes 64,1KiB,64KiB,1MiB --budget 20s";
    let child = start(&format!("{line} --log {} -o {}", log.display(), table.display()));
    let deadline = Instant::now() + Duration::from_secs(60);
    let has_a_cell = || fs::metadata(log.join("rank-0.jsonl")).is_ok_and(|file| file.len() > 0);
    while !has_a_cell() {
        assert!(Instant::now() < deadline, "no cell");
        std::thread::yield_now();
    }
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("of 4 cells that were complete"), "{said}");
    assert_eq!(read(&table)["cells"][0]["collective"], "allreduce");
}

#[test]
fn an_interrupted_search_over_sizes_says_that_it_is_not_whole() {
    let mut child = start("synth --topology fat-tree:4x4x4 --collective allreduce --sizes 1MB..64MB --gap 0 -v");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = lines.by_ref().map_while(Result::ok).find(|line| line.contains("incumbent"));
    assert!(found.is_some(), "nothing was found");
    interrupt(&child);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
}

#[test]
fn an_interrupted_run_says_so() {
    // The first size takes a moment, the second takes a minute.
    let line = "run --collective allreduce --ranks 2 --size 4,64MB --iterations 2000 --timeout 1h";
    for (line, is_json, first) in
        [(line.to_owned(), false, "allreduce on 2 ranks"), (format!("{line} --json"), true, "antiphon-run/1")]
    {
        let mut child = start(&line);
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains(first), "{said}");
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{words}");
        if is_json {
            let error: Value = serde_json::from_str(&words).unwrap();
            assert_eq!((&error["format"], &error["kind"]), (&"antiphon-error/1".into(), &"interrupted".into()));
        } else {
            assert_eq!(words, "error: interrupted\n");
        }
    }
}

const RUN_KEYS: [&str; 19] = [
    "format",
    "collective",
    "size_bytes",
    "count",
    "dtype",
    "op",
    "root",
    "in_place",
    "time_us",
    "min_us",
    "p99_us",
    "algbw_GBps",
    "busbw_GBps",
    "predicted_us",
    "ratio",
    "emulated",
    "wrong",
    "plan",
    "ranks",
];

#[test]
fn a_run_says_what_it_emulates_and_what_was_predicted() {
    let line = "run --collective allgather --emulate ring:3,alpha=100us,bandwidth=1GBps --ranks 3 --size 30KB..120KB";
    let ran = antiphon(&format!("{line} --iterations 3 --json")).ok();
    let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6, "three sizes, out of place and in place: {}", ran.stdout);
    for (row, size) in rows.iter().zip([30_000.0, 30_000.0, 60_000.0, 60_000.0, 120_000.0, 120_000.0]) {
        let keys: BTreeSet<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, BTreeSet::from(RUN_KEYS), "{row}");
        assert_eq!((&row["format"], &row["emulated"]), (&"antiphon-run/1".into(), &true.into()));
        // Two steps of a third.
        let expected = 2.0 * (100.0 + size / 3.0 * 1e-3);
        let (predicted, time) = (row["predicted_us"].as_f64().unwrap(), row["time_us"].as_f64().unwrap());
        assert!((predicted - expected).abs() < 1e-6 * expected && time > 0.97 * predicted, "{row}");
        assert!((row["ratio"].as_f64().unwrap() - time / predicted).abs() < 1e-9 * time, "{row}");
        assert!(row["min_us"].as_f64() <= row["time_us"].as_f64() && row["time_us"].as_f64() <= row["p99_us"].as_f64());
    }
    let table = antiphon(&format!("{line} --iterations 1 --slowdown 2")).ok().stdout;
    let head = "emulating ring:3,alpha=100us,bandwidth=1GBps 2 times slower";
    assert!(table.contains(head) && table.contains("predicted"), "{table}");
    let slow = format!("{:.2}", 4.0 * (100.0 + 10.0));
    assert!(table.lines().any(|line| line.split_whitespace().any(|cell| cell == slow)), "no {slow} in\n{table}");
    let csv = antiphon("run --collective allreduce --ranks 2 --size 1K,2K --iterations 1 --csv").ok().stdout;
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert!(lines.len() == 5 && lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    assert!(
        lines[0].contains(&"max_us") && lines[1][lines[0].iter().position(|it| *it == "emulated").unwrap()] == "false"
    );
}

#[test]
fn what_is_left_of_a_size_is_said() {
    let line = "run --collective alltoall --ranks 7 --size 16000000 --iterations 1 --warmups 0";
    let ran = antiphon(line).ok();
    assert!(ran.stderr.contains("16000000") && ran.stderr.contains("15999984"), "{}", ran.stderr);
    let even = antiphon("run --collective alltoall --ranks 4 --size 16000000 --iterations 1 --warmups 0").ok();
    assert!(!even.stderr.contains("note"), "{}", even.stderr);
}

#[test]
fn every_answer_has_its_format_request_and_topology() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok().json();
    here(&format!("{PLAN} -o plan.json --json"));
    here("export plan.json --format msccl-xml -o plan.xml --json");
    let request = "--topology ring:4,direction=both --collective allgather --size 1MB --json";
    let digest = here("topology check ring:4,direction=both --json")["digest"].clone();
    for (line, format) in [
        (format!("synth {request}"), "synth"),
        (format!("bound {request}"), "bound"),
        ("verify plan.json --json".to_owned(), "verify"),
        ("verify plan.xml --topology ring:4,direction=both --json".to_owned(), "verify"),
        ("simulate plan.json --json".to_owned(), "simulate"),
        ("explain plan.json --json".to_owned(), "explain"),
        (format!("synth {request} --strategy exact --pareto --chunks 1"), "pareto"),
    ] {
        let answer = here(&line);
        assert_eq!(answer["format"], format!("antiphon-{format}/1"), "{line}");
        assert_eq!((&answer["topology"]["digest"], &answer["collective"]), (&digest, &"allgather".into()), "{line}");
        assert!(answer["size_bytes"].is_u64() && answer["ranks"] == 4, "{line}: {answer}");
        assert!(answer.to_string().find("\"stopped\"").is_none(), "{line}");
    }
    let candidates = here("explain plan.json --json")["candidates"].clone();
    assert!(candidates.as_array().unwrap().iter().all(|it| it["stop_reason"].is_string()), "{candidates}");
    let content = here("export plan.json --format msccl-xml --json");
    assert!(content["content"].as_str().unwrap().starts_with("<algo"), "{content}");
    for line in ["man --json", "completions bash --json"] {
        let ran = antiphon(line);
        assert!(
            ran.code == 2 && ran.stdout.is_empty() && ran.stderr.contains("no JSON form"),
            "{line}: {}",
            ran.stderr
        );
    }
}

#[test]
fn errors_are_objects_for_machines() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| {
        let ran = antiphon_in(folder.path(), &format!("{line} --json"));
        assert!(ran.code == 2 && ran.stdout.is_empty(), "{line}: {}", ran.stdout);
        serde_json::from_str::<Value>(ran.stderr.lines().last().unwrap()).unwrap()
    };
    let machine = "format: antiphon-cluster/1\nname: lab\nmachines:\n- {spec: dgx9}\n";
    fs::write(folder.path().join("lab.yaml"), machine).unwrap();
    let wrong = here("topology check lab.yaml");
    assert_eq!((&wrong["format"], &wrong["kind"]), (&"antiphon-error/1".into(), &"bad_input".into()), "{wrong}");
    assert_eq!((&wrong["file"], &wrong["line"]), (&"lab.yaml".into(), &4.into()), "{wrong}");
    assert!(wrong["column"].is_u64() && wrong["text"].as_str().unwrap().contains("dgx1"), "{wrong}");
    fs::write(folder.path().join("out.json"), "x").unwrap();
    assert_eq!(here(&format!("{PLAN} -o out.json"))["hint"], "--force replaces it");
    let misused = here("synth --sise 4");
    assert!(misused["text"].as_str().unwrap().contains("--sise") && misused["file"].is_null(), "{misused}");
}

#[test]
fn every_command_has_a_man_page_and_none_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    antiphon_in(folder.path(), "man --all -o pages").ok();
    let pages: BTreeSet<String> = fs::read_dir(folder.path().join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in ["antiphon.1", "antiphon-run.1", "antiphon-topology-show.1", "antiphon-man.1"] {
        assert!(pages.contains(page), "{page} is not among {pages:?}");
    }
    for page in &pages {
        let text = fs::read_to_string(folder.path().join("pages").join(page)).unwrap().replace('\\', "");
        for named in text.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
            assert!(pages.contains(&format!("{named}.1")), "{page} names {named}(1)");
        }
    }
    let run = antiphon("man run").ok().stdout;
    assert!(run.contains(".SH EXAMPLES") && run.contains("slowdown"), "{run}");
    assert!(antiphon("run --help").ok().stdout.contains("Who starts the ranks:"));
    assert!(antiphon("synth -h").ok().stdout.contains("Examples:"));
}

#[test]
fn colours_are_as_asked_for() {
    let drawn = |more: &str| antiphon(&format!("topology show dgx1 --heat-map {more}")).ok().stdout;
    assert!(drawn("--color always").contains('\u{1b}'));
    assert!(!drawn("--color never").contains('\u{1b}') && !drawn("").contains('\u{1b}'));
}

#[test]
fn mistakes_name_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |line: &str| {
        let ran = antiphon_in(folder.path(), line);
        assert_eq!(ran.code, 2, "{line}: {}", ran.stderr);
        ran.stderr
    };
    let topology = antiphon("topology show dgx1 --json").ok().stdout;
    fs::write(folder.path().join("t.json"), topology).unwrap();
    let said = refused("verify t.json");
    assert!(said.contains("this is a topology") && said.contains("antiphon topology check t.json"), "{said}");
    let plan = "synth --topology ring:4 --size 1MB --collective";
    assert!(refused(&format!("{plan} broadcast --root 9")).contains("which are 0-3"));
    assert!(refused(&format!("{plan} allgather --members 0-5")).contains("ranks are 0-3"));
    assert!(refused(&format!("{plan} broadcast --members 0-1,3 --root 2")).contains("0-1,3"));
    assert!(refused(&format!("{plan} allgather --gap 2")).contains("`2%`"));
    antiphon(&format!("{plan} allgather --strategy classic --gap 2% --time-limit 1h30m -q")).ok();
}

#[test]
fn a_demo_that_cannot_be_is_refused_before_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    for line in ["demo --emulate dgx9", "demo --sketch missing.yaml", "demo --emulate ring:3 --sketch bad.yaml"] {
        fs::write(folder.path().join("bad.yaml"), "name: bad\nlinks: {forbid: [{from: 0, to: 9}]}\n").unwrap();
        let ran = antiphon_in(folder.path(), line);
        assert_eq!(ran.code, 2, "{line}: {}", ran.stderr);
        assert!(!Path::new(&folder.path().join("demo-out")).exists(), "{line} left something");
    }
}
