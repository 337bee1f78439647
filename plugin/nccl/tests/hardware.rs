//! Tables that were measured on other GPUs, or with another NCCL: over the fakes, with a process for each rank.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "other tests need more of it")]
mod built;
#[allow(dead_code, reason = "other tests need more of it")]
mod place;

use place::{PATIENT, Place, Way, by_plans, table_for};
use serde_json::{Value, json};
use tune::summarize;

const FAKE: &str = "Antiphon's fake GPU, which is no hardware";

/// A table for two ranks with GPUs of the fake driver, over the version of the fake NCCL, with plans, and with a kernel for short sums.
fn table() -> Value {
    let mut table = table_for(2, 8);
    table["key"]["transport"] = json!("nccl");
    table["key"]["hardware"] = json!([format!("2 × {FAKE}, NCCL 2.30.7")]);
    let times = (summarize(&[5.0; 20]).unwrap(), summarize(&[9.0; 20]).unwrap());
    let evidence = json!({"bytes": 16, "choice": times.0, "stock": times.1, "launches": 2, "dtype": "i32"});
    table["cells"][0]["functions"] = json!([{
        "from_bytes": 16, "to_bytes": 17, "function": "one-shot kernel", "dtype": "i32", "op": "sum", "evidence": [evidence]
    }]);
    table
}

/// What the library says in a run, and how many AllReduces plans have served on each rank.
fn run(place: &Place, way: Way, more: &[(&str, &str)]) -> (String, Vec<u64>) {
    let (file, numbers) = (place.path("table.json"), place.path("served-%p.json"));
    std::fs::write(&file, table().to_string()).unwrap();
    let mine = [PATIENT, ("ANTIPHON_TABLE", file.to_str().unwrap()), ("ANTIPHON_STATS", numbers.to_str().unwrap())];
    let (lines, said) = place.run(way, 2, "right", &[&mine, more].concat());
    assert!(lines.iter().all(|line| line == "right 0"), "{lines:?} {said}");
    (said, place.counted("served-").iter().map(|calls| by_plans(calls, "allreduce")).collect())
}

const INFO: (&str, &str) = ("ANTIPHON_DEBUG", "info");

#[test]
fn a_table_serves_the_hardware_that_it_was_measured_on() {
    let place = Place::new(&[]);
    let (said, served) = run(&place, Way::Preloaded, &[INFO]);
    assert_eq!(served, [3; 2], "{said}");
    assert!(said.contains("maps 16 bytes of each") && !said.contains("serves no calls"), "{said}");
    let two = format!("2 × {FAKE}, NCCL 2.30.7");
    for (variable, here) in [
        (("FAKE_CUDA_NAME", "newer"), format!("2 × {FAKE} (newer), NCCL 2.30.7")),
        (("OTHER_NAME", "newer"), format!("1 × {FAKE}, 1 × {FAKE} (newer), NCCL 2.30.7")),
        (("FAKE_NCCL_VERSION", "23203"), format!("2 × {FAKE}, NCCL 2.32.3")),
    ] {
        let (said, served) = run(&place, Way::Instead, &[INFO, variable]);
        assert_eq!(served, [0; 2], "{variable:?}: {said}");
        let why = format!(
            "table.json serves no calls of these ranks: it was measured with machine 0 as `{two}`, not `{here}`"
        );
        assert!(said.contains(&why) && said.contains("hint: tune again here"), "{variable:?}: {said}");
        assert!(
            said.contains(
                "20 bytes: NCCL, because the table chooses the plan `allreduce`, but it was measured with other GPUs"
            ),
            "{said}"
        );
        assert!(!said.contains("maps"), "{variable:?}: {said}");
        if variable.0 != "FAKE_CUDA_NAME" {
            continue;
        }
        // Whoever does not ask hears nothing.
        let (said, served) = run(&place, Way::Preloaded, &[variable]);
        assert_eq!((served, said.as_str()), (vec![0; 2], ""), "{variable:?}");
        // Whoever wants it anyway gets it.
        let anyway = ("ANTIPHON_TABLE_ANY_HARDWARE", "1");
        let (said, served) = run(&place, Way::Preloaded, &[INFO, variable, anyway]);
        assert_eq!(served, [3; 2], "{variable:?}: {said}");
        assert!(said.contains("maps 16 bytes of each") && !said.contains("serves no calls"), "{said}");
    }
}

/// Ranks that compare and ranks that do not would decide differently, and so none has plans.
#[test]
fn ranks_take_any_hardware_all_or_none() {
    let place = Place::new(&[]);
    for (all, other) in [("", "1"), ("1", "0")] {
        let more = [INFO, ("ANTIPHON_TABLE_ANY_HARDWARE", all), ("OTHER_HARDWARE", other)];
        let (said, served) = run(&place, Way::Preloaded, &more);
        assert_eq!(served, [0; 2], "{said}");
        assert!(
            said.contains(
                "rank 1 has another table, or another version of this library or of NCCL, or another ANTIPHON"
            ),
            "{said}"
        );
    }
}
