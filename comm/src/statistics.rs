//! What ran, how often, and why.

use std::collections::BTreeMap;

/// Calls by the plan that served them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// By the plan's name.
    pub plans: BTreeMap<String, PlanStatistics>,
    /// How often a plan was prepared for a size that was not in the cache.
    pub prepared: u64,
}

/// What one plan did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanStatistics {
    /// How many calls it served.
    pub calls: u64,
    /// Bytes of this rank's larger buffer, over all calls.
    pub bytes: u64,
}

impl Statistics {
    pub(crate) fn count(&mut self, plan: &str, bytes: usize) {
        let bytes = bytes as u64;
        match self.plans.get_mut(plan) {
            Some(counted) => {
                counted.calls += 1;
                counted.bytes += bytes;
            }
            // The name is copied only once.
            None => drop(self.plans.insert(plan.to_owned(), PlanStatistics { calls: 1, bytes })),
        }
    }
}
