//! What can go wrong while bytes move.

use crate::numbers::CallNumber;
use crate::verdict::{Phase, Verdict};
use std::fmt;
use topology::{LinkId, Micros, Rank};

/// The result of anything that executes.
pub type RunResult<T> = Result<T, RunError>;

/// What a call and a plan look like on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Which call of the job this is.
    pub call: CallNumber,
    /// The first six bytes of the plan's hash.
    pub plan: u64,
    /// Which of the plans that run together it is.
    pub work: u16,
}

impl Stamp {
    /// Of the `work`-th plan, whose hash in hexadecimal is `digest`.
    pub(crate) fn new(call: CallNumber, digest: &str, work: usize) -> Self {
        let plan = digest.get(..12).and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default();
        Self { call, plan, work: work as u16 }
    }

    /// What it looks like on the wire.
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

/// Why a collective did not complete. The text says who, where and with which evidence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The coordinator ended the job.
    #[error("{0}")]
    Verdict(Verdict),
    /// A launched job ended early.
    #[error("{verdict}: {evidence}")]
    Ended {
        /// Whose fault it is.
        verdict: Verdict,
        /// What the launcher saw.
        evidence: String,
        /// What the live ranks said at the end, by rank.
        reports: Vec<(Rank, String)>,
    },
    /// One of several plans that run together went wrong, and ended all.
    #[error("plan {} of {works}", work + 1)]
    InWork {
        /// Which.
        work: usize,
        /// Of how many.
        works: usize,
        /// What.
        #[source]
        source: Box<RunError>,
    },
    /// A wait took too long.
    #[error(
        "rank {rank} waited {waited_ms} ms for {} in {phase}, at {place}, after {finished} finished steps",
        peer.map_or_else(|| "the others".to_owned(), |peer| format!("rank {peer}"))
    )]
    Deadline {
        /// Who waited.
        rank: Rank,
        /// For whom, where one rank is to name.
        peer: Option<Rank>,
        /// Where.
        phase: Phase,
        /// The instruction that did not complete, in words.
        place: String,
        /// Without any progress.
        waited_ms: u64,
        /// Progress until then.
        finished: u64,
    },
    /// The peer executes something else.
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
    /// A lane to a peer broke.
    #[error("rank {rank} lost its connection with rank {peer}")]
    Lane {
        /// Whose end.
        rank: Rank,
        /// The other end.
        peer: Rank,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The program asks for something that no verified program may.
    #[error("rank {rank}: {fault}")]
    Program {
        /// Whose program.
        rank: Rank,
        /// What is wrong with it.
        fault: String,
    },
    /// The buffer does not have the size that program, count and type give.
    #[error("rank {rank}: the {buffer} buffer has {given} bytes, but the call needs {needed}")]
    BufferSize {
        /// Whose.
        rank: Rank,
        /// Which buffer.
        buffer: &'static str,
        /// Its size.
        given: usize,
        /// The size needed.
        needed: usize,
    },
    /// The buffers cannot be addressed.
    #[error("{elements} elements of {dtype} per block are more than this computer can address")]
    TooLarge {
        /// Elements per block.
        elements: u64,
        /// Their type.
        dtype: crate::DType,
    },
    /// The program needs slots of equal size.
    #[error("the plan cuts a block into {parts} equal parts, but {elements} elements do not divide")]
    Indivisible {
        /// Elements per block.
        elements: u64,
        /// Into how many parts they must divide.
        parts: u32,
    },
    /// The buffers of all ranks together do not fit.
    #[error("the ranks' buffers need {needed} bytes, but only {available} are available on this computer")]
    NotEnoughMemory {
        /// For all ranks, in bytes.
        needed: u64,
        /// What there is, in bytes.
        available: u64,
    },
    /// The samples of so many repetitions could not be reported.
    #[error("{repetitions} repetitions are more than the {limit} that one trial can report")]
    TooManyRepetitions {
        /// How many were asked for.
        repetitions: u32,
        /// The most that is accepted.
        limit: u32,
    },
    /// Rings for so many connections do not fit the shared memory.
    #[error("{connections} connections need more than the {bytes} bytes of shared memory that the job has")]
    TooManyConnections {
        /// How many there are.
        connections: usize,
        /// What there is.
        bytes: usize,
    },
    /// The ranks, members or links of program, job and topology do not fit together.
    #[error("{what}")]
    Mismatch {
        /// What differs from what.
        what: String,
    },
    /// A message would take longer than anybody waits.
    #[error(
        "a message of {bytes} bytes would take {:.0} s on link {link} of the emulated machine, more than {:.0} s",
        time.0 / 1e6, limit.0 / 1e6
    )]
    TooSlow {
        /// The link.
        link: LinkId,
        /// The size of the message.
        bytes: usize,
        /// How long it would take.
        time: Micros,
        /// The longest that is imitated.
        limit: Micros,
    },
    /// The operating system refused something.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// Rank 0 cannot listen where the others look for it.
    #[error("rank 0 cannot wait for the others at {at}")]
    Rendezvous {
        /// The address.
        at: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Ranks did not come in time.
    #[error(
        "{} {} did not come to {at} within {limit:?}{}",
        if missing.len() == 1 { "rank" } else { "ranks" }, listed(missing),
        if *refused > 0 { format!("; {refused} connections were refused") } else { String::new() }
    )]
    Absent {
        /// Who.
        missing: Vec<Rank>,
        /// Where they were awaited.
        at: String,
        /// How long.
        limit: std::time::Duration,
        /// How many connections were refused meanwhile, for want of the secret.
        refused: u64,
    },
    /// The coordinator cannot be joined.
    #[error("rank {rank} could not join rank 0 at {at} within {limit:?}")]
    Unreachable {
        /// Who tried.
        rank: Rank,
        /// Where.
        at: String,
        /// For how long at most.
        limit: std::time::Duration,
        /// The last reason.
        #[source]
        source: std::io::Error,
    },
    /// A rank came only to say that it does not take part.
    #[error("{reason}")]
    Declined {
        /// Who.
        rank: Rank,
        /// Why, in its words.
        reason: String,
    },
    /// The coordinator does not want this rank, or ends the job for a reason of its own.
    #[error("rank {rank} was turned away: {reason}")]
    Refused {
        /// Who.
        rank: Rank,
        /// Why, in the coordinator's words.
        reason: String,
    },
    /// The coordinator is gone, so nobody can decide any more.
    #[error(
        "rank {rank} on machine {machine} lost the coordinator, rank 0, during {phase}, after {finished} finished steps"
    )]
    Abandoned {
        /// Who noticed.
        rank: Rank,
        /// Where.
        machine: String,
        /// What it was doing.
        phase: Phase,
        /// Its progress.
        finished: u64,
        /// How.
        #[source]
        source: std::io::Error,
    },
    /// The process that looked after a rank is gone, so the rank cannot come back.
    #[error("the job cannot be rebuilt: the process of rank {rank} on machine {machine} is gone")]
    Departed {
        /// Whose.
        rank: Rank,
        /// Where it was.
        machine: String,
    },
    /// The process may not have as many connections as the plan needs.
    #[error("{what}: this process may have only {limit} open files (ulimit -n, LimitNOFILE)")]
    OpenFiles {
        /// What was tried.
        what: &'static str,
        /// The limit, which is raised as far as the system allows.
        limit: u64,
    },
    /// Another process does not speak the protocol.
    #[error("rank {rank} broke the control protocol: {fault}")]
    Protocol {
        /// Who.
        rank: Rank,
        /// How.
        fault: String,
    },
}

/// Ranks for people: the first few.
fn listed(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = ranks.iter().take(SHOWN).map(Rank::to_string).collect();
    if ranks.len() > SHOWN {
        shown.push(format!("and {} more", ranks.len() - SHOWN));
    }
    shown.join(", ")
}

impl RunError {
    /// An error of the operating system while trying `what`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::of_open_files(what, &source).unwrap_or(Self::System { what, source })
    }

    /// What happened in one of so many plans that run together; where it is the only one, that goes without saying.
    pub(crate) fn in_work(work: usize, works: usize) -> impl FnOnce(Self) -> Self {
        move |error| match error {
            error if works < 2 => error,
            error => Self::InWork { work, works, source: Box::new(error) },
        }
    }

    /// What happened at one end of a lane.
    pub(crate) fn lane(rank: Rank, peer: Rank) -> impl FnOnce(std::io::Error) -> Self {
        move |source| {
            Self::of_open_files("connecting with other ranks", &source).unwrap_or(Self::Lane { rank, peer, source })
        }
    }

    /// The error that names the limit, if that is what was met.
    fn of_open_files(what: &'static str, source: &std::io::Error) -> Option<Self> {
        use rustix::process::{Resource, getrlimit};
        let is_met = rustix::io::Errno::from_io_error(source) == Some(rustix::io::Errno::MFILE);
        is_met.then(|| Self::OpenFiles { what, limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) })
    }

    /// The peer without whom this would not have happened, as far as the one who noticed can tell.
    pub(crate) fn lost_peer(&self) -> Option<Rank> {
        match self {
            Self::Lane { peer, .. } => Some(*peer),
            Self::InWork { source, .. } => source.lost_peer(),
            _ => None,
        }
    }

    /// The error and everything that caused it, on one line.
    pub(crate) fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}
