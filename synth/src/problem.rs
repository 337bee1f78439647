//! What a strategy is asked to solve: a topology, a demand, and what a sketch permits.
//!
//! The principal type is [`Problem`]. [`Constraints`] is a sketch after resolution: plain tables over link and
//! chunk ids, so that no strategy ever parses or interprets a sketch.

use schedule::{ChunkId, Demand, RankSet};
use std::sync::Arc;
use topology::{LinkId, Rank, Topology};

/// A topology, a demand on it, and the freedom left.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The machine.
    pub topology: Arc<Topology>,
    /// What must move.
    pub demand: Arc<Demand>,
    /// What the sketch permits; [`Constraints::none`] without a sketch.
    pub constraints: Arc<Constraints>,
}

impl Problem {
    /// A problem without a sketch.
    pub fn new(topology: Arc<Topology>, demand: Arc<Demand>) -> Self {
        Self { topology, demand, constraints: Arc::new(Constraints::none()) }
    }

    /// Whether a chunk may travel over a link.
    pub fn allows(&self, chunk: ChunkId, link: LinkId) -> bool {
        self.constraints.hindrance(&self.demand, chunk, link).is_none()
    }

    /// Whether a link may be used at all.
    pub fn allows_link(&self, link: LinkId) -> bool {
        self.constraints.allows_link(link)
    }
}

/// Why a chunk may not use a link, with the line of the sketch that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hindrance {
    /// The link is forbidden to everybody.
    ForbiddenLink {
        /// Line of the sketch file, from 1.
        line: u32,
    },
    /// Only chunks of other owners may use the link (a relay assignment).
    NotItsSender {
        /// Line of the sketch file, from 1.
        line: u32,
    },
    /// Every path crosses between machines more often than is permitted.
    TooManyMachineHops {
        /// Line of the sketch file, from 1.
        line: u32,
    },
}

impl Hindrance {
    /// Line of the sketch file, from 1.
    pub fn line(self) -> u32 {
        match self {
            Self::ForbiddenLink { line } | Self::NotItsSender { line } | Self::TooManyMachineHops { line } => line,
        }
    }
}

/// A renumbering of ranks and links that leaves the topology as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Automorphism {
    /// `ranks[r]` is the image of rank r.
    pub ranks: Vec<Rank>,
    /// `links[l]` is the image of link l.
    pub links: Vec<LinkId>,
}

/// A resolved sketch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Constraints {
    /// For each link, the sketch line that forbids it; empty when nothing is forbidden.
    pub forbidden: Vec<Option<u32>>,
    /// For each link, the only owners whose chunks may use it, and the line that says so; empty when unused.
    ///
    /// The owner of a chunk is its only holder, or, for a combining chunk, the only rank that wants it.
    pub owners: Vec<Option<(RankSet, u32)>>,
    /// The most links a chunk may cross between machines, and the line that says so.
    pub max_machine_hops: Option<(u32, u32)>,
    /// Symmetries that the schedule should have; a search may use them to merge variables.
    pub symmetry: Vec<Automorphism>,
    /// On every link between machines, the sender's own chunks leave before relayed ones (line of the sketch).
    pub own_chunks_first: Option<u32>,
}

impl Constraints {
    /// Everything is allowed.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether a link may be used at all.
    pub fn allows_link(&self, link: LinkId) -> bool {
        self.forbidden.get(link.index()).is_none_or(Option::is_none)
    }

    /// Why `chunk` may not use `link`; `None` if it may.
    pub fn hindrance(&self, demand: &Demand, chunk: ChunkId, link: LinkId) -> Option<Hindrance> {
        if let Some(&Some(line)) = self.forbidden.get(link.index()) {
            return Some(Hindrance::ForbiddenLink { line });
        }
        let (owners, line) = self.owners.get(link.index())?.as_ref()?;
        let owner = owner(demand, chunk)?;
        (!owners.has(owner)).then_some(Hindrance::NotItsSender { line: *line })
    }
}

/// The rank a chunk belongs to, where there is exactly one.
pub(crate) fn owner(demand: &Demand, chunk: ChunkId) -> Option<Rank> {
    let chunk = demand.chunk(chunk);
    let candidates = if chunk.combine { &chunk.wanted_by } else { &chunk.holders };
    match candidates[..] {
        [owner] => Some(owner),
        _ => None,
    }
}
