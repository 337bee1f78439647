//! Resources that ranks might share, and the flows that would show them.
//!
//! The principal type is [`Suspect`]: a set of pairs that may wait for each other. The usual suspects are ports (all
//! flows that leave or enter a rank), memory buses (all flows inside a machine), NICs (all flows that leave or enter a
//! machine), each also as one resource for both directions, and the network as a whole. Flows are chosen so that they
//! load nothing but the suspect more than necessary.

use super::scout::View;
use crate::rounds::{Pair, Round};
use crate::{Rank, Topology};
use std::collections::BTreeSet;

/// Links of a rank to its own machine and to others may use the same port if their costs differ by at most this factor.
const KIND: f64 = 1.5;
/// How many flows are used for a port; enough to fill a port that is this many times faster than a link.
const FAN: usize = 16;
/// With more senders or receivers than this, one flow of each is enough.
const MANY: usize = 8;

/// Which pairs are meant, by their machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SuspectScope {
    Near,
    Far,
    Any,
}

/// Pairs that may share something.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) name: String,
    /// Its description in words.
    pub(super) about: String,
    /// Whether it is one resource for both directions.
    pub(super) both: bool,
    /// Every pair that would use it.
    pub(super) users: BTreeSet<Pair>,
    /// Flows that would fill it.
    pub(super) flows: Round,
}

/// A suspect before its users are known: its senders and its receivers.
struct SuspectDraft<'a> {
    name: String,
    about: String,
    from: &'a [Rank],
    to: &'a [Rank],
    scope: SuspectScope,
    both: bool,
}

/// The ranks of each machine, and the pairs that the probe connects.
pub(super) struct Scene<'a> {
    pub(super) places: &'a Topology,
    pub(super) view: &'a View,
    /// How many cores each machine has, if that is known.
    pub(super) cores: Option<usize>,
}

impl Scene<'_> {
    fn fits(&self, pair: &Pair, scope: SuspectScope) -> bool {
        let near = self.places.machine_of(pair.from) == self.places.machine_of(pair.to);
        let meant = match scope {
            SuspectScope::Near => near,
            SuspectScope::Far => !near,
            SuspectScope::Any => true,
        };
        meant && self.view.pairs.contains_key(pair)
    }

    pub(super) fn is_far(&self, pair: &Pair) -> bool {
        self.places.machine_of(pair.from) != self.places.machine_of(pair.to)
    }

    /// Whether the ranks of a machine outnumber its cores. Then everything inside it waits for the cores first.
    pub(super) fn shares_cores(&self, machine: usize) -> bool {
        self.cores.is_some_and(|cores| self.places.machines()[machine].len() > cores)
    }

    /// Whether a pair is inside a machine.
    pub(super) fn is_inside(&self, pair: &Pair, machine: usize) -> bool {
        [pair.from, pair.to].iter().all(|&rank| self.places.machine_of(rank) == machine)
    }

    fn finish(&self, draft: &SuspectDraft<'_>) -> Option<Suspect> {
        let product = |from: &[Rank], to: &[Rank]| -> Vec<Pair> {
            let pairs = from.iter().flat_map(|&from| to.iter().map(move |&to| Pair { from, to }));
            pairs.filter(|pair| pair.from != pair.to && self.fits(pair, draft.scope)).collect()
        };
        let there = product(draft.from, draft.to);
        let back = if draft.both { product(draft.to, draft.from) } else { Vec::new() };
        let mut spread = Spread::new(self.places);
        let flows = if draft.both {
            let count = flow_count(&there).div_ceil(2);
            let mut flows = spread.pick(&there, count);
            flows.extend(spread.pick(&back, count));
            flows
        } else {
            spread.pick(&there, flow_count(&there))
        };
        let users: BTreeSet<Pair> = there.into_iter().chain(back).collect();
        (flows.len() > 1).then(|| Suspect {
            name: draft.name.clone(),
            about: draft.about.clone(),
            both: draft.both,
            users,
            flows,
        })
    }

    /// Three suspects: all flows that leave `ranks`, all flows that enter them, and both.
    pub(super) fn sides(&self, name: &str, about: &str, ranks: &[Rank], scope: SuspectScope) -> Vec<Suspect> {
        let inside: BTreeSet<Rank> = ranks.iter().copied().collect();
        let others: Vec<Rank> = self.places.ranks().filter(|rank| !inside.contains(rank)).collect();
        let side = |suffix: &str, words: &str, from: &[Rank], to: &[Rank], both| {
            self.finish(&SuspectDraft {
                name: format!("{name}{suffix}"),
                about: format!("{words} {about}"),
                from,
                to,
                scope,
                both,
            })
        };
        let sides = [
            side(".tx", "all that leaves", ranks, &others, false),
            side(".rx", "all that enters", &others, ranks, false),
            side("", "all that leaves or enters", ranks, &others, true),
        ];
        sides.into_iter().flatten().collect()
    }

    /// The suspects that the shape of the machines suggests; each set of pairs once.
    pub(super) fn usual(&self) -> Vec<Suspect> {
        let mut found = Vec::new();
        let all: Vec<Rank> = self.places.ranks().collect();
        let bus = |name: String, about: String, ranks: &[Rank], scope| {
            self.finish(&SuspectDraft { name, about, from: ranks, to: ranks, scope, both: false })
        };
        for (machine, members) in self.places.machines().iter().enumerate() {
            let shares_cores = self.shares_cores(machine);
            if members.len() > 2 && !shares_cores {
                let about = format!("everything inside machine {machine}");
                found.extend(bus(format!("machine{machine}.bus"), about, members, SuspectScope::Near));
            }
            let about = format!("machine {machine}");
            found.extend(self.sides(&format!("machine{machine}.nic"), &about, members, SuspectScope::Far));
            for &rank in members.iter().filter(|_| members.len() > 1) {
                let about = |where_to| format!("rank {rank} {where_to}");
                let alone = [rank];
                if !shares_cores {
                    let about = about("inside its machine");
                    found.extend(self.sides(&format!("rank{rank}"), &about, &alone, SuspectScope::Near));
                }
                found.extend(self.sides(
                    &format!("rank{rank}.nic"),
                    &about("between machines"),
                    &alone,
                    SuspectScope::Far,
                ));
                if self.is_uniform(rank) {
                    found.extend(self.sides(
                        &format!("rank{rank}.port"),
                        &about("to anywhere"),
                        &alone,
                        SuspectScope::Any,
                    ));
                }
            }
        }
        if self.places.machines().len() > 2 {
            let about = "everything between machines".to_owned();
            found.extend(bus("network".to_owned(), about, &all, SuspectScope::Far));
        }
        let mut seen = BTreeSet::new();
        found.retain(|suspect| seen.insert(suspect.users.clone()));
        found
    }

    /// Whether a rank's links to its own machine cost about as much as its links to other machines.
    fn is_uniform(&self, rank: Rank) -> bool {
        let fastest = |scope| {
            let own = self.view.pairs.iter().filter(|(pair, _)| pair.from == rank && self.fits(pair, scope));
            own.map(|(_, glimpse)| glimpse.slope.beta).min_by(f64::total_cmp)
        };
        match (fastest(SuspectScope::Near), fastest(SuspectScope::Far)) {
            (Some(near), Some(far)) => near.max(far) <= KIND * near.min(far),
            _ => false,
        }
    }
}

fn flow_count(pairs: &[Pair]) -> usize {
    let count = |end: fn(&Pair) -> Rank| pairs.iter().map(end).collect::<BTreeSet<_>>().len();
    let (senders, receivers) = (count(|pair| pair.from), count(|pair| pair.to));
    let (few, many) = (senders.min(receivers), senders.max(receivers));
    if few > MANY { few } else { (2 * few).max(many.min(FAN)) }
}

/// Chooses flows that load ranks and machines evenly.
struct Spread<'a> {
    places: &'a Topology,
    /// The number of flows that each rank sends and receives.
    ranks: [Vec<usize>; 2],
    machines: [Vec<usize>; 2],
    taken: BTreeSet<Pair>,
}

impl<'a> Spread<'a> {
    fn new(places: &'a Topology) -> Self {
        let (ranks, machines) = (places.rank_count(), places.machines().len());
        Self {
            places,
            ranks: [vec![0; ranks], vec![0; ranks]],
            machines: [vec![0; machines], vec![0; machines]],
            taken: BTreeSet::new(),
        }
    }

    fn pick(&mut self, pairs: &[Pair], count: usize) -> Round {
        let mut flows = Round::new();
        for _ in 0..count.min(pairs.len()) {
            let free = pairs.iter().filter(|pair| !self.taken.contains(pair));
            let Some(&pair) = free.min_by_key(|pair| self.weight(pair)) else { break };
            self.taken.insert(pair);
            for (side, rank) in [pair.from, pair.to].into_iter().enumerate() {
                self.ranks[side][rank.index()] += 1;
                self.machines[side][self.places.machine_of(rank)] += 1;
            }
            flows.push(pair);
        }
        flows
    }

    /// The busiest end first, then both ends together, ranks before machines.
    fn weight(&self, pair: &Pair) -> (usize, usize, usize, usize, Pair) {
        let (from, to) = (pair.from.index(), pair.to.index());
        let (sent, received) = (self.ranks[0][from], self.ranks[1][to]);
        let machine = |side: usize, rank: Rank| self.machines[side][self.places.machine_of(rank)];
        let (home, away) = (machine(0, pair.from), machine(1, pair.to));
        let reverse = self.ranks[1][from] + self.ranks[0][to];
        (sent + received, home + away, reverse, from.abs_diff(to), *pair)
    }
}
