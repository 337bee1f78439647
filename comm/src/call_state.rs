//! What changes in a communicator from call to call.
//!
//! The principal type is [`CallState`].

use crate::plan_store::{CallKey, PlanStore};
use crate::plans::PlanCache;
use runtime::{Call, CallPlace, Prepared};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// What serves calls in place of plans.
pub(crate) trait ServesCalls: Send + Sync {
    /// Which of its functions serves a call, by number.
    fn find(&self, key: CallKey) -> Option<usize>;
    /// The name of a function.
    fn name(&self, number: usize) -> &Arc<str>;
    /// Makes a call. After a failure, the other ranks do not wait in it.
    ///
    /// # Errors
    /// Why it has failed.
    fn call(&self, number: usize, key: CallKey, limit: Duration, memory: Call<'_>) -> Result<(), String>;
}

/// What changes from call to call.
pub(crate) struct CallState {
    /// Calls so far.
    pub(crate) calls: u32,
    /// Groups that were split off so far.
    splits: u64,
    pub(crate) plans: PlanCache,
    /// What serves calls in place of plans, if anything does.
    pub(crate) functions: Option<Arc<dyn ServesCalls>>,
}

/// A call that was chosen, with the lock of its communicator.
pub(crate) struct ChosenCall<'a> {
    pub(crate) state: MutexGuard<'a, CallState>,
}

impl ChosenCall<'_> {
    #[inline]
    pub(crate) fn prepared(&self) -> &Prepared {
        self.state.plans.last_ready()
    }
}

impl CallState {
    pub(crate) fn new(plans: Arc<PlanStore>) -> Self {
        Self { calls: 0, splits: 0, plans: PlanCache::new(plans), functions: None }
    }

    /// The number of the next call.
    pub(crate) fn next_call(&mut self) -> u32 {
        self.calls = self.calls.wrapping_add(1);
        self.calls
    }

    /// The call at this place was not made. If that is too late, because another thread has made the next one, the numbers of
    /// this rank no longer are those of the others, and this says false.
    pub(crate) fn uncount(&mut self, at: CallPlace) -> bool {
        let is_message = at.stream != at.communicator;
        let is_last = at.number == self.calls;
        if !is_message && is_last {
            self.calls = self.calls.wrapping_sub(1);
            self.plans.uncount();
        }
        is_message || is_last
    }

    /// The number of the next group that is made of this one.
    pub(crate) fn next_split(&mut self) -> u64 {
        self.splits += 1;
        self.splits
    }
}
