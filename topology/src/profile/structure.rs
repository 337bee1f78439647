//! Finds shared resources that the shape of the machines does not suggest: NICs that only some ranks of a machine
//! share, and switches with narrow up-links.
//!
//! Both are found by comparing pairs. Two ranks of a machine that are slower together than apart share a NIC. To find
//! up-links, many other ranks send until the up-links of their switches are full. A flow to another machine is then
//! slow if it uses these up-links, and as fast as before if both its ranks are on one switch.

use super::ProfileError;
use super::bench::{Bench, ProbeFlow};
use super::contention::Case;
use super::machines::joined;
use super::suspects::SuspectScope;
use crate::Rank;
use crate::rounds::{Pair, Round};

/// A flow counts as held up if it is this factor slower than the known resources explain.
const HELD_UP: f64 = 1.25;

/// Flows that fill up-links and hold each other up.
struct Crowd {
    flows: Round,
    /// The mean time of a byte of the flow that is held up least.
    cost: f64,
}

impl Case<'_> {
    /// Tries the ranks of a machine two by two, where its ranks share a way out that need not be one NIC of all.
    pub(super) fn ask_for_nics(&mut self, bench: &mut Bench<'_>) -> Result<(), ProfileError> {
        let kept = self.verdict();
        let machines = self.scene.places.machines().iter().enumerate();
        let suspected: Vec<(usize, Vec<Rank>)> = machines
            .filter(|(_, members)| members.len() > 2 && self.shares_a_way(members, &kept))
            .map(|(machine, members)| (machine, members.clone()))
            .collect();
        for (machine, members) in suspected {
            let mut sharing = Vec::new();
            for (index, &one) in members.iter().enumerate() {
                for &other in &members[index + 1..] {
                    if self.hold_each_other_up(one, other, bench)? {
                        sharing.push(Pair { from: one, to: other });
                    }
                }
            }
            let groups = joined(self.scene.places.rank_count(), &sharing);
            if groups.iter().any(|group| group.len() == members.len()) {
                continue;
            }
            for (number, group) in groups.iter().enumerate() {
                let (name, about) =
                    (format!("machine{machine}.nic{number}"), format!("ranks {} of machine {machine}", list(group)));
                for suspect in self.scene.sides(&name, &about, group, SuspectScope::Far) {
                    self.measure_suspect(suspect, bench)?;
                }
            }
        }
        Ok(())
    }

    /// Whether something other than the network limits everything that leaves these ranks for other machines, or
    /// everything that arrives there.
    fn shares_a_way(&self, members: &[Rank], kept: &[(usize, f64)]) -> bool {
        let far = || self.scene.view.pairs.keys().filter(|pair| self.scene.is_far(pair));
        let out: Vec<_> = far().filter(|pair| members.contains(&pair.from)).collect();
        let back: Vec<_> = far().filter(|pair| members.contains(&pair.to)).collect();
        kept.iter().map(|(id, _)| &self.suspects[*id].users).any(|users| {
            let holds = |pairs: &[&Pair]| !pairs.is_empty() && pairs.iter().all(|pair| users.contains(pair));
            users.len() < far().count().max(out.len() + back.len() + 1) && (holds(&out) || holds(&back))
        })
    }

    /// Whether two ranks that send to different machines (to different ranks, if there is only one other machine) share
    /// a way out.
    fn hold_each_other_up(&mut self, one: Rank, other: Rank, bench: &mut Bench<'_>) -> Result<bool, ProfileError> {
        let targets: Vec<Rank> =
            self.scene.places.ranks().filter(|&to| self.scene.is_far(&Pair { from: one, to })).collect();
        let home = |rank: Rank| self.scene.places.machine_of(rank);
        let Some(&first) = targets.iter().find(|&&to| self.has(one, to)) else { return Ok(false) };
        let open = |elsewhere: bool| {
            targets
                .iter()
                .copied()
                .find(|&to| to != first && self.has(other, to) && (!elsewhere || home(to) != home(first)))
        };
        let Some(second) = open(true).or_else(|| open(false)) else { return Ok(false) };
        let flows = [Pair { from: one, to: first }, Pair { from: other, to: second }];
        let alone = self.alone.measure(flows[0], self.scene.view, bench)?;
        let alone = alone.max(self.alone.measure(flows[1], self.scene.view, bench)?);
        let loads = flows.map(|pair| self.scene.view.load(pair));
        let bytes = loads[0].1.min(loads[1].1);
        let slopes = bench.slopes(&loads.map(|(pair, _)| (pair, bytes)), 0.05, 2..=4)?;
        Ok(slopes.all.beta - slopes.all.margin > HELD_UP * alone)
    }

    fn has(&self, from: Rank, to: Rank) -> bool {
        self.scene.view.pairs.contains_key(&Pair { from, to })
    }

    /// Looks for switches whose up-links are slower than the ports of their machines together.
    pub(super) fn ask_for_switches(&mut self, bench: &mut Bench<'_>) -> Result<(), ProfileError> {
        if self.scene.places.machines().len() < 4 {
            return Ok(());
        }
        let kept = self.verdict();
        let Some(crowd) = self.most_held_up(&kept, bench)? else { return Ok(()) };
        let places = self.scene.places;
        let mut homeless: Vec<usize> = (0..places.machines().len()).collect();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        while let Some(&first) = homeless.first() {
            let mut group = vec![first];
            for &other in &homeless[1..] {
                let near = match (places.machines()[first].first(), places.machines()[other].first()) {
                    // All flows of the crowd go in one direction; a flow in the other direction is not held up.
                    (Some(&from), Some(&to)) => {
                        self.passes(&kept, &crowd, Pair { from, to }, bench)?
                            && self.passes(&kept, &crowd, Pair { from: to, to: from }, bench)?
                    }
                    _ => false,
                };
                if near {
                    group.push(other);
                }
            }
            homeless.retain(|machine| !group.contains(machine));
            groups.push(group);
            bench.report(places.machines().len() - homeless.len(), places.machines().len());
        }
        if groups.len() < 2 || groups.len() == places.machines().len() {
            return Ok(());
        }
        // One machine to all others was tried before.
        for (number, group) in groups.iter().filter(|group| group.len() > 1).enumerate() {
            let ranks: Vec<Rank> =
                group.iter().flat_map(|&machine| places.machines()[machine].iter().copied()).collect();
            let (name, about) = (format!("switch{number}.uplink"), format!("machines {}", list(group)));
            for suspect in self.scene.sides(&name, &about, &ranks, SuspectScope::Far) {
                self.measure_suspect(suspect, bench)?;
            }
        }
        Ok(())
    }

    /// The round in which most flows between machines are slower than the known resources explain; `None` if there is
    /// no such flow.
    fn most_held_up(&self, kept: &[(usize, f64)], bench: &mut Bench<'_>) -> Result<Option<Crowd>, ProfileError> {
        let slow = |round: &Round, cost: &dyn Fn(usize, &Pair) -> f64| {
            let far = round.iter().enumerate().filter(|(_, pair)| self.scene.is_far(pair));
            far.filter(|(flow, pair)| cost(*flow, pair) > HELD_UP * self.explained(kept, round, pair)).count()
        };
        let seen = |_: usize, pair: &Pair| self.scene.view.pairs.get(pair).map_or(0.0, |glimpse| glimpse.lasting);
        let counted = self.scene.view.rounds.iter().map(|round| (slow(round, &seen), round));
        let Some((count, round)) = counted.max_by_key(|(count, _)| *count) else { return Ok(None) };
        if count < 2 {
            return Ok(None);
        }
        let crowd: Round = round.iter().filter(|pair| self.scene.is_far(pair)).copied().collect();
        let slopes = bench.slopes(&self.crowded(&crowd), 0.05, 2..=4)?;
        let again = slow(&crowd, &|flow, _| slopes.lasting[flow]);
        let cost = slopes.lasting.iter().copied().fold(f64::INFINITY, f64::min);
        Ok((again > 1).then_some(Crowd { flows: crowd, cost }))
    }

    fn crowded(&self, crowd: &[Pair]) -> Vec<ProbeFlow> {
        let shortest = crowd.iter().map(|pair| self.scene.view.load(*pair).1).min().unwrap_or(1);
        crowd.iter().map(|pair| (*pair, shortest)).collect()
    }

    /// Whether a flow is as fast as without the crowd, or far faster than the crowd. Its two ranks leave their flows in
    /// the crowd for it, and their former partners send to each other. Where a rank's messages end together, neither of the two may
    /// send or receive anything else: it would be as late as that.
    fn passes(
        &self,
        kept: &[(usize, f64)],
        crowd: &Crowd,
        pair: Pair,
        bench: &mut Bench<'_>,
    ) -> Result<bool, ProfileError> {
        let Crowd { flows: crowd, cost } = crowd;
        let sender = crowd.iter().find(|flow| flow.from == pair.from);
        let receiver = crowd.iter().find(|flow| flow.to == pair.to);
        let traded = match (sender, receiver) {
            (Some(sent), Some(received)) => Some(Pair { from: received.from, to: sent.to }),
            _ => None,
        };
        let is_alone = |flow: &Pair| ![flow.from, flow.to].iter().any(|end| [pair.from, pair.to].contains(end));
        let stays = |flow: &Pair| !bench.ends_together() || is_alone(flow);
        let rest = crowd.iter().copied().filter(|flow| flow.from != pair.from && flow.to != pair.to);
        let traded = traded.filter(|flow| *flow != pair && self.has(flow.from, flow.to) && self.scene.is_far(flow));
        // The flow is started last: where flows are served one after the other, it then waits for all that share a
        // resource with it.
        let flows: Round = rest.chain(traded).filter(stays).chain([pair]).collect();
        if !self.has(pair.from, pair.to) {
            return Ok(false);
        }
        let slopes = bench.slopes(&self.crowded(&flows), 0.05, 2..=3)?;
        let known = HELD_UP * self.explained(kept, &flows, &pair);
        Ok(slopes.lasting[flows.len() - 1] <= known.max(cost / 2.0))
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
