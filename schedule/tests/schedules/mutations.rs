//! Mutation testing: good schedules, changed in every way a bug might change them.
//!
//! A mutant must be refused, unless it is right as well; the second verifier decides which. The two verifiers must
//! agree on every rule that is broken, not only on the verdict.

use crate::plans::{Dice, any_plan, any_started_plan};
use crate::second_opinion::broken_rules;
use schedule::{Schedule, Transfer, TransferKind, verify};
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::{Micros, Topology};

/// Rules that the second verifier does not check; a schedule that breaks one is always refused.
const STRUCTURE: [&str; 3] = ["bad_time", "wrong_duration", "not_sorted"];

type Mutation = fn(&mut Vec<Transfer>, &Schedule, &Topology, &mut Dice);

const MUTATIONS: [(&str, Mutation); 13] = [
    ("drop", |transfers, _, _, dice| drop(transfers.remove(dice.below(transfers.len())))),
    ("duplicate", |transfers, _, _, dice| transfers.push(transfers[dice.below(transfers.len())].clone())),
    ("repeat at the end", |transfers, schedule, _, dice| {
        let mut again = transfers[dice.below(transfers.len())].clone();
        let length = again.end - again.start;
        again.start = schedule.makespan();
        again.end = again.start + length;
        transfers.push(again);
    }),
    ("swap the times of two", |transfers, _, _, dice| {
        let (a, b) = (dice.below(transfers.len()), dice.below(transfers.len()));
        let (start_a, start_b) = (transfers[a].start, transfers[b].start);
        shift(&mut transfers[a], start_b - start_a);
        shift(&mut transfers[b], start_a - start_b);
    }),
    ("swap the chunks of two", |transfers, _, _, dice| {
        let (a, b) = (dice.below(transfers.len()), dice.below(transfers.len()));
        let (chunks_a, chunks_b) = (transfers[a].chunks.clone(), transfers[b].chunks.clone());
        transfers[a].chunks = chunks_b;
        transfers[b].chunks = chunks_a;
    }),
    ("retarget", |transfers, schedule, topology, dice| {
        let transfer = dice.below(transfers.len());
        let transfer = &mut transfers[transfer];
        let outgoing = topology.outgoing(transfer.from);
        transfer.link = outgoing[dice.below(outgoing.len())];
        let link = topology.link(transfer.link);
        transfer.to = link.to;
        transfer.end = transfer.start + link.transfer_time(schedule.demand.message_bytes(&transfer.chunks));
    }),
    ("change a chunk", |transfers, schedule, _, dice| {
        let chunks = schedule.demand.chunks().len();
        let transfer = dice.below(transfers.len());
        transfers[transfer].chunks[0] = schedule::ChunkId(dice.below(chunks) as u32);
        transfers[transfer].chunks.sort_unstable();
        transfers[transfer].chunks.dedup();
    }),
    ("remove a chunk of a message", |transfers, schedule, topology, dice| {
        let transfer = dice.below(transfers.len());
        let transfer = &mut transfers[transfer];
        if transfer.chunks.len() > 1 {
            transfer.chunks.pop();
            let bytes = schedule.demand.message_bytes(&transfer.chunks);
            transfer.end = transfer.start + topology.link(transfer.link).transfer_time(bytes);
        } else {
            transfer.end += Micros(0.5);
        }
    }),
    ("shift earlier", |transfers, _, _, dice| {
        let transfer = dice.below(transfers.len());
        let by = transfers[transfer].start * (0.1 * (1 + dice.below(9)) as f64);
        shift(&mut transfers[transfer], Micros::ZERO - by);
    }),
    ("shift later", |transfers, _, _, dice| {
        let transfer = dice.below(transfers.len());
        shift(&mut transfers[transfer], Micros(0.3 * (1 + dice.below(30)) as f64));
    }),
    ("arrive early", |transfers, _, _, dice| {
        let transfer = dice.below(transfers.len());
        transfers[transfer].end = transfers[transfer].end * 0.9;
    }),
    ("flip the kind", |transfers, schedule, _, dice| {
        let transfer = dice.below(transfers.len());
        let transfer = &mut transfers[transfer];
        transfer.kind = match transfer.kind {
            TransferKind::Reduce => TransferKind::Copy,
            TransferKind::Copy if schedule.demand.chunk(transfer.chunks[0]).combine => TransferKind::Reduce,
            TransferKind::Copy => TransferKind::Copy,
        };
    }),
    ("start together with another", |transfers, _, _, dice| {
        let (a, b) = (dice.below(transfers.len()), dice.below(transfers.len()));
        let by = transfers[b].start - transfers[a].start;
        shift(&mut transfers[a], by);
    }),
];

fn shift(transfer: &mut Transfer, by: Micros) {
    transfer.start += by;
    transfer.end += by;
}

fn kinds(schedule: &Schedule, topology: &Arc<Topology>) -> BTreeSet<&'static str> {
    match verify(schedule.clone(), topology) {
        Ok(_) => BTreeSet::new(),
        Err(refused) => refused.violations.iter().map(|violation| violation.kind()).collect(),
    }
}

#[test]
fn two_verifiers_agree_on_every_mutant() {
    let mut refused = [0; MUTATIONS.len()];
    let plans = (0..250).map(|seed| (seed, any_plan(seed))).chain((0..250).map(|seed| (seed, any_started_plan(seed))));
    for (seed, (good, topology)) in plans {
        assert_eq!((broken_rules(&good, &topology), kinds(&good, &topology)), Default::default(), "seed {seed}");
        if good.transfers.is_empty() {
            continue;
        }
        let dice = &mut Dice(seed ^ 0x6d75_7461);
        for (mutation, (name, mutate)) in MUTATIONS.iter().enumerate() {
            for _ in 0..4 {
                let mut mutant = good.clone();
                mutate(&mut mutant.transfers, &good, &topology, dice);
                mutant.transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
                let found = kinds(&mutant, &topology);
                refused[mutation] += usize::from(!found.is_empty());
                if STRUCTURE.iter().any(|kind| found.contains(kind)) {
                    continue;
                }
                assert_eq!(found, broken_rules(&mutant, &topology), "seed {seed}, {name}: {mutant:#?}");
            }
        }
    }
    // Every kind of mutation was refused many times, so the agreement above is not empty.
    for ((name, _), refused) in MUTATIONS.iter().zip(refused) {
        assert!(refused > 200, "{name}: {refused} of 2000");
    }
}

/// A message that leaves earlier than its chunks are released is refused, even where nothing else is in its way.
#[test]
fn a_message_before_the_start_of_its_chunk_is_always_refused() {
    let (mut refused, mut sums) = (0, 0);
    for seed in 0..150 {
        let (good, topology) = any_started_plan(seed);
        for index in 0..good.transfers.len() {
            let release = good.demand.release(&good.transfers[index].chunks);
            assert!(good.transfers[index].start >= release, "seed {seed}: {index}");
            if release == Micros::ZERO {
                continue;
            }
            // From just beyond the tolerance on.
            for by in [release * 1e-6, release * 0.5, release] {
                let mut mutant = good.clone();
                let early = release - by - mutant.transfers[index].start;
                shift(&mut mutant.transfers[index], early);
                mutant.transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
                let found = kinds(&mutant, &topology);
                assert!(found.contains("sent_before_held"), "seed {seed}: {index}");
                refused += 1;
                sums += usize::from(mutant.demand.has_sums());
            }
        }
        // The same times are right where everything is there from the beginning.
        let at_once = Arc::new((*good.demand).clone().without_starts());
        assert!(verify(Schedule { demand: at_once, ..good }, &topology).is_ok(), "seed {seed}");
    }
    assert!(refused > 1000 && sums > 300, "{refused} {sums}");
}

/// The plans route every chunk over a tree, so every transfer is needed.
#[test]
fn a_dropped_transfer_is_always_refused() {
    for seed in 0..150 {
        let (good, topology) = any_plan(seed);
        for index in 0..good.transfers.len() {
            let mut mutant = good.clone();
            mutant.transfers.remove(index);
            let found = kinds(&mutant, &topology);
            assert!(
                found.contains("not_delivered") || found.contains("missing_contribution"),
                "seed {seed}: {found:?}"
            );
        }
    }
}

/// A reduce that happens twice, on a free link and in time, counts twice; this is wrong where the receiver wants the
/// sum.
#[test]
fn a_repeated_reduce_is_refused_where_somebody_ends_with_it() {
    let (mut harmful, mut harmless) = (0, 0);
    for seed in 0..150 {
        let (good, topology) = any_plan(seed);
        let reduces = good.transfers.iter().filter(|transfer| transfer.kind == TransferKind::Reduce);
        for transfer in reduces.cloned().collect::<Vec<_>>() {
            let mut mutant = good.clone();
            let late = good.makespan() - transfer.start;
            let mut again = transfer;
            let is_wanted = again.chunks.iter().any(|&chunk| good.demand.chunk(chunk).wanted_by.has(again.to));
            shift(&mut again, late);
            mutant.transfers.push(again);
            let expected: BTreeSet<_> = is_wanted.then_some("double_reduce").into_iter().collect();
            assert_eq!(kinds(&mutant, &topology), expected, "seed {seed}");
            *if is_wanted { &mut harmful } else { &mut harmless } += 1;
        }
    }
    assert!(harmful > 250 && harmless > 100, "{harmful} harmful, {harmless} harmless");
}
