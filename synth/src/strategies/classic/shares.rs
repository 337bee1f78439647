//! Recursive multiplying where the members of a block share the work: each adds up a share of the chunks for all of them.
//!
//! The principal function is [`attempt`]. Rounds in which blocks merge ([`super::multiplying`]) are split at some round. Until then, what
//! becomes the sum of a block comes together at one of its members only, at another one for each share. From then on the members with
//! the same share of different blocks merge. At the end each share is copied back the way it came. Split after the last round this is
//! a ReduceScatter and an AllGather; split before the first one, everybody adds up everything. Between them, fast links carry much and
//! slow ones few messages [1]. Where messages between blocks follow each other at a port, only some members have a share.
//!
//! Chunks may also be dealt to several layers. All have the same rounds, but each layer begins with another one of them. So the layers
//! use different links at the same time.
//!
//! [1] Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004, for powers of two.

use super::multiplying::{MOST_MEMBERS, MemberLinks, trials};
use super::sums::{MemberMessage, TransferRound, arrives_in_turn, member_links, play};
use super::{few_enough, inapplicable};
use crate::problem::groupings::numbered;
use crate::problem::{Deadline, Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context};
use petgraph::unionfind::UnionFind;
use schedule::{ChunkList, TransferKind, clearly_before};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use topology::{Bytes, FreeTimes, Micros};

const NAME: &str = "classic/shares";
/// The most layers.
const MOST_LAYERS: usize = 8;
/// Of the plans that are split after the same round and take equally long, so many are layered.
const MOST_ALIKE: usize = 6;
/// With fewer shares than there could be, at most so many; each is chosen out of so many.
const MOST_FEWER: usize = 8;
const MOST_NEXT: usize = 8;
/// How many of the plans that promise most are kept, and how many of those are worth playing.
const MOST_KEPT: usize = 12;
const MOST_PLAYED: usize = 4;
/// The search may take one part in this many of the time.
const PART: u32 = 2;

/// A message of a round: its turn, its sender and its receiver.
type TurnPair = (usize, usize, usize);

/// The rounds of one share.
type ShareRounds = Vec<(TransferKind, Vec<TurnPair>)>;

/// Rounds that are split: those of each share.
type SplitRounds = Vec<Rc<ShareRounds>>;

/// What a member sends another one in a round, as numbers of shares.
struct SharedParcel {
    kind: TransferKind,
    from: usize,
    to: usize,
    shares: Vec<usize>,
}

/// The best of its plans.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let members = problem.demand.request().members.len();
    if !(3..=MOST_MEMBERS).contains(&members) {
        return Ok(inapplicable(NAME, format!("there are more than {MOST_MEMBERS} members, or less than three")));
    }
    let links = member_links(problem);
    let deadline = context.deadline.part(PART);
    let (mut best, mut why, mut played): (Option<Attempt>, _, _) = (None, None, 0);
    for layers in plans(problem, &links, context.options.seed, &deadline) {
        let parcels = parcels(&layers);
        let dealt = dealt(problem, &layers);
        let passages =
            parcels.iter().flatten().flat_map(|parcel| &parcel.shares).map(|&share| dealt[share].len()).sum();
        if let Err(many) = few_enough(passages) {
            why = Some(many);
            continue;
        }
        if best.is_some() && !context.deadline.leaves_time_for(passages) {
            break;
        }
        let found = play(problem, context, NAME, &messages(parcels, &dealt), arrives_in_turn)?;
        let makespan = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
        played += usize::from(found.schedule.is_some());
        if best.as_ref().is_none_or(|best| makespan(&found) < makespan(best)) {
            best = Some(found);
        }
        if played == MOST_PLAYED || best.as_ref().is_some_and(|best| best.stop == StopReason::Optimal) {
            break;
        }
    }
    let none = || why.unwrap_or_else(|| "there are no blocks of members that can share the work".to_owned());
    Ok(best.unwrap_or_else(|| inapplicable(NAME, none())))
}

/// The layers of a plan. Plans have layers in common.
type Layers = Vec<Rc<SplitRounds>>;

/// Plans that promise most, the fastest first.
fn plans(problem: &Problem, links: &MemberLinks<'_>, seed: u64, deadline: &Deadline) -> Vec<Layers> {
    let mut found: Vec<(f64, Layers)> = Vec::new();
    let mut keep = |time: f64, layers: &Layers| {
        found.push((time, layers.clone()));
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Plans that take equally long are often the same but for the numbers of ranks.
        found.dedup_by(|a, b| !clearly_before(Micros(b.0), Micros(a.0)));
        found.truncate(MOST_KEPT);
    };
    // By the round after which rounds are split: the least time of one layer, and how often it was layered.
    let mut tried: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
    for rounds in trials(links, seed, deadline) {
        for after in 0..=rounds.len() {
            let split_at = |rounds: &[TransferRound]| split(links, rounds, after).map(Rc::new);
            let Some(layer) = split_at(&rounds).filter(|_| !deadline.has_passed()) else { continue };
            let mut layers = vec![layer];
            let time = playing_time(problem, links, &layers);
            let (least, count) = tried.entry(after).or_insert((time, 0));
            let is_faster = clearly_before(Micros(time), Micros(*least));
            if !is_faster && (clearly_before(Micros(*least), Micros(time)) || *count == MOST_ALIKE) {
                continue;
            }
            *count = if is_faster { 1 } else { *count + 1 };
            *least = least.min(time);
            keep(time, &layers);
            for (time, layer) in with_fewer_shares(problem, links, &layers[0], deadline) {
                keep(time, &vec![layer]);
            }
            // Each layer begins with another round, and goes on in the same order.
            for first in 1..rounds.len().min(MOST_LAYERS) {
                let Some(layer) = turned(&rounds, first).and_then(|rounds| split_at(&rounds)) else { continue };
                if deadline.has_passed() {
                    break;
                }
                layers.push(layer);
                keep(playing_time(problem, links, &layers), &layers);
            }
        }
    }
    found.into_iter().map(|(_, layers)| layers).collect()
}

/// The rounds with some of the shares only, and how long they take. Shares are chosen one after the other, each as the best one beside
/// those before it.
fn with_fewer_shares(
    problem: &Problem,
    links: &MemberLinks<'_>,
    all: &SplitRounds,
    deadline: &Deadline,
) -> Vec<(f64, Rc<SplitRounds>)> {
    let mut found: Vec<(f64, Rc<SplitRounds>)> = Vec::new();
    let mut left: Vec<usize> = (0..all.len()).collect();
    while left.len() > 1 && found.len() < MOST_FEWER && !deadline.has_passed() {
        let before: &[Rc<ShareRounds>] = found.last().map_or(&[], |(_, shares)| shares);
        // On most machines any other one would do as the first one.
        let candidates = &left[..if before.is_empty() { 1 } else { left.len().min(MOST_NEXT) }];
        let with = |&share: &usize| {
            let shares: Rc<SplitRounds> = Rc::new(before.iter().chain([&all[share]]).cloned().collect());
            (playing_time(problem, links, std::slice::from_ref(&shares)), share, shares)
        };
        let Some((time, share, shares)) = candidates.iter().map(with).min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        left.retain(|&other| other != share);
        found.push((time, shares));
    }
    found
}

/// The rounds in another order, which begins with round `first` and ends with the one before it; `None` if sums would then count
/// something twice or miss something, or if members would add up the same parts in different ways, which gives floats other bits.
fn turned(rounds: &[TransferRound], first: usize) -> Option<Vec<TransferRound>> {
    let turned: Vec<TransferRound> = rounds[first..].iter().chain(&rounds[..first]).cloned().collect();
    let members = rounds.iter().flat_map(|(_, pairs)| pairs).map(|&(_, to)| to + 1).max()?;
    // The members whose values each member has added up, a bit for each.
    let mut added: Vec<u128> = (0..members).map(|member| 1 << member).collect();
    for (_, pairs) in &turned {
        let before = added.clone();
        for &(from, to) in pairs {
            if added[to] & before[from] != 0 {
                return None;
            }
            added[to] |= before[from];
        }
        // Sums that have a part in common are equal. So they have been made of the same parts.
        let different: BTreeSet<u128> = added.iter().copied().collect();
        if different.iter().map(|sum| sum.count_ones() as usize).sum::<usize>() != members {
            return None;
        }
    }
    let all = u128::MAX >> (MOST_MEMBERS - members);
    added.iter().all(|&added| added == all).then_some(turned)
}

/// The rounds split after one of them, each with the shares that it makes; `None` where blocks have no members of all shares, or there
/// is no link back.
fn split(links: &MemberLinks<'_>, rounds: &[TransferRound], after: usize) -> Option<SplitRounds> {
    let members = links.links.len();
    let (before, merging) = rounds.split_at(after);
    let (block, share) = (joined(members, before), joined(members, merging));
    let count = share.iter().max()? + 1;
    let met: BTreeSet<(usize, usize)> = block.iter().copied().zip(share.iter().copied()).collect();
    // As many members as pairs of a block and a share: each block has one of each.
    if met.len() != members || (block.iter().max()? + 1) * count != members {
        return None;
    }
    let shares = (0..count).map(|own| share_rounds(links, before, merging, |member| share[member] == own).map(Rc::new));
    shares.collect()
}

/// The rounds of the share that these members have; `None` where there is no link back.
fn share_rounds(
    links: &MemberLinks<'_>,
    before: &[TransferRound],
    merging: &[TransferRound],
    is_own: impl Fn(usize) -> bool,
) -> Option<ShareRounds> {
    let turns = |pairs: &[(usize, usize)]| -> Vec<TurnPair> {
        pairs.iter().enumerate().map(|(turn, &(from, to))| (turn, from, to)).collect()
    };
    let mut collects: Vec<bool> = (0..links.links.len()).map(&is_own).collect();
    let mut collecting: Vec<Vec<TurnPair>> = Vec::new();
    for (_, pairs) in before.iter().rev() {
        let mut needed = turns(pairs);
        needed.retain(|&(_, _, to)| collects[to]);
        needed.iter().for_each(|&(_, from, _)| collects[from] = true);
        collecting.push(needed);
    }
    if collecting.iter().flatten().any(|&(_, from, to)| links.links[to][from].is_none()) {
        return None;
    }
    let back = |pairs: &Vec<TurnPair>| pairs.iter().map(|&(turn, from, to)| (turn, to, from)).collect();
    let copying: Vec<Vec<TurnPair>> = collecting.iter().map(back).collect();
    let merge = |(_, pairs): &TransferRound| {
        let mut pairs = turns(pairs);
        pairs.retain(|&(_, from, _)| is_own(from));
        pairs
    };
    let adding = collecting.into_iter().rev().chain(merging.iter().map(merge));
    let adding = adding.map(|pairs| (TransferKind::Reduce, pairs));
    Some(adding.chain(copying.into_iter().map(|pairs| (TransferKind::Copy, pairs))).collect())
}

/// For each member, the number of the set of members that it is joined with by messages of these rounds.
fn joined(members: usize, rounds: &[TransferRound]) -> Vec<usize> {
    let mut sets = UnionFind::new(members);
    for &(from, to) in rounds.iter().flat_map(|(_, pairs)| pairs) {
        sets.union(from, to);
    }
    numbered(&sets.into_labeling())
}

/// The parcels of each round, of all layers together. Shares are numbered from layer to layer.
fn parcels(layers: &[Rc<SplitRounds>]) -> Vec<Vec<SharedParcel>> {
    let shares: Vec<&Rc<ShareRounds>> = layers.iter().flat_map(|layer| layer.iter()).collect();
    let rounds = shares.iter().map(|rounds| rounds.len()).max().unwrap_or(0);
    let parcels_of = |round: usize| {
        let mut all: Vec<((usize, usize, TransferKind), usize, usize)> = Vec::new();
        for (share, rounds) in shares.iter().enumerate() {
            let Some((kind, pairs)) = rounds.get(round) else { continue };
            let of = |&(turn, from, to): &TurnPair| ((from, to, *kind), turn, share);
            all.extend(pairs.iter().map(of));
        }
        all.sort_unstable();
        let mut parcels: Vec<(usize, SharedParcel)> = Vec::new();
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            let (from, to, kind) = same[0].0;
            let mut shares: Vec<usize> = same.iter().map(|&(_, _, share)| share).collect();
            shares.sort_unstable();
            parcels.push((same[0].1, SharedParcel { kind, from, to, shares }));
        }
        parcels.sort_by_key(|&(turn, _)| turn);
        parcels.into_iter().map(|(_, parcel)| parcel).collect()
    };
    (0..rounds).map(parcels_of).collect()
}

/// How long the rounds of these layers take together, if each member sends what it had when a round began, over the links that are
/// fastest for all chunks together.
fn playing_time(problem: &Problem, links: &MemberLinks<'_>, layers: &[Rc<SplitRounds>]) -> f64 {
    let (topology, members) = (links.topology, links.links.len());
    let dealt = dealt(problem, layers);
    let bytes: Vec<f64> = dealt.iter().map(|list| problem.demand.message_bytes(list).0).collect();
    let mut free = FreeTimes::new(topology);
    let mut ready = vec![Micros::ZERO; members * bytes.len()];
    for round in parcels(layers) {
        let mut next = ready.clone();
        for SharedParcel { from, to, shares, .. } in round {
            let Some(link) = links.links[from][to] else { return f64::INFINITY };
            if shares.iter().all(|&share| dealt[share].is_empty()) {
                continue;
            }
            let total = Bytes(shares.iter().map(|&share| bytes[share]).sum());
            let since = shares.iter().map(|&share| ready[share * members + from]).fold(Micros::ZERO, Micros::max);
            let start = free.earliest(topology, link).max(since);
            free.occupy(topology, link, start, total);
            let end = start + topology.link(link).transfer_time(total);
            for share in shares {
                let place = &mut next[share * members + to];
                *place = place.max(end);
            }
        }
        ready = next;
    }
    ready.into_iter().fold(0.0, |last, time| last.max(time.0))
}

/// The chunks of each share. They are dealt to the layers in turn, and there to the shares in turn.
fn dealt(problem: &Problem, layers: &[Rc<SplitRounds>]) -> Vec<ChunkList> {
    let mut lists: Vec<Vec<ChunkList>> = layers.iter().map(|layer| vec![ChunkList::new(); layer.len()]).collect();
    for (number, chunk) in problem.demand.chunk_ids().enumerate() {
        let (layer, turn) = (number % layers.len(), number / layers.len());
        let shares = &mut lists[layer];
        let share = turn % shares.len();
        shares[share].push(chunk);
    }
    lists.into_iter().flatten().collect()
}

/// The messages of all rounds.
fn messages(parcels: Vec<Vec<SharedParcel>>, dealt: &[ChunkList]) -> Vec<Vec<MemberMessage>> {
    let round = |round: Vec<SharedParcel>| {
        let message = |SharedParcel { kind, from, to, shares }: SharedParcel| {
            let mut chunks: ChunkList = shares.iter().flat_map(|&share| dealt[share].iter().copied()).collect();
            chunks.sort_unstable();
            MemberMessage { kind, from, to, chunks }
        };
        round.into_iter().map(message).filter(|message| !message.chunks.is_empty()).collect()
    };
    parcels.into_iter().map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::SearchOptions;
    use crate::problem::by_hand::{asked, random_machine};
    use schedule::{Collective, verify};
    use topology::resolve;

    /// The makespan of the plan, verified; `None` if it does not apply.
    fn planned(problem: &Problem) -> Option<Micros> {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let found = attempt(problem, &context).expect("nothing breaks").schedule?;
        let verified =
            verify(found, &problem.topology).unwrap_or_else(|no| panic!("{}: {no}", problem.topology.name()));
        Some(verified.schedule().makespan())
    }

    /// α is 1 µs, and 1000 bytes take 1 µs.
    #[test]
    fn layers_use_all_links_at_the_same_time() {
        for (spec, bytes, most) in [
            // Four layers of 400 bytes take four rounds of (1 + 0.4) µs, where each rank has four links.
            ("hypercube:4", 1600, 5.6),
            ("torus2d:4x4", 1600, 5.6),
            // Halved and doubled: eight rounds, and 15/16 of the bytes twice, over four links.
            ("hypercube:4", 64_000, 8.0 + 2.0 * 15.0),
            // Rows and columns of three: three layers, three rounds of exchange with two neighbours each.
            ("torus3d:3x3x3", 2700, 3.0 * 1.9),
            // One share each, that all others send to its member and get from it.
            ("clique:8", 8000, 4.0),
        ] {
            let machine = resolve(&format!("{spec},alpha=1us,bandwidth=1GBps")).expect("a known topology");
            let makespan = planned(&asked(machine, Collective::AllReduce, bytes)).expect(spec);
            assert!(makespan.0 <= most * (1.0 + 1e-9), "{spec}: {makespan}");
        }
    }

    /// Inside of a machine each rank gets 2 KB from each other one; between machines it exchanges those 2 KB with seven ranks.
    #[test]
    fn machines_share_the_work_and_exchange_shares() {
        let machine = resolve("h800x8").expect("a known topology");
        let makespan = planned(&asked(machine, Collective::AllReduce, 16_000)).expect("machines of equal sizes");
        let [inside, between] = [3.0 + 7.0 * 2000.0 / 150e3, 10.0 + 7.0 * 2000.0 / 45.5e3];
        assert!(makespan.0 <= 2.0 * inside + between + 0.01, "{makespan}");
    }

    /// Messages of a leaf to others follow each other by α. Two ranks of each add up half of the chunks, and exchange them with those of
    /// the other leaves: 2 · 3 · (0.5 + 0.64) µs inside, and less than three times 1.08 + 1 + 0.64 µs between leaves.
    #[test]
    fn groups_behind_a_port_have_fewer_shares_than_members() {
        let machine = resolve("fat-tree:8x8").expect("a known topology");
        let makespan = planned(&asked(machine, Collective::AllReduce, 64_000)).expect("leaves of equal sizes");
        assert!(makespan.0 <= 15.0, "{makespan}");
    }

    /// Links of any speed, one way or both, with ports or without.
    #[test]
    fn shares_on_random_machines_are_right() {
        let found = (0..600).filter_map(|seed| planned(&asked(random_machine(seed), Collective::AllReduce, 6000)));
        let count = found.count();
        assert!(count > 5, "{count}");
    }

    #[test]
    fn all_ways_to_split_rounds_are_right() {
        let mut right = 0;
        for spec in ["clique:6", "torus2d:3x4", "mesh2d:2x4", "switch:8", "dgx1", "h800x2", "fat-tree:2x4", "line:4"] {
            let problem = asked(resolve(spec).expect("a known topology"), Collective::AllReduce, 6000);
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let context = Context::among_others(&options, &deadline, Micros::ZERO);
            let links = member_links(&problem);
            let splits = |rounds: Vec<TransferRound>| -> Vec<SplitRounds> {
                (0..=rounds.len()).filter_map(|after| split(&links, &rounds, after)).collect()
            };
            for split in trials(&links, 7, &deadline).take(20).flat_map(splits) {
                let layers = [Rc::new(split)];
                let messages = messages(parcels(&layers), &dealt(&problem, &layers));
                let found = play(&problem, &context, NAME, &messages, arrives_in_turn).expect("an order").schedule;
                if let Some(found) = found {
                    verify(found, &problem.topology).unwrap_or_else(|no| panic!("{spec}: {no}"));
                    right += 1;
                }
            }
        }
        assert!(right > 60, "{right}");
    }

    #[test]
    fn rounds_in_another_order_must_add_up_everything_once() {
        let rounds = |pairs: &[&[(usize, usize)]]| -> Vec<TransferRound> {
            pairs.iter().map(|pairs| (TransferKind::Reduce, pairs.to_vec())).collect()
        };
        let square = rounds(&[&[(0, 1), (1, 0), (2, 3), (3, 2)], &[(0, 2), (2, 0), (1, 3), (3, 1)]]);
        assert_eq!(turned(&square, 1), Some(vec![square[1].clone(), square[0].clone()]));
        // The sums of two blocks meet at different members than the other way round.
        let row = rounds(&[&[(0, 1), (1, 0), (2, 3), (3, 2)], &[(1, 2), (2, 1), (1, 3), (2, 0)]]);
        assert_eq!(turned(&row, 1), None);
        // All would have everything, but two as (0 + 3) + (1 + 2) and two as (0 + 2) + (1 + 3).
        let crossed = rounds(&[&[(0, 1), (1, 0), (2, 3), (3, 2)], &[(0, 2), (1, 3), (3, 0), (2, 1)]]);
        assert_eq!(turned(&crossed, 1), None);
    }
}
