//! The chunks that must cross into a set of ranks, in classes, and the servers that carry them.
//!
//! The principal type is [`SetCrossing`].

use super::batches::{CountSpace, Server};
use super::distances::Distances;
use super::relay::relayed;
use crate::bounds::Certificate;
use crate::bounds::degree::by_resource;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, RankSet};
use std::collections::BTreeMap;
use std::rc::Rc;
use topology::{Bytes, Latency, Link, LinkId, Rank, ResourceId};

/// With more classes, nothing is tried.
const MOST_CLASSES: usize = 64;
/// The relative difference at which a search for the value ends.
const CLOSE: f64 = 1e-12;

/// Chunks that need not be told apart.
pub(super) struct ChunkClass {
    pub(super) chunks: Vec<ChunkId>,
    pub(super) bytes: Bytes,
    /// The holders; those of some of its chunks where they differ.
    pub(super) holders: RankSet,
    /// For each server, the least time to its senders.
    pub(super) heads: Vec<f64>,
    /// For each server, the least time from its receivers to where the chunk goes.
    pub(super) tails: Vec<f64>,
}

impl ChunkClass {
    pub(super) fn count(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// By how much the bound may become weaker where two classes become one.
    fn difference(&self, other: &Self) -> f64 {
        let apart = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).filter(|(a, b)| a != b).map(|(a, b)| (a - b).abs().min(1e12)).sum()
        };
        let bytes = if self.bytes == other.bytes { 0.0 } else { 1e15 };
        let count = self.chunks.len().min(other.chunks.len()) as f64;
        bytes + count * (apart(&self.heads, &other.heads) + apart(&self.tails, &other.tails))
    }

    /// Makes one class of two.
    fn absorb(&mut self, other: Self) {
        self.chunks.extend(other.chunks);
        self.bytes = Bytes(self.bytes.0.min(other.bytes.0));
        for (mine, others) in [(&mut self.heads, other.heads), (&mut self.tails, other.tails)] {
            mine.iter_mut().zip(others).for_each(|(mine, other)| *mine = mine.min(other));
        }
    }
}

/// A set of ranks, and a rank of it that the chunks go to; `None` where each chunk has one of its own.
struct CrossingGoal<'a> {
    inside: &'a [bool],
    target: Option<Rank>,
}

/// What must cross into a set of ranks.
pub(super) struct SetCrossing {
    ranks: Vec<Rank>,
    target: Option<Rank>,
    classes: Vec<Vec<ChunkId>>,
    gathered: bool,
    in_parts: bool,
    /// What may cross, and over which servers. One case is what happens.
    cases: Vec<(Rc<CountSpace>, Vec<Server>)>,
}

impl SetCrossing {
    /// For each rank of a set, what must cross into the set for it; where every chunk is for one rank, all of it at once.
    pub(super) fn of_set(inside: &[bool], most_pairs: f64, distances: &mut Distances<'_>) -> Vec<Self> {
        let demand = &distances.problem.demand;
        let is_inside = |rank: &&Rank| inside[rank.index()];
        let crosses = |holders: &RankSet| !holders.iter().any(|rank| inside[rank.index()]);
        let mut crossing = demand.chunks().iter().filter(|chunk| crosses(&chunk.holders));
        let targets: Vec<Option<Rank>> = match crossing.all(|it| it.wanted_by.iter().filter(is_inside).count() <= 1) {
            true => vec![None],
            false => distances.problem.topology.ranks().filter(|rank| inside[rank.index()]).map(Some).collect(),
        };
        targets
            .into_iter()
            .filter_map(|target| Self::new(&CrossingGoal { inside, target }, most_pairs, distances))
            .collect()
    }

    /// `None` where nothing must cross, or too much.
    fn new(goal: &CrossingGoal<'_>, most_pairs: f64, distances: &mut Distances<'_>) -> Option<Self> {
        let problem = distances.problem;
        let outside: Rc<[bool]> = goal.inside.iter().map(|inside| !inside).collect();
        let across: Vec<ServedLinks> = ServedLinks::into(problem, &outside, goal.inside);
        let mut classes = classes(goal, &outside, &across, distances);
        if classes.is_empty() || distances.left <= 0.0 {
            return None;
        }
        let pairs =
            |classes: &[ChunkClass]| CountSpace::pairs(&classes.iter().map(ChunkClass::count).collect::<Vec<_>>());
        let gathered = pairs(&classes) <= most_pairs;
        while pairs(&classes) > most_pairs && classes.len() > 1 {
            distances.left -= (classes.len() * classes.len() * across.len()) as f64;
            put_together(&mut classes);
        }
        if pairs(&classes) > most_pairs {
            return None;
        }
        let space = CountSpace::new(classes.iter().map(ChunkClass::count).collect());
        distances.left -= space.work() * across.len() as f64;
        let mut servers: Vec<Server> =
            across.iter().enumerate().map(|(at, links)| links.server(problem, &space, &classes, at)).collect();
        if gathered {
            let senders: Vec<Option<Rank>> = across.iter().map(|links| links.only_sender(problem)).collect();
            servers = gathered_servers(servers, &senders, (&space, &classes), &outside, distances);
        }
        let ranks = problem.topology.ranks().filter(|rank| goal.inside[rank.index()]).collect();
        let classes = classes.into_iter().map(|class| class.chunks).collect();
        Some(Self {
            ranks,
            target: goal.target,
            classes,
            gathered,
            in_parts: false,
            cases: vec![(Rc::new(space), servers)],
        })
    }

    /// What must cross for sums that several ranks want.
    pub(super) fn of_sums(
        ranks: Vec<Rank>,
        target: Rank,
        chunks: Vec<ChunkId>,
        cases: Vec<(Rc<CountSpace>, Vec<Server>)>,
    ) -> Self {
        Self { ranks, target: Some(target), classes: vec![chunks], gathered: true, in_parts: true, cases }
    }

    /// A time before which no schedule ends, if it is later than `least`: the latest one, if there is time to find it. Takes what it
    /// does off `work`.
    pub(super) fn value_above(&self, least: f64, work: &mut f64, deadline: &Deadline) -> Option<f64> {
        let each: f64 = self.cases.iter().map(|(space, servers)| space.work() * servers.len() as f64).sum();
        let fits = |end: f64, work: &mut f64| {
            *work -= each;
            self.cases.iter().any(|(space, servers)| space.fits(servers, end * (1.0 + CLOSE)))
        };
        // Where nothing is late enough, chunks cannot cross at all, which is reported elsewhere.
        if fits(least, work) || !fits(f64::MAX, work) {
            return None;
        }
        let (mut early, mut late) = (least, least.max(1e-3) * 2.0);
        let mut is_found = false;
        while !(is_found && late - early <= CLOSE * late || *work <= 0.0 || deadline.has_passed()) {
            let middle = if is_found { 0.5 * (early + late) } else { late };
            match (fits(middle, work), is_found) {
                (true, _) => (late, is_found) = (middle, true),
                (false, true) => early = middle,
                (false, false) => (early, late) = (middle, middle * 2.0),
            }
        }
        (early > least).then_some(early)
    }

    pub(super) fn certificate(self, backwards: bool) -> Certificate {
        let Self { ranks, target, classes, gathered, in_parts, .. } = self;
        Certificate::Crossing { ranks, target, classes, gathered, in_parts, backwards }
    }
}

/// The chunks that must cross, those with equal holders, sizes and ends in one class; none if these are too many classes.
fn classes(
    goal: &CrossingGoal<'_>,
    outside: &Rc<[bool]>,
    across: &[ServedLinks],
    distances: &mut Distances<'_>,
) -> Vec<ChunkClass> {
    let problem = distances.problem;
    let is_inside = |rank: &&Rank| goal.inside[rank.index()];
    let mut alike: BTreeMap<(&RankSet, u64, Rank), Vec<ChunkId>> = BTreeMap::new();
    for (id, chunk) in problem.demand.chunk_ids().zip(problem.demand.chunks()) {
        let end = match goal.target {
            Some(target) => chunk.wanted_by.has(target).then_some(target),
            None => chunk.wanted_by.iter().find(is_inside).copied(),
        };
        let crosses = !chunk.holders.iter().any(|rank| goal.inside[rank.index()]);
        if let Some(end) = end.filter(|_| crosses) {
            alike.entry((&chunk.holders, problem.demand.bytes_of(id).0.to_bits(), end)).or_default().push(id);
        }
    }
    if alike.len() > MOST_CLASSES {
        return Vec::new();
    }
    let class = |((holders, bytes, end), chunks): ((&RankSet, u64, Rank), Vec<ChunkId>)| {
        let bytes = Bytes(f64::from_bits(bytes));
        let (from, on) = (distances.from(outside, holders, bytes), distances.to(end, bytes));
        let heads = across.iter().map(|links| links.least(problem, |link| from[link.from.index()])).collect();
        let tails = across.iter().map(|links| links.least(problem, |link| on[link.to.index()])).collect();
        ChunkClass { chunks, bytes, holders: holders.clone(), heads, tails }
    };
    alike.into_iter().map(class).collect()
}

/// Makes one class of the two that differ least.
fn put_together(classes: &mut Vec<ChunkClass>) {
    let pairs = (0..classes.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let difference = |&(one, other): &(usize, usize)| classes[one].difference(&classes[other]);
    let least = pairs.map(|pair| (difference(&pair), pair)).min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, (one, other))) = least {
        let absorbed = classes.swap_remove(one);
        classes[other].absorb(absorbed);
    }
}

/// How the chunks come to a sender, over ranks outside of the set only.
struct SenderArrivals {
    servers: Vec<Server>,
    /// Which classes the sender holds.
    held: Vec<bool>,
}

impl SenderArrivals {
    fn at(
        sender: Rank,
        space: &CountSpace,
        classes: &[ChunkClass],
        outside: &Rc<[bool]>,
        distances: &mut Distances<'_>,
    ) -> Self {
        let problem = distances.problem;
        let (before, links) = ServedLinks::to_one(problem, outside, sender);
        let mut into = |class: &ChunkClass| {
            let from = distances.from(&before, &class.holders, class.bytes);
            let heads = links.iter().map(|links| links.least(problem, |link| from[link.from.index()])).collect();
            let (chunks, holders) = (class.chunks.clone(), class.holders.clone());
            ChunkClass { chunks, bytes: class.bytes, holders, heads, tails: vec![0.0; links.len()] }
        };
        let into: Vec<ChunkClass> = classes.iter().map(&mut into).collect();
        distances.left -= space.work() * links.len() as f64;
        let servers = links.iter().enumerate().map(|(at, links)| links.server(problem, space, &into, at)).collect();
        Self { servers, held: classes.iter().map(|class| class.holders.has(sender)).collect() }
    }

    /// For each combination, the earliest time at which the sender can hold all of it.
    fn earliest(&self, space: &CountSpace) -> Vec<f64> {
        let earliest = space.earliest(&self.servers);
        (0..space.states()).map(|state| earliest[space.without(state, &self.held)]).collect()
    }

    /// The `next` servers, over which one rank sends, as one server; `None` where no chunks can only come to it over one of its servers,
    /// or chunks have different ways on.
    fn as_one(&self, space: &CountSpace, next: &[&Server], work: &mut f64) -> Option<Server> {
        let only = |class: usize| {
            let comes_over = |&at: &usize| self.servers[at].ready[space.one_of(class)] < f64::INFINITY;
            let mut over = (0..self.servers.len()).filter(comes_over);
            let first = over.next().filter(|_| !self.held[class])?;
            over.next().is_none().then_some(first)
        };
        let only: Vec<Option<usize>> = (0..self.held.len()).map(only).collect();
        let carried = |at: usize| only.iter().filter(|only| **only == Some(at)).count();
        let into = (0..self.servers.len()).max_by_key(|&at| carried(at)).filter(|&at| carried(at) > 0)?;
        if next.iter().any(|server| server.tails[1..].iter().any(|&tail| tail != server.tails[1])) {
            return None;
        }
        // Of the others it counts when they can come, but not what they keep busy.
        let at_hand: Vec<bool> = only.iter().map(|only| *only != Some(into)).collect();
        let relayed = relayed(space, &self.servers[into], next, &at_hand, work)?;
        let alone = space.earliest_end(next);
        let known = relayed.into_iter().zip(alone).map(|(relayed, alone)| relayed.max(alone)).collect();
        Some(Server::known(known))
    }
}

/// The servers, where each sender must first receive what it sends on.
fn gathered_servers(
    servers: Vec<Server>,
    senders: &[Option<Rank>],
    (space, classes): (&CountSpace, &[ChunkClass]),
    outside: &Rc<[bool]>,
    distances: &mut Distances<'_>,
) -> Vec<Server> {
    let mut of: BTreeMap<Option<Rank>, Vec<Server>> = BTreeMap::new();
    senders.iter().zip(servers).for_each(|(sender, server)| of.entry(*sender).or_default().push(server));
    let mut all = Vec::new();
    for (sender, mut next) in of {
        // Without more work, senders have everything as soon as it can come to them.
        if let Some(sender) = sender.filter(|_| distances.left > 0.0) {
            let arrivals = SenderArrivals::at(sender, space, classes, outside, distances);
            let ready = arrivals.earliest(space);
            next.iter_mut().for_each(|server| server.ready.clone_from(&ready));
            if let Some(one) = arrivals.as_one(space, &next.iter().collect::<Vec<_>>(), &mut distances.left) {
                next = vec![one];
            }
        }
        all.extend(next);
    }
    all
}

/// Links across a cut that share a resource, or one link.
pub(super) struct ServedLinks {
    resource: Option<ResourceId>,
    links: Vec<LinkId>,
}

impl ServedLinks {
    /// The links from ranks of `from` to ranks of `to`.
    pub(super) fn into(problem: &Problem, from: &[bool], to: &[bool]) -> Vec<Self> {
        let crosses = |&id: &LinkId| {
            let link = problem.topology.link(id);
            from[link.from.index()] && to[link.to.index()] && problem.allows_link(id)
        };
        let links: Vec<LinkId> = problem.topology.link_ids().filter(crosses).collect();
        let mut served = Vec::new();
        for (resource, links) in by_resource(&problem.topology, &links) {
            match resource {
                Some(_) => served.push(Self { resource, links }),
                None => served.extend(links.into_iter().map(|link| Self { resource, links: vec![link] })),
            }
        }
        served
    }

    /// The other ranks of `among`, and the links from them to `receiver`.
    pub(super) fn to_one(problem: &Problem, among: &[bool], receiver: Rank) -> (Rc<[bool]>, Vec<Self>) {
        let others: Rc<[bool]> = among.iter().enumerate().map(|(rank, &it)| it && rank != receiver.index()).collect();
        let only: Vec<bool> = problem.topology.ranks().map(|rank| rank == receiver).collect();
        let links = Self::into(problem, &others, &only);
        (others, links)
    }

    /// The least that any of the links has.
    pub(super) fn least(&self, problem: &Problem, of: impl Fn(&Link) -> f64) -> f64 {
        self.links.iter().map(|&id| of(problem.topology.link(id))).fold(f64::INFINITY, f64::min)
    }

    /// The rank that sends over all of them.
    pub(super) fn only_sender(&self, problem: &Problem) -> Option<Rank> {
        let sender = |id: &LinkId| problem.topology.link(*id).from;
        let first = sender(self.links.first()?);
        self.links.iter().all(|id| sender(id) == first).then_some(first)
    }

    /// The server that these links are, for the classes of a cut at which they are number `at`.
    pub(super) fn server(&self, problem: &Problem, space: &CountSpace, classes: &[ChunkClass], at: usize) -> Server {
        let alone = match self.links[..] {
            [only] => Some(problem.topology.link(only)),
            _ => None,
        };
        // One link takes at least as long as its resource for every byte. Where it takes longer, only the link counts.
        let resource = self.resource.map(|id| problem.topology.resource(id));
        let resource = resource.filter(|resource| alone.is_none_or(|link| link.beta <= resource.beta));
        let shared = resource.map_or(0.0, |resource| resource.alpha.0);
        let occupying = |link: &Link| if link.latency == Latency::Occupies { link.alpha.0 } else { 0.0 };
        let setup = self.least(problem, |link| occupying(link).max(shared));
        let per_byte = resource.map_or_else(|| self.least(problem, |link| link.beta.0), |resource| resource.beta.0);
        let smallest = classes.iter().map(|class| class.bytes.0).fold(f64::INFINITY, f64::min);
        let lag = self.least(problem, |link| {
            let slower = link.beta.0 - per_byte;
            link.alpha.0 - setup + if slower > 0.0 { slower * smallest } else { 0.0 }
        });
        let most = |of: fn(&ChunkClass) -> &[f64]| {
            let present = |digits: &[u32]| {
                let all = digits.iter().zip(classes).filter(|(count, _)| **count > 0);
                all.map(|(_, class)| of(class)[at]).fold(0.0, f64::max)
            };
            space.table(present)
        };
        let bytes = space
            .table(|digits| digits.iter().zip(classes).map(|(&count, class)| f64::from(count) * class.bytes.0).sum());
        Server {
            setup,
            per_byte,
            lag,
            ready: most(|class| &class.heads),
            tails: most(|class| &class.tails),
            bytes,
            known: None,
            is_one: true,
        }
    }
}
