//! From a verified schedule to the program that carries it out.
//!
//! The principal function is [`lower`]. Decisions:
//! * One threadblock per (rank, connection) and one connection per link used, so a message never queues behind
//!   another link's. Local copies share one more threadblock.
//! * A value lands in its output slot if the rank wants the chunk and the slot is free, otherwise in a scratch
//!   slot; what a rank wants and has elsewhere is copied home at the end. Nothing but output slots and scratch
//!   is ever written, so the input survives even in place, except where it is the output.
//! * **No deadlock, by potential.** Transfers are numbered in order of arrival; that numbering follows the order
//!   on each link and puts every transfer after those whose chunks it forwards. A step waits only for steps of
//!   transfers with smaller numbers. Hence a receive may overwrite a slot only if all readers of the old value
//!   have smaller numbers; if one leaves before this message arrives but arrives after it, the message lands in
//!   scratch. With the lexicographic order (tile, number) the same holds for tiles; and a tile touches only its own
//!   part of every slot, so tiles never conflict.
//! * A dependency that follows from the others is not emitted.

mod emit;
mod flow;
mod place;
mod reduction;

use super::{Connection, ConnectionId, Layout, Program};
use crate::{ChunkId, Collective, Schedule, VerifiedSchedule};
use emit::Emitter;
use flow::Flow;
use rayon::prelude::*;
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// How to lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LowerOptions {
    /// Whether input and output are the same memory ([`Layout`] says how for each collective).
    pub in_place: bool,
}

/// Why a schedule has no program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// What a rank sends and what it receives differ in size.
    #[error("{collective} has no in-place form: what a rank sends and what it receives differ in size")]
    NotInPlace {
        /// The collective.
        collective: Collective,
    },
    /// A buffer would have too many slots.
    #[error("a buffer would have {slots} slots, more than the {limit} that are supported; use fewer chunks")]
    TooManySlots {
        /// How many there would be.
        slots: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A transfer sends what nobody brought; a verified schedule has none.
    #[error("transfer {transfer} sends chunk {chunk} from rank {rank}, which does not hold it then")]
    NotHeld {
        /// Position in the schedule.
        transfer: u32,
        /// The chunk.
        chunk: ChunkId,
        /// The sender.
        rank: Rank,
    },
    /// A chunk never arrives; a verified schedule has none.
    #[error("chunk {chunk} never arrives at rank {rank}, which wants it")]
    NotDelivered {
        /// The chunk.
        chunk: ChunkId,
        /// The rank that wants it.
        rank: Rank,
    },
}

/// Turns a schedule into what every rank does.
///
/// Takes O(n log n) for n chunks carried. The result is the same for every element count; [`super::check`]
/// proves it independently.
///
/// # Errors
/// [`LowerError::NotInPlace`] and [`LowerError::TooManySlots`].
pub fn lower(schedule: &VerifiedSchedule, options: &LowerOptions) -> Result<Program, LowerError> {
    let schedule = schedule.schedule();
    let layout = Layout::new(schedule.demand.clone(), options.in_place)?;
    let arrivals = flow::arrivals(schedule);
    let flow = Flow::of(schedule, &arrivals)?;
    let connections = connections(schedule, &flow);
    let emitter = Emitter::new(schedule, &layout, &flow, &arrivals, &connections);
    let mut ranks = emitter.run();
    ranks.par_iter_mut().for_each(|rank| reduction::drop_implied(&mut rank.program, &rank.order));
    Ok(Program {
        demand: schedule.demand.clone(),
        op: schedule.demand.request().op,
        in_place: options.in_place,
        shape: layout.shape().clone(),
        uniform: false,
        connections: connections.list,
        ranks: ranks.into_iter().map(|rank| rank.program).collect(),
    })
}

/// The connections, and which link each stands for.
struct Connections {
    list: Vec<Connection>,
    by_link: BTreeMap<LinkId, ConnectionId>,
}

/// One connection for each link that carries anything, ascending; parallel links become channels.
fn connections(schedule: &Schedule, flow: &Flow) -> Connections {
    let used = flow.live.iter().map(|&id| &schedule.transfers[flow[id].transfer as usize]);
    let ends: BTreeMap<LinkId, (Rank, Rank)> = used.map(|t| (t.link, (t.from, t.to))).collect();
    let mut lanes: BTreeMap<(Rank, Rank), u32> = BTreeMap::new();
    let mut connections = Connections { list: Vec::with_capacity(ends.len()), by_link: BTreeMap::new() };
    for (link, (from, to)) in ends {
        let next = lanes.entry((from, to)).or_default();
        let channel = std::mem::replace(next, *next + 1);
        connections.by_link.insert(link, ConnectionId(connections.list.len() as u32));
        connections.list.push(Connection { from, to, channel, link });
    }
    connections
}
