//! What a user asks for.
//!
//! The principal type is [`Request`].

use crate::{Collective, DemandError, MAX_SIZE, RankSet, ReduceOp};
use serde::{Deserialize, Serialize};
use topology::{Bytes, Micros, Rank};

/// What a user asks for. [`Demand::new`] checks it and derives the chunks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The operation.
    pub collective: Collective,
    /// How values combine; `None` where nothing is reduced.
    pub op: Option<ReduceOp>,
    /// The special member of rooted collectives, else `None`.
    pub root: Option<Rank>,
    /// How many ranks the topology has.
    pub ranks: usize,
    /// Who takes part.
    pub members: RankSet,
    /// The size in nccl-tests' sense (see `docs/formats.md`), in bytes.
    pub size_bytes: u64,
    /// C: chunks per rank (per ordered pair for alltoall).
    pub chunks_per_rank: u32,
}

/// One of several collectives that are planned together: [`crate::Demand::joint`] makes one demand of them.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupRequest {
    /// What it is.
    pub request: Request,
    /// The earliest time at which its contents are at their holders, in µs from the beginning of the plan.
    pub start: Micros,
}

impl From<Request> for GroupRequest {
    /// A collective whose contents are there from the beginning.
    fn from(request: Request) -> Self {
        Self { request, start: Micros::ZERO }
    }
}

impl Request {
    /// A request over all ranks, with root 0 and sum where the collective needs them.
    pub fn new(collective: Collective, ranks: usize, size_bytes: u64) -> Self {
        Self {
            collective,
            op: collective.combines().then_some(ReduceOp::Sum),
            root: collective.is_rooted().then_some(Rank(0)),
            ranks,
            members: RankSet::all(ranks.min(topology::MAX_RANKS)),
            size_bytes,
            chunks_per_rank: 1,
        }
    }

    /// The same request cut into `chunks` per rank.
    #[must_use]
    pub fn with_chunks(mut self, chunks: u32) -> Self {
        self.chunks_per_rank = chunks;
        self
    }

    /// Into how many equal parts (chunks) the size is cut.
    pub fn parts(&self) -> u64 {
        u64::from(self.chunks_per_rank) * self.collective.parts(self.members.len())
    }

    /// How many chunks a standard collective has; for a listed one, as if it had C chunks for each member. Nothing is
    /// allocated.
    pub fn chunk_count(&self) -> u64 {
        let k = self.members.len() as u64;
        let blocks = match self.collective {
            Collective::Broadcast | Collective::Reduce => 1,
            Collective::AllToAll => k * k.saturating_sub(1),
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllReduce
            | Collective::AllToAllV
            | Collective::Gather
            | Collective::Scatter
            | Collective::SendRecv
            | Collective::Custom => k,
        };
        blocks.saturating_mul(u64::from(self.chunks_per_rank))
    }

    /// The bytes of one chunk; fractional where the size does not divide.
    pub fn chunk_bytes(&self) -> Bytes {
        Bytes(self.size_bytes as f64 / self.parts().max(1) as f64)
    }

    /// Checks that ranks, members, root, operation, size and chunk count go together.
    pub(crate) fn check(&self) -> Result<(), DemandError> {
        let Self { collective, op, root, ranks, members, size_bytes, chunks_per_rank } = self;
        if *ranks > topology::MAX_RANKS {
            return Err(DemandError::TooManyRanks { ranks: *ranks, limit: topology::MAX_RANKS });
        }
        if let Some(&rank) = members.iter().find(|rank| rank.index() >= *ranks) {
            return Err(DemandError::UnknownRank { rank, ranks: *ranks });
        }
        if members.is_empty() {
            return Err(DemandError::NoMembers);
        }
        match (collective.is_rooted(), root) {
            (true, None) => return Err(DemandError::Root { collective: *collective, needed: true }),
            (false, Some(_)) => return Err(DemandError::Root { collective: *collective, needed: false }),
            (true, Some(root)) if !members.has(*root) => {
                return Err(DemandError::RootNotAMember { root: *root, members: members.clone() });
            }
            _ => {}
        }
        if !collective.reduces_as_listed() && collective.combines() != op.is_some() {
            return Err(DemandError::Op { collective: *collective, needed: collective.combines() });
        }
        if *size_bytes > MAX_SIZE {
            return Err(DemandError::TooLarge { size_bytes: *size_bytes, limit: MAX_SIZE });
        }
        if *chunks_per_rank == 0 {
            return Err(DemandError::NoChunks);
        }
        Ok(())
    }
}
