//! AllReduce on registered buffers with one mistake each: the machine or the reference finds every one.

use super::peers::{MODULE, Outcome, Terms, run, run_changed};
use crate::device::ALLREDUCE_PTX;
use crate::device::peers::{PeerAddresses, PeerAlgorithm, PeerCall};
use program::testing::schedules::Random;
use ptx::{Fault, Module};
use topology::Rank;

/// How many interleavings a mistake may stay hidden.
const SEEDS: u64 = 12;

/// One-shot and two-shot, in place and not.
fn kinds() -> Vec<PeerCall> {
    let kind = |algorithm: &PeerAlgorithm| {
        [false, true].map(|in_place| PeerCall { algorithm: *algorithm, in_place, ..Terms::PLAIN.call })
    };
    PeerAlgorithm::ALL.iter().flat_map(kind).collect()
}

fn terms(call: PeerCall, seed: u64) -> Terms {
    Terms { call, seed, threads: 3, ..Terms::PLAIN }
}

fn outcomes(call: PeerCall, module: &Module) -> impl Iterator<Item = Outcome> {
    (0..SEEDS).map(move |seed| run_changed(terms(call, seed), module, |_, _, _| {}))
}

fn is_found(call: PeerCall, module: &Module) -> bool {
    outcomes(call, module).any(|outcome| outcome != Outcome::Right)
}

/// The kernel for f32, which is the first one.
fn kernel() -> &'static str {
    &ALLREDUCE_PTX[..ALLREDUCE_PTX.find("\n}\n").unwrap() + 3]
}

/// The kernel with other lines in the place of those that have `part`, chosen by their number among these.
fn edited(part: &str, chosen: impl Fn(usize) -> bool, edit: impl Fn(&str) -> String) -> Module {
    let (mut text, mut number, mut edits) = (String::new(), 0, 0);
    for line in kernel().lines() {
        let is_one = line.contains(part);
        let is_chosen = is_one && chosen(number);
        (number, edits) = (number + usize::from(is_one), edits + usize::from(is_chosen));
        text.push_str(&if is_chosen { edit(line) } else { line.to_owned() });
        text.push('\n');
    }
    assert!(edits > 0, "{part}");
    Module::parse(&text).unwrap()
}

/// A load that always finds what it waits for.
fn satisfied(load: &str) -> String {
    let register = load.split_whitespace().find(|word| word.starts_with('%')).unwrap();
    format!("mov.b64 {register} -1;")
}

/// Each meeting looks at a flag once, and then again and again.
const LOOKS: usize = 2;
const ACQUIRE: &str = "ld.acquire.sys";
const RELEASE: &str = "st.release.sys";

#[test]
fn the_kernel_has_two_meetings() {
    let count = |part| kernel().matches(part).count();
    assert_eq!((count(ACQUIRE), count(RELEASE), count("bar.sync")), (2 * LOOKS, 2, 5));
    for call in kinds() {
        assert!((0..SEEDS).all(|seed| run(terms(call, seed)) == Outcome::Right), "{call:?}");
    }
}

#[test]
fn weaker_orders_and_smaller_scopes_are_races() {
    for (strong, weak) in [
        (ACQUIRE, "ld.relaxed.sys"),
        (RELEASE, "st.relaxed.sys"),
        (ACQUIRE, "ld.acquire.gpu"),
        (RELEASE, "st.release.gpu"),
    ] {
        // At each meeting alone, too.
        let meetings = if strong == ACQUIRE { [0..2, 2..4] } else { [0..1, 1..2] };
        for lines in meetings {
            let module = edited(strong, |number| lines.contains(&number), |line| line.replace(strong, weak));
            for call in kinds() {
                let is_race = |outcome| matches!(outcome, Outcome::Fault(Fault::Race { .. }));
                assert!(outcomes(call, &module).any(is_race), "{weak} in {lines:?} is not found: {call:?}");
            }
        }
    }
}

/// Without the first meeting, ranks read what is not there yet; without the second one, a fast rank changes what a slow one still
/// reads, or uses what it has not got.
#[test]
fn neither_meeting_can_be_left_out() {
    for meeting in 0..2 {
        let waits = |number: usize| number / LOOKS == meeting;
        let no_wait = edited(ACQUIRE, waits, satisfied);
        let no_signal = edited(RELEASE, |number| number == meeting, |_| String::new());
        for call in kinds() {
            assert!(is_found(call, &no_wait), "no wait at meeting {meeting}: {call:?}");
            let is_deadlock = |outcome| matches!(outcome, Outcome::Fault(Fault::Deadlock { .. }));
            assert!(outcomes(call, &no_signal).all(is_deadlock), "no signal at meeting {meeting}: {call:?}");
        }
    }
}

/// If blocks do not count their calls, the flags of the first call let all later ones pass.
#[test]
fn calls_have_to_be_counted() {
    let stores = kernel().matches("st.u64").count();
    let module = edited("st.u64", |number| number + 1 == stores, |_| String::new());
    for call in kinds() {
        assert!(is_found(call, &module), "{call:?}");
        let one = |seed| Terms { calls: 1, ..terms(call, seed) };
        assert!((0..SEEDS).all(|seed| run_changed(one(seed), &module, |_, _, _| {}) == Outcome::Right), "{call:?}");
    }
}

#[test]
fn every_barrier_of_the_kernel_matters() {
    for barrier in 0..5 {
        let module = edited("bar.sync", |number| number == barrier, |_| String::new());
        assert!(kinds().into_iter().any(|call| is_found(call, &module)), "barrier {barrier} can be left out");
    }
}

type Slip = fn(Rank, &mut PeerAddresses, &mut PeerCall);

/// What one rank may be told wrong.
const SLIPS: [(&str, Slip); 8] = [
    ("inputs of others in another order", |_, at, _| at.input.rotate_left(1)),
    ("another input", |_, at, _| at.input[1] += 16),
    ("another output", |rank, at, _| at.output[rank.index()] += 16),
    ("the output of another", |rank, at, _| {
        at.output[rank.index()] = at.output[(rank.index() + 1) % at.output.len()];
    }),
    ("flags of others in another order", |_, at, _| at.shared.rotate_left(1)),
    ("other flags", |_, at, _| at.shared[0] += 8),
    ("fewer elements", |_, _, call| call.count -= 1),
    ("fewer ranks", |_, at, call| {
        call.ranks -= 1;
        at.input.pop();
    }),
];

#[test]
fn wrong_tables_are_found() {
    let mut random = Random(3);
    for (name, slip) in SLIPS {
        for call in kinds() {
            let wrong = Rank::from_index(random.below(call.ranks));
            let is_right = |seed| {
                let change = |rank, at: &mut PeerAddresses, told: &mut PeerCall| {
                    if rank == wrong {
                        slip(rank, at, told);
                    }
                };
                run_changed(terms(call, seed), &MODULE, change) == Outcome::Right
            };
            assert!(!(0..SEEDS).all(is_right), "{name}, {wrong:?}: {call:?}");
        }
    }
}
