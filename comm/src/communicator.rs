//! A group of ranks, and one rank's place in it.

use crate::call_state::{CallState, ChosenCall, ServesCalls};
use crate::confirmed::TimedCall;
use crate::error::{CommError, CommResult};
use crate::links::LinkCosts;
use crate::log::Says;
use crate::numbers::{confirmation_stream, message_stream};
use crate::plan_store::{CallKey, PlanStore};
use crate::plans::ReadyTurn;
use crate::statistics::Statistics;
use crate::stock::CallKind;
use crate::table::PlanTable;
use runtime::{Call, CallPlace, DType, IdleWork, Moment, Prepared, RunError, RunErrorKind, SequencedProgram, Session};
use schedule::{Collective, ReduceOp};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How long a call may go without any progress, if nobody says otherwise.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The longest limit, in nanoseconds: a hundred years.
const LONGEST: u64 = 100 * 365 * 86_400 * 1_000_000_000;
/// The communicator of all ranks.
pub(crate) const WORLD: u64 = 1;

/// A function that serves a call.
pub(crate) struct FunctionCall {
    functions: Arc<dyn ServesCalls>,
    number: usize,
    key: CallKey,
}

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
    /// How long a call may go without progress, in nanoseconds.
    limit: AtomicU64,
    /// Whether functions serve calls.
    has_functions: AtomicBool,
    state: Mutex<CallState>,
    /// Messages so far to (`true`) and from each member.
    messages: Mutex<BTreeMap<(usize, bool), u32>>,
    /// Why no call can be made any more.
    broken: OnceLock<Arc<RunError>>,
}

fn nanoseconds(limit: Duration) -> u64 {
    // Some time in the life of the process, so that it can be added to any other.
    u64::try_from(limit.as_nanos()).map_or(LONGEST, |given| given.min(LONGEST))
}

impl Drop for Membership {
    fn drop(&mut self) {
        let plans = &mut self.state.get_mut().unwrap_or_else(PoisonError::into_inner).plans;
        if let Some(file) = &plans.store().file {
            file.see(self.session.long_messages());
        }
        let id = self.id;
        let told: Vec<u64> = plans.confirmed().streams().iter().map(|of| confirmation_stream(id, *of)).collect();
        // Also the messages that nobody has received, and those that could not be sent.
        self.session.forget(self.received().chain([self.id]).chain(told));
        self.session.forget_sent(self.sent());
    }
}

impl Membership {
    /// The streams of messages to this rank.
    fn received(&self) -> impl Iterator<Item = u64> {
        let own = Rank::from_index(self.number);
        (0..self.members.len()).map(move |from| message_stream(self.id, Rank::from_index(from), own))
    }

    /// The streams of its own messages.
    fn sent(&self) -> impl Iterator<Item = u64> {
        let own = Rank::from_index(self.number);
        (0..self.members.len()).map(move |to| message_stream(self.id, own, Rank::from_index(to)))
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
        let Some(links) = sessions.first().map(LinkCosts::assumed) else { return Ok(Vec::new()) };
        let plans = Arc::new(PlanStore::new(PlanTable::default(), Says::default(), links));
        let rank = |(number, session)| Self::new(session, WORLD, (members.clone(), number), LIMIT, plans.clone());
        Ok(sessions.into_iter().enumerate().map(rank).collect())
    }

    pub(crate) fn new(
        session: Session,
        id: u64,
        (members, number): (Vec<Rank>, usize),
        limit: Duration,
        plans: Arc<PlanStore>,
    ) -> Self {
        let state = Mutex::new(CallState::new(plans));
        let (limit, has_functions) = (AtomicU64::new(nanoseconds(limit)), AtomicBool::new(false));
        let (messages, broken) = (Mutex::default(), OnceLock::new());
        let shared = Membership { session, id, members, number, limit, has_functions, state, messages, broken };
        Self { shared: Arc::new(shared) }
    }

    /// This rank's number in the group.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shared.number
    }

    /// How many ranks the group has.
    #[inline]
    pub fn size(&self) -> usize {
        self.shared.members.len()
    }

    /// Sets how long a call of this rank may go without any progress (by default 30 s); also for the groups that are made of
    /// this one from now on.
    pub fn set_time_limit(&self, limit: Duration) {
        self.shared.limit.store(nanoseconds(limit), Ordering::Relaxed);
    }

    /// While a thread waits for a call of this job, it does this again and again, and does not sleep: something else that has to
    /// go on meanwhile, such as another library for messages. It must not make calls of this library, nor wait. It can be set once
    /// for a job; whether it was.
    pub fn set_idle_work(&self, work: Arc<IdleWork>) -> bool {
        self.shared.session.set_idle_work(work)
    }

    #[inline]
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.shared.limit.load(Ordering::Relaxed))
    }

    /// Calls served so far, by plan.
    pub fn statistics(&self) -> Statistics {
        Statistics { long_messages: self.shared.session.long_messages(), ..self.state().plans.statistics() }
    }

    /// What the last call ran, and why, on one line.
    pub fn last_plan(&self) -> String {
        self.state().plans.last_plan()
    }

    /// Ends all calls of all ranks of this communicator, under way or to come, with an error that names this rank.
    pub fn abort(&self) {
        self.shared.session.abort_communicator(self.shared.id);
    }

    /// Collective calls that were begun so far; the same on all ranks between two calls.
    pub(crate) fn calls(&self) -> u32 {
        self.state().calls
    }

    /// Gives up all calls and messages of this rank that are under way; how many there were. Their memory is their owners' again.
    pub(crate) fn give_up_calls(&self) -> usize {
        let shared = &self.shared;
        shared.session.cancel_all(shared.received().chain(shared.sent()).chain([shared.id]))
    }

    #[inline]
    pub(crate) fn state(&self) -> MutexGuard<'_, CallState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if a call can be made. A fork of the process finds out before it waits for a thread that it does not have.
    #[inline]
    pub(crate) fn usable_state(&self) -> CommResult<MutexGuard<'_, CallState>> {
        self.check()?;
        Ok(self.state())
    }

    /// A member by its number.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is none.
    #[inline]
    pub(crate) fn member(&self, number: usize) -> CommResult<Rank> {
        let size = self.size();
        let none = || CommError::Argument(format!("rank {number} is not one of 0 to {}", size.saturating_sub(1)));
        self.shared.members.get(number).copied().ok_or_else(none)
    }

    /// What serves a collective call that is only begun. It is counted.
    #[inline]
    pub(crate) fn ready<'s>(
        &self,
        state: &'s mut CallState,
        kind: CallKind,
        count: usize,
        dtype: DType,
    ) -> CommResult<(&'s Prepared, CallPlace)> {
        let Membership { session, members, id, .. } = &*self.shared;
        state.plans.ready(session, members, CallKey { kind, count, dtype }, false)?;
        let at = CallPlace::collective(*id, state.next_call());
        Ok((state.plans.last_ready(), at))
    }

    /// The machine of a member, by a number that is the same on all ranks.
    pub(crate) fn machine(&self, number: usize) -> u32 {
        let Membership { session, members, .. } = &*self.shared;
        session.machines()[members[number].index()]
    }

    /// This rank's part of a program for a count.
    pub(crate) fn prepare(&self, program: &SequencedProgram, count: usize, dtype: DType) -> CommResult<Prepared> {
        let Membership { session, members, .. } = &*self.shared;
        Ok(session.prepare(program, members, count as u64, dtype)?)
    }

    /// Makes a call of a plan that the caller has chosen; all ranks choose the same.
    pub(crate) fn run_prepared(&self, prepared: &Prepared, buffers: Call<'_>) -> CommResult<()> {
        let mut state = self.usable_state()?;
        let at = CallPlace::collective(self.shared.id, state.next_call());
        let result = self.shared.session.call_holding((state, prepared), |held| held.1, at, buffers, self.limit());
        result.map_err(|error| self.refused(at, error))
    }

    /// Makes a collective call.
    pub(crate) fn collective(&self, kind: CallKind, count: usize, dtype: DType, buffers: Call<'_>) -> CommResult<()> {
        let key = CallKey { kind, count, dtype };
        if let Some(served) = self.function_for(key) {
            return self.call_function(&served, buffers);
        }
        self.blocking(key, |session, chosen, at, limit| {
            session.call_holding(chosen, ChosenCall::prepared, at, buffers, limit)
        })
    }

    /// From the next call on, these functions serve; also none.
    pub(crate) fn serve_with(&self, functions: Option<Arc<dyn ServesCalls>>) {
        let mut state = self.state();
        self.shared.has_functions.store(functions.is_some(), Ordering::Relaxed);
        state.functions = functions;
    }

    /// The function that serves a blocking call, if one does.
    #[inline]
    pub(crate) fn function_for(&self, key: CallKey) -> Option<FunctionCall> {
        match self.shared.has_functions.load(Ordering::Relaxed) {
            false => None,
            true => self.find_function(key),
        }
    }

    #[cold]
    fn find_function(&self, key: CallKey) -> Option<FunctionCall> {
        let functions = self.state().functions.clone()?;
        functions.find(key).map(|number| FunctionCall { functions, number, key })
    }

    /// Makes a call by a function. If it fails, the communicator is broken, as after any call.
    pub(crate) fn call_function(&self, call: &FunctionCall, memory: Call<'_>) -> CommResult<()> {
        let FunctionCall { functions, number, key } = call;
        self.check()?;
        let ended = functions.call(*number, *key, self.limit(), memory);
        let name = functions.name(*number);
        match ended {
            Ok(()) => {
                self.state().plans.served(name, *key, self.size());
                Ok(())
            }
            Err(why) => {
                let (rank, fault) = (self.shared.session.rank(), format!("the function `{name}` has failed: {why}"));
                Err(self.fail(RunError::Program { rank, fault }))
            }
        }
    }

    /// Makes a collective call, and times it if it is its turn. Other threads may use the communicator while this one waits.
    #[inline]
    pub(crate) fn blocking(
        &self,
        key: CallKey,
        run: impl FnOnce(&Session, ChosenCall<'_>, CallPlace, Duration) -> Result<(), RunError>,
    ) -> CommResult<()> {
        let Membership { session, members, id, .. } = &*self.shared;
        let mut state = self.usable_state()?;
        let timed = loop {
            match state.plans.ready(session, members, key, true)? {
                ReadyTurn::Call(timed) => break timed,
                ReadyTurn::Tell(confirmation) => self.tell(&mut state, confirmation)?,
            }
        };
        let at = CallPlace::collective(*id, state.next_call());
        let begin = timed.map(|timed| (timed, Moment::now()));
        run(session, ChosenCall { state }, at, self.limit()).map_err(|error| self.refused(at, error))?;
        begin.map_or(Ok(()), |(timed, begin)| self.timed(timed, begin))
    }

    /// The end of a call whose time helps to decide whether the table's plan stays.
    #[cold]
    fn timed(&self, timed: TimedCall, begin: Moment) -> CommResult<()> {
        let took = i64::try_from(Moment::now().since(begin).as_nanos()).unwrap_or(i64::MAX);
        let mut state = self.state();
        match state.plans.confirmed().took(timed, took) {
            true => self.tell(&mut state, timed.confirmation),
            false => Ok(()),
        }
    }

    /// All ranks learn the longest times of all, by a call in a stream of its own. It takes no number among the calls of the program.
    /// Other threads of this rank wait meanwhile, so that they make the same decision before the same call.
    #[cold]
    fn tell(&self, state: &mut CallState, confirmation: usize) -> CommResult<()> {
        let Membership { session, members, id, .. } = &*self.shared;
        let (number, times) = state.plans.confirmed().told(confirmation);
        let kind = CallKind { op: Some(ReduceOp::Max), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        let longest = CallKey { kind, count: times.len(), dtype: DType::I64 };
        let prepared = state.plans.own(session, members, longest)?;
        let stream = confirmation_stream(*id, state.plans.confirmed().stream(confirmation));
        let at = CallPlace { communicator: *id, stream, number };
        let mut bytes: Vec<u8> = times.iter().flat_map(|time| time.to_ne_bytes()).collect();
        let told = session.call(&prepared, at, Call::InPlace(&mut bytes), self.limit());
        told.map_err(|error| self.fail(error))?;
        let longest: Vec<i64> = bytes.as_chunks().0.iter().map(|word| i64::from_ne_bytes(*word)).collect();
        state.plans.confirmed().learn(confirmation, &longest);
        Ok(())
    }

    /// # Errors
    /// What went wrong in an earlier call, or in one of another rank.
    #[inline]
    pub(crate) fn check(&self) -> CommResult<()> {
        let Membership { broken, session, id, .. } = &*self.shared;
        let broken = broken.get().cloned().or_else(|| Some(Arc::new(session.placed(session.broken(*id)?))));
        broken.map_or(Ok(()), |error| Err(CommError::Run(error)))
    }

    /// A call could not be begun, or has failed. One that makes no sense fails alone, and does not count.
    #[cold]
    pub(crate) fn refused(&self, at: CallPlace, error: RunError) -> CommError {
        match error.kind() == RunErrorKind::Argument && self.state().uncount(at) {
            true => CommError::Argument(error.to_string()),
            false => self.fail(error),
        }
    }

    /// A call was dropped before its end.
    pub(crate) fn dropped(&self) {
        let (rank, fault) = (self.shared.session.rank(), "a call was given up before its end".to_owned());
        self.fail(RunError::Program { rank, fault });
    }

    /// A call has failed. Which peers have made it is not known, so no other call can be made: only a new group knows where
    /// it stands.
    pub(crate) fn fail(&self, error: RunError) -> CommError {
        self.shared.session.break_off(self.shared.id, &error);
        let error = Arc::new(self.shared.session.placed(error));
        // The first reason stays.
        let _ = self.shared.broken.set(error.clone());
        CommError::Run(error)
    }

    /// Messages so far to (`true`) and from each member.
    pub(crate) fn messages(&self) -> MutexGuard<'_, BTreeMap<(usize, bool), u32>> {
        self.shared.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
