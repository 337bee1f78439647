//! What the other ranks hear when one fails.

use super::processes::{Ended, Ranks, compiled, is_long, run};
use std::path::Path;
use std::time::{Duration, Instant};

/// What each fault looks like to the other ranks, and whether the rank lives on.
const FAULTS: [(&str, &[u32], bool); 7] = [
    ("kill", &[4], false),
    ("cut", &[4], false),
    ("exit", &[4], false),
    ("stop", &[4], false),
    ("abort", &[7], true),
    ("other", &[6], true),
    ("free", &[4], false),
];

/// All other ranks get an error of the right kind that names the rank, long before the time limit unless the rank is
/// stopped. Then they go on without it. Of two groups, the one without the rank hears of it only if the rank is lost.
fn fails(
    program: &Path,
    (fault, results, lives): (&str, &[u32], bool),
    place: &str,
    victim: usize,
    among: (usize, &str),
) {
    let (machines, count) = among;
    let timeout = if fault == "stop" { 4 } else { 60 };
    let how = Ranks { ranks: 4, machines, timeout };
    let begin = Instant::now();
    let ended = run(program, &[fault, &victim.to_string(), count, place], how, |rank| lives || rank != victim);
    let context = format!("{fault} of rank {victim} in {place}, {count} elements, {machines} machines");
    assert!(begin.elapsed() < Duration::from_secs(20), "{context}: {:?}", begin.elapsed());
    for (rank, Ended { status, said }) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        assert!(status.success(), "{context}, rank {rank}: {said}");
        let result = said.split("result ").nth(1).and_then(|rest| rest.split(':').next());
        let result: Option<u32> = result.and_then(|text| text.parse().ok());
        let is_spared = place == "groups" && rank % 2 != victim % 2 && (lives || fault == "free");
        let expected = if is_spared { &[0] } else { results };
        assert!(result.is_some_and(|result| expected.contains(&result)), "{context}, rank {rank}: {said}");
        let is_named = said.contains(&format!("rank {victim}"));
        assert!(is_named || is_spared && lives, "{context}, rank {rank}: {said}");
        if !is_spared {
            let machine = format!("rank {victim} is on machine {}", victim % machines);
            assert_eq!(said.contains(&machine), machines > 1, "{context}, rank {rank}: {said}");
            let is_over = ["4", "6"].iter().any(|result| said.contains(&format!("result {result}")));
            assert_eq!(said.contains("; hint: "), is_over, "{context}, rank {rank}: {said}");
        }
    }
}

/// How ranks share machines, and how many elements calls have.
const AMONG: [(usize, &str); 4] = [(1, "10"), (2, "300000"), (1, "300000"), (2, "10")];

#[test]
fn a_rank_that_fails_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for ((index, fault), victim) in FAULTS.into_iter().enumerate().flat_map(|it| [(it, 0), (it, 2)]) {
        for among in AMONG.into_iter().skip(2 * (index % 2)).take(2) {
            fails(&program, fault, "calls", victim, among);
        }
    }
}

/// Where else a rank may fail, and with which fault. A communicator cannot be freed while its calls are under way.
fn faults_elsewhere() -> impl Iterator<Item = (usize, &'static str, (&'static str, &'static [u32], bool))> {
    let places = ["requests", "groups", "messages"];
    let all = places.into_iter().flat_map(|place| FAULTS.map(|fault| (place, fault)));
    let possible = all.filter(|(place, (fault, ..))| *place == "groups" || *fault != "free");
    possible.enumerate().map(|(index, (place, fault))| (index, place, fault))
}

/// With more effort, in all the ways in which ranks share machines.
#[test]
fn long_a_rank_that_fails_among_requests_groups_and_messages_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for (index, place, fault) in faults_elsewhere() {
        let ways = AMONG.into_iter().zip([0, 1, 2, 3]).cycle().skip(index % 4);
        for (among, victim) in ways.take(if is_long() { 4 } else { 1 }) {
            fails(&program, fault, place, victim, among);
        }
    }
}

/// Who leads the others to a new communicator may die as well.
#[test]
fn the_leader_of_a_meeting_may_die() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("tests/c/faults.c", &folder);
    for machines in [1, 2] {
        let ended =
            run(&program, &["twice", "2", "10"], Ranks { ranks: 4, machines, timeout: 20 }, |rank| rank % 2 == 1);
        for rank in [1, 3] {
            assert!(ended[rank].status.success(), "{machines} machines, rank {rank}: {}", ended[rank].said);
        }
    }
}
