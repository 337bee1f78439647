//! Plans with one mistake each: every one must be refused, unless the adversary cannot make it fail either.

use super::super::*;
use super::adversary::attack;
use super::samples;
use program::testing::schedules::{self, Random};
use program::testing::{checked, lowered};
use schedule::Collective;

/// Plans to change, with names.
fn originals() -> Vec<(&'static str, ExecutionPlan)> {
    let exported = |schedule: &schedule::VerifiedSchedule, in_place| {
        export(&checked(lowered(schedule, in_place)), &PlanExportOptions::default()).unwrap()
    };
    let random = &mut Random(11);
    let topology = schedules::random_topology(4, random);
    let trees = |collective, random: &mut Random| {
        schedules::random_trees(&topology, &schedules::demand(collective, 4, 1), random)
    };
    vec![
        ("pair", samples::pair_allgather()),
        ("packets", samples::pair_packets()),
        ("switch", samples::switch_allreduce()),
        ("groups", samples::barrier_allgather()),
        ("ring allreduce", exported(&schedules::ring_allreduce(3, 1), true)),
        ("tree alltoall", exported(&trees(Collective::AllToAll, random), false)),
        ("ring allgather", exported(&schedules::ring_allgather(3, 2), false)),
    ]
}

type Slip = fn(&mut Vec<Operation>, usize) -> Option<()>;

fn chunk(op: &mut Operation, target: bool) -> Option<&mut ChunkRef> {
    let list = if target { &mut op.dst_buff } else { &mut op.src_buff };
    list.as_mut()?.last_mut()
}

/// Possible mistakes in an operation.
const SLIPS: [(&str, Slip); 13] = [
    ("drop", |ops, at| {
        ops.remove(at);
        Some(())
    }),
    ("twice", |ops, at| {
        ops.insert(at, ops[at].clone());
        Some(())
    }),
    ("swap", |ops, at| (at + 1 < ops.len() && ops[at] != ops[at + 1]).then(|| ops.swap(at, at + 1))),
    ("source up", |ops, at| {
        chunk(&mut ops[at], false)?.index += 1;
        Some(())
    }),
    ("source down", |ops, at| {
        let chunk = chunk(&mut ops[at], false)?;
        chunk.index = chunk.index.checked_sub(1)?;
        Some(())
    }),
    ("target up", |ops, at| {
        chunk(&mut ops[at], true)?.index += 1;
        Some(())
    }),
    ("target down", |ops, at| {
        let chunk = chunk(&mut ops[at], true)?;
        chunk.index = chunk.index.checked_sub(1)?;
        Some(())
    }),
    ("source buffer", |ops, at| {
        let space = &mut chunk(&mut ops[at], false)?.space;
        *space = Some(if (*space)? == PlanBuffer::Input { PlanBuffer::Output } else { PlanBuffer::Input });
        Some(())
    }),
    ("remote buffer", |ops, at| {
        *chunk(&mut ops[at], true)?.buffer_id.as_mut()? ^= 1;
        Some(())
    }),
    ("channel", |ops, at| {
        ops[at].channel_ids.as_mut()?[0] ^= 1;
        Some(())
    }),
    ("semaphore", |ops, at| {
        ops[at].semaphore_ids.as_mut()?[0] ^= 1;
        Some(())
    }),
    ("lost operand", |ops, at| {
        let sources = ops[at].src_buff.as_mut()?;
        if sources.len() < 2 {
            return None;
        }
        sources.pop().map(|_| ())
    }),
    ("other direction", |ops, at| {
        ops[at].name = match ops[at].name {
            OpName::Signal => OpName::Wait,
            OpName::Wait => OpName::Signal,
            OpName::SemAcquire => OpName::SemRelease,
            OpName::SemRelease => OpName::SemAcquire,
            _ => return None,
        };
        Some(())
    }),
];

#[test]
fn slips_are_refused_or_do_no_harm() {
    // With more effort, the adversary runs accepted plans more often.
    let runs = if std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long") { 2000 } else { 24 };
    let (mut refused, mut harmless) = (0, Vec::new());
    for (name, original) in originals() {
        assert_eq!(attack(&original, runs), None, "{name}");
        if let Err(violations) = PlanFile::from(original.clone()).import(1 << 12) {
            panic!("{name}: {violations}");
        }
        for rank in 0..original.gpus.len() {
            for block in 0..original.gpus[rank].threadblocks.len() {
                for at in 0..original.gpus[rank].threadblocks[block].ops.len() {
                    for (slip, change) in SLIPS {
                        let mut mutant = original.clone();
                        // In place, the two buffers are one.
                        let same = original.inplace && slip == "source buffer";
                        let ops = &mut mutant.gpus[rank].threadblocks[block].ops;
                        if same || change(ops, at).is_none() || mutant == original {
                            continue;
                        }
                        if PlanFile::from(mutant.clone()).import(1 << 12).is_err() {
                            refused += 1;
                            continue;
                        }
                        let op = original.gpus[rank].threadblocks[block].ops[at].name;
                        let what = format!("{name}: {slip} {op} at rank {rank} threadblock {block} op {at}");
                        if let Some(harm) = attack(&mutant, runs) {
                            panic!("{what} is accepted, but {harm}");
                        }
                        harmless.push(what);
                    }
                }
            }
        }
    }
    assert!(refused >= 800, "{refused} mutants refused, {} harmless", harmless.len());
    // The kinds of harmless mistakes are known: two independent neighbours are swapped, an operation is done twice with
    // the same result, or an unnecessary synchronization is left out.
    let known = |what: &&String| [" twice ", " swap ", " drop nop "].iter().any(|kind| what.contains(kind));
    let strange: Vec<&String> = harmless.iter().filter(|what| !known(what)).collect();
    assert_eq!(strange, Vec::<&String>::new());
}

#[test]
fn the_adversary_finds_what_is_wrong() {
    let mut plan = samples::pair_allgather();
    assert_eq!(attack(&plan, 20), None);
    // Without the synchronization before the signal, the signal overtakes the data.
    let ops = &mut plan.gpus[0].threadblocks[0].ops;
    let nop = ops.iter().rposition(|op| op.name == OpName::Nop).unwrap();
    ops.remove(nop);
    assert!(attack(&plan, 200).is_some());
}

#[test]
fn any_text_is_answered() {
    let text = serde_json::to_string(&samples::pair_packets()).unwrap();
    let random = &mut Random(1);
    let rounds =
        if std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long") { 200_000 } else { 3000 };
    let words =
        ["4294967295", "-1", "\"s\"", "null", "[]", "{}", "1e99", "\"pipeline\"", "0", "\"glres\"", "true", "17"];
    let mut read_well = 0;
    for _ in 0..rounds {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len());
            match random.below(6) {
                0 => bytes[at] = b"0123456789\"[]{},:-ios"[random.below(21)],
                1 => drop(bytes.drain(at..(at + random.below(30)).min(bytes.len()))),
                2..5 => {
                    let word = words[random.below(words.len())];
                    let start = bytes[..at].iter().rposition(|&byte| byte == b':').map_or(at, |colon| colon + 1);
                    let end =
                        bytes[start..].iter().position(|byte| b",]}".contains(byte)).map_or(start, |end| start + end);
                    bytes.splice(start..end, word.bytes());
                }
                _ => {
                    let piece: Vec<u8> = bytes[at..(at + 40).min(bytes.len())].to_vec();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        match read(&text, "fuzz.json") {
            Ok(file) => {
                read_well += 1;
                if let Err(violations) = file.import(64) {
                    violations.iter().for_each(|violation| assert!(PlanFile::locate(&text, violation.at).is_some()));
                }
            }
            Err(error) => assert!(error.line >= 1 && !error.reason.is_empty()),
        }
    }
    assert!(read_well > rounds / 50, "{read_well} of {rounds} texts are still plans");
}
