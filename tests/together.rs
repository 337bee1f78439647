//! Several plans at the same time, and groups of ranks, with the commands of a user.

use crate::binary::{antiphon, antiphon_in};
use serde_json::Value;

fn rows(arguments: &str) -> Vec<Value> {
    let ran = antiphon(&format!("run {arguments} --iterations 2 --warmups 1 --json")).ok();
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks that every row is right and names its plan, and that no plan takes longer than all of them.
fn are_right(rows: &[Value], groups: &[&[u32]]) {
    let count = groups.len();
    assert!(!rows.is_empty() && rows.len().is_multiple_of(count), "{rows:?}");
    for calls in rows.chunks(count) {
        for ((number, group), row) in (1..).zip(groups).zip(calls) {
            assert_eq!((&row["wrong"], &row["number"]), (&Value::from(0), &Value::from(number)), "{row}");
            assert_eq!(row["group"], Value::from(group.to_vec()));
            assert_eq!(row["together_us"], calls[0]["together_us"]);
            assert!(row["time_us"].as_f64() <= row["together_us"].as_f64() || row["time_us"] == 0.0, "{row}");
        }
    }
}

#[test]
fn a_collective_runs_in_all_groups_at_once_over_every_transport() {
    let groups: [&[u32]; 3] = [&[0, 2, 4], &[1, 3], &[6]];
    for transport in ["threads", "shm", "tcp"] {
        for collective in ["allreduce", "alltoall", "broadcast --root 0"] {
            let line = format!("--collective {collective} --size 0,4004,400000 --ranks 7 --split 0,2,4/1,3/6");
            let rows = rows(&format!("{line} --transport {transport}"));
            are_right(&rows, &groups);
            assert_eq!(rows.len(), 3 * 3 * 2);
        }
    }
}

#[test]
fn a_group_counts_its_ranks_from_zero_on_an_emulated_machine_too() {
    for emulate in ["", "--emulate dgx1 --slowdown 5"] {
        let groups: [&[u32]; 2] = [&[0, 1, 2, 3], &[4, 5, 6, 7]];
        are_right(
            &rows(&format!("--collective reduce --root 1 --size 40000 --ranks 8 --split size=4 {emulate}")),
            &groups,
        );
    }
}

#[test]
fn plans_of_files_run_together_and_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |topology: &str, collective: &str, name: &str| {
        let made =
            format!("synth --topology {topology} --collective {collective} --size 1MB --time-limit 1s -o {name}");
        antiphon_in(folder.path(), &made).ok();
        folder.path().join(name).display().to_string()
    };
    let gather = plan("ring:4,direction=both", "allgather", "a.json");
    let reduce = plan("clique:4", "allreduce", "b.json");
    let (all, high): (&[u32], &[u32]) = (&[0, 1, 2, 3], &[2, 3, 4, 5]);
    for transport in ["threads", "shm", "tcp"] {
        let both = rows(&format!("{gather} {reduce} {gather} --transport {transport}"));
        are_right(&both, &[all, all, all]);
        assert_eq!([&both[0]["collective"], &both[1]["collective"]], ["allgather", "allreduce"]);
    }
    // One plan for every group, or one for each; groups may overlap.
    are_right(&rows(&format!("{gather} --split 0-3/2-5 --size 40000")), &[all, high]);
    are_right(&rows(&format!("{gather} {reduce} --split 0-3/2-5 --size 40000,8")), &[all, high]);
    for (line, what) in [
        (format!("{gather} --split 0-3/4-6"), "the plan has 4 ranks, but its group has 3"),
        (format!("{gather} {reduce} --split 0-3"), "2 plans cannot run in 1 groups"),
        (format!("{gather} {reduce} --ranks 5"), "the plan has 4 ranks, but 5 are to run"),
        (format!("{gather} --split 0-3/4-7 --ranks 7"), "--split names rank 7, but 7 ranks are to run"),
        ("--collective allreduce --size 8 --ranks 4 --split 0,1/1,1".to_owned(), "names rank 1 twice"),
        ("--collective allreduce --size 8 --ranks 4 --split 0/1 --members 0".to_owned(), "cannot be used with"),
    ] {
        let ran = antiphon(&format!("run {line}"));
        assert!(ran.code == 2 && ran.stderr.contains(what), "{line}: {}", ran.stderr);
    }
}

#[test]
fn collectives_of_several_groups_are_planned_together_and_the_plan_is_checked_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let groups = "groups:\n  - {members: [0, 2, 4], collective: allreduce, size: 60KB}\n  \
                  - {members: [1, 3, 5], collective: broadcast, size: 30KB, root: 3}\n";
    std::fs::write(folder.path().join("g.yaml"), groups).unwrap();
    std::fs::write(folder.path().join("other.yaml"), groups.replace("root: 3", "root: 5")).unwrap();
    let asked = "--topology fat-tree:2x3 --time-limit 2s --force -o plan.json --json";
    let alone = |what: &str| {
        let line = format!("synth --topology fat-tree:2x3 --strategy classic --json {what}");
        let found = here(&line).ok().json();
        (found["makespan_us"].as_f64().unwrap(), found["lower_bound_us"].as_f64().unwrap())
    };
    let first = alone("--collective allreduce --members 0,2,4 --size 60KB");
    for (line, second) in [
        ("--collective custom --demand g.yaml", "--collective broadcast --members 1,3,5 --root 3 --size 30KB"),
        (
            "--collective allreduce --groups 0,2,4/1,3,5 --size 60KB",
            "--collective allreduce --members 1,3,5 --size 60KB",
        ),
    ] {
        let second = alone(second);
        let found = here(&format!("synth {line} {asked}")).ok().json();
        let (makespan, bound) = (found["makespan_us"].as_f64().unwrap(), found["lower_bound_us"].as_f64().unwrap());
        let nearly = 1.0 + 1e-9;
        assert!(bound <= makespan * nearly && bound * nearly >= first.1.max(second.1), "{line}: {bound} {makespan}");
        assert!(makespan <= (first.0 + second.0) * nearly, "{line}: {makespan} {first:?} {second:?}");
        let ran = here("run plan.json --iterations 2 --warmups 1 --json").ok();
        let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| row["wrong"] == 0), "{rows:?}");
        let is_listed = line.contains("g.yaml");
        assert_eq!(here("verify plan.json --demand g.yaml").code, i32::from(!is_listed));
        assert_eq!(here("verify plan.json --demand other.yaml").code, 1);
    }
    for (line, reason) in [
        ("--collective allgather --groups 0,1/2,9 --size 1KB", "rank 9 does not exist"),
        ("--collective allgather --groups 0,1/2,3 --members 0 --size 1KB", "cannot be used with"),
        ("--collective allgather --groups 0,1/2,3 --sizes 1KB,1MB", "--groups is for one --size"),
    ] {
        let refused = here(&format!("synth --topology fat-tree:2x3 {line}"));
        assert!(refused.code == 2 && refused.stderr.contains(reason), "{line}: {}", refused.stderr);
    }
}

#[test]
fn the_bound_of_several_groups_holds_for_their_plan_and_is_no_lower_than_that_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let of = |line: &str| {
        let found = here(&format!("bound --topology dgx1 --json {line}")).ok().json();
        (found["lower_bound_us"].as_f64().unwrap(), found)
    };
    for (collective, size) in [("allgather", "64MB"), ("reducescatter", "64MB"), ("allreduce", "1KB")] {
        let groups = format!(
            "groups:\n  - {{members: [0, 2, 4, 6], collective: {collective}, size: {size}}}\n  \
             - {{members: [1, 3, 5, 7], collective: {collective}, size: {size}}}\n"
        );
        std::fs::write(folder.path().join("g.yaml"), groups).unwrap();
        let asked = format!("--collective {collective} --size {size}");
        // Bounds take a second or two; what a limit cuts short would differ from run to run.
        for chunks in ["", "--chunks 2 --time-limit 20s"] {
            let (bound, found) = of(&format!("{asked} --groups 0,2,4,6/1,3,5,7 {chunks}"));
            assert_eq!(found["format"], "antiphon-bound/1");
            assert!(found["bounds"].as_array().unwrap().len() > 4, "{found}");
            let (listed, _) = of(&format!("--collective custom --demand g.yaml {chunks}"));
            assert_eq!(bound, listed, "{asked} {chunks}");
            for members in ["0,2,4,6", "1,3,5,7"] {
                let (alone, _) = of(&format!("{asked} --members {members} {chunks}"));
                assert!(alone <= bound * (1.0 + 1e-9), "{asked} {chunks}: {alone} of {members}, but {bound} of all");
            }
        }
        let (bound, _) = of(&format!("{asked} --groups 0,2,4,6/1,3,5,7"));
        let line = format!("synth --topology dgx1 {asked} --groups 0,2,4,6/1,3,5,7 --strategy matching --json");
        let makespan = here(&line).ok().json()["makespan_us"].as_f64().unwrap();
        assert!(bound <= makespan * (1.0 + 1e-9), "{asked}: {bound} {makespan}");
    }
    // Both groups want the same links, so the bound of both together is higher than that of one.
    let (both, _) = of("--collective allgather --size 64MB --groups 0,2,4,6/1,3,5,7");
    let (one, _) = of("--collective allgather --size 64MB --members 0,2,4,6");
    assert!(both > one * 1.2, "{both} {one}");
    let told = here("bound --topology dgx1 --collective allgather --size 64MB --groups 0,2,4,6/1,3,5,7").ok();
    assert!(told.stdout.contains("lower bound") && told.stdout.contains("certificate"), "{}", told.stdout);
    for (line, reason) in [
        ("--collective allgather --groups 0,1/2,9 --size 1KB", "rank 9 does not exist"),
        ("--collective allgather --groups 0,1/2,3", "--size"),
    ] {
        let refused = here(&format!("bound --topology dgx1 {line}"));
        assert!(refused.code == 2 && refused.stderr.contains(reason), "{line}: {}", refused.stderr);
    }
}

#[test]
fn groups_that_start_later_are_planned_bounded_verified_explained_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let groups = "groups:\n  - {members: [0, 2, 4], collective: allgather, size: 60KB}\n  \
                  - {members: [1, 3, 5], collective: allreduce, size: 30KB, start: 50us}\n";
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("g.yaml", groups);
    write("at-once.yaml", &groups.replace(", start: 50us", ""));
    let asked = "--topology fat-tree:2x3 --collective custom";
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let bound =
        |file: &str| number(&here(&format!("bound {asked} --demand {file} --json")).ok().json(), "lower_bound_us");
    let alone = number(
        &here("bound --topology fat-tree:2x3 --collective allreduce --members 1,3,5 --size 30KB --json").ok().json(),
        "lower_bound_us",
    );
    assert!(bound("g.yaml") >= (50.0 + alone) * (1.0 - 1e-9) && bound("g.yaml") > bound("at-once.yaml"));
    let told = here(&format!("bound {asked} --demand g.yaml")).ok();
    assert!(told.stdout.contains("what starts at 50 µs or later: "), "{}", told.stdout);
    let found = here(&format!("synth {asked} --demand g.yaml --strategy matching -o plan.json --json")).ok().json();
    assert!(number(&found, "makespan_us") >= bound("g.yaml") * (1.0 - 1e-9), "{found}");
    let plan: Value = serde_json::from_slice(&std::fs::read(folder.path().join("plan.json")).unwrap()).unwrap();
    let chunks = plan["chunks"].as_array().unwrap();
    let is_late = |id: &Value| chunks.iter().any(|chunk| chunk["id"] == *id && chunk["release_us"] == 50.0);
    let late = |transfer: &&Value| transfer["chunks"].as_array().unwrap().iter().any(is_late);
    let transfers = plan["transfers"].as_array().unwrap();
    assert!(transfers.iter().any(|transfer| !late(&transfer)) && transfers.iter().any(|it| late(&it)));
    assert!(transfers.iter().filter(late).all(|transfer| number(transfer, "start_us") >= 50.0), "{transfers:?}");
    // The verifier knows the starts, and compares them with those of a demand file.
    assert_eq!(here("verify plan.json --program --demand g.yaml").code, 0);
    let other = here("verify plan.json --demand at-once.yaml");
    assert!(other.code == 1 && other.stdout.contains("start at 50 µs"), "{} {}", other.stdout, other.stderr);
    let text = serde_json::to_string(&plan).unwrap();
    write("later.json", &text.replace("\"release_us\":50.0", "\"release_us\":51.0"));
    let refused = here("verify later.json");
    assert!(
        refused.code == 1 && refused.stdout.contains("holds it only from 51 µs"),
        "{} {}",
        refused.stdout,
        refused.stderr
    );
    let explained = here("explain plan.json").ok();
    assert!(explained.stdout.contains("waited for the start of chunk"), "{}", explained.stdout);
    here("simulate plan.json").ok();
    let ran = here("run plan.json --iterations 2 --warmups 1 --json").ok();
    let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["wrong"] == 0), "{rows:?}");
    for (start, reason) in [("20", "20us"), ("-1us", "-1us"), ("2000s", "starts between 0")] {
        write("bad.yaml", &groups.replace("50us", start));
        let refused = here(&format!("synth {asked} --demand bad.yaml"));
        assert!(refused.code == 2 && refused.stderr.contains(reason), "{start}: {}", refused.stderr);
    }
    for strategy in ["milp", "exact"] {
        let refused = here(&format!("synth {asked} --demand g.yaml --strategy {strategy}"));
        assert!(refused.code == 1 && refused.stderr.contains("groups that start later"), "{}", refused.stderr);
    }
}
