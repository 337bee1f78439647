//! Plans whose kernel moves the messages between ranks of one machine, in NCCL's place: over the fake NCCL of `tests/nccl` and the fake driver
//! of `tests/cuda`, with a process for each rank, each with a GPU of its own.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "other tests need more of it")]
mod built;
#[allow(dead_code, reason = "other tests need more of it")]
mod place;

use place::{PATIENT, Place, SHORT, Way, by_plans, table_for};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A table with plans for everything, measured by ranks of which the last one may be on another machine, with mapped memory.
fn table(ranks: usize, is_last_apart: bool) -> Value {
    let mut table = table_for(ranks, 8);
    let machines: Vec<u32> = (0..ranks).map(|rank| u32::from(is_last_apart && rank + 1 == ranks)).collect();
    (table["key"]["machines"], table["key"]["transport"]) = (json!(machines), json!("nccl-mapped"));
    table
}

/// The last rank is on another machine.
const APART: [(&str, &str); 2] = [("ANTIPHON_HOST", "one"), ("OTHER_HOST", "other")];

/// What ranks say, what this library says, and how many AllReduces and AllGathers plans have served on each rank.
fn run(
    place: &Place,
    (way, ranks): (Way, usize),
    mode: &str,
    table: &Value,
    more: &[(&str, &str)],
) -> (Vec<String>, String, Vec<[u64; 2]>) {
    let (lines, said, counted) = place.with_table((way, ranks), mode, table, more);
    let counted = counted.into_iter().map(|calls| ["allreduce", "allgather"].map(|name| by_plans(&calls, name)));
    (lines, said, counted.collect())
}

fn right(lines: &[String]) -> bool {
    lines.iter().all(|line| line == "right 0")
}

/// The program knows nothing of it: all collectives, calls in place, in rows, in groups and in several streams, graphs.
#[test]
fn the_kernel_moves_messages_of_programs_that_know_nothing_of_it() {
    let place = Place::new(&[]);
    let (of_right, row, streams, graph) =
        (("right", [3, 1]), ("row", [18, 0]), ("streams", [2 + 16 + 4 + 1, 2 + 8]), ("graph", [7, 1]));
    for (way, ranks, lacks, apart, modes) in [
        (Way::Preloaded, 2, "", false, [streams, graph]),
        (Way::Instead, 3, "descriptors", true, [of_right, graph]),
        (Way::Preloaded, 4, "", true, [row, streams]),
        (Way::Instead, 4, "", false, [of_right, graph]),
    ] {
        let table = table(ranks, apart);
        for (mode, served) in modes {
            let seed = ranks.to_string();
            let mut more = vec![PATIENT, ("FAKE_CUDA_SEED", seed.as_str()), ("FAKE_CUDA_LACKS", lacks)];
            more.extend(APART.iter().filter(|_| apart));
            let (lines, said, counted) = run(&place, (way, ranks), mode, &table, &more);
            assert!(right(&lines), "{way:?}, {ranks} ranks, {mode}: {lines:?} {said}");
            // Half of the groups are of a communicator with the ranks the other way round, for which the table is none then.
            let served = if apart && mode == "streams" { [served[0] - 8, served[1]] } else { served };
            assert_eq!(counted, vec![served; ranks], "{ranks} ranks, {mode}: {said}");
            assert!(said.contains(&format!("a communicator of {ranks} ranks maps ")), "{said}");
        }
    }
}

/// Calls in streams that fork while a graph is recorded follow each other.
#[test]
fn calls_of_one_recording_follow_each_other_in_all_streams() {
    let place = Place::new(&[]);
    for (ranks, apart, seed) in [(2, false, "1"), (3, true, "2"), (4, false, "3")] {
        let mut more = vec![PATIENT, ("FAKE_CUDA_SEED", seed)];
        more.extend(APART.iter().filter(|_| apart));
        let (lines, said, counted) = run(&place, (Way::Preloaded, ranks), "forked graph", &table(ranks, apart), &more);
        assert!(right(&lines), "{ranks} ranks: {lines:?} {said}");
        assert_eq!(counted, vec![[6, 0]; ranks], "{said}");
    }
}

/// Where a program gives a call up that the last rank never makes, and goes on without that rank, no kernel waits any more.
#[test]
fn a_program_goes_on_without_a_rank() {
    let place = Place::new(&[]);
    let (shrunk, revoked) = (vec![[1, 1], [2, 1], [2, 1]], vec![[1, 0], [1, 0]]);
    for (way, mode, served) in [
        (Way::Preloaded, "shrunk abort", &shrunk),
        (Way::Instead, "revoked", &revoked),
        (Way::Instead, "nonblocking shrunk abort", &shrunk),
        (Way::Preloaded, "nonblocking revoked", &revoked),
    ] {
        let begin = Instant::now();
        let (lines, said, mut counted) = run(&place, (way, 3), mode, &table(3, false), &[PATIENT]);
        assert!(right(&lines), "{mode}: {lines:?} {said}");
        // NCCL serves two ranks. Without blocking, a call that is given up may not have begun.
        counted.sort_unstable();
        if mode.starts_with("nonblocking") {
            assert!(counted.iter().zip(served).all(|(of, most)| of[1] == most[1]), "{mode}: {counted:?} {said}");
            continue;
        }
        assert_eq!(counted, *served, "{mode}: {said}");
        assert!(begin.elapsed() < Duration::from_secs(50), "before the limit of the fake");
    }
}

#[test]
fn communicators_without_blocking_move_messages_by_the_kernel() {
    let place = Place::new(&[]);
    for (ranks, apart) in [(3, true), (2, false)] {
        let more: Vec<_> = [PATIENT].into_iter().chain(APART.iter().filter(|_| apart).copied()).collect();
        let (lines, said, counted) = run(&place, (Way::Preloaded, ranks), "nonblocking", &table(ranks, apart), &more);
        assert!(right(&lines), "{lines:?} {said}");
        assert_eq!(counted, vec![[3 + 2, 3]; ranks], "{said}");
    }
    // The last rank never comes to the call. An abort ends the kernels that wait for it.
    let begin = Instant::now();
    let (lines, said, _) = run(&place, (Way::Instead, 3), "nonblocking abort", &table(3, false), &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert!(begin.elapsed() < Duration::from_secs(50), "before the limit of the fake");
}

/// Memory is taken for calls that begin. What one rank alone asks for and gives up shifts nothing.
#[test]
fn a_call_that_is_given_up_takes_no_memory() {
    let place = Place::new(&[]);
    let (lines, said, counted) = run(&place, (Way::Preloaded, 3), "simulated row", &table(3, false), &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert_eq!(counted, vec![[18, 0]; 3], "{said}");
}

/// A rank whose driver does not take the kernel tells the others, and NCCL serves all.
#[test]
fn a_rank_that_cannot_run_the_kernel_tells_the_others() {
    let (place, begin) = (Place::new(&[]), Instant::now());
    let more = [PATIENT, ("OTHER_LACKS", "ptx")];
    let (lines, said, counted) = run(&place, (Way::Preloaded, 3), "right", &table(3, false), &more);
    assert!(right(&lines) && said.contains("a communicator runs no plans: rank 2 has no plans"), "{lines:?} {said}");
    assert_eq!(counted, vec![[0, 0]; 3], "{said}");
    assert!(begin.elapsed() < Duration::from_secs(50), "nobody waits for a rank that says nothing");
}

/// Where mapped memory has no room for further plans, NCCL moves their messages, on all ranks, and one line says so.
#[test]
fn plans_without_room_in_mapped_memory_are_served_too() {
    let place = Place::new(&[]);
    let (few, none) = (("ANTIPHON_MAPPED_BYTES", "2KiB"), ("ANTIPHON_MAPPED_BYTES", "256"));
    for (way, ranks, apart, room) in [(Way::Preloaded, 3, true, few), (Way::Instead, 4, false, none)] {
        for (mode, served) in [("right", [3, 1]), ("graph", [7, 1])] {
            let mut more = vec![PATIENT, room];
            more.extend(APART.iter().filter(|_| apart));
            let (lines, said, counted) = run(&place, (way, ranks), mode, &table(ranks, apart), &more);
            assert!(right(&lines), "{room:?}, {mode}: {lines:?} {said}");
            assert_eq!(counted, vec![served; ranks], "{room:?}, {mode}: {said}");
            let told = said.matches("too little mapped memory is left for its messages, so NCCL moves them").count();
            assert!(told >= 1, "{room:?}, {mode}: {said}");
        }
    }
    let (lines, said, counted) =
        run(&place, (Way::Preloaded, 2), "right", &table(2, false), &[PATIENT, ("ANTIPHON_MAPPED_BYTES", "some")]);
    assert!(right(&lines) && said.contains("ANTIPHON_MAPPED_BYTES is \"some\", and not a size"), "{lines:?} {said}");
    assert_eq!(counted, vec![[3, 1]; 2], "{said}");
}

/// A table that was measured with mapped memory is none for ranks that map nothing, or are on other machines.
#[test]
fn where_no_memory_is_mapped_such_a_table_serves_nothing() {
    let place = Place::new(&[]);
    let none = ("FAKE_CUDA_LACKS", "descriptors,ipc");
    for (more, why) in [
        (vec![none], "a communicator uses no tables that need mapped memory: the driver of rank 0 cannot share memory"),
        (APART.to_vec(), "it is for another root, or for other machines"),
    ] {
        let more: Vec<_> = more.into_iter().chain([PATIENT]).collect();
        let (lines, said, counted) = run(&place, (Way::Instead, 3), "right", &table(3, false), &more);
        assert!(right(&lines), "{why}: {lines:?} {said}");
        assert_eq!(counted, vec![[0, 0]; 3], "{why}: {said}");
        assert!(said.contains(why), "{why}: {said}");
    }
    // A table that was measured without it maps nothing.
    let mut plain = table(3, false);
    plain["key"]["transport"] = json!("nccl");
    let (lines, said, counted) = run(&place, (Way::Preloaded, 3), "right", &plain, &[PATIENT]);
    assert!(right(&lines) && !said.contains("maps"), "{lines:?} {said}");
    assert_eq!(counted, vec![[3, 1]; 3], "{said}");
}

/// A rank that ends, gives up, or comes late, while others wait for it in the kernel.
#[test]
fn faults_reach_all_ranks_of_domains() {
    let place = Place::new(&[]);
    let begin = Instant::now();
    for (mode, more) in [("gone", ("OTHER_FORKS", "0")), ("gone graph idle", ("", "")), ("gone graph", ("", ""))] {
        let more: Vec<_> = [PATIENT].into_iter().chain(Some(more).filter(|(name, _)| !name.is_empty())).collect();
        let (lines, said, _) = run(&place, (Way::Instead, 3), mode, &table(3, false), &more);
        assert_eq!(lines[2], "exit 86", "{mode}: {lines:?} {said}");
        for line in &lines[..2] {
            let is_told = line.starts_with("after 6") || line.contains("ncclAllReduce(") && line.ends_with(" 6");
            assert!(is_told, "{mode}: {lines:?} {said}");
        }
    }
    // The end of a communicator waits for its calls.
    let (lines, said, counted) = run(&place, (Way::Preloaded, 3), "late", &table(3, false), &[PATIENT]);
    assert!(right(&lines), "{lines:?} {said}");
    assert_eq!(counted, vec![[1, 0]; 3], "{said}");
    // NCCL between the domains ends: whoever waits for it in the kernel is told by NCCL, too.
    for fault in ["2:14:error", "2:14:exit"] {
        let more = [SHORT, ("FAKE_NCCL_FAULT", fault), APART[0], APART[1]];
        let (lines, said, _) = run(&place, (Way::Preloaded, 3), "row", &table(3, true), &more);
        assert!(lines.iter().all(|line| !line.starts_with("right")), "{fault}: {lines:?} {said}");
    }
    assert!(begin.elapsed() < Duration::from_secs(120), "nobody waits for ever");
}
