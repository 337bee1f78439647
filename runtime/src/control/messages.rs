//! The messages between launcher, agents and workers.
//!
//! A worker receives [`WorkerCommand`]s and sends [`Answer`]s. If the worker is not a child of the coordinator, its
//! agent passes both on, in [`ToAgent`] and [`FromAgent`]. These carry the number of the epoch, so that a message of an
//! earlier epoch never counts in the current one.

use crate::clock::Moment;
use crate::execution::flows::{Arrivals, Wanted};
use crate::execution::options::ExecutionOptions;
use crate::group::Group;
use crate::measure::trial::{RankReport, Trial};
use crate::memory::region::OpenFilePlace;
use crate::memory::segment::SegmentShape;
use crate::numbers::{Epoch, TaskNumber};
use crate::transport::network::TransportAddress;
use crate::transport::tcp::Secret;
use crate::verdict::{Phase, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use topology::Rank;

/// Changes whenever the meaning of a message, of the segment or of a ring changes.
pub(crate) const PROTOCOL: u32 = 13;

/// A message of the launcher to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerCommand {
    Welcome(Welcome),
    /// Load the task's programs, answer [`Answer::Listening`] if ranks are on different computers, allocate memory, and
    /// answer [`Answer::Ready`].
    Prepare {
        task: TaskNumber,
        /// The longest time without progress while the task runs.
        limit_ms: u64,
        what: Task,
    },
    /// Connect with the other ranks; rank r is at `addresses[r]`. Sent only if ranks are on different computers.
    Connect {
        task: TaskNumber,
        addresses: Vec<TransportAddress>,
    },
    /// Run the prepared task: all ranks have voted for it. The numbers of its calls follow from the number of the task.
    Run {
        task: TaskNumber,
    },
}

/// Work that ranks do together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Run plans at the same time.
    Trial(Vec<Ordered>),
    /// Time exchanges between pairs of ranks.
    Probe(Wanted),
}

/// A trial as it is sent to workers: the input of their loaders, and the ranks that take part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Ordered {
    pub(crate) source: String,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) group: Group,
    pub(crate) trial: Trial,
}

/// The result of a task on one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TaskResult {
    /// A report for each plan in which the rank takes part.
    Trial(Vec<RankReport>),
    Probe(Arrivals),
}

/// Everything that a worker needs to join.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) terms: WorkerTerms,
    /// Authenticates the ranks of this epoch to each other. It never travels between machines.
    pub(crate) secret: Secret,
}

/// How a worker takes part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerTerms {
    pub(crate) protocol: u32,
    pub(crate) rank: Rank,
    pub(crate) segment: SegmentShape,
    /// Whether the worker is the first of its machine, which prepares the shared memory for the others.
    pub(crate) first_here: bool,
    /// How it executes. Its agent fills in the interfaces of its machine.
    pub(crate) options: ExecutionOptions,
    /// Source and slowdown of the machine to emulate. The options do not contain them.
    pub(crate) emulation: Option<(String, f64)>,
}

/// An answer of a worker, or of its agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// From an agent: it is ready for the epoch.
    IsSetUp {
        /// The name of its machine.
        machine: String,
        /// The place of the shared memory for other processes of the machine, if this agent made it.
        segment: Option<OpenFilePlace>,
    },
    /// From an agent: a file has arrived, and lies at `path` for all workers of its machine.
    Kept {
        file: u64,
        path: PathBuf,
    },
    Hello {
        protocol: u32,
        rank: Rank,
    },
    Listening {
        task: TaskNumber,
        plan: String,
        address: TransportAddress,
    },
    /// The vote: the rank has prepared this plan. Repeated while no order arrives.
    Ready {
        task: TaskNumber,
        plan: String,
    },
    Done {
        task: TaskNumber,
        finding: TaskResult,
    },
    /// The rank has failed. If it failed because it lost other ranks, `peers` are all ranks that it has lost.
    Failed {
        phase: Phase,
        reason: String,
        peers: Vec<Rank>,
    },
}

/// A message of the coordinator to an agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// An epoch begins; the rest of the last one ends.
    SetUp { epoch: Epoch, setup: EpochSetup },
    /// Start the worker.
    Enlist { epoch: Epoch, terms: WorkerTerms },
    /// Pass this command to the worker.
    Order { epoch: Epoch, command: WorkerCommand },
    /// The next part of a file that all workers of this machine may read.
    Keep { file: u64, piece: String, is_last: bool },
    /// Delete these files: no worker will need them again.
    Forget { files: Vec<u64> },
    /// All ranks have arrived at this round. It starts at this moment of the agent's clock.
    Release { epoch: Epoch, round: u64, start: Moment },
    /// A sign of life that must be answered at once, with the activity of all ranks.
    Ping { at: Moment, activity: u64 },
    /// The epoch is over.
    Verdict { epoch: Epoch, verdict: Verdict, evidence: String },
    /// The job is over.
    End,
    /// The agent cannot take part.
    Refused { reason: String },
}

/// How a machine takes part in an epoch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct EpochSetup {
    /// Distinguishes jobs with the same secret.
    pub(crate) job: [u8; 32],
    pub(crate) segment: SegmentShape,
    /// The place of the machine's shared memory. `None` for the first agent of a machine, which makes it.
    pub(crate) place: Option<OpenFilePlace>,
    /// The ranks of other machines.
    pub(crate) absent: Vec<Rank>,
    /// How long an agent waits for a sign of life of the coordinator.
    pub(crate) silence_ms: u64,
}

/// A message of an agent to the coordinator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromAgent {
    Answer {
        epoch: Epoch,
        answer: Answer,
    },
    /// The worker's process has ended. Contains the worker's last answer, which must not arrive after this message.
    Ended {
        epoch: Epoch,
        how: String,
        said: Option<Answer>,
    },
    /// The activity of the worker so far.
    Beat {
        epoch: Epoch,
        beats: u64,
        moves: u64,
        progress: u64,
        phase: Phase,
    },
    /// All ranks of this machine have arrived at this round.
    Arrived {
        epoch: Epoch,
        round: u64,
        lead_ns: u64,
    },
    /// The answer to a ping: the ping's moment, and the moment of the agent's clock.
    Pong {
        at: Moment,
        here: Moment,
    },
}
