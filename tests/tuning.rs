//! `antiphon tune`, from the ranks to a table that can be read, checked and compared.

use crate::binary::{antiphon, antiphon_in, read};
use serde_json::Value;

#[test]
fn a_table_holds_what_was_measured_and_its_plans() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology clique:3 --collective allgather --size 64KB --chunks 3 -o mine.json").ok();
    let line =
        "tune --ranks 3 --collective allreduce,allgather --sizes 1KiB,64KiB --budget 6s --launches 2 --plans mine.json";
    let told = run(&format!("{line} -o table.json --samples samples.jsonl --log log --load-aware --json")).ok().json();
    assert_eq!(told["refused"], serde_json::json!([]), "{told}");
    let table = read(&folder.path().join("table.json"));
    assert_eq!(table["format"], "antiphon-table/1");
    assert_eq!(table["key"]["machines"], Value::from(vec![0, 0, 0]));
    for cell in table["cells"].as_array().unwrap() {
        let mut next = Value::from(0);
        for range in cell["ranges"].as_array().unwrap() {
            assert_eq!(range["from_bytes"], next, "{cell}");
            next = range["to_bytes"].clone();
            if let Some(plan) = range["plan"].as_str() {
                assert!(table["plans"].get(plan).is_some(), "{plan}");
            }
        }
        assert!(next.is_null());
    }
    // Both sizes of both collectives were measured, and so was the plan that competes.
    let samples = std::fs::read_to_string(folder.path().join("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = |name: &str, collective: &str| {
        let is_it = |line: &&Value| {
            line["launch"] == 1 && line["collective"] == collective && line["name"].as_str().unwrap().contains(name)
        };
        samples.iter().filter(is_it).count()
    };
    assert_eq!([first("stock", "allgather"), first("mine.json", "allgather")], [2, 2]);
    assert!(first("stock", "allreduce") >= 2 && first("mine.json", "allreduce") == 0);
    assert!(samples.iter().all(|line| line["refusal"].is_null()));

    // Every rank has written down the same cells, and nothing failed.
    let report = read(&folder.path().join("log/report.json"));
    let lines: Vec<u64> = ["0", "1", "2"].iter().map(|rank| report["lines"][rank].as_u64().unwrap()).collect();
    assert!(lines[0] > 8 && lines.iter().all(|of| *of == lines[0]), "{report}");
    assert_eq!((&report["quarantine"], &report["problem_ranks"]), (&serde_json::json!([]), &serde_json::json!([])));
    // Beside computing, the same candidates ran.
    let loaded = told["loaded"].as_array().unwrap();
    assert_eq!(loaded.len(), 4, "{told}");
    assert!(loaded.iter().all(|cell| cell["loaded"].as_array().unwrap().contains(&"stock".into())), "{told}");

    run("tune verify table.json").ok();
    assert!(run("tune show table.json").ok().stdout.contains("allgather"));
    assert!(run("tune diff table.json table.json").ok().stdout.contains("no size has another choice"));
    assert_eq!(run(&format!("{line} -o table.json")).code, 2, "a table is not replaced unasked");
}

#[test]
fn tables_that_are_damaged_are_refused_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("tune --ranks 2 --collective allgather --sizes 1KiB --budget 2s --launches 1 -o table.json").ok();
    let path = folder.path().join("table.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (damaged, expected) in [
        (text[..text.len() / 2].to_owned(), "table.json:"),
        (text.replace("\"from_bytes\": 0", "\"from_bytes\": 1"), "a gap or overlap at 1 bytes"),
        (text.replace("antiphon-table/1", "antiphon-table/9"), "antiphon-table/9"),
        (text.replace("\"ranks\": 2", "\"ranks\": 3"), "has 3 ranks, and the machines of 2"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        for command in ["show", "verify"] {
            let ran = run(&format!("tune {command} table.json"));
            assert!(ran.code == 2 && ran.stderr.contains(expected), "{command}: {}", ran.stderr);
        }
    }
}

#[test]
fn what_cannot_be_tuned_is_named() {
    for (line, expected) in [
        ("tune --ranks 2 --collective alltoallv -o t.json", "alltoallv"),
        ("tune --ranks 2 --plans nothing.json -o t.json --budget 1s", "nothing.json"),
        ("tune --ranks 2", "--output"),
    ] {
        let ran = antiphon(line);
        assert!(ran.code != 0 && ran.stderr.contains(expected), "{line}: {}", ran.stderr);
    }
}

/// A table that was measured once, so that what is said about tables can be tested without measuring again.
fn by_hand(path: &std::path::Path, plan: &Value, name: &str, sizes: [u64; 2], gain: f64) {
    let times = |centre: f64| {
        serde_json::json!({
            "median_us": centre, "min_us": centre * 0.98, "max_us": centre * 1.05, "p99_us": centre * 1.05,
            "low_us": centre * 0.99, "high_us": centre * 1.01, "samples": 40,
        })
    };
    let evidence = |bytes: u64, choice: f64| {
        serde_json::json!({
            "bytes": bytes, "choice": times(choice), "stock": times(100.0), "launches": 3, "dtype": "f32",
        })
    };
    let [low, high] = sizes;
    let table = serde_json::json!({
        "format": "antiphon-table/1",
        "key": {
            "ranks": 4, "machines": [0, 0, 0, 0], "version": env!("CARGO_PKG_VERSION"), "policy": 1,
        },
        "cells": [{ "collective": "allgather", "ranges": [
            { "from_bytes": 0, "to_bytes": low, "plan": null, "evidence": [] },
            { "from_bytes": low, "to_bytes": high + 1, "plan": name,
              "evidence": [evidence(low, 100.0 / gain), evidence(high, 100.0 / gain)] },
            { "from_bytes": high + 1, "to_bytes": null, "plan": null, "evidence": [] },
        ] }, { "collective": "allreduce", "ranges": [
            { "from_bytes": 0, "to_bytes": null, "plan": null, "evidence": [evidence(low, 100.0)] },
        ] }, { "collective": "reducescatter", "ranges": [
            { "from_bytes": 0, "to_bytes": null, "plan": null, "evidence": [evidence(low, 20.0)] },
        ] }],
        "plans": { name: plan },
    });
    std::fs::write(path, table.to_string()).unwrap();
}

#[test]
fn tables_are_merged_drawn_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology clique:4 --collective allgather --size 64KB --strategy classic -o a.json").ok();
    run("synth --topology clique:4 --collective allgather --size 64KB --strategy matching -o b.json").ok();
    let plan = |name: &str| read(&folder.path().join(name));
    let at = |name: &str| folder.path().join(name);
    by_hand(&at("small.json"), &plan("a.json"), "textbook", [1024, 65536], 1.5);
    by_hand(&at("large.json"), &plan("b.json"), "planned", [16384, 1 << 20], 2.5);
    let told = run("tune merge small.json large.json -o both.json --json").ok().json();
    let conflicts = told["conflicts"].as_array().unwrap();
    assert!(!conflicts.is_empty() && conflicts.iter().all(|conflict| conflict["taken"] == "planned"), "{told}");
    assert!(conflicts.iter().all(|conflict| conflict["why"].as_str().unwrap().contains("exceeds")), "{told}");
    let table = read(&at("both.json"));
    let ranges: Vec<(u64, Value)> = table["cells"][0]["ranges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|range| (range["from_bytes"].as_u64().unwrap(), range["plan"].clone()))
        .collect();
    let named = |plan: &str| Value::from(plan);
    let expected =
        [(0, Value::Null), (1024, named("textbook")), (16384, named("planned")), ((1 << 20) + 1, Value::Null)];
    assert_eq!(ranges, expected);
    run("tune verify both.json").ok();
    assert_eq!(run("tune merge small.json large.json -o both.json").code, 2, "a table is not replaced unasked");

    let shown = run("tune show both.json --svg map.svg").ok().stdout;
    for word in [
        "textbook",
        "planned",
        "2.50×",
        "allreduce 1.024 KB takes 100 µs; reducescatter + allgather would take 86.67 µs",
    ] {
        assert!(shown.contains(word), "no `{word}` in\n{shown}");
    }
    let picture = std::fs::read_to_string(at("map.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("planned") && picture.contains("stock"));
    let judged = run("tune show both.json --json").ok().json();
    let rules: Vec<&Value> = judged["violations"].as_array().unwrap().iter().map(|of| &of["guideline"]).collect();
    let composed = serde_json::json!({ "substitute": ["reducescatter", "allgather"] });
    let expected = [serde_json::json!({ "larger": 16384 }), composed.clone(), composed];
    assert_eq!(rules, expected.iter().collect::<Vec<_>>(), "{judged}");

    std::fs::write(
        at("other.json"),
        std::fs::read_to_string(at("large.json")).unwrap().replace("[0,0,0,0]", "[0,0,1,1]"),
    )
    .unwrap();
    let ran = run("tune merge small.json other.json -o none.json");
    assert!(ran.code == 2 && ran.stderr.contains("machines") && !at("none.json").exists(), "{}", ran.stderr);
}

#[test]
fn what_differs_between_tables_is_told_also_under_the_same_names() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology clique:4 --collective allgather --size 64KB --strategy classic -o a.json").ok();
    run("synth --topology clique:4 --collective allgather --size 64KB --strategy matching -o b.json").ok();
    let at = |name: &str| folder.path().join(name);
    let plans = ["a.json", "b.json"].map(|name| read(&at(name)));
    by_hand(&at("one.json"), &plans[0], "plan", [1024, 65536], 1.5);
    by_hand(&at("two.json"), &plans[1], "plan", [1024, 65536], 1.5);
    by_hand(&at("quick.json"), &plans[0], "plan", [1024, 65536], 2.0);
    let diff = |other: &str| run(&format!("tune diff one.json {other} --json")).ok().json();
    let same = diff("one.json");
    assert!(
        ["key", "differences", "plans", "measured"].iter().all(|part| same[part] == serde_json::json!([])),
        "{same}"
    );
    let other = diff("two.json");
    assert_eq!(other["plans"], serde_json::json!(["plan"]), "{other}");
    assert_eq!(other["differences"], serde_json::json!([["allgather", "1.024 KB", "plan", "plan (another plan)"]]));
    let quick = diff("quick.json");
    assert_eq!(quick["differences"], serde_json::json!([]));
    assert_eq!(quick["measured"].as_array().unwrap().len(), 2, "{quick}");
    let mut table = read(&at("one.json"));
    table["key"]["machines"] = serde_json::json!([0, 0, 1, 1]);
    table["cells"][1]["functions"] = serde_json::json!([{
        "from_bytes": 512, "to_bytes": 2048, "function": "mine", "dtype": "f32", "op": "sum", "evidence": [],
    }]);
    std::fs::write(at("functions.json"), table.to_string()).unwrap();
    let told = run("tune diff one.json functions.json").ok().stdout;
    for expected in ["machines", "[0,0,1,1]", "mine (function, f32 sum), else stock"] {
        assert!(told.contains(expected), "no `{expected}` in\n{told}");
    }
}

#[test]
fn what_is_doubtful_in_a_table_is_told_and_what_misleads_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology clique:4 --collective allgather --size 64KB --strategy classic -o a.json").ok();
    let at = |name: &str| folder.path().join(name);
    by_hand(&at("t.json"), &read(&at("a.json")), "plan", [1024, 65536], 1.5);
    assert_eq!(run("tune verify t.json --json").ok().json()["warnings"], serde_json::json!([]));
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut table = read(&at("t.json"));
        change(&mut table);
        std::fs::write(at("c.json"), table.to_string()).unwrap();
        run("tune verify c.json")
    };
    let doubtful = |expected: &str, change: &dyn Fn(&mut Value)| {
        let told = changed(change).ok().stdout;
        assert!(told.contains("warning: ") && told.contains(expected), "no `{expected}` in\n{told}");
    };
    doubtful("it was not measured there", &|table| table["cells"][0]["ranges"][1]["evidence"] = serde_json::json!([]));
    doubtful("nothing uses the plan `again`", &|table| table["plans"]["again"] = table["plans"]["plan"].clone());
    doubtful("nothing was measured above 65.54 KB", &|table| {
        let ranges = &mut table["cells"][0]["ranges"];
        ranges[1]["to_bytes"] = (1_u64 << 40).into();
        ranges[2]["from_bytes"] = (1_u64 << 40).into();
    });
    let refused = |expected: &str, change: &dyn Fn(&mut Value)| {
        let ran = changed(change);
        assert!(ran.code != 0 && ran.stderr.contains(expected), "no `{expected}` in\n{}{}", ran.stdout, ran.stderr);
    };
    refused("plan `rest`, which serves nothing", &|table| table["plans"]["rest"] = serde_json::json!({ "a": 1 }));
    refused("slower than stock", &|table| {
        let evidence = &mut table["cells"][0]["ranges"][1]["evidence"][0];
        (evidence["choice"], evidence["stock"]) = (evidence["stock"].clone(), evidence["choice"].clone());
    });
    refused("`stock` is no name of a plan", &|table| table["plans"]["stock"] = table["plans"]["plan"].clone());
    // What is not valid is not told to other libraries either.
    changed(&|table| drop(table["plans"]["plan"]["transfers"].as_array_mut().unwrap().pop()));
    let ran = run("tune export c.json --format ompi-rules");
    assert!(ran.code != 0 && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn a_run_uses_what_the_table_chooses() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology ring:4 --collective allgather --size 64KB --strategy classic -o ring.json").ok();
    by_hand(&folder.path().join("t.json"), &read(&folder.path().join("ring.json")), "mine", [1024, 65536], 1.5);
    let rows = |line: &str| -> Vec<(u64, String)> {
        let told = run(line).ok().stdout;
        let rows = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| {
            assert_eq!(row["wrong"], 0, "{row}");
            (row["size_bytes"].as_u64().unwrap(), row["plan"].as_str().unwrap().to_owned())
        })
        .collect()
    };
    let line = "run --collective allgather --ranks 4 --size 512,1024,65536,131072 --table t.json --iterations 3 --json";
    let found = rows(line);
    let of_table = |size: u64| found.iter().filter(|row| row.0 == size).all(|row| row.1 == "classic/ring (table)");
    assert_eq!([512, 1024, 65536, 131_072].map(of_table), [false, true, true, false], "{found:?}");
    assert_eq!(found.len(), 8, "in place and out of place: {found:?}");
    // Ranks that the table is not for run stock, and are told.
    let ran = run("run --collective allgather --ranks 2 --size 1024 --table t.json --iterations 3 --json").ok();
    assert!(!ran.stdout.contains("(table)") && ran.stderr.contains("4 ranks"), "{}{}", ran.stdout, ran.stderr);
    let refused = run("run --collective allgather --ranks 4 --size 1024 --table none.json");
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "there is no table head without a table");
}

#[test]
fn other_libraries_are_told_what_they_know() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology ring:4 --collective allgather --size 64KB --strategy classic -o ring.json").ok();
    let plan = read(&folder.path().join("ring.json"));
    assert_eq!(plan["produced_by"]["strategy"], "classic/ring", "{}", plan["produced_by"]);
    by_hand(&folder.path().join("t.json"), &plan, "mine", [1024, 65536], 1.5);
    let nccl = run("tune export t.json --format nccl-csv").ok();
    assert!(nccl.stdout.contains("allgather,1024,65536,ring,simple,-1,1,4,-1,-1"), "{}", nccl.stdout);
    assert!(nccl.stderr.contains("stock cannot be expressed"), "{}", nccl.stderr);
    let ucc = run("tune export t.json --format ucc").ok().stdout;
    assert_eq!(ucc.trim(), "allgather:1024-65536:host:[4-4]:inf:@ring");
    run("tune export t.json --format ompi-rules -o rules.conf").ok();
    let rules = std::fs::read_to_string(folder.path().join("rules.conf")).unwrap();
    assert!(rules.contains("\n1024 4 0 0\n65537 0 0 0\n"), "{rules}");
    assert_eq!(run("tune export t.json --format ompi-rules -o rules.conf").code, 2, "it is not replaced unasked");
}

/// Two-way rings of four ranks on one machine as a file.
fn ring(path: &std::path::Path, alpha_us: f64, beta_us_per_byte: f64) {
    let mut text =
        String::from("format: antiphon-topology/1\nname: four\nranks: 4\nmachines: [[0, 1, 2, 3]]\nlinks:\n");
    for from in 0..4 {
        for to in [(from + 1) % 4, (from + 3) % 4] {
            text.push_str(&format!(
                "- {{from: {from}, to: {to}, alpha_us: {alpha_us}, beta_us_per_byte: {beta_us_per_byte}, latency: occupies}}\n"
            ));
        }
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_plan_is_compared_with_its_prediction_message_by_message() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    // The ranks behave like a machine on which messages take longer than the plan believes: 3 µs and 1 ns per byte more.
    ring(&folder.path().join("believed.yaml"), 1.0, 0.0001);
    ring(&folder.path().join("real.yaml"), 4.0, 0.0011);
    let request = "--collective allgather --size 64KiB --strategy classic --chunks 1";
    run(&format!("synth --topology believed.yaml {request} -o plan.json")).ok();
    let line =
        "explain plan.json --analyze --emulate real.yaml --slowdown 4000 --iterations 3 --corrected fitted.yaml --json";
    let told = run(line).ok().json();
    let analyzed = &told["analyzed"];
    let number = |value: &Value| value.as_f64().unwrap();
    let steps = analyzed["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 12, "each of 4 blocks travels to 3 others: {analyzed}");
    for step in steps {
        assert!(number(&step["measured_start_us"]) < number(&step["measured_end_us"]), "{step}");
        assert!(number(&step["measured_end_us"]) <= 1.01 * number(&analyzed["high_us"]), "{step}");
    }
    assert_eq!(analyzed["wrong"], 0);
    // The prediction is off by about a factor of seven, and what was fitted corrects it.
    assert!(number(&analyzed["q_error"]) > 3.0, "{analyzed}");
    assert!(number(&analyzed["corrected"]["q_error"]) < 1.25, "{analyzed}");
    assert!(number(&analyzed["kendall_tau"]) > 0.6, "{analyzed}");
    let term = &analyzed["host"][0];
    let (alpha, beta) = (number(&term["alpha_us"]), number(&term["beta_us_per_byte"]));
    assert!((2.0..6.0).contains(&alpha) && (0.0008..0.0012).contains(&beta), "{term}");
    // The corrected topology is one that plans can be made for.
    run(&format!("synth --topology fitted.yaml {request} -o again.json")).ok();
    let predicted = |name: &str| number(&run(&format!("simulate {name} --json")).ok().json()["makespan_us"]);
    let ratio = predicted("again.json") / predicted("plan.json");
    assert!(ratio > 3.0, "{ratio}");
    let ran = run("explain plan.json --analyze --corrected fitted.yaml");
    assert!(ran.code == 2 && ran.stderr.contains("exists"), "{}", ran.stderr);
}

/// Sends of several chunks go out before their turn, and what ranks share limits how fast a corrected link can be.
#[test]
fn messages_of_real_ranks_end_after_they_begin() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology switch:4 --collective allgather --size 1MiB --chunks 8 --strategy orbits -o plan.json").ok();
    let told = run("explain plan.json --analyze --iterations 3 --corrected fitted.yaml --json").ok().json();
    let steps = told["analyzed"]["steps"].as_array().unwrap();
    assert!(steps.len() > 32, "several messages of each rank to another: {}", steps.len());
    for step in steps {
        assert!(step["measured_start_us"].as_f64().unwrap() <= step["measured_end_us"].as_f64().unwrap(), "{step}");
    }
}

#[test]
fn what_a_table_chooses_for_nccl_becomes_rules() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    let table = serde_json::json!({
        "format": "antiphon-table/1",
        "key": {"ranks": 4, "machines": [0, 0, 1, 1], "version": "0.1.0", "policy": 1},
        "cells": [{"collective": "allreduce", "ranges": [
            {"from_bytes": 0, "to_bytes": 4096, "plan": null, "evidence": []},
            {"from_bytes": 4096, "to_bytes": null, "plan": "nccl-ring-ll128", "evidence": []}]}],
        "plans": {"nccl-ring-ll128": {"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll128", "channels": 16}},
    });
    std::fs::write(folder.path().join("t.json"), table.to_string()).unwrap();
    run("tune verify t.json").ok();
    let rule = "allreduce,4096,4294967295,ring,ll128,16,2,4,-1,-1";
    assert!(run("tune export t.json --format nccl-csv").ok().stdout.trim_end().ends_with(rule));
    run("tune export t.json --format nccl-csv -o rules.csv").ok();
    let written = std::fs::read_to_string(folder.path().join("rules.csv")).unwrap();
    assert_eq!(run("tune export t.json --format nccl-csv --json").ok().json()["text"], written);
    assert_eq!(written.lines().nth(1), Some(rule));
    let wrong = table.to_string().replace("\"ring\"", "\"rings\"");
    std::fs::write(folder.path().join("w.json"), wrong).unwrap();
    for command in ["export --format nccl-csv", "verify"] {
        let ran = run(&format!("tune {command} w.json"));
        assert_eq!(ran.code, 2, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("nccl-ring-ll128") && ran.stderr.contains("rings"), "{}", ran.stderr);
    }
}
