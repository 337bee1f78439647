//! The bound by rounds: whatever spreads, or comes together, grows only so fast where every message costs α.
//!
//! Ranks are put into groups: every rank alone, the machines, the ranks behind one switch. Links between groups count,
//! links inside a group are free. The links into a group (or out of it) are put into *ports*: each port is a resource
//! that all its links use, or a single link. Let α be the least α of the links between groups, which must all occupy,
//! and β the least time per byte of these links and of their resources. A message with x bytes then keeps its ports
//! for at least α + βx, from its start on, and arrives no sooner. So messages at the same port are served one after
//! the other: a machine is only faster if we say that each message takes *exactly* α + βx at its ports and then is
//! there. The proofs are about that machine. It is the same forwards and backwards in time, so sums may be reversed.
//!
//! **Counting** (Farley's bound for broadcasting, for any number of ports [1]). Data of one group must reach w groups.
//! Count time in units of α and round all starts down. A message that starts in unit j arrives in unit j + 1 or later,
//! and two messages of one port start in different units. So if n groups have some of the data when unit j begins,
//! those with p ports can pass it to p others in it: at most n + (the n largest p together) have it when the next unit
//! begins, and no group that is more than j + 1 links away. If this takes R units to reach w, some message starts in
//! unit R − 1 and ends at R·α or later. Backwards, the same counts the groups whose data can have reached one group.
//!
//! **Behind the groups.** When the data first arrives at the last of the groups, R·α has passed and nobody in that
//! group had any of it. It reaches all ranks of the group in r further units of the least α of all links, where every
//! rank sends by its own ports and every port of the group brings it to one more. The whole takes R·α + r·(that α).
//!
//! **Before the groups.** Some data of a group cannot leave it at once: [`leaving`](super::leaving) has the proof. It takes the R units from
//! then on, and r behind the groups.
//!
//! **Gathering.** No group has more than one port for arrivals. Some group must have y bytes in the end, of which no
//! group has more than c to begin with. *Claim:* no group has y > c bytes of them before ⌈log₂(y/c)⌉·α + β(y − c).
//! *Proof* by induction over the arrivals in order of time. Let v be the first to have y bytes, when a message from w
//! with x ≥ 0 of them arrives. Everything else that v has came before this message started, because v has one port. So
//! at its start v had at least y − x and w at least x. Let z be the greater of the two; z ≥ y/2. If z ≤ c, then
//! ⌈log₂(y/c)⌉ ≤ 1, and x ≥ y − c because v had at most c (if it had more, y − x > c). The message alone takes
//! α + βx, which is enough. If z > c, the claim holds for z, and ⌈log₂(z/c)⌉ + 1 ≥ ⌈log₂(y/c)⌉. If z = y − x, the time
//! is at least ⌈log₂(z/c)⌉·α + β(y − x − c) + α + βx, as claimed. If z = x, it is at least ⌈log₂(z/c)⌉·α + β(x − c) +
//! α + βx, and 2x ≥ y. ∎ Data may be cut and merged in any way. Data that the group has to begin with, up to c bytes,
//! may be added to what it must have in the end.
//!
//! [1] Farley, "Broadcast time in communication networks", SIAM J. Appl. Math. 39 (1980), for one port and α = 1.

use super::classes::RankClasses;
use super::degree::Side;
use super::leaving::{LeavingTerms, LeavingTime};
use super::{Bound, Certificate, Scope};
use crate::problem::groupings::{RankGroups, groupings};
use crate::problem::{Deadline, Problem};
use schedule::Chunk;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Latency, LinkId, Micros, MicrosPerByte, Rank, ResourceId};

/// On machines with more links nothing is counted: other bounds must do.
const MOST_LINKS: usize = 1 << 17;
/// The most groups whose data is followed. Symmetric ones give the same bound.
const FOLLOWED: usize = 8;
/// The logarithm of a ratio that rounding made this much (relative) too large must not be rounded up.
const SLIGHTLY: f64 = 1e-9;

/// The strongest bound by rounds; `None` where no grouping has one.
pub(super) fn rounds(problem: &Problem, classes: &RankClasses, deadline: &Deadline) -> Option<Bound> {
    if problem.topology.links().len() > MOST_LINKS {
        return None;
    }
    let mut best: Option<Bound> = None;
    for grouping in groupings(&problem.topology) {
        for side in [Side::Ingress, Side::Egress] {
            if deadline.has_passed() {
                return best;
            }
            let Some(between) = GroupLinks::new(problem, &grouping, side) else { continue };
            for group in between.followed(problem, classes) {
                let found = between.counted(problem, group).into_iter().chain(between.gathered(problem, group));
                for bound in found {
                    if best.as_ref().is_none_or(|best| bound.value > best.value) {
                        best = Some(bound);
                    }
                }
            }
        }
    }
    best
}

/// The links between groups, seen from one side. `Egress` follows data from one group to the others. `Ingress` does the
/// same backwards, from the group that wants it to those that had it.
struct GroupLinks<'a> {
    problem: &'a Problem,
    side: Side,
    group: &'a RankGroups,
    members: Vec<Vec<Rank>>,
    alpha: f64,
    beta: f64,
    /// How many messages can pass each group at a time, on the side that data leaves by, and on the other.
    ports: Vec<usize>,
    others: Vec<usize>,
    /// The groups that each group has links to (or from).
    next: Vec<BTreeSet<usize>>,
    /// Whether data is followed forwards and all ranks want all of it.
    is_for_all: bool,
}

impl<'a> GroupLinks<'a> {
    /// `None` if a link between groups does not occupy, so that a port passes many messages in the time α.
    fn new(problem: &'a Problem, group: &'a RankGroups, side: Side) -> Option<Self> {
        let topology = &*problem.topology;
        let count = group.iter().max()? + 1;
        let (mut alpha, mut beta) = (f64::INFINITY, f64::INFINITY);
        let mut next = vec![BTreeSet::new(); count];
        let (mut leaving, mut coming) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for id in topology.link_ids().filter(|&id| problem.allows_link(id)) {
            let link = topology.link(id);
            let ends = [group[link.from.index()], group[link.to.index()]];
            let [from, to] = if side == Side::Egress { ends } else { [ends[1], ends[0]] };
            if from == to {
                continue;
            }
            if link.latency != Latency::Occupies {
                return None;
            }
            let shared = link.resources.iter().map(|&id| topology.resource(id).beta.0);
            (alpha, beta) = (alpha.min(link.alpha.0), shared.chain([link.beta.0]).fold(beta, f64::min));
            next[from].insert(to);
            leaving[from].push(id);
            coming[to].push(id);
        }
        let mut members = vec![Vec::new(); count];
        topology.ranks().for_each(|rank| members[group[rank.index()]].push(rank));
        let [ports, others] = [leaving, coming].map(|all| all.iter().map(|links| ports(problem, links)).collect());
        let mut chunks = problem.demand.chunks().iter();
        let is_for_all = side == Side::Egress && chunks.all(|chunk| chunk.wanted_by.len() == topology.rank_count());
        (alpha > 0.0 && alpha.is_finite()).then_some(Self {
            problem,
            side,
            group,
            members,
            alpha,
            beta,
            ports,
            others,
            next,
            is_for_all,
        })
    }

    /// The groups to follow: those of ranks that look different.
    fn followed(&self, problem: &Problem, classes: &RankClasses) -> BTreeSet<usize> {
        let (different, _) = classes.split(problem.topology.ranks());
        let groups = different.iter().map(|rank| self.group[rank.index()]);
        groups.take(FOLLOWED).collect()
    }

    /// Whether a chunk ties `group` to others: forwards those that must get data of `group`, backwards those whose data
    /// `group` must get.
    fn tied(&self, chunk: &Chunk, group: usize) -> BTreeSet<usize> {
        let of = |ranks: &[Rank]| ranks.iter().map(|rank| self.group[rank.index()]).collect::<BTreeSet<usize>>();
        let wanting = || chunk.wanted_by.iter().any(|rank| self.group[rank.index()] == group);
        let holding = || chunk.holders.iter().any(|rank| self.group[rank.index()] == group);
        let applies = if self.side == Side::Egress { holding() } else { wanting() };
        if !applies {
            return BTreeSet::new();
        }
        let holders = of(&chunk.holders);
        match self.side {
            // Copies may come from any holder.
            _ if !chunk.combine && holders.len() != 1 => BTreeSet::new(),
            Side::Egress => of(&chunk.wanted_by),
            Side::Ingress => holders,
        }
    }

    /// The bound by counting, and behind the groups.
    fn counted(&self, problem: &Problem, group: usize) -> Option<Bound> {
        let mut reached = BTreeSet::from([group]);
        let mut previous: Option<&Chunk> = None;
        for chunk in problem.demand.chunks() {
            // Chunks that follow each other are often alike.
            if previous.replace(chunk) != Some(chunk) {
                reached.extend(self.tied(chunk, group));
            }
        }
        let rounds = self.rounds(group, &reached)?;
        let tails = reached.iter().filter(|&&other| other != group).map(|&other| self.behind(other));
        let tail = tails.min_by(|a, b| (a.0 * f64::from(a.1)).total_cmp(&(b.0 * f64::from(b.1))))?;
        let leaving = self.before(group);
        let value = leaving.before.0 + f64::from(rounds) * self.alpha + f64::from(tail.1) * tail.0;
        let certificate = self.certificate(group, reached.len(), rounds, (tail, leaving), None);
        Some(Bound { name: "rounds", scope: Scope::AnyChunking, value: Micros(value * (1.0 - 1e-12)), certificate })
    }

    /// How many units of α it takes from `group` to all of `reached`; `None` if some cannot be reached.
    fn rounds(&self, group: usize, reached: &BTreeSet<usize>) -> Option<u32> {
        let mut most = self.ports.clone();
        most.sort_unstable_by(|a, b| b.cmp(a));
        let (mut ball, mut edge) = (BTreeSet::from([group]), vec![group]);
        let (mut informed, mut rounds) = (1usize, 0);
        while informed < reached.len() || !reached.is_subset(&ball) {
            edge = edge.iter().flat_map(|&at| self.next[at].iter().copied()).filter(|&to| ball.insert(to)).collect();
            let grown = informed + most[..informed.min(most.len())].iter().sum::<usize>();
            let grown = grown.min(ball.len());
            // Later rounds only stand still where nothing new can be reached.
            if grown == informed && edge.is_empty() {
                return None;
            }
            (informed, rounds) = (grown, rounds + 1);
        }
        Some(rounds)
    }

    /// How long it takes at least from the first arrival at a group until all ranks of it that must have the data have
    /// it: the time of a unit, and how many. Nothing where the group is one rank or not all of its ranks want it.
    fn behind(&self, group: usize) -> (f64, u32) {
        let (problem, topology) = (self.problem, &*self.problem.topology);
        let all = self.members[group].len();
        if all == 1 || !self.is_for_all {
            return (0.0, 0);
        }
        let mut alpha = self.alpha;
        let mut own = Vec::new();
        for rank in &self.members[group] {
            let inside = |id: &LinkId| problem.allows_link(*id) && self.group[topology.link(*id).to.index()] == group;
            let links: Vec<LinkId> = topology.outgoing(*rank).iter().copied().filter(inside).collect();
            if links.iter().any(|&id| topology.link(id).latency != Latency::Occupies) {
                return (0.0, 0);
            }
            alpha = links.iter().map(|&id| topology.link(id).alpha.0).fold(alpha, f64::min);
            own.push(ports(problem, &links));
        }
        own.sort_unstable_by(|a, b| b.cmp(a));
        let brought = self.others[group];
        let (mut informed, mut units) = (brought.max(1), 0);
        while informed < all {
            let grown = informed + own[..informed].iter().sum::<usize>() + brought;
            if grown == informed {
                return (0.0, 0);
            }
            (informed, units) = (grown, units + 1);
        }
        (alpha, units)
    }

    /// How long some data of a group cannot begin to leave it, at least.
    fn before(&self, group: usize) -> LeavingTime {
        let (problem, topology) = (self.problem, &*self.problem.topology);
        let Some(shares) = self.shares(group).filter(|&shares| self.is_for_all && shares > 1.0) else {
            return LeavingTime::default();
        };
        let (mut alpha, mut ports_inside) = (f64::INFINITY, 0);
        for rank in &self.members[group] {
            let inside = |id: &LinkId| problem.allows_link(*id) && self.group[topology.link(*id).from.index()] == group;
            let links: Vec<LinkId> = topology.incoming(*rank).iter().copied().filter(inside).collect();
            if links.iter().any(|&id| topology.link(id).latency != Latency::Occupies) {
                return LeavingTime::default();
            }
            alpha = links.iter().map(|&id| topology.link(id).alpha.0).fold(alpha, f64::min);
            ports_inside = ports_inside.max(ports(problem, &links));
        }
        if alpha <= 0.0 {
            return LeavingTime::default();
        }
        // Without links inside, there are no ports either, and this α is the time of nothing.
        let alpha = if alpha.is_finite() { alpha } else { self.alpha };
        let inside = LeavingTerms { alpha, ports: ports_inside, alpha_out: self.alpha, ports_out: self.ports[group] };
        LeavingTime { before: Micros(inside.time(shares)), alpha: Micros(alpha), ports: ports_inside }
    }

    /// How many times as much a group has as the one of its ranks that has most; `None` where ranks of it have the same.
    fn shares(&self, group: usize) -> Option<f64> {
        let demand = &self.problem.demand;
        let is_in = |rank: &&Rank| self.group[rank.index()] == group;
        let (mut held, mut most_parts) = (vec![0.0; self.group.len()], 0);
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let mut holders = chunk.holders.iter().filter(is_in);
            match (chunk.combine, holders.next(), holders.next()) {
                (true, ..) => most_parts = most_parts.max(chunk.holders.iter().filter(is_in).count()),
                (false, None, _) => {}
                (false, Some(only), None) if chunk.holders.len() == 1 => held[only.index()] += demand.bytes_of(id).0,
                (false, ..) => return None,
            }
        }
        let (all, most) = (held.iter().sum::<f64>(), held.iter().copied().fold(0.0, f64::max));
        match (most_parts, most > 0.0) {
            (0, true) => Some(all / most),
            (parts, false) if parts > 0 => Some(parts as f64),
            _ => None,
        }
    }

    /// The bound by gathering; `None` where it does not apply.
    fn gathered(&self, problem: &Problem, group: usize) -> Option<Bound> {
        // Seen from the group that wants, arrivals come by the ports that its search leaves by.
        if self.side != Side::Ingress || self.ports.iter().any(|&ports| ports > 1) {
            return None;
        }
        let mut held = vec![0.0; self.members.len()];
        for (id, chunk) in problem.demand.chunk_ids().zip(problem.demand.chunks()) {
            let wanted = !chunk.combine && chunk.wanted_by.iter().any(|rank| self.group[rank.index()] == group);
            let first = chunk.holders.first().map(|rank| self.group[rank.index()]);
            let alone = |first: usize| chunk.holders.iter().all(|rank| self.group[rank.index()] == first);
            if let Some(first) = first.filter(|&first| wanted && alone(first)) {
                held[first] += problem.demand.bytes_of(id).0;
            }
        }
        let most = held.iter().copied().fold(0.0, f64::max);
        // The group may as well have something of its own that it wants, as much as any other group has.
        held[group] = most;
        let all = held.iter().sum::<f64>();
        if most <= 0.0 || all <= most {
            return None;
        }
        let rounds = (all / most * (1.0 - SLIGHTLY)).log2().ceil().max(1.0) as u32;
        let value = f64::from(rounds) * self.alpha + self.beta * (all - most);
        let nothing = ((0.0, 0), LeavingTime::default());
        let certificate = self.certificate(group, self.members.len(), rounds, nothing, Some((all, most)));
        Some(Bound { name: "rounds", scope: Scope::AnyChunking, value: Micros(value * (1.0 - 1e-12)), certificate })
    }

    fn certificate(
        &self,
        group: usize,
        reached: usize,
        rounds: u32,
        ((alpha_behind, units), leaving): ((f64, u32), LeavingTime),
        bytes: Option<(f64, f64)>,
    ) -> Certificate {
        Certificate::Rounds {
            groups: if self.members.len() == self.group.len() { Vec::new() } else { self.members.clone() },
            group: self.members[group].clone(),
            backwards: self.side == Side::Ingress,
            reached,
            rounds,
            alpha: Micros(self.alpha),
            before: leaving.before,
            alpha_inside: leaving.alpha,
            ports_inside: leaving.ports,
            rounds_behind: units,
            alpha_behind: Micros(alpha_behind),
            beta: MicrosPerByte(if bytes.is_some() { self.beta } else { 0.0 }),
            gathered: bytes.map_or(0.0, |(all, most)| all - most),
        }
    }
}

/// How many messages can be on their way over `links` at once, at most: the number of groups of links of which each
/// shares a resource.
fn ports(problem: &Problem, links: &[LinkId]) -> usize {
    let topology = &*problem.topology;
    let mut users: BTreeMap<ResourceId, usize> = BTreeMap::new();
    for resource in links.iter().flat_map(|&link| topology.link(link).resources.iter()) {
        *users.entry(*resource).or_default() += 1;
    }
    let busiest =
        |&id: &LinkId| topology.link(id).resources.iter().copied().max_by_key(|resource| (users[resource], *resource));
    let shared: BTreeSet<ResourceId> = links.iter().filter_map(busiest).collect();
    shared.len() + links.iter().filter(|id| busiest(id).is_none()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Limits, SearchOptions};
    use crate::strategies::classic::Classic;
    use crate::strategies::matching::{Matching, Symmetric};
    use crate::strategies::reversal::propose;
    use crate::strategies::{Context, Strategy};
    use schedule::Collective;
    use topology::{Link, Topology, TopologyParts, resolve};

    fn of(problem: &Problem) -> Option<f64> {
        rounds(problem, &RankClasses::new(problem), &Deadline::default()).map(|bound| bound.value.0)
    }

    #[test]
    fn ranks_behind_ports_need_as_many_messages_as_doubling() {
        for (ranks, messages) in [(2, 1.0), (5, 3.0), (8, 3.0), (9, 4.0), (40, 6.0)] {
            let machine = || resolve(&format!("switch:{ranks},alpha=1us,bandwidth=1GBps")).expect("a family");
            // Each rank gets the shares of all others, or hardly anything.
            let sized = [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
            for collective in [
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::AllToAll,
                Collective::AllReduce,
                Collective::Broadcast,
                Collective::Reduce,
            ] {
                let share = if sized.contains(&collective) { 1000 } else { 1 };
                let problem = asked(machine(), collective, ranks * share);
                let bounds = bounds(&problem, &Deadline::default());
                let found = bounds.list.iter().find(|bound| bound.name == "rounds").expect("ports").value.0;
                let bytes = if share > 1 { (ranks - 1) * share } else { 0 };
                let (expected, tolerance) = (messages + bytes as f64 * 1e-3, if share > 1 { 1e-9 } else { 3e-3 });
                let error = (found / expected - 1.0).abs();
                assert!(error <= tolerance, "{collective} among {ranks}: {found}, not {expected}");
            }
        }
    }

    /// Two groups of three ranks behind a port each, whose ranks have no links inside: each sends all of its three parts by itself, and the
    /// last of them starts after two others.
    #[test]
    fn a_group_without_links_inside_sends_one_part_after_the_other() {
        let whole = resolve("fat-tree:2x3,alpha=1us").expect("a family");
        let links = whole.links().iter().filter(|link| link.from.index() / 3 != link.to.index() / 3).cloned().collect();
        let resources = whole.resources().to_vec();
        let parts = TopologyParts { ranks: 6, links, resources, ..TopologyParts::default() };
        let machine = Topology::new(parts).expect("a topology");
        let found = of(&asked(machine, Collective::AllGather, 6)).expect("ports");
        // Two starts before it, its own message, and two more until the others behind the port have it.
        let alpha_between = whole.links().iter().map(|link| link.alpha.0).fold(0.0, f64::max);
        assert!((4.99..5.1).contains(&(found / alpha_between)), "{found}");
    }

    /// The fewest units in which data of rank 0 reaches all ranks, by trying all: `links` are pairs, and each rank sends
    /// `ports` messages in a unit.
    fn fewest(links: &[(usize, usize)], ranks: usize, ports: usize) -> u32 {
        let mut states = BTreeSet::from([1u32]);
        for unit in 0.. {
            if states.contains(&((1 << ranks) - 1)) {
                return unit;
            }
            let mut next = BTreeSet::new();
            for &state in &states {
                let mut grown = BTreeSet::from([state]);
                for rank in (0..ranks).filter(|rank| state >> rank & 1 == 1) {
                    for _ in 0..ports {
                        let more: Vec<u32> = grown
                            .iter()
                            .flat_map(|&now| {
                                let to = links.iter().filter(move |(from, _)| *from == rank);
                                to.map(move |(_, to)| now | 1 << to)
                            })
                            .collect();
                        grown.extend(more);
                    }
                }
                next.extend(grown);
            }
            states = next;
        }
        unreachable!("units have no end")
    }

    #[test]
    fn no_more_rounds_are_claimed_than_the_best_broadcast_takes() {
        for (spec, ports, exact) in [
            ("switch:6", 1, true),
            ("switch:4", 1, true),
            ("clique:5", 4, true),
            ("mesh2d:2x3", 3, false),
            ("ring:6", 1, true),
        ] {
            let topology = resolve(&format!("{spec},alpha=1us,bandwidth=1000GBps")).expect("a family");
            let links: Vec<(usize, usize)> =
                topology.links().iter().map(|link| (link.from.index(), link.to.index())).collect();
            let fewest = f64::from(fewest(&links, topology.rank_count(), ports));
            let found = of(&asked(topology, Collective::Broadcast, 1)).expect("a bound");
            assert!(found <= fewest, "{spec}: {found} claimed, {fewest} needed");
            assert!(!exact || found > fewest * (1.0 - 1e-9), "{spec}: {found} claimed, {fewest} needed");
        }
    }

    #[test]
    fn groups_behind_switches_count_as_one() {
        // Data leaves a switch in three messages, one after the other; then it doubles behind the last switch.
        let machine = resolve("fat-tree:8x4,alpha=1us,bandwidth=1GBps").expect("a family");
        let far = machine.links().iter().map(|link| link.alpha.0).fold(0.0, f64::max);
        let found = of(&asked(machine, Collective::AllGather, 32)).expect("a bound");
        assert!(found > (3.0 * far + 2.0) * (1.0 - 1e-9), "{found} with {far}");
    }

    #[test]
    fn where_latency_is_a_delay_nothing_is_counted() {
        let machine = resolve("switch:8,alpha=1us,latency=pipelines").expect("a family");
        assert_eq!(of(&asked(machine, Collective::AllGather, 8)), None);
    }

    /// Textbook algorithms and a greedy search have all kinds of orders, merged messages and exchanged sums.
    #[test]
    fn no_plan_is_below() {
        let limits = Limits { restarts: 4, ..Limits::default() };
        let (options, deadline) = (SearchOptions { limits, ..SearchOptions::default() }, Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let strategies: [&dyn Strategy; 3] = [&Classic, &Matching, &Symmetric];
        let mut judged = 0;
        let mut check = |topology: Topology, label: &str| {
            for collective in [
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::AllReduce,
                Collective::AllToAll,
                Collective::Broadcast,
                Collective::Gather,
            ] {
                for size in [60, 60_000] {
                    let problem = asked(topology.clone(), collective, size);
                    let bound = bounds(&problem, &deadline);
                    let Some(bound) = bound.list.iter().find(|bound| bound.name == "rounds") else { continue };
                    let attempts = strategies.iter().filter_map(|strategy| propose(&problem, &context, *strategy).ok());
                    for plan in attempts.flatten().filter_map(|attempt| attempt.schedule) {
                        let (bound, makespan) = (bound.value.0, plan.makespan().0);
                        assert!(bound <= makespan * (1.0 + 1e-9), "{label} {collective} {size}: {bound} > {makespan}");
                        judged += 1;
                    }
                }
            }
        };
        for spec in
            ["fat-tree:2x3", "fat-tree:3x2,alpha=2us", "dragonfly:2x2x2", "switch:7", "dgx1", "mesh2d:2x3", "line:4"]
        {
            check(resolve(spec).expect("a family"), spec);
        }
        for seed in 0..24 {
            let machine = random_machine(seed);
            let occupying = |link: &Link| Link {
                latency: Latency::Occupies,
                alpha: Micros(link.alpha.0 + 1.0),
                resources: link.resources.clone(),
                ..*link
            };
            let links = machine.links().iter().map(occupying).collect();
            let (ranks, resources) = (machine.rank_count(), machine.resources().to_vec());
            let parts = TopologyParts { ranks, links, resources, ..TopologyParts::default() };
            check(Topology::new(parts).expect("a machine"), &format!("machine {seed}"));
        }
        assert!(judged > 1000, "{judged}");
    }
}
