//! What is counted in a job. Each number has a type of its own, so that none is taken for another.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which workers of a job: it begins a new epoch when all are replaced. Zero before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// The one after it.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Which task of a job; tasks are counted from 1 through all its epochs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TaskNumber(pub(crate) u64);

impl TaskNumber {
    /// The one after it.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The first call of its collectives. The others count on, and no two tasks share one.
    pub(crate) fn first_call(self) -> CallNumber {
        CallNumber(self.0 << 32 | 1)
    }
}

/// Which call of the collectives of a job, which all ranks count alike; never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallNumber(pub u64);

impl CallNumber {
    /// The one that comes so many calls later.
    pub(crate) fn plus(self, calls: u64) -> Self {
        Self(self.0 + calls)
    }

    /// The rounds of the job's barrier that belong to it: before its first messages, at its start, and at its end.
    pub(crate) fn rounds(self) -> [u64; 3] {
        [2 * self.0 - 1, 2 * self.0, 2 * self.0 + 1]
    }
}

macro_rules! shown_as_numbers {
    ($($number:ident),*) => {$(
        impl fmt::Display for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shown_as_numbers!(Epoch, TaskNumber, CallNumber);
