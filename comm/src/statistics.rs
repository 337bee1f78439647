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
    /// Adds calls of a plan, each of so many bytes.
    pub(crate) fn count(&mut self, plan: &str, calls: u64, bytes: usize) {
        let counted = self.plans.entry(plan.to_owned()).or_default();
        counted.calls += calls;
        counted.bytes += calls * bytes as u64;
    }
}
