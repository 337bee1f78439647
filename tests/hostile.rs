//! Bad input: a clear message, the right exit code, no panic, no excessive memory.

use crate::binary::{antiphon, antiphon_in, antiphon_within, repository};

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
        ("topology show clique:7200", "is more than the 50331648"),
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

/// A short file may name a collective of very many ranks: missing chunks are counted, not listed.
#[test]
fn what_a_short_file_lacks_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.json");
    for (collective, op, ranks, total) in
        [("allreduce", "\"op\": \"sum\", ", 4096_u64, 4096_u64), ("allgather", "", 65_536, 65_536)]
    {
        let (size, chunk) = (ranks * 4, 4);
        let file = format!(
            "{{\"format\": \"antiphon-schedule/1\", \"topology\": {{\"name\": \"ring:{ranks}\"}}, \"collective\": \
             \"{collective}\", {op}\"ranks\": {ranks}, \"size_bytes\": {size}, \"chunks_per_rank\": 1, \"chunk_bytes\": \
             {chunk}, \"chunks\": [], \"transfers\": [], \"makespan_us\": 0}}"
        );
        std::fs::write(&path, file).unwrap();
        let begun = std::time::Instant::now();
        let ran = antiphon_within(1000, &format!("verify {} --json", path.display()));
        assert!(begun.elapsed().as_secs() < 20, "{collective}: {:?}", begun.elapsed());
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stdout.len() < 1_000_000, "{} bytes", ran.stdout.len());
        let answer = ran.json();
        assert!(answer["more"].as_u64().unwrap() >= total, "{}", answer["more"]);
        let people = antiphon(&format!("verify {}", path.display()));
        assert!(people.stdout.trim_end().ends_with(&format!("and {} more", answer["more"])));
    }
}

/// A compressed schedule of `ranks` ranks with the symmetry `image`, whose base is these transfers.
fn compressed(
    topology: &str,
    collective: &str,
    ranks: usize,
    image: impl Fn(usize) -> usize,
    transfers: &str,
) -> String {
    let images: Vec<String> = (0..ranks).map(|rank| image(rank).to_string()).collect();
    let images = images.join(",");
    format!(
        "{{\"format\": \"antiphon-schedule/1\", \"topology\": {topology}, \"collective\": {collective}, \"ranks\": {ranks}, \
         \"size_bytes\": 0, \"chunks_per_rank\": 1, \"chunk_bytes\": 0, \"symmetry\": {{\"generators\": [{{\"ranks\": \
         [{images}], \"links\": [{images}], \"chunks\": [{images}]}}]}}, \"transfers\": [{transfers}], \"makespan_us\": 400}}"
    )
}

/// Each of these files took a minute or more when the verifier looked at every rank for every chunk, or at every image of a
/// message for every other one.
#[test]
fn what_a_long_file_lacks_costs_no_more_than_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let transfer = |chunks: &str, from: usize, kind: &str, start: usize, end: usize| {
        format!(
            "{{\"chunks\": [{chunks}], \"from\": {from}, \"to\": {}, \"link\": {from}, \"kind\": \"{kind}\", \
             \"start_us\": {start}, \"end_us\": {end}}}",
            from + 1
        )
    };
    let list = |count: usize| (0..count).map(|chunk| chunk.to_string()).collect::<Vec<_>>().join(",");
    let ring = |ranks: usize, alpha: usize| format!("{{\"name\": \"ring:{ranks},alpha={alpha}us\"}}");
    let sum = "\"allreduce\", \"op\": \"sum\"";
    let (ranks, all) = (65_536, list(65_536));
    let half = |rank: usize| (rank + ranks / 2) % ranks;
    let shared = 8000;
    let links = (0..shared).map(|from| {
        let to = (from + 1) % shared;
        format!("{{\"from\": {from}, \"to\": {to}, \"alpha_us\": 1, \"beta_us_per_byte\": 0, \"resources\": [0]}}")
    });
    let links = links.collect::<Vec<_>>().join(",");
    let machine = format!(
        "{{\"name\": \"t\", \"embedded\": {{\"format\": \"antiphon-topology/1\", \"name\": \"t\", \"ranks\": {shared}, \
         \"links\": [{links}], \"resources\": [{{\"name\": \"r\", \"beta_us_per_byte\": 0}}]}}}}"
    );
    let crowd: Vec<String> = (0..400).map(|at| transfer("0", 0, "copy", at, at + 1)).collect();
    let next = |count: usize| move |rank: usize| (rank + 1) % count;
    let bring: Vec<String> = (0..60_000).map(|chunk| transfer(&chunk.to_string(), 0, "copy", 0, 0)).collect();
    let chunks: Vec<String> = (0..60_000)
        .map(|id| format!("{{\"id\": {id}, \"holders\": [0], \"wanted_by\": [0,1,2], \"combine\": false}}"))
        .collect();
    let forwarded = format!(
        "{{\"format\": \"antiphon-schedule/1\", \"topology\": {{\"name\": \"ring:3,alpha=0us\"}}, \"collective\": \
         \"broadcast\", \"root\": 0, \"ranks\": 3, \"size_bytes\": 0, \"chunks_per_rank\": 60000, \"chunk_bytes\": 0, \
         \"chunks\": [{}], \"transfers\": [{},{}], \"makespan_us\": 0}}",
        chunks.join(","),
        transfer(&list(60_000), 1, "copy", 0, 0),
        bring.join(",")
    );
    for (name, file, code) in [
        ("halves", compressed(&ring(ranks, 0), sum, ranks, half, &transfer(&all, 0, "reduce", 0, 0)), 1),
        ("gathered", compressed(&ring(ranks, 0), "\"allgather\"", ranks, half, &transfer(&all, 0, "copy", 0, 0)), 1),
        ("rotated", compressed(&ring(ranks, 0), sum, ranks, next(ranks), &transfer(&all, 0, "reduce", 0, 0)), 1),
        ("crowded", compressed(&machine, "\"allgather\"", shared, next(shared), &crowd.join(",")), 1),
        ("forwarded", forwarded, 0),
    ] {
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, file).unwrap();
        let begun = std::time::Instant::now();
        let ran = antiphon_within(2000, &format!("verify {} --json", path.display()));
        assert_eq!(ran.code, code, "{name}: {}{}", ran.stderr, &ran.stdout[..ran.stdout.len().min(2000)]);
        let took = begun.elapsed();
        assert!(took.as_secs() < 20, "{name}: {took:?}");
        assert!(ran.stdout.len() < 5_000_000, "{name}: {} bytes", ran.stdout.len());
    }
}

/// An alltoallv is planned, saved, compared with its matrix, and changed in ways that are not allowed.
#[test]
fn an_alltoallv_is_its_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("m.csv", "0,8,400\n12,16,0\n400,0,4\n");
    write("other.csv", "0,8,400\n12,16,4\n400,0,4\n");
    let synth = "synth --topology clique:3 --collective alltoallv --chunks 2 -o plan.json --matrix m.csv";
    here(synth).ok();
    let again = synth.replace("plan.json", "again.json");
    let noted = here(&format!("{again} --size 1GB")).ok();
    assert!(noted.stderr.contains("the chunks make the size 408 B"), "{}", noted.stderr);
    let claimed = here("verify plan.json --json").ok().json();
    assert_eq!((&claimed["demand_checked"], &claimed["bound_checked"]), (&false.into(), &false.into()));
    assert!(here("verify plan.json").ok().stdout.contains("claimed, not checked"));
    assert_eq!(here("verify plan.json --matrix m.csv --json").ok().json()["demand_checked"], true);
    let refused = here("verify plan.json --matrix other.csv");
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stdout.contains("nothing, but 2 chunks of 2 B each was asked for"), "{}", refused.stdout);
    let row = here("run plan.json --matrix m.csv --iterations 1 --warmups 0 --json").ok();
    assert!(row.stdout.contains("\"size_bytes\":408"), "{}", row.stdout);
    assert_eq!(here("run plan.json --matrix other.csv").code, 1);

    let good: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
    type Mutation = fn(&mut serde_json::Value);
    let mutants: [(&str, Mutation); 11] = [
        ("two holders", |plan| plan["chunks"][0]["holders"] = vec![0, 1].into()),
        ("no wanter", |plan| plan["chunks"][0]["wanted_by"] = Vec::<u32>::new().into()),
        ("two wanters", |plan| plan["chunks"][0]["wanted_by"] = vec![1, 2].into()),
        ("repeated holder", |plan| plan["chunks"][0]["holders"] = vec![0, 0].into()),
        ("repeated receiver", |plan| plan["chunks"][0]["wanted_by"] = vec![1, 1].into()),
        ("combine", |plan| plan["chunks"][0]["combine"] = true.into()),
        ("not a member", |plan| plan["members"] = vec![0, 1].into()),
        ("chunk bytes", |plan| plan["chunk_bytes"] = (-5.0).into()),
        ("size", |plan| plan["size_bytes"] = 1_000_000_000_000_000_u64.into()),
        ("chunks per rank", |plan| plan["chunks_per_rank"] = 3.into()),
        ("own chunk once more", |plan| {
            let chunks = plan["chunks"].as_array_mut().unwrap();
            let mut own = chunks.iter().find(|chunk| chunk["holders"] == chunk["wanted_by"]).unwrap().clone();
            own["id"] = 99.into();
            chunks.push(own);
        }),
    ];
    for (name, mutate) in mutants {
        let mut mutant = good.clone();
        mutate(&mut mutant);
        write("mutant.json", &mutant.to_string());
        let ran = here("verify mutant.json");
        assert!(ran.code == 1 || ran.code == 2, "{name}: {}{}", ran.stdout, ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{name}: {}", ran.stderr);
    }
}

/// A bound is a statement of the file: nobody has proven it again.
#[test]
fn an_invented_bound_is_shown_as_a_claim() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    here("synth --topology ring:4 --collective broadcast --size 1MB --chunks 1 -o plan.json").ok();
    let mut plan = crate::binary::read(&folder.path().join("plan.json"));
    (plan["lower_bound_us"], plan["bound"], plan["gap"]) = (plan["makespan_us"].clone(), "invented".into(), 0.into());
    std::fs::write(folder.path().join("plan.json"), plan.to_string()).unwrap();
    let verified = here("verify plan.json").ok().stdout;
    assert!(verified.contains("claimed, not checked: lower bound") && verified.contains("(invented)"), "{verified}");
    let explained = here("explain plan.json").ok().stdout;
    assert!(explained.contains("the plan claims a bound of") && explained.contains("(invented)"), "{explained}");
}

#[test]
fn custom_chunks_follow_rules_too() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("d.yaml", "chunks:\n  - {from: [0, 1, 2], to: [1], reduce: true, bytes: 8}\n");
    write("other.yaml", "chunks:\n  - {from: [0, 2], to: [1], reduce: true, bytes: 8}\n");
    here("synth --topology clique:3 --collective custom --demand d.yaml -o plan.json").ok();
    here("verify plan.json --demand d.yaml").ok();
    assert_eq!(here("verify plan.json --demand other.yaml").code, 1);
    let text = std::fs::read_to_string(folder.path().join("plan.json")).unwrap();
    for (old, new) in [
        ("\"op\": \"sum\",\n", ""),
        ("\"size_bytes\": 8,", "\"size_bytes\": 80,"),
        ("\"size_bytes\": 8,", "\"members\": [0, 1],\n\"size_bytes\": 8,"),
        ("\"holders\": [0, 1, 2]", "\"holders\": [0, 1, 1, 2]"),
    ] {
        assert!(text.contains(old), "{old} is not in {text}");
        write("mutant.json", &text.replacen(old, new, 1));
        let ran = here("verify mutant.json");
        assert!(ran.code == 1 || ran.code == 2, "{new}: {}{}", ran.stdout, ran.stderr);
    }
}

/// Opening a named pipe would wait for ever; text of files is quoted only in part.
#[test]
fn pipes_by_name_are_refused_and_quotes_are_short() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["verify", "simulate", "topology check", "topology import"] {
        let message = refused(&format!("{command} {}", pipe.display()));
        assert!(message.contains("no regular file"), "{command}: {message}");
    }
    let path = folder.path().join("long.json");
    let text = std::fs::read_to_string(repository("tests/data/example-schedule.json")).unwrap();
    let long = "x".repeat(1_000_000);
    for (old, new) in [
        ("allgather", long.clone()),
        ("antiphon-schedule/1", long.clone()),
        ("\"gap\"", format!("\"{long}\"")),
        ("\"size_bytes\": 300", format!("\"size_bytes\": \"{long}\"")),
        ("ring:3,alpha=1us,bandwidth=100MBps", long.clone()),
    ] {
        assert!(text.contains(old), "{old}");
        std::fs::write(&path, text.replacen(old, &new, 1)).unwrap();
        let message = refused(&format!("verify {}", path.display()));
        assert!(message.len() < 4000, "{old}: {} bytes", message.len());
    }
}

/// Names, notes and numbers of files may be of any length, and names may hold what does something to a terminal.
#[test]
fn what_files_say_is_printed_in_part_and_without_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let printed = |line: &str| {
        let ran = antiphon_in(folder.path(), line).ok();
        for text in [&ran.stdout, &ran.stderr] {
            assert!(!text.contains('\u{1b}') && text.len() < 10_000, "{line}: {} bytes", text.len());
        }
    };
    let long = format!("\u{1b}[31m{}", "x".repeat(70_000));
    let links = [(0, 1), (1, 0)].map(|(from, to)| {
        serde_json::json!({"from": from, "to": to, "alpha_us": 1, "beta_us_per_byte": 0.001, "resources": [0]})
    });
    let topology = serde_json::json!({
        "format": "antiphon-topology/1", "name": long, "ranks": 2, "links": links,
        "resources": [{"name": long, "beta_us_per_byte": 0.001}],
    });
    std::fs::write(path("t.json"), topology.to_string()).unwrap();
    let request = "--topology ./t.json --collective allgather --size 1KB";
    printed("topology show ./t.json");
    printed("topology check ./t.json");
    printed(&format!("bound {request}"));
    printed(&format!("synth {request} -o plan.json"));
    let text = std::fs::read_to_string(path("plan.json")).unwrap();
    let mut plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    plan["produced_by"]["strategy"] = long.clone().into();
    plan["produced_by"]["candidates"] =
        serde_json::json!([{"strategy": long, "chunks_per_rank": 1, "stop_reason": long, "note": long}]);
    std::fs::write(path("plan.json"), plan.to_string()).unwrap();
    for command in ["simulate", "explain", "verify", "run --iterations 1 --warmups 0"] {
        printed(&format!("{command} plan.json"));
    }
    (plan["gap"], plan["makespan_us"]) = (1e300.into(), 1e300.into());
    std::fs::write(path("plan.json"), plan.to_string()).unwrap();
    let refused = antiphon_in(folder.path(), "verify plan.json");
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stdout.contains("1e300") && !refused.stdout.contains(&"0".repeat(20)), "{}", refused.stdout);
}

#[test]
fn the_largest_ring_is_checked_without_a_deep_stack() {
    antiphon("topology check ring:131072").ok();
}
