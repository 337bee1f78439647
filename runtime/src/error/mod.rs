//! Errors of everything that moves bytes. The principal type is [`RunError`].

mod kind;

pub use kind::{Breach, RunErrorKind, chain};

use crate::numbers::CallNumber;
use crate::verdict::{Phase, Verdict};
use std::fmt;
use topology::{LinkId, Micros, Rank};

/// The result of anything that executes.
pub type RunResult<T> = Result<T, RunError>;

/// Identifies a call and its plan in the stream between two ranks. The receiver compares it with its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The number of the call in the job.
    pub call: CallNumber,
    /// The first six bytes of the plan's hash.
    pub plan: u64,
    /// The index of the plan among the plans that run at the same time.
    pub work: u16,
}

impl Stamp {
    /// The stamp of plan number `work`. `digest` is the plan's hash in hexadecimal.
    pub(crate) fn new(call: CallNumber, digest: &str, work: usize) -> Self {
        let plan = digest.get(..12).and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default();
        Self { call, plan, work: work as u16 }
    }

    /// The stamp as two words on the wire. The second word has the hash in the upper 48 bits and `work` below.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.call.0, self.plan << 16 | u64::from(self.work)]
    }

    pub(crate) fn of_words([call, plan]: [u64; 2]) -> Self {
        Self { call: CallNumber(call), plan: plan >> 16, work: plan as u16 }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} of plan {:012x}", self.call, self.plan)?;
        if self.work > 0 { write!(f, ", the one after {} others", self.work) } else { Ok(()) }
    }
}

/// Why a collective did not complete. The text names the rank, the place and the evidence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The coordinator ended the job.
    #[error("{0}")]
    Verdict(Verdict),
    /// Two ranks do not make the same call of a communicator.
    #[error(
        "rank {rank} and rank {peer} do not make the same call: {}",
        if calls[0] == calls[1] {
            format!("in call {} of the communicator, the collective, count, data type, reduction, root or table differ", calls[0])
        } else {
            format!("rank {rank} is at call {} of the communicator, rank {peer} at call {}", calls[0], calls[1])
        }
    )]
    OtherCall {
        /// The receiver.
        rank: Rank,
        /// The sender.
        peer: Rank,
        /// Which call each of them makes.
        calls: [u32; 2],
    },
    /// A message has another length than its receiver expects.
    #[error("rank {rank} expects a message of {expected} bytes, but rank {peer} sends one of another length")]
    MessageLength {
        /// The receiver.
        rank: Rank,
        /// The sender.
        peer: Rank,
        /// What the receiver expects.
        expected: usize,
    },
    /// A call of another rank failed.
    #[error("{0}")]
    Broken(Breach),
    /// A launched job ended early.
    #[error("{verdict}: {evidence}")]
    Ended {
        /// The rank at fault, and the cause.
        verdict: Verdict,
        /// What the launcher observed.
        evidence: String,
        /// The last messages of the ranks that were still alive, by rank.
        reports: Vec<(Rank, String)>,
    },
    /// An error, and on which machines the ranks are that it names.
    #[error("{} ({places})", chain(&**error))]
    Placed {
        /// The error.
        error: Box<RunError>,
        /// Where the ranks are.
        places: String,
    },
    /// One of several plans that run at the same time failed. This ended all of them.
    #[error("plan {} of {works}", work + 1)]
    InWork {
        /// The index of the plan that failed.
        work: usize,
        /// The number of plans.
        works: usize,
        /// Its error.
        #[source]
        source: Box<RunError>,
    },
    /// A wait took too long.
    #[error(
        "rank {rank} waited {waited_ms} ms for {} in {phase}, at {place}, after {finished} finished steps",
        peer.map_or_else(|| "the others".to_owned(), |peer| format!("rank {peer}"))
    )]
    Deadline {
        /// The rank that waited.
        rank: Rank,
        /// The rank that it waited for, if there is one to name.
        peer: Option<Rank>,
        /// The phase in which it waited.
        phase: Phase,
        /// A description of the instruction that did not complete.
        place: String,
        /// The length of the wait, in milliseconds.
        waited_ms: u64,
        /// The steps that the rank had finished by then.
        finished: u64,
    },
    /// The peer executes another call or another plan.
    #[error("rank {rank} expects {expected}, but rank {peer} sent {found}")]
    Stamp {
        /// The receiver.
        rank: Rank,
        /// The sender.
        peer: Rank,
        /// What the receiver executes.
        expected: Stamp,
        /// What the sender executes.
        found: Stamp,
    },
    /// A connection with a peer broke.
    #[error("rank {rank} lost its connection with rank {peer}")]
    Lane {
        /// The rank that reports the error.
        rank: Rank,
        /// The rank at the other end.
        peer: Rank,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The program asks for something that no verified program may.
    #[error("rank {rank}: {fault}")]
    Program {
        /// The rank whose program is wrong.
        rank: Rank,
        /// What is wrong with it.
        fault: String,
    },
    /// A buffer does not have the size that follows from program, count and type.
    #[error("rank {rank}: the {buffer} buffer has {given} bytes, but the call needs {needed}")]
    BufferSize {
        /// The rank whose buffer it is.
        rank: Rank,
        /// Which buffer.
        buffer: &'static str,
        /// Its size in bytes.
        given: usize,
        /// The size that the call needs, in bytes.
        needed: usize,
    },
    /// The buffers are larger than the address space.
    #[error("{elements} elements of {dtype} per block are more than this computer can address")]
    TooLarge {
        /// Elements per block.
        elements: u64,
        /// Their type.
        dtype: crate::DType,
    },
    /// The program needs slots of equal size, but the element count is not divisible.
    #[error("the plan cuts a block into {parts} equal parts, but {elements} elements do not divide")]
    Indivisible {
        /// Elements per block.
        elements: u64,
        /// The number of equal parts.
        parts: u32,
    },
    /// The buffers of all ranks together need more memory than is available.
    #[error("the ranks' buffers need {needed} bytes, but only {available} are available on this computer")]
    NotEnoughMemory {
        /// The need of all ranks, in bytes.
        needed: u64,
        /// The memory that is available, in bytes.
        available: u64,
    },
    /// One trial cannot report so many samples.
    #[error("{repetitions} repetitions are more than the {limit} that one trial can report")]
    TooManyRepetitions {
        /// The number that was requested.
        repetitions: u32,
        /// The largest number that is accepted.
        limit: u32,
    },
    /// The shared memory is too small for the rings of all connections.
    #[error("{connections} connections need more than the {bytes} bytes of shared memory that the job has")]
    TooManyConnections {
        /// The number of connections that need a ring.
        connections: usize,
        /// The size of the shared memory, in bytes.
        bytes: usize,
    },
    /// The ranks, members or links of program, job and topology do not fit together.
    #[error("{what}")]
    Mismatch {
        /// What does not fit together.
        what: String,
    },
    /// A message on the emulated machine would take longer than any emulated message may.
    #[error(
        "a message of {bytes} bytes would take {:.0} s on link {link} of the emulated machine, more than {:.0} s",
        time.0 / 1e6, limit.0 / 1e6
    )]
    TooSlow {
        /// The link.
        link: LinkId,
        /// The size of the message, in bytes.
        bytes: usize,
        /// The time that it would take.
        time: Micros,
        /// The longest time that is emulated.
        limit: Micros,
    },
    /// The operating system refused an operation.
    #[error("{what}")]
    System {
        /// The operation.
        what: &'static str,
        /// The answer of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Rank 0 cannot listen at the rendezvous address.
    #[error("rank 0 cannot wait for the others at {at}")]
    Rendezvous {
        /// The address.
        at: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Some ranks did not reach the rendezvous in time.
    #[error(
        "{} {} did not come to {at} within {limit:?}{}",
        if missing.len() == 1 { "rank" } else { "ranks" }, listed(missing),
        if *refused > 0 { format!("; {refused} connections were refused") } else { String::new() }
    )]
    Absent {
        /// The ranks that are missing.
        missing: Vec<Rank>,
        /// The rendezvous address.
        at: String,
        /// How long rank 0 waited.
        limit: std::time::Duration,
        /// How many connections were refused in this time because they did not prove the secret.
        refused: u64,
    },
    /// A rank could not join the coordinator.
    #[error("rank {rank} could not join rank 0 at {at} within {limit:?}")]
    Unreachable {
        /// The rank that tried.
        rank: Rank,
        /// The rendezvous address.
        at: String,
        /// The longest time that it tried.
        limit: std::time::Duration,
        /// The reason of the last failure.
        #[source]
        source: std::io::Error,
    },
    /// A rank connected only to say that it does not take part.
    #[error("{reason}")]
    Declined {
        /// The rank.
        rank: Rank,
        /// Its reason, in its own words.
        reason: String,
    },
    /// The coordinator refused this rank, or ended the job for its own reason.
    #[error("rank {rank} was turned away: {reason}")]
    Refused {
        /// The rank that was refused.
        rank: Rank,
        /// The reason, in the coordinator's words.
        reason: String,
    },
    /// The coordinator is gone, so no process can decide for the job any more.
    #[error(
        "rank {rank} on machine {machine} lost the coordinator, rank 0, during {phase}, after {finished} finished steps"
    )]
    Abandoned {
        /// The rank that noticed.
        rank: Rank,
        /// The machine of that rank.
        machine: String,
        /// The phase in which that rank was.
        phase: Phase,
        /// The steps that it had finished.
        finished: u64,
        /// The error of its connection with the coordinator.
        #[source]
        source: std::io::Error,
    },
    /// The process that looked after a rank is gone, so the rank cannot be restarted.
    #[error("the job cannot be rebuilt: the process of rank {rank} on machine {machine} is gone")]
    Departed {
        /// The rank.
        rank: Rank,
        /// The machine where it ran.
        machine: String,
    },
    /// The process may not open as many connections as the plan needs.
    #[error("{what}: this process may have only {limit} open files (ulimit -n, LimitNOFILE)")]
    OpenFiles {
        /// The operation that failed.
        what: &'static str,
        /// The limit, after it was raised as far as the system allows.
        limit: u64,
    },
    /// Another process violated the control protocol.
    #[error("rank {rank} broke the control protocol: {fault}")]
    Protocol {
        /// The rank of that process.
        rank: Rank,
        /// The violation.
        fault: String,
    },
}

/// The first few ranks of a list, as text for people.
fn listed(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = ranks.iter().take(SHOWN).map(Rank::to_string).collect();
    if ranks.len() > SHOWN {
        shown.push(format!("and {} more", ranks.len() - SHOWN));
    }
    shown.join(", ")
}

impl RunError {
    /// Turns an error of the operating system during `what` into an error of this type.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::of_open_files(what, &source).unwrap_or(Self::System { what, source })
    }

    /// Adds the index of the plan, if more than one plan runs.
    pub(crate) fn in_work(work: usize, works: usize) -> impl FnOnce(Self) -> Self {
        move |error| match error {
            error if works < 2 => error,
            error => Self::InWork { work, works, source: Box::new(error) },
        }
    }

    /// Turns an error at one end of a lane into an error of this type.
    pub(crate) fn lane(rank: Rank, peer: Rank) -> impl FnOnce(std::io::Error) -> Self {
        move |source| {
            Self::of_open_files("connecting with other ranks", &source).unwrap_or(Self::Lane { rank, peer, source })
        }
    }

    /// The error that names the limit of open files, if `source` is that limit.
    fn of_open_files(what: &'static str, source: &std::io::Error) -> Option<Self> {
        use rustix::process::{Resource, getrlimit};
        let is_met = rustix::io::Errno::from_io_error(source) == Some(rustix::io::Errno::MFILE);
        is_met.then(|| Self::OpenFiles { what, limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) })
    }

    /// The peer at the other end of the broken connection, if this error is a broken connection.
    pub(crate) fn lost_peer(&self) -> Option<Rank> {
        match self {
            Self::Lane { peer, .. } => Some(*peer),
            Self::InWork { source, .. } => source.lost_peer(),
            _ => None,
        }
    }

    /// The error and its chain of causes, on one line.
    pub(crate) fn chain(&self) -> String {
        chain(self)
    }
}
