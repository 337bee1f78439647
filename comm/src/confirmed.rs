//! All confirmations of a communicator.
//!
//! The principal type is [`ConfirmedCalls`]. Calls of a kind that an entry of the table serves, up to twice as long as the shortest
//! of them, are one class; each class is confirmed on its own.

use crate::confirm::Confirmation;
use crate::numbers::mixed;
use crate::statistics::ConfirmationCounts;
use crate::stock::CallKind;
use std::collections::BTreeMap;

/// A class: the kind of its calls, the entry of the table, and the logarithm of the shortest size.
pub(crate) type ConfirmedClass = (CallKind, usize, u32);

/// A class as a number.
fn numbered((kind, entry, size): ConfirmedClass) -> u64 {
    let CallKind { collective, root, op, in_place } = kind;
    let parts = [
        collective as u64,
        root.map_or(0, |root| u64::from(root.0) + 1),
        op.map_or(0, |op| op as u64 + 1),
        u64::from(in_place),
        entry as u64,
        u64::from(size),
    ];
    parts.into_iter().fold(0, mixed)
}

/// A call that is timed: which confirmation asks for it, and for which of its times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimedCall {
    pub(crate) confirmation: usize,
    pub(crate) sample: (u32, usize),
}

/// What is known of each class. There are no more than the table's entries, sizes and kinds of calls ask for. Confirmations are
/// numbered from 0, by each rank in the order in which it needs them. Ranks may differ in that: a call that one of them refuses
/// can be the first of its class there. So their times go through a stream whose name follows from the class.
#[derive(Default)]
pub(crate) struct ConfirmedCalls {
    /// Those of the table that serves now: the last ones.
    all: Vec<Confirmation>,
    /// The streams of all, also for earlier tables.
    streams: Vec<u64>,
    /// How many tables were replaced.
    replaced: u64,
    numbers: BTreeMap<ConfirmedClass, usize>,
    pub(crate) counts: ConfirmationCounts,
}

impl ConfirmedCalls {
    /// The number of the confirmation of a class, which times one call in `every`.
    pub(crate) fn number_of(&mut self, class: ConfirmedClass, every: u32) -> usize {
        let new = self.streams.len();
        let number = *self.numbers.entry(class).or_insert(new);
        if number == new {
            self.all.push(Confirmation::new(every));
            self.streams.push(mixed(self.replaced, numbered(class)));
        }
        number
    }

    /// The confirmation of a number, if the table has not been replaced since.
    #[inline]
    pub(crate) fn get(&mut self, number: usize) -> Option<&mut Confirmation> {
        let earlier = self.streams.len() - self.all.len();
        self.all.get_mut(number.checked_sub(earlier)?)
    }

    /// What names the stream of a confirmation, the same on all ranks.
    pub(crate) fn stream(&self, confirmation: usize) -> u64 {
        self.streams.get(confirmation).copied().unwrap_or_default()
    }

    /// What names the streams of all so far.
    pub(crate) fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// Another table serves from now on.
    pub(crate) fn forget(&mut self) {
        self.replaced += 1;
        self.all.clear();
        self.numbers.clear();
    }

    /// How long a timed call took on this rank, in nanoseconds. Whether all ranks tell each other their times now.
    pub(crate) fn took(&mut self, TimedCall { confirmation, sample }: TimedCall, nanoseconds: i64) -> bool {
        self.get(confirmation).is_some_and(|confirmation| {
            confirmation.took(sample, nanoseconds);
            confirmation.is_due()
        })
    }

    /// What this rank tells the others: the number of the comparison, and the times of its calls.
    pub(crate) fn told(&mut self, confirmation: usize) -> (u32, Vec<i64>) {
        self.get(confirmation).map(|confirmation| confirmation.told()).unwrap_or_default()
    }

    /// Learns the longest times of all ranks, in nanoseconds.
    pub(crate) fn learn(&mut self, confirmation: usize, longest: &[i64]) {
        self.counts.compared += 1;
        if let Some(confirmation) = self.get(confirmation) {
            confirmation.learn(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::Collective;

    #[test]
    fn streams_follow_from_classes_whatever_order_they_come_in() {
        let class = |entry, size| (CallKind::plain(Collective::AllGather), entry, size);
        let classes = [class(0, 3), class(0, 4), class(1, 3)];
        let streams = |order: [usize; 3], replaced: usize| {
            let mut calls = ConfirmedCalls::default();
            (0..replaced).for_each(|_| calls.forget());
            let numbers = order.map(|at| (at, calls.number_of(classes[at], 8)));
            let mut named = [0; 3];
            numbers.iter().for_each(|(at, number)| named[*at] = calls.stream(*number));
            assert_eq!(calls.streams().len(), 3);
            named
        };
        let [first, second, third] = streams([0, 1, 2], 0);
        assert!(first != second && second != third && first != third);
        assert_eq!(streams([2, 0, 1], 0), [first, second, third]);
        assert!(streams([0, 1, 2], 1).iter().all(|stream| ![first, second, third].contains(stream)));
    }

    #[test]
    fn classes_of_a_table_that_was_replaced_keep_their_streams() {
        let class = (CallKind::plain(Collective::AllGather), 0, 3);
        let mut calls = ConfirmedCalls::default();
        let first = calls.number_of(class, 8);
        calls.forget();
        let second = calls.number_of(class, 8);
        assert!(first != second && calls.stream(first) != calls.stream(second));
    }
}
