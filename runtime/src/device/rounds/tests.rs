//! Rounds of many programs, carried out on the host and judged by the naive reference.

use super::derive::Rounds;
use super::mapped::LaunchBytes;
use super::plan::RoundPlan;
use crate::device::tables::{DIVIDES, KernelStep, RECEIVES, REDUCES, SENDS, STORES};
use crate::device::tests::job::with_op;
use crate::dtype::DType;
use crate::measure::reference::{BufferPlaces, Reference};
use program::testing::schedules::{
    Random, demand, direct, random_listed, random_topology, random_trees, ring_allgather, ring_allreduce,
    ring_reducescatter,
};
use program::testing::{STANDARD, checked, lowered};
use program::{Buffer, ConnectionId, Instruction, LowerOptions, Slice, VerifiedProgram, lower, replicate};
use schedule::{Collective, ReduceOp};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use topology::Rank;

/// The elements of these tests.
const SIZE: usize = 8;

/// A rank's input, output, scratch and inboxes. In place input and output are the first.
struct HostRank {
    buffers: [Vec<u8>; 4],
    places: BufferPlaces,
    in_place: bool,
}

impl HostRank {
    fn new(plan: &RoundPlan, program: &VerifiedProgram, reference: &Reference<'_>) -> Self {
        let (rank, in_place) = (plan.rank(), program.program().in_place);
        let places = reference.places(rank);
        let mut buffers = plan.buffer_bytes().map(|bytes| vec![0xA5; bytes as usize]);
        let common = (places.output_at + places.output).max(places.input_at + places.input);
        buffers[0] = vec![0xA5; if in_place { common } else { places.input } * SIZE];
        Self { buffers, places, in_place }
    }

    /// The inputs of a call. The rest is as the call before has left it.
    fn fill(&mut self, rank: Rank, reference: &Reference<'_>) {
        reference.fill(rank, &mut self.buffers[0], if self.in_place { self.places.input_at } else { 0 });
    }

    fn index(&self, buffer: usize) -> usize {
        if self.in_place && buffer < 2 { 0 } else { buffer }
    }

    fn word(&self, buffer: usize, element: u64) -> i64 {
        let at = element as usize * SIZE;
        i64::from_le_bytes(self.buffers[self.index(buffer)][at..at + SIZE].try_into().unwrap())
    }

    /// Does a step for one of so many tiles. `message` is what it takes; what it puts is returned.
    fn step(
        &mut self,
        plan: &RoundPlan,
        step: &KernelStep,
        (tile, tiles): (u32, u32),
        message: Option<Vec<i64>>,
        op: Option<ReduceOp>,
    ) -> Vec<i64> {
        let (mut sent, mut message) = (Vec::new(), message.into_iter().flatten());
        for piece in &plan.pieces[step.first_piece as usize..][..step.piece_count as usize] {
            let cut = |tile: u32| piece.length * u64::from(tile) / u64::from(tiles);
            for at in cut(tile)..cut(tile + 1) {
                let (from, to) = (piece.source_buffer as usize, piece.destination_buffer as usize);
                let is = |kind: u32| step.kind & kind != 0;
                let mut value = match is(RECEIVES) {
                    true => message.next().unwrap(),
                    false => self.word(from, piece.source + at),
                };
                if is(REDUCES) {
                    let other = match is(RECEIVES) {
                        true => self.word(from, piece.source + at),
                        false => self.word(to, piece.destination + at),
                    };
                    value = match op.unwrap() {
                        ReduceOp::Sum | ReduceOp::Avg => value.wrapping_add(other),
                        ReduceOp::Prod => value.wrapping_mul(other),
                        ReduceOp::Min => value.min(other),
                        ReduceOp::Max => value.max(other),
                    };
                }
                if is(DIVIDES) {
                    value /= i64::from(step.divisor);
                }
                if is(STORES) {
                    let (index, at) = (self.index(to), (piece.destination + at) as usize * SIZE);
                    self.buffers[index][at..at + SIZE].copy_from_slice(&value.to_le_bytes());
                }
                if is(SENDS) {
                    sent.push(value);
                }
            }
        }
        assert_eq!(message.next(), None, "both ends of a message have as many elements");
        sent
    }

    fn wrong(&self, rank: Rank, reference: &Reference<'_>) -> u64 {
        let BufferPlaces { input, output, output_at, .. } = self.places;
        match self.in_place {
            true => reference.wrong(rank, &self.buffers[0][..(output_at + output) * SIZE], output_at),
            false => {
                let changed = reference.changed(rank, &self.buffers[0][..input * SIZE]);
                changed + reference.wrong(rank, &self.buffers[1][..output * SIZE], 0)
            }
        }
    }
}

/// All messages of a round at once: those between two ranks match in their order, and no memory has two uses of which one writes.
fn exchange(ranks: &mut [HostRank], plans: &[RoundPlan], round: usize) -> usize {
    let mut moving: BTreeMap<(Rank, Rank), VecDeque<Vec<u8>>> = BTreeMap::new();
    for (rank, plan) in ranks.iter().zip(plans) {
        let mut used: Vec<(usize, Range<usize>, bool)> = Vec::new();
        for message in &plan.exchanges()[round] {
            let begin = message.offset as usize;
            let bytes = begin..begin + message.elements as usize * SIZE;
            let index = rank.index(message.buffer);
            for (other, range, is_read) in &used {
                let meets = *other == index && range.start < bytes.end && bytes.start < range.end;
                assert!(!meets || *is_read && message.is_sent, "round {round}: {message:?}");
            }
            used.push((index, bytes.clone(), message.is_sent));
            if message.is_sent {
                let lane = moving.entry((plan.rank(), message.peer)).or_default();
                lane.push_back(rank.buffers[index][bytes].to_vec());
            }
        }
    }
    let mut count = 0;
    for (rank, plan) in ranks.iter_mut().zip(plans) {
        for message in plan.exchanges()[round].iter().filter(|message| !message.is_sent) {
            let data = moving.get_mut(&(message.peer, plan.rank())).and_then(VecDeque::pop_front).unwrap();
            assert_eq!(data.len(), message.elements as usize * SIZE, "round {round}: {message:?}");
            let index = rank.index(message.buffer);
            rank.buffers[index][message.offset as usize..][..data.len()].copy_from_slice(&data);
            count += 1;
        }
    }
    assert!(moving.values().all(VecDeque::is_empty), "round {round}: something is sent to nobody");
    count
}

/// The messages that are put and not taken, by connection and block.
type HostChannels = BTreeMap<(ConnectionId, u64), VecDeque<Vec<i64>>>;

/// The blocks of all ranks in a stage, in random order, each step when its message is there and has room.
fn stage_of_all(ranks: &mut [HostRank], plans: &[RoundPlan], stage: usize, op: Option<ReduceOp>, random: &mut Random) {
    let mut channels = HostChannels::new();
    let launches: Vec<_> = plans.iter().map(|plan| &plan.stages[stage]).collect();
    let blocks = |rank: usize| (0..launches[rank].blocks.len()).map(move |block| (rank, block, 0, 0));
    let mut left: Vec<(usize, usize, u32, usize)> = (0..plans.len()).flat_map(blocks).collect();
    let mut waiting = 0;
    while !left.is_empty() {
        assert!(waiting < 1000 * left.len(), "stage {stage}: blocks wait for each other in a circle");
        let chosen = random.below(left.len());
        let (rank, number, tile, at) = left[chosen];
        let (plan, block) = (&plans[rank], &launches[rank].blocks[number]);
        let step = &plan.steps[block.steps.start + at];
        let rings: Vec<_> = plan.mapped.of_rank(plan.rank(), stage as u32).collect();
        let (mut message, mut to) = (None, None);
        if step.kind & RECEIVES != 0 {
            let ring = rings[step.in_channel as usize];
            assert_eq!(ring.to, plan.rank());
            message = channels.entry((ring.connection, block.number)).or_default().pop_front();
            if message.is_none() {
                waiting += 1;
                continue;
            }
        }
        if step.kind & SENDS != 0 {
            let ring = rings[step.out_channel as usize];
            assert_eq!(ring.from, plan.rank());
            let channel = channels.entry((ring.connection, block.number)).or_default();
            if channel.len() > ring.channel(0, 0, &vec![0; plans.len()]).mask as usize {
                waiting += 1;
                continue;
            }
            to = Some((ring.connection, block.number));
        }
        waiting = 0;
        let sent = ranks[rank].step(plan, step, (tile, launches[rank].tiles), message, op);
        to.into_iter().for_each(|to| channels.entry(to).or_default().push_back(sent.clone()));
        match (at + 1 == block.steps.len(), tile + 1 == launches[rank].tiles) {
            (true, true) => drop(left.swap_remove(chosen)),
            (true, false) => left[chosen] = (rank, number, tile + 1, 0),
            (false, _) => left[chosen] = (rank, number, tile, at + 1),
        }
    }
    assert!(channels.values().all(VecDeque::is_empty), "stage {stage}: something is put for nobody");
}

fn right(program: &VerifiedProgram, count: u64, block_bytes: u64, seed: u64, what: &str) -> Rounds {
    let ranks = program.program().ranks.len() as u32;
    let rounds = within(&(0..ranks).collect::<Vec<_>>(), program, count, block_bytes, seed, what);
    // Ranks that have mapped each other's memory give the same, in fewer rounds.
    let mut random = Random(seed ^ 0x5EED);
    let domains: Vec<u32> = (0..ranks).map(|_| random.below(1 + ranks as usize / 2) as u32).collect();
    let mapped = within(&domains, program, count, block_bytes, seed, what);
    assert!(mapped.count <= rounds.count, "{what}: {} rounds, and {} without domains", mapped.count, rounds.count);
    let one = within(&vec![0; ranks as usize], program, count, block_bytes, seed, what);
    assert_eq!(one.count, 0, "{what}: ranks of one domain need no rounds");
    rounds
}

fn within(domains: &[u32], program: &VerifiedProgram, count: u64, block: u64, seed: u64, what: &str) -> Rounds {
    let rounds = Rounds::within(program, domains).unwrap();
    let all = (0..program.program().ranks.len()).map(Rank::from_index);
    let sizes = LaunchBytes { block, tile: [16, 100, 1 << 20][seed as usize % 3] };
    let plan = |rank| RoundPlan::of(&rounds, program, rank, (count, DType::I64), sizes).unwrap();
    let plans: Vec<_> = all.clone().map(plan).collect();
    let demand = program.program().demand.clone();
    let op = program.program().op;
    let of_call = |call: u64| Reference::new(&demand, op, count as usize, DType::I64, seed.wrapping_add(call << 32));
    let mut ranks: Vec<_> = plans.iter().map(|plan| HostRank::new(plan, program, &of_call(0))).collect();
    let (mut moved, mut random) = (0, Random(seed));
    for call in 0..2 {
        let reference = of_call(call);
        all.clone().zip(&mut ranks).for_each(|(rank, memory)| memory.fill(rank, &reference));
        moved = 0;
        for stage in 0..=rounds.count as usize {
            stage_of_all(&mut ranks, &plans, stage, op, &mut random);
            if stage < rounds.count as usize {
                moved += exchange(&mut ranks, &plans, stage);
            }
        }
        for (rank, memory) in all.clone().zip(&ranks) {
            let wrong = memory.wrong(rank, &reference);
            assert_eq!(wrong, 0, "{what}, {count} elements, call {call}, rank {rank}, domains {domains:?}");
        }
    }
    // Each message once; messages without elements do not move.
    let sends = program.program().ranks.iter().flat_map(program::RankProgram::steps);
    let sends = sends.filter(|step| step.instruction.sends_to().is_some()).count();
    assert_eq!(rounds.messages.len(), sends, "{what}");
    let mapped = rounds.messages.iter().filter(|message| message.is_mapped).count();
    let is_whole = count > 60 && !demand.request().collective.is_listed();
    let expected = sends - mapped;
    assert!(if is_whole { moved == expected } else { moved <= expected }, "{what}: {moved} of {expected}");
    rounds
}

/// The most messages on a way of data from an input to an output, and on a chain of steps that follow each other. They are found by
/// other means than rounds: the first along the slots, the second along what waits for what.
fn chains(program: &VerifiedProgram) -> (u32, u32) {
    let program = program.program().clone().unfused();
    let slots = |rank: &program::RankProgram| {
        [Buffer::Input, Buffer::Output, Buffer::Scratch].map(|buffer| vec![0u32; rank.parts(buffer).len()])
    };
    let mut hops: Vec<_> = program.ranks.iter().map(slots).collect();
    let mut done: Vec<Vec<Vec<u32>>> =
        program.ranks.iter().map(|rank| vec![Vec::new(); rank.threadblocks.len()]).collect();
    let mut lanes: Vec<VecDeque<(u32, u32)>> = vec![VecDeque::new(); program.connections.len()];
    let (mut far, mut long) = (0, 0);
    let mut goes_on = true;
    while std::mem::take(&mut goes_on) {
        for (index, rank) in program.ranks.iter().enumerate() {
            for (number, block) in rank.threadblocks.iter().enumerate() {
                let Some(step) = block.steps.get(done[index][number].len()) else { continue };
                let before =
                    |on: &program::StepRef| done[index][on.threadblock as usize].get(on.step as usize).copied();
                let Some(before) = step.after.iter().map(before).collect::<Option<Vec<_>>>() else { continue };
                let from = step.instruction.receives_from();
                if from.is_some_and(|from| lanes[from.index()].is_empty()) {
                    continue;
                }
                let before = before.into_iter().chain(done[index][number].last().copied()).max().unwrap_or(0);
                let of = |hops: &[[Vec<u32>; 3]], slice: Slice| {
                    let slots = &hops[index][slice.buffer as usize][slice.index as usize..][..slice.count as usize];
                    slots.iter().copied().max().unwrap_or(0)
                };
                let (came, chain) = from.and_then(|from| lanes[from.index()].pop_front()).unwrap_or_default();
                let mut chain = before.max(chain);
                let source = step.instruction.source().map_or(0, |slice| of(&hops, slice));
                if let Some(to) = step.instruction.sends_to() {
                    chain += 1;
                    lanes[to.index()].push_back((source + 1, chain));
                    far = far.max(source + 1);
                }
                if let Some(slice) = step.instruction.destination() {
                    let old = if let Instruction::Reduce { .. } = step.instruction { of(&hops, slice) } else { 0 };
                    let new = came.max(source).max(old);
                    hops[index][slice.buffer as usize][slice.index as usize..][..slice.count as usize].fill(new);
                }
                long = long.max(chain);
                done[index][number].push(chain);
                goes_on = true;
            }
        }
    }
    (far, long)
}

fn few(rounds: &Rounds, program: &VerifiedProgram, what: &str) {
    let (far, long) = chains(program);
    assert!((far..=long).contains(&rounds.count), "{what}: {} rounds, data go {far}, chains {long}", rounds.count);
}

#[test]
fn rings_have_as_many_rounds_as_steps() {
    for ranks in 2..=8 {
        for in_place in [false, true] {
            let n = ranks as u32;
            let programs = [
                (ring_allgather(ranks, 1), n - 1),
                (ring_reducescatter(ranks, 1), n - 1),
                (ring_allreduce(ranks, 1), 2 * (n - 1)),
            ];
            for (schedule, expected) in &programs {
                let program = checked(lowered(schedule, in_place));
                let rounds = right(&program, 8 * ranks as u64 + 61, 64, 5, "a ring");
                assert_eq!(rounds.count, *expected, "{ranks} ranks, in place {in_place}");
                few(&rounds, &program, "a ring");
            }
        }
        let alltoall = checked(lowered(&direct(&demand(Collective::AllToAll, ranks, 1)), false));
        assert_eq!(right(&alltoall, 70, 1 << 20, 3, "direct exchange").count, 1);
    }
}

#[test]
fn random_programs_of_every_collective() {
    let mut random = Random(17);
    for turn in 0..14 {
        for collective in STANDARD {
            // The last turns have many ranks.
            let ranks = if turn > 11 { 9 + random.below(8) } else { 2 + random.below(7) };
            let topology = random_topology(ranks, &mut random);
            let demand = demand(collective, ranks, 1 + random.below(3) as u32);
            let schedule = random_trees(&topology, &demand, &mut random);
            let options = LowerOptions { in_place: turn % 2 == 1, ..LowerOptions::default() };
            let program = checked(lower(&schedule, &options).unwrap());
            let count = [0, 1, 7, 64, 301][random.below(5)];
            let what = format!("{collective} of {ranks} ranks");
            let rounds = right(&program, count, [1, 300, 1 << 20][random.below(3)], random.draw(), &what);
            few(&rounds, &program, &what);
        }
        let ranks = 2 + random.below(4);
        let topology = random_topology(ranks, &mut random);
        let listed = random_listed(ranks, &mut random);
        let program = checked(lowered(&random_trees(&topology, &listed, &mut random), false));
        right(&program, 64, 100, random.draw(), "listed");
    }
}

#[test]
fn every_reduction_and_parallel_instances() {
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
        for in_place in [false, true] {
            let program = with_op(checked(lowered(&ring_allreduce(4, 2), in_place)), op);
            right(&program, 77, 40, 9, op.as_str());
        }
    }
    let program = checked(replicate(lowered(&ring_allreduce(3, 1), false), 2).unwrap());
    assert_eq!(right(&program, 99, 64, 1, "two instances").count, 4);
}
