//! Messages with their times: the input of simulations, explanations and exports.
//!
//! The principal type is [`Timeline`]. A schedule states its times; a program is played to get them. All pictures and
//! tables are made from this one list.

use crate::{ChunkList, Schedule, Transfer, TransferKind, Usage, VerifiedCompressed, VerifiedSchedule};
use std::fmt;
use std::sync::Arc;
use topology::{Bytes, LinkId, Micros, Rank, ResourceId, Topology};

/// A message over a link, from its departure to its arrival.
#[derive(Clone, PartialEq, Debug)]
pub struct TimedMessage {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Over which link.
    pub link: LinkId,
    /// When it leaves.
    pub start: Micros,
    /// When it has arrived.
    pub end: Micros,
    /// How much it carries.
    pub bytes: Bytes,
    /// Whether the receiver stores it or adds it.
    pub kind: TransferKind,
    /// What it carries.
    pub cargo: Cargo,
}

/// What a message carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cargo {
    /// Chunks of a schedule.
    Chunks(ChunkList),
    /// A place in a buffer of the sender (programs), as people read it, and its index.
    Place(Box<str>, u32),
}

impl Cargo {
    /// A number that distinguishes cargoes; equal chunks have equal colours.
    pub fn colour(&self) -> u32 {
        match self {
            Self::Chunks(chunks) => chunks.first().map_or(0, |chunk| chunk.0),
            Self::Place(_, index) => *index,
        }
    }
}

impl fmt::Display for Cargo {
    /// `chunk 3`, `chunks 3 4 5`, `9 chunks`, `output[4..6]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(text, _) => f.write_str(text),
            Self::Chunks(chunks) => match chunks.as_slice() {
                [chunk] => write!(f, "chunk {chunk}"),
                few if few.len() <= 4 => {
                    f.write_str("chunks")?;
                    few.iter().try_for_each(|chunk| write!(f, " {chunk}"))
                }
                many => write!(f, "{} chunks", many.len()),
            },
        }
    }
}

/// All messages of a collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    /// The name of the collective, for people: `allgather`.
    pub title: String,
    /// The size of the collective in bytes.
    pub size_bytes: u64,
    /// A proven lower limit of every makespan.
    pub bound: Option<Micros>,
    /// The machine on which it runs.
    pub topology: Arc<Topology>,
    /// In order of departure.
    pub messages: Vec<TimedMessage>,
}

impl Timeline {
    /// The times that a schedule states.
    pub fn of(schedule: &VerifiedSchedule) -> Self {
        Self::stated(schedule.schedule(), schedule.topology())
    }

    /// The times of a compressed schedule's base, which are those of all images.
    pub fn of_base(compressed: &VerifiedCompressed) -> Self {
        Self::stated(compressed.base(), compressed.topology())
    }

    fn stated(schedule: &Schedule, topology: &Arc<Topology>) -> Self {
        let request = schedule.demand.request();
        Self {
            title: request.collective.to_string(),
            size_bytes: request.size_bytes,
            bound: schedule.bound.as_ref().map(|bound| bound.value),
            topology: topology.clone(),
            messages: schedule.transfers.iter().map(|transfer| timed(schedule, transfer)).collect(),
        }
    }

    /// When the last message has arrived.
    pub fn makespan(&self) -> Micros {
        self.messages.iter().map(|message| message.end).fold(Micros::ZERO, Micros::max)
    }

    /// The use of every link and every resource.
    pub fn usage(&self) -> (Vec<Usage>, Vec<Usage>) {
        let topology = &self.topology;
        let mut links = vec![Usage::default(); topology.links().len()];
        let mut resources = vec![Usage::default(); topology.resources().len()];
        for message in &self.messages {
            let (on_link, on_resources) = message.occupied(topology);
            links[message.link.index()].add(on_link, message.bytes);
            on_resources.for_each(|(resource, busy)| resources[resource.index()].add(busy, message.bytes));
        }
        let makespan = self.makespan();
        for usage in links.iter_mut().chain(&mut resources).filter(|_| makespan > Micros::ZERO) {
            usage.utilisation = usage.busy / makespan;
        }
        (links, resources)
    }
}

/// A transfer with its bytes.
fn timed(schedule: &Schedule, transfer: &Transfer) -> TimedMessage {
    let Transfer { from, to, link, start, end, kind, .. } = *transfer;
    let bytes = schedule.demand.message_bytes(&transfer.chunks);
    TimedMessage { from, to, link, start, end, bytes, kind, cargo: Cargo::Chunks(transfer.chunks.clone()) }
}

impl TimedMessage {
    /// The link of a message and the link's resources, and how long each is busy from the message's start.
    pub fn occupied<'a>(
        &self,
        topology: &'a Topology,
    ) -> (Micros, impl Iterator<Item = (ResourceId, Micros)> + use<'a>) {
        let (link, bytes) = (topology.link(self.link), self.bytes);
        let resources = link.resources.iter().map(move |&id| (id, topology.resource(id).occupancy(link, bytes)));
        (link.occupancy(bytes), resources)
    }
}
