//! What a worker may do and when: its part of the control protocol, without channels or clocks.
//!
//! The principal type is [`WorkerState`]. A worker runs a plan only after the order to run it. The coordinator sends
//! this order when every rank of the epoch has voted for the same task number and the same hash. Tasks are numbered
//! from 1 through all epochs of a job. The k-th call of task n has number n·2³² + k on every rank (see
//! [`TaskNumber::first_call`]), so a number never means two plans. A worker that has answered and gets no order repeats
//! its answer, and gives up after a while. A worker that fails leaves the job by [`FailureExit`].

use crate::clock::Moment;
use crate::control::messages::{Answer, WorkerCommand};
use crate::numbers::TaskNumber;
use std::time::Duration;

/// The coordinator decides about deadlines. A worker decides alone only this much later.
pub(crate) const BACKSTOP: Duration = Duration::from_secs(2);

/// How long a rank that lost a connection waits until the coordinator announces the cause.
pub(crate) const EXPLANATION: Duration = Duration::from_millis(300);

/// How often a worker that waits for an order repeats its answer.
const ASKING: Duration = Duration::from_millis(500);

/// What a worker does for a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum TaskStage {
    /// It prepares the task.
    Prepare,
    /// It has answered where it listens.
    Listen,
    /// It connects.
    Connect,
    /// It has voted, which binds it.
    Vote,
    /// It runs the plan.
    Run,
    /// It has reported its result.
    Done,
}

/// An event of a worker that waits for an order.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum WorkerEvent {
    Said(WorkerCommand),
    Quiet,
    /// The connection with the launcher or agent has ended, or no more orders will come.
    HungUp,
}

/// The action of a worker that waits for an order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum WorkerAction {
    /// Wait on.
    Wait,
    Obey(WorkerCommand),
    /// Fail: this command is not allowed now.
    Refuse(WorkerCommand),
    /// Repeat this answer.
    Say(Answer),
    /// Give up: after this time, no decision will come.
    GiveUp(Duration),
    /// Leave: no more orders will come.
    Leave,
}

/// The state of a worker.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WorkerState {
    /// The number of the current or the last task; zero before the first.
    task: TaskNumber,
    stage: TaskStage,
    /// The last answer, when it was first given, and when it was last repeated.
    answer: Option<(Answer, Moment, Moment)>,
    /// How long to wait for an order.
    limit: Duration,
}

impl WorkerState {
    /// Before the first task. Ranks have `ready_limit` for each of three answers, then the coordinator decides.
    pub(crate) fn new(ready_limit: Duration) -> Self {
        Self { task: TaskNumber::default(), stage: TaskStage::Done, answer: None, limit: 3 * ready_limit + BACKSTOP }
    }

    /// The action that follows from an event. The caller waits at most [`BEAT`](crate::control::judge::BEAT) for an
    /// order before it reports [`WorkerEvent::Quiet`].
    pub(crate) fn step(&mut self, now: Moment, event: WorkerEvent) -> WorkerAction {
        match event {
            WorkerEvent::Said(command) => self.heed(command),
            WorkerEvent::Quiet => self.wait(now),
            WorkerEvent::HungUp => WorkerAction::Leave,
        }
    }

    /// The action that follows from a command. A repeated or late one changes nothing; an obeyed one is recorded.
    fn heed(&mut self, command: WorkerCommand) -> WorkerAction {
        let (task, stage, before) = match &command {
            WorkerCommand::Welcome(_) => return WorkerAction::Refuse(command),
            WorkerCommand::Prepare { task, .. } => (*task, TaskStage::Prepare, TaskStage::Done),
            WorkerCommand::Connect { task, .. } => (*task, TaskStage::Connect, TaskStage::Listen),
            WorkerCommand::Run { task } => (*task, TaskStage::Run, TaskStage::Vote),
        };
        let is_next = if stage == TaskStage::Prepare { task > self.task } else { task == self.task };
        if is_next && self.stage == before {
            (self.task, self.stage, self.answer) = (task, stage, None);
            return WorkerAction::Obey(command);
        }
        if (task, stage) <= (self.task, self.stage) { WorkerAction::Wait } else { WorkerAction::Refuse(command) }
    }

    /// Records an answer of this worker.
    pub(crate) fn said(&mut self, now: Moment, answer: &Answer) {
        self.stage = match answer {
            Answer::Listening { .. } => TaskStage::Listen,
            Answer::Ready { .. } => TaskStage::Vote,
            Answer::Done { .. } => TaskStage::Done,
            _ => return,
        };
        let waits = self.stage != TaskStage::Done;
        self.answer = waits.then(|| (answer.clone(), now, now));
    }

    /// The action while no command arrives.
    fn wait(&mut self, now: Moment) -> WorkerAction {
        let Some((answer, first, last)) = &mut self.answer else { return WorkerAction::Wait };
        let waited = now.since(*first);
        if waited > self.limit {
            return WorkerAction::GiveUp(waited);
        }
        if now.since(*last) < ASKING {
            return WorkerAction::Wait;
        }
        *last = now;
        WorkerAction::Say(answer.clone())
    }
}

/// How a failed worker leaves: it reports its error, and stays until the cause of the job's end is decided. A worker
/// that leaves at once would close its connections, and its peers would report this as the fault.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FailureExit {
    has_said: bool,
    until: Moment,
}

/// The action of a worker that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FarewellAction {
    Wait,
    /// Report the error. A worker that only lost a connection reports the verdict instead, if there is one.
    Say,
    Leave,
}

impl FailureExit {
    /// When a process dies, its connections break, and the coordinator knows a moment later which process it was. So a
    /// worker that only lost connections waits for that moment.
    pub(crate) fn new(now: Moment, has_lost_peers: bool) -> Self {
        let patience = if has_lost_peers { EXPLANATION } else { Duration::ZERO };
        Self { has_said: false, until: now.after(patience) }
    }

    /// The next action. `is_decided`: whether the cause of the job's end is decided.
    pub(crate) fn step(&mut self, now: Moment, is_decided: bool) -> FarewellAction {
        if !is_decided && now < self.until {
            return FarewellAction::Wait;
        }
        if self.has_said {
            return FarewellAction::Leave;
        }
        *self = Self { has_said: true, until: now.after(BACKSTOP) };
        FarewellAction::Say
    }
}
