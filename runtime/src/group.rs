//! Which ranks of a job take part in something.
//!
//! The principal type is [`Group`]: ranks in an order, which numbers them from zero. A program for n ranks runs in any
//! group of n, and groups may overlap. [`Group::split`] means what `MPI_Comm_split` does [1].
//!
//! [1] MPI: A Message-Passing Interface Standard, version 4.1, §7.4.2.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// Some ranks of a job, each once; the r-th is number r of the group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Rank>", into = "Vec<Rank>")]
pub struct Group(Vec<Rank>);

/// What no group can be made of.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a group names rank {0} twice")]
pub struct NamedTwice(pub Rank);

/// Which group a rank joins, and where in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Choice {
    /// Those who choose the same color are together.
    pub color: u32,
    /// Groups are ordered by this, then by the numbers that ranks had before.
    pub key: i64,
}

impl Group {
    /// The first so many ranks, in their order.
    pub fn all(ranks: usize) -> Self {
        Self((0..ranks).map(Rank::from_index).collect())
    }

    /// These ranks, in this order.
    ///
    /// # Errors
    /// [`NamedTwice`] unless they are different.
    pub fn new(ranks: impl IntoIterator<Item = Rank>) -> Result<Self, NamedTwice> {
        let ranks: Vec<Rank> = ranks.into_iter().collect();
        let mut seen = BTreeSet::new();
        match ranks.iter().find(|&&rank| !seen.insert(rank)) {
            Some(&twice) => Err(NamedTwice(twice)),
            None => Ok(Self(ranks)),
        }
    }

    /// The groups that this one falls into when number r chooses `choices[r]`, ordered by color. Who chooses nothing, or
    /// is not asked, joins none.
    #[must_use]
    pub fn split(&self, choices: &[Option<Choice>]) -> Vec<Self> {
        let mut groups: BTreeMap<u32, Vec<(i64, usize)>> = BTreeMap::new();
        for (number, choice) in choices.iter().enumerate().take(self.0.len()) {
            if let Some(Choice { color, key }) = *choice {
                groups.entry(color).or_default().push((key, number));
            }
        }
        let group = |mut members: Vec<(i64, usize)>| {
            members.sort_unstable();
            Self(members.into_iter().map(|(_, number)| self.0[number]).collect())
        };
        groups.into_values().map(group).collect()
    }

    /// The ranks, by number.
    pub fn ranks(&self) -> &[Rank] {
        &self.0
    }

    /// The number of a rank of the job; `None` if it is not in the group.
    pub fn number(&self, rank: Rank) -> Option<Rank> {
        self.0.iter().position(|&member| member == rank).map(Rank::from_index)
    }
}

impl TryFrom<Vec<Rank>> for Group {
    type Error = NamedTwice;
    fn try_from(ranks: Vec<Rank>) -> Result<Self, NamedTwice> {
        Self::new(ranks)
    }
}

impl From<Group> for Vec<Rank> {
    fn from(group: Group) -> Self {
        group.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(group: &Group) -> Vec<u32> {
        group.ranks().iter().map(|rank| rank.0).collect()
    }

    /// Every rank is asked for its color and key, and finds itself where the standard says: for all choices of three
    /// colors by six ranks, one of which means none, and keys that run with the ranks or against them.
    #[test]
    fn a_split_is_that_of_the_standard() {
        let all = Group::all(6);
        for case in 0..3_u32.pow(6) {
            for (direction, together) in [(1, false), (-1, false), (1, true)] {
                let choose = |rank: u32| {
                    let color = case / 3_u32.pow(rank) % 3;
                    let key = if together { 7 } else { direction * i64::from(rank) };
                    (color < 2).then_some(Choice { color, key })
                };
                let choices: Vec<_> = (0..6).map(choose).collect();
                let groups = all.split(&choices);
                let mut seen = 0;
                for color in 0..2 {
                    let mut members: Vec<u32> =
                        (0..6).filter(|&rank| choose(rank).is_some_and(|choice| choice.color == color)).collect();
                    if direction < 0 {
                        members.reverse();
                    }
                    if !members.is_empty() {
                        assert_eq!(ranks(&groups[seen]), members, "{choices:?}");
                        seen += 1;
                    }
                }
                assert_eq!(groups.len(), seen);
            }
        }
    }

    #[test]
    fn groups_of_groups_keep_the_ranks_of_the_job() {
        let odd = Group::new([5, 3, 1].map(Rank)).unwrap();
        let choice = |color, key| Some(Choice { color, key });
        let groups = odd.split(&[choice(1, 0), choice(0, 0), choice(1, -1), choice(1, 0)]);
        assert_eq!(groups.iter().map(ranks).collect::<Vec<_>>(), [vec![3], vec![1, 5]]);
        assert_eq!((groups[1].number(Rank(5)), groups[1].number(Rank(3))), (Some(Rank(1)), None));
    }

    #[test]
    fn a_rank_is_in_a_group_once_wherever_the_group_comes_from() {
        assert_eq!(Group::new([0, 2, 0].map(Rank)), Err(NamedTwice(Rank(0))));
        assert!(serde_json::from_str::<Group>("[1,2,1]").is_err());
        let group: Group = serde_json::from_str("[4,2]").unwrap();
        assert_eq!((ranks(&group), serde_json::to_string(&group).unwrap()), (vec![4, 2], "[4,2]".to_owned()));
    }
}
