//! The buffers of every rank before and after a call, by the definition of the collective alone.

use super::schedules::Random;
use schedule::{ChunkId, Collective, Demand, Request};
use topology::Rank;

/// How two buffers overlap in place.
pub(super) enum Alias {
    InputInOutput(usize),
    OutputInInput(usize),
}

/// One call of a collective, by its definition.
pub(super) struct Call<'a> {
    pub(super) demand: &'a Demand,
    pub(super) request: &'a Request,
    pub(super) count: usize,
}

impl Call<'_> {
    /// The values of a listed chunk at one of its holders; where nothing is reduced, all holders have the same.
    fn listed(&self, id: ChunkId, holder: Rank) -> Vec<u64> {
        // The chunk starts after earlier chunks with the same holders and receivers.
        let chunk = |id: u32| self.demand.chunk(ChunkId(id));
        let ends = |id: u32| (&chunk(id).holders, &chunk(id).wanted_by);
        let first = (0..id.0).rev().take_while(|&before| ends(before) == ends(id.0)).last().unwrap_or(id.0);
        let bytes = |end: u32| (first..end).map(|id| self.demand.bytes_of(ChunkId(id)).0).sum::<f64>().round() as usize;
        let cut = |end: u32| bytes(end) * self.count / self.request.size_bytes as usize;
        let combine = self.demand.chunk(id).combine;
        let mut random = Random(if combine { 100 + u64::from(holder.0) } else { 99 } * 10_000 + u64::from(id.0));
        (0..cut(id.0 + 1) - cut(id.0)).map(|_| random.draw()).collect()
    }

    fn listed_input(&self, rank: Rank) -> Vec<u64> {
        let held = self.demand.chunk_ids().filter(|&id| self.demand.chunk(id).holders.has(rank));
        held.flat_map(|id| self.listed(id, rank)).collect()
    }

    fn listed_output(&self, rank: Rank) -> Vec<u64> {
        let wanted = self.demand.chunk_ids().filter(|&id| self.demand.chunk(id).wanted_by.has(rank));
        let value = |id| {
            let chunk = self.demand.chunk(id);
            let holders = if chunk.combine { &chunk.holders[..] } else { &chunk.holders[..1] };
            let values: Vec<_> = holders.iter().map(|&holder| self.listed(id, holder)).collect();
            let sum = |at: usize| values.iter().fold(0u64, |sum, value| sum.wrapping_add(value[at]));
            (0..values[0].len()).map(sum).collect::<Vec<_>>()
        };
        wanted.flat_map(value).collect()
    }

    fn member(&self, rank: Rank) -> Option<usize> {
        self.request.members.iter().position(|&member| member == rank)
    }

    fn is_root(&self, rank: Rank) -> bool {
        self.request.root == Some(rank)
    }

    pub(super) fn input(&self, rank: Rank) -> Vec<u64> {
        if self.request.collective.is_listed() {
            return self.listed_input(rank);
        }
        let length = match (self.member(rank), self.request.collective) {
            (None, _) => 0,
            (_, Collective::ReduceScatter | Collective::AllToAll) => self.request.members.len() * self.count,
            (_, Collective::Scatter) if self.is_root(rank) => self.request.members.len() * self.count,
            (_, Collective::Broadcast) if self.is_root(rank) => self.count,
            (_, Collective::Broadcast | Collective::Scatter) => 0,
            _ => self.count,
        };
        let mut random = Random(1000 + u64::from(rank.0));
        (0..length).map(|_| random.draw()).collect()
    }

    pub(super) fn output_length(&self, rank: Rank) -> usize {
        if self.request.collective.is_listed() {
            return self.listed_output(rank).len();
        }
        let members = self.request.members.len();
        match (self.member(rank), self.request.collective) {
            (None, _) => 0,
            (_, Collective::AllGather | Collective::AllToAll) => members * self.count,
            (_, Collective::Gather) if self.is_root(rank) => members * self.count,
            (_, Collective::Reduce) if self.is_root(rank) => self.count,
            (_, Collective::Gather | Collective::Reduce) => 0,
            _ => self.count,
        }
    }

    fn listed_alias(&self, rank: Rank) -> Option<Alias> {
        let ids = |has: &dyn Fn(ChunkId) -> bool| self.demand.chunk_ids().filter(|&id| has(id)).collect::<Vec<_>>();
        let held = ids(&|id| self.demand.chunk(id).holders.has(rank));
        let wanted = ids(&|id| self.demand.chunk(id).wanted_by.has(rank));
        let start = |small: &[ChunkId], large: &[ChunkId]| {
            let at = large.windows(small.len().max(1)).position(|run| run == small)?;
            Some(large[..at].iter().map(|&id| self.listed(id, rank).len()).sum())
        };
        if held.is_empty() || wanted.is_empty() {
            return None;
        }
        let within = start(&held, &wanted).map(Alias::InputInOutput);
        let around = || start(&wanted, &held).map(Alias::OutputInInput);
        within.or_else(around).or(Some(Alias::InputInOutput(0)))
    }

    pub(super) fn alias(&self, rank: Rank) -> Option<Alias> {
        if self.request.collective.is_listed() {
            return self.listed_alias(rank);
        }
        let own = self.member(rank)? * self.count;
        let root = self.is_root(rank);
        match self.request.collective {
            Collective::AllGather => Some(Alias::InputInOutput(own)),
            // With one member the blocks are equal, and the buffer goes by the name of the output.
            Collective::ReduceScatter if self.request.members.len() > 1 => Some(Alias::OutputInInput(own)),
            Collective::ReduceScatter => Some(Alias::InputInOutput(0)),
            Collective::Gather => root.then_some(Alias::InputInOutput(own)),
            Collective::Scatter if self.request.members.len() > 1 => root.then_some(Alias::OutputInInput(own)),
            Collective::Scatter | Collective::Broadcast | Collective::Reduce => root.then_some(Alias::InputInOutput(0)),
            _ => Some(Alias::InputInOutput(0)),
        }
    }

    pub(super) fn expected(&self, rank: Rank) -> Vec<u64> {
        if self.request.collective.is_listed() {
            return self.listed_output(rank);
        }
        let Some(own) = self.member(rank) else { return Vec::new() };
        if self.output_length(rank) == 0 {
            return Vec::new();
        }
        let inputs: Vec<Vec<u64>> = self.request.members.iter().map(|&member| self.input(member)).collect();
        let block = |member: usize, block: usize| inputs[member][block * self.count..(block + 1) * self.count].to_vec();
        let members = 0..inputs.len();
        let sum = |at: usize| -> Vec<u64> {
            let element = |index: usize| inputs.iter().fold(0u64, |sum, input| sum.wrapping_add(input[index]));
            (at * self.count..(at + 1) * self.count).map(element).collect()
        };
        let root = self.request.root.and_then(|root| self.member(root));
        match self.request.collective {
            Collective::AllGather | Collective::Gather => inputs.concat(),
            Collective::ReduceScatter => sum(own),
            Collective::AllReduce | Collective::Reduce => sum(0),
            Collective::AllToAll => members.flat_map(|from| block(from, own)).collect(),
            Collective::Broadcast => block(root.unwrap(), 0),
            Collective::Scatter => block(root.unwrap(), own),
            Collective::SendRecv => block((own + inputs.len() - 1) % inputs.len(), 0),
            Collective::AllToAllV | Collective::Custom => unreachable!("listed"),
        }
    }
}
