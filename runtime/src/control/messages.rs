//! What launcher, agents and workers say to each other.
//!
//! A worker hears [`Command`]s and gives [`Answer`]s. Where it is not a child of the coordinator, its agent is in between:
//! [`ToAgent`] and [`FromAgent`] carry both, each with the epoch that it belongs to, so that nothing of an epoch that has
//! ended is taken for the present one.

use crate::clock::Moment;
use crate::execution::flows::{Arrivals, Wanted};
use crate::execution::options::Options;
use crate::group::Group;
use crate::measure::trial::{RankReport, Trial};
use crate::memory::region::Place;
use crate::memory::segment::SegmentShape;
use crate::numbers::{Epoch, TaskNumber};
use crate::transport::tcp::{Doors, Secret};
use crate::verdict::{Phase, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use topology::Rank;

/// Changes whenever a frame, the segment or a ring changes its meaning.
pub(crate) const PROTOCOL: u32 = 10;

/// What the launcher says to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Welcome(Welcome),
    /// Load what the task needs, answer [`Answer::Listening`] where ranks are on different computers, allocate, and
    /// answer [`Answer::Ready`].
    Prepare {
        task: TaskNumber,
        /// The longest time without progress while it runs.
        limit_ms: u64,
        what: Task,
    },
    /// Connect with the others; rank r listens at `doors[r]`. Only where ranks are on different computers.
    Connect {
        task: TaskNumber,
        doors: Vec<Doors>,
    },
    /// Run what was prepared: all ranks have voted for it. The task's number begins the numbers of its collectives.
    Run {
        task: TaskNumber,
    },
}

/// What ranks do together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Run plans at the same time.
    Trial(Vec<Ordered>),
    /// Time exchanges between pairs.
    Probe(Wanted),
}

/// A trial as it travels to workers: what their loaders need, and who takes part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Ordered {
    pub(crate) source: String,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) group: Group,
    pub(crate) trial: Trial,
}

/// What came out of a task, on one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finding {
    /// For each of the plans in which it takes part.
    Trial(Vec<RankReport>),
    Probe(Arrivals),
}

/// All that a worker needs to join.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) terms: Terms,
    /// Authenticates the ranks of this epoch to each other; never travels between machines.
    pub(crate) secret: Secret,
}

/// How a worker takes part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) protocol: u32,
    pub(crate) rank: Rank,
    pub(crate) segment: SegmentShape,
    /// Whether it is the first of its machine, who prepares the shared memory for all.
    pub(crate) first_here: bool,
    /// How it executes; its machine's own interfaces are put in by its agent.
    pub(crate) options: Options,
    /// Source and slowdown of the machine to imitate, which does not travel with the options.
    pub(crate) emulation: Option<(String, f64)>,
}

/// What a worker says, or its agent in its place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// From an agent: it is ready for an epoch.
    IsSetUp {
        /// What its machine is called.
        machine: String,
        /// Where others of its machine find the shared memory, if this one made it.
        segment: Option<Place>,
    },
    /// From an agent: a file has arrived, and lies there for all workers of its machine.
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
        doors: Doors,
    },
    /// The vote: this plan is prepared. Said again by who hears nothing.
    Ready {
        task: TaskNumber,
        plan: String,
    },
    Done {
        task: TaskNumber,
        finding: Finding,
    },
    /// `peers` are all whom the rank has lost by now, if that is why it fails.
    Failed {
        phase: Phase,
        reason: String,
        peers: Vec<Rank>,
    },
}

/// What the coordinator says to an agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// An epoch begins: what is left of the last one ends.
    SetUp { epoch: Epoch, setup: EpochSetup },
    /// Start the worker.
    Enlist { epoch: Epoch, terms: Terms },
    /// For the worker.
    Order { epoch: Epoch, command: Command },
    /// A part of a file that all workers of this machine may read, in order.
    Keep { file: u64, piece: String, is_last: bool },
    /// No worker will ask for these any more.
    Forget { files: Vec<u64> },
    /// Everybody has come to this round; it starts at this moment of the agent's clock.
    Release { epoch: Epoch, round: u64, start: Moment },
    /// A sign of life that wants an answer at once, and how much all ranks have done.
    Ping { at: Moment, activity: u64 },
    /// The epoch is over.
    Verdict { epoch: Epoch, verdict: Verdict, evidence: String },
    /// The job is over.
    End,
    /// It cannot take part.
    Refused { reason: String },
}

/// How a machine takes part in an epoch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct EpochSetup {
    /// Tells jobs with the same secret apart.
    pub(crate) job: [u8; 32],
    pub(crate) segment: SegmentShape,
    /// Where the machine's shared memory is; the first agent of a machine makes it.
    pub(crate) place: Option<Place>,
    /// Ranks of other machines.
    pub(crate) absent: Vec<Rank>,
    /// How long an agent waits for a sign of life of the coordinator.
    pub(crate) silence_ms: u64,
}

/// What an agent says to the coordinator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromAgent {
    Answer {
        epoch: Epoch,
        answer: Answer,
    },
    /// The worker's process has ended; with what it said, so that this does not come before that.
    Ended {
        epoch: Epoch,
        how: String,
        said: Option<Answer>,
    },
    /// What the worker has done by now.
    Beat {
        epoch: Epoch,
        beats: u64,
        moves: u64,
        progress: u64,
        phase: Phase,
    },
    /// All ranks of this machine have come to this round.
    Arrived {
        epoch: Epoch,
        round: u64,
        lead_ns: u64,
    },
    /// To a ping: its moment, and the moment here.
    Pong {
        at: Moment,
        here: Moment,
    },
}
