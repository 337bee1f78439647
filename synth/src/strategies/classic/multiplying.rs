//! Recursive multiplying: blocks of members that have the same sum, or the same chunks, merge, along links that exist.
//!
//! The principal function is [`rounds`]. At first each member is a block. In each round, blocks merge in groups: every member of a block
//! gets the sum of each other block of its group from a member of that one [1]. Where that is not possible, some members leave, and get the
//! result at the end ([`Leaving`]).
//!
//! Which blocks merge decides which can merge later. Blocks are chosen beside those that have merged in the same round, such that the
//! merged ones can go on with as many as possible. So rows of a torus merge first, and then its columns. Ties are broken at random, many
//! times.
//!
//! [1] Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for AllReduce", Parallel Computing 69, 2017.

use super::sums::TransferRound;
use crate::problem::Deadline;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use schedule::{TransferKind, clearly_before};
use topology::{Bytes, FreeTimes, LinkId, Micros, Topology};

/// More members are not merged: that takes the cube of their number.
pub(super) const MOST_MEMBERS: usize = 128;
/// The most blocks that merge into one; more if all do.
const GROUPS: [usize; 4] = [2, 3, 4, 8];
/// Trials of each kind: so many, or fewer for many members.
const TRIALS: usize = 40;
const WORK: usize = 1 << 16;
/// Of many blocks that could be next, or that a choice could suit, so many are looked at.
const MOST_CANDIDATES: usize = 8;
const MOST_BESIDE: usize = 16;
/// How many of the plans that promise most are worth playing, of those whose messages need not wait for others of their round, and of
/// all.
const MOST_PLANS: usize = 3;
/// The search may take one part in this many of the time.
const PART: u32 = 4;
/// In the rounds of a trial, links may be slower than the fastest one that serves by so much.
const NEAR: [f64; 3] = [1.02, 1.3, f64::INFINITY];

/// From which member to which messages go.
type MemberPairs = Vec<(usize, usize)>;

/// The links between members, for messages of one length.
pub(super) struct MemberLinks<'a> {
    pub(super) topology: &'a Topology,
    bytes: Bytes,
    /// From each member to each other one, if there is one.
    pub(super) links: Vec<Vec<Option<LinkId>>>,
    /// How long a message takes there; infinite without a link.
    times: Vec<Vec<f64>>,
}

impl<'a> MemberLinks<'a> {
    pub(super) fn new(topology: &'a Topology, bytes: Bytes, links: Vec<Vec<Option<LinkId>>>) -> Self {
        let time =
            |link: &Option<LinkId>| link.map_or(f64::INFINITY, |link| topology.link(link).transfer_time(bytes).0);
        let times = links.iter().map(|row| row.iter().map(time).collect()).collect();
        Self { topology, bytes, links, times }
    }

    /// How long a message takes from a member to another one; infinite without a link.
    pub(super) fn time(&self, from: usize, to: usize) -> f64 {
        self.times[from][to]
    }

    /// How long rounds take, each as early as possible. Where something would arrive in a round before its receiver has sent what it had
    /// when the round began, it waits with `delays`; else the time is infinite.
    fn playing_time(&self, rounds: &[TransferRound], delays: bool) -> f64 {
        let mut free = FreeTimes::new(self.topology);
        let mut ready = vec![Micros::ZERO; self.links.len()];
        for (_, pairs) in rounds {
            let (mut arrivals, mut last_start) =
                (Vec::with_capacity(pairs.len()), vec![Micros::ZERO; self.links.len()]);
            for &(from, to) in pairs {
                let Some(link) = self.links[from][to] else { return f64::INFINITY };
                let start = free.earliest(self.topology, link).max(ready[from]);
                free.occupy(self.topology, link, start, self.bytes);
                last_start[from] = start;
                arrivals.push((to, start, self.topology.link(link).transfer_time(self.bytes)));
            }
            for (to, start, time) in arrivals {
                let is_early = !clearly_before(last_start[to], start + time);
                if is_early && !delays {
                    return f64::INFINITY;
                }
                ready[to] = ready[to].max(if is_early { last_start[to] } else { start } + time);
            }
        }
        ready.into_iter().fold(0.0, |last, time| last.max(time.0))
    }
}

/// Rounds, and how long they take.
type TimedRounds = (f64, Vec<TransferRound>);

/// Members with the same sum.
type Block = Vec<usize>;

/// How one trial merges.
#[derive(Clone, Copy, Debug)]
struct MergingRules {
    /// The most blocks in a group.
    most: usize,
    leaving: Leaving,
    /// In how many rounds, the first ones, blocks fold if they may.
    foldings: u32,
}

/// Decides between what is equally good: at random, or always in the same way.
struct Ties(Option<Pcg64Mcg>);

impl Ties {
    fn next(&mut self) -> u64 {
        self.0.as_mut().map_or(0, Rng::next_u64)
    }
}

/// What may happen besides that all members of a block merge with all of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaving {
    Nobody,
    /// The members of a block add to those of another one, and get the result at the end.
    Folding,
    /// Members that nobody of the other blocks reaches get the result at the end, from one of their own block.
    OutOfReach,
}

/// Rounds that merge all members by messages of one length, those first that promise to be fastest; for few members only.
pub(super) fn rounds(links: &MemberLinks<'_>, seed: u64, deadline: &Deadline) -> Vec<Vec<TransferRound>> {
    rounds_by(links, seed, deadline, |rounds, delays| links.playing_time(rounds, delays))
}

/// The same where `time` says how long rounds take, with messages that wait for others of their round or without.
pub(super) fn rounds_by(
    links: &MemberLinks<'_>,
    seed: u64,
    deadline: &Deadline,
    time: impl Fn(&[TransferRound], bool) -> f64,
) -> Vec<Vec<TransferRound>> {
    let members = links.links.len();
    let mut ties = Ties(Some(Pcg64Mcg::seed_from_u64(seed)));
    let deadline = &deadline.part(PART);
    let leaving = [Leaving::Nobody, Leaving::Folding, Leaving::OutOfReach];
    let kinds: Vec<_> = group_sizes(members).flat_map(|most| leaving.map(|leaving| (most, leaving))).collect();
    // The best rounds of each kind, without delays and with them.
    let mut found: [Vec<Option<TimedRounds>>; 2] = [vec![None; kinds.len()], vec![None; kinds.len()]];
    for number in 0..(WORK / (members * members)).clamp(1, TRIALS) as u32 {
        for (kind, &(most, leaving)) in kinds.iter().enumerate() {
            if deadline.has_passed() {
                break;
            }
            let rules = MergingRules { most, leaving, foldings: 1 + number % members.ilog2() };
            let Some(rounds) = merged(&links.times, rules, &mut ties) else { continue };
            for (found, delays) in found.iter_mut().zip([false, true]) {
                let time = time(&rounds, delays);
                if time < found[kind].as_ref().map_or(f64::INFINITY, |best| best.0) {
                    found[kind] = Some((time, rounds.clone()));
                }
            }
        }
    }
    let best = |found: Vec<Option<TimedRounds>>| {
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.dedup_by(|a, b| a.1 == b.1);
        found.into_iter().take(MOST_PLANS).map(|(_, rounds)| rounds)
    };
    found.into_iter().flat_map(best).collect()
}

/// The most blocks that merge into one.
fn group_sizes(members: usize) -> impl DoubleEndedIterator<Item = usize> {
    GROUPS.into_iter().filter(move |&most| most < members).chain([members])
}

/// Rounds of trials in which nobody leaves, each once; first of large groups, because these need few rounds. In the first trials
/// nothing is random: where ranks are numbered row by row, all blocks then merge in the same direction.
pub(super) fn trials<'a>(
    links: &'a MemberLinks<'_>,
    seed: u64,
    deadline: &'a Deadline,
) -> impl Iterator<Item = Vec<TransferRound>> + 'a {
    let members = links.links.len();
    let mut ties = Ties(Some(Pcg64Mcg::seed_from_u64(seed)));
    let mut seen: Vec<Vec<TransferRound>> = Vec::new();
    let numbers = 0..(WORK / (members * members)).clamp(2, TRIALS);
    let all = numbers.flat_map(move |number| group_sizes(members).rev().map(move |most| (number, most)));
    all.take_while(|_| !deadline.has_passed()).filter_map(move |(number, most)| {
        let rules = MergingRules { most, leaving: Leaving::Nobody, foldings: 0 };
        let mut none = Ties(None);
        let ties = if number == 0 { &mut none } else { &mut ties };
        let rounds = merged(&links.times, rules, ties).filter(|rounds| !seen.contains(rounds))?;
        seen.push(rounds.clone());
        Some(rounds)
    })
}

/// The rounds of one trial; `None` if it comes to an end before all have merged.
fn merged(times: &[Vec<f64>], rules: MergingRules, ties: &mut Ties) -> Option<Vec<TransferRound>> {
    let MergingRules { most, leaving, foldings } = rules;
    let near = NEAR[ties.next() as usize % NEAR.len()];
    let mut blocks: Vec<Block> = (0..times.len()).map(|member| vec![member]).collect();
    // What those get at the end that have left comes in the opposite order.
    let (mut rounds, mut last): (Vec<TransferRound>, Vec<MemberPairs>) = Default::default();
    while blocks.len() > 1 {
        let is_folding = leaving == Leaving::Folding && rounds.len() < foldings as usize;
        let mut round = MergingRound::new(times, &blocks, leaving == Leaving::OutOfReach, near);
        while let Some(block) = round.next() {
            if is_folding { round.fold(block, ties) } else { round.merge(block, most, ties) }
        }
        let MergingRound { groups, mut adding, copying, .. } = round;
        if adding.is_empty() {
            return None;
        }
        adding.sort_by_key(|&(turn, ..)| turn);
        rounds.push((TransferKind::Reduce, adding.into_iter().map(|(_, from, to)| (from, to)).collect()));
        last.extend(Some(copying).filter(|copying| !copying.is_empty()));
        blocks = groups;
    }
    rounds.extend(last.into_iter().rev().map(|pairs| (TransferKind::Copy, pairs)));
    Some(rounds)
}

/// One round while it grows.
struct MergingRound<'a> {
    times: &'a [Vec<f64>],
    blocks: &'a [Block],
    /// Whether some members of a block are enough.
    sheds: bool,
    /// How long it takes until the members of two blocks have the sums of both; infinite where they are too far apart.
    apart: Vec<Vec<f64>>,
    is_open: Vec<bool>,
    /// The blocks that there will be.
    groups: Vec<Block>,
    /// Whose turn it is in a group, sender and receiver: in turns, ports are busy all the time.
    adding: Vec<(usize, usize, usize)>,
    copying: MemberPairs,
    /// How many messages each member sends.
    sent: Vec<u32>,
}

impl<'a> MergingRound<'a> {
    /// A round of blocks on links that are at most `near` times as slow as the fastest ones that serve.
    fn new(times: &'a [Vec<f64>], blocks: &'a [Block], sheds: bool, near: f64) -> Self {
        let mut apart = vec![vec![f64::INFINITY; blocks.len()]; blocks.len()];
        let mut least = f64::INFINITY;
        for one in 0..blocks.len() {
            for other in 0..one {
                let [a, b] = [&blocks[one], &blocks[other]];
                let time = feeding_time(times, a, b, sheds).max(feeding_time(times, b, a, sheds));
                (apart[one][other], apart[other][one], least) = (time, time, least.min(time));
            }
        }
        apart.iter_mut().flatten().filter(|time| **time > least * near).for_each(|time| *time = f64::INFINITY);
        let (groups, adding, copying) = (Vec::new(), Vec::new(), Vec::new());
        let (is_open, sent) = (vec![true; blocks.len()], vec![0; times.len()]);
        Self { times, blocks, sheds, apart, is_open, groups, adding, copying, sent }
    }

    /// The next block: one beside as many as possible that have had their turn, and of those the one with the fewest others.
    fn next(&self) -> Option<usize> {
        let beside = |block: usize, is_open: bool| {
            let others = self.apart[block].iter().zip(&self.is_open);
            others.filter(|&(time, &open)| open == is_open && time.is_finite()).count()
        };
        let open = (0..self.blocks.len()).filter(|&block| self.is_open[block]);
        open.min_by_key(|&block| (std::cmp::Reverse(beside(block, false)), beside(block, true)))
    }

    /// Open blocks that are close to all of these, the nearest to the first one; of many, some.
    fn close(&self, to: &[usize], ties: &mut Ties) -> Vec<usize> {
        let is_close =
            |&other: &usize| self.is_open[other] && to.iter().all(|&block| self.apart[block][other].is_finite());
        let mut close: Vec<(usize, u64)> =
            (0..self.blocks.len()).filter(is_close).map(|other| (other, ties.next())).collect();
        let time = |other: usize| self.apart[to[0]][other];
        close.sort_by(|a, b| time(a.0).total_cmp(&time(b.0)).then(a.1.cmp(&b.1)));
        close.into_iter().map(|(other, _)| other).take(MOST_CANDIDATES).collect()
    }

    /// How many of the last groups of this round members could merge with in the next one, and how many links they have.
    fn prospects(&self, members: &[usize]) -> (usize, usize) {
        let can = |from: &[usize], to: &[usize]| feeding_time(self.times, from, to, false).is_finite();
        let last = self.groups.iter().rev().take(MOST_BESIDE);
        let groups = last.filter(|group| can(group, members) && can(members, group)).count();
        let links = members.iter().map(|&member| self.times[member].iter().filter(|time| time.is_finite()).count());
        (groups, links.sum())
    }

    /// The members of a block that get something from all others of a group.
    fn reached(&self, block: usize, group: &[usize]) -> Block {
        let gives =
            |from: usize, member: usize| self.blocks[from].iter().any(|&giver| self.times[giver][member].is_finite());
        let is_reached = |&member: &usize| group.iter().all(|&from| from == block || gives(from, member));
        self.blocks[block].iter().copied().filter(is_reached).collect()
    }

    /// What remains of the blocks of a group; `None` if nobody would of some block, or somebody could not be told the result.
    fn members(&self, group: &[usize]) -> Option<Vec<Block>> {
        if !self.sheds {
            return Some(group.iter().map(|&block| self.blocks[block].clone()).collect());
        }
        let reached: Vec<Block> = group.iter().map(|&block| self.reached(block, group)).collect();
        let is_told = |(&block, reached): (&usize, &Block)| {
            let all = self.blocks[block].iter().filter(|member| !reached.contains(member));
            let mut out = all.map(|&member| reached.iter().any(|&from| self.times[from][member].is_finite()));
            !reached.is_empty() && out.all(|is_told| is_told)
        };
        group.iter().zip(&reached).all(is_told).then_some(reached)
    }

    /// Merges a block with those that are best, up to `most` together.
    fn merge(&mut self, block: usize, most: usize, ties: &mut Ties) {
        let (mut group, mut members) = (vec![block], vec![self.blocks[block].clone()]);
        self.is_open[block] = false;
        while group.len() < most {
            let with = |other: usize| self.members(&[&group[..], &[other]].concat());
            let possible = self.close(&group, ties).into_iter().filter_map(|other| Some((other, with(other)?)));
            let rated = possible.map(|(other, all)| ((self.prospects(&all.concat()), ties.next()), other, all));
            let Some((_, best, all)) = rated.max_by_key(|&(rating, ..)| rating) else { break };
            members = all;
            group.push(best);
            self.is_open[best] = false;
        }
        for turn in 1..group.len() {
            for (at, &from) in group.iter().enumerate() {
                let to = (at + turn) % group.len();
                let pairs = self.feed(&self.blocks[from], &members[to]);
                self.adding.extend(pairs.into_iter().map(|(from, to)| (turn, from, to)));
            }
        }
        for (&block, members) in group.iter().zip(&members) {
            let out: Block = self.blocks[block].iter().copied().filter(|member| !members.contains(member)).collect();
            let pairs = self.feed(members, &out);
            self.copying.extend(pairs);
        }
        self.groups.push(members.concat());
    }

    /// Folds a block into another one, or the other way round.
    fn fold(&mut self, block: usize, ties: &mut Ties) {
        let ways = self.close(&[block], ties).into_iter().flat_map(|other| [(block, other), (other, block)]);
        let best = ways.max_by_key(|&(_, into)| (self.prospects(&self.blocks[into]), ties.next()));
        let (leaves, stays) = best.unwrap_or((block, block));
        (self.is_open[leaves], self.is_open[stays]) = (false, false);
        if leaves != stays {
            let [out, members] = [&self.blocks[leaves], &self.blocks[stays]];
            let adding = self.feed(out, members);
            self.adding.extend(adding.into_iter().map(|(from, to)| (0, from, to)));
            let copying = self.feed(members, out);
            self.copying.extend(copying);
        }
        self.groups.push(self.blocks[stays].clone());
    }

    /// Who of some gives each of others something: the nearest, and of those who sends least.
    fn feed(&mut self, from: &[usize], to: &[usize]) -> MemberPairs {
        let mut pairs = Vec::new();
        for &member in to {
            let order = |&a: &usize, &b: &usize| {
                self.times[a][member].total_cmp(&self.times[b][member]).then(self.sent[a].cmp(&self.sent[b]))
            };
            if let Some(giver) = from.iter().copied().min_by(order) {
                self.sent[giver] += 1;
                pairs.push((giver, member));
            }
        }
        pairs
    }
}

/// The time until each of some members has got something from the nearest of others; with `some`, each that can.
fn feeding_time(times: &[Vec<f64>], from: &[usize], to: &[usize], some: bool) -> f64 {
    let nearest = |member: usize| from.iter().map(|&giver| times[giver][member]).fold(f64::INFINITY, f64::min);
    let all = to.iter().map(|&member| nearest(member)).filter(|time| !some || time.is_finite());
    all.reduce(f64::max).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Problem, SearchOptions};
    use crate::strategies::classic::sums;
    use crate::strategies::{Attempt, Context};
    use schedule::{Collective, verify};
    use topology::resolve;

    /// The plan for an AllReduce, verified.
    fn planned(problem: &Problem) -> Option<Attempt> {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempts = sums::attempts(problem, &context).expect("nothing breaks");
        let found = attempts.into_iter().find(|attempt| attempt.name == "classic/multiplying").expect("it is tried");
        if let Some(schedule) = found.schedule.clone() {
            verify(schedule, &problem.topology).unwrap_or_else(|no| panic!("{}: {no}", problem.topology.name()));
        }
        Some(found).filter(|found| found.schedule.is_some())
    }

    /// Rounds of α where a message costs nothing else: no fewer are possible on most of these.
    #[test]
    fn blocks_merge_along_links_in_few_rounds() {
        for (spec, rounds) in [
            ("hypercube:4", 4.0),
            ("torus2d:4x4", 4.0),
            ("torus2d:3x4", 3.0),
            ("torus3d:3x3x3", 3.0),
            ("clique:7", 1.0),
            ("line:4", 3.0),
            ("mesh2d:4x4", 6.0),
            ("switch:8", 3.0),
        ] {
            let machine = resolve(&format!("{spec},alpha=1us")).expect("a known topology");
            let found = planned(&asked(machine, Collective::AllReduce, 0)).expect(spec);
            let makespan = found.schedule.map(|schedule| schedule.makespan());
            assert!(makespan <= Some(Micros(rounds)), "{spec}: {makespan:?}");
        }
    }

    /// Links of any speed, one way or both, with ports or without.
    #[test]
    fn what_merges_on_random_machines_is_right() {
        let found = (0..120).filter_map(|seed| planned(&asked(random_machine(seed), Collective::AllReduce, 6000)));
        let count = found.count();
        assert!(count > 10, "{count}");
    }

    #[test]
    fn a_seed_decides_everything() {
        let problem = asked(resolve("mesh2d:3x4").expect("a known topology"), Collective::AllReduce, 4000);
        let transfers = || planned(&problem).and_then(|found| found.schedule).map(|schedule| schedule.transfers);
        assert_eq!(transfers(), transfers());
    }
}
