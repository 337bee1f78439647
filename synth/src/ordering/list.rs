//! List scheduling of given messages with dependencies, forwards or backwards in time.
//!
//! The principal function is [`listed`]. In reversed time, messages leave in the order opposite to their dependencies. The
//! times of such a schedule are the latest ones at which messages may leave, except that α of a pipelined link is on the
//! other side, so they serve only as urgencies.

use super::calendar::EventQueue;
use super::dependencies::{DependencyGraph, Precedences};
use super::scheduler::{ListPolicy, list_schedule};
use crate::problem::Deadline;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{FreeTimes, LinkId, Micros, ResourceId};

/// How often the deadline is checked, in messages.
const POLLED: u64 = 1 << 14;

/// The direction of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Time {
    Onwards,
    Back,
}

/// Messages (by position) in the order in which they leave, when each of them ends, and when the last one does.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) order: Vec<u32>,
    pub(super) ends: Vec<Micros>,
    pub(super) makespan: Micros,
}

/// What happens at an instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ListEvent {
    /// A message no longer waits for others.
    Released(u32),
    LinkFree(LinkId),
    ResourceFree(ResourceId),
}

/// One schedule; `urgencies[message]` says which of several messages goes first (the least); `None` if the time is up before.
pub(super) fn listed(
    graph: &DependencyGraph<'_>,
    urgencies: &[u32],
    time: Time,
    deadline: &Deadline,
) -> Option<Listed> {
    let (mut run, awake) = ListRun::new(graph, urgencies, time);
    list_schedule(&mut run, awake, deadline, POLLED).then_some(run.listed)
}

struct ListRun<'a> {
    graph: &'a DependencyGraph<'a>,
    waits: &'a Precedences,
    urgencies: &'a [u32],
    /// For each message, how many others it still waits for, and when the last of those before it allows it to begin.
    open: Vec<u32>,
    released: Vec<Micros>,
    /// For each link, the messages that could leave.
    waiting: Vec<BinaryHeap<Reverse<(u32, u32)>>>,
    free: FreeTimes,
    events: EventQueue<ListEvent>,
    listed: Listed,
}

impl<'a> ListRun<'a> {
    /// The state before the first message, and the links that something waits for.
    fn new(graph: &'a DependencyGraph<'a>, urgencies: &'a [u32], time: Time) -> (Self, Vec<LinkId>) {
        let (topology, count) = (&graph.problem.topology, graph.messages.len());
        let waits = if time == Time::Onwards { &graph.onwards } else { &graph.back };
        let mut run = Self {
            graph,
            waits,
            urgencies,
            open: waits.count.clone(),
            released: if time == Time::Onwards { graph.releases.clone() } else { vec![Micros::ZERO; count] },
            waiting: vec![BinaryHeap::new(); topology.links().len()],
            free: FreeTimes::new(topology),
            events: EventQueue::default(),
            listed: Listed {
                order: Vec::with_capacity(count),
                ends: vec![Micros::ZERO; count],
                makespan: Micros::ZERO,
            },
        };
        let mut awake = Vec::new();
        let first = (0..count as u32).filter(|&index| waits.count[index as usize] == 0);
        for index in first {
            match run.released[index as usize] {
                Micros::ZERO => run.wait(index, &mut awake),
                later => run.events.post(later, ListEvent::Released(index)),
            }
        }
        (run, awake)
    }

    /// Puts a message into the queue of its link.
    fn wait(&mut self, message: u32, awake: &mut Vec<LinkId>) {
        let link = self.graph.messages[message as usize].link;
        self.waiting[link.index()].push(Reverse((self.urgencies[message as usize], message)));
        awake.push(link);
    }
}

impl ListPolicy for ListRun<'_> {
    type Event = ListEvent;
    type Urgency = u32;

    fn next(&mut self, happened: &mut Vec<ListEvent>) -> Option<Micros> {
        self.events.next(happened)
    }

    fn happen(&mut self, event: ListEvent, awake: &mut Vec<LinkId>) {
        match event {
            ListEvent::Released(message) => self.wait(message, awake),
            ListEvent::LinkFree(link) => awake.push(link),
            ListEvent::ResourceFree(resource) => {
                let users = self.graph.problem.topology.users(resource);
                awake.extend(users.iter().filter(|link| !self.waiting[link.index()].is_empty()));
            }
        }
    }

    fn first(&self, link: LinkId) -> Option<u32> {
        self.waiting[link.index()].peek().map(|&Reverse((first, _))| first)
    }

    fn is_free(&self, link: LinkId, now: Micros) -> bool {
        self.free.earliest(&self.graph.problem.topology, link) <= now
    }

    fn send(&mut self, link: LinkId, _: Micros) {
        let Some(Reverse((_, message))) = self.waiting[link.index()].pop() else { return };
        let problem = self.graph.problem;
        let index = message as usize;
        let start = self.released[index].max(self.free.earliest(&problem.topology, link));
        self.free.occupy(
            &problem.topology,
            link,
            start,
            problem.demand.message_bytes(&self.graph.messages[index].chunks),
        );
        let end = start + self.graph.durations[index];
        self.listed.order.push(message);
        self.listed.ends[index] = end;
        self.listed.makespan = self.listed.makespan.max(end);
        let waits = self.waits;
        for (list, time) in [(waits.followers.of(index), end), (waits.changers.of(index), start)] {
            for &next in list {
                let next_index = next as usize;
                self.released[next_index] = self.released[next_index].max(time);
                self.open[next_index] -= 1;
                if self.open[next_index] == 0 {
                    self.events.post(self.released[next_index], ListEvent::Released(next));
                }
            }
        }
        self.events.post(self.free.link(link), ListEvent::LinkFree(link));
        for &resource in &problem.topology.link(link).resources {
            self.events.post(self.free.resource(resource), ListEvent::ResourceFree(resource));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;
    use crate::problem::by_hand::asked;
    use schedule::{ChunkId, Collective, Message, TransferKind};
    use topology::Rank;

    /// Chunks 2 and 1 of a Scatter on a line of 3 ranks: chunk 2 has two hops, chunk 1 one.
    fn scatter() -> (Problem, Vec<Message>) {
        let line = topology::resolve("line:3,alpha=1us,bandwidth=1GBps").expect("a known topology");
        let problem = asked(line, Collective::Scatter, 3000);
        let message = |chunk: u32, from: u32, to: u32| {
            let link = problem.topology.between(Rank(from), Rank(to)).next().expect("there is a link");
            Message { chunks: [ChunkId(chunk)].into_iter().collect(), link, kind: TransferKind::Copy }
        };
        let messages = vec![message(1, 0, 1), message(2, 0, 1), message(2, 1, 2)];
        (problem, messages)
    }

    #[test]
    fn the_most_urgent_goes_first_in_both_directions_of_time() {
        let (problem, messages) = scatter();
        let graph = DependencyGraph::new(&problem, &messages, false);
        let forever = Deadline::default();
        let onwards = |urgencies: &[u32]| listed(&graph, urgencies, Time::Onwards, &forever).expect("there is time");
        assert_eq!((onwards(&[0, 1, 2]).makespan, onwards(&[1, 0, 2]).makespan), (Micros(6.0), Micros(4.0)));
        // Back in time the first hop of chunk 2 waits for the second one, so chunk 1 takes its link before.
        let back = listed(&graph, &[1, 0, 2], Time::Back, &forever).expect("there is time");
        assert_eq!((back.order, back.ends), (vec![0, 2, 1], [2.0, 4.0, 2.0].map(Micros).to_vec()));
    }
}
