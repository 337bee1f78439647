//! Schedules to lower, made by hand and at random, all through `replay` and `verify`.

use schedule::{
    Chunk, ChunkId, Collective, Demand, Message, RankSet, ReduceOp, Request, Schedule, Transfer, TransferKind,
    VerifiedSchedule, reduce_of_gather, replay, verify,
};
use std::sync::Arc;
use topology::{Bytes, Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Topology, TopologyParts};

/// A small generator with a fixed stream (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

pub fn topology(name: &str, ranks: usize, links: Vec<Link>) -> Arc<Topology> {
    let parts = TopologyParts { name: name.to_owned(), ranks, links, ..TopologyParts::default() };
    Arc::new(Topology::new(parts).unwrap())
}

pub fn link(from: usize, to: usize, alpha: f64, latency: Latency) -> Link {
    let (from, to) = (Rank::from_index(from), Rank::from_index(to));
    Link { from, to, alpha: Micros(alpha), beta: MicrosPerByte(0.001), latency, resources: [].into() }
}

pub fn ring(ranks: usize) -> Arc<Topology> {
    let links = (0..ranks).map(|rank| link(rank, (rank + 1) % ranks, 1.0, Latency::Occupies));
    topology("ring", ranks, links.collect())
}

pub fn clique(ranks: usize) -> Arc<Topology> {
    let pairs = (0..ranks).flat_map(|from| (0..ranks).filter(move |&to| to != from).map(move |to| (from, to)));
    topology("clique", ranks, pairs.map(|(from, to)| link(from, to, 1.0, Latency::Occupies)).collect())
}

/// Connected, with unequal links, some of them parallel.
pub fn random_topology(ranks: usize, random: &mut Random) -> Arc<Topology> {
    let mut links = Vec::new();
    let mut add = |from: usize, to: usize, random: &mut Random| {
        let latency = if random.below(2) == 0 { Latency::Occupies } else { Latency::Pipelines };
        links.push(link(from, to, [0.0, 0.3, 1.0, 7.0][random.below(4)], latency));
    };
    for rank in 0..ranks {
        add(rank, (rank + 1) % ranks, random);
        add((rank + 1) % ranks, rank, random);
    }
    for _ in 0..ranks {
        let (from, to) = (random.below(ranks), random.below(ranks));
        if from != to {
            add(from, to, random);
        }
    }
    topology("random", ranks, links)
}

pub fn demand(collective: Collective, ranks: usize, chunks: u32) -> Arc<Demand> {
    Arc::new(Demand::new(Request::new(collective, ranks, 1000).with_chunks(chunks)).unwrap())
}

pub fn schedule(topology: &Arc<Topology>, demand: &Arc<Demand>, messages: &[Message]) -> VerifiedSchedule {
    timed(topology, demand, replay(demand, topology, messages).unwrap())
}

pub fn timed(topology: &Arc<Topology>, demand: &Arc<Demand>, transfers: Vec<Transfer>) -> VerifiedSchedule {
    let schedule = Schedule::new(topology, demand.clone(), transfers, "test");
    verify(schedule, topology).unwrap_or_else(|rejection| panic!("{rejection}"))
}

/// Every chunk once around the ring.
pub fn ring_allgather(ranks: usize, chunks: u32) -> VerifiedSchedule {
    let (topology, demand) = (ring(ranks), demand(Collective::AllGather, ranks, chunks));
    schedule(&topology, &demand, &around(ranks, chunks, 0, TransferKind::Copy))
}

pub fn ring_reducescatter(ranks: usize, chunks: u32) -> VerifiedSchedule {
    let forward = ring(ranks).reversed();
    let gathers = demand(Collective::AllGather, ranks, chunks);
    // On the reversed ring, link r leads from rank r + 1 to rank r.
    let messages: Vec<Message> = around(ranks, chunks, 0, TransferKind::Copy)
        .into_iter()
        .map(|message| {
            let shifted = message.chunks.iter().map(|chunk| {
                let (member, part) = (chunk.0 / chunks, chunk.0 % chunks);
                let start = message.link.0;
                let distance = (start + ranks as u32 - member) % ranks as u32;
                ChunkId((start + 1 + distance) % ranks as u32 * chunks + part)
            });
            Message { chunks: shifted.collect(), ..message }
        })
        .collect();
    let gather = replay(&gathers, &forward, &messages).unwrap();
    let messages = reduce_of_gather(&gather, &gathers, ranks);
    schedule(&ring(ranks), &demand(Collective::ReduceScatter, ranks, chunks), &messages)
}

/// ReduceScatter, then AllGather, around the ring.
pub fn ring_allreduce(ranks: usize, chunks: u32) -> VerifiedSchedule {
    let mut messages = around(ranks, chunks, 0, TransferKind::Reduce);
    // After its turn, the sum of the block that started at rank r is at rank r − 1.
    messages.extend(around(ranks, chunks, ranks - 1, TransferKind::Copy));
    schedule(&ring(ranks), &demand(Collective::AllReduce, ranks, chunks), &messages)
}

/// Block b makes ranks − 1 hops from rank b + `shift` on.
fn around(ranks: usize, chunks: u32, shift: usize, kind: TransferKind) -> Vec<Message> {
    let hops = (0..ranks - 1).flat_map(|hop| (0..ranks).map(move |block| (block, (block + shift + hop) % ranks)));
    hops.map(|(block, from)| {
        let chunks = (0..chunks).map(|part| ChunkId(block as u32 * chunks + part)).collect();
        Message { chunks, link: LinkId::from_index(from), kind }
    })
    .collect()
}

/// Every rank sends every chunk directly to the ranks that want it, all at the same time.
pub fn direct(demand: &Arc<Demand>) -> VerifiedSchedule {
    let topology = clique(demand.request().ranks);
    let mut transfers: Vec<Transfer> = Vec::new();
    let mut free = vec![Micros::ZERO; topology.links().len()];
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let kind = if chunk.combine { TransferKind::Reduce } else { TransferKind::Copy };
        for &from in chunk.holders.iter() {
            for &to in chunk.wanted_by.iter().filter(|&&to| to != from) {
                let link = topology.between(from, to).next().unwrap();
                // All chunks of a pair at once, so that every value leaves before any value arrives.
                match transfers.iter_mut().find(|transfer| transfer.link == link) {
                    Some(transfer) => transfer.chunks.push(id),
                    None => transfers.push(Transfer {
                        chunks: [id].into_iter().collect(),
                        from,
                        to,
                        link,
                        kind,
                        start: Micros::ZERO,
                        end: Micros::ZERO,
                    }),
                }
            }
        }
    }
    for transfer in &mut transfers {
        let cost = topology.link(transfer.link);
        let bytes: Bytes = demand.message_bytes(&transfer.chunks);
        transfer.start = free[transfer.link.index()];
        transfer.end = transfer.start + cost.transfer_time(bytes);
        free[transfer.link.index()] = transfer.start + cost.occupancy(bytes);
    }
    timed(&topology, demand, transfers)
}

/// Every chunk down or up a random tree, the chunks interleaved at random.
pub fn random_trees(topology: &Arc<Topology>, demand: &Arc<Demand>, random: &mut Random) -> VerifiedSchedule {
    let mut routes: Vec<std::collections::VecDeque<Message>> =
        demand.chunk_ids().map(|id| route(topology, id, demand.chunk(id), random).into()).collect();
    let mut messages: Vec<Message> = Vec::new();
    while routes.iter().any(|route| !route.is_empty()) {
        // Neighbouring chunks often travel together, so that some messages have several chunks.
        let start = random.below(routes.len());
        for chunk in start..(start + 1 + random.below(3)).min(routes.len()) {
            let Some(next) = routes[chunk].pop_front() else { continue };
            match messages.last_mut() {
                Some(last)
                    if last.link == next.link && last.kind == next.kind && !last.chunks.contains(&next.chunks[0]) =>
                {
                    last.chunks.extend(next.chunks);
                }
                _ => messages.push(next),
            }
        }
    }
    schedule(topology, demand, &messages)
}

fn route(topology: &Topology, id: ChunkId, chunk: &Chunk, random: &mut Random) -> Vec<Message> {
    let message = |link, kind| Message { chunks: [id].into_iter().collect(), link, kind };
    if !chunk.combine {
        let tree = tree(topology, chunk.holders[0], &chunk.wanted_by, random);
        return tree.into_iter().map(|link| message(link, TransferKind::Copy)).collect();
    }
    let root = chunk.wanted_by[random.below(chunk.wanted_by.len())];
    let up = tree(&topology.reversed(), root, &chunk.holders, random);
    let down = tree(topology, root, &chunk.wanted_by, random);
    let up = up.into_iter().rev().map(|link| message(link, TransferKind::Reduce));
    up.chain(down.into_iter().map(|link| message(link, TransferKind::Copy))).collect()
}

/// The links of a random tree from `root` to all of `leaves`, parents first.
fn tree(topology: &Topology, root: Rank, leaves: &RankSet, random: &mut Random) -> Vec<LinkId> {
    let mut entered: Vec<Option<LinkId>> = vec![None; topology.rank_count()];
    let mut frontier: Vec<LinkId> = topology.outgoing(root).to_vec();
    let mut order = Vec::new();
    while !frontier.is_empty() {
        let link = frontier.swap_remove(random.below(frontier.len()));
        let to = topology.link(link).to;
        if to != root && entered[to.index()].is_none() {
            entered[to.index()] = Some(link);
            order.push(link);
            frontier.extend(topology.outgoing(to));
        }
    }
    let mut needed = vec![false; topology.rank_count()];
    for &leaf in leaves.iter() {
        let mut here = leaf;
        while here != root && !std::mem::replace(&mut needed[here.index()], true) {
            here = topology.link(entered[here.index()].unwrap()).from;
        }
    }
    order.retain(|&link| needed[topology.link(link).to.index()]);
    order
}

/// A demand of any standard collective over a random subset of the ranks.
pub fn random_demand(collective: Collective, ranks: usize, random: &mut Random) -> Arc<Demand> {
    let mut request = Request::new(collective, ranks, 1000).with_chunks(1 + random.below(3) as u32);
    let keep = random.draw();
    let members: RankSet = (0..ranks as u32).map(Rank).filter(|rank| keep >> rank.0 & 3 != 0).collect();
    if !members.is_empty() {
        request.members = members;
    }
    request.root = request.root.map(|_| request.members[random.below(request.members.len())]);
    request.op = request.op.map(|_| ReduceOp::Sum);
    Arc::new(Demand::new(request).unwrap())
}

/// A demand with listed chunks: an alltoallv or a custom one, over some of the ranks, with various sizes.
pub fn random_listed(ranks: usize, random: &mut Random) -> Arc<Demand> {
    let chunks = 1 + random.below(2) as u32;
    let request = |collective| Request::new(collective, ranks, 20).with_chunks(chunks);
    if random.below(2) == 0 {
        let mut request = request(Collective::AllToAllV);
        let keep = random.draw();
        request.members = (0..ranks as u32).map(Rank).filter(|rank| rank.0 < 2 || keep >> rank.0 & 1 == 1).collect();
        let sizes = [0, 1, 2, 4, 9];
        let row = |random: &mut Random| (0..request.members.len()).map(|_| sizes[random.below(5)]).collect();
        let matrix: Vec<Vec<u64>> = (0..request.members.len()).map(|_| row(random)).collect();
        return Arc::new(Demand::from_matrix(request, &matrix).unwrap());
    }
    let mut request = request(Collective::Custom);
    request.op = Some(ReduceOp::Sum);
    let some = |random: &mut Random| {
        let first = random.below(ranks);
        let keep = random.draw();
        (0..ranks).filter(|&rank| rank == first || keep >> rank & 3 == 0).map(Rank::from_index).collect()
    };
    let chunk = |random: &mut Random| Chunk {
        holders: some(random),
        wanted_by: some(random),
        combine: random.below(2) == 0,
        bytes: [None, Some(Bytes(0.0)), Some(Bytes(2.5)), Some(Bytes(8.0))][random.below(4)],
        release: topology::Micros::ZERO,
    };
    let chunks = (0..1 + random.below(6)).map(|_| chunk(random)).collect();
    Arc::new(Demand::from_chunks(request, chunks).unwrap())
}
