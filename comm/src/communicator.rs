//! A group of ranks, and one rank's place in it.

use crate::error::{CommError, CommResult};
use crate::plans::{CallKey, PlanCache};
use crate::statistics::Statistics;
use crate::stock::CallKind;
use runtime::{Call, DType, Prepared, RunError, Session};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How long a call may go without any progress.
const LIMIT: Duration = Duration::from_secs(30);
/// The communicator of all ranks.
const WORLD: u64 = 1;

/// One rank of a group. Calls are made by all members, in the same order. Those of one communicator are done one after the
/// other; calls of different communicators do not wait for each other. Clones are the same rank, for other threads.
#[derive(Clone)]
pub struct Communicator {
    pub(crate) shared: Arc<Membership>,
}

pub(crate) struct Membership {
    pub(crate) session: Session,
    pub(crate) id: u64,
    /// Ranks of the session, in the order of the group.
    pub(crate) members: Vec<Rank>,
    /// Which of them this one is.
    number: usize,
    limit: Duration,
    state: Mutex<CallState>,
}

/// What changes from call to call.
#[derive(Default)]
pub(crate) struct CallState {
    /// Calls so far.
    calls: u32,
    /// Groups that were split off so far.
    splits: u64,
    plans: PlanCache,
    scratch: Vec<u8>,
    /// Why no call can be made any more.
    broken: Option<Arc<RunError>>,
    statistics: Statistics,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.session.forget(self.id);
    }
}

impl Communicator {
    /// Communicators of ranks that are threads of this process, by rank.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub fn local(ranks: usize) -> CommResult<Vec<Self>> {
        let members: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
        let sessions = Session::local(ranks)?;
        Ok(sessions
            .into_iter()
            .enumerate()
            .map(|(number, session)| Self::new(session, WORLD, members.clone(), number, LIMIT))
            .collect())
    }

    pub(crate) fn new(session: Session, id: u64, members: Vec<Rank>, number: usize, limit: Duration) -> Self {
        let shared = Membership { session, id, members, number, limit, state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.shared.number
    }

    /// How many ranks the group has.
    pub fn size(&self) -> usize {
        self.shared.members.len()
    }

    /// The same group, and the same rank, with another time that a call may go without progress (by default 30 s). Calls that
    /// are made through the one do not wait for calls that are made through the other.
    ///
    /// # Errors
    /// As any call.
    pub fn with_time_limit(&self, limit: Duration) -> CommResult<Self> {
        self.twin(limit)
    }

    pub(crate) fn limit(&self) -> Duration {
        self.shared.limit
    }

    /// Calls served so far, by plan.
    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        Statistics { prepared: state.plans.made, ..state.statistics.clone() }
    }

    /// Ends all calls of all ranks of the session, under way or to come, with an error that names this rank.
    pub fn abort(&self) {
        self.shared.session.abort();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, CallState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member by its number.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is none.
    pub(crate) fn member(&self, number: usize) -> CommResult<Rank> {
        let size = self.size();
        let none = || CommError::Argument(format!("rank {number} is not one of 0 to {}", size.saturating_sub(1)));
        self.shared.members.get(number).copied().ok_or_else(none)
    }

    /// Makes a collective call.
    pub(crate) fn collective(&self, kind: CallKind, count: usize, dtype: DType, buffers: Call<'_>) -> CommResult<()> {
        let mut state = self.state();
        state.check()?;
        let Membership { session, members, .. } = &*self.shared;
        let ready = state.plans.ready(session, members, CallKey { kind, count, dtype })?;
        let bytes = ready.prepared.lengths().into_iter().max().unwrap_or(0);
        self.make(&mut state, &ready.prepared, buffers)?;
        state.statistics.count(&ready.name, bytes);
        Ok(())
    }

    /// Makes a call of what was prepared.
    pub(crate) fn make(&self, state: &mut CallState, prepared: &Prepared, buffers: Call<'_>) -> CommResult<()> {
        let Membership { session, id, limit, .. } = &*self.shared;
        let mut scratch = std::mem::take(&mut state.scratch);
        state.calls = state.calls.wrapping_add(1);
        let result = session.call(prepared, (*id, state.calls), buffers, &mut scratch, *limit);
        state.scratch = scratch;
        result.map_err(|error| {
            // Whether peers have made this call is not known; only a new group knows where it stands.
            let error = Arc::new(error);
            state.broken = Some(error.clone());
            CommError::Run(error)
        })
    }
}

impl CallState {
    /// The number of the next group that is made of this one.
    pub(crate) fn next_split(&mut self) -> u64 {
        self.splits += 1;
        self.splits
    }

    /// # Errors
    /// What went wrong in an earlier call.
    pub(crate) fn check(&self) -> CommResult<()> {
        self.broken.clone().map_or(Ok(()), |error| Err(CommError::Run(error)))
    }
}
