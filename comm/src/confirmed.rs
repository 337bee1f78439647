//! All confirmations of a communicator.
//!
//! The principal type is [`ConfirmedCalls`]. Calls of a kind that an entry of the table serves, up to twice as long as the shortest
//! of them, are one class; each class is confirmed on its own.

use crate::confirm::Confirmation;
use crate::statistics::ConfirmationCounts;
use crate::stock::CallKind;
use std::collections::BTreeMap;

/// A class: the kind of its calls, the entry of the table, and the logarithm of the shortest size.
pub(crate) type ConfirmedClass = (CallKind, usize, u32);

/// A call that is timed: which confirmation asks for it, and for which of its times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimedCall {
    pub(crate) confirmation: usize,
    pub(crate) sample: (u32, usize),
}

/// What is known of each class. There are no more than the table's entries, sizes and kinds of calls ask for. Confirmations are
/// numbered from 0; those of a table that was replaced keep their numbers, so no other one tells its times under such a number.
#[derive(Default)]
pub(crate) struct ConfirmedCalls {
    all: Vec<Confirmation>,
    /// How many there were for earlier tables.
    earlier: usize,
    numbers: BTreeMap<ConfirmedClass, usize>,
    pub(crate) counts: ConfirmationCounts,
}

impl ConfirmedCalls {
    /// The number of the confirmation of a class, which times one call in `every`.
    pub(crate) fn number_of(&mut self, class: ConfirmedClass, every: u32) -> usize {
        let new = self.count();
        let number = *self.numbers.entry(class).or_insert(new);
        if number == new {
            self.all.push(Confirmation::new(every));
        }
        number
    }

    /// The confirmation of a number, if the table has not been replaced since.
    #[inline]
    pub(crate) fn get(&mut self, number: usize) -> Option<&mut Confirmation> {
        self.all.get_mut(number.checked_sub(self.earlier)?)
    }

    /// How many there were so far.
    pub(crate) fn count(&self) -> usize {
        self.earlier + self.all.len()
    }

    /// Another table serves from now on.
    pub(crate) fn forget(&mut self) {
        self.earlier += self.all.len();
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
