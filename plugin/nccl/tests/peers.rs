//! One kernel over memory that ranks have mapped serves calls of programs for NCCL: over the fake NCCL of `tests/nccl` and the fake driver of
//! `tests/cuda`, with a process for each rank, each with a GPU of its own.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "other tests need more of it")]
mod built;
#[allow(dead_code, reason = "other tests need more of it")]
mod place;

use place::{PATIENT, Place, SHORT, Way, table_for};
use runtime::ALLREDUCE_PTX;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tune::summarize;

const ONE_SHOT: &str = "one-shot kernel";
const TWO_SHOT: &str = "two-shot kernel";

/// A table with plans for everything, and with functions for AllReduces of i32: sums by one of them, maxima by the other, between these
/// sizes.
fn table(ranks: usize, sizes: [u64; 2], [sums, maxima]: [&str; 2]) -> Value {
    let mut table = table_for(ranks, 8);
    let evidence: Vec<Value> = sizes
        .map(|bytes| {
            let (choice, stock) = (summarize(&[5.0; 20]).unwrap(), summarize(&[9.0; 20]).unwrap());
            json!({"bytes": bytes, "choice": choice, "stock": stock, "launches": 2, "dtype": "i32"})
        })
        .into();
    let ranges = table["cells"][0]["ranges"].clone();
    for (op, function) in [("sum", sums), ("max", maxima)] {
        // The range of a choice is wider than what was measured.
        let function = json!({
            "from_bytes": sizes[0] - 2, "to_bytes": 4 * sizes[1], "function": function, "dtype": "i32", "op": op, "evidence": evidence
        });
        let cell =
            json!({"collective": "allreduce", "op": op, "dtype": "i32", "ranges": ranges, "functions": [function]});
        table["cells"].as_array_mut().unwrap().push(cell);
    }
    table
}

/// What ranks say, what this library says, and on each rank how many AllReduces were served by a function and how many by a plan.
fn run(
    place: &Place,
    (way, ranks): (Way, usize),
    mode: &str,
    table: &Value,
    more: &[(&str, &str)],
) -> (Vec<String>, String, Vec<[u64; 2]>) {
    let (lines, said, counted) = place.with_table((way, ranks), mode, table, more);
    let counted = counted.into_iter().map(|calls| {
        ["function", "plan"].map(|by| {
            let is_it = |entry: &&Value| entry["collective"] == "allreduce" && entry["served_by"] == by;
            calls.iter().filter(is_it).map(|entry| entry["calls"].as_u64().unwrap()).sum::<u64>()
        })
    });
    (lines, said, counted.collect())
}

fn right(lines: &[String]) -> bool {
    lines.iter().all(|line| line == "right 0")
}

/// The program knows nothing of it: collectives, calls in place, in groups and in several streams, split communicators, graphs.
#[test]
fn the_kernel_serves_programs_that_know_nothing_of_it() {
    let place = Place::new(&[]);
    // As many calls as plans serve of these programs, apart from 4 bytes at the end of "right".
    let (of_right, row, streams, graph) =
        (("right", [3, 0]), ("row", [18, 0]), ("streams", [2 + 16 + 4 + 1, 0]), ("graph", [7, 0]));
    let forked = ("forked graph", [6, 0]);
    for (way, ranks, functions, lacks, modes) in [
        (Way::Preloaded, 2, [ONE_SHOT, TWO_SHOT], "", [of_right, forked, graph]),
        (Way::Instead, 3, [TWO_SHOT, ONE_SHOT], "descriptors", [row, streams, graph]),
        (Way::Preloaded, 4, [TWO_SHOT, TWO_SHOT], "", [of_right, row, forked]),
    ] {
        let table = table(ranks, [16, 200], functions);
        for (mode, served) in modes {
            let seed = ranks.to_string();
            let more = [PATIENT, ("FAKE_CUDA_SEED", seed.as_str()), ("FAKE_CUDA_LACKS", lacks)];
            let (lines, said, counted) = run(&place, (way, ranks), mode, &table, &more);
            assert!(right(&lines), "{way:?}, {ranks} ranks, {mode}: {lines:?} {said}");
            assert_eq!(counted, vec![served; ranks], "{mode}: {said}");
            assert!(said.contains(&format!("a communicator of {ranks} ranks maps 200 bytes of each")), "{said}");
            assert!(said.contains(&format!("the {}", functions[0])), "{said}");
        }
    }
}

/// Calls with one block and with several follow each other.
#[test]
fn calls_of_unequal_sizes_share_their_memory() {
    let place = Place::new(&[]);
    for (ranks, functions, lacks) in [(2, [ONE_SHOT, TWO_SHOT], "descriptors"), (3, [TWO_SHOT, ONE_SHOT], "")] {
        let table = table(ranks, [16, 16384], functions);
        let more = [PATIENT, ("FAKE_CUDA_LACKS", lacks)];
        let (lines, said, counted) = run(&place, (Way::Preloaded, ranks), "sizes", &table, &more);
        assert!(right(&lines), "{ranks} ranks: {lines:?} {said}");
        assert_eq!(counted, vec![[6, 0]; ranks], "{said}");
    }
}

#[test]
fn communicators_without_blocking_use_the_kernel() {
    let place = Place::new(&[]);
    let (lines, said, counted) =
        run(&place, (Way::Preloaded, 3), "nonblocking", &table(3, [16, 200], [ONE_SHOT, TWO_SHOT]), &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert_eq!(counted, vec![[3 + 2, 0]; 3], "{said}");
    // The last rank never comes to the call. An abort ends the kernels that wait for it.
    let begin = Instant::now();
    let table = table(3, [16, 200], [TWO_SHOT, ONE_SHOT]);
    let (lines, said, _) = run(&place, (Way::Instead, 3), "nonblocking abort", &table, &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert!(begin.elapsed() < Duration::from_secs(50), "before the limit of the fake");
}

/// Outside of the sizes between which it was measured, for another type and for another reduction, plans or NCCL serve as before.
#[test]
fn the_kernel_serves_what_was_measured_and_nothing_else() {
    let place = Place::new(&[]);
    // The calls have 20 bytes, and those of the row 160.
    for (sizes, row, of_right) in
        [([16, 19], [0, 18], [0, 3]), ([21, 160], [18, 0], [0, 3]), ([20, 159], [0, 18], [3, 0])]
    {
        let table = table(2, sizes, [ONE_SHOT, TWO_SHOT]);
        for (mode, expected) in [("row", row), ("right", of_right)] {
            let (lines, said, counted) = run(&place, (Way::Preloaded, 2), mode, &table, &[PATIENT]);
            assert!(right(&lines), "{sizes:?}, {mode}: {lines:?} {said}");
            assert_eq!(counted, vec![expected; 2], "{sizes:?}, {mode}: {said}");
        }
    }
    let mut other = table(2, [16, 200], [ONE_SHOT, ONE_SHOT]);
    for cell in other["cells"].as_array_mut().unwrap().iter_mut().filter(|cell| cell["functions"].is_array()) {
        cell["functions"][0]["dtype"] = json!("f32");
    }
    let (lines, said, counted) = run(&place, (Way::Preloaded, 2), "row", &other, &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert_eq!(counted, vec![[0, 18]; 2], "{said}");
    // A function of somebody else is none of this library.
    let (lines, said, counted) =
        run(&place, (Way::Preloaded, 2), "row", &table(2, [16, 200], ["mine", "yours"]), &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert_eq!(counted, vec![[0, 18]; 2], "{said}");
    assert!(!said.contains("maps"), "{said}");
}

/// Where one rank cannot map the memory of others, or has none to map, all ranks are served as without it.
#[test]
fn where_one_rank_maps_nothing_no_rank_does() {
    let place = Place::new(&[]);
    for (lacks, others, why) in [
        ("import", "", "importing memory: the CUDA driver says CUDA_ERROR_NOT_SUPPORTED"),
        ("access", "", "mapping memory: the CUDA driver says CUDA_ERROR_INVALID_DEVICE"),
        ("descriptors,import", "", "opening memory of another process"),
        ("descriptors,ipc", "", "the driver of rank 2 cannot share memory"),
    ] {
        let table = table(3, [16, 200], [ONE_SHOT, TWO_SHOT]);
        let more = [PATIENT, ("OTHER_LACKS", lacks), ("FAKE_CUDA_LACKS", others)];
        let (lines, said, counted) = run(&place, (Way::Instead, 3), "right", &table, &more);
        assert!(right(&lines), "{lacks}: {lines:?} {said}");
        assert_eq!(counted, vec![[0, 3]; 3], "{lacks}: {said}");
        assert!(
            said.contains("a communicator maps no memory of other ranks: ") && said.contains(why),
            "{lacks}: {said}"
        );
    }
}

/// The end of a communicator waits for calls, as NCCL's does, and blocks nobody who does not want it.
#[test]
fn the_end_waits_for_calls() {
    let place = Place::new(&[]);
    for (mode, lacks) in [("late", "descriptors"), ("nonblocking late", "")] {
        let table = table(3, [16, 200], [TWO_SHOT, ONE_SHOT]);
        let more = [PATIENT, ("FAKE_CUDA_LACKS", lacks)];
        let (lines, said, counted) = run(&place, (Way::Preloaded, 3), mode, &table, &more);
        assert!(right(&lines), "{mode}: {lines:?} {said}");
        assert_eq!(counted, vec![[1, 0]; 3], "{mode}: {said}");
    }
}

/// The sockets of one rank do not work. It lives, and so the communicator does, without mapped memory.
#[test]
fn a_rank_without_sockets_ends_nothing() {
    let place = Place::new(&[]);
    for (which, why) in
        [("all", "rank 2: it has no socket"), ("calls", "rank 0: the call of rank 2 was not there after 5s")]
    {
        let more = [PATIENT, ("OTHER_REFUSES", which)];
        let table = table(3, [16, 200], [ONE_SHOT, TWO_SHOT]);
        let (lines, said, counted) = run(&place, (Way::Preloaded, 3), "row", &table, &more);
        assert!(right(&lines), "{which}: {lines:?} {said}");
        assert_eq!(counted, vec![[0, 18]; 3], "{which}: {said}");
        assert!(
            said.contains("a communicator maps no memory of other ranks: ") && said.contains(why),
            "{which}: {said}"
        );
    }
}

/// A rank that ends, or stalls, while others wait for it in the kernel or while they share memory.
#[test]
fn faults_reach_all_ranks() {
    let place = Place::new(&[]);
    let table = table(3, [16, 200], [ONE_SHOT, TWO_SHOT]);
    let begin = Instant::now();
    // Also where a child of the rank holds its sockets, and in graphs that are launched before or after it is gone.
    for (mode, forks) in [("gone", false), ("gone", true), ("gone graph idle", false), ("gone graph", true)] {
        let more: &[(&str, &str)] = if forks { &[PATIENT, ("OTHER_FORKS", "1")] } else { &[PATIENT] };
        let (lines, said, _) = run(&place, (Way::Instead, 3), mode, &table, more);
        assert_eq!(lines[2], "exit 86", "{mode}: {lines:?} {said}");
        for line in &lines[..2] {
            assert!(
                line.starts_with("after 6") || line.contains("ncclAllReduce(") && line.ends_with(" 6"),
                "{mode}, {forks}: {lines:?} {said}"
            );
        }
    }
    // A rank that gives up a call has not left in order, though it lives.
    let (lines, said, _) = run(&place, (Way::Preloaded, 3), "gives up", &table, &[PATIENT]);
    assert!(lines[0] == "right 0" && lines[1].starts_with("after 6") && lines[2] == "right 0", "{lines:?} {said}");
    // Operations 1 and 2 compare tables and the names of GPUs; the next ones share memory.
    for (fault, own) in [("1:3:error", "Init"), ("1:4:exit", "exit 86"), ("1:5:exit", "exit 86"), ("1:4:stall", "Init")]
    {
        let more = [SHORT, ("FAKE_NCCL_FAULT", fault)];
        let (lines, said, _) = run(&place, (Way::Preloaded, 3), "row", &table, &more);
        assert!(lines[1].contains(own), "{fault}: {lines:?} {said}");
        assert!(
            [0, 2].into_iter().all(|rank| lines[rank].starts_with("ncclCommInitRank(")),
            "{fault}: {lines:?} {said}"
        );
        assert!(said.contains("the ranks did not meet for "), "{fault}: {said}");
    }
    assert!(begin.elapsed() < Duration::from_secs(200), "nobody waits for ever");
}

/// The kernel for i32 alone, without the waits of a meeting.
fn without_meeting(meeting: Option<usize>) -> String {
    let head = &ALLREDUCE_PTX[..ALLREDUCE_PTX.find(".visible .entry").unwrap()];
    let kernel = &ALLREDUCE_PTX[ALLREDUCE_PTX.find(".visible .entry antiphon_allreduce_i32(").unwrap()..];
    let kernel = &kernel[..kernel.find("\n}\n").unwrap() + 3];
    let (mut text, mut number) = (head.to_owned(), 0);
    for line in kernel.lines() {
        let is_wait = line.contains("ld.acquire.sys");
        let register = line.split_whitespace().find(|word| word.starts_with('%'));
        match register.filter(|_| is_wait && Some(number / 2) == meeting) {
            Some(register) => text.push_str(&format!("mov.b64 {register} -1;")),
            None => text.push_str(line),
        }
        number += usize::from(is_wait);
        text.push('\n');
    }
    assert_eq!(number, 4);
    text
}

/// There is one place for inputs and one for results, because the kernel has two meetings. Without either, calls in a row are wrong where one
/// GPU is slower than others.
#[test]
fn one_place_is_enough_because_of_both_meetings() {
    let place = Place::new(&[]);
    let file = place.path("kernel.ptx");
    for functions in [[ONE_SHOT, ONE_SHOT], [TWO_SHOT, TWO_SHOT]] {
        for meeting in [None, Some(0), Some(1)] {
            std::fs::write(&file, without_meeting(meeting)).unwrap();
            let more = [PATIENT, ("OTHER_SLOW_MS", "3"), ("FAKE_CUDA_PTX", file.to_str().unwrap())];
            let (lines, said, _) = run(&place, (Way::Instead, 3), "row", &table(3, [16, 200], functions), &more);
            let about = format!("{functions:?}, without meeting {meeting:?}: {lines:?} {said}");
            if meeting.is_none() {
                assert!(right(&lines), "{about}");
                continue;
            }
            // Numbers are wrong, and nothing else is, but that whoever sees it ends at once.
            let is_wrong = |line: &&String| line.starts_with("row ") && line.ends_with(": this is wrong");
            assert!(lines.iter().any(|line| is_wrong(&line)), "{about}");
            let others = lines.iter().filter(|line| !is_wrong(line));
            assert!(
                others.clone().all(|line| line == "right 0" || line.ends_with(" 6") || line.starts_with("row 6")),
                "{about}"
            );
        }
    }
}
