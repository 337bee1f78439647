//! Ranks that have met once, and call collectives as often as they like.
//!
//! The principal types are [`Session`], one rank among those that met, and [`Prepared`], a rank's part of a program for one
//! count and data type, which can be called again and again.
//!
//! * A session has any number of **communicators**. Calls of one communicator are done one after the other, in the order in
//!   which they were made; calls of different communicators do not wait for each other.
//! * A thread that waits for a call carries on all calls of its rank. If several threads wait, one does so, and the others sleep.
//!   Calls that were begun and that nobody waits for go on in a thread of the session.
//! * Nothing is announced and no barrier is passed: the first message of a call says which call of which communicator with
//!   which plan it belongs to. If a peer does something else, that is an error, and never a wait.
//! * Nothing of the process is touched: no signal, no environment variable, no standard stream.
//!
//! | file | what is in it |
//! |---|---|
//! | `places` | where each rank is |
//! | `ports` | a rank's ports to all others ([`MessagePort`](crate::transport::port::MessagePort)); messages for several communicators |
//! | `buffers` | the memory of one call |
//! | `shared_memory` | allocates memory that the processes of the machine map, and makes the caller's memory such |
//! | `prepared` | what a session can call again and again |
//! | `script` | a rank's steps, one after the other |
//! | `run` | one call of a script |
//! | `ahead` | what it does before its turn |
//! | `started` | a call that owns its buffers |
//! | `waiting` | how a thread waits for a call |
//! | `engine` | all calls of a rank that are under way |
//! | `progress` | a thread that carries them on while nobody waits |
//! | `ending` | how a session, or a communicator of it, ends, and what is left of it |
//! | `status` | what has ended: the session, a communicator, a rank's part |
//! | `survivors` | how the ranks that are left after a failure meet |

mod ahead;
#[expect(unsafe_code, reason = "lends the caller's memory in parts that do not overlap")]
mod buffers;
mod ending;
mod engine;
mod gone_streams;
#[cfg(feature = "model")]
pub mod models;
pub(crate) mod places;
mod ports;
mod prepared;
mod progress;
mod run;
mod script;
mod shared_memory;
mod started;
pub(crate) mod status;
pub(crate) mod survivors;
mod waiting;

use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::Call;
use crate::memory::doorbell::Patience;
use crate::memory::fork_mark::ForkMark;
use crate::memory::poller::Poller;
use crate::transport::network::RemotePorts;
pub use crate::transport::port::LongMessages;
use crate::transport::shared::port::rank_memory::RankMemory;
use crate::transport::shared::port::segments::OwnSegments;
pub use buffers::RawCall;
pub use engine::Ticket;
use engine::{Driver, Engine};
use places::{Directory, RankLocation};
use ports::LanePorts;
pub use prepared::Prepared;
use progress::{ProgressThread, SessionUsers};
use run::RunProgress;
use script::CallScript;
pub use script::SequencedProgram;
pub use shared_memory::{RegisteredBuffer, RegisteredMemory, SharedMemory};
pub use started::Started;
use status::SessionStatus;
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub use survivors::{RebuildTerms, Rebuilt};
use survivors::{SurvivorMeeting, ThreadMeeting};
use topology::Rank;

/// How often a waiting call looks before it asks what time it is, if every rank has a core.
const LOOKS: u32 = 64;
/// The same where ranks share cores: the rank that is waited for may need this one.
const LOOKS_ON_SHARED_CORES: u32 = 2;

/// One rank among those that have met. Clones are the same rank, in other threads.
#[derive(Clone)]
pub struct Session {
    /// Dropped before the parts. The thread that carries calls on is no user.
    _users: Option<Arc<SessionUsers>>,
    shared: Arc<SessionParts>,
}

struct SessionParts {
    rank: Rank,
    directory: Arc<Directory>,
    memory: RankMemory,
    patience: Patience,
    status: Arc<SessionStatus>,
    /// What a rank with ports to other machines sleeps on.
    poller: Option<Poller>,
    engine: Mutex<Engine>,
    /// A call is over, or nobody carries on.
    turn: Condvar,
    /// What watches the other ranks while the session lives.
    watch: Option<Box<dyn Any + Send + Sync>>,
    survivors: Arc<dyn SurvivorMeeting>,
    /// What this rank has made known to the processes of its machine.
    segments: Arc<OwnSegments>,
    progress: ProgressThread,
    mark: ForkMark,
}

impl Drop for SessionParts {
    fn drop(&mut self) {
        if !self.mark.is_here() {
            // Both belong to the process of which this one is a fork.
            self.progress.forget();
            std::mem::forget(self.watch.take());
        }
    }
}

/// Which call of a session one is. All its members name it alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallPlace {
    /// Its communicator: when that is broken, the call fails.
    pub communicator: u64,
    /// Calls of one stream are done one after the other.
    pub stream: u64,
    /// Which call of its stream it is.
    pub number: u32,
}

impl CallPlace {
    /// A collective: those of a communicator are one stream.
    pub fn collective(communicator: u64, number: u32) -> Self {
        Self { communicator, stream: communicator, number }
    }
}

/// What a session is made of.
pub(crate) struct SessionSetup {
    pub(crate) rank: Rank,
    pub(crate) memory: RankMemory,
    pub(crate) directory: Arc<Directory>,
    pub(crate) patience: Patience,
    pub(crate) status: Arc<SessionStatus>,
    /// The ports to ranks of other machines, if there are any.
    pub(crate) remote: Option<RemotePorts>,
    /// What watches the other ranks while the session lives.
    pub(crate) watch: Option<Box<dyn Any + Send + Sync>>,
    /// How those that are left after a failure meet.
    pub(crate) survivors: Arc<dyn SurvivorMeeting>,
}

impl Session {
    /// Sessions for ranks that are threads of this process, by rank.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub fn local(ranks: usize) -> RunResult<Vec<Self>> {
        let memory = RankMemory::of_threads(ranks).map_err(RunError::system("making shared memory"))?;
        let directory = Arc::new(Directory::of_one_machine(memory.iter().cloned().map(RankLocation::Thread).collect()));
        let status = Arc::new(SessionStatus::new(memory.clone()));
        let survivors: Arc<dyn SurvivorMeeting> = Arc::new(ThreadMeeting::default());
        let session = |(rank, memory): (usize, RankMemory)| {
            let rank = Rank::from_index(rank);
            let parts = SessionSetup {
                rank,
                memory,
                patience: Patience::of(ranks, directory.cores()),
                directory: directory.clone(),
                status: status.clone(),
                remote: None,
                watch: None,
                survivors: survivors.clone(),
            };
            Self::assemble(parts)
        };
        memory.into_iter().enumerate().map(session).collect()
    }

    /// The session of a rank that knows where the others are.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn assemble(parts: SessionSetup) -> RunResult<Self> {
        let SessionSetup { rank, memory, directory, patience, status, remote, watch, survivors } = parts;
        let (poller, remote) = remote.map_or((None, Vec::new()), |remote| (Some(remote.poller), remote.ports));
        let marking = || RunError::system("marking this process");
        let segments = Arc::new(OwnSegments::new(memory.segments()).map_err(marking())?);
        let ports = LanePorts::new(directory.clone(), rank, remote, segments.clone());
        let engine = Mutex::new(Engine::new(ports));
        let turn = Condvar::new();
        let mark = ForkMark::new().map_err(marking())?;
        let progress = ProgressThread::new();
        let shared = Arc::new(SessionParts {
            rank,
            directory,
            memory,
            patience,
            status,
            poller,
            engine,
            turn,
            watch,
            survivors,
            segments,
            progress,
            mark,
        });
        Ok(Self { _users: Some(Arc::new(SessionUsers(shared.clone()))), shared })
    }

    /// How often a waiting call looks before it asks what time it is.
    #[inline]
    fn looks(&self) -> u32 {
        if self.shared.patience.keeps_core() { LOOKS } else { LOOKS_ON_SHARED_CORES }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many ranks have met.
    pub fn ranks(&self) -> usize {
        self.shared.directory.ranks()
    }

    /// The machine of each rank, counted in the order of their first ranks.
    pub fn machines(&self) -> &[u32] {
        self.shared.directory.machines()
    }

    /// How many cores the ranks of this machine have together.
    pub fn cores(&self) -> usize {
        self.shared.directory.cores()
    }

    /// The long messages that this rank has received.
    pub fn long_messages(&self) -> LongMessages {
        if self.is_in_fork() {
            return LongMessages::default();
        }
        self.engine().ports.long_messages
    }

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
    #[expect(unsafe_code, reason = "hands borrowed buffers to a call that ends before the borrow")]
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
        self.call_raw(held, prepared, at, buffers, limit)
    }

    /// The same for memory that is given by its addresses.
    ///
    /// # Errors
    /// As [`Self::call`].
    #[inline]
    pub fn call_raw<H>(
        &self,
        held: H,
        prepared: impl FnOnce(&H) -> &Prepared,
        at: CallPlace,
        buffers: RawCall,
        limit: Duration,
    ) -> RunResult<()> {
        match self.call_at_once(prepared(&held), at, buffers)? {
            None => Ok(()),
            Some(ticket) => {
                drop(held);
                self.wait(ticket, limit)
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
        if engine.is_free() {
            // The usual case: nothing else is under way. A short call ends here.
            for _ in 0..self.looks() {
                let result = match run.poll(script, &mut engine.ports) {
                    Ok(RunProgress::Done) => Ok(None),
                    Ok(_) => {
                        std::hint::spin_loop();
                        continue;
                    }
                    Err(error) => Err(error),
                };
                engine.end(run);
                drop(engine);
                return result.map_err(|error| self.explain(at.communicator, error));
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
            && let Some(error) = self.overdue(&engine, ticket, now, limit)
        {
            engine.give_up(ticket, &error);
            result = Some(Err(error));
        }
        drop(engine);
        result.map(|result| result.map_err(|error| self.explain(ticket.communicator, error)))
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

    fn given_up(&self) -> RunError {
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

    #[inline]
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forked() -> RunError {
    let what = "this process is a fork of the one that joined the session, and cannot make its calls";
    RunError::Mismatch { what: what.to_owned() }
}

#[cfg(test)]
mod tests;
