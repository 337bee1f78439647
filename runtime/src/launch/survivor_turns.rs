//! To whom a rank turns that is left after a failure, and when a leader has waited enough: no sockets, no clocks.
//!
//! The principal type is [`SurvivorTurns`].

use std::collections::VecDeque;
use topology::Rank;

/// What a rank does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SurvivorTurn {
    /// It goes to this rank, and hears from it who has come.
    Follow(Rank),
    /// It waits for all others, and tells them who has come.
    Lead,
}

/// The turns of one rank: it follows each lower rank that is not known to be gone, the lowest first, until one has told it who has
/// come. If none does, it leads.
pub(super) struct SurvivorTurns {
    leaders: VecDeque<Rank>,
}

impl SurvivorTurns {
    pub(super) fn new(own: Rank, members: &[Rank]) -> Self {
        let mut leaders: Vec<Rank> = members.iter().copied().filter(|rank| *rank < own).collect();
        leaders.sort_unstable();
        Self { leaders: leaders.into() }
    }

    pub(super) fn next(&mut self, is_gone: impl Fn(Rank) -> bool) -> SurvivorTurn {
        while let Some(leader) = self.leaders.pop_front() {
            if !is_gone(leader) {
                return SurvivorTurn::Follow(leader);
            }
        }
        SurvivorTurn::Lead
    }
}

/// Whether a leader waits for nobody any more: who has not come is gone.
pub(super) fn have_all_come(
    own: Rank,
    members: &[Rank],
    is_here: impl Fn(Rank) -> bool,
    is_gone: impl Fn(Rank) -> bool,
) -> bool {
    members.iter().all(|&rank| rank == own || is_here(rank) || is_gone(rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::simulation::setup::Random;
    use std::collections::BTreeSet;

    /// How many ticks a leader waits, and how much longer a follower does.
    const LIMIT: u64 = 300;
    const MARGIN: u64 = 150;
    const NEVER: u64 = u64::MAX;

    #[derive(Clone, PartialEq, Eq, Debug)]
    enum Stage {
        Away,
        Following {
            leader: usize,
            since: u64,
            is_connected: bool,
        },
        Leading {
            since: u64,
        },
        Done(BTreeSet<usize>),
        /// Its leader has said nothing in time.
        Failed,
    }

    /// One rank that meets the others.
    struct Survivor {
        stage: Stage,
        turns: SurvivorTurns,
        comes_at: u64,
        dies_at: u64,
        /// What its leader has told.
        word: Option<BTreeSet<usize>>,
    }

    struct MeetingModel {
        random: Random,
        now: u64,
        survivors: Vec<Survivor>,
        /// When a rank hears that another one is dead, after it has died.
        news: Vec<Vec<u64>>,
    }

    impl MeetingModel {
        /// Some ranks of which some die, before or while the others meet. `hears` says whether ranks hear of deaths at all: news
        /// come through rank 0, which may be dead.
        fn new(seed: u64, hears: bool) -> Self {
            let mut random = Random(seed);
            let ranks = 2 + random.below(7) as usize;
            let members: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
            let survivor = |rank: usize, random: &mut Random| Survivor {
                stage: Stage::Away,
                turns: SurvivorTurns::new(Rank::from_index(rank), &members),
                comes_at: random.below(100),
                dies_at: [0, random.below(250), NEVER, NEVER, NEVER][random.below(5) as usize],
                word: None,
            };
            let survivors = (0..ranks).map(|rank| survivor(rank, &mut random)).collect();
            let delay = |random: &mut Random| if hears { random.below(20) } else { NEVER };
            let news = (0..ranks).map(|_| (0..ranks).map(|_| delay(&mut random)).collect()).collect();
            Self { random, now: 0, survivors, news }
        }

        fn is_dead(&self, rank: usize) -> bool {
            self.now >= self.survivors[rank].dies_at
        }

        fn is_known_gone(&self, by: usize, rank: usize) -> bool {
            self.now >= self.survivors[rank].dies_at.saturating_add(self.news[by][rank])
        }

        fn turn(&mut self, own: usize) {
            let gone: Vec<bool> = (0..self.survivors.len()).map(|rank| self.is_known_gone(own, rank)).collect();
            let since = self.now;
            let survivor = &mut self.survivors[own];
            survivor.stage = match survivor.turns.next(|rank| gone[rank.index()]) {
                SurvivorTurn::Follow(leader) => Stage::Following { leader: leader.index(), since, is_connected: false },
                SurvivorTurn::Lead => Stage::Leading { since },
            };
        }

        fn step(&mut self, own: usize) {
            match self.survivors[own].stage.clone() {
                Stage::Away if self.now >= self.survivors[own].comes_at => self.turn(own),
                Stage::Following { leader, since, is_connected } => {
                    if let Some(group) = self.survivors[own].word.take() {
                        self.survivors[own].stage = Stage::Done(group);
                    } else if self.is_dead(leader)
                        || !is_connected && (self.is_known_gone(own, leader) || self.now > since + LIMIT)
                    {
                        self.turn(own);
                    } else if is_connected && self.now > since + LIMIT + MARGIN {
                        self.survivors[own].stage = Stage::Failed;
                    } else if !is_connected
                        && matches!(self.survivors[leader].stage, Stage::Leading { .. })
                        && self.random.below(3) == 0
                    {
                        // A listener answers only while its owner leads.
                        self.survivors[own].stage = Stage::Following { leader, since: self.now, is_connected: true };
                    }
                }
                Stage::Leading { since } => self.lead(own, since),
                _ => {}
            }
        }

        fn lead(&mut self, own: usize, since: u64) {
            let is_here = |model: &Self, rank: usize| {
                !model.is_dead(rank)
                    && matches!(model.survivors[rank].stage, Stage::Following { leader, is_connected: true, .. } if leader == own)
            };
            let members: Vec<Rank> = (0..self.survivors.len()).map(Rank::from_index).collect();
            let all = have_all_come(
                Rank::from_index(own),
                &members,
                |rank| is_here(self, rank.index()),
                |rank| self.is_known_gone(own, rank.index()),
            );
            if !all && self.now < since + LIMIT {
                return;
            }
            let came: Vec<usize> = (0..self.survivors.len()).filter(|&rank| is_here(self, rank)).collect();
            let group: BTreeSet<usize> = came.iter().copied().chain([own]).collect();
            for rank in came {
                // It may die before it has told all.
                if self.random.below(40) == 0 {
                    self.survivors[own].dies_at = self.now;
                    return;
                }
                self.survivors[rank].word = Some(group.clone());
            }
            self.survivors[own].stage = Stage::Done(group);
        }

        /// Until everybody is done; the groups of those who live.
        fn play(&mut self) -> Vec<(usize, BTreeSet<usize>)> {
            // As many leaders as there are ranks may die or be late, one after the other.
            let latest = self.survivors.len() as u64 * 2 * (LIMIT + MARGIN) + 1000;
            let is_done = |model: &Self, rank: usize| {
                model.is_dead(rank) || matches!(model.survivors[rank].stage, Stage::Done(_))
            };
            while self.now < latest && !(0..self.survivors.len()).all(|rank| is_done(self, rank)) {
                self.now += 1;
                let first = self.random.below(self.survivors.len() as u64) as usize;
                for at in 0..self.survivors.len() {
                    let own = (first + at) % self.survivors.len();
                    if !self.is_dead(own) {
                        self.step(own);
                    }
                }
            }
            let done = |(rank, survivor): (usize, &Survivor)| match &survivor.stage {
                Stage::Done(group) => Some((rank, group.clone())),
                _ => None,
            };
            self.survivors.iter().enumerate().filter(|(rank, _)| !self.is_dead(*rank)).filter_map(done).collect()
        }
    }

    /// Every rank that lives ends, and nobody is in two groups that can begin: all whose leader lives are of the same opinion.
    #[test]
    fn survivors_meet_in_one_group_whatever_the_order() {
        for seed in 0..2000 {
            for hears in [true, false] {
                let mut model = MeetingModel::new(seed, hears);
                let done = model.play();
                let living: BTreeSet<usize> = (0..model.survivors.len()).filter(|&rank| !model.is_dead(rank)).collect();
                let context = format!("seed {seed}, news {hears}: {done:?} of {living:?}");
                assert_eq!(done.len(), living.len(), "somebody waits for ever: {context}");
                for (rank, group) in &done {
                    let leader = *group.first().unwrap();
                    assert!(group.contains(rank), "{context}");
                    // A group whose leader is dead cannot begin: its members find that out, and meet again.
                    for (other, theirs) in done.iter().filter(|_| !model.is_dead(leader)) {
                        let is_in = group.contains(other);
                        assert!(!is_in || theirs == group, "rank {other} went elsewhere: {context}");
                    }
                }
            }
        }
    }

    /// If all deaths are known before the others meet, these are one group.
    #[test]
    fn survivors_of_earlier_deaths_are_one_group() {
        for seed in 0..2000 {
            let mut model = MeetingModel::new(seed, true);
            for survivor in &mut model.survivors {
                survivor.comes_at += 100;
                survivor.dies_at = if survivor.dies_at == 0 { 0 } else { NEVER };
            }
            let done = model.play();
            let living: BTreeSet<usize> = (0..model.survivors.len()).filter(|&rank| !model.is_dead(rank)).collect();
            if model.survivors.iter().all(|survivor| [0, NEVER].contains(&survivor.dies_at)) {
                assert!(done.iter().all(|(_, group)| *group == living), "seed {seed}: {done:?} of {living:?}");
            }
        }
    }
}
