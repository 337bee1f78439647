//! Plans with more messages than a file would list: base transfers, and the symmetries that repeat them.

use crate::binary::{antiphon, antiphon_within, read};
use serde_json::json;

#[test]
fn four_thousand_ranks_are_planned_verified_and_simulated_without_writing_every_message() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, broken) = (folder.path().join("plan.json"), folder.path().join("broken.json"));
    let spec = "torus2d:64x64,alpha=0.5us,bandwidth=50GiBps";
    let line = format!("synth --topology {spec} --collective allgather --size 4GiB --chunks 1 --gap 3%");
    let report = antiphon(&format!("{line} --json --force -o {}", plan.display())).ok().json();
    // 4095 chunks reach every rank over four links: 1024 steps of 20.03125 µs.
    let makespan = report["makespan_us"].as_f64().unwrap();
    assert!(makespan <= 1024.0 * 20.03125 * (1.0 + 1e-7), "{makespan}");

    antiphon(&format!("verify {}", plan.display())).ok();
    let simulated = antiphon(&format!("simulate {} --json", plan.display())).ok().json();
    assert!((simulated["makespan_us"].as_f64().unwrap() / makespan - 1.0).abs() < 1e-7, "{}", simulated["makespan_us"]);
    let refused = antiphon(&format!("explain {}", plan.display()));
    assert!(refused.code == 1 && refused.stderr.contains("compressed"), "{}", refused.stderr);

    // A base message that leaves before its chunk has arrived makes all its images wrong.
    let mut file = read(&plan);
    let transfers = file["transfers"].as_array_mut().unwrap();
    let last = transfers.last_mut().unwrap();
    let duration = last["end_us"].as_f64().unwrap() - last["start_us"].as_f64().unwrap();
    last["start_us"] = json!(0.0);
    last["end_us"] = json!(duration);
    std::fs::write(&broken, file.to_string()).unwrap();
    let refused = antiphon(&format!("verify {} --json", broken.display()));
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(!refused.json()["violations"].as_array().unwrap().is_empty());
}

/// The program of all 4096 ranks would have 67 million steps.
#[test]
fn the_program_of_four_thousand_ranks_is_checked_on_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("ring.json");
    let line = "synth --topology ring:4096 --collective allreduce --size 1GiB --chunks 1 --strategy orbits";
    antiphon(&format!("{line} -o {}", plan.display())).ok();
    let begun = std::time::Instant::now();
    let verified = antiphon_within(2000, &format!("verify {} --program --json", plan.display())).ok().json();
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    let program = &verified["program"];
    // 2 · 4095 messages, each sent and received.
    assert_eq!(
        (&program["steps"], &program["written_ranks"], &program["ranks"]),
        (&json!(16380), &json!(1), &json!(4096))
    );
    assert_eq!((&program["window"], &verified["adds_differently"]), (&json!(0), &json!(null)));
    let text = antiphon(&format!("verify {} --program", plan.display())).ok().stdout;
    assert!(text.contains("16380 steps on 1 of 4096 ranks"), "{text}");
}

#[test]
fn an_answer_of_few_transfers_is_written_plain() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    // Every rank gets 2499 chunks, several of them in one message.
    let line = "synth --topology torus2d:50x50 --collective allgather --size 2500 --chunks 1 --strategy orbits";
    let report = antiphon(&format!("{line} --json -o {}", plan.display())).ok().json();
    let file = read(&plan);
    assert!(file.get("symmetry").is_none() && file["transfers"].as_array().unwrap().len() <= 5_000_000, "{report}");
}
