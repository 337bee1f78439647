//! Numbers that a job counts. Each kind has its own type, so that they are not mixed up.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of a job epoch: one generation of workers. Zero before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// The number after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The number of a task of a job. Tasks are counted from 1 and through all epochs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TaskNumber(pub(crate) u64);

impl TaskNumber {
    /// The number after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The number of the task's first call. Its later calls count up from there; no two tasks share a number.
    pub(crate) fn first_call(self) -> CallNumber {
        CallNumber(self.0 << 32 | 1)
    }
}

/// The number of a call in a job; all ranks count the same. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallNumber(pub u64);

impl CallNumber {
    /// The number that is `calls` higher.
    pub(crate) fn plus(self, calls: u64) -> Self {
        Self(self.0 + calls)
    }

    /// The barrier rounds of this call: before its first messages, at its start, and at its end. The last one is also
    /// the first round of the next call.
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
