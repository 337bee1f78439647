//! Calls of a session: made, begun, tested and given up.

use super::buffers::RawCall;
use super::engine::{Driver, Ticket};
use super::prepared::Prepared;
use super::run::RunProgress;
use super::script::CallScript;
use super::{CallPlace, Session, forked};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::Call;
use std::time::Duration;
use topology::Rank;

/// A call under way whose memory is borrowed, and for which nobody waits yet. It is given up if this is dropped.
struct UnwaitedCall<'a> {
    session: &'a Session,
    ticket: Ticket,
}

impl Drop for UnwaitedCall<'_> {
    fn drop(&mut self) {
        self.session.cancel(self.ticket);
    }
}

impl Session {
    /// Makes a call and waits for its end.
    ///
    /// # Errors
    /// [`RunError::BufferSize`]; [`RunError::Deadline`] after `limit` without progress, with the rank that is waited for;
    /// [`RunError::OtherCall`] if a peer calls something else; [`RunError::Verdict`] if the session is over. The buffers are
    /// the caller's again in each case, and what they hold is not said.
    pub fn call(&self, prepared: &Prepared, at: CallPlace, buffers: Call<'_>, limit: Duration) -> RunResult<()> {
        self.call_holding(prepared, |prepared| *prepared, at, buffers, limit)
    }

    /// The same for a caller that holds something, mostly a lock, with the call inside. It is dropped before this thread waits for
    /// other ranks, and after the call has its place among those of its stream.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_holding<H>(
        &self,
        held: H,
        prepared: impl FnOnce(&H) -> &Prepared,
        at: CallPlace,
        mut buffers: Call<'_>,
        limit: Duration,
    ) -> RunResult<()> {
        // SAFETY: the call is over when this returns.
        let buffers = unsafe { RawCall::of(&mut buffers) };
        self.call_raw_while(held, prepared, at, buffers, limit, || true)
    }

    /// The same for memory that is given by its addresses. It is given up when `goes_on` says no, which is asked after each look
    /// that found the call not over, at least every 50 ms.
    ///
    /// # Errors
    /// As [`Self::call`]; [`RunError::Program`] if it was given up.
    #[inline]
    pub fn call_raw_while<H>(
        &self,
        held: H,
        prepared: impl FnOnce(&H) -> &Prepared,
        at: CallPlace,
        buffers: RawCall,
        limit: Duration,
        goes_on: impl Fn() -> bool,
    ) -> RunResult<()> {
        match self.call_at_once(prepared(&held), at, buffers) {
            Ok(None) => Ok(()),
            Ok(Some(ticket)) => {
                let unwaited = UnwaitedCall { session: self, ticket };
                drop(held);
                match self.wait_while(ticket, limit, goes_on) {
                    Some(result) => {
                        std::mem::forget(unwaited);
                        result
                    }
                    None => Err(self.given_up()),
                }
            }
            Err(error) => {
                drop(held);
                Err(self.explain(at.communicator, error))
            }
        }
    }

    /// Makes a call if it ends soon. Otherwise it goes on, and somebody must wait for it.
    #[inline]
    fn call_at_once(&self, prepared: &Prepared, at: CallPlace, buffers: RawCall) -> RunResult<Option<Ticket>> {
        let script = &prepared.script;
        self.check(script, &buffers)?;
        self.broken(at.communicator).map_or(Ok(()), Err)?;
        let mut engine = self.engine();
        let mut run = engine.begin(script, at, buffers);
        if engine.is_free((at.stream, script.queue)) {
            // The usual case: nothing else is under way. A short call ends here.
            for _ in 0..self.looks(script.is_between_machines) {
                let result = match run.poll(script, &mut engine.ports) {
                    Ok(RunProgress::Done) => Ok(None),
                    Ok(_) => {
                        std::hint::spin_loop();
                        continue;
                    }
                    Err(error) => {
                        engine.stop((at.stream, script.queue), error.again(script.rank));
                        Err(error)
                    }
                };
                engine.end(run);
                return result;
            }
        }
        let ticket = engine.enqueue(at, script, run, Moment::now());
        if engine.driver != Driver::Nobody {
            self.shared.memory.bell().ring();
        }
        Ok(Some(ticket))
    }

    /// Begins a call. It goes on while this rank waits for any call or [tests](Self::test) one, and otherwise in a thread of the
    /// session. It is over when [`Self::test`] or [`Self::wait`] has told its result, or [`Self::cancel`] has returned.
    ///
    /// # Errors
    /// [`RunError::BufferSize`]. All other errors are told at the end.
    pub fn start(&self, prepared: &Prepared, at: CallPlace, buffers: RawCall) -> RunResult<Ticket> {
        self.check(&prepared.script, &buffers)?;
        let mut engine = self.engine();
        let run = engine.begin(&prepared.script, at, buffers);
        let now = Moment::now();
        let ticket = engine.enqueue(at, &prepared.script, run, now);
        match engine.driver {
            // It may sleep, and knows nothing of this call.
            Driver::Caller => self.shared.memory.bell().ring(),
            Driver::Nobody | Driver::ProgressThread => drop(engine.carry_on(now)),
        }
        if !engine.is_idle() {
            self.shared.progress.look_after(&self.shared);
        }
        Ok(ticket)
    }

    /// Whether a call is over; its result is told once. A call that has not moved for longer than `limit` has failed.
    pub fn test(&self, ticket: Ticket, limit: Duration) -> Option<RunResult<()>> {
        if !self.shared.mark.is_here() {
            return Some(Err(forked()));
        }
        let mut engine = self.engine();
        let now = Moment::now();
        if engine.driver != Driver::Caller {
            engine.carry_on(now);
        }
        let mut result = engine.take(ticket);
        if result.is_none()
            && let Some(error) = self.overdue(&mut engine, ticket, now, limit)
        {
            engine.give_up(ticket, &error);
            result = Some(Err(error));
        }
        drop(engine);
        result.map(|result| result.map_err(|error| self.explain(ticket.communicator, error)))
    }

    /// Which of some ranks, each with a stream of its messages to this rank, has sent one that no call of this rank is about to
    /// receive; its place in the list. The message stays where it is.
    ///
    /// # Errors
    /// [`RunError::Lane`] if a rank cannot be reached.
    pub fn arrived(&self, streams: &[(Rank, u64)]) -> RunResult<Option<usize>> {
        if !self.shared.mark.is_here() {
            return Err(forked());
        }
        if let Some(poller) = &self.shared.poller {
            poller.refresh();
        }
        let mut engine = self.engine();
        if engine.driver != Driver::Caller {
            engine.carry_on(Moment::now());
        }
        for (place, &(peer, stream)) in streams.iter().enumerate() {
            if !engine.has_calls_of(stream) && engine.ports.next(peer, stream)?.is_some() {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Gives up a call. Its buffers are the caller's again. The other ranks' calls fail.
    pub fn cancel(&self, ticket: Ticket) {
        if !self.shared.mark.is_here() {
            return;
        }
        let mut engine = self.engine();
        engine.give_up(ticket, &self.given_up());
        engine.take(ticket);
    }

    /// Gives up all calls of these streams that are under way; how many. Their buffers are their owners' again. The other ranks'
    /// calls fail.
    pub fn cancel_all(&self, streams: impl IntoIterator<Item = u64>) -> usize {
        match self.shared.mark.is_here() {
            false => 0,
            true => self.engine().give_up_streams(&streams.into_iter().collect(), &self.given_up()),
        }
    }

    pub(super) fn given_up(&self) -> RunError {
        RunError::Program { rank: self.shared.rank, fault: "a call was given up before its end".to_owned() }
    }

    #[inline]
    fn check(&self, script: &CallScript, call: &RawCall) -> RunResult<()> {
        if !self.shared.mark.is_here() {
            return Err(forked());
        }
        let [input, output, _] = script.lengths;
        let [send, receive] = call.lengths();
        let expected = match call.is_in_place() {
            false => [("input", send, input), ("output", receive, output)],
            true => [("in-place", receive, input.max(output)); 2],
        };
        for (buffer, given, needed) in expected {
            if given != needed {
                return Err(RunError::BufferSize { rank: self.shared.rank, buffer, given, needed });
            }
        }
        match call.is_confused() {
            true => Err(RunError::Mismatch { what: "the buffers of the call overlap, or are not memory".to_owned() }),
            false => Ok(()),
        }
    }
}
