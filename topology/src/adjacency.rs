//! Which links belong to a rank or a resource.
//!
//! The principal type is [`Adjacency`].

use crate::LinkId;

/// For each of a dense set of owners, an ascending list of links; one allocation for all.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Adjacency {
    starts: Vec<u32>,
    links: Vec<LinkId>,
}

impl Adjacency {
    /// From (link index, owner) pairs in ascending link order.
    pub(crate) fn new(owners: usize, pairs: impl Iterator<Item = (usize, usize)> + Clone) -> Self {
        let mut starts = vec![0u32; owners + 1];
        for (_, owner) in pairs.clone() {
            starts[owner + 1] += 1;
        }
        for owner in 0..owners {
            starts[owner + 1] += starts[owner];
        }
        let mut next = starts.clone();
        let mut links = vec![LinkId(0); starts[owners] as usize];
        for (link, owner) in pairs {
            links[next[owner] as usize] = LinkId::from_index(link);
            next[owner] += 1;
        }
        Self { starts, links }
    }

    /// The same, with the links of each owner in the order of a key, ascending among equals.
    pub(crate) fn sorted_by_key<K: Ord>(&self, key: impl Fn(LinkId) -> K) -> Self {
        let mut sorted = self.clone();
        for owner in self.starts.windows(2) {
            sorted.links[owner[0] as usize..owner[1] as usize].sort_by_key(|&link| key(link));
        }
        sorted
    }

    #[inline]
    pub(crate) fn of(&self, owner: usize) -> &[LinkId] {
        &self.links[self.starts[owner] as usize..self.starts[owner + 1] as usize]
    }
}
