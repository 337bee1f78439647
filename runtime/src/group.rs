//! Groups: some ranks of a job, in an order.
//!
//! The principal type is [`Group`]. Its order numbers its ranks from zero. A program for n ranks runs in any group of n
//! ranks, and groups may overlap. [`Group::split`] has the meaning of `MPI_Comm_split` [1].
//!
//! [1] MPI: A Message-Passing Interface Standard, version 4.1, §7.4.2.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// Some ranks of a job, each at most once. The position of a rank is its number in the group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Rank>", into = "Vec<Rank>")]
pub struct Group(Vec<Rank>);

/// The error of a list that names a rank twice, which is no group.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a group names rank {0} twice")]
pub struct NamedTwice(pub Rank);

/// The group that a rank joins in a split, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SplitChoice {
    /// Ranks with the same color join the same group.
    pub color: u32,
    /// Ranks of a group are ordered by key, then by their earlier numbers.
    pub key: i64,
}

impl Group {
    /// The ranks `0..ranks`, in this order.
    pub fn all(ranks: usize) -> Self {
        Self((0..ranks).map(Rank::from_index).collect())
    }

    /// These ranks, in this order.
    ///
    /// # Errors
    /// [`NamedTwice`] if a rank occurs twice.
    pub fn new(ranks: impl IntoIterator<Item = Rank>) -> Result<Self, NamedTwice> {
        let ranks: Vec<Rank> = ranks.into_iter().collect();
        let mut seen = BTreeSet::new();
        match ranks.iter().find(|&&rank| !seen.insert(rank)) {
            Some(&twice) => Err(NamedTwice(twice)),
            None => Ok(Self(ranks)),
        }
    }

    /// The groups of a split, ordered by color: number r chooses `choices[r]`. A rank without a choice joins none.
    #[must_use]
    pub fn split(&self, choices: &[Option<SplitChoice>]) -> Vec<Self> {
        let mut groups: BTreeMap<u32, Vec<(i64, usize)>> = BTreeMap::new();
        for (number, choice) in choices.iter().enumerate().take(self.0.len()) {
            if let Some(SplitChoice { color, key }) = *choice {
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

    /// The number of a rank in this group; `None` if the rank is not a member.
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

    /// Compares the split with a direct reading of the standard. Six ranks make all choices of three colors, one of
    /// which means no group. Keys rise with the ranks, fall with them, or are all equal.
    #[test]
    fn a_split_is_that_of_the_standard() {
        let all = Group::all(6);
        for case in 0..3_u32.pow(6) {
            for (direction, together) in [(1, false), (-1, false), (1, true)] {
                let choose = |rank: u32| {
                    let color = case / 3_u32.pow(rank) % 3;
                    let key = if together { 7 } else { direction * i64::from(rank) };
                    (color < 2).then_some(SplitChoice { color, key })
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
        let choice = |color, key| Some(SplitChoice { color, key });
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
