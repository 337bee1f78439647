//! Every way of lowering, on schedules of all kinds.

use super::executor::{Executor, Transport};
use super::schedules::{self, Random};
use super::{STANDARD, checked};
use crate::{Instruction, Layout, LowerOptions, Program, Threadblocks, lower};
use schedule::{Chunk, ChunkId, Collective, Demand, Message, ReduceOp, Request, TransferKind, VerifiedSchedule};
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::{Bytes, Latency, LinkId, Rank};

/// Paired threadblocks with fused steps.
pub(super) fn fused(in_place: bool) -> LowerOptions {
    LowerOptions { in_place, threadblocks: Threadblocks::Paired, fuse: true, ..LowerOptions::default() }
}

/// Any options that the demand allows.
pub(super) fn random(demand: &Arc<Demand>, random: &mut Random) -> LowerOptions {
    LowerOptions {
        in_place: random.below(2) == 0 && Layout::new(demand.clone(), true).is_ok(),
        threadblocks: [Threadblocks::PerConnection, Threadblocks::Paired][random.below(2)],
        fuse: random.below(3) > 0,
        window: 1 + random.below(2) as u32,
        max_threadblocks: [None, Some(1), Some(3)][random.below(3)],
        channels: 1 + random.below(3) as u32,
        instances: 1 + random.below(3) as u32,
    }
}

fn steps(program: &Program) -> impl Iterator<Item = &Instruction> {
    program
        .ranks
        .iter()
        .flat_map(|rank| &rank.threadblocks)
        .flat_map(|block| &block.steps)
        .map(|step| &step.instruction)
}

/// Lowers, checks and runs in several orders, with exactly the room that the program needs.
fn both_ways(schedule: &VerifiedSchedule, options: &LowerOptions, random: &mut Random) -> Program {
    let program = checked(lower(schedule, options).unwrap());
    let room = if options.threadblocks == Threadblocks::Paired { options.window } else { 0 };
    assert!(program.window() <= room, "{} messages under way with {options:?}", program.window());
    let window = program.window();
    let program = program.into_program();
    let unfused = program.clone().unfused();
    for (count, tiles) in [(0, 1), (1, 1), (7, 2), (1000, 3)] {
        for transport in [Transport::Buffered, Transport::Window(window)] {
            for program in [&program, &unfused] {
                let executor = Executor { program, count, tiles, transport };
                let state = executor.run(random).expect("the program runs to its end");
                executor.judge(&state).unwrap_or_else(|wrong| panic!("{options:?}: {wrong}\n{program}"));
            }
        }
    }
    program
}

#[test]
fn every_option_gives_a_right_program() {
    let random = &mut Random(5);
    let mut fused = 0;
    for round in 0..120 {
        let ranks = 2 + round % 5;
        let topology = schedules::random_topology(ranks, random);
        let demand = match round % 3 {
            0 => schedules::random_listed(ranks, random),
            _ => schedules::random_demand(STANDARD[round % STANDARD.len()], ranks, random),
        };
        let schedule = schedules::random_trees(&topology, &demand, random);
        let program = both_ways(&schedule, &self::random(&demand, random), random);
        fused += steps(&program).filter(|instruction| instruction.is_fused()).count();
    }
    assert!(fused > 100, "{fused} fused steps");
}

/// An allreduce, a gather, a scatter, and an exchange of equal amounts.
#[test]
fn listed_chunks_are_exchanged_in_place() {
    let random = &mut Random(12);
    let matrix = [vec![4, 9, 0], vec![9, 1, 2], vec![0, 2, 0]];
    let request = |collective| Request::new(collective, 3, 20).with_chunks(2);
    let mut demands = vec![Demand::from_matrix(request(Collective::AllToAllV), &matrix).unwrap()];
    let sets: [&[u32]; 2] = [&[0, 1, 2], &[1]];
    for (holders, wanted) in [(0, 0), (0, 1), (1, 0)] {
        let set = |of: usize| sets[of].iter().copied().map(Rank).collect();
        let chunk = |bytes| Chunk {
            holders: set(holders),
            wanted_by: set(wanted),
            combine: holders == 0,
            bytes: Some(Bytes(bytes)),
            release: topology::Micros::ZERO,
        };
        let request = Request { op: Some(ReduceOp::Sum), ..request(Collective::Custom) };
        demands.push(Demand::from_chunks(request, vec![chunk(8.0), chunk(2.5), chunk(2.5)]).unwrap());
    }
    for demand in demands {
        let demand = Arc::new(demand);
        for instances in [1, 3] {
            let schedule = schedules::random_trees(&schedules::clique(3), &demand, random);
            both_ways(&schedule, &LowerOptions { instances, ..fused(true) }, random);
            both_ways(&schedule, &LowerOptions { in_place: true, instances, ..LowerOptions::default() }, random);
        }
    }
}

/// The chunks that a rank holds and wants overlap in place, one or more slots apart: a copy to an output slot reads a
/// slot that another copy overwrites.
#[test]
fn chunks_move_to_their_slots_in_place() {
    let random = &mut Random(15);
    for (chunks, distance) in [(3, 1), (7, 1), (7, 3), (9, 4)] {
        for up in [false, true] {
            let (held, wanted) = if up { (0, distance) } else { (distance, 0) };
            let of_first = |chunk: u32, from: u32| (from..from + chunks - distance).contains(&chunk);
            let chunk = |chunk: u32| Chunk {
                holders: [Rank(u32::from(!of_first(chunk, held)))].into_iter().collect(),
                // Neighbouring chunks have different receivers, so all of them are cut alike.
                wanted_by: [of_first(chunk, wanted).then_some(Rank(0)), Some(Rank(2 + chunk % 2))]
                    .into_iter()
                    .flatten()
                    .collect(),
                combine: false,
                bytes: Some(Bytes(4.0)),
                release: topology::Micros::ZERO,
            };
            let request = Request::new(Collective::Custom, 4, 4 * u64::from(chunks));
            let demand = Arc::new(Demand::from_chunks(request, (0..chunks).map(chunk).collect()).unwrap());
            let schedule = schedules::random_trees(&schedules::clique(4), &demand, random);
            for instances in [1, 2] {
                both_ways(&schedule, &LowerOptions { in_place: true, instances, ..LowerOptions::default() }, random);
            }
        }
    }
}

#[test]
fn a_ring_is_one_threadblock_of_fused_steps() {
    for ranks in [2, 3, 5] {
        for chunks in [1, 3] {
            let gather = both_ways(&schedules::ring_allgather(ranks, chunks), &fused(false), &mut Random(1));
            let reduce = both_ways(&schedules::ring_allreduce(ranks, chunks), &fused(true), &mut Random(1));
            for (program, hops) in [(gather, ranks - 1), (reduce, 2 * (ranks - 1))] {
                for rank in &program.ranks {
                    let moving = rank
                        .threadblocks
                        .iter()
                        .filter(|block| block.steps.iter().any(|step| step.instruction.sends_to().is_some()));
                    assert_eq!(moving.count(), 1);
                }
                // All hops but the first and the last are one step at each rank.
                let fused = steps(&program).filter(|instruction| instruction.is_fused()).count();
                assert_eq!(fused, ranks * (hops - 1), "{ranks} ranks, {chunks} chunks\n{program}");
            }
        }
    }
}

#[test]
fn paired_threadblocks_have_one_peer_each_way_and_one_channel() {
    let random = &mut Random(8);
    for round in 0..20 {
        let topology = schedules::random_topology(5, random);
        let demand = schedules::random_demand(STANDARD[round % STANDARD.len()], 5, random);
        let options = LowerOptions { channels: 2, max_threadblocks: Some(2), ..fused(false) };
        let program = both_ways(&schedules::random_trees(&topology, &demand, random), &options, random);
        let mut lanes = BTreeSet::new();
        assert!(program.connections.iter().all(|lane| lanes.insert((lane.from, lane.to, lane.channel))));
        for block in program.ranks.iter().flat_map(|rank| &rank.threadblocks) {
            let ends = |end: fn(&Instruction) -> Option<crate::ConnectionId>| -> BTreeSet<u32> {
                block.steps.iter().filter_map(|step| end(&step.instruction)).map(|id| id.0).collect()
            };
            let (to, from) = (ends(Instruction::sends_to), ends(Instruction::receives_from));
            assert!(to.len() <= 1 && from.len() <= 1);
            let channels: BTreeSet<u32> = to.union(&from).map(|&id| program.connections[id as usize].channel).collect();
            assert!(channels.len() <= 1, "{channels:?}");
        }
    }
}

#[test]
fn scratch_is_used_again() {
    // Rank 1 relays the data of rank 0 to the others, one chunk after the other.
    let links = (0..7).map(|rank| schedules::link(rank, rank + 1, 1.0, Latency::Occupies));
    let topology = schedules::topology("line", 8, links.collect());
    let mut request = Request::new(Collective::Scatter, 8, 1000);
    request.members = (0..8).filter(|&rank| rank != 1).map(Rank).collect();
    let demand = Arc::new(Demand::new(request).unwrap());
    // Chunk m is for the m-th member, which is rank m + 1.
    let hops = (1..7u32).rev().flat_map(|chunk| (0..=chunk).map(move |link| (chunk, link)));
    let messages = hops.map(|(chunk, link)| Message {
        chunks: [ChunkId(chunk)].into_iter().collect(),
        link: LinkId(link),
        kind: TransferKind::Copy,
    });
    let schedule = schedules::schedule(&topology, &demand, &messages.collect::<Vec<_>>());
    let program = both_ways(&schedule, &LowerOptions::default(), &mut Random(2));
    assert!(program.ranks[1].scratch_parts.len() <= 3, "{program}");
}
