//! Local ranks that behave like another machine.
//!
//! The principal types are [`Emulation`], the machine to imitate, and [`Pacer`], one rank's side of it. Every
//! link and resource of that machine has a clock in shared memory that says until when it is busy. A message
//! claims its link and that link's resources together: it starts when it is ready and all of them are free, keeps
//! them busy and arrives as the cost model says. Its receiver completes no earlier than the arrival.
//!
//! On a shared resource messages keep the order of their schedule, as the schedule's times assume ([`ResourceOrder`]):
//! whether a port serves the right rank first is otherwise a race between processes.
//!
//! Times are carried, not measured: a step is ready at the latest *stamp* of what it waited for, even if the
//! scheduler woke us later, so delays of this computer do not add up along a path of many hops. Bytes travel
//! ahead of their arrival, so copying is hidden behind the emulated wire.

use crate::board::{Arena, Board, BoardShape};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::interpreter::{RankPlan, ends, shape};
use crate::order::ResourceOrder;
use schedule::program::{ConnectionId, Program, Step};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use topology::{Bytes, Micros, Topology};

/// The machine that local ranks imitate.
#[derive(Clone, Debug)]
pub struct Emulation {
    topology: Arc<Topology>,
    slowdown: f64,
}

impl Emulation {
    /// `topology` with every time multiplied by `slowdown`.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] unless the slowdown is finite and above zero.
    pub fn new(topology: Arc<Topology>, slowdown: f64) -> RunResult<Self> {
        if !(slowdown.is_finite() && slowdown > 0.0) {
            let what = format!("a slowdown is a finite number above 0, not {slowdown}");
            return Err(RunError::Mismatch { what });
        }
        Ok(Self { topology, slowdown })
    }

    /// The machine.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What every time is multiplied by.
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    /// How many clocks the shared memory needs.
    pub(crate) fn clocks(&self) -> usize {
        self.topology.links().len() + self.topology.resources().len()
    }

    fn nanos(&self, time: Micros) -> u64 {
        (time.0 * self.slowdown * 1e3).round() as u64
    }

    /// # Errors
    /// [`RunError::Mismatch`] unless every connection of `program` stands for a link between its ranks.
    pub(crate) fn check(&self, program: &Program) -> RunResult<()> {
        for connection in &program.connections {
            let link = self.topology.links().get(connection.link.index());
            if link.is_none_or(|link| (link.from, link.to) != (connection.from, connection.to)) {
                let (from, to) = (connection.from, connection.to);
                let what = format!(
                    "the plan was made for another topology: it uses link {} from rank {from} to rank {to}, which `{}` \
                     does not have",
                    connection.link,
                    self.topology.name()
                );
                return Err(RunError::Mismatch { what });
            }
        }
        Ok(())
    }
}

impl BoardShape {
    pub(crate) fn new(ranks: usize, emulation: Option<&Emulation>, arena: usize) -> Self {
        Self { ranks, clocks: emulation.map_or(0, Emulation::clocks), arena: arena.next_multiple_of(64) }
    }
}

/// When an emulated message has left its link, and when it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    pub(crate) sent: Moment,
    pub(crate) arrival: Moment,
}

/// Whether a message may claim its resources.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// It did.
    Now(Departure),
    /// Another rank is claiming at this instant.
    Contended,
    /// A message before it has not claimed yet.
    Later,
}

/// What a threadblock is in the middle of.
#[derive(Clone, Copy, Default)]
struct InFlight {
    /// Of the current step's incoming message.
    arrival: Option<Moment>,
    /// Of the outgoing message that the current step belongs to.
    departure: Option<Departure>,
    /// Stamp of the step before.
    last: Moment,
}

/// One rank's share in an emulated machine, for one run.
pub(crate) struct Pacer<'a> {
    board: &'a Board,
    arena: &'a Arena,
    emulation: &'a Emulation,
    plan: &'a RankPlan<'a>,
    order: &'a ResourceOrder,
    epoch: u64,
    /// When each step of each threadblock was complete, for the latest tile.
    stamps: Vec<Vec<Moment>>,
    in_flight: Vec<InFlight>,
}

impl<'a> Pacer<'a> {
    pub(crate) fn new(
        board: &'a Board,
        arena: &'a Arena,
        emulation: &'a Emulation,
        plan: &'a RankPlan<'a>,
        order: &'a ResourceOrder,
        epoch: u64,
    ) -> Self {
        let blocks = &plan.own().threadblocks;
        let stamps = blocks.iter().map(|block| vec![Moment::default(); block.steps.len()]).collect();
        let in_flight = vec![InFlight::default(); blocks.len()];
        Self { board, arena, emulation, plan, order, epoch, stamps, in_flight }
    }

    /// Before the first step: nothing is ready earlier than `start`.
    pub(crate) fn begin(&mut self, start: Moment) {
        self.in_flight.iter_mut().for_each(|state| state.last = start);
    }

    fn steps(&self, block: usize) -> &'a [Step] {
        &self.plan.own().threadblocks[block].steps
    }

    /// Whether two steps are parts of one outgoing message.
    fn one_message(a: &Step, b: &Step) -> bool {
        let (_, to) = ends(&a.instruction);
        to.is_some() && ends(&b.instruction).1 == to && a.transfer.is_some() && a.transfer == b.transfer
    }

    fn is_first(&self, block: usize, index: usize) -> bool {
        let steps = self.steps(block);
        index == 0 || !Self::one_message(&steps[index - 1], &steps[index])
    }

    fn is_last(&self, block: usize, index: usize) -> bool {
        let steps = self.steps(block);
        steps.get(index + 1).is_none_or(|next| !Self::one_message(&steps[index], next))
    }

    /// The steps of the message that step `index` begins; empty if it begins none.
    pub(crate) fn message_from(&self, block: usize, index: usize) -> &'a [Step] {
        let steps = &self.steps(block)[index..];
        if ends(&steps[0].instruction).1.is_none() || !self.is_first(block, index) {
            return &[];
        }
        let length = steps.windows(2).take_while(|pair| Self::one_message(&pair[0], &pair[1])).count() + 1;
        &steps[..length]
    }

    /// The latest stamp of what a step waits for.
    pub(crate) fn ready(&self, block: usize, index: usize, step: &Step) -> Moment {
        let message = self.message_from(block, index).iter().flat_map(|step| &step.after);
        let after = step.after.iter().chain(message);
        let stamps = after.map(|on| self.stamps[on.threadblock as usize][on.step as usize]);
        stamps.fold(self.in_flight[block].last, Moment::max)
    }

    pub(crate) fn arrival(&self, block: usize) -> Option<Moment> {
        self.in_flight[block].arrival
    }

    pub(crate) fn set_arrival(&mut self, block: usize, arrival: Moment) {
        self.in_flight[block].arrival = Some(arrival);
    }

    pub(crate) fn departure(&self, block: usize) -> Option<Departure> {
        self.in_flight[block].departure
    }

    /// Claims link and resources for the message that step `index` begins, if it is this message's turn.
    pub(crate) fn claim(&mut self, block: usize, index: usize, tile: usize, to: ConnectionId, ready: Moment) -> Turn {
        let neighbours = self.order.around(self.steps(block)[index].transfer);
        let claimed =
            |&earlier: &u32| self.board.flag(self.arena, earlier as usize).load(Ordering::Acquire) == self.epoch;
        if !neighbours.is_none_or(|neighbours| neighbours.before.iter().all(claimed)) {
            return Turn::Later;
        }
        let steps = self.message_from(block, index).iter();
        let bytes: usize = steps.map(|step| self.plan.geometry.slice_bytes(shape(&step.instruction), tile)).sum();
        let (topology, id) = (self.emulation.topology(), self.plan.program.connections[to.index()].link);
        let link = topology.link(id);
        // α is paid once per message: later tiles of it follow without a gap.
        let cost = |of: &dyn Fn(Bytes) -> Micros| match tile {
            0 => self.emulation.nanos(of(Bytes(bytes as f64))),
            _ => self.emulation.nanos(of(Bytes(bytes as f64)) - of(Bytes::ZERO)),
        };
        let links = topology.links().len();
        let shared = link.resources.iter().map(|&id| (links + id.index(), topology.resource(id)));
        let departure = self.board.try_exclusive(|| {
            let own = self.board.clock(id.index());
            let start = shared.clone().fold(ready.0.max(own.load(Ordering::Relaxed)), |start, (clock, _)| {
                start.max(self.board.clock(clock).load(Ordering::Relaxed))
            });
            let sent = start + cost(&|bytes| link.occupancy(bytes));
            own.store(sent, Ordering::Relaxed);
            for (clock, resource) in shared {
                let busy = start + cost(&|bytes| resource.occupancy(link, bytes));
                self.board.clock(clock).store(busy, Ordering::Relaxed);
            }
            Departure { sent: Moment(sent), arrival: Moment(start + cost(&|bytes| link.transfer_time(bytes))) }
        });
        let Some(departure) = departure else { return Turn::Contended };
        self.in_flight[block].departure = Some(departure);
        if let Some(neighbours) = neighbours {
            self.board.flag(self.arena, neighbours.transfer as usize).store(self.epoch, Ordering::Release);
            neighbours.next.iter().for_each(|&rank| self.board.bell(rank).ring());
        }
        Turn::Now(departure)
    }

    /// Notes that a step will be complete at `ready`, or later if it ends a message that is still on its link;
    /// returns when.
    pub(crate) fn finish(&mut self, block: usize, index: usize, ready: Moment) -> Moment {
        let last = self.is_last(block, index);
        let state = &mut self.in_flight[block];
        let stamp = state.departure.filter(|_| last).map_or(ready, |departure| ready.max(departure.sent));
        if last {
            state.departure = None;
        }
        state.arrival = None;
        state.last = stamp;
        self.stamps[block][index] = stamp;
        stamp
    }
}
