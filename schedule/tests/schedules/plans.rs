//! Good schedules to start from: small machines with unequal links, and plans made by hand-written generators.
//!
//! Routes are breadth-first trees, orders are random as far as causality allows, and neighbouring messages are
//! sometimes merged. Times come from `replay`; the verifiers judge whether they are right.

use schedule::{Collective, Demand, Message, Request, Schedule, TransferKind, reduce_of_gather, replay};
use std::sync::Arc;
use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

/// SplitMix64: a fixed stream per seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

pub(crate) fn link(from: usize, to: usize, alpha: f64, beta: f64, latency: Latency) -> Link {
    Link {
        from: Rank::from_index(from),
        to: Rank::from_index(to),
        alpha: Micros(alpha),
        beta: MicrosPerByte(beta),
        latency,
        resources: [].into(),
    }
}

pub(crate) fn machine(ranks: usize, links: Vec<Link>, resources: Vec<Resource>) -> Arc<Topology> {
    let name = "by hand".to_owned();
    Arc::new(
        Topology::new(TopologyParts { name, ranks, machines: Vec::new(), links, resources }).expect("made by hand"),
    )
}

/// Neighbours in both directions: links 2i from i to i+1, 2i+1 back.
pub(crate) fn ring(ranks: usize, latency: Latency) -> Arc<Topology> {
    let pairs = (0..ranks).flat_map(|i| [(i, (i + 1) % ranks), ((i + 1) % ranks, i)]);
    machine(ranks, pairs.map(|(from, to)| link(from, to, 1.0, 0.01, latency)).collect(), Vec::new())
}

/// One switch for all ranks: rank r sends through resource r and receives through resource ranks + r.
pub(crate) fn switch(ranks: usize, latency: Latency) -> Arc<Topology> {
    let pairs = (0..ranks).flat_map(|from| (0..ranks).filter(move |&to| to != from).map(move |to| (from, to)));
    let links = pairs.map(|(from, to)| {
        let resources = [ResourceId::from_index(from), ResourceId::from_index(ranks + to)].into();
        Link { resources, ..link(from, to, 1.4, 0.02, latency) }
    });
    let port = |r| Resource::new(format!("port{r}"), MicrosPerByte(0.02));
    machine(ranks, links.collect(), (0..2 * ranks).map(port).collect())
}

/// A connected random machine: a ring with chords, unequal costs, both kinds of latency, shared resources.
pub(crate) fn odd_machine(dice: &mut Dice) -> Arc<Topology> {
    let ranks = 2 + dice.below(6);
    let mut pairs: Vec<_> = (0..ranks).map(|i| (i, (i + 1) % ranks)).collect();
    for _ in 0..dice.below(2 * ranks) {
        let (from, to) = (dice.below(ranks), dice.below(ranks));
        pairs.extend((from != to).then_some((from, to)));
    }
    let shared = |r| Resource::new(format!("shared{r}"), MicrosPerByte(0.01 * (1 + r) as f64));
    let alpha = |dice: &mut Dice| Micros(0.25 * dice.below(3) as f64);
    let resources: Vec<_> = (0..dice.below(3)).map(|r| Resource { alpha: alpha(dice), ..shared(r) }).collect();
    let links = pairs.into_iter().map(|(from, to)| {
        let latency = if dice.one_in(2) { Latency::Occupies } else { Latency::Pipelines };
        let mut made = link(from, to, 0.5 * dice.below(4) as f64, 0.01 * (2 + dice.below(4)) as f64, latency);
        if !resources.is_empty() && dice.one_in(2) {
            let used = dice.below(resources.len());
            made.resources = [ResourceId::from_index(used)].into();
            made.alpha = made.alpha.max(resources[used].alpha);
        }
        made
    });
    let links = links.collect();
    machine(ranks, links, resources)
}

/// The links of a breadth-first tree from `root`, in the order they are found; neighbours in random order.
fn tree(topology: &Topology, root: Rank, dice: &mut Dice) -> Vec<LinkId> {
    let mut seen = vec![false; topology.rank_count()];
    seen[root.index()] = true;
    let (mut reached, mut links) = (vec![root], Vec::new());
    let mut next = 0;
    while let Some(&rank) = reached.get(next) {
        next += 1;
        let mut outgoing = topology.outgoing(rank).to_vec();
        dice.shuffle(&mut outgoing);
        for id in outgoing {
            let to = topology.link(id).to;
            if !std::mem::replace(&mut seen[to.index()], true) {
                reached.push(to);
                links.push(id);
            }
        }
    }
    links
}

/// The part of a tree that leads to one of `wanted`, in the same order.
fn pruned(topology: &Topology, tree: Vec<LinkId>, wanted: &[Rank]) -> Vec<LinkId> {
    let mut needed = vec![false; topology.rank_count()];
    wanted.iter().for_each(|rank| needed[rank.index()] = true);
    let mut kept = Vec::new();
    for &id in tree.iter().rev() {
        let link = topology.link(id);
        if needed[link.to.index()] {
            needed[link.from.index()] = true;
            kept.push(id);
        }
    }
    kept.reverse();
    kept
}

/// One tree per chunk of `demand`, interleaved at random; neighbouring messages on a link are sometimes merged.
fn spread(demand: &Demand, topology: &Topology, dice: &mut Dice) -> Vec<Message> {
    let mut routes: Vec<_> = demand
        .chunk_ids()
        .map(|id| {
            let chunk = demand.chunk(id);
            let route = pruned(topology, tree(topology, chunk.holders[0], dice), &chunk.wanted_by);
            (id, std::collections::VecDeque::from(route))
        })
        .collect();
    let mut messages: Vec<Message> = Vec::new();
    while !routes.is_empty() {
        // Often the link that was just used, so that messages can be merged.
        let last = messages.last().map(|message| message.link);
        let again = routes.iter().position(|(_, route)| route.front().copied() == last && last.is_some());
        let pick = again.filter(|_| dice.one_in(2)).unwrap_or_else(|| dice.below(routes.len()));
        let (id, route) = &mut routes[pick];
        match route.pop_front() {
            None => drop(routes.swap_remove(pick)),
            Some(link) => match messages.last_mut() {
                Some(last) if last.link == link && dice.one_in(2) => last.chunks.push(*id),
                _ => messages.push(Message { chunks: [*id].into_iter().collect(), link, kind: TransferKind::Copy }),
            },
        }
    }
    messages
}

/// The messages that sum along spreading trees of the reversed machine.
fn gather_sums(demand: &Demand, topology: &Topology, dice: &mut Dice) -> Vec<Message> {
    let mirrored = Request { op: None, ..demand.request().clone() };
    let chunks = demand.chunks().iter().enumerate().map(|(index, chunk)| {
        let root = chunk.wanted_by[index % chunk.wanted_by.len()];
        let holders = std::iter::once(root).collect();
        schedule::Chunk {
            holders,
            wanted_by: chunk.holders.clone(),
            combine: false,
            bytes: chunk.bytes,
            release: topology::Micros::ZERO,
        }
    });
    let request = Request { collective: Collective::Custom, root: None, ..mirrored };
    let forward = Demand::from_chunks(request, chunks.collect()).expect("same ranks");
    let reversed = topology.reversed();
    let gather = replay(&forward, &reversed, &spread(&forward, &reversed, dice)).expect("trees from the holders");
    reduce_of_gather(&gather, &forward, topology.rank_count())
}

/// A good schedule of `demand`.
pub(crate) fn plan(demand: Demand, topology: &Topology, dice: &mut Dice) -> Schedule {
    let messages = match demand.request().collective {
        Collective::ReduceScatter | Collective::Reduce => gather_sums(&demand, topology, dice),
        Collective::AllReduce => {
            let mut messages = gather_sums(&demand, topology, dice);
            messages.extend(spread_sums(&demand, topology, dice));
            messages
        }
        _ => spread(&demand, topology, dice),
    };
    let transfers = replay(&demand, topology, &messages).expect("trees from the holders");
    Schedule::new(topology, Arc::new(demand), transfers, "by hand")
}

/// After `gather_sums`: sends each chunk from the member that has its sum to all.
fn spread_sums(demand: &Demand, topology: &Topology, dice: &mut Dice) -> Vec<Message> {
    let request = Request { collective: Collective::Custom, op: None, root: None, ..demand.request().clone() };
    let chunks = demand.chunks().iter().enumerate().map(|(index, chunk)| {
        let root = chunk.wanted_by[index % chunk.wanted_by.len()];
        let wanted_by = chunk.wanted_by.clone();
        schedule::Chunk {
            holders: std::iter::once(root).collect(),
            wanted_by,
            combine: false,
            bytes: None,
            release: topology::Micros::ZERO,
        }
    });
    spread(&Demand::from_chunks(request, chunks.collect()).expect("same ranks"), topology, dice)
}

/// All the collectives whose chunks follow from the request.
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

/// A good schedule drawn at random whose chunks are released at different times.
pub(crate) fn any_started_plan(seed: u64) -> (Schedule, Arc<Topology>) {
    let (plan, topology) = any_plan(seed);
    let dice = &mut Dice(seed ^ 0x7374_6172);
    let starts: Vec<Micros> = (0..1 + dice.below(3)).map(|_| Micros(0.5 * dice.below(40) as f64)).collect();
    let chunks = plan.demand.chunks().iter().map(|chunk| {
        let bytes = Some(plan.demand.chunk_bytes());
        schedule::Chunk { release: starts[dice.below(starts.len())], bytes, ..chunk.clone() }
    });
    let request = Request { collective: Collective::Custom, root: None, ..plan.demand.request().clone() };
    let demand = Demand::listed(request, chunks.collect()).expect("the same chunks");
    let messages: Vec<Message> = plan.transfers.iter().map(Message::from).collect();
    let transfers = replay(&demand, &topology, &messages).expect("the same order");
    (Schedule::new(&topology, Arc::new(demand), transfers, "by hand"), topology)
}

/// A good schedule drawn at random: machine, collective, members, root, chunk count and routes.
pub(crate) fn any_plan(seed: u64) -> (Schedule, Arc<Topology>) {
    let dice = &mut Dice(seed);
    let topology = match dice.below(4) {
        0 => ring(2 + dice.below(6), Latency::Occupies),
        1 => switch(2 + dice.below(4), Latency::Pipelines),
        _ => odd_machine(dice),
    };
    let ranks = topology.rank_count();
    let collective = COLLECTIVES[dice.below(COLLECTIVES.len())];
    let mut request = Request::new(collective, ranks, 840).with_chunks(1 + dice.below(2) as u32);
    if dice.one_in(3) {
        let mut members: Vec<_> = topology.ranks().collect();
        dice.shuffle(&mut members);
        request.members = members.into_iter().take(2.max(ranks - 1)).collect();
    }
    request.root = request.root.map(|_| request.members[dice.below(request.members.len())]);
    let demand = Demand::new(request).expect("a small request");
    (plan(demand, &topology, dice), topology)
}
