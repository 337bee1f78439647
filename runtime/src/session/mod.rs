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
//! | `notices` | what ranks tell each other besides messages |
//! | `unwanted` | messages that nobody wants: of calls and communicators that have ended |
//! | `buffers` | the memory of one call |
//! | `shared_memory` | allocates memory that the processes of the machine map, and makes the caller's memory such |
//! | `calls` | makes calls, begins them, tests them and gives them up |
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
#[expect(unsafe_code, reason = "hands borrowed buffers to a call that ends before the borrow")]
mod calls;
mod early;
mod ending;
mod engine;
#[cfg(feature = "model")]
pub mod models;
mod notices;
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
mod unwanted;
mod waiting;

use crate::error::{RunError, RunResult};
use crate::memory::doorbell::Patience;
use crate::memory::fork_mark::ForkMark;
use crate::memory::poller::Poller;
use crate::transport::network::RemotePorts;
pub use crate::transport::port::LongMessages;
use crate::transport::shared::port::rank_memory::RankMemory;
use crate::transport::shared::port::segments::OwnSegments;
pub use buffers::RawCall;
use engine::Engine;
pub use engine::Ticket;
use places::{Directory, RankLocation};
use ports::LanePorts;
pub use prepared::Prepared;
use progress::{ProgressThread, SessionUsers};
pub use script::SequencedProgram;
pub use shared_memory::{RegisteredBuffer, RegisteredMemory, SharedMemory};
pub use started::Started;
use status::SessionStatus;
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
pub use survivors::{RebuildTerms, Rebuilt};
use survivors::{SurvivorMeeting, ThreadMeeting};
use topology::Rank;
pub use waiting::IdleWork;

/// How often a waiting call looks before it asks what time it is, if every rank has a core.
const LOOKS: u32 = 64;
/// The same where ranks share cores: the rank that is waited for may need this one.
const LOOKS_ON_SHARED_CORES: u32 = 2;
/// The same where a look asks the system, as for messages of other machines: that takes longer than to ask for the time.
const LOOKS_AT_SOCKETS: u32 = 1;

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
    /// What waiting threads do between two looks.
    idle_work: OnceLock<Arc<IdleWork>>,
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
            idle_work: OnceLock::new(),
            mark,
        });
        Ok(Self { _users: Some(Arc::new(SessionUsers(shared.clone()))), shared })
    }

    /// How often a waiting call looks before it asks what time it is.
    #[inline]
    fn looks(&self, asks_system: bool) -> u32 {
        match self.shared.patience.keeps_core() {
            _ if asks_system => LOOKS_AT_SOCKETS,
            true => LOOKS,
            false => LOOKS_ON_SHARED_CORES,
        }
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
