//! Local ranks that behave like another machine.
//!
//! The principal types are [`Emulation`], the machine to emulate, and [`Pacer`], one rank's part of the emulation.
//! Every link and resource of that machine has a clock in shared memory: the time until which it is busy. A message
//! claims its link and the link's resources together. It starts when it is ready and all of them are free. It keeps
//! them busy and arrives as the cost model says. Its receiver completes no earlier than the arrival.
//!
//! On a shared resource messages keep the order of their schedule, as the schedule's times assume ([`ResourceOrder`]).
//! Otherwise the first process to claim a port would decide the order.
//!
//! Times are computed, not measured. A step is ready at the latest *stamp* of the steps that it waited for, even if the
//! operating system woke the rank later. So delays of this computer do not add up along a path of many hops. Bytes
//! travel before their emulated arrival, so the time for copying does not count. Where the end of each message is asked for, as
//! by a profile, it is its stamp.

use crate::clock::{Moment, WaitFor};
use crate::error::{RunError, RunResult};
use crate::memory::segment::{Segment, SegmentShape};
use crate::numbers::CallNumber;
use crate::pacing::order::ResourceOrder;
use crate::plan::RankPlan;
use crate::transport::shared::arena::Arena;
use program::{ConnectionId, Step};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use topology::{Bytes, LinkId, Micros, Topology};

/// The longest message that is emulated: a day. A longer time comes from a wrong unit, and would overflow the clocks.
const LONGEST: Micros = Micros(86_400e6);

/// The machine that local ranks emulate.
#[derive(Clone, PartialEq, Debug)]
pub struct Emulation {
    topology: Arc<Topology>,
    slowdown: f64,
}

impl Emulation {
    /// `topology` with every time multiplied by `slowdown`.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] unless the slowdown is finite and above zero; [`RunError::TooSlow`] if even an empty
    /// message would take more than a day.
    pub fn new(topology: Arc<Topology>, slowdown: f64) -> RunResult<Self> {
        if !(slowdown.is_finite() && slowdown > 0.0) {
            let what = format!("a slowdown is a finite number above 0, not {slowdown}");
            return Err(RunError::Mismatch { what });
        }
        let emulation = Self { topology, slowdown };
        for link in 0..emulation.topology.links().len() {
            emulation.check_message(LinkId(link as u32), 0)?;
        }
        Ok(emulation)
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

    /// # Errors
    /// [`RunError::TooSlow`] if a message of `bytes` bytes would keep the link, or one of its resources, busy for too
    /// long.
    fn check_message(&self, link: LinkId, bytes: usize) -> RunResult<()> {
        let size = Bytes(bytes as f64);
        let taken = self.topology.link(link);
        let shared = taken.resources.iter().map(|&id| self.topology.resource(id).occupancy(taken, size));
        let time = shared.fold(taken.transfer_time(size), Micros::max) * self.slowdown;
        if time > LONGEST { Err(RunError::TooSlow { link, bytes, time, limit: LONGEST }) } else { Ok(()) }
    }

    fn nanos(&self, time: Micros) -> u64 {
        (time.0 * self.slowdown * 1e3).round() as u64
    }

    /// # Errors
    /// [`RunError::Mismatch`] unless every connection of the rank's program stands for a link between its ranks, and no
    /// step is fused: an emulated message departs when all of it has arrived. [`RunError::TooSlow`] if a message that
    /// the rank sends would take longer than any emulated message may.
    pub(crate) fn check(&self, plan: &RankPlan<'_>) -> RunResult<()> {
        let ranks = &plan.program.ranks;
        let mut steps = ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps);
        if steps.any(|step| step.instruction.is_fused()) {
            let what = "an emulated machine runs programs without fused steps".to_owned();
            return Err(RunError::Mismatch { what });
        }
        for connection in &plan.connections {
            let link = self.topology.links().get(connection.link.index());
            if link.is_none_or(|link| (link.from, link.to) != (connection.from, connection.to)) {
                let (from, to) = (connection.from, connection.to);
                let what = format!(
                    "the plan was made for another topology: it uses link {} from rank {from} to rank {to}, which `{}` \
                     does not have",
                    connection.link,
                    topology::shorten(self.topology.name())
                );
                return Err(RunError::Mismatch { what });
            }
        }
        self.check_messages(plan)
    }

    fn check_messages(&self, plan: &RankPlan<'_>) -> RunResult<()> {
        for block in &plan.own().threadblocks {
            for message in block.steps.chunk_by(one_message) {
                let Some(to) = message[0].instruction.sends_to() else { continue };
                let bytes = (0..plan.geometry.tiles()).map(|tile| plan.message_bytes(message, tile)).max();
                self.check_message(plan.program.connections[to.index()].link, bytes.unwrap_or(0))?;
            }
        }
        Ok(())
    }
}

/// Whether two steps are parts of one outgoing message.
fn one_message(a: &Step, b: &Step) -> bool {
    let to = a.instruction.sends_to();
    to.is_some() && b.instruction.sends_to() == to && a.transfer.is_some() && a.transfer == b.transfer
}

impl SegmentShape {
    pub(crate) fn new(ranks: usize, emulation: Option<&Emulation>, room: usize) -> Self {
        Self { ranks, clocks: emulation.map_or(0, Emulation::clocks), room: room.next_multiple_of(64), spread: false }
    }
}

/// When an emulated message has left its link, and when it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacedDeparture {
    pub(crate) sent: Moment,
    pub(crate) arrival: Moment,
}

/// The current messages of a threadblock.
#[derive(Clone, Copy, Default)]
struct InFlight {
    /// The arrival of the current step's incoming message.
    arrival: Option<Moment>,
    /// The departure of the outgoing message that the current step belongs to.
    departure: Option<PacedDeparture>,
    /// The stamp of the step before.
    last: Moment,
}

/// One rank's part of an emulated machine, for one run.
pub(crate) struct Pacer<'a> {
    segment: &'a Segment,
    arena: &'a Arena,
    emulation: &'a Emulation,
    plan: &'a RankPlan<'a>,
    order: &'a ResourceOrder,
    call: CallNumber,
    /// When each step of each threadblock was complete, for the latest tile.
    stamps: Vec<Vec<Moment>>,
    in_flight: Vec<InFlight>,
}

impl<'a> Pacer<'a> {
    pub(crate) fn new(
        segment: &'a Segment,
        arena: &'a Arena,
        emulation: &'a Emulation,
        plan: &'a RankPlan<'a>,
        order: &'a ResourceOrder,
        call: CallNumber,
    ) -> Self {
        let blocks = &plan.own().threadblocks;
        let stamps = blocks.iter().map(|block| vec![Moment::default(); block.steps.len()]).collect();
        let in_flight = vec![InFlight::default(); blocks.len()];
        Self { segment, arena, emulation, plan, order, call, stamps, in_flight }
    }

    /// Before the first step: nothing is ready earlier than `start`.
    pub(crate) fn begin(&mut self, start: Moment) {
        self.in_flight.iter_mut().for_each(|state| state.last = start);
    }

    fn steps(&self, block: usize) -> &'a [Step] {
        &self.plan.own().threadblocks[block].steps
    }

    fn is_first(&self, block: usize, index: usize) -> bool {
        let steps = self.steps(block);
        index == 0 || !one_message(&steps[index - 1], &steps[index])
    }

    fn is_last(&self, block: usize, index: usize) -> bool {
        let steps = self.steps(block);
        steps.get(index + 1).is_none_or(|next| !one_message(&steps[index], next))
    }

    /// The steps of the message that step `index` begins; empty if it begins none.
    pub(crate) fn message_from(&self, block: usize, index: usize) -> &'a [Step] {
        let steps = &self.steps(block)[index..];
        if steps[0].instruction.sends_to().is_none() || !self.is_first(block, index) {
            return &[];
        }
        let length = steps.windows(2).take_while(|pair| one_message(&pair[0], &pair[1])).count() + 1;
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

    pub(crate) fn departure(&self, block: usize) -> Option<PacedDeparture> {
        self.in_flight[block].departure
    }

    /// Claims link and resources for the message that step `index` begins.
    ///
    /// # Errors
    /// The reason to wait: an earlier message that has not claimed yet, or another rank that claims at this moment.
    pub(crate) fn claim(
        &mut self,
        (block, index, tile): (usize, usize, usize),
        to: ConnectionId,
        ready: Moment,
    ) -> Result<PacedDeparture, WaitFor> {
        let neighbours = self.order.around(self.steps(block)[index].transfer);
        let claimed = |&earlier: &u32| {
            self.arena.flag(self.segment.region(), earlier as usize).load(Ordering::Acquire) == self.call.0
        };
        if !neighbours.is_none_or(|neighbours| neighbours.before.iter().all(claimed)) {
            return Err(WaitFor::Peer);
        }
        let bytes = self.plan.message_bytes(self.message_from(block, index), tile);
        let (topology, id) = (self.emulation.topology(), self.plan.program.connections[to.index()].link);
        let link = topology.link(id);
        // α is paid once per message: later tiles of it follow without a gap.
        let cost = |of: &dyn Fn(Bytes) -> Micros| match tile {
            0 => self.emulation.nanos(of(Bytes(bytes as f64))),
            _ => self.emulation.nanos(of(Bytes(bytes as f64)) - of(Bytes::ZERO)),
        };
        let links = topology.links().len();
        let shared = link.resources.iter().map(|&id| (links + id.index(), topology.resource(id)));
        let departure = self.segment.clocks.try_exclusive(|| {
            let own = self.segment.clocks.of(id.index());
            let start = shared.clone().fold(ready.0.max(own.load(Ordering::Relaxed)), |start, (clock, _)| {
                start.max(self.segment.clocks.of(clock).load(Ordering::Relaxed))
            });
            let sent = start.saturating_add(cost(&|bytes| link.occupancy(bytes)));
            own.store(sent, Ordering::Relaxed);
            for (clock, resource) in shared {
                let busy = start.saturating_add(cost(&|bytes| resource.occupancy(link, bytes)));
                self.segment.clocks.of(clock).store(busy, Ordering::Relaxed);
            }
            let arrival = start.saturating_add(cost(&|bytes| link.transfer_time(bytes)));
            PacedDeparture { sent: Moment(sent), arrival: Moment(arrival) }
        });
        // The message is ready. It waits only while another rank claims.
        let departure = departure.ok_or(WaitFor::Moment(ready))?;
        self.in_flight[block].departure = Some(departure);
        if let Some(neighbours) = neighbours {
            self.arena.flag(self.segment.region(), neighbours.transfer as usize).store(self.call.0, Ordering::Release);
            neighbours.next.iter().for_each(|&rank| self.segment.bells.of(rank).ring());
        }
        Ok(departure)
    }

    /// Records that a step is complete at `ready`, or later if it ends a message that is still on its link. Returns
    /// this moment.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_more_than_a_day_are_refused() {
        let machine = Arc::new(topology::resolve("ring:3,alpha=1us,bandwidth=1GBps").unwrap());
        for slowdown in [8.7e10, 1e20, 1e300, f64::MAX] {
            let error = Emulation::new(machine.clone(), slowdown).unwrap_err();
            assert!(matches!(error, RunError::TooSlow { bytes: 0, .. }), "{error}");
        }
        // An empty message takes 100 s, and so does each further thousand bytes.
        let slow = Emulation::new(machine, 1e8).unwrap();
        assert!(slow.check_message(LinkId(0), 863_000).is_ok());
        assert!(matches!(slow.check_message(LinkId(2), 864_000), Err(RunError::TooSlow { link: LinkId(2), .. })));
    }
}
