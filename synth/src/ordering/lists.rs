//! A list for each of many things, all in one allocation: which messages wait for which.
//!
//! The principal type is [`Lists`].

/// For each of so many things, a list of others. Things are numbers from 0.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    /// Where each list begins in `all`; at last, where the last one ends.
    starts: Vec<u32>,
    all: Vec<u32>,
}

impl Lists {
    /// From pairs (thing, member of its list). Members keep the order of the pairs.
    pub(crate) fn new(count: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut starts = vec![0u32; count + 1];
        pairs.clone().for_each(|(of, _)| starts[of as usize + 1] += 1);
        (0..count).for_each(|thing| starts[thing + 1] += starts[thing]);
        let mut next = starts.clone();
        let mut all = vec![0; starts[count] as usize];
        for (of, member) in pairs {
            all[next[of as usize] as usize] = member;
            next[of as usize] += 1;
        }
        Self { starts, all }
    }

    /// The list of a thing.
    pub(crate) fn of(&self, thing: usize) -> &[u32] {
        &self.all[self.starts[thing] as usize..self.starts[thing + 1] as usize]
    }

    /// How many things have a list.
    pub(crate) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// All pairs (thing, member of its list).
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + Clone {
        (0..self.count() as u32).flat_map(|thing| self.of(thing as usize).iter().map(move |&member| (thing, member)))
    }

    /// The same pairs the other way round: for each thing, those in whose lists it is.
    pub(crate) fn turned(&self) -> Self {
        Self::new(self.count(), self.pairs().map(|(thing, member)| (member, thing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_the_order_of_their_pairs_and_turn() {
        let pairs = [(2, 1), (0, 3), (2, 0), (2, 3)];
        let lists = Lists::new(4, pairs.iter().copied());
        let all = |lists: &Lists| (0..lists.count()).map(|thing| lists.of(thing).to_vec()).collect::<Vec<_>>();
        assert_eq!(all(&lists), [vec![3], vec![], vec![1, 0, 3], vec![]]);
        assert_eq!(all(&lists.turned()), [vec![2], vec![2], vec![], vec![0, 2]]);
    }
}
