//! Built-in machines, machines of a user, and machines that other programs described.

use crate::binary::{antiphon, antiphon_in, repository, topology};
use std::time::{Duration, Instant};

#[test]
fn every_listed_machine_is_shown() {
    let listed = antiphon("topology list --json").ok().json();
    let forms: Vec<&str> =
        listed["topologies"].as_array().unwrap().iter().map(|entry| entry["form"].as_str().unwrap()).collect();
    for form in ["dgx-a100xN", "dgx-h100xN", "mi250xN", "h800xN", "gb200xN", "fat-tree:AxBxC", "dragonfly:AxBxC"] {
        assert!(forms.contains(&form), "{form}: {forms:?}");
    }
    let text = antiphon("topology list").ok().stdout;
    assert!(text.contains("bandwidth=port/leaf/pod") && text.contains("source: "), "{text}");
}

#[test]
fn a_fabric_of_512_ranks_takes_no_time() {
    let start = Instant::now();
    let fabric = antiphon("topology check h800x64 --json").ok().json();
    assert_eq!((fabric["ranks"].as_u64(), fabric["links"].as_u64()), (Some(512), Some(64 * 56 + 64 * 63 * 8)));
    // Far more memory than needed, and far less than an unbounded parser would take.
    assert!(start.elapsed().as_secs() < 10);
}

/// `bound` of a huge AllGather as GB/s of the gathered buffer: what ForestColl publishes or measured, without α.
#[test]
fn machines_have_the_published_throughput() {
    for (spec, algbw) in [
        ("dgx-a100x1", 342.857),
        ("dgx-a100x2", 346.667),
        ("dgx-a100x4", 266.667),
        ("dgx-h100x2", 533.333),
        ("dgx-h100x4", 516.129),
        ("mi250x1", 342.857),
        ("mi250x2", 354.133),
    ] {
        let answer =
            antiphon(&format!("bound --topology {spec} --collective allgather --size 1000GB --json")).ok().json();
        let found = 1e9 / answer["lower_bound_us"].as_f64().unwrap();
        assert!((found / algbw - 1.0).abs() < 1e-4, "{spec}: {found} instead of {algbw}");
    }
}

#[test]
fn imported_machines_are_specs() {
    let scratch = tempfile::tempdir().unwrap();
    let samples = repository("tests/data/import");
    for (sample, options, ranks, machines) in [
        ("smi-cube-mesh.txt", "", 8, 1),
        ("smi-nvswitch.txt", "--machines 2 --assume nic=50GBps", 16, 2),
        ("nccl-nvswitch.xml", "--machines 2", 16, 2),
        ("nccl-pair.xml", "", 2, 1),
    ] {
        let file = samples.join(sample);
        let ran =
            antiphon_in(scratch.path(), &format!("topology import {} {options} --force -o out.yaml", file.display()))
                .ok();
        assert!(ran.stderr.contains("nominal") && ran.stdout.is_empty(), "{}", ran.stderr);
        let checked = antiphon_in(scratch.path(), "topology check out.yaml --json").ok().json();
        assert_eq!(
            (checked["ranks"].as_u64(), checked["machines"].as_u64()),
            (Some(ranks), Some(machines)),
            "{sample}"
        );
        assert_eq!(checked["islands"].as_array().unwrap().len(), 1, "{sample}");
        let printed = antiphon(&format!("topology import {} {options} --json", file.display())).ok().json();
        assert_eq!(printed["digest"], checked["digest"]);
        antiphon_in(scratch.path(), "bound --topology out.yaml --collective allgather --size 1MB").ok();
    }
    let refused = antiphon(&format!("topology import {}", repository("README.md").display()));
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("README.md:1:1: found no matrix"), "{}", refused.stderr);
}

#[test]
fn unequal_machines_are_planned_and_verified() {
    let scratch = tempfile::tempdir().unwrap();
    let file = repository("tests/data/unequal.yaml");
    let cluster = topology(&file.display().to_string());
    assert_eq!(
        cluster["machines"].as_array().unwrap().iter().map(|m| m.as_array().unwrap().len()).collect::<Vec<_>>(),
        [8, 4, 2]
    );
    for collective in ["allgather", "allreduce"] {
        let plan = format!(
            "synth --topology {} --collective {collective} --size 14MB --chunks 1 --strategy matching --time-limit 5s --force -o plan.json",
            file.display()
        );
        antiphon_in(scratch.path(), &plan).ok();
        antiphon_in(scratch.path(), &format!("verify plan.json --topology {}", file.display())).ok();
    }
}

#[test]
fn the_largest_instances_keep_a_time_limit_of_one_second() {
    for (arguments, answers) in [
        ("synth --topology torus2d:32x32 --collective alltoall --size 1GiB --strategy matching", false),
        // 400 million messages, written as images of 19999.
        ("synth --topology ring:20000 --collective allgather --size 1GB", true),
        ("synth --topology clique:200 --collective allgather --size 1GB --chunks 4", true),
        ("synth --topology ring:4 --collective allgather --size 1GB --chunks 60000", true),
    ] {
        let started = Instant::now();
        let ran = antiphon(&format!("{arguments} --time-limit 1s"));
        assert_eq!(ran.code, i32::from(!answers), "{arguments}: {}", ran.stderr);
        // Reading, verifying and a busy computer take time as well; without the limit these searches take minutes.
        assert!(started.elapsed() < Duration::from_secs(45), "{arguments} took {:?}", started.elapsed());
    }
}

#[test]
fn a_strategy_that_has_no_plan_says_why() {
    for (arguments, why) in [
        // 16 million deliveries to list.
        ("ring:4096 --collective allreduce --strategy classic", "writes down"),
        ("line:3000 --collective allgather --strategy orbits", "has no schedule for this"),
    ] {
        let refused = antiphon(&format!("synth --topology {arguments} --size 1GB --chunks 1"));
        let told = &refused.stderr;
        assert_eq!(refused.code, 1, "{told}");
        assert!(told.contains(why) && !told.contains("stopped") && told.contains("--strategy auto"), "{told}");
    }
}

#[test]
fn a_limit_that_is_shorter_than_the_verification_is_said() {
    // Broadcasts are not compressed.
    let line = "synth --topology line:40 --collective broadcast --size 4MB --chunks 4000 --time-limit";
    let short = antiphon(&format!("{line} 0.1s")).ok();
    assert!(
        short.stderr.contains("chunks pass links about 160000 times, which takes about 400 ms to verify"),
        "{}",
        short.stderr
    );
    let long = antiphon(&format!("{line} 2s")).ok();
    assert!(!long.stderr.contains("chunks pass links"), "{}", long.stderr);
}
