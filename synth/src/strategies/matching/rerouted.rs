//! Ruin and recreate for chunks with one destination.
//!
//! The principal function is [`improve`]. A few chunks are removed from the schedule; half of the time they are
//! chosen from those that share a link or resource with the last arrival. They are routed again under the remaining
//! loads, with some noise, and get a new random priority. Then everything is list-scheduled again, and kept unless it is slower.
//! Equally good schedules are kept too, because they can lead to better ones.

use super::instance::Instance;
use super::routed::Routing;
use crate::ordering::queues::{Order, Priorities, order};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, Message};
use topology::{LinkId, Micros};

/// The most chunks that are taken off at once.
const REMOVED: u32 = 3;

/// The effort of the repairs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RepairEffort {
    pub(super) steps: u32,
    /// A makespan that is good enough.
    pub(super) goal: Micros,
}

/// Messages along `routing` or along better routes; `None` if the deadline passes before there are any.
pub(super) fn improve(
    mut routing: Routing<'_>,
    mut priorities: Priorities,
    effort: RepairEffort,
    random: &mut Pcg64Mcg,
) -> Option<Vec<Message>> {
    let instance = routing.instance();
    let mut best = order(instance.problem, routing.routes(), &priorities, &instance.deadline)?;
    for _ in 0..effort.steps {
        if best.makespan <= effort.goal || instance.deadline.has_passed() {
            break;
        }
        let count = 1 + random.next_u32() % REMOVED;
        let mut removed: Vec<ChunkId> = (0..count).filter_map(|_| choose(instance, &best, random)).collect();
        removed.sort_unstable();
        removed.dedup();
        let head_starts: Vec<Micros> = removed.iter().map(|id| priorities.head_start[id.index()]).collect();
        let routes: Vec<Vec<LinkId>> = removed.iter().map(|&id| routing.replace(id, Vec::new())).collect();
        for &id in &removed {
            routing.relieve(id, f64::from(random.next_u32() % 4), random);
            priorities.head_start[id.index()] = priorities.draw(random);
        }
        let repaired = order(instance.problem, routing.routes(), &priorities, &instance.deadline);
        match repaired {
            Some(repaired) if repaired.makespan <= best.makespan => {
                best = repaired;
                continue;
            }
            Some(_) => {}
            None => break,
        }
        for ((&id, route), start) in removed.iter().zip(routes).zip(head_starts) {
            routing.replace(id, route);
            priorities.head_start[id.index()] = start;
        }
    }
    Some(best.messages)
}

/// A chunk that shares a link or a resource with the last arrival, or any chunk that moves.
fn choose(instance: &Instance<'_>, order: &Order, random: &mut Pcg64Mcg) -> Option<ChunkId> {
    let last = instance.topology.link(order.messages.get(order.last)?.link);
    let in_its_way = |message: &&Message| {
        let link = instance.topology.link(message.link);
        std::ptr::eq(link, last) || link.resources.iter().any(|resource| last.resources.contains(resource))
    };
    let candidates: Vec<&Message> = match random.next_u32() % 2 {
        0 => order.messages.iter().filter(in_its_way).collect(),
        _ => order.messages.iter().collect(),
    };
    let message = candidates[random.next_u32() as usize % candidates.len()];
    Some(message.chunks[random.next_u32() as usize % message.chunks.len()])
}
