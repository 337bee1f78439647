//! List scheduling along fixed routes.
//!
//! The principal function is [`order`]. The chunk that still has the longest way to go is the most urgent (Hu's rule). A head
//! start, which a repair may choose, is added to that way. Where the sketch asks for it, the sender's own chunks leave a
//! machine before relayed ones. The own chunks wait from the start, so it is enough to take them first.

use super::calendar::{Calendar, Event};
use super::scheduler::{ListPolicy, list_schedule};
use crate::problem::constraints::owner;
use crate::problem::distance::Key;
use crate::problem::{Deadline, Problem};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, ChunkList, Message};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{Link, LinkId, Micros};

/// The rules of one list scheduling.
#[derive(Clone, Debug)]
pub(crate) struct Priorities {
    /// The most chunks per message.
    pub(crate) merge: usize,
    /// For each chunk, the time by which its remaining way is made to look longer.
    pub(crate) head_start: Vec<Micros>,
    /// The time of one chunk on the slowest link, which is the unit of head starts.
    pub(crate) slowest: Micros,
}

impl Priorities {
    /// Head starts so small that they only decide between chunks with equally far to go.
    pub(crate) fn new(problem: &Problem, merge: usize, random: &mut Pcg64Mcg) -> Self {
        let time = |link: &Link| link.transfer_time(problem.demand.chunk_bytes());
        let slowest = problem.topology.links().iter().map(time).fold(Micros::ZERO, Micros::max);
        let mut priorities = Self { merge, head_start: Vec::new(), slowest };
        priorities.head_start = problem.demand.chunk_ids().map(|_| priorities.draw(random) * 1e-3).collect();
        priorities
    }

    /// A random head start of up to two messages on the slowest link.
    pub(crate) fn draw(&self, random: &mut Pcg64Mcg) -> Micros {
        self.slowest * (f64::from(random.next_u32() % 1024) / 512.0)
    }
}

/// Messages in the order in which they are sent, and when the last of them arrives.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) messages: Vec<Message>,
    pub(crate) makespan: Micros,
    /// The index of the message that arrives last.
    pub(crate) last: usize,
}

/// A chunk that waits for a link; the greatest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct WaitingChunk {
    /// Whether it is the sender's own chunk; set only where the sketch wants own chunks first.
    own: bool,
    remaining: Key,
    chunk: ChunkId,
}

/// How often the deadline is checked, in messages: orders of ordinary size never check it.
const POLLED: u64 = 1 << 16;

/// An order of messages along `routes`; `None` if the deadline passes meanwhile.
pub(crate) fn order(
    problem: &Problem,
    routes: &[Vec<LinkId>],
    priorities: &Priorities,
    deadline: &Deadline,
) -> Option<Order> {
    let (mut queues, awake) = Queues::new(problem, routes, priorities);
    let is_done = list_schedule(&mut queues, awake, deadline, POLLED);
    let Queues { calendar, makespan, last, .. } = queues;
    is_done.then(|| Order { messages: calendar.into_messages(), makespan, last })
}

struct Queues<'a> {
    problem: &'a Problem,
    routes: &'a [Vec<LinkId>],
    priorities: &'a Priorities,
    /// For each chunk, how many links of its route it has passed.
    hop: Vec<u32>,
    waiting: Vec<BinaryHeap<WaitingChunk>>,
    calendar: Calendar<'a>,
    sent: usize,
    makespan: Micros,
    last: usize,
}

impl<'a> Queues<'a> {
    /// The state before the first message, and the links that something waits for.
    fn new(problem: &'a Problem, routes: &'a [Vec<LinkId>], priorities: &'a Priorities) -> (Self, Vec<LinkId>) {
        let topology = &*problem.topology;
        let mut queues = Self {
            problem,
            routes,
            priorities,
            hop: vec![0; routes.len()],
            waiting: vec![BinaryHeap::new(); topology.links().len()],
            calendar: Calendar::new(topology, &problem.demand),
            sent: 0,
            makespan: Micros::ZERO,
            last: 0,
        };
        let mut awake = Vec::new();
        problem.demand.chunk_ids().for_each(|chunk| queues.wait(chunk, &mut awake));
        (queues, awake)
    }

    /// Puts a chunk into the queue of the next link of its route, if there is one.
    fn wait(&mut self, chunk: ChunkId, awake: &mut Vec<LinkId>) {
        let ahead = &self.routes[chunk.index()][self.hop[chunk.index()] as usize..];
        let Some(&next) = ahead.first() else { return };
        let remaining: f64 = ahead.iter().map(|&link| self.duration(link, chunk).0).sum();
        let remaining = Key::new(remaining + self.priorities.head_start[chunk.index()].0);
        let own = self.own_first(next) && owner(&self.problem.demand, chunk) == Some(self.from(next));
        self.waiting[next.index()].push(WaitingChunk { own, remaining, chunk });
        awake.push(next);
    }

    /// The time from the start of a message of one chunk to its arrival.
    fn duration(&self, link: LinkId, chunk: ChunkId) -> Micros {
        self.problem.topology.link(link).transfer_time(self.problem.demand.bytes_of(chunk))
    }

    fn from(&self, link: LinkId) -> topology::Rank {
        self.problem.topology.link(link).from
    }

    fn own_first(&self, link: LinkId) -> bool {
        let Problem { topology, constraints, .. } = self.problem;
        constraints.own_chunks_first.is_some() && topology.crosses_machines(topology.link(link))
    }
}

impl ListPolicy for Queues<'_> {
    type Event = Event;
    type Urgency = Reverse<WaitingChunk>;

    fn next(&mut self, happened: &mut Vec<Event>) -> Option<Micros> {
        self.calendar.next(happened)
    }

    fn happen(&mut self, event: Event, awake: &mut Vec<LinkId>) {
        match event {
            Event::LinkFree(link) => awake.push(link),
            Event::ResourceFree(resource) => awake.extend_from_slice(self.problem.topology.users(resource)),
            Event::Arrived(message) => {
                for chunk in self.calendar.message(message).chunks.clone() {
                    self.hop[chunk.index()] += 1;
                    self.wait(chunk, awake);
                }
            }
        }
    }

    fn first(&self, link: LinkId) -> Option<Reverse<WaitingChunk>> {
        self.waiting[link.index()].peek().copied().map(Reverse)
    }

    fn is_free(&self, link: LinkId, now: Micros) -> bool {
        self.calendar.is_free(link, now)
    }

    fn send(&mut self, link: LinkId, now: Micros) {
        let merge = self.priorities.merge.min(self.waiting[link.index()].len());
        let chunks = (0..merge).filter_map(|_| self.waiting[link.index()].pop()).map(|waiting| waiting.chunk);
        let mut chunks: ChunkList = chunks.collect();
        chunks.sort_unstable();
        let end = self.calendar.send(now, link, chunks, &[]);
        if end > self.makespan {
            (self.makespan, self.last) = (end, self.sent);
        }
        self.sent += 1;
    }
}
