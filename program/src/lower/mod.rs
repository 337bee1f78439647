//! From a verified schedule to the program that carries it out.
//!
//! The principal function is [`lower`]. Decisions:
//! * One threadblock per (rank, connection) and one connection per link used, so a message never queues behind
//!   another link's. Local copies share one more threadblock. Other targets want fewer threadblocks, which receive
//!   and send ([`Threadblocks::Paired`]), several lanes per link, or several instances of the whole.
//! * A value lands in its output slot if the rank wants the chunk and the slot is free, otherwise in a scratch
//!   slot; what a rank wants and has elsewhere is copied home at the end. Nothing but output slots and scratch
//!   is ever written, so the input survives even in place, except where it is the output.
//! * **No deadlock, by potential.** Transfers are numbered in their order of landing, which the verifier hands over; that numbering is the order
//!   on each connection and puts every transfer after those whose chunks it forwards. A step waits only for steps of
//!   transfers with smaller numbers. Hence a receive may overwrite a slot only if all readers of the old value
//!   have smaller numbers; if one leaves before this message arrives but arrives after it, the message lands in
//!   scratch. With the lexicographic order (tile, number) the same holds for tiles; and a tile touches only its own
//!   part of every slot, so tiles never conflict.
//! * A message is one step for each run of slots that are neighbours at both ends. Two messages never become one: that
//!   saves an α and delays what the first brings, which is the planner's to weigh.
//! * A scratch slot is used again once its last reader, by that numbering, is done.
//! * Where several ranks compute one sum, each adds in the order of the contributors (`sums`), so all get the same bits.
//! * A dependency that follows from the others is not emitted.

mod emit;
mod flow;
mod place;
mod reduction;
mod sums;

use super::rewrite::{Pairing, assign, pair, replicate};
use super::{Buffer, Connection, ConnectionId, Layout, LayoutError, Program, Slot, Step, Tempo};
use emit::Emitter;
use flow::Flow;
use rayon::prelude::*;
use schedule::{Schedule, Transfer, VerifiedSchedule};
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// How to lower. The default is best for ranks that are threads or processes of one computer: it needs no buffers and
/// never lets one link wait for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Whether input and output are the same memory ([`Layout`] says how for each collective).
    pub in_place: bool,
    /// What shares a threadblock.
    pub threadblocks: Threadblocks,
    /// Whether a paired threadblock's receive and the send of the same data become one instruction.
    pub fuse: bool,
    /// How many messages of a connection paired threadblocks may rely on to be under way; at least 1.
    pub window: u32,
    /// Paired threadblocks: the most that a rank should have; more are paired, though nothing is handed on between them,
    /// until that is reached or none is left to pair.
    pub max_threadblocks: Option<u32>,
    /// Lanes per link, which its messages take in turn; at least 1.
    pub channels: u32,
    /// Copies of the program, each for its share of every chunk, on lanes of their own; at least 1.
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

/// What shares a threadblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threadblocks {
    /// Every end of a connection has its own.
    #[default]
    PerConnection,
    /// The receiving end of one connection and the sending end of another, of the same channel.
    Paired,
}

/// Turns a schedule into what every rank does.
///
/// Takes O(n log n) for n chunks carried. The result is the same for every element count; [`super::check`]
/// proves it independently.
///
/// # Errors
/// [`LayoutError::NotInPlace`] and [`LayoutError::TooManySlots`].
pub fn lower(schedule: &VerifiedSchedule, options: &LowerOptions) -> Result<Program, LayoutError> {
    let (verified, schedule) = (schedule, schedule.schedule());
    let layout = Layout::new(schedule.demand.clone(), options.in_place)?;
    let flow = Flow::of(verified);
    let connections = Connections::of(schedule, &flow, options.channels.max(1));
    let slices = Slices { layout: &layout, within_blocks: options.instances > 1 };
    let emitter = Emitter::new(verified, slices, &flow, &connections);
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
    program.ranks.par_iter_mut().for_each(reduction::drop_implied);
    replicate(program, options.instances)
}

/// Threadblocks that receive and send, in the order of the schedule's times: departures at their start, arrivals at
/// their end, local steps last.
fn paired(program: Program, schedule: &Schedule, options: &LowerOptions) -> Program {
    let when = |step: &Step| {
        let transfer = step.transfer.map(|transfer| &schedule.transfers[transfer as usize]);
        let sends = step.instruction.sends_to().is_some();
        let time = transfer.map_or(f64::INFINITY, |transfer| if sends { transfer.start.0 } else { transfer.end.0 });
        // Times are not negative, so their bits are ordered as they are.
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
    // It succeeds, because every connection had a channel of its own between its ranks.
    assign(&mut program, usize::MAX);
    program
}

/// The connections, and which one each transfer takes.
struct Connections {
    list: Vec<Connection>,
    of: BTreeMap<u32, ConnectionId>,
}

impl Connections {
    /// `channels` connections for each link that carries as many messages, links ascending; its messages take turns.
    fn of(schedule: &Schedule, flow: &Flow, channels: u32) -> Self {
        let mut used: Vec<u32> = flow.live.iter().map(|&id| flow[id].transfer).collect();
        used.dedup();
        let mut carried: BTreeMap<LinkId, Vec<u32>> = BTreeMap::new();
        for transfer in used {
            carried.entry(schedule.transfers[transfer as usize].link).or_default().push(transfer);
        }
        let mut next: BTreeMap<(Rank, Rank), u32> = BTreeMap::new();
        let mut connections = Self { list: Vec::with_capacity(carried.len()), of: BTreeMap::new() };
        for (link, transfers) in carried {
            let first = connections.list.len() as u32;
            let lanes = channels.min(transfers.len() as u32);
            let Transfer { from, to, .. } = schedule.transfers[transfers[0] as usize];
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

/// Which slots may be one slice.
#[derive(Clone, Copy)]
struct Slices<'a> {
    layout: &'a Layout,
    /// Whether no slice may reach from one block of a caller's buffer into the next.
    within_blocks: bool,
}

impl Slices<'_> {
    /// Whether `b` can extend a slice that ends with `a`.
    fn joins(&self, a: Slot, b: Slot) -> bool {
        let crosses = b.buffer != Buffer::Scratch && b.index.is_multiple_of(self.layout.block_parts());
        b == a.plus(1) && !(self.within_blocks && crosses)
    }
}
