//! From a verified schedule to the program that carries it out.
//!
//! The principal function is [`lower`]. Decisions:
//! * There is one threadblock per (rank, connection) and one connection per link used, so a message never queues behind
//!   another link's message. Local copies of a rank share one more threadblock. Other targets want fewer threadblocks that
//!   receive and send ([`Threadblocks::Paired`]), several connections per link, or several instances of the whole program.
//! * A value lands in its output slot if the rank wants the chunk and the slot is free, otherwise in a scratch slot. Chunks
//!   that a rank wants and has elsewhere are copied to the output at the end. Only output slots and scratch are written,
//!   so the input survives even in place, except where it is the output.
//! * **No deadlock.** Transfers are numbered in their order of landing, which the verifier hands over. On each connection,
//!   messages are in this order, and every transfer comes after the transfers whose chunks it forwards. A step waits only
//!   for steps of transfers with smaller numbers. So a receive may overwrite a slot only if all readers of the old value
//!   have smaller numbers; if a reader leaves before this message arrives but arrives after it, the message lands in
//!   scratch. With the lexicographic order (tile, number) the same holds for tiles. A tile uses only its own part of every
//!   slot, so tiles never conflict.
//! * A message is one step for each run of slots that are neighbours at both ends. Two messages are never merged: this
//!   would save an α but delay the chunks of the first, and only the planner can compare the two.
//! * A scratch slot is used again after its last reader, in the order of landing.
//! * Where several ranks compute the same sum, each adds in the order of the contributors (`sums`), so all get the same bits.
//! * A dependency that follows from the others is not emitted.

mod emit;
mod flow;
mod place;
mod plan;
mod reduction;
mod sums;

use super::rewrite::{Pairing, assign, pair, replicate};
use super::{Buffer, Connection, ConnectionId, Layout, LayoutError, OrbitProgram, Program, Slot, Step, Tempo};
use emit::Emitter;
use flow::DataFlow;
use plan::Plan;
use rayon::prelude::*;
use schedule::{ChunkId, Demand, ReduceOp, Schedule, Transfer, VerifiedCompressed, VerifiedSchedule};
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// How to lower. The defaults are best for ranks that are threads or processes of one computer: the program needs no
/// buffers, and no link waits for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Whether input and output are the same memory ([`Layout`] says how for each collective).
    pub in_place: bool,
    /// How steps are grouped into threadblocks.
    pub threadblocks: Threadblocks,
    /// Whether a paired threadblock's receive and the send of the same data become one instruction.
    pub fuse: bool,
    /// With paired threadblocks: how many messages of a connection may be under way; at least 1.
    pub window: u32,
    /// With paired threadblocks: the most threadblocks of a rank. Further threadblocks are paired, even if the one does
    /// not hand data to the other, until this number is reached or no more can be paired.
    pub max_threadblocks: Option<u32>,
    /// Connections per link; messages of the link use them in turn. At least 1.
    pub channels: u32,
    /// Copies of the program, each for its share of every chunk, with their own connections; at least 1.
    pub instances: u32,
}

impl Default for LowerOptions {
    fn default() -> Self {
        Self {
            in_place: false,
            threadblocks: Threadblocks::PerConnection,
            fuse: false,
            window: 1,
            max_threadblocks: None,
            channels: 1,
            instances: 1,
        }
    }
}

/// How steps are grouped into threadblocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threadblocks {
    /// Every end of a connection has its own threadblock.
    #[default]
    PerConnection,
    /// The receiving end of one connection and the sending end of another, of the same channel, share a threadblock.
    Paired,
}

/// Turns a schedule into the program of every rank.
///
/// Takes O(n log n) for n chunks carried. The result is the same for every element count; [`super::check`]
/// proves it independently.
///
/// # Errors
/// [`LayoutError::NotInPlace`] and [`LayoutError::TooManySlots`].
pub fn lower(schedule: &VerifiedSchedule, options: &LowerOptions) -> Result<Program, LayoutError> {
    lower_plan(Plan::Plain(schedule), options)
}

/// Turns a compressed schedule into the program of the first rank of each orbit, in time and memory of its base.
///
/// Every slice has one slot, because the images of neighbours need not be neighbours. Input and output are two memories.
///
/// # Errors
/// [`LayoutError::TooManySlots`].
pub fn lower_orbits(schedule: &VerifiedCompressed) -> Result<OrbitProgram, LayoutError> {
    let program = lower_plan(Plan::Compressed(schedule), &LowerOptions::default())?;
    Ok(OrbitProgram { program, unfolding: schedule.unfolding().clone() })
}

fn lower_plan(plan: Plan<'_>, options: &LowerOptions) -> Result<Program, LayoutError> {
    let schedule = plan.schedule();
    let layout = Layout::new(schedule.demand.clone(), options.in_place)?;
    let flow = DataFlow::of(plan);
    let connections = Connections::of(plan, &flow, options.channels.max(1));
    let single = matches!(plan, Plan::Compressed(_));
    let slices = Slices { layout: &layout, within_blocks: options.instances > 1, single };
    let emitter = Emitter::new(plan, slices, &flow, &connections);
    let ranks = emitter.run();
    let mut program = Program {
        demand: schedule.demand.clone(),
        op: schedule.demand.request().op,
        in_place: options.in_place,
        shape: layout.shape().clone(),
        uniform: false,
        connections: connections.list,
        ranks,
        tempo: Tempo {
            times: schedule.transfers.iter().map(|transfer| [transfer.start, transfer.end]).collect(),
            ..Tempo::default()
        },
    };
    if options.threadblocks == Threadblocks::Paired {
        program = paired(program, schedule, options);
    }
    match schedule::are_many(program.ranks.iter().map(|rank| rank.steps().count()).sum()) {
        true => program.ranks.par_iter_mut().for_each(reduction::drop_implied),
        false => program.ranks.iter_mut().for_each(reduction::drop_implied),
    }
    replicate(program, options.instances)
}

/// The first chunk whose sum some ranks compute in another way than others, whatever lowering does: they exchange different partial
/// sums. The results of integers, minimum and maximum are the same on all ranks anyway; those of floats added or multiplied may
/// differ in their last bits. `None` for minimum and maximum, which do not depend on the order.
pub fn adds_differently(schedule: &VerifiedSchedule) -> Option<ChunkId> {
    uneven(Plan::Plain(schedule))
}

/// [`adds_differently`] for a compressed schedule: the answer for one chunk is that for its images.
pub fn orbits_add_differently(schedule: &VerifiedCompressed) -> Option<ChunkId> {
    uneven(Plan::Compressed(schedule))
}

fn uneven(plan: Plan<'_>) -> Option<ChunkId> {
    let demand: &Demand = &plan.schedule().demand;
    let may_differ = demand.request().op.is_some_and(ReduceOp::depends_on_order)
        && demand.chunks().iter().any(|chunk| chunk.combine && chunk.wanted_by.len() > 1);
    may_differ.then(|| DataFlow::of(plan).uneven).flatten()
}

/// Pairs threadblocks. Their steps are in the order of the schedule's times: departures at their start, arrivals at
/// their end, local steps last.
fn paired(program: Program, schedule: &Schedule, options: &LowerOptions) -> Program {
    let when = |step: &Step| {
        let transfer = step.transfer.map(|transfer| &schedule.transfers[transfer as usize]);
        let sends = step.instruction.sends_to().is_some();
        let time = transfer.map_or(f64::INFINITY, |transfer| if sends { transfer.start.0 } else { transfer.end.0 });
        // Times are not negative, so their bit patterns have the same order.
        (time.to_bits(), sends, step.transfer)
    };
    let pairing = Pairing {
        window: options.window,
        handing_on: true,
        most: options.max_threadblocks.map(|most| most as usize),
        steps: usize::MAX,
        peers: usize::MAX,
        fuse: options.fuse,
    };
    let mut program = pair(program, &pairing, when);
    // This succeeds, because every connection had its own channel between its ranks.
    assign(&mut program, usize::MAX);
    program
}

/// The connections, and the connection of each transfer.
struct Connections {
    list: Vec<Connection>,
    of: BTreeMap<u32, ConnectionId>,
}

impl Connections {
    /// `channels` connections for each link (fewer if the link has fewer messages), links ascending; the messages of a
    /// link use them in turn.
    fn of(plan: Plan<'_>, flow: &DataFlow, channels: u32) -> Self {
        let mut used: Vec<u32> = flow.live.iter().map(|&id| flow[id].transfer).collect();
        used.dedup();
        let mut carried: BTreeMap<LinkId, Vec<u32>> = BTreeMap::new();
        for transfer in used {
            carried.entry(plan.seen_by_first(transfer).link).or_default().push(transfer);
        }
        let mut next: BTreeMap<(Rank, Rank), u32> = BTreeMap::new();
        let mut connections = Self { list: Vec::with_capacity(carried.len()), of: BTreeMap::new() };
        for (link, transfers) in carried {
            let first = connections.list.len() as u32;
            let lanes = channels.min(transfers.len() as u32);
            let Transfer { from, to, .. } = *plan.seen_by_first(transfers[0]);
            for _ in 0..lanes {
                let next = next.entry((from, to)).or_default();
                let channel = std::mem::replace(next, *next + 1);
                connections.list.push(Connection { from, to, channel, link });
            }
            let turns = transfers.into_iter().zip((0..lanes).cycle());
            connections.of.extend(turns.map(|(transfer, lane)| (transfer, ConnectionId(first + lane))));
        }
        connections
    }
}

/// Which slots may form one slice.
#[derive(Clone, Copy)]
struct Slices<'a> {
    layout: &'a Layout,
    /// Whether a slice must stay within one block of a caller's buffer.
    within_blocks: bool,
    /// Whether every slice has one slot.
    single: bool,
}

impl Slices<'_> {
    /// Whether `b` can extend a slice that ends with `a`.
    fn joins(&self, a: Slot, b: Slot) -> bool {
        let crosses = b.buffer != Buffer::Scratch && b.index.is_multiple_of(self.layout.block_parts());
        !self.single && b == a.plus(1) && !(self.within_blocks && crosses)
    }
}
