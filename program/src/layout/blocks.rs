//! Standard collectives: buffers of equal blocks, each cut into the same parts.
//!
//! The principal type is [`Blocks`].

use super::{BufferMerge, CallerBuffers, LayoutError, MAX_SLOTS};
use crate::Buffer;
use schedule::{ChunkId, Collective, Request};
use topology::Rank;

/// How chunks lie in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Parts of a block.
    pub(super) parts: u32,
}

impl Blocks {
    pub(super) fn of(request: &Request) -> Result<Self, LayoutError> {
        let (members, per_rank) = (request.members.len() as u64, u64::from(request.chunks_per_rank));
        let (parts, blocks) = match request.collective {
            Collective::AllReduce => (members.saturating_mul(per_rank), 1),
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => (per_rank, 1),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (per_rank, members),
            Collective::Gather | Collective::Scatter => (per_rank, members),
            Collective::AllToAllV | Collective::Custom => (1, 1), // listed
        };
        let slots = parts.saturating_mul(blocks);
        if slots > MAX_SLOTS {
            return Err(LayoutError::TooManySlots { slots, limit: MAX_SLOTS });
        }
        Ok(Self { parts: parts as u32 })
    }

    /// How many slots a rank's buffers have, and in place, where one buffer lies in the other.
    pub(super) fn buffers(&self, request: &Request, rank: Rank, in_place: bool) -> CallerBuffers {
        let Some(member) = member(request, rank) else { return CallerBuffers { input: 0, output: 0, merged: None } };
        let members = request.members.len() as u32;
        let of_root = |blocks| if request.root == Some(rank) { blocks } else { 0 };
        // The numbers of blocks, and in place, the block of the larger buffer where the smaller one lies.
        let (input, output, at) = match request.collective {
            Collective::AllGather => (1, members, member),
            Collective::ReduceScatter => (members, 1, member),
            Collective::AllToAll => (members, members, 0),
            Collective::Broadcast => (of_root(1), 1, 0),
            Collective::Reduce => (1, of_root(1), 0),
            Collective::Gather => (1, of_root(members), member),
            Collective::Scatter => (of_root(members), 1, member),
            Collective::AllReduce | Collective::SendRecv => (1, 1, 0),
            Collective::AllToAllV | Collective::Custom => (0, 0, 0), // listed
        };
        let into = if input > output { Buffer::Input } else { Buffer::Output };
        let is_merged = in_place && input > 0 && output > 0;
        let merged = is_merged.then_some(BufferMerge { into, at: at * self.parts });
        CallerBuffers { input: input * self.parts, output: output * self.parts, merged }
    }

    /// The slot of a holder's input where a chunk is.
    pub(super) fn input(&self, request: &Request, chunk: ChunkId) -> u32 {
        let block = match request.collective {
            Collective::ReduceScatter | Collective::Scatter => chunk.0 / self.parts,
            Collective::AllToAll => self.pair(request, chunk).1,
            Collective::AllGather | Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 0,
            Collective::Gather | Collective::SendRecv | Collective::AllToAllV | Collective::Custom => 0,
        };
        block * self.parts + chunk.0 % self.parts
    }

    /// The slot of a receiver's output where a chunk must be.
    pub(super) fn output(&self, request: &Request, chunk: ChunkId) -> u32 {
        let block = match request.collective {
            Collective::AllGather | Collective::Gather => chunk.0 / self.parts,
            Collective::AllToAll => self.pair(request, chunk).0,
            Collective::ReduceScatter | Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 0,
            Collective::Scatter | Collective::SendRecv | Collective::AllToAllV | Collective::Custom => 0,
        };
        block * self.parts + chunk.0 % self.parts
    }

    /// The members (as positions) that an alltoall's chunk travels from and to.
    fn pair(&self, request: &Request, chunk: ChunkId) -> (u32, u32) {
        let others = request.members.len() as u32 - 1;
        let (from, to) = (chunk.0 / self.parts / others, chunk.0 / self.parts % others);
        (from, if to >= from { to + 1 } else { to })
    }
}

/// The position of a rank among the members.
pub(super) fn member(request: &Request, rank: Rank) -> Option<u32> {
    request.members.binary_search(&rank).ok().map(|position| position as u32)
}
