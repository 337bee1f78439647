//! AllToAll by gateways: what one group of ranks has for another one crosses in few messages.
//!
//! The principal function is [`attempt`]. Each group of ranks (a machine, or the ranks behind a switch) is cut into parts. For each part
//! of a group and each part of another group, a member of the first one, its *gateway*, collects what the part has for the other part,
//! and sends it in one message to a gateway there, which hands it on. With large parts few messages cross, but bytes travel three times;
//! with small ones bytes travel less often. Groups have 1, 2, 4 … parts, or one for each member, and others for receiving than for
//! sending.

use super::multiplying::{MOST_MEMBERS, MemberLinks};
use super::spreading::{SpreadChunk, spread_chunks};
use super::sums::{fastest_link, fastest_links};
use super::{MOST_HOPS, inapplicable, planned};
use crate::ordering::{earliest_first, interleaved};
use crate::problem::constraints::RuleKind;
use crate::problem::groupings::groupings;
use crate::problem::{Deadline, Problem, SynthError};
use crate::strategies::{Attempt, Context, Joining};
use schedule::{ChunkList, Message, Transfer, TransferKind, makespan, replay};
use std::collections::BTreeMap;
use topology::Micros;

const NAME: &str = "classic/gateways";
/// Of the plans, so many that are the fastest get a better order of messages.
const MOST_ORDERED: usize = 2;

/// Where a plan takes so many times as long as the best one, and longer than with fewer parts that receive, no more parts receive.
const HOPELESS: f64 = 1.4;
/// The search may take one part in this many of the time.
const PART: u32 = 2;

/// Members by position, some of a group.
type GroupPart = Vec<usize>;

/// The best of its plans; `None` where there are no groups, some chunk goes to several ranks, or textbook algorithms are asked for.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Option<Attempt>, SynthError> {
    let members = &problem.demand.request().members;
    let is_small =
        (4..=MOST_MEMBERS).contains(&members.len()) && problem.demand.chunks().len() <= MOST_HOPS as usize / 64;
    // Ways over gateways know no rules about ways.
    let is_free = !problem.constraints.exceeds(&RuleKind::OF_LINKS);
    if !is_small || !is_free || context.joining != Joining::Exchanging {
        return Ok(None);
    }
    let Some(chunks) = travelling(problem) else { return Ok(None) };
    let own: ChunkList = chunks.iter().filter(|chunk| chunk.holder == chunks[0].holder).map(|chunk| chunk.id).collect();
    let links = MemberLinks::new(&problem.topology, problem.demand.message_bytes(&own), fastest_links(problem, &own));
    let mut found: Vec<GatewayPlan> = Vec::new();
    let deadline = context.deadline.part(PART);
    for groups in groups(problem) {
        if let Some(ways) = GroupWays::new(&links, &groups) {
            found = try_parts(problem, &deadline, (&links, &chunks, &ways), found);
        }
    }
    let mut best: Option<Vec<Transfer>> = None;
    for plan in found {
        let ordered = interleaved(problem, &plan.messages, context.deadline).ok();
        for transfers in std::iter::once(plan.transfers).chain(ordered) {
            if best.as_ref().is_none_or(|best| makespan(&transfers) < makespan(best)) {
                best = Some(transfers);
            }
        }
    }
    let none = || {
        inapplicable(NAME, "there are no groups of ranks with links inside and between them that it may use".to_owned())
    };
    Ok(Some(best.map_or_else(none, |transfers| planned(problem, context, NAME, transfers))))
}

/// The chunks that somebody lacks; `None` if there are none, or if several ranks lack one.
fn travelling(problem: &Problem) -> Option<Vec<SpreadChunk>> {
    let chunks = spread_chunks(problem)?.into_iter().filter(|chunk| !chunk.wanted.is_empty());
    let chunks: Vec<SpreadChunk> = chunks.collect();
    (!chunks.is_empty() && chunks.iter().all(|chunk| chunk.wanted.len() == 1)).then_some(chunks)
}

/// A plan before its messages get a better order.
struct GatewayPlan {
    makespan: Micros,
    messages: Vec<Message>,
    transfers: Vec<Transfer>,
}

/// The fastest of `found` and of plans with parts of all sizes.
fn try_parts(
    problem: &Problem,
    deadline: &Deadline,
    (links, chunks, ways): (&MemberLinks<'_>, &[SpreadChunk], &GroupWays<'_>),
    mut found: Vec<GatewayPlan>,
) -> Vec<GatewayPlan> {
    let doubled = std::iter::successors(Some(1), |parts| Some(parts * 2)).take_while(|&parts| parts < ways.most);
    let sizes: Vec<usize> = doubled.chain([ways.most]).collect();
    for &senders in &sizes {
        let mut last = Micros(f64::INFINITY);
        for &receivers in &sizes {
            if !found.is_empty() && !deadline.leaves_time_for(4 * chunks.len()) {
                return found;
            }
            let Some(messages) = messages(problem, links, chunks, ways, (senders, receivers)) else { break };
            // Stage by stage, groups would wait for each other at ports.
            let messages = earliest_first(problem, &messages);
            let Ok(transfers) = replay(&problem.demand, &problem.topology, &messages) else { break };
            let before = std::mem::replace(&mut last, makespan(&transfers));
            found.push(GatewayPlan { makespan: last, messages, transfers });
            found.sort_by(|a, b| a.makespan.total_cmp(&b.makespan));
            found.truncate(MOST_ORDERED);
            if last > before && last > found[0].makespan * HOPELESS {
                break;
            }
        }
    }
    found
}

/// The ways to see the members as several groups of several each.
fn groups(problem: &Problem) -> Vec<Vec<GroupPart>> {
    let members = &problem.demand.request().members;
    let of = |grouping: Vec<usize>| {
        let mut groups: BTreeMap<usize, GroupPart> = BTreeMap::new();
        for (position, rank) in members.iter().enumerate() {
            groups.entry(grouping[rank.index()]).or_default().push(position);
        }
        groups.into_values().collect::<Vec<GroupPart>>()
    };
    let is_between = |groups: &Vec<GroupPart>| groups.len() > 1 && groups.len() < members.len();
    groupings(&problem.topology).into_iter().map(of).filter(is_between).collect()
}

/// The ways inside of groups.
struct GroupWays<'a> {
    groups: &'a [GroupPart],
    group_of: Vec<usize>,
    /// From each member to each one of its group: the next one on the shortest way.
    next: Vec<Vec<usize>>,
    /// The most members of a group.
    most: usize,
}

impl<'a> GroupWays<'a> {
    /// `None` if some member cannot reach another one of its group inside of it.
    fn new(links: &MemberLinks<'_>, groups: &'a [GroupPart]) -> Option<Self> {
        let members = links.links.len();
        let mut group_of = vec![0; members];
        let mut next = vec![vec![usize::MAX; members]; members];
        let mut times = vec![vec![f64::INFINITY; members]; members];
        for (number, group) in groups.iter().enumerate() {
            for &from in group {
                group_of[from] = number;
                for &to in group {
                    (times[from][to], next[from][to]) = (links.time(from, to), to);
                }
            }
            // Floyd and Warshall's shortest paths.
            for &over in group {
                for &from in group {
                    for &to in group {
                        let time = times[from][over] + times[over][to];
                        if from != to && time < times[from][to] {
                            (times[from][to], next[from][to]) = (time, next[from][over]);
                        }
                    }
                }
            }
            let reaches = |from: usize| group.iter().all(|&to| from == to || times[from][to].is_finite());
            if !group.iter().all(|&from| reaches(from)) {
                return None;
            }
        }
        let most = groups.iter().map(Vec::len).max()?;
        Some(Self { groups, group_of, next, most })
    }

    /// The steps from a member to one of its group.
    fn way(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let before = at;
            (before != to).then(|| {
                at = self.next[before][to];
                (before, at)
            })
        })
    }

    /// For each member, the number of its part where each group has `count` parts, or as many as members; and the parts.
    fn parts(&self, count: usize) -> (Vec<usize>, Vec<GroupPart>) {
        let (mut part_of, mut parts) = (vec![0; self.group_of.len()], Vec::new());
        for group in self.groups {
            let count = count.min(group.len());
            let first = parts.len();
            parts.resize(first + count, GroupPart::new());
            for (place, &member) in group.iter().enumerate() {
                part_of[member] = first + place * count / group.len();
                parts[part_of[member]].push(member);
            }
        }
        (part_of, parts)
    }
}

/// The gateways of each pair of parts in different groups; `None` if a pair has no link.
fn gateways(
    links: &MemberLinks<'_>,
    ways: &GroupWays<'_>,
    from: &[GroupPart],
    to: &[GroupPart],
) -> Option<Vec<Vec<(usize, usize)>>> {
    let members = links.links.len();
    let (mut sent, mut received) = (vec![0_usize; members], vec![0_usize; members]);
    let mut gateways = vec![vec![(usize::MAX, usize::MAX); to.len()]; from.len()];
    // In turns, so that all parts have the same choice.
    for turn in 0..to.len() {
        for (number, senders) in from.iter().enumerate() {
            let other = (number * to.len() / from.len() + turn) % to.len();
            let receivers = &to[other];
            if ways.group_of[senders[0]] == ways.group_of[receivers[0]] {
                continue;
            }
            let pairs = senders.iter().flat_map(|&sender| receivers.iter().map(move |&receiver| (sender, receiver)));
            let pairs = pairs.filter(|&(sender, receiver)| links.links[sender][receiver].is_some());
            let busy = |&(sender, receiver): &(usize, usize)| {
                (sent[sender].max(received[receiver]), sent[sender] + received[receiver])
            };
            let order = |a: &(usize, usize), b: &(usize, usize)| {
                links.time(a.0, a.1).total_cmp(&links.time(b.0, b.1)).then_with(|| busy(a).cmp(&busy(b)))
            };
            let (sender, receiver) = pairs.min_by(order)?;
            (sent[sender], received[receiver]) = (sent[sender] + 1, received[receiver] + 1);
            gateways[number][other] = (sender, receiver);
        }
    }
    Some(gateways)
}

/// The messages where groups have so many parts that send, and so many that receive; `None` where some link is missing.
fn messages(
    problem: &Problem,
    links: &MemberLinks<'_>,
    chunks: &[SpreadChunk],
    ways: &GroupWays<'_>,
    (senders, receivers): (usize, usize),
) -> Option<Vec<Message>> {
    let members = &problem.demand.request().members;
    let (sending, from) = ways.parts(senders);
    let (receiving, to) = ways.parts(receivers);
    let gateways = gateways(links, ways, &from, &to)?;
    // By stage: steps before a group is left, between groups, and behind. Within a stage members send to each other in turns.
    let mut parcels: BTreeMap<(usize, usize, usize, usize), ChunkList> = BTreeMap::new();
    let crossing = ways.most;
    let mut step = |stage: usize, (from, to): (usize, usize), chunk: &SpreadChunk| {
        let turn = (to + members.len() - from) % members.len();
        parcels.entry((stage, turn, from, to)).or_default().push(chunk.id);
    };
    for chunk in chunks {
        let (holder, wanted) = (chunk.holder, chunk.wanted[0]);
        if ways.group_of[holder] == ways.group_of[wanted] {
            ways.way(holder, wanted).enumerate().for_each(|(stage, pair)| step(stage, pair, chunk));
            continue;
        }
        let (gateway, behind) = gateways[sending[holder]][receiving[wanted]];
        ways.way(holder, gateway).enumerate().for_each(|(stage, pair)| step(stage, pair, chunk));
        step(crossing, (gateway, behind), chunk);
        ways.way(behind, wanted).enumerate().for_each(|(stage, pair)| step(crossing + 1 + stage, pair, chunk));
    }
    let message = |((_, _, from, to), chunks): ((usize, usize, usize, usize), ChunkList)| {
        let link = fastest_link(problem, members[from], members[to], &chunks).ok()?;
        Some(Message { chunks, link, kind: TransferKind::Copy })
    };
    parcels.into_iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::SearchOptions;
    use crate::problem::by_hand::asked;
    use schedule::{Collective, Demand, Request, Schedule, verify};
    use std::sync::Arc;
    use topology::{Rank, resolve};

    /// The makespan of the plan, verified; `None` if it does not apply.
    fn planned_for(problem: &Problem) -> Option<Micros> {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let found = attempt(problem, &context).expect("nothing breaks")?.schedule?;
        let verified =
            verify(found, &problem.topology).unwrap_or_else(|no| panic!("{}: {no}", problem.topology.name()));
        Some(verified.schedule().makespan())
    }

    /// Four leaves of four ranks. α is 0.5 µs inside, and 1 µs between. If every rank sent its 12 messages to other leaves itself, an
    /// up-link would be busy for 48 µs. By gateways it carries three messages.
    #[test]
    fn few_messages_cross() {
        let machine = resolve("fat-tree:4x4").expect("a known topology");
        let makespan = planned_for(&asked(machine, Collective::AllToAll, 16)).expect("four groups");
        assert!(makespan.0 <= 3.0 * 0.5 + 3.0 + 3.0 * 0.5 + 0.01, "{makespan}");
    }

    /// Machines are groups too, of any size, whether they have a port each or links of their own. All plans are looked at.
    #[test]
    fn parts_of_all_sizes_are_right() {
        let deadline = Deadline::default();
        let mut count = 0;
        for spec in
            ["h800x2", "dgx-a100x2", "mi250x2", "ndv2x3", "dragonfly:2x2x2", "fat-tree:2x3x2", "fat-tree:5x3", "dgx2x2"]
        {
            for collective in [Collective::AllToAll, Collective::Scatter, Collective::Gather] {
                let problem = asked(resolve(spec).expect("a known topology"), collective, 64_000);
                let chunks = travelling(&problem).expect("one holder each");
                let own: ChunkList = problem.demand.chunk_ids().take(1).collect();
                let bytes = problem.demand.message_bytes(&own);
                let links = MemberLinks::new(&problem.topology, bytes, fastest_links(&problem, &own));
                for groups in groups(&problem) {
                    let ways = GroupWays::new(&links, &groups).expect("groups hang together");
                    for size in 1..=ways.most {
                        for other in [1, 2, 3, ways.most] {
                            let Some(messages) = messages(&problem, &links, &chunks, &ways, (size, other)) else {
                                continue;
                            };
                            let messages = earliest_first(&problem, &messages);
                            let transfers = replay(&problem.demand, &problem.topology, &messages).expect("an order");
                            let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, NAME);
                            verify(schedule, &problem.topology).unwrap_or_else(|no| panic!("{spec}: {no}"));
                            count += 1;
                        }
                    }
                    let found = try_parts(&problem, &deadline, (&links, &chunks, &ways), Vec::new());
                    assert!(found.len() <= MOST_ORDERED && found.is_sorted_by_key(|plan| plan.makespan.0.to_bits()));
                }
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn groups_may_have_members_that_take_no_part() {
        let topology = Arc::new(resolve("fat-tree:3x4").expect("a known topology"));
        let members = [0, 1, 3, 5, 6, 8, 9, 10, 11].into_iter().map(Rank).collect();
        let request = Request { members, ..Request::new(Collective::AllToAll, 12, 900) };
        let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
        assert!(planned_for(&problem).is_some());
    }

    #[test]
    fn without_groups_there_are_no_gateways() {
        for (spec, collective) in [("switch:8", Collective::AllToAll), ("fat-tree:4x4", Collective::AllGather)] {
            let problem = asked(resolve(spec).expect("a known topology"), collective, 64_000);
            assert_eq!(planned_for(&problem), None, "{spec} {collective}");
        }
    }
}
