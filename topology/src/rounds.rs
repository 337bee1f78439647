//! Every ordered pair of ranks, in rounds in which nobody talks to two others.
//!
//! The complete graph on an even number of ranks has an edge colouring with one colour less than ranks, known
//! from tournaments as the circle method: one rank stays, the others move around the table. With an odd number
//! one seat stays empty, and whoever sits opposite has a pause. Each colour is played in both directions, one
//! after the other, so that a full-duplex cable is never asked for both at once.

use crate::Rank;
use std::ops::Range;

/// The senders and receivers of one round.
pub(crate) type Round = Vec<Pair>;

/// A sender and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pair {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
}

/// Rounds that hold every ordered pair of different ranks once: 2·(N−1) of them for even N, 2·N for odd.
pub(crate) fn disjoint(ranks: usize) -> impl Iterator<Item = Round> {
    let seats = ranks + ranks % 2;
    let turns: Range<usize> = 0..seats.saturating_sub(1);
    turns.flat_map(move |turn| {
        // The seats on the circle modulo `circle` that are opposite each other have numbers that add to 2·turn.
        let circle = seats - 1;
        let opposite = move |step: usize| ((turn + step) % circle, (turn + circle - step) % circle);
        let tables = std::iter::once((turn, circle)).chain((1..seats / 2).map(opposite));
        let edges: Vec<(usize, usize)> = tables.filter(|(one, other)| *one < ranks && *other < ranks).collect();
        let pair = |from: usize, to: usize| Pair { from: Rank::from_index(from), to: Rank::from_index(to) };
        let there: Round = edges.iter().map(|(one, other)| pair(*one, *other)).collect();
        let back = edges.iter().map(|(one, other)| pair(*other, *one)).collect();
        [there, back]
    })
}

/// Every ordered pair in a round of its own.
pub(crate) fn one_by_one(ranks: usize) -> impl Iterator<Item = Round> {
    disjoint(ranks).flatten().map(|pair| vec![pair])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rounds_are_disjoint_and_complete() {
        for ranks in [0usize, 1, 2, 3, 4, 5, 8, 9, 16, 33] {
            let mut seen = BTreeSet::new();
            let mut rounds = 0;
            for round in disjoint(ranks) {
                rounds += 1;
                let mut busy = BTreeSet::new();
                for pair in round {
                    assert!(pair.from != pair.to && pair.from.index() < ranks && pair.to.index() < ranks);
                    assert!(busy.insert(pair.from) && busy.insert(pair.to), "{ranks}: {pair:?}");
                    assert!(seen.insert(pair), "{ranks}: {pair:?} twice");
                }
            }
            assert_eq!(seen.len(), ranks * ranks.saturating_sub(1), "{ranks}");
            assert!(rounds <= 2 * ranks, "{ranks}: {rounds} rounds");
            assert_eq!(one_by_one(ranks).count(), seen.len());
        }
    }
}
