//! Programs on real buffers, by real processes: every result is compared with the naive reference.

use crate::binary::{Ran, antiphon, antiphon_in};
use serde_json::Value;

const COLLECTIVES: &[&str] =
    &["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"];

fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs a command, and requires a correct line out of place and one in place for each size.
fn runs_right(arguments: &str, sizes: usize) {
    let ran = antiphon(&format!("run {arguments} --iterations 1 --warmups 0 --json")).ok();
    let lines = lines(&ran);
    assert_eq!(lines.len(), 2 * sizes, "{arguments}: {}", ran.stdout);
    for line in lines {
        assert_eq!(line["wrong"], 0, "{arguments}: {line}");
        for key in ["collective", "size_bytes", "count", "dtype", "in_place", "time_us", "algbw_GBps", "busbw_GBps"] {
            assert!(!line[key].is_null(), "{arguments}: no {key} in {line}");
        }
    }
}

#[test]
fn every_collective_with_2_to_9_ranks_and_6_sizes() {
    for collective in COLLECTIVES {
        for ranks in 2..=9 {
            // No bytes, less than a chunk, an odd size, a prime, an unaligned size, and more than one tile.
            let sizes = "0,4,52,4004,100012,1000000";
            runs_right(&format!("--collective {collective} --ranks {ranks} --size {sizes}"), 6);
        }
    }
}

#[test]
fn element_types_and_reductions() {
    for dtype in ["f32", "f64", "i32", "i64", "u8", "f16", "bf16"] {
        for op in ["sum", "max", "avg"] {
            for collective in ["allreduce", "reducescatter", "reduce"] {
                runs_right(&format!("--collective {collective} --ranks 5 --size 24000 --dtype {dtype} --op {op}"), 1);
            }
        }
    }
}

#[test]
fn threads_give_the_same_answers_as_processes() {
    for collective in COLLECTIVES {
        runs_right(&format!("--collective {collective} --ranks 4 --size 4004,400000 --transport threads"), 2);
    }
}

#[test]
fn sockets_give_the_same_answers_as_shared_memory() {
    for collective in COLLECTIVES {
        runs_right(&format!("--collective {collective} --ranks 3 --size 0,4004,400000 --transport tcp"), 3);
    }
}

/// Every collective on up to 16 ranks, 6 sizes and all transports; with little effort, on 7 ranks.
#[test]
fn long_every_collective_rank_count_size_and_transport() {
    let long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let ranks: &[u32] = if long { &[2, 3, 5, 8, 12, 13, 16] } else { &[7] };
    for collective in COLLECTIVES {
        for ranks in ranks {
            for transport in ["threads", "shm", "tcp"] {
                let sizes = "0,4,52,4004,100012,1000000";
                let line = format!("--collective {collective} --ranks {ranks} --size {sizes}");
                runs_right(&format!("{line} --transport {transport}"), 6);
            }
        }
    }
}

/// Chunks listed one by one, reduced and copied, in place where memory can be shared.
#[test]
fn custom_demands_and_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| lines(&antiphon_in(folder.path(), &format!("{line} --iterations 1 --json")).ok());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let sums = "  - {from: [0, 1, 2], to: [0, 1, 2], reduce: true, bytes: 4000}\n";
    write("sums.yaml", &format!("chunks:\n{sums}{sums}"));
    let copies = "  - {from: [0], to: [1, 2], bytes: 2000}\n  - {from: [1], to: [2], bytes: 12}\n";
    write("copies.yaml", &format!("chunks:\n{copies}"));
    let partial = "  - {from: [1, 2], to: [0], reduce: true, bytes: 8}\n";
    write("mixed.yaml", &format!("chunks:\n{sums}{copies}{partial}"));
    // The sums for all ranks can be in place. The copies cannot: rank 1 gets a chunk that it does not hold, of another
    // size.
    for (name, calls) in [("sums", 2), ("copies", 1), ("mixed", 1)] {
        for options in ["--op sum", "--op max --transport tcp", "--dtype u8 --transport threads --instances 2"] {
            let options = if name == "copies" {
                options.replace("--op sum", "").replace("--op max", "")
            } else {
                options.to_owned()
            };
            let line = format!("run --collective custom --demand {name}.yaml --ranks 3 --size 8KB,100KB {options}");
            let rows = here(&line);
            assert_eq!(rows.len(), 2 * calls, "{line}: {rows:?}");
            assert!(rows.iter().all(|row| row["wrong"] == 0), "{line}: {rows:?}");
        }
    }
    // For an exchange in place, two members must send each other the same number of bytes.
    for (matrix, calls) in [("0,8,400\n8,16,0\n400,0,4\n", 2), ("0,8,400\n12,16,0\n400,0,4\n", 1)] {
        write("matrix.csv", matrix);
        let rows = here("run --collective alltoallv --matrix matrix.csv --ranks 3 --size 848,84800");
        assert_eq!(rows.len(), 2 * calls, "{matrix}: {rows:?}");
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{matrix}: {rows:?}");
    }
    write("unknown.yaml", "chunks:\n  - {from: [0], to: [7], bytes: 4}\n");
    let ran = antiphon_in(folder.path(), "run --collective custom --demand unknown.yaml --ranks 3 --size 4");
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 7"), "{}", ran.stderr);
}

/// Channels, instances and fused steps change the steps of ranks, but not the result.
#[test]
fn every_form_of_a_program_gives_the_same_answers() {
    for form in ["--channels 3", "--instances 3", "--fuse", "--fuse --instances 2 --channels 2", "--max-threadblocks 1"]
    {
        for (collective, transport) in [("allgather", "shm"), ("allreduce", "tcp"), ("alltoall", "threads")] {
            let line = format!("--collective {collective} --ranks 5 --size 0,4004,3000000");
            runs_right(&format!("{line} --transport {transport} {form}"), 3);
        }
    }
    // An emulated machine stores and forwards, so a fused step becomes two.
    runs_right("--collective allgather --ranks 3 --size 3000 --emulate ring:3,alpha=1us,bandwidth=1GBps --fuse", 1);
}

#[test]
fn roots_other_than_the_first() {
    for collective in ["broadcast", "reduce", "gather", "scatter"] {
        runs_right(&format!("--collective {collective} --ranks 3 --size 1KB --root 2"), 1);
    }
}

#[test]
fn the_whole_chain_profile_sketch_milp_verify_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok();
    std::fs::write(
        folder.path().join("sketch.yaml"),
        "name: no-diagonal\nlinks:\n  forbid:\n    - {from: 0, to: 2}\n    - {from: 2, to: 0}\nchunks_per_rank: 2\n",
    )
    .unwrap();
    here("profile --ranks 4 -o measured.yaml");
    here(
        "synth --topology ./measured.yaml --collective allgather --size 1MB --sketch sketch.yaml --strategy milp -o plan.json",
    );
    here("verify plan.json --topology ./measured.yaml --sketch sketch.yaml");
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
    // A start of the windows that no model makes better goes by its own name.
    let strategy = plan["produced_by"]["strategy"].as_str().unwrap();
    assert!(strategy.starts_with("milp") || strategy == "matching", "{}", plan["produced_by"]);
    let candidates = plan["produced_by"]["candidates"].as_array().unwrap();
    let is_own = |it: &&Value| it["strategy"].as_str().unwrap().starts_with("milp") && it["makespan_us"].is_number();
    assert!(candidates.iter().any(|it| is_own(&it)), "{candidates:?}");
    for transfer in plan["transfers"].as_array().unwrap() {
        let ends = (transfer["from"].as_u64().unwrap(), transfer["to"].as_u64().unwrap());
        assert!(ends != (0, 2) && ends != (2, 0), "{transfer}");
    }
    let ran = here("run plan.json --topology ./measured.yaml --size 1MB,12345 --json --iterations 1");
    assert_eq!(lines(&ran).len(), 4);
    assert!(lines(&ran).iter().all(|line| line["wrong"] == 0), "{}", ran.stdout);
}

#[test]
fn planned_schedules_of_unequal_machines_run_right() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok();
    for collective in ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"] {
        here(&format!(
            "synth --topology dgx1 --collective {collective} --size 1MB --strategy matching --force -o plan.json"
        ));
        let ran = here("run plan.json --size 1MB,4008 --json --iterations 2");
        assert_eq!(lines(&ran).len(), 4, "{collective}");
        assert!(lines(&ran).iter().all(|line| line["wrong"] == 0), "{collective}: {}", ran.stdout);
    }
}

#[test]
fn emulated_links_take_at_least_as_long_as_the_model_says() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok();
    let line = "synth --topology ndv2x1 --collective allgather --size 8MB --strategy matching --chunks 1 --json";
    let predicted = here(&format!("{line} -o plan.json")).json()["makespan_us"].as_f64().unwrap() * 1000.0;
    let ran = here("run plan.json --emulate ndv2x1 --slowdown 1000 --iterations 3 --json");
    for line in lines(&ran) {
        let measured = line["time_us"].as_f64().unwrap();
        assert!(measured >= 0.97 * predicted, "{measured} µs measured, {predicted} µs predicted");
        // The upper limit is loose because other work may share the machine.
        assert!(measured <= 3.0 * predicted, "{measured} µs measured, {predicted} µs predicted");
    }
}

/// Calls of the library one after the other, in memory of either kind; sizes that are no whole number of elements as well.
#[test]
fn calls_back_to_back_are_right() {
    let loops = |arguments: &str, rows: usize| {
        let ran = antiphon(&format!("run --loop --ranks 3 --iterations 3 {arguments} --json")).ok();
        let lines = lines(&ran);
        assert_eq!(lines.len(), rows, "{arguments}: {}", ran.stdout);
        for line in lines {
            assert!(line["wrong"] == 0 && line["time_us"].as_f64().unwrap() > 0.0, "{arguments}: {line}");
            assert!(line["plan"].as_str().unwrap().contains("stock"), "{arguments}: {line}");
        }
    };
    for (index, collective) in COLLECTIVES.iter().take(8).enumerate() {
        let buffers = ["caller", "ours"][index % 2];
        loops(&format!("--collective {collective} --size 8,1000,300000 --root 1 --buffers {buffers}"), 3);
    }
    for (dtype, op) in [("f64", "max"), ("i32", "prod"), ("i64", "min"), ("u8", "sum"), ("f16", "avg"), ("bf16", "sum")]
    {
        loops(&format!("--collective allreduce --size 30000 --dtype {dtype} --op {op} --buffers ours"), 1);
    }
    let odd = antiphon("run --loop --ranks 7 --iterations 1 --collective reducescatter --size 1001").ok();
    assert!(odd.stderr.contains("980 bytes are run"), "{}", odd.stderr);
    let csv = antiphon("run --loop --ranks 2 --iterations 2 --collective allreduce --size 1KB..4KB --csv").ok().stdout;
    assert_eq!(csv.lines().count(), 4, "{csv}");
    for (wrong, why) in
        [("--collective sendrecv --size 8", "sendrecv"), ("--collective reduce --root 9 --size 8", "--root")]
    {
        let ran = antiphon(&format!("run --loop --ranks 2 {wrong}"));
        assert!(ran.code != 0 && ran.stderr.contains(why), "{wrong}: {}", ran.stderr);
    }
}

/// `run --loop` takes a plan, and does not ignore what it is told.
#[test]
fn calls_back_to_back_honour_what_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    here("synth --topology ring:3 --collective allgather --size 48KiB --strategy classic -o ring.json").ok();
    let rows = lines(&here("run --loop ring.json --iterations 2 --json").ok());
    let more = lines(&here("run --loop ring.json --size 12KiB,1MiB --ranks 3 --iterations 2 --json").ok());
    assert_eq!((rows.len(), more.len()), (1, 2));
    for row in rows.iter().chain(&more) {
        let (measured, predicted) = (row["time_us"].as_f64().unwrap(), row["predicted_us"].as_f64().unwrap());
        assert!(row["wrong"] == 0 && row["plan"].as_str().unwrap().contains("ring.json"), "{row}");
        assert!((row["ratio"].as_f64().unwrap() - measured / predicted).abs() < 1e-9, "{row}");
    }
    assert!(more[0]["predicted_us"].as_f64() < more[1]["predicted_us"].as_f64(), "{more:?}");

    let statistics = folder.path().join("statistics.json");
    for (transport, is_tcp) in [("tcp", true), ("shm", false)] {
        let line = "run --loop --collective allreduce --size 1MiB --ranks 2 --iterations 2 --transport";
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_antiphon"));
        command.args(line.split_whitespace()).arg(transport).env("ANTIPHON_STATS", &statistics);
        assert!(command.output().unwrap().status.success());
        let long = &crate::binary::read(&statistics)["long_messages"];
        assert_eq!(long["by_socket"].as_u64() > Some(0), is_tcp, "{transport}: {long}");
    }

    let common = "run --loop --collective allreduce --size 1MB --ranks 2";
    for (refused, why) in [
        (format!("{common} --seed 1"), "--seed"),
        (format!("{common} --channels 2"), "--channels"),
        (format!("{common} --instances 2"), "--instances"),
        (format!("{common} --fuse"), "--fuse"),
        (format!("{common} --max-threadblocks 2"), "--max-threadblocks"),
        (format!("{common} --transport threads"), "one process per rank"),
        ("run --loop ring.json --ranks 4".to_owned(), "the plan has 3 ranks"),
        ("run --loop ring.json --collective allreduce".to_owned(), "collective allgather"),
        ("run --loop ring.json ring.json".to_owned(), "one plan"),
    ] {
        let ran = here(&refused);
        assert!(ran.code == 2 && ran.stderr.contains(why), "{refused}: {}", ran.stderr);
    }
    // No call of several processes makes progress all the time.
    let ran = here("run --loop --collective allreduce --size 64MB --ranks 2 --iterations 50 --timeout 1us");
    assert!(ran.code != 0 && ran.stderr.contains("waited"), "{}", ran.stderr);
}
