//! What calls were made, how often, and how long they took.
//!
//! The principal type is [`CallCounts`].

use crate::communicator::CoreCommunicator;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedCall<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: usize,
    /// The name of the type of its elements.
    pub(crate) dtype: &'a str,
}

/// How often a call was made.
struct CallCount {
    name: String,
    dtype: String,
    /// The plan that served it first.
    plan: String,
    calls: u64,
    /// How long some of the calls took together. Of the others, only the beginning is known.
    nanoseconds: u128,
    timed: u64,
}

/// The calls of a group.
#[pyclass(frozen, module = "antiphon._core")]
pub(crate) struct CallCounts {
    core: Py<CoreCommunicator>,
    /// By bytes.
    counts: Mutex<BTreeMap<usize, Vec<CallCount>>>,
}

impl CallCounts {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<CallCount>>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call that was begun, or took some time.
    pub(crate) fn count(&self, py: Python<'_>, call: CountedCall<'_>, took: Option<Duration>) {
        if self.count_again(call, took) {
            return;
        }
        // A thread that waits for another rank may hold what this needs.
        let plan = py.detach(|| self.core.get().inner().last_plan());
        let CountedCall { name, bytes, dtype } = call;
        let (name, dtype) = (name.to_owned(), dtype.to_owned());
        let count = CallCount { name, dtype, plan, calls: 0, nanoseconds: 0, timed: 0 };
        self.counts().entry(bytes).or_default().push(count);
        self.count_again(call, took);
    }

    /// The same for a call that was counted before; whether it was.
    fn count_again(&self, CountedCall { name, bytes, dtype }: CountedCall<'_>, took: Option<Duration>) -> bool {
        let mut counts = self.counts();
        let same = |count: &&mut CallCount| count.name == name && count.dtype == dtype;
        let Some(count) = counts.get_mut(&bytes).and_then(|counts| counts.iter_mut().find(same)) else {
            return false;
        };
        count.calls += 1;
        if let Some(took) = took {
            count.nanoseconds += took.as_nanos();
            count.timed += 1;
        }
        true
    }
}

/// Name, bytes and type, and what was counted: plan, calls, nanoseconds, timed calls.
type CountItem = ((String, usize, String), (String, u64, u128, u64));

#[pymethods]
impl CallCounts {
    #[new]
    fn new(core: Py<CoreCommunicator>) -> Self {
        Self { core, counts: Mutex::default() }
    }

    /// Counts a call.
    #[pyo3(signature = (name, bytes_, dtype, nanoseconds=None))]
    fn add(&self, py: Python<'_>, name: &str, bytes_: usize, dtype: &str, nanoseconds: Option<u64>) {
        let call = CountedCall { name, bytes: bytes_, dtype };
        self.count(py, call, nanoseconds.map(Duration::from_nanos));
    }

    fn items(&self) -> Vec<CountItem> {
        let counts = self.counts();
        let all = counts.iter().flat_map(|(&bytes, counts)| counts.iter().map(move |count| (bytes, count)));
        let item = |(bytes, count): (usize, &CallCount)| {
            let key = (count.name.clone(), bytes, count.dtype.clone());
            (key, (count.plan.clone(), count.calls, count.nanoseconds, count.timed))
        };
        let mut items: Vec<CountItem> = all.map(item).collect();
        items.sort();
        items
    }

    fn clear(&self) {
        self.counts().clear();
    }
}
