//! Ranks that have met once, and call collectives as often as they like.
//!
//! The principal types are [`Session`], one rank among those that met, and [`Prepared`], a rank's part of a program for one
//! count and data type, which can be called again and again.
//!
//! * A session has any number of **communicators**. Calls of one communicator are done one after the other, in the order in
//!   which they were made; calls of different communicators do not wait for each other.
//! * There is no background thread. Whoever waits, in whichever thread, carries on all calls of its rank.
//! * Nothing is announced and no barrier is passed: the first message of a call says which call of which communicator with
//!   which plan it belongs to. If a peer does something else, that is an error, and never a wait.
//! * Nothing of the process is touched: no signal, no environment variable, no standard stream.
//!
//! | file | what is in it |
//! |---|---|
//! | `lane` | messages between two ranks through shared memory |
//! | `ports` | a rank's ends of all its lanes; messages for several communicators |
//! | `buffers` | the memory of one call |
//! | `script` | a rank's steps, one after the other |
//! | `run` | one call of a script |

#[expect(unsafe_code, reason = "lends the caller's memory in parts that do not overlap")]
mod buffers;
#[expect(unsafe_code, reason = "reads and writes lines of shared memory")]
mod lane;
mod ports;
#[expect(unsafe_code, reason = "reads what a peer has offered")]
mod run;
mod script;

use crate::clock::Moment;
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::Call;
use crate::memory::doorbell::{Patience, Waiter};
use crate::verdict::{Cause, Phase, Verdict};
use buffers::CallBuffers;
use ports::{LanePorts, SessionMemory};
use run::{RunProgress, ScriptRun};
use script::CallScript;
pub use script::SequencedProgram;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How often a waiting call looks before it asks what time it is.
const LOOKS: u32 = 64;

/// One rank among those that have met. Clones are the same rank, in other threads.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionParts>,
}

struct SessionParts {
    rank: Rank,
    ranks: usize,
    memory: SessionMemory,
    patience: Patience,
    engine: Mutex<Engine>,
}

/// What a rank has to carry on.
struct Engine {
    ports: LanePorts,
    /// For each communicator its calls, the oldest first. Only that one is under way.
    queues: BTreeMap<u64, VecDeque<Queued>>,
    /// Calls that are over, until somebody asks.
    over: BTreeMap<u64, RunResult<()>>,
    tickets: u64,
}

struct Queued {
    ticket: u64,
    run: ScriptRun,
}

/// A rank's part of a program for one count and data type. It belongs to one session, and can be called any number of times.
#[derive(Clone)]
pub struct Prepared {
    script: Arc<CallScript>,
}

impl Prepared {
    /// The bytes of the input and of the output buffer, as out of place; in place, of the buffer that is both, twice.
    pub fn lengths(&self) -> [usize; 2] {
        [self.script.lengths[0], self.script.lengths[1]]
    }
}

impl Session {
    /// Sessions for ranks that are threads of this process, by rank.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub fn local(ranks: usize) -> RunResult<Vec<Self>> {
        let memory = SessionMemory::new(ranks).map_err(RunError::system("making shared memory"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let session = |rank| {
            let engine = Engine {
                ports: LanePorts::new(memory.clone(), rank),
                queues: BTreeMap::new(),
                over: BTreeMap::new(),
                tickets: 0,
            };
            let patience = Patience::of(ranks, cores);
            let shared = SessionParts { rank, ranks, memory: memory.clone(), patience, engine: Mutex::new(engine) };
            Self { shared: Arc::new(shared) }
        };
        Ok((0..ranks).map(Rank::from_index).map(session).collect())
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many ranks have met.
    pub fn ranks(&self) -> usize {
        self.shared.ranks
    }

    /// This rank's part of a program among `members`, ranks of the session in the order of the program's ranks.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if this rank is not among them or there are too few or too many of them; [`RunError::TooLarge`],
    /// [`RunError::Indivisible`].
    pub fn prepare(
        &self,
        sequenced: &SequencedProgram,
        members: &[Rank],
        count: u64,
        dtype: DType,
    ) -> RunResult<Prepared> {
        let (needed, given) = (sequenced.program().program().ranks.len(), members.len());
        let refuse = |what: String| RunError::Mismatch { what };
        if needed != given || members.iter().any(|member| member.index() >= self.shared.ranks) {
            return Err(refuse(format!(
                "the plan is for {needed} ranks, {given} of a session of {} were named",
                self.shared.ranks
            )));
        }
        let own = members.iter().position(|member| *member == self.shared.rank);
        let own = own.ok_or_else(|| refuse(format!("rank {} is not among the members", self.shared.rank)))?;
        let script = CallScript::new(sequenced, Rank::from_index(own), members, count, dtype)?;
        Ok(Prepared { script: Arc::new(script) })
    }

    /// One message to each of some ranks of the session, and one from each of some: `(rank, bytes)` of the input, and of the
    /// output. What a rank sends to itself is copied. All calls of the communicator must agree on who sends how much to whom.
    pub fn prepare_exchange(&self, sends: &[(Rank, Range<usize>)], receives: &[(Rank, Range<usize>)]) -> Prepared {
        Prepared { script: Arc::new(CallScript::exchange(self.shared.rank, sends, receives)) }
    }

    /// Makes a call and waits for its end; `call` is the number of the call of its communicator, the same on all of its
    /// members.
    ///
    /// # Errors
    /// [`RunError::BufferSize`]; [`RunError::Deadline`] after `limit` without progress, with the rank that is waited for;
    /// [`RunError::Stamp`] if a peer calls something else; [`RunError::Verdict`] if the session was aborted. The buffers are
    /// the caller's again in each case, and what they hold is not said.
    #[expect(unsafe_code, reason = "hands borrowed buffers to a run that ends before the borrow")]
    pub fn call(
        &self,
        prepared: &Prepared,
        (communicator, call): (u64, u32),
        mut buffers: Call<'_>,
        scratch: &mut Vec<u8>,
        limit: Duration,
    ) -> RunResult<()> {
        let script = &prepared.script;
        self.check(script, &buffers)?;
        scratch.resize(script.lengths[2], 0);
        // SAFETY: the memory is borrowed until this call returns, and the run has ended by then: `drive` leaves no run behind.
        let memory = unsafe { CallBuffers::new(&mut buffers, scratch) };
        let run = ScriptRun::new(script.clone(), memory, communicator, call);
        self.drive(run, communicator, limit)
    }

    fn check(&self, script: &CallScript, call: &Call<'_>) -> RunResult<()> {
        let [input, output, _] = script.lengths;
        let given = match call {
            Call::OutOfPlace { input: send, output: receive } => {
                [("input", send.len(), input), ("output", receive.len(), output)]
            }
            Call::InPlace(both) => [("in-place", both.len(), input.max(output)); 2],
        };
        for (buffer, given, needed) in given {
            if given != needed {
                return Err(RunError::BufferSize { rank: self.shared.rank, buffer, given, needed });
            }
        }
        Ok(())
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a call on until it is over. Whatever comes of it, no run of it is left.
    fn drive(&self, mut run: ScriptRun, communicator: u64, limit: Duration) -> RunResult<()> {
        let mut engine = self.engine();
        if engine.queues.is_empty() {
            // The usual case: nothing else is under way. A short call ends here.
            for _ in 0..LOOKS {
                match run.poll(&mut engine.ports) {
                    Ok(RunProgress::Done) => return Ok(()),
                    Ok(_) => std::hint::spin_loop(),
                    Err(error) => {
                        run.give_up(&mut engine.ports);
                        return Err(error);
                    }
                }
            }
        }
        let ticket = engine.enqueue(communicator, run);
        drop(engine);
        self.wait(communicator, ticket, limit)
    }

    /// Carries all calls on until one is over.
    fn wait(&self, communicator: u64, ticket: u64, limit: Duration) -> RunResult<()> {
        let bell = self.shared.memory.bell(self.shared.rank);
        let mut waiter = Waiter::new(bell, self.shared.patience);
        let mut moved_at = Moment::now();
        loop {
            let mut engine = self.engine();
            let (mut moved, mut looks) = (engine.carry_on(), 1);
            while !moved && looks < LOOKS && engine.queues.len() == 1 {
                std::hint::spin_loop();
                (moved, looks) = (engine.carry_on(), looks + 1);
            }
            if let Some(result) = engine.over.remove(&ticket) {
                return result;
            }
            let now = Moment::now();
            if moved {
                moved_at = now;
                waiter.progressed();
                continue;
            }
            if let Some(error) = self.overdue(&mut engine, communicator, now.since(moved_at), limit) {
                engine.drop_call(communicator, ticket);
                return Err(error);
            }
            drop(engine);
            waiter.idle(now, moved_at.after(limit));
        }
    }

    /// What is wrong if nothing has moved for `waited`.
    fn overdue(&self, engine: &mut Engine, communicator: u64, waited: Duration, limit: Duration) -> Option<RunError> {
        let rank = self.shared.rank;
        if let Some(aborted) = engine.ports.aborted() {
            return Some(RunError::Verdict(Verdict { rank: aborted, cause: Cause::Failed, phase: Phase::Work }));
        }
        if waited <= limit {
            return None;
        }
        let run = &mut engine.queues.get_mut(&communicator)?.front_mut()?.run;
        let finished = run.finished() as u64;
        let peer = match run.poll(&mut engine.ports) {
            Ok(RunProgress::Waits(peer)) => Some(peer),
            Ok(_) => return None,
            Err(error) => return Some(error),
        };
        let place = format!("step {finished}");
        Some(RunError::Deadline {
            rank,
            peer,
            phase: Phase::Work,
            place,
            waited_ms: waited.as_millis() as u64,
            finished,
        })
    }

    /// Ends all calls of all ranks of the session, under way or to come, with an error that names this rank.
    pub fn abort(&self) {
        let word = u64::from(self.shared.rank.0) + 1;
        let _ = self.shared.memory.aborted().compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        (0..self.shared.ranks).for_each(|rank| self.shared.memory.bell(Rank::from_index(rank)).ring());
    }

    /// Forgets what has come for a communicator that is gone.
    pub fn forget(&self, communicator: u64) {
        self.engine().ports.forget(communicator);
    }
}

impl Engine {
    fn enqueue(&mut self, communicator: u64, run: ScriptRun) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.queues.entry(communicator).or_default().push_back(Queued { ticket, run });
        ticket
    }

    /// Carries on the oldest call of every communicator; whether anything moved.
    fn carry_on(&mut self) -> bool {
        let mut moved = false;
        let Self { ports, queues, over, .. } = self;
        queues.retain(|_, queue| {
            while let Some(first) = queue.front_mut() {
                let result = match first.run.poll(ports) {
                    Ok(RunProgress::Done) => Ok(()),
                    Ok(progress) => {
                        moved |= progress == RunProgress::Moved;
                        return true;
                    }
                    Err(error) => Err(error),
                };
                moved = true;
                first.run.give_up(ports);
                over.insert(first.ticket, result);
                queue.pop_front();
            }
            false
        });
        moved
    }

    /// Gives up a call that is not over.
    fn drop_call(&mut self, communicator: u64, ticket: u64) {
        let Self { ports, queues, .. } = self;
        let Some(queue) = queues.get_mut(&communicator) else { return };
        queue.retain_mut(|queued| {
            let is_it = queued.ticket == ticket;
            if is_it {
                queued.run.give_up(ports);
            }
            !is_it
        });
        if queue.is_empty() {
            queues.remove(&communicator);
        }
    }
}

#[cfg(test)]
mod tests;
