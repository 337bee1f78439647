//! The main job from start to end, as a new user sees it; and its table in the README.
//!
//! With `ANTIPHON_UPDATE` set (`make readme-table`) this test writes the table of its run into the README.

use crate::binary::{antiphon_in, repository};

/// What stands around the table in the README.
const MARKERS: [&str; 2] = ["<!-- demo: make readme-table -->\n", "<!-- /demo -->"];

#[test]
fn the_demo_leaves_what_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let ran = antiphon_in(folder.path(), "demo").ok();
    for word in ["allgather", "allreduce", "alltoall", "emulated", "stock", "planned", "predicted", "measured"] {
        assert!(ran.stdout.contains(word), "no `{word}` in\n{}", ran.stdout);
    }
    let left = folder.path().join("demo-out");
    for file in [
        "measured.yaml",
        "sketch.yaml",
        "tuning.json",
        "tuning-emulated.json",
        "results.json",
        "table.txt",
        "table.md",
        "timeline.html",
    ] {
        assert!(left.join(file).is_file(), "{file} is missing");
    }
    let results = std::fs::read_to_string(left.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let table = std::fs::read_to_string(left.join("table.md")).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("| all")).count(), 18, "{table}");
    assert!(results["cells"].as_array().unwrap().iter().all(|cell| cell["wrong"] == 0), "{results}");
    // At the end a program has used the table: every kind of call was right, and a choice is one of the table's or stock's.
    let program = results["program"].as_array().unwrap();
    assert_eq!(program.len(), 9, "{results}");
    assert!(program.iter().all(|call| call["wrong"] == 0 && call["tuned"]["samples"].as_u64() > Some(0)), "{results}");
    let tuned = |name: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(left.join(name)).unwrap()).unwrap()
    };
    let has_plan = tuned("tuning.json")["plans"].as_object().is_some_and(|plans| !plans.is_empty());
    let uses_table = program.iter().any(|call| call["plan"].as_str().unwrap().contains("tuning.json"));
    assert_eq!(has_plan, uses_table, "{results}");
    // The table of the emulated cluster has the plans that won there, and a run uses them.
    let won = |cell: &&serde_json::Value| cell["arena"] == "emulated" && cell["choice"] == "candidate";
    let winners: Vec<_> = results["cells"].as_array().unwrap().iter().filter(won).collect();
    assert_eq!(tuned("tuning-emulated.json")["plans"].as_object().unwrap().len(), winners.len());
    let line = "run --table demo-out/tuning-emulated.json --collective allgather --ranks 8 --size 1MiB --iterations 2";
    let ran = antiphon_in(folder.path(), &format!("{line} --emulate ndv2x1 --slowdown 1000 --json")).ok();
    let has_won = winners.iter().any(|cell| cell["collective"] == "allgather" && cell["size_bytes"] == 1 << 20);
    assert_eq!(ran.stdout.contains("(table)"), has_won, "{}{}", ran.stdout, ran.stderr);
    // Ranks that emulate nothing do not use them.
    let ran = antiphon_in(folder.path(), &format!("{line} --json")).ok();
    assert!(
        !ran.stdout.contains("(table)") && ran.stderr.contains("an emulated machine"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    // The first part is about this computer, so it differs from computer to computer.
    let emulated = table[table.find("emulated: ").expect("the demo emulates a cluster")..].trim();
    let readme = repository("README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let (before, rest) = text.split_once(MARKERS[0]).unwrap();
    let (shown, after) = rest.split_once(MARKERS[1]).unwrap();
    if std::env::var_os("ANTIPHON_UPDATE").is_some() {
        std::fs::write(&readme, [before, MARKERS[0], emulated, "\n", MARKERS[1], after].concat()).unwrap();
    } else {
        compare(&rows(shown), &rows(emulated));
    }
}

/// The parts of a table line that do not depend on this computer.
#[derive(Debug)]
struct Row {
    cell: String,
    stock: String,
    /// As printed.
    stock_takes: String,
    planned_us: f64,
    bound_us: f64,
}

fn rows(table: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (stock, planned) = cells[5].split_once(" → ").unwrap();
        let planned_us = micros(planned);
        let gap: f64 = cells[4].trim_end_matches('%').trim().parse().unwrap();
        Row {
            cell: cells[1].to_owned(),
            stock: cells[2].to_owned(),
            stock_takes: stock.to_owned(),
            planned_us,
            bound_us: planned_us / (1.0 + gap / 100.0),
        }
    };
    table.lines().filter(|line| line.starts_with("| all")).map(row).collect()
}

fn micros(time: &str) -> f64 {
    let (number, unit) = time.split_once(char::is_whitespace).unwrap();
    let scale = ["µs", "ms", "s"].iter().position(|known| *known == unit).unwrap();
    number.parse::<f64>().unwrap() * 1000_f64.powi(scale as i32)
}

/// Stock and bounds must be those of the README. The plans are found in less than a second each, so they depend on how
/// busy this computer is. They may be slower than in the README, but never as slow as this.
fn compare(readme: &[Row], demo: &[Row]) {
    assert_eq!(readme.len(), demo.len(), "the README has other rows: make readme-table");
    for (shown, found) in readme.iter().zip(demo) {
        let same = (&shown.cell, &shown.stock, &shown.stock_takes) == (&found.cell, &found.stock, &found.stock_takes);
        assert!(same, "the README shows {shown:?}, the demo {found:?}: make readme-table");
        assert!((shown.bound_us / found.bound_us - 1.0).abs() < 0.005, "{shown:?}, {found:?}");
        assert!(found.planned_us < shown.planned_us * 1.6, "{shown:?}, {found:?}");
    }
}
