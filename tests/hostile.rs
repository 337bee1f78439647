//! Bad input: a clear message, the right exit code, no panic, no storm of allocations.

use crate::binary::{antiphon, repository};

/// Runs a command that must be refused as bad input; returns its message.
fn refused(arguments: &str) -> String {
    let ran = antiphon(arguments);
    assert_eq!(ran.code, 2, "{arguments}\nstdout: {}\nstderr: {}", ran.stdout, ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{arguments}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{arguments}: {}", ran.stderr);
    ran.stderr
}

#[test]
fn numbers_out_of_range() {
    for (arguments, expected) in [
        ("topology show ring:1000000000", "1000000000"),
        ("topology show clique:100000", "100000"),
        ("topology show torus2d:99999999999x99999999999", "torus2d"),
        ("topology show ring:4,alpha=NaN", "alpha"),
        ("topology show ring:4,alpha=-1us", "alpha"),
        ("topology show ring:4,bandwidth=0GBps", "bandwidth"),
        ("topology show ring:0", "ring"),
        ("synth --topology ring:4 --collective allgather --size 1000000000000000000", "1000000000000000000"),
        ("synth --topology ring:4 --collective allgather --size 1MB --chunks 4000000000", "chunks"),
        ("synth --topology ring:4 --collective broadcast --size 1MB --root 9", "9"),
        ("synth --topology ring:4 --collective allgather --size 1MB --root 0", "root"),
        ("synth --topology ring:4 --collective allgather --size 1MB --members 0,7", "7"),
        ("synth --topology ring:4 --collective allgather --size -5", "size"),
        ("run --collective allreduce --size 1KB --ranks 0", "ranks"),
        ("run --collective allreduce --size 1KB --ranks 1000000000", "ranks"),
    ] {
        let message = refused(arguments);
        assert!(message.contains(expected), "{arguments}: {message}");
    }
}

#[test]
fn unknown_names_list_what_is_known() {
    for (arguments, expected) in [
        ("topology show rong:4", "ring"),
        ("topology show ring:4,alfa=1us", "alpha"),
        ("synth --topology ring:4 --collective allgahter --size 1KB", "allgather"),
        ("synth --topology ring:4 --collective allgather --size 1KB --strategy magic", "matching"),
        ("synth --topology ./missing.json --collective allgather --size 1KB", "missing.json"),
        ("verify missing.json", "missing.json"),
    ] {
        let message = refused(arguments);
        assert!(message.contains(expected), "{arguments}: {message}");
    }
}

#[test]
fn broken_files_say_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let pair = ["tests/data/example-topology.json", "tests/data/example-schedule.json"];
    for (file, command) in pair.iter().zip(["topology check", "verify"]) {
        let text = std::fs::read_to_string(repository(file)).unwrap();
        let broken = [
            text[..text.len() / 2].to_owned(),
            text.replacen("\"ranks\"", "\"rnaks\"", 1),
            text.replacen("1.0", "NaN", 1),
            text.replacen("\"ranks\": 3", "\"ranks\": 1000000000", 1),
            text.replacen("\"ranks\": 3", "\"ranks\": -3", 1),
            text.replacen("antiphon-", "antipasta-", 1),
            String::new(),
        ];
        for content in broken {
            if content == text {
                continue;
            }
            std::fs::write(&path, &content).unwrap();
            let ran = antiphon(&format!("{command} {}", path.display()));
            assert!(ran.code == 2 || (ran.code == 1 && command == "verify"), "{command}: {}\n{content}", ran.stderr);
            assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
            assert!(ran.stderr.contains("file.json"), "{}\n{content}", ran.stderr);
        }
    }
    let topology = std::fs::read_to_string(repository(pair[0])).unwrap();
    std::fs::write(&path, topology.replacen("\"alpha_us\": 1.0", "\"alpha_us\": -1.0", 1)).unwrap();
    let message = refused(&format!("topology check {}", path.display()));
    assert!(message.contains("file.json:") && message.contains("-1"), "{message}");
}

#[test]
fn a_mutated_schedule_is_refused_with_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant.json");
    let text = std::fs::read_to_string(repository("tests/data/example-schedule.json")).unwrap();
    let good: serde_json::Value = serde_json::from_str(&text).unwrap();
    type Mutation = fn(&mut serde_json::Value);
    let mutants: [(&str, Mutation); 6] = [
        ("drop", |plan| drop(plan["transfers"].as_array_mut().unwrap().pop())),
        ("retarget", |plan| plan["transfers"][0]["to"] = 2.into()),
        ("early", |plan| plan["transfers"][3]["start_us"] = 1.0.into()),
        ("other chunk", |plan| plan["transfers"][0]["chunks"][0] = 2.into()),
        ("other demand", |plan| drop(plan["chunks"][0]["wanted_by"].as_array_mut().unwrap().pop())),
        ("makespan", |plan| plan["makespan_us"] = 3.0.into()),
    ];
    for (name, mutate) in mutants {
        let mut mutant = good.clone();
        mutate(&mut mutant);
        std::fs::write(&path, mutant.to_string()).unwrap();
        let ran = antiphon(&format!("verify {} --json", path.display()));
        assert_eq!(ran.code, 1, "{name}: {}{}", ran.stdout, ran.stderr);
        let answer = ran.json();
        assert_eq!(answer["ok"], false, "{name}");
        assert!(!answer["violations"][0]["text"].as_str().unwrap().is_empty(), "{name}: {answer}");
    }
}
