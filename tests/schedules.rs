//! Plans of many machines and collectives, judged by a checker that shares no code with the project.

use crate::binary::{antiphon, antiphon_in, read, repository, topology};
use crate::checker::{Wish, judge};
use serde_json::Value;
use synth::StrategyKind;

/// Plans `wish` on `spec` with extra options; returns (schedule file, report).
fn plan(spec: &str, wish: &Wish, options: &str) -> (Value, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let members: Vec<String> = wish.members.iter().map(ToString::to_string).collect();
    let members = match wish.members.len() as u64 == wish.ranks {
        true => String::new(),
        false => format!("--members {}", members.join(",")),
    };
    let (collective, size, output) = (wish.collective, wish.size, path.display());
    let line = format!(
        "synth --topology {spec} --collective {collective} --size {size} {members} {options} --json --force -o {output}"
    );
    let report = antiphon(&line).ok().json();
    (read(&path), report)
}

/// A plan for a user's own machine needs neither the machine's file nor `--topology` in later commands.
#[test]
fn a_plan_knows_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    let machine = "format: antiphon-topology/1\nname: mine\nranks: 2\nlinks:\n\
        - {from: 0, to: 1, alpha_us: 1, beta_us_per_byte: 0.001}\n\
        - {from: 1, to: 0, alpha_us: 3, beta_us_per_byte: 0.001}\n";
    std::fs::write(folder.path().join("mine.yaml"), machine).unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology mine.yaml --collective allgather --size 1KB --time-limit 1s -o plan.json").ok();
    std::fs::remove_file(folder.path().join("mine.yaml")).unwrap();
    for command in ["verify plan.json", "simulate plan.json", "explain plan.json", "export plan.json --format dot"] {
        run(command).ok();
    }
    let other = run("verify plan.json --topology ring:2");
    assert_eq!(other.code, 1, "{}", other.stdout);
    assert!(other.stdout.contains("digest"), "{}", other.stdout);
    // A machine that was changed afterwards is another machine.
    let text = std::fs::read_to_string(folder.path().join("plan.json")).unwrap();
    std::fs::write(folder.path().join("plan.json"), text.replace("\"alpha_us\":3.0", "\"alpha_us\":2.0")).unwrap();
    let changed = run("verify plan.json");
    assert!(changed.code == 2 && changed.stderr.contains("plan.json:"), "{}", changed.stderr);
}

fn judged(spec: &str, wish: &Wish, options: &str) -> f64 {
    judged_plan(spec, wish, options).1
}

/// The plan as well.
fn judged_plan(spec: &str, wish: &Wish, options: &str) -> (Value, f64) {
    let (schedule, report) = plan(spec, wish, options);
    let makespan = judge(&schedule, &topology(spec), wish);
    let makespan = makespan.unwrap_or_else(|error| panic!("{spec} {} {options}: {error}", wish.collective));
    assert!((report["makespan_us"].as_f64().unwrap() - makespan).abs() <= 1e-6 * makespan, "{spec}: {report}");
    (schedule, makespan)
}

const COLLECTIVES: &[&str] =
    &["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"];

#[test]
fn every_collective_on_every_kind_of_machine() {
    for (spec, ranks) in [
        ("ring:5", 5),
        ("ring:4,direction=both", 4),
        ("line:3", 3),
        ("clique:3,alpha=2us,bandwidth=1GBps,latency=pipelines", 3),
        ("mesh2d:2x3", 6),
        ("torus2d:3x3,bandwidth=50GBps/75GBps", 9),
        ("switch:7", 7),
        ("dgx1", 8),
    ] {
        for collective in COLLECTIVES {
            let wish = Wish::all(collective, ranks, 100_001);
            judged(spec, &wish, "--strategy matching");
        }
    }
}

/// The collectives of [`every_strategy_returns_the_same_kind_of_answer`] that a strategy does not plan.
fn refused(strategy: StrategyKind) -> &'static [&'static str] {
    match strategy {
        StrategyKind::Orbits => &["broadcast"],
        StrategyKind::Flow => &["allgather", "reducescatter", "allreduce", "broadcast"],
        StrategyKind::Levels | StrategyKind::Trees => &["alltoall"],
        StrategyKind::Symmetric => &["alltoall", "broadcast"],
        _ => &[],
    }
}

#[test]
fn every_strategy_returns_the_same_kind_of_answer() {
    for collective in ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"] {
        let wish = Wish::all(collective, 5, 1 << 20);
        judged("clique:5", &wish, "--strategy auto --chunks 1");
        for &strategy in StrategyKind::ALL {
            let name = strategy.as_str();
            let options = format!("--strategy {name} --chunks 1");
            if refused(strategy).contains(&collective) {
                let ran = antiphon(&format!(
                    "synth --topology clique:5 --collective {collective} --size 1MiB {options} -o never.json"
                ));
                assert!(ran.code == 1 && ran.stderr.contains("has no schedule for this problem"), "{}", ran.stderr);
                continue;
            }
            let (schedule, _) = judged_plan("clique:5", &wish, &options);
            let found_by = schedule["produced_by"]["strategy"].as_str().unwrap();
            assert!(found_by.starts_with(name), "{collective}: {found_by}, not {name}");
        }
    }
}

#[test]
fn machines_with_unequal_links_and_shared_resources() {
    for (spec, ranks, size, most) in [
        // Best known or published makespans, with a tolerance for later changes.
        ("ndv2x2", 16, 1_000_000_000, 43_800.0),
        ("ndv2x2", 16, 1_000, 4.3),
        ("dgx2x2", 32, 1_000, 4.3),
        ("ndv2x3", 24, 1_000_000, 100.0),
        ("torus2d:4x4,alpha=0.5us,bandwidth=50GiBps", 16, 16 << 20, 4.0 * 20.03126),
    ] {
        let wish = Wish::all("allgather", ranks, size);
        let makespan = judged(spec, &wish, "--strategy matching --chunks 1");
        assert!(makespan <= most, "{spec} {size}: {makespan} µs");
    }
}

#[test]
fn milp_alone_is_as_good_as_matching_where_its_models_are_small() {
    for spec in ["ndv2x1", "mesh2d:2x4"] {
        let wish = Wish::all("allgather", 8, 8_000_000);
        let matching = judged(spec, &wish, "--strategy matching --chunks 1");
        let (_, report) = plan(spec, &wish, "--strategy milp --chunks 1 --time-limit 10s");
        let milp = report["makespan_us"].as_f64().unwrap();
        assert!(milp <= matching * 1.01, "{spec}: milp {milp}, matching {matching}");
        assert!(report["strategy"].as_str().unwrap().starts_with("milp-"), "{report}");
        assert_eq!(report["warm_start"], Value::Null, "{report}");
        let tried = report["candidates"].as_array().unwrap();
        assert!(tried.iter().all(|it| it["strategy"].as_str().unwrap().starts_with("milp-")), "{report}");
    }
}

#[test]
fn a_search_begins_with_the_plan_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    let synth = |rest: &str| run(&format!("synth --topology dgx1 --collective allgather --json --force {rest}"));
    let classic = synth("--size 8MB --chunks 3 --strategy classic -o warm.json").ok().json();
    let (name, before) = (classic["strategy"].clone(), classic["makespan_us"].as_f64().unwrap());
    // At a chunk count that the search would not have tried.
    let report = synth("--size 8MB --warm warm.json --strategy improve -o plan.json").ok().json();
    assert_eq!(report["warm_start"], name);
    assert!(report["makespan_us"].as_f64().unwrap() < before, "{report}");
    assert_eq!(read(&folder.path().join("plan.json"))["produced_by"]["options"]["warm_start"], name);
    // Where the strategy asked for finds nothing better, the plan stands, under its own name.
    let kept = synth("--size 8MB --chunks 3 --warm warm.json --strategy flow").ok().json();
    assert_eq!((&kept["strategy"], &kept["warm_start"]), (&name, &name));
    for other in ["--size 9MB --warm warm.json", "--size 8MB --chunks 2 --warm warm.json"] {
        let ran = synth(other);
        assert!(ran.code == 2 && ran.stderr.contains("warm.json: is for"), "{other}: {}", ran.stderr);
    }
    let ran = run("synth --topology ring:9 --collective allgather --size 8MB --warm warm.json");
    assert!(ran.code == 1 && ran.stderr.contains("warm.json: cannot be repaired"), "{}", ran.stderr);
}

#[test]
fn a_plan_for_a_machine_that_has_changed_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    let request = "--collective allgather --size 12MB --chunks 2 --json";
    run(&format!("synth --topology torus2d:3x4 {request} --strategy matching -o whole.json")).ok();
    // One cable less.
    let mut machine = run("topology show torus2d:3x4 --json").ok().json();
    let links = machine["links"].as_array_mut().unwrap();
    let joins = |link: &Value, a: u64, b: u64| link["from"].as_u64() == Some(a) && link["to"].as_u64() == Some(b);
    links.retain(|link| !joins(link, 0, 1) && !joins(link, 1, 0));
    for (id, link) in links.iter_mut().enumerate() {
        link["id"] = id.into();
    }
    machine.as_object_mut().unwrap().remove("digest");
    std::fs::write(folder.path().join("cut.json"), machine.to_string()).unwrap();
    let repaired = run(&format!("synth --topology cut.json {request} --warm whole.json --strategy flow -o now.json"));
    let repaired = repaired.ok();
    assert!(repaired.stderr.contains("whole.json is for another machine, and was repaired"), "{}", repaired.stderr);
    assert_eq!(repaired.json()["strategy"], "repair");
    run("verify now.json --topology cut.json").ok();
    // A rank that takes part no more.
    let fewer =
        run(&format!("synth --topology torus2d:3x4 {request} --warm whole.json --members 0-10 --strategy flow"));
    assert_eq!(fewer.ok().json()["warm_start"], "repair");
    // What is wrong with a plan on its own machine is not repaired.
    let mut broken = read(&folder.path().join("whole.json"));
    broken["transfers"].as_array_mut().unwrap().pop();
    std::fs::write(folder.path().join("broken.json"), broken.to_string()).unwrap();
    let refused = run(&format!("synth --topology cut.json {request} --warm broken.json"));
    assert!(refused.code == 1 && refused.stderr.contains("broken.json"), "{}", refused.stderr);
}

#[test]
fn some_ranks_take_part_and_the_others_may_relay() {
    for collective in COLLECTIVES {
        let root = ["broadcast", "reduce", "gather", "scatter"].contains(collective).then_some(1);
        let wish = Wish { collective, ranks: 6, members: vec![1, 3, 4], size: 3000, root };
        judged("mesh2d:2x3", &wish, "--strategy matching --chunks 2");
    }
}

#[test]
fn a_topology_that_nobody_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.json");
    // Seven ranks, a directed cycle with chords of other costs, both kinds of latency, one shared resource.
    let mut links = Vec::new();
    for rank in 0..7u64 {
        for (step, beta, latency) in [(1, 1e-4, "occupies"), (3, 3e-4, "pipelines")] {
            let (from, to) = (rank, (rank + step) % 7);
            let resources = if step == 3 { vec![0] } else { vec![] };
            links.push(serde_json::json!({"id": links.len(), "from": from, "to": to, "alpha_us": 0.3 * step as f64,
                "beta_us_per_byte": beta, "latency": latency, "resources": resources}));
        }
    }
    let odd = serde_json::json!({"format": "antiphon-topology/1", "name": "odd", "ranks": 7, "machines": [[0,1,2,3],[4,5,6]],
        "links": links, "resources": [{"id": 0, "name": "shared", "beta_us_per_byte": 2e-4}]});
    std::fs::write(&path, odd.to_string()).unwrap();
    let spec = path.to_str().unwrap();
    for collective in COLLECTIVES {
        judged(spec, &Wish::all(collective, 7, 50_000), "");
    }
}

#[test]
fn the_published_example_pair_verifies() {
    // The example of the file format, in the form that other tools write.
    let example = repository("tests/data/example-schedule.json");
    let answer = antiphon(&format!("verify {} --json", example.display())).ok().json();
    assert_eq!(answer["ok"], true);
    let wish = Wish::all("allgather", 3, 300);
    assert_eq!(judge(&read(&example), &topology("ring:3,alpha=1us,bandwidth=100MBps"), &wish), Ok(4.0));
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, options: &str| {
        let path = folder.path().join(name);
        let line = "synth --topology ndv2x1 --collective alltoall --size 1MB";
        antiphon(&format!("{line} {options} --force -o {}", path.display())).ok();
        std::fs::read(&path).unwrap()
    };
    let first = written("a.json", "--seed 7");
    assert_eq!(first, written("b.json", "--seed 7"));
    assert_eq!(first, written("c.json", "--seed 7 --threads 1"));
}

#[test]
fn bounds_never_exceed_what_was_found_and_name_their_certificate() {
    for (spec, ranks) in [("dgx1", 8), ("ndv2x2", 16), ("torus2d:3x5", 15), ("switch:5", 5)] {
        for collective in ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"] {
            let request = format!("--topology {spec} --collective {collective} --size 1000000 --chunks 1");
            let bound = antiphon(&format!("bound {request} --json")).ok().json();
            let makespan = judged(spec, &Wish::all(collective, ranks, 1_000_000), "--strategy matching --chunks 1");
            let value = bound["lower_bound_us"].as_f64().unwrap();
            assert!(value > 0.0 && value <= makespan * (1.0 + 1e-7), "{spec} {collective}: {value} > {makespan}");
            let binding = bound["bounds"].as_array().unwrap().iter().find(|b| b["name"] == bound["binding"]).unwrap();
            assert!(binding["certificate"].is_object(), "{binding}");
        }
    }
}

#[test]
fn explain_says_what_binds_what_would_help_and_who_else_tried() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    antiphon(&format!("synth --topology ndv2x2 --collective allgather --size 1GB --gap 5% -o {}", plan.display())).ok();
    let told = antiphon(&format!("explain {} --json", plan.display())).ok().json();
    let leverage = &told["leverage"];
    assert_eq!(leverage["binding"], "cut");
    // 8 GB cross a link of 12.5 GB/s.
    let network =
        leverage["levers"].as_array().unwrap().iter().find(|it| it["name"].as_str().unwrap().contains("between"));
    let network = network.expect("the network is a lever");
    assert!((network["price_us_per_percent"].as_f64().unwrap() - 396.0).abs() < 1.0, "{network}");
    assert!(network["makespan_us"].as_f64().unwrap() < told["makespan_us"].as_f64().unwrap());
    let tried = told["candidates"].as_array().unwrap();
    // The plan with one chunk per rank is the best for that count, but a plan with more chunks won.
    let at_one = tried.iter().find(|it| it["chunks_per_rank"] == 1).unwrap();
    assert!((at_one["makespan_us"].as_f64().unwrap() - 43_752.7).abs() < 0.1, "{tried:?}");
    assert!(tried.iter().all(|it| it["stop_reason"].as_str().is_some()));
    assert_eq!(told["links"].as_array().unwrap().len(), topology("ndv2x2")["links"].as_array().unwrap().len());
    // The provenance is part of the file and contains no times, so planning again gives the same bytes.
    let again = folder.path().join("again.json");
    antiphon(&format!("synth --topology ndv2x2 --collective allgather --size 1GB --gap 5% -o {}", again.display()))
        .ok();
    assert_eq!(std::fs::read(plan).unwrap(), std::fs::read(again).unwrap());
}
