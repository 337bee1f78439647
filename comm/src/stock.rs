//! The plan that serves a call where no table says a better one: the best textbook algorithm.
//!
//! The principal function is [`plan`]. All ranks come to the same plan, each by itself, because it follows from what they all
//! know: how many they are, what is called, and the size.

use crate::error::{CommError, CommResult};
use crate::links::{LinkCosts, MessageCost};
use program::{LowerOptions, Program, VerifiedProgram, check, lower};
use schedule::{Collective, Demand, ReduceOp, Request, Schedule, VerifiedSchedule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use synth::Problem;
use topology::{
    Bytes, Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, ResourceIds, Topology, TopologyParts,
};

/// The time in which a rank copies or adds one byte: 14 GB/s.
const WORK: MicrosPerByte = MicrosPerByte(7e-5);
/// About how long a core takes until the next of its ranks runs, in microseconds.
const TURN_US: f64 = 1.6;
/// About how long a core is busy with a message, beside its bytes, in microseconds.
const MESSAGE_US: f64 = 0.4;
/// Of more ranks, the schedule is chosen by its time on the links alone: comparing takes too long.
const MOST_COMPARED: usize = 16;
/// A size for which schedules are timed where the size does not matter.
const TYPICAL: u64 = 64 << 10;
/// Where messages take about as long as without any bytes, in bytes as the collective counts them.
const SHORT: u64 = 64;
/// Between machines, long messages are also cut into pieces of at least so many bytes, which follow each other along a chain.
const LEAST_PIECE: u64 = 32 << 10;
/// The most pieces of a call, or for many ranks the most of each rank.
const MOST_PIECES: [u64; 2] = [64, 4];
/// Up to so many ranks, every pair has a link; of more, each has one to those a power of two away.
const MOST_DIRECT: usize = 64;

/// Which collective, whatever its size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CallKind {
    pub(crate) collective: Collective,
    pub(crate) root: Option<Rank>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) in_place: bool,
}

impl CallKind {
    /// A call that is not in place, reduces nothing and has no root.
    pub(crate) const fn plain(collective: Collective) -> Self {
        Self { collective, root: None, op: None, in_place: false }
    }

    /// The size of a call as the collective counts it, in bytes: `each` is that of one block, as MPI counts, and of the whole
    /// vector of an AllReduce.
    pub(crate) fn size(&self, ranks: usize, each: u64) -> u64 {
        each.saturating_mul(self.collective.blocks(ranks))
    }
}

/// The kind of call that is measured for a collective.
pub(crate) fn measured_kind(collective: Collective, op: ReduceOp) -> CallKind {
    CallKind {
        collective,
        root: collective.is_rooted().then_some(Rank(0)),
        op: collective.combines().then_some(op),
        in_place: has_one_vector(collective),
    }
}

/// Whether what a member sends and what it receives have the same length at every member that has both.
fn has_one_vector(collective: Collective) -> bool {
    match collective {
        Collective::AllReduce | Collective::Broadcast => true,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll | Collective::AllToAllV => false,
        Collective::Reduce | Collective::Gather | Collective::Scatter => false,
        Collective::SendRecv | Collective::Custom => false,
    }
}

/// The plan of ranks on these machines for a call of about `bytes` bytes (as the collective counts them), and its name.
///
/// # Errors
/// If no textbook algorithm does what is called, which would be a defect.
pub(crate) fn plan(
    machines: &[u32],
    links: &LinkCosts,
    kind: CallKind,
    bytes: u64,
) -> CommResult<(VerifiedProgram, Arc<str>)> {
    let (schedule, program) = best(machines, links, kind, bytes)?;
    let program = check(program).map_err(no_plan)?;
    let strategy = &schedule.schedule().produced_by.strategy;
    Ok((program, format!("{} {strategy}", kind.collective).into()))
}

/// The textbook schedule that takes the least time, with what ranks copy and add, and its program. Nobody asks how far it is from
/// the best possible one, and only those that may win are verified: the first call of a size waits for this.
///
/// # Errors
/// As [`plan`].
fn best(machines: &[u32], links: &LinkCosts, kind: CallKind, bytes: u64) -> CommResult<(VerifiedSchedule, Program)> {
    let whole = problem(machines, links, kind, bytes)?;
    let is_large = machines.len() > MOST_COMPARED;
    if is_large && kind.collective == Collective::AllReduce && is_short(machines, links, bytes) {
        return lowered(short_sums(machines, links, &whole)?, &whole, kind);
    }
    // Between machines, links differ, and the order of messages matters more than the time of planning.
    let found =
        if is_large || is_one_machine(machines) { synth::textbook_at_once(&whole) } else { synth::textbook(&whole) };
    let mut found = found.map_err(no_plan)?;
    if let Some(chunks) = pieces(machines, kind, bytes) {
        let in_pieces = Problem::new(whole.topology.clone(), demand(machines, kind, bytes, chunks)?);
        found.extend(synth::textbook(&in_pieces).map_err(no_plan)?);
    }
    found.sort_by(|one, other| one.makespan().0.total_cmp(&other.makespan().0));
    let mut best: Option<(Micros, (VerifiedSchedule, Program))> = None;
    for schedule in found {
        let makespan = schedule.makespan();
        if best.as_ref().is_some_and(|(least, _)| *least <= makespan) {
            break;
        }
        let found = lowered(schedule, &whole, kind)?;
        // The times of messages do not contain how long the busiest rank copies and adds.
        let work = work(kind, machines.len(), found.1.most_worked_bytes() as f64);
        if best.as_ref().is_none_or(|(least, _)| makespan + work < *least) {
            best = Some((makespan + work, found));
        }
    }
    best.map(|(_, found)| found).ok_or_else(|| no_plan("no textbook algorithm applies"))
}

/// How long the busiest rank copies and adds so many bytes, where that counts beside its messages.
pub(crate) fn work(kind: CallKind, ranks: usize, bytes: f64) -> Micros {
    // Out of place, what others read is not what was just written, and adding costs less than that.
    let counts = kind.in_place && kind.collective.combines() && ranks <= MOST_COMPARED;
    if counts { WORK * Bytes(bytes) } else { Micros::ZERO }
}

/// Whether a plan is made, verified and checked without any other thread.
pub(crate) fn needs_no_threads(machines: &[u32]) -> bool {
    machines.len() <= MOST_COMPARED && is_one_machine(machines)
}

fn is_one_machine(machines: &[u32]) -> bool {
    machines.iter().all(|machine| *machine == machines[0])
}

fn lowered(schedule: Schedule, problem: &Problem, kind: CallKind) -> CommResult<(VerifiedSchedule, Program)> {
    let schedule = verified(schedule, problem)?;
    let lowering = LowerOptions { in_place: kind.in_place, ..LowerOptions::default() };
    let program = lower(&schedule, &lowering).map_err(no_plan)?.with_rates(schedule.topology());
    Ok((schedule, program))
}

fn verified(schedule: Schedule, problem: &Problem) -> CommResult<VerifiedSchedule> {
    schedule::verify(schedule, &problem.topology).map_err(|_| no_plan("it is not valid"))
}

/// Into how many chunks a long message between machines is also cut, for each rank, if it may help: what goes along a chain moves
/// on in pieces.
fn pieces(machines: &[u32], kind: CallKind, bytes: u64) -> Option<u32> {
    if !goes_along_chains(kind.collective) || is_one_machine(machines) || machines.len() > MOST_COMPARED {
        return None;
    }
    let parts = Request::new(kind.collective, machines.len(), bytes).parts();
    let most = (MOST_PIECES[0] / parts).max(MOST_PIECES[1]);
    let chunks = (bytes / LEAST_PIECE / parts).min(most);
    (chunks > 1).then_some(chunks as u32)
}

/// Whether all data passes from member to member.
fn goes_along_chains(collective: Collective) -> bool {
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => true,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll | Collective::AllToAllV => false,
        Collective::Gather | Collective::Scatter | Collective::SendRecv | Collective::Custom => false,
    }
}

/// Whether an AllReduce of many ranks is so short that sums which travel whole are the fastest: with k ranks, they take log k
/// rounds of α + β·bytes. All that cut them take at least twice the rounds, but in all only 2·β·bytes.
fn is_short(machines: &[u32], links: &LinkCosts, bytes: u64) -> bool {
    let MessageCost { alpha, beta } = links.slowest(machines);
    let rounds = f64::from(machines.len().next_power_of_two().ilog2());
    (rounds - 2.0) * beta.0 * bytes as f64 <= rounds * alpha.0
}

/// The best way to exchange whole sums, where a machine with more ranks than cores does the work of all messages.
fn short_sums(machines: &[u32], links: &LinkCosts, problem: &Problem) -> CommResult<Schedule> {
    let time = |schedule: &Schedule| {
        let mut busy: BTreeMap<u32, f64> = BTreeMap::new();
        for transfer in &schedule.transfers {
            let ends: BTreeSet<u32> = [transfer.from, transfer.to].map(|rank| machines[rank.index()]).into();
            for machine in ends {
                *busy.entry(machine).or_default() += (transfer.end.0 - transfer.start.0) / links.cores(machine) as f64;
            }
        }
        busy.into_values().fold(schedule.makespan().0, f64::max)
    };
    let found = synth::textbook_sums(problem).map_err(no_plan)?;
    let best = found.into_iter().min_by(|one, other| time(one).total_cmp(&time(other)));
    best.ok_or_else(|| no_plan("no textbook algorithm applies"))
}

/// All textbook schedules that apply at a typical size, and those that apply to short messages only: where these count as short
/// depends on costs that differ from launch to launch.
///
/// # Errors
/// As [`plan`].
pub(crate) fn all(machines: &[u32], links: &LinkCosts, kind: CallKind) -> CommResult<Vec<VerifiedSchedule>> {
    let mut all: Vec<VerifiedSchedule> = Vec::new();
    for bytes in [TYPICAL, SHORT] {
        let problem = problem(machines, links, kind, bytes)?;
        for schedule in synth::textbook(&problem).map_err(no_plan)? {
            let is_it =
                |known: &VerifiedSchedule| known.schedule().produced_by.strategy == schedule.produced_by.strategy;
            if !all.iter().any(is_it) {
                all.push(verified(schedule, &problem)?);
            }
        }
    }
    Ok(all)
}

fn problem(machines: &[u32], links: &LinkCosts, kind: CallKind, bytes: u64) -> CommResult<Problem> {
    Ok(Problem::new(Arc::new(topology(machines, links)?), demand(machines, kind, bytes, 1)?))
}

fn demand(machines: &[u32], kind: CallKind, bytes: u64, chunks: u32) -> CommResult<Arc<Demand>> {
    let mut request = Request::new(kind.collective, machines.len(), bytes).with_chunks(chunks);
    request.root = kind.root;
    request.op = kind.op;
    Ok(Arc::new(Demand::new(request).map_err(no_plan)?))
}

fn no_plan(reason: impl std::fmt::Display) -> CommError {
    CommError::NoPlan(reason.to_string())
}

/// Ranks on these machines. What leaves a machine, and what comes to it, shares its network interface; what leaves a rack, and what
/// comes to it, its uplink. Where ranks share cores, every message takes time on them.
pub(crate) fn topology(machines: &[u32], costs: &LinkCosts) -> CommResult<Topology> {
    let ranks = machines.len();
    let distances: Vec<usize> = match ranks {
        0..=MOST_DIRECT => (1..ranks).collect(),
        _ => (0..ranks.ilog2() + 1).flat_map(|bit| [1 << bit, ranks - (1 << bit).min(ranks - 1)]).collect(),
    };
    let shared = SharedResources::new(machines, costs);
    let mut links: Vec<Link> = Vec::new();
    for from in 0..ranks {
        let mut peers: Vec<usize> = distances.iter().map(|distance| (from + distance) % ranks).collect();
        peers.sort_unstable();
        peers.dedup();
        links.extend(peers.into_iter().filter(|&to| to != from).map(|to| {
            let MessageCost { mut alpha, mut beta } = costs.between(machines[from], machines[to]);
            let resources = shared.between(machines[from], machines[to]);
            // A disturbed measurement can make a message faster than what it uses.
            for resource in resources.iter().map(|id| &shared.resources[id.index()]) {
                alpha = alpha.max(resource.alpha);
                beta = if beta < resource.beta { resource.beta } else { beta };
            }
            let turns = shared.turns(machines[from], machines[to]);
            let latency = if turns > Micros::ZERO { Latency::Pipelines } else { Latency::Occupies };
            let (from, to) = (Rank::from_index(from), Rank::from_index(to));
            Link { from, to, alpha: alpha.max(turns), beta, latency, resources }
        }));
    }
    let resources = shared.resources;
    let parts = TopologyParts { name: format!("{ranks} ranks"), ranks, links, resources, ..TopologyParts::default() };
    Topology::new(parts).map_err(no_plan)
}

/// What several ranks of a machine share.
#[derive(Default)]
struct SharedResources {
    resources: Vec<Resource>,
    /// What leaves a machine, and what comes to it.
    interfaces: BTreeMap<u32, [ResourceId; 2]>,
    /// Of each machine the number of its rack, and what leaves that and comes to it.
    uplinks: BTreeMap<u32, (usize, [ResourceId; 2])>,
    /// The cores of machines that have more ranks than cores.
    cores: BTreeMap<u32, ResourceId>,
    /// How long a message waits there until all ranks have had a turn on their cores.
    turns: BTreeMap<u32, Micros>,
}

impl SharedResources {
    fn new(machines: &[u32], costs: &LinkCosts) -> Self {
        let mut ranks: BTreeMap<u32, usize> = BTreeMap::new();
        machines.iter().for_each(|machine| *ranks.entry(*machine).or_default() += 1);
        let mut shared = Self::default();
        for (&machine, &count) in &ranks {
            // Two machines with a rank each have nothing to share.
            if ranks.len() > 1 && machines.len() > 2 {
                let others = ranks.keys().filter(|other| **other != machine);
                let fastest = others.map(|other| costs.between(machine, *other).beta.0).fold(f64::INFINITY, f64::min);
                let ways = ["tx", "rx"].map(|way| shared.add(machine, way, fastest));
                shared.interfaces.insert(machine, ways);
            }
            let cores = costs.cores(machine);
            // Of many ranks, planning would take too long.
            if count > cores && machines.len() <= MOST_COMPARED {
                let beta = costs.between(machine, machine).beta.0 / cores as f64;
                let id = shared.add(machine, "cores", beta);
                shared.resources[id.index()].alpha = Micros(MESSAGE_US / cores as f64);
                shared.cores.insert(machine, id);
                shared.turns.insert(machine, Micros(TURN_US * count as f64 / cores as f64));
            }
        }
        shared.add_uplinks(&ranks.into_keys().collect::<Vec<_>>(), costs);
        shared
    }

    /// Two messages between the same racks take twice as long as each of them alone.
    fn add_uplinks(&mut self, machines: &[u32], costs: &LinkCosts) {
        for (number, rack) in costs.racks(machines).into_iter().enumerate() {
            let others = machines.iter().filter(|machine| !rack.contains(machine));
            let pairs = others.flat_map(|other| rack.iter().map(move |machine| costs.between(*machine, *other)));
            let fastest = pairs.map(|cost| cost.beta.0).fold(f64::INFINITY, f64::min);
            let ways = ["up", "down"].map(|way| self.add_resource(format!("rack{number}.{way}"), fastest));
            self.uplinks.extend(rack.into_iter().map(|machine| (machine, (number, ways))));
        }
    }

    fn add(&mut self, machine: u32, what: &str, beta: f64) -> ResourceId {
        self.add_resource(format!("machine{machine}.{what}"), beta)
    }

    fn add_resource(&mut self, name: String, beta: f64) -> ResourceId {
        self.resources.push(Resource::new(name, MicrosPerByte(beta)));
        ResourceId(self.resources.len() as u32 - 1)
    }

    /// How long a message within a machine waits until its receiver has a core; zero between machines, where that is measured.
    fn turns(&self, from: u32, to: u32) -> Micros {
        self.turns.get(&from).copied().filter(|_| from == to).unwrap_or(Micros::ZERO)
    }

    /// What a message from one machine to another uses.
    fn between(&self, from: u32, to: u32) -> ResourceIds {
        let cores = |machine| self.cores.get(&machine).copied();
        if from == to {
            return cores(from).into_iter().collect();
        }
        let way = |machine, which: usize| self.interfaces.get(&machine).map(|ways| ways[which]);
        let racks = self.uplinks.get(&from).zip(self.uplinks.get(&to)).filter(|(from, to)| from.0 != to.0);
        let [up, down] = racks.map_or([None, None], |(from, to)| [Some(from.1[0]), Some(to.1[1])]);
        [way(from, 0), up, down, way(to, 1), cores(from), cores(to)].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The costs of some machines: messages within one are fast, those between two a hundred times slower.
    fn costs(machines: &[u32], cores: usize) -> LinkCosts {
        let count = machines.iter().max().map_or(0, |last| *last as usize + 1);
        let times = (0..count * count).flat_map(|at| {
            let factor = if at / count == at % count { 1.0 } else { 100.0 };
            [0.3 * factor, (0.3 + 50.0) * factor]
        });
        LinkCosts::of_times(machines.to_vec(), &times.collect::<Vec<_>>(), vec![cores; count])
    }

    #[test]
    fn a_message_that_was_measured_faster_than_the_cores_that_it_uses_takes_their_time() {
        let machines = [0, 0, 0, 1, 1];
        // Between the two machines, the short message took longer than the long one.
        let costs = LinkCosts::of_times(machines.to_vec(), &[0.3, 50.0, 40.0, 30.0, 40.0, 30.0, 0.3, 50.0], vec![2; 2]);
        let topology = topology(&machines, &costs).unwrap();
        let cores = topology.resources().iter().find(|resource| resource.name == "machine0.cores").unwrap();
        assert!(topology.links().iter().all(|link| link.beta >= cores.beta || link.from.0 > 2 && link.to.0 > 2));
    }

    fn chosen(machines: &[u32], cores: usize, bytes: u64) -> String {
        let kind = CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        plan(machines, &costs(machines, cores), kind, bytes).unwrap().1.to_string()
    }

    #[test]
    fn small_sums_take_one_round_where_every_rank_has_a_core_and_few_messages_where_not() {
        assert_eq!(chosen(&[0; 8], 8, 64), "allreduce classic/one-shot");
        let messages = |machines: &[u32], cores| {
            let kind = CallKind { op: Some(ReduceOp::Sum), ..CallKind::plain(Collective::AllReduce) };
            best(machines, &costs(machines, cores), kind, 64).unwrap().0.schedule().transfers.len()
        };
        assert!(messages(&[0; 8], 2) < messages(&[0; 8], 8) / 2);
    }

    /// Where ranks share cores, data waits at every stop until a rank has its turn.
    #[test]
    fn short_vectors_of_ranks_that_share_cores_go_straight_to_their_receivers() {
        let kind = CallKind::plain(Collective::AllGather);
        let (schedule, _) = best(&[0; 8], &costs(&[0; 8], 2), kind, 1024).unwrap();
        assert_eq!(schedule.schedule().transfers.len(), 8 * 7);
    }

    /// Ranks that share cores or a connection exchange as few messages as possible; ranks with a core each take as few rounds as
    /// possible.
    #[test]
    fn short_sums_of_many_ranks_are_planned_at_once() {
        for (machines, cores, expected) in [
            (vec![0; 1000], 2, "allreduce classic/binomial"),
            (vec![0; 64], 2, "allreduce classic/binomial"),
            (vec![0; 64], 64, "allreduce classic/doubling"),
            ((0..256).map(|rank| rank / 8).collect(), 8, "allreduce classic/binomial"),
        ] {
            let kind = CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };
            assert!(is_short(&machines, &costs(&machines, cores), 512));
            assert!(!is_short(&machines, &costs(&machines, cores), 64 << 10));
            let (_, name) = plan(&machines, &costs(&machines, cores), kind, 512).unwrap();
            assert_eq!(&*name, expected, "{} ranks", machines.len());
        }
    }

    #[test]
    fn between_machines_the_order_of_messages_is_looked_for() {
        let machines = [0, 0, 1];
        let costs = costs(&machines, 2);
        let kind = CallKind { op: Some(ReduceOp::Sum), ..CallKind::plain(Collective::AllReduce) };
        let problem = problem(&machines, &costs, kind, 1 << 20).unwrap();
        let at_once = synth::textbook_at_once(&problem).unwrap();
        let at_once = at_once.iter().map(|schedule| schedule.makespan().0).fold(f64::INFINITY, f64::min);
        let chosen = best(&machines, &costs, kind, 1 << 20).unwrap().0.schedule().makespan().0;
        assert!(chosen < 0.8 * at_once, "{chosen} µs, and {at_once} µs at once");
    }

    /// Two racks of two machines: each byte crosses the uplinks as seldom as it can.
    #[test]
    fn between_racks_stock_sends_little_over_the_uplinks() {
        let machines = [0, 1, 2, 3];
        let rows: Vec<f64> =
            (0..16_u32).flat_map(|at| [15.0, if at / 8 == at % 4 / 2 { 4100.0 } else { 21_000.0 }]).collect();
        let costs = LinkCosts::of_times(machines.to_vec(), &rows, vec![2; 4]);
        for collective in [Collective::ReduceScatter, Collective::AllGather] {
            let op = collective.combines().then_some(ReduceOp::Sum);
            let kind = CallKind { op, ..CallKind::plain(collective) };
            let (schedule, _) = best(&machines, &costs, kind, 1 << 20).unwrap();
            let crosses = |transfer: &&schedule::Transfer| transfer.from.index() / 2 != transfer.to.index() / 2;
            let crossing: usize = schedule.schedule().transfers.iter().filter(crosses).map(|of| of.chunks.len()).sum();
            // Each rack has to get two blocks of the other one; with all pairs, eight blocks cross.
            assert!(
                crossing <= 6,
                "{collective}: {crossing} blocks cross with {}",
                schedule.schedule().produced_by.strategy
            );
        }
    }

    /// What competes must be the same in every launch, though each measures other costs.
    #[test]
    fn the_same_algorithms_apply_whatever_messages_cost() {
        let kind = CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        let names = |short: f64, long: f64| -> BTreeSet<String> {
            let costs = LinkCosts::of_times(vec![0; 4], &[short, long], vec![2]);
            let all = all(&[0; 4], &costs, kind).unwrap();
            all.iter().map(|schedule| schedule.schedule().produced_by.strategy.clone()).collect()
        };
        let slow = names(20.0, 21.0);
        assert!(slow.contains("classic/tree/rooted"), "{slow:?}");
        assert_eq!(slow, names(0.3, 500.0));
    }

    #[test]
    fn sizes_are_those_of_requests() {
        for (collective, expected) in [
            (Collective::AllReduce, 100),
            (Collective::Broadcast, 100),
            (Collective::Reduce, 100),
            (Collective::AllGather, 400),
            (Collective::ReduceScatter, 400),
            (Collective::AllToAll, 400),
            (Collective::Gather, 400),
            (Collective::Scatter, 400),
        ] {
            assert_eq!(CallKind::plain(collective).size(4, 100), expected, "{collective}");
        }
    }

    #[test]
    fn large_sums_move_and_add_as_little_as_possible() {
        for machines in [[0, 0, 0, 0], [0, 0, 1, 1]] {
            let name = chosen(&machines, 4, 64 << 20);
            assert!(!name.contains("one-shot") && !name.contains("doubling"), "{name}");
        }
    }

    /// Machines with a rank and a network interface each, at so many MB/s.
    fn hosts(rates: &[f64]) -> (Vec<u32>, LinkCosts) {
        let count = rates.len();
        let times = (0..count * count).flat_map(|at| {
            let rate = rates[at / count].min(rates[at % count]);
            [50.0, 50.0 + crate::links::MEASURED[1] as f64 / rate]
        });
        let machines: Vec<u32> = (0..count as u32).collect();
        let costs = LinkCosts::of_times(machines.clone(), &times.collect::<Vec<_>>(), vec![8; count]);
        (machines, costs)
    }

    /// A host's interface is shared by all its messages, also where it has one rank: all at once, they are no faster.
    #[test]
    fn between_hosts_of_one_rank_each_long_sums_move_as_little_as_possible() {
        let (machines, costs) = hosts(&[100.0, 100.0, 50.0, 25.0]);
        let kind = CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        let bytes = 16 << 20;
        let (schedule, _) = best(&machines, &costs, kind, bytes).unwrap();
        // The slowest host sends its data once along a chain, and 1.5 times around a ring.
        assert_eq!(schedule.schedule().produced_by.strategy, "classic/chain");
        let least = bytes as f64 / 25.0;
        assert!(schedule.schedule().makespan().0 < 1.25 * least, "{}", schedule.schedule().makespan());
        // Among equal hosts a ring sends the least.
        let (machines, costs) = hosts(&[100.0; 4]);
        let (schedule, _) = best(&machines, &costs, kind, bytes).unwrap();
        let ideal = 1.5 * bytes as f64 / 100.0;
        assert!(schedule.schedule().makespan().0 < 1.2 * ideal, "{}", schedule.schedule().makespan());
    }

    #[test]
    fn every_collective_has_a_plan_for_any_number_of_ranks() {
        for ranks in [1, 2, 3, 6, 70] {
            let machines: Vec<u32> = (0..ranks).map(|rank| rank / 4).collect();
            let costs = costs(&machines, 2);
            for collective in Collective::ALL.iter().copied().filter(|of| of.takes_vectors()) {
                let root = collective.is_rooted().then_some(Rank(0));
                let op = collective.combines().then_some(ReduceOp::Sum);
                let kind = CallKind { root, op, ..CallKind::plain(collective) };
                plan(&machines, &costs, kind, 4096).unwrap();
                let all = if ranks > 6 { Vec::new() } else { all(&machines, &costs, kind).unwrap() };
                assert!(ranks == 1 || ranks > 6 || !all.is_empty(), "{collective} of {ranks}");
            }
        }
    }
}
