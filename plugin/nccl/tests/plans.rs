//! Ranks that are processes call NCCL's functions, and plans serve them: over the fake NCCL of `tests/nccl` and the fake driver of `tests/cuda`,
//! with this library preloaded and in NCCL's place.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;
mod place;

use place::{PATIENT, Place, SHORT, WAYS, Way, by_plans, table_for};

/// The same programs as without plans, unchanged: several communicators, one with the ranks the other way round, calls in place, split
/// communicators, groups, and calls after the end.
#[test]
fn plans_serve_programs_that_know_nothing_of_them() {
    let place = Place::new(&[]);
    for (way, ranks) in [(Way::Preloaded, 2), (Way::Instead, 3), (Way::Preloaded, 4)] {
        // The ranks 0 and 2 of four have a communicator of their own, with a table of its own.
        let (lines, said, counted) = place.with_tables((way, ranks), "right", 2);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        let bytes = 20 * ranks;
        assert!(said.contains(&format!("allreduce of {ranks} ranks, 20 bytes: the plan ")), "{said}");
        assert!(said.contains(&format!("allgather of {ranks} ranks, {bytes} bytes: the plan ")), "{said}");
        assert!(said.contains("the table chooses the plan `reduce`, but it is for another root"), "{said}");
        assert!(said.contains("0 bytes: NCCL, because the table chooses stock"), "{said}");
        assert_eq!(counted.len(), ranks);
        let mut gathered = 0;
        for calls in counted {
            let served = ["allreduce", "reducescatter", "broadcast", "alltoall", "reduce"];
            assert_eq!(served.map(|name| by_plans(&calls, name)), [3, 1, 1, 2, 2], "{calls:?}");
            gathered += by_plans(&calls, "allgather");
        }
        let in_split = if ranks == 4 { 2 } else { 0 };
        assert_eq!(gathered, ranks as u64 + in_split, "{ranks} ranks: {said}");
    }
}

/// A communicator without its last rank, and one with that rank anew: each has the plans for so many ranks. What waits for the last rank
/// ends where a program gives it up.
#[test]
fn shrunk_and_grown_communicators_run_plans() {
    let place = Place::new(&[]);
    for (way, ranks, mode) in [
        (Way::Preloaded, 3, "shrunk"),
        (Way::Instead, 4, "shrunk"),
        (Way::Instead, 3, "shrunk abort"),
        (Way::Preloaded, 4, "shrunk abort"),
        (Way::Preloaded, 3, "revoked"),
        (Way::Instead, 3, "nonblocking shrunk"),
        (Way::Preloaded, 3, "nonblocking shrunk abort"),
        (Way::Instead, 3, "nonblocking revoked"),
    ] {
        let (lines, said, calls) = place.with_tables((way, ranks), mode, ranks - 1);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks, {mode}: {lines:?} {said}");
        let served = |calls: Vec<_>| ["allreduce", "allgather"].map(|name| by_plans(&calls, name));
        let mut counted: Vec<_> = calls.into_iter().map(served).collect();
        counted.sort_unstable();
        // NCCL serves those that were made without blocking and are not grown. A call that is given up may not have begun.
        if let Some(of) = mode.strip_prefix("nonblocking ") {
            let gathered = if of == "shrunk" { 2 } else { u64::from(of != "revoked") };
            assert!(counted.iter().all(|of| of[1] == gathered), "{way:?}, {ranks} ranks, {mode}: {counted:?} {said}");
            continue;
        }
        // The last rank calls nothing of the smaller one. NCCL answers calls of one whose calls were given up.
        let (of_last, of_others) = match mode {
            "shrunk" => (vec![[2, 2]], [3, 3]),
            "shrunk abort" => (vec![[1, 1]], [3, 2]),
            _ => (Vec::new(), [2, 1]),
        };
        let wanted = [of_last, vec![of_others; ranks - 1]].concat();
        assert_eq!(counted, wanted, "{way:?}, {ranks} ranks, {mode}: {said}");
    }
}

impl Place {
    /// What ranks say that have plans for their number and for another one, what this library says, and the calls of each rank.
    fn with_tables(
        &self,
        (way, ranks): (Way, usize),
        mode: &str,
        other: usize,
    ) -> (Vec<String>, String, Vec<Vec<serde_json::Value>>) {
        let (tables, numbers) = (self.path(&format!("tables-{ranks}")), self.path("numbers-%p.json"));
        std::fs::create_dir_all(&tables).unwrap();
        for of in [other, ranks] {
            std::fs::write(tables.join(format!("{of}.json")), table_for(of, 8).to_string()).unwrap();
        }
        let variables = [
            PATIENT,
            ("ANTIPHON_TABLE", tables.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = self.run(way, ranks, mode, &variables);
        (lines, said, self.counted("numbers-"))
    }

    /// What ranks say that have plans for everything, what this library says, and how many calls of these collectives plans have served on
    /// each rank.
    fn with_plans<const N: usize>(
        &self,
        (way, ranks): (Way, usize),
        mode: &str,
        collectives: [&str; N],
        more: &[(&str, &str)],
    ) -> (Vec<String>, String, Vec<[u64; N]>) {
        let (lines, said, counted) = self.with_table((way, ranks), mode, &table_for(ranks, 8), more);
        let counted = counted.into_iter();
        (lines, said, counted.map(|calls| collectives.map(|name| by_plans(&calls, name))).collect())
    }
}

/// Plans wait for the end of a group, begin in an order of communicators that all ranks have, and leave streams as NCCL leaves them.
#[test]
fn plans_serve_calls_in_groups() {
    let place = Place::new(&[]);
    for way in WAYS {
        let (lines, said) = place.run(way, 3, "groups", &[PATIENT]);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
    }
    for (way, ranks, seed) in [(Way::Preloaded, 2, "1"), (Way::Instead, 3, "2"), (Way::Preloaded, 4, "3")] {
        let served = ["allreduce", "allgather", "reduce"];
        let more = [PATIENT, ("FAKE_CUDA_SEED", seed)];
        let (lines, said, counted) = place.with_plans((way, ranks), "streams", served, &more);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        // 2 in groups of one communicator, 16 in those of two, 4 and 8 in several streams, and one after what did nothing.
        assert_eq!(counted, vec![[2 + 16 + 4 + 1, 2 + 8, 2]; ranks], "{said}");
        assert!(!said.contains("runs no plans"), "{said}");
    }
    let (lines, said, counted) = place.with_plans((Way::Preloaded, 2), "pair", ["allreduce"], &[PATIENT]);
    assert_eq!((lines, counted), (vec!["right 0".to_owned(); 2], vec![[0]; 2]), "{said}");
    assert!(said.contains("its communicator runs no plans: several of its ranks are in one process"), "{said}");
}

/// A graph has the rounds of its calls, and each launch is right.
#[test]
fn graphs_record_plans() {
    let place = Place::new(&[]);
    for way in WAYS {
        let (lines, said) = place.run(way, 2, "graph", &[PATIENT]);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
    }
    for (way, ranks, seed) in [(Way::Preloaded, 2, "1"), (Way::Instead, 3, "2"), (Way::Preloaded, 4, "3")] {
        let served = ["allreduce", "allgather", "reduce", "alltoall", "broadcast"];
        let more = [PATIENT, ("FAKE_CUDA_SEED", seed)];
        let (lines, said, counted) = place.with_plans((way, ranks), "graph", served, &more);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        // One before the graph, those in it, and one beside each launch.
        assert_eq!(counted, vec![[1 + 2 + 4, 1, 1, 1, 1]; ranks], "{said}");
        // The same in streams that fork while a graph is recorded.
        let (lines, said, counted) = place.with_plans((way, ranks), "forked graph", ["allreduce"], &more);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        assert_eq!(counted, vec![[6]; ranks], "{said}");
    }
    // Operation 1 compares tables, and an allreduce has 8 operations on each of 3 ranks; so these are in the first launch and the second.
    for fault in ["1:4:error", "1:12:stall", "1:13:exit"] {
        let more = [SHORT, ("FAKE_NCCL_FAULT", fault)];
        let (lines, said, _) = place.with_plans((Way::Instead, 3), "graph fault", [], &more);
        assert!(lines.iter().all(|line| line.starts_with("after ") || line == "exit 86"), "{fault}: {lines:?} {said}");
        assert!(fault.contains("exit") == (lines[1] == "exit 86"), "{fault}: {lines:?}");
        assert!(lines.iter().all(|line| !line.starts_with("after 0")), "{fault}: {lines:?}");
    }
}

/// A rank that fails inside of a group, in a message of a plan or by a wrong call, ends the others too.
#[test]
fn faults_in_groups_reach_all_ranks() {
    let place = Place::new(&[]);
    // Operation 1 compares tables; NCCL has nothing in these groups.
    for fault in ["1:3:error", "1:6:stall", "1:9:exit"] {
        let more = [SHORT, ("FAKE_NCCL_FAULT", fault)];
        let (lines, said, _) = place.with_plans((Way::Instead, 3), "group fault", [], &more);
        let is_end =
            |line: &str| line.starts_with("after ") || line.starts_with("ncclGroupEnd() ") || line == "exit 86";
        assert!(lines.iter().all(|line| is_end(line)), "{fault}: {lines:?} {said}");
        assert!(fault.contains("exit") == (lines[1] == "exit 86"), "{fault}: {lines:?}");
    }
    let (lines, said, counted) = place.with_plans((Way::Preloaded, 3), "group error", ["allreduce"], &[SHORT]);
    assert_eq!(lines[2], "ncclGroupEnd() 4", "{lines:?} {said}");
    assert!(lines[..2].iter().all(|line| line.contains(" 6")), "{lines:?} {said}");
    assert_eq!(counted.len(), 2, "the rank that is wrong begins nothing, and so counts nothing");
    assert!(counted.iter().all(|[sums]| *sums > 0), "{counted:?}");
}

/// Functions return before ranks have compared their tables, and before a plan has begun; `ncclCommGetAsyncError` says when they have.
#[test]
fn communicators_without_blocking_run_plans() {
    let place = Place::new(&[]);
    for (way, ranks, seed) in [(Way::Preloaded, 2, "1"), (Way::Instead, 3, "2"), (Way::Preloaded, 4, "3")] {
        let served = ["allreduce", "allgather", "reduce"];
        let more = [PATIENT, ("FAKE_CUDA_SEED", seed)];
        let (lines, said, counted) = place.with_plans((way, ranks), "nonblocking", served, &more);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        assert_eq!(counted, vec![[3 + 2, 1 + 2, 2 + 2]; ranks], "{said}");
    }
    // Aborts end what waits: for ranks that are not there, or do not call.
    for mode in ["nonblocking early abort", "nonblocking abort"] {
        let begin = std::time::Instant::now();
        let (lines, said, _) = place.with_plans((Way::Instead, 3), mode, [], &[PATIENT]);
        assert!(lines.iter().all(|line| line == "right 0"), "{mode}: {lines:?} {said}");
        assert!(begin.elapsed() < std::time::Duration::from_secs(50), "{mode}: before the limit of the fake");
    }
}

/// The same program with NCCL's own header.
#[test]
fn long_programs_for_the_real_header_use_plans() {
    let Some(place) = Place::with_real_header() else {
        return eprintln!("skipped: there is no nccl.h (`.ci/setup gpu` gets it)");
    };
    for (mode, sums) in [("streams", 23), ("graph", 7)] {
        let (lines, said, counted) = place.with_plans((Way::Preloaded, 2), mode, ["allreduce"], &[PATIENT]);
        assert_eq!((lines, counted), (vec!["right 0".to_owned(); 2], vec![[sums]; 2]), "{mode}: {said}");
    }
}
