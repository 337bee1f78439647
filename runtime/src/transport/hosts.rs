//! Which ranks share memory.
//!
//! The principal type is [`Hosts`].

use serde::{Deserialize, Serialize};
use topology::Rank;

/// Which ranks are on one computer. Ranks of different computers talk over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hosts {
    /// All ranks are on one computer.
    #[default]
    One,
    /// Every rank has its own computer, or is treated as if it had.
    Each,
    /// Ranks with the same number are on one computer; indexed by rank.
    Of(Vec<u32>),
}

impl Hosts {
    /// Whether two ranks are on different computers.
    pub fn apart(&self, a: Rank, b: Rank) -> bool {
        match self {
            Self::One => false,
            Self::Each => a != b,
            Self::Of(hosts) => hosts.get(a.index()) != hosts.get(b.index()),
        }
    }

    /// The ranks of each computer. Computers are ordered by their first rank.
    pub fn machines(&self, ranks: usize) -> Vec<Vec<Rank>> {
        let mut machines: Vec<Vec<Rank>> = Vec::new();
        for rank in (0..ranks).map(Rank::from_index) {
            match machines.iter_mut().find(|members| !self.apart(members[0], rank)) {
                Some(members) => members.push(rank),
                None => machines.push(vec![rank]),
            }
        }
        machines
    }

    /// Whether any two of these ranks are on different computers.
    pub(crate) fn any_apart(&self, ranks: &[Rank]) -> bool {
        ranks.windows(2).any(|pair| self.apart(pair[0], pair[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_their_computer() {
        let groups =
            |hosts: Hosts| hosts.machines(4).into_iter().map(|members| members.iter().map(|rank| rank.0).collect());
        let groups = |hosts: Hosts| groups(hosts).collect::<Vec<Vec<u32>>>();
        assert_eq!(groups(Hosts::One), [[0, 1, 2, 3]]);
        assert_eq!(groups(Hosts::Each), [[0], [1], [2], [3]]);
        assert_eq!(groups(Hosts::Of(vec![7, 3, 7, 3])), [[0, 2], [1, 3]]);
        assert_eq!(Hosts::One.machines(0), Vec::<Vec<Rank>>::new());
    }
}
