//! A plan for one size, timed for another.
//!
//! The principal type is [`SendOrder`]: the messages of a schedule in their order, which do not depend on the size.
//! Replayed with chunks of another size, they are a schedule for that size. Where neighbours in a tree exchange sums, they do so there
//! if it is faster. Where others do, the order alone does not determine which contributions a sum contains: the messages are replayed in
//! rounds, as they were made.

use super::SizeTask;
use crate::ordering::{may_exchange, played, without_exchanges};
use crate::problem::Problem;
use schedule::{Message, Origin, Provenance, Schedule, TransferKind, VerifiedSchedule, replay_rounds};
use topology::Micros;

/// The part of a plan that holds for every size.
pub(super) struct SendOrder {
    /// The messages, in the order in which they leave.
    messages: Vec<Message>,
    /// The lengths of its rounds, in messages; empty where nothing is reduced, or sums go along trees with exchanges.
    rounds: Vec<usize>,
    exchanges: bool,
    pub(super) chunks_per_rank: u32,
    produced_by: Provenance,
    /// The size that it was found for, and the plan itself: at that size its own times are used.
    origin: (u64, Schedule),
}

impl SendOrder {
    pub(super) fn new(verified: &VerifiedSchedule) -> Self {
        let schedule = verified.schedule().clone();
        let request = schedule.demand.request();
        let reduces = schedule.transfers.iter().any(|transfer| transfer.kind == TransferKind::Reduce);
        let plain = without_exchanges(&schedule.transfers);
        let messages: Vec<Message> = plain.iter().map(Message::from).collect();
        let problem = Problem::new(verified.topology().clone(), schedule.demand.clone());
        let exchanges = plain != schedule.transfers && may_exchange(&problem, &messages);
        let mut produced_by = schedule.produced_by.clone();
        produced_by.options.insert("planned_for_bytes".to_owned(), request.size_bytes.to_string());
        Self {
            messages: if exchanges { messages } else { schedule.transfers.iter().map(Message::from).collect() },
            rounds: if reduces && !exchanges { rounds(verified) } else { Vec::new() },
            exchanges,
            chunks_per_rank: request.chunks_per_rank,
            produced_by,
            origin: (request.size_bytes, schedule),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The schedule for `size` bytes, not verified; `None` if the order cannot be replayed there.
    pub(super) fn at(&self, task: &SizeTask, size: u64) -> Option<Schedule> {
        if self.origin.0 == size {
            return Some(self.origin.1.clone());
        }
        self.replayed(task, size)
    }

    /// The same, also for another topology with the same links.
    pub(super) fn replayed(&self, task: &SizeTask, size: u64) -> Option<Schedule> {
        let problem = task.problem(size, self.chunks_per_rank).ok()?;
        if self.origin.1.demand.chunks() != problem.demand.chunks() {
            return None;
        }
        let transfers = match self.rounds.is_empty() {
            true => played(&problem, &self.messages, self.exchanges),
            false => replay_rounds(&problem.demand, &problem.topology, &self.messages, &self.rounds),
        };
        let schedule = Schedule::new(&problem.topology, problem.demand, transfers.ok()?, "");
        Some(Schedule { produced_by: self.produced_by.clone(), ..schedule })
    }

    /// Its makespan for `size` bytes. Sums are verified, because with other times they may count a contribution twice.
    pub(super) fn makespan(&self, task: &SizeTask, size: u64) -> Option<Micros> {
        let schedule = self.at(task, size)?;
        let makespan = schedule.makespan();
        match self.rounds.is_empty() && !self.exchanges || self.origin.0 == size {
            true => Some(makespan),
            false => schedule::verify(schedule, &task.topology).is_ok().then_some(makespan),
        }
    }
}

/// The lengths of runs of transfers in which no transfer carries a value that another of the same run makes.
fn rounds(schedule: &VerifiedSchedule) -> Vec<usize> {
    let mut waits_for: Vec<Option<u32>> = vec![None; schedule.schedule().transfers.len()];
    for chunk in schedule.schedule().demand.chunk_ids() {
        let deliveries = schedule.order().deliveries(chunk);
        for delivery in deliveries {
            if let Origin::Delivery(id) = delivery.source() {
                let last = &mut waits_for[delivery.transfer as usize];
                *last = (*last).max(Some(deliveries[id.index()].transfer));
            }
        }
    }
    let (mut rounds, mut first) = (Vec::new(), 0);
    for (index, last) in waits_for.iter().enumerate() {
        if last.is_some_and(|last| (first..index).contains(&(last as usize))) {
            rounds.push(index - first);
            first = index;
        }
    }
    rounds.push(waits_for.len() - first);
    rounds
}
