//! Puts ordered pairs of ranks into rounds in which no rank sends twice or receives twice.
//!
//! The complete digraph on N ranks has an arc colouring with N − 1 colours: in round s every rank sends to the rank s
//! places further on. There, every rank sends and receives at once, which loads a network as collectives do. To measure
//! the cost of each pair alone, [`apart`] puts pairs that could disturb each other into different rounds. It also
//! separates what a rank sends from what it receives, because acknowledgements queue behind data.

use crate::Rank;

/// The senders and receivers of one round.
pub(crate) type Round = Vec<Pair>;

/// A sender and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Pair {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
}

impl Pair {
    pub(crate) fn new(from: usize, to: usize) -> Self {
        Self { from: Rank::from_index(from), to: Rank::from_index(to) }
    }
}

/// N − 1 rounds that hold every ordered pair of different ranks once.
pub(crate) fn shifts(ranks: usize) -> impl Iterator<Item = Round> {
    (1..ranks).map(move |shift| (0..ranks).map(|from| Pair::new(from, (from + shift) % ranks)).collect())
}

/// A shared resource, and the part of it that one pair uses; in a round the parts add up to at most 1.
pub(crate) type ResourceShare = (usize, f64);

/// Puts pairs into few rounds (greedily), such that in each round no rank takes part twice and shared resources suffice
/// for all pairs. A pair that needs more than a whole resource has it alone. `parts` says what a pair uses.
pub(crate) fn apart(
    ranks: usize,
    shared: usize,
    pairs: impl Iterator<Item = Pair>,
    parts: &dyn Fn(&Pair) -> Vec<ResourceShare>,
) -> Vec<Round> {
    struct Open {
        round: Round,
        busy: Vec<bool>,
        used: Vec<f64>,
    }
    let mut rounds: Vec<Open> = Vec::new();
    for pair in pairs {
        let parts = parts(&pair);
        let fits = |open: &Open| {
            !open.busy[pair.from.index()]
                && !open.busy[pair.to.index()]
                && parts.iter().all(|(id, part)| open.used[*id] == 0.0 || open.used[*id] + part <= 1.0)
        };
        let index = rounds.iter().position(fits).unwrap_or_else(|| {
            rounds.push(Open { round: Round::new(), busy: vec![false; ranks], used: vec![0.0; shared] });
            rounds.len() - 1
        });
        let open = &mut rounds[index];
        open.busy[pair.from.index()] = true;
        open.busy[pair.to.index()] = true;
        parts.iter().for_each(|(id, part)| open.used[*id] += part);
        open.round.push(pair);
    }
    rounds.into_iter().map(|open| open.round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn check(ranks: usize, rounds: &[Round]) {
        let mut seen = BTreeSet::new();
        for round in rounds {
            let (mut sending, mut receiving) = (BTreeSet::new(), BTreeSet::new());
            for pair in round {
                assert!(pair.from != pair.to && pair.from.index() < ranks && pair.to.index() < ranks);
                assert!(sending.insert(pair.from) && receiving.insert(pair.to), "{ranks}: {pair:?}");
                assert!(seen.insert(*pair), "{ranks}: {pair:?} twice");
            }
        }
        assert_eq!(seen.len(), ranks * ranks.saturating_sub(1), "{ranks}");
    }

    #[test]
    fn rounds_are_disjoint_and_complete() {
        for ranks in [0usize, 1, 2, 3, 4, 5, 8, 9, 16, 33] {
            let rounds: Vec<Round> = shifts(ranks).collect();
            assert_eq!(rounds.len(), ranks.saturating_sub(1));
            check(ranks, &rounds);
        }
    }

    #[test]
    fn pairs_that_share_are_kept_apart() {
        let pairs = || shifts(8).flatten();
        let free = apart(8, 0, pairs(), &|_| Vec::new());
        check(8, &free);
        assert!((14..=24).contains(&free.len()), "{} rounds", free.len());
        let alone = |round: &Round| round.iter().flat_map(|pair| [pair.from, pair.to]).collect::<BTreeSet<_>>().len();
        assert!(free.iter().all(|round| alone(round) == 2 * round.len()), "nobody sends and receives");
        let bus = apart(8, 1, pairs(), &|_| vec![(0, 2.0)]);
        check(8, &bus);
        assert_eq!(bus.len(), 56, "one at a time");
        // Ranks 0 to 3 share one way out that has room for two.
        let out = |pair: &Pair| if pair.from.0 < 4 { vec![(0, 0.5)] } else { Vec::new() };
        let rounds = apart(8, 1, pairs(), &out);
        check(8, &rounds);
        assert!(rounds.iter().all(|round| round.iter().filter(|pair| pair.from.0 < 4).count() <= 2));
        assert!((14..=28).contains(&rounds.len()), "{} rounds", rounds.len());
    }
}
