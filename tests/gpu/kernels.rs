//! Kernels over memory that ranks have mapped, as candidates of a tuning: over the fakes, whose clock is counted.

use super::{FakeGpus, run_program};
use crate::binary::read;
use crate::launch::Launched;
use serde_json::{Value, json};

/// Two GPUs: NCCL takes 60 ms, messages 20 ms and 5 µs for each byte.
const TWO: &str = "collective AllReduce 60000 0.01\ncollective AllGather 500 0\nlink 0 1 20000 5\nlink 1 0 20000 5\n";
/// Kernels take 10 ms, and 10 µs for each byte of each of their two copies. That of plans takes 40 ms.
const KERNEL: (&str, &str) = ("FAKE_CUDA_KERNEL_NS", "antiphon_allreduce=10000000,antiphon_=40000000");
const COPY: (&str, &str) = ("FAKE_CUDA_COPY_NS", "10000");
/// What is said where it cannot.
const UNMAPPED: &str = "note: ranks map no memory of each other, so NCCL moves all messages of plans: ";
/// The driver can share memory.
const SHARES: (&str, &str) = ("FAKE_CUDA_LACKS", "");

/// How many AllReduces the ranks of a program have called that were served so.
fn served(gpus: &FakeGpus, by: &str) -> Vec<u64> {
    let folder = std::fs::read_dir(gpus.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("served-");
    let count = |path: std::path::PathBuf| {
        let is_it = |call: &&Value| call["collective"] == "allreduce" && call["served_by"] == by;
        let calls = read(&path)["calls"].as_array().unwrap().clone();
        calls.iter().filter(is_it).map(|call| call["calls"].as_u64().unwrap()).sum()
    };
    folder.filter(is_ours).map(count).collect()
}

/// By construction kernels win short AllReduces, though they copy; and a program that knows nothing of it is served by them between the
/// sizes that were measured, and by a plan elsewhere, whose messages the kernel moves.
#[test]
fn a_tuning_chooses_kernels_where_they_win_and_a_program_uses_them() {
    let gpus = FakeGpus::new(2, TWO);
    let line = "tune --device gpu --ranks 2 --dtype i32 --collective allreduce --sizes 16,512,16KiB --least-samples 12 --launches 1 \
                --budget 20s -o table.json --samples samples.jsonl --json";
    let told = gpus.run(line, &[KERNEL, COPY, SHARES]).ok().json();
    assert!(told["refused"] == json!([]) && told["without_kernels"].is_null(), "{told}");
    // They are no functions of the user's.
    assert_eq!(told["functions"], json!([]), "{told}");
    let samples = std::fs::read_to_string(gpus.path("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in ["one-shot kernel", "two-shot kernel"] {
        for (bytes, right) in [(16, 10_320.0), (512, 20_240.0)] {
            let of = samples.iter().find(|line| line["name"] == name && line["bytes"] == bytes).unwrap();
            for times in ["spans_us", "loops_us"].map(|times| of[times].as_array().unwrap()) {
                let is_right = |time: &Value| (time.as_f64().unwrap() - right).abs() < 1.0;
                assert!(times.len() >= 6 && times.iter().all(is_right), "{name}, {bytes} bytes: {times:?}");
            }
        }
    }
    let cell = read(&gpus.path("table.json"))["cells"][0].clone();
    let [function] = cell["functions"].as_array().unwrap().as_slice() else { panic!("{cell}") };
    assert_eq!((&function["dtype"], &function["op"]), (&json!("i32"), &json!("sum")), "{cell}");
    let name = function["function"].as_str().unwrap();
    assert!(["one-shot kernel", "two-shot kernel"].contains(&name), "{cell}");
    let evidence = function["evidence"].as_array().unwrap();
    assert_eq!(evidence.iter().map(|of| of["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [16, 512], "{cell}");
    // The kernel of a plan takes as long for all sizes, and NCCL always longer.
    let ranges = cell["ranges"].as_array().unwrap();
    let range = |bytes: u64| ranges.iter().rfind(|range| range["from_bytes"].as_u64().unwrap() <= bytes).unwrap();
    assert!(range(16)["plan"].is_string() && range(16 << 10)["plan"].is_string(), "{cell}");
    assert_eq!(read(&gpus.path("table.json"))["key"]["transport"], "nccl-mapped");
    let of_plans = samples.iter().filter(|line| line["name"].as_str().unwrap().contains("classic/"));
    let times: Vec<f64> =
        of_plans.flat_map(|line| line["spans_us"].as_array().unwrap()).filter_map(Value::as_f64).collect();
    assert!(!times.is_empty() && times.iter().all(|time| (time - 40_000.0).abs() < 1.0), "one launch each: {times:?}");
    let numbers = gpus.path("served-%p.json");
    let stats = ("ANTIPHON_STATS", numbers.to_str().unwrap());
    // Twice 20 bytes, once 400, and three times about 16 KiB.
    let Some([out, said]) = run_program(&gpus, "sizes", &[stats, SHARES]) else { return };
    assert!(out.lines().count() == 2 && out.lines().all(|line| line == "right 0"), "{out} {said}");
    assert!(said.contains(&format!("allreduce of 2 ranks, 20 bytes: the {name}")), "{said}");
    assert_eq!(["function", "plan", "NCCL"].map(|by| served(&gpus, by)), [[3; 2], [3; 2], [0; 2]], "{said}");
    // Without mapped memory NCCL serves them: nothing was measured so.
    let Some([out, said]) = run_program(&gpus, "right", &[]) else { return };
    assert!(
        out.lines().all(|line| line == "right 0") && said.contains("uses no tables that need mapped memory"),
        "{out} {said}"
    );
    assert!(said.contains("allreduce of 2 ranks, 20 bytes: NCCL"), "{said}");
}

/// Plans take turns where mapped memory has no room for all of them, so none is refused; of one that needs more than all of it, NCCL moves
/// the messages.
#[test]
fn a_tuning_with_little_mapped_memory_measures_all_plans() {
    let gpus = FakeGpus::new(3, THREE_SLOW);
    let line = "tune --device gpu --ranks 3 --collective allreduce --sizes 64 --least-samples 3 --launches 1 --budget 20s \
                -o table.json --samples samples.jsonl --force --json";
    let mut measured = Vec::new();
    for bytes in ["", "2KiB", "800"] {
        let told = gpus.run(line, &[KERNEL, COPY, SHARES, ("ANTIPHON_MAPPED_BYTES", bytes)]).ok().json();
        assert_eq!((&told["refused"], &told["dropped"]), (&json!([]), &json!([])), "{bytes}: {told}");
        assert_eq!(read(&gpus.path("table.json"))["key"]["transport"], "nccl-mapped");
        let samples = std::fs::read_to_string(gpus.path("samples.jsonl")).unwrap();
        let samples = samples.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_plans = samples.filter(|line| line["name"].as_str().unwrap().contains("classic/"));
        measured
            .push(of_plans.map(|line| (line["name"].to_string(), line["spans_us"].to_string())).collect::<Vec<_>>());
    }
    assert!(measured[0].len() > 8 && measured[0] == measured[1], "{measured:?}");
    let by_kernel = |times: &(String, String)| times.1.contains("40000.0");
    let of_little = measured[2].iter().filter(|of| by_kernel(of)).count();
    assert!((1..measured[0].len() - 1).contains(&of_little) && measured[2].len() == measured[0].len(), "{measured:?}");
    let ran = gpus.run(line, &[SHARES, ("ANTIPHON_MAPPED_BYTES", "much")]);
    assert!(ran.code != 0 && ran.stderr.contains("and not a size such as 64MiB"), "{}", ran.stderr);
}

/// Where ranks cannot map memory, one line says why, and the rest is measured.
#[test]
fn a_tuning_without_mapped_memory_says_so_once() {
    let gpus = FakeGpus::new(2, TWO);
    let line =
        "tune --device gpu --ranks 2 --collective allreduce --sizes 16,64 --least-samples 6 --launches 2 --budget 10s";
    for (lacks, why) in [
        ("descriptors,ipc", "the driver of rank 0 cannot share memory with other processes"),
        ("import", "importing memory: the CUDA driver says CUDA_ERROR_NOT_SUPPORTED"),
    ] {
        let lacks = ("FAKE_CUDA_LACKS", lacks);
        let ran = gpus.run(&format!("{line} -o table.json --force --json"), &[COPY, lacks]).ok();
        let told = ran.json();
        assert!(told["without_kernels"].as_str().unwrap().contains(why), "{told}");
        assert_eq!(ran.stderr.matches(UNMAPPED).count(), 1, "{}", ran.stderr);
        assert_eq!(told["refused"], json!([]), "{told}");
        let cell = read(&gpus.path("table.json"))["cells"][0].clone();
        assert!(cell["functions"].is_null(), "{cell}");
        assert!(cell["ranges"].as_array().unwrap().iter().any(|range| range["plan"].is_string()), "{cell}");
    }
    // Plans of other collectives use it, too.
    let line =
        "tune --device gpu --ranks 2 --collective allgather --sizes 16 --least-samples 3 --launches 1 --budget 5s";
    let ran = gpus.run(&format!("{line} -o table.json --force"), &[("FAKE_CUDA_LACKS", "descriptors,ipc")]).ok();
    assert!(ran.stderr.contains(UNMAPPED), "{}", ran.stderr);
    assert_eq!(read(&gpus.path("table.json"))["key"]["transport"], "nccl");
}

/// On two machines the kernel moves messages within each, and NCCL those between them.
#[test]
fn a_tuning_on_two_machines_maps_memory_within_each() {
    let mut machine = "collective AllReduce 900000 0\ncollective AllGather 7 0\n".to_owned();
    for (from, to) in (0..16).map(|at| (at / 4, at % 4)).filter(|(from, to)| from != to) {
        let time = if from / 2 == to / 2 { 500_000 } else { 20_000 };
        machine.push_str(&format!("link {from} {to} {time} 0\n"));
    }
    let gpus = FakeGpus::new(4, &machine);
    let output = gpus.path("table.json");
    let line = "tune --device gpu --collective allreduce --sizes 64 --launches 1 --least-samples 3 --budget 20s \
                --samples samples.jsonl -o";
    let mut variables = gpus.variables.clone();
    variables.retain(|(name, _)| ![SHARES.0, KERNEL.0].contains(&name.as_str()));
    variables.extend([KERNEL, SHARES].map(|(name, value)| (name.to_owned(), value.to_owned())));
    let line = format!("{line} {}", output.display())
        .replace("samples.jsonl", &gpus.path("samples.jsonl").display().to_string());
    let ended = Launched::explicit_with(&["a", "a", "b", "b"], &line, &variables).end();
    assert!(ended.iter().all(|ran| ran.code == 0), "{:?}", ended.iter().map(|ran| &ran.stderr).collect::<Vec<_>>());
    let table = read(&output);
    assert_eq!((&table["key"]["transport"], &table["key"]["machines"]), (&json!("nccl-mapped"), &json!([0, 0, 1, 1])));
    // A message of NCCL's within a machine would take longer than any plan does.
    let ranking = table["cells"][0]["ranges"][0]["evidence"][0]["ranking"].as_array().unwrap();
    let of_plans = ranking.iter().filter(|of| of["name"].as_str().unwrap().contains("classic/"));
    let times: Vec<f64> = of_plans.map(|of| of["median_us"].as_f64().unwrap()).collect();
    assert!(times.len() > 5 && times.iter().all(|time| (60_000.0..500_000.0).contains(time)), "{table}");
}

/// Three GPUs, so slow that few calls make a block.
const THREE_SLOW: &str = "link 0 1 20000 0\nlink 1 0 20000 0\nlink 0 2 20000 0\nlink 2 0 20000 0\nlink 1 2 20000 0\nlink 2 1 20000 0\n\
    collective AllReduce 60000 0\ncollective AllGather 7 0\n";
const TUNE_THREE: &str = "tune --device gpu --ranks 3 --collective allreduce --sizes 64 --launches 1 --least-samples 3 --budget 20s \
    --samples samples.jsonl --timeout 3s --json -o t.json";

/// The kernels that were timed.
fn kernels_timed(gpus: &FakeGpus) -> usize {
    let text = std::fs::read_to_string(gpus.path("samples.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_timed = |line: &Value| line["name"].as_str().unwrap().ends_with(" kernel") && line["spans_us"] != json!([]);
    lines.filter(is_timed).count()
}

/// A rank whose GPU stands still while the others are in a kernel is named, and that kernel is refused; the other one and all the rest
/// are measured, with other memory.
#[test]
fn a_rank_that_stalls_in_a_kernel_is_named_and_the_rest_is_measured() {
    // In a check, after which candidates are checked again one by one; and later, where one is timed.
    for (fault, refused_kernels) in [("1:antiphon_allreduce:1:late-5000", 0), ("1:antiphon_allreduce:40:late-5000", 1)]
    {
        let gpus = FakeGpus::new(3, THREE_SLOW);
        let told = gpus.run(TUNE_THREE, &[KERNEL, COPY, SHARES, ("FAKE_CUDA_FAULT", fault)]).ok().json();
        let refused = told["refused"].as_array().unwrap();
        assert_eq!(refused.len(), refused_kernels, "{told}");
        for of in refused {
            let why = of["why"].as_str().unwrap();
            assert!(of["name"].as_str().unwrap().ends_with(" kernel") && of["is_wrong"] == false, "{told}");
            assert!(why.contains("gave up waiting for rank 1 at the ") || of["rank"] == 1, "{told}");
        }
        assert_eq!(kernels_timed(&gpus), 2 - refused_kernels, "{told}");
        let (stock, others) = gpus.measured();
        assert!(stock >= 3 && others >= 3, "{told}");
    }
}

/// A rank that dies in a kernel is named, and nobody waits for it for ever.
#[test]
fn a_rank_that_dies_in_a_kernel_is_named() {
    let gpus = FakeGpus::new(3, THREE_SLOW);
    let fault = ("FAKE_CUDA_FAULT", "1:antiphon_allreduce:12:exit");
    let ran = gpus.run(TUNE_THREE, &[KERNEL, COPY, SHARES, fault]);
    assert!(ran.code == 1 && ran.stderr.contains("ranks were lost again and again: rank 1"), "{}", ran.stderr);
}
