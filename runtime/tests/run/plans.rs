//! Plans for the tests: every standard collective on any topology. Each chunk moves along breadth-first trees.
//!
//! The plans need not be fast. They must differ from each other, and have relays, fan-out and merges.

use program::{LowerOptions, VerifiedProgram, check, lower};
use schedule::{Chunk, ChunkId, Collective, Demand, Message, ReduceOp, Request, Schedule, TransferKind};
use schedule::{VerifiedSchedule, replay, replay_rounds, verify};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use topology::{LinkId, Rank, Topology};

/// The collectives that have a layout.
pub(crate) const COLLECTIVES: [Collective; 9] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

/// What a worker needs to make the same plan again. Its text is the plan's source.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlanSpec {
    pub(crate) topology: String,
    pub(crate) collective: Collective,
    pub(crate) chunks: u32,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) in_place: bool,
    pub(crate) size: u64,
}

impl PlanSpec {
    pub(crate) fn new(topology: &str, collective: Collective) -> Self {
        let op = collective.combines().then_some(ReduceOp::Sum);
        Self { topology: topology.to_owned(), collective, chunks: 1, op, in_place: false, size: 1 << 20 }
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        Arc::new(machine(&self.topology))
    }

    pub(crate) fn schedule(&self) -> VerifiedSchedule {
        let topology = self.topology();
        let mut request = Request::new(self.collective, topology.rank_count(), self.size).with_chunks(self.chunks);
        request.op = self.op;
        if self.collective.is_rooted() {
            request.root = Some(Rank(topology.rank_count() as u32 / 2));
        }
        let demand = Demand::new(request).unwrap();
        let messages = messages(&demand, &topology);
        let transfers = replay(&demand, &topology, &messages).unwrap();
        verify(Schedule::new(&topology, Arc::new(demand), transfers, "test"), &topology).unwrap()
    }

    pub(crate) fn program(&self) -> VerifiedProgram {
        let program =
            lower(&self.schedule(), &LowerOptions { in_place: self.in_place, ..LowerOptions::default() }).unwrap();
        check(program).unwrap_or_else(|violations| panic!("{self}: {violations:?}"))
    }
}

impl fmt::Display for PlanSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op.map_or("-", ReduceOp::as_str);
        let place = if self.in_place { "in" } else { "out" };
        write!(f, "{} {} {} {op} {place} {}", self.topology, self.collective, self.chunks, self.size)
    }
}

impl FromStr for PlanSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split(' ').collect();
        let &[topology, collective, chunks, op, place, size] = words.as_slice() else {
            return Err(format!("`{text}` is no plan"));
        };
        let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is no number"));
        Ok(Self {
            topology: topology.to_owned(),
            collective: collective.parse()?,
            chunks: number(chunks)? as u32,
            op: (op != "-").then(|| op.parse()).transpose()?,
            in_place: place == "in",
            size: number(size)?,
        })
    }
}

/// The topology of a SPEC.
pub(crate) fn machine(spec: &str) -> Topology {
    topology::resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// AllReduce by recursive doubling, for a power of two of ranks with a link between every two. In each round, two
/// partners exchange their partial sums, and each adds the partner's to its own.
pub(crate) fn doubling(ranks: u32, op: ReduceOp) -> VerifiedProgram {
    let round = |bit: u32| (0..ranks).map(|from| (from, from ^ (1 << bit))).collect();
    let rounds: Vec<_> = (0..ranks.ilog2()).map(round).collect();
    exchange(ranks, op, &rounds, &LowerOptions::default())
}

/// AllReduce in which every rank sends its input to every other rank, and adds up what it receives.
pub(crate) fn one_shot(ranks: u32, op: ReduceOp, options: &LowerOptions) -> VerifiedProgram {
    let to_others = |from| (1..ranks).map(move |distance| (from, (from + distance) % ranks));
    exchange(ranks, op, &[(0..ranks).flat_map(to_others).collect()], options)
}

/// AllReduce in rounds of messages `(from, to)`. The receiver adds the sender's partial sum to its own.
fn exchange(ranks: u32, op: ReduceOp, rounds: &[Vec<(u32, u32)>], options: &LowerOptions) -> VerifiedProgram {
    let topology = Arc::new(machine(&format!("clique:{ranks}")));
    let mut request = Request::new(Collective::AllReduce, ranks as usize, 1 << 20);
    request.op = Some(op);
    let demand = Demand::new(request).unwrap();
    let message = |&(from, to): &(u32, u32)| {
        let link = topology.between(Rank(from), Rank(to)).next().unwrap();
        Message { chunks: demand.chunk_ids().collect(), link, kind: TransferKind::Reduce }
    };
    let messages: Vec<_> = rounds.iter().flatten().map(message).collect();
    let lengths: Vec<usize> = rounds.iter().map(Vec::len).collect();
    let transfers = replay_rounds(&demand, &topology, &messages, &lengths).unwrap();
    let schedule = verify(Schedule::new(&topology, Arc::new(demand), transfers, "exchange"), &topology).unwrap();
    check(lower(&schedule, options).unwrap()).unwrap()
}

/// The messages of all chunks, one for each hop, ordered by round.
fn messages(demand: &Demand, topology: &Topology) -> Vec<Message> {
    let mut by_round: Vec<Vec<Message>> = Vec::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        for (round, message) in hops(id, chunk, topology).into_iter().enumerate() {
            by_round.resize_with(by_round.len().max(round + 1), Vec::new);
            by_round[round].push(message);
        }
    }
    by_round.into_iter().flatten().collect()
}

/// The messages of one chunk: a reduction tree into one rank if values combine, then a tree out of this rank.
fn hops(id: ChunkId, chunk: &Chunk, topology: &Topology) -> Vec<Message> {
    let root = if chunk.combine { chunk.wanted_by[0] } else { chunk.holders[0] };
    let message = |link: LinkId, kind| Message { chunks: [id].into_iter().collect(), link, kind };
    let mut hops = Vec::new();
    if chunk.combine {
        let reversed = topology.reversed();
        let mut tree = breadth_first(&reversed, root);
        tree.reverse();
        hops.extend(tree.into_iter().map(|link| message(link, TransferKind::Reduce)));
    }
    let out = breadth_first(topology, root);
    // Only links that lead to a rank that wants the chunk.
    let mut wanted: Vec<bool> = topology.ranks().map(|rank| chunk.wanted_by.has(rank)).collect();
    let mut used = Vec::new();
    for &link in out.iter().rev() {
        if wanted[topology.link(link).to.index()] {
            wanted[topology.link(link).from.index()] = true;
            used.push(link);
        }
    }
    used.reverse();
    hops.extend(used.into_iter().map(|link| message(link, TransferKind::Copy)));
    hops
}

/// The links of a breadth-first tree, from the root outwards. Trees with different roots begin with different links.
fn breadth_first(topology: &Topology, root: Rank) -> Vec<LinkId> {
    let mut reached = vec![false; topology.rank_count()];
    reached[root.index()] = true;
    let (mut queue, mut tree, mut next) = (vec![root], Vec::new(), 0);
    while let Some(&rank) = queue.get(next) {
        next += 1;
        let outgoing = topology.outgoing(rank);
        let start = root.index() % outgoing.len().max(1);
        for &link in outgoing[start..].iter().chain(&outgoing[..start]) {
            let to = topology.link(link).to;
            if !std::mem::replace(&mut reached[to.index()], true) {
                tree.push(link);
                queue.push(to);
            }
        }
    }
    tree
}
