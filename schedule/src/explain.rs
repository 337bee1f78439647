//! Why a plan takes as long as it does: the chain of messages in which each one waited for the one before.
//!
//! The principal type is [`CriticalPath`]. It is found backwards from the transfer that arrives last. A transfer waits
//! for its chunks, its link and its resources; the step before it in the chain is the one that was ready last. When a
//! program is played, the player records this itself ([`crate::program::play`]).

use crate::{CausalOrder, ChunkId, Origin, Schedule, TimedMessage, Timeline, VerifiedSchedule};
use std::fmt;
use topology::quantity::show_duration;
use topology::{Micros, ResourceId, Topology};

/// The transfers that explain the makespan, first to last. Transfers are named by their position.
#[derive(Clone, PartialEq, Debug)]
pub struct CriticalPath {
    /// The chain; empty where nothing moves.
    pub steps: Vec<CriticalStep>,
    /// Time on the path that is α.
    pub latency: Micros,
    /// Time on the path during which bytes move, or wait for other bytes on the same link or resource.
    pub bandwidth: Micros,
    /// Time on the path during which neither happens.
    pub idle: Micros,
}

/// One transfer of the path.
#[derive(Clone, PartialEq, Debug)]
pub struct CriticalStep {
    /// Position in the schedule.
    pub transfer: usize,
    /// The transfer itself.
    pub message: TimedMessage,
    /// What it waited for.
    pub waited_for: Wait,
    /// How long the transfer did not start although that was ready.
    pub idle: Micros,
}

/// What a transfer had to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing: the sender had its chunks from the beginning.
    Nothing,
    /// A chunk whose group starts only then.
    Start {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A chunk, which another transfer brought.
    Chunk {
        /// The chunk.
        chunk: ChunkId,
        /// The transfer that brought it.
        brought_by: usize,
    },
    /// The data that it sends, which another message brought (programs).
    Data {
        /// The message that brought it.
        brought_by: usize,
    },
    /// Its threadblock, or a step that must finish first, which another message kept busy (programs).
    Threadblock {
        /// The message that kept it busy.
        behind: usize,
    },
    /// Its link, which another transfer kept busy.
    Link {
        /// The transfer that kept it busy.
        behind: usize,
    },
    /// A resource of its link, which another transfer kept busy.
    Resource {
        /// The resource.
        resource: ResourceId,
        /// The transfer that kept it busy.
        behind: usize,
    },
}

impl Wait {
    /// The transfer waited for.
    pub fn transfer(self) -> Option<usize> {
        match self {
            Self::Nothing | Self::Start { .. } => None,
            Self::Chunk { brought_by: transfer, .. } | Self::Link { behind: transfer } => Some(transfer),
            Self::Data { brought_by: transfer } | Self::Threadblock { behind: transfer } => Some(transfer),
            Self::Resource { behind: transfer, .. } => Some(transfer),
        }
    }
}

impl fmt::Display for CriticalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimedMessage { cargo, from, to, link, start, end, .. } = &self.message;
        let (start, end) = (show_duration(*start), show_duration(*end));
        write!(f, "{start} – {end}  rank {from} → {to} over link {link}, {cargo}")?;
        match self.waited_for {
            Wait::Nothing => Ok(()),
            Wait::Start { chunk } => write!(f, "; waited for the start of chunk {chunk}"),
            Wait::Chunk { chunk, .. } => write!(f, "; waited for chunk {chunk}"),
            Wait::Data { .. } => write!(f, "; waited for what it sends"),
            Wait::Threadblock { .. } => write!(f, "; waited for its threadblock"),
            Wait::Link { .. } => write!(f, "; waited for the link"),
            Wait::Resource { resource, .. } => write!(f, "; waited for resource {resource}"),
        }?;
        if self.idle > Micros::ZERO { write!(f, ", then {} idle", show_duration(self.idle)) } else { Ok(()) }
    }
}

/// Finds the chain of waits that ends with the last arrival (the first listed, among equals).
pub fn critical_path(schedule: &VerifiedSchedule) -> CriticalPath {
    let timeline = Timeline::of(schedule);
    let history = UsageHistory::of(schedule, &timeline);
    chain(&timeline, |message| history.cause(message))
}

/// The chain of waits that ends with the last arrival.
pub fn chain(timeline: &Timeline, cause: impl Fn(usize) -> LastWait) -> CriticalPath {
    let mut path =
        CriticalPath { steps: Vec::new(), latency: Micros::ZERO, bandwidth: Micros::ZERO, idle: Micros::ZERO };
    let ends = timeline.messages.iter().enumerate();
    let mut next = ends.reduce(|last, t| if t.1.end > last.1.end { t } else { last }).map(|(index, _)| index);
    // Up to when the current message matters: its arrival, or the time at which it frees the link or resource that the
    // next message waits for.
    let mut until = timeline.makespan();
    while let Some(transfer) = next {
        let message = timeline.messages[transfer].clone();
        let LastWait { ready, wait } = cause(transfer);
        let idle = Micros(message.start.0 - ready.0).max(Micros::ZERO);
        let spent = until - message.start;
        let alpha = timeline.topology.link(message.link).alpha;
        let moving = spent.min(message.end - message.start - alpha).max(Micros::ZERO);
        path.latency += spent - moving;
        path.bandwidth += moving;
        path.idle += if let Wait::Start { .. } = wait { idle + ready } else { idle };
        until = ready.min(message.start);
        next = wait.transfer();
        path.steps.push(CriticalStep { transfer, message, waited_for: wait, idle });
    }
    path.steps.reverse();
    path
}

/// The last thing a transfer waited for.
#[derive(Clone, Copy, Debug)]
pub struct LastWait {
    /// When that is ready.
    pub ready: Micros,
    /// What the transfer waits for.
    pub wait: Wait,
}

/// The transfers that used each link and resource, in order of departure.
struct UsageHistory<'a> {
    schedule: &'a Schedule,
    order: &'a CausalOrder,
    timeline: &'a Timeline,
    /// For each transfer its place in order of departure.
    departed: Vec<u32>,
    topology: &'a Topology,
    on_link: Vec<Vec<u32>>,
    on_resource: Vec<Vec<u32>>,
}

impl<'a> UsageHistory<'a> {
    fn of(schedule: &'a VerifiedSchedule, timeline: &'a Timeline) -> Self {
        let topology = &*timeline.topology;
        let mut history = Self {
            schedule: schedule.schedule(),
            order: schedule.order(),
            timeline,
            departed: vec![0; timeline.messages.len()],
            topology,
            on_link: vec![Vec::new(); topology.links().len()],
            on_resource: vec![Vec::new(); topology.resources().len()],
        };
        for (place, &index) in (0..).zip(schedule.order().departures()) {
            let transfer = &schedule.schedule().transfers[index as usize];
            history.departed[index as usize] = place;
            history.on_link[transfer.link.index()].push(index);
            for resource in &topology.link(transfer.link).resources {
                history.on_resource[resource.index()].push(index);
            }
        }
        history
    }

    fn cause(&self, transfer: usize) -> LastWait {
        let message = &self.schedule.transfers[transfer];
        let mut cause = LastWait { ready: Micros::ZERO, wait: Wait::Nothing };
        let mut consider = |ready: Micros, wait: Wait| {
            if ready > cause.ready {
                cause = LastWait { ready, wait };
            }
        };
        // Chunks first: where a chunk and the link are ready at the same time, the chunk explains more.
        for &chunk in &message.chunks {
            match self.brought(chunk, transfer) {
                Some(brought_by) => {
                    let ready = self.schedule.transfers[brought_by].end;
                    consider(ready, Wait::Chunk { chunk, brought_by });
                }
                None => consider(self.schedule.demand.chunk(chunk).release, Wait::Start { chunk }),
            }
        }
        if let Some(behind) = self.before(&self.on_link[message.link.index()], transfer) {
            let ahead = &self.timeline.messages[behind];
            let (busy, _) = ahead.occupied(self.topology);
            consider(ahead.start + busy, Wait::Link { behind });
        }
        for &resource in &self.topology.link(message.link).resources {
            if let Some(behind) = self.before(&self.on_resource[resource.index()], transfer) {
                let ahead = &self.timeline.messages[behind];
                let (_, mut busy) = ahead.occupied(self.topology);
                let busy = busy.find_map(|(used, busy)| (used == resource).then_some(busy)).unwrap_or_default();
                consider(ahead.start + busy, Wait::Resource { resource, behind });
            }
        }
        cause
    }

    /// The transfer that brought the value of `chunk` that a transfer carries: the first that brought it or, for a
    /// combining chunk, the last of those whose contributions it counts. `None` where the sender had it from the
    /// beginning.
    fn brought(&self, chunk: ChunkId, transfer: usize) -> Option<usize> {
        let deliveries = self.order.deliveries(chunk);
        match deliveries.iter().find(|it| it.transfer as usize == transfer)?.source() {
            Origin::Start => None,
            Origin::Delivery(source) => Some(deliveries[source.index()].transfer as usize),
        }
    }

    /// The entry before `transfer` in a list that contains it, in order of departure.
    fn before(&self, list: &[u32], transfer: usize) -> Option<usize> {
        let place = list.partition_point(|&other| self.departed[other as usize] < self.departed[transfer]);
        Some(list[place.checked_sub(1)?] as usize)
    }
}
