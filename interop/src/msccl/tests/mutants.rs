//! Correct files with one small mistake, and files with damaged bytes.

use super::super::*;
use super::files::written;
use super::round_trip::{BOTH, options};
use program::Program;
use program::testing::executor::{Executor, Transport};
use program::testing::schedules::{self, Random};
use program::testing::{checked, lowered};
use schedule::{Collective, Findings, VerifiedSchedule};

/// Correct files of several kinds, small enough to try all their interleavings.
fn originals() -> Vec<Algorithm> {
    let random = &mut Random(43);
    let direct = |collective, ranks| schedules::direct(&schedules::demand(collective, ranks, 1));
    let mut schedules: Vec<VerifiedSchedule> = vec![
        schedules::ring_allreduce(2, 1),
        schedules::ring_allreduce(3, 1),
        schedules::ring_allgather(3, 2),
        schedules::ring_reducescatter(3, 1),
        direct(Collective::AllToAll, 3),
        direct(Collective::AllReduce, 2),
        direct(Collective::Reduce, 3),
    ];
    let topology = schedules::random_topology(4, random);
    let demand = schedules::demand(Collective::Broadcast, 4, 2);
    schedules.push(schedules::random_trees(&topology, &demand, random));
    let export = |(index, schedule): (usize, &VerifiedSchedule)| {
        let program = checked(lowered(schedule, index % 2 == 0));
        export(&program, &options(BOTH[index % 2])).unwrap()
    };
    schedules.iter().enumerate().map(export).collect()
}

/// All files with one small mistake, and a name for the mistake.
fn mutants(original: &Algorithm) -> Vec<(&'static str, Algorithm)> {
    let mut mutants = Vec::new();
    let mut change = |name, change: &dyn Fn(&mut Algorithm)| {
        let mut mutant = original.clone();
        change(&mut mutant);
        mutants.push((name, mutant));
    };
    change("one rank more", &|file| file.ranks += 1);
    change("one rank less", &|file| file.ranks -= 1);
    change("one chunk more", &|file| file.chunks += 1);
    change("twice the chunks", &|file| file.chunks *= 2);
    change("no channels", &|file| file.channels = 0);
    change("another collective", &|file| {
        let other = if file.operation == Some(ClaimedCollective::AllGather) {
            ClaimedCollective::AllReduce
        } else {
            ClaimedCollective::AllGather
        };
        file.operation = Some(other);
    });
    change("no collective", &|file| file.operation = None);
    change("no size", &|file| (file.min_bytes, file.max_bytes) = (Some(9), Some(3)));
    for g in 0..original.gpus.len() {
        change("a rank is missing", &|file| drop(file.gpus.remove(g)));
        change("a rank stands twice", &|file| file.gpus.push(original.gpus[g].clone()));
        for b in 0..original.gpus[g].blocks.len() {
            change("a threadblock is missing", &|file| drop(file.gpus[g].blocks.remove(b)));
            change("another threadblock id", &|file| file.gpus[g].blocks[b].id += 1);
            change("another channel", &|file| file.gpus[g].blocks[b].channel = Some(7));
            change("no peers", &|file| (file.gpus[g].blocks[b].send, file.gpus[g].blocks[b].recv) = (None, None));
            change("itself as a peer", &|file| file.gpus[g].blocks[b].send = Some(original.gpus[g].id));
            for s in 0..original.gpus[g].blocks[b].steps.len() {
                let at = |file: &mut Algorithm, change: &dyn Fn(&mut StepElement)| {
                    change(&mut file.gpus[g].blocks[b].steps[s])
                };
                change("a step is missing", &|file| {
                    file.gpus[g].blocks[b].steps.remove(s);
                });
                change("a step stands twice", &|file| {
                    let steps = &mut file.gpus[g].blocks[b].steps;
                    steps.insert(s, steps[s]);
                    (0..).zip(steps).for_each(|(number, step)| step.number = number);
                });
                change("two steps change places", &|file| {
                    let steps = &mut file.gpus[g].blocks[b].steps;
                    let last = steps.len() - 1;
                    steps.swap(s, if s < last { s + 1 } else { 0 });
                    (0..).zip(steps).for_each(|(number, step)| step.number = number);
                });
                change("another number", &|file| at(file, &|step| step.number += 1));
                change("a later source", &|file| at(file, &|step| step.src.offset = step.src.offset.map(|o| o + 1)));
                change("a later destination", &|file| {
                    at(file, &|step| step.dst.offset = step.dst.offset.map(|o| o + 1))
                });
                change("no source", &|file| at(file, &|step| step.src.offset = None));
                change("no destination", &|file| at(file, &|step| step.dst.offset = None));
                change("source in scratch", &|file| at(file, &|step| step.src.space = Space::Scratch));
                change("destination in the input", &|file| at(file, &|step| step.dst.space = Space::Input));
                change("one chunk more to move", &|file| at(file, &|step| step.count += 1));
                change("nothing to move", &|file| at(file, &|step| step.count = 0));
                change("waits for nothing", &|file| at(file, &|step| step.after = None));
                change("waits for nobody's step", &|file| at(file, &|step| step.after = Some((99, 0))));
                change("tells nobody", &|file| at(file, &|step| step.announces = false));
                change("stores instead of adding", &|file| {
                    at(file, &|step| {
                        step.kind = match step.kind {
                            StepType::ReceiveReduceCopy => StepType::Receive,
                            StepType::Receive => StepType::ReceiveReduceCopy,
                            StepType::Copy => StepType::Reduce,
                            StepType::Reduce => StepType::Copy,
                            StepType::Send => StepType::Receive,
                            _ => StepType::Send,
                        };
                    });
                });
            }
        }
    }
    mutants
}

/// Whether a program does what its collective means in every order that can be tried.
fn works(program: &Program, random: &mut Random) -> bool {
    let count = u64::from(program.shape.parts());
    (0..40).all(|_| {
        let executor = Executor { program, count, tiles: 1, transport: Transport::Window(2) };
        executor.run(random).is_some_and(|state| executor.judge(&state).is_ok())
    })
}

#[test]
fn slips_of_the_pen_are_refused() {
    let random = &mut Random(47);
    let (mut refused, mut harmless, mut right) = (0, 0, 0);
    for original in originals() {
        let dialect = Dialect::of(&original);
        let known = judge(&original, dialect, 1000);
        assert_eq!(known.violations, Findings::default());
        for (slip, mutant) in mutants(&original) {
            if mutant == original {
                continue;
            }
            let verdict = judge(&mutant, dialect, 1000);
            if !verdict.violations.is_empty() {
                refused += 1;
                continue;
            }
            // An accepted file is the same program (some attributes only inform), or another correct one.
            let programs =
                |verdict: &FileVerdict| verdict.calls.iter().map(|c| c.program.program().clone()).collect::<Vec<_>>();
            let (mine, theirs) = (programs(&known), programs(&verdict));
            if mine == theirs {
                harmless += 1;
            } else {
                assert!(
                    !theirs.is_empty() && theirs.iter().all(|program| works(program, random)),
                    "{slip}: {mutant:?}"
                );
                right += 1;
            }
        }
    }
    assert!(refused >= 1000, "{refused} refused, {harmless} harmless, {right} right");
    assert!(right * 20 < refused, "{refused} refused, {harmless} harmless, {right} right");
}

#[test]
fn damaged_bytes_are_never_a_panic() {
    let random = &mut Random(53);
    let texts: Vec<String> = originals().iter().map(written).collect();
    let pieces =
        ["\"", "<", ">", "/", "=", " ", "-1", "99999999999", "tb", "step", "&", "<!--", "\u{e9}", "0", "o", "rrs"];
    let mut readable = 0;
    for round in 0..3000 {
        let text = &texts[round % texts.len()];
        let mut damaged = text.clone();
        for _ in 0..1 + random.below(3) {
            let mut at = random.below(damaged.len());
            while !damaged.is_char_boundary(at) {
                at -= 1;
            }
            let mut end = (at + random.below(4)).min(damaged.len());
            while !damaged.is_char_boundary(end) {
                end += 1;
            }
            damaged.replace_range(at..end, pieces[random.below(pieces.len())]);
        }
        if let Ok(parsed) = parse(&damaged, "damaged") {
            readable += 1;
            let dialect = Dialect::of(&parsed.algorithm);
            let verdict = judge(&parsed.algorithm, dialect, 1000);
            for call in &verdict.calls {
                assert!(works(call.program.program(), random), "{damaged}");
            }
        }
    }
    assert!(readable >= 40, "{readable}");
}
