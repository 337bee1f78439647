//! What a worker may do and when: its part of the protocol without channels or clocks.
//!
//! The principal type is [`WorkerState`]. A plan that a worker has voted for becomes active with the order to run it, and with
//! nothing else. That order bears the number of the task, and goes out when every rank of the epoch has voted for the same
//! number and hash. Tasks are numbered from 1 through all epochs of a job, and the k-th collective of task n has number
//! n·2³² + k on every rank (see [`TaskNumber::first_call`]), so two ranks never mean two plans by one number.
//! Whoever has answered and hears nothing says it again, which is how it asks; after a while it gives up. Who fails leaves
//! by [`Farewell`].

use crate::clock::Moment;
use crate::control::messages::{Answer, Command};
use crate::numbers::TaskNumber;
use std::time::Duration;

/// The coordinator decides about deadlines; a worker decides alone only this much later.
pub(crate) const BACKSTOP: Duration = Duration::from_secs(2);

/// How long a rank that lost a connection waits for the coordinator to say why.
pub(crate) const EXPLANATION: Duration = Duration::from_millis(300);

/// How often a worker that waits for an order repeats its answer.
const ASKING: Duration = Duration::from_millis(500);

/// What a worker is doing for a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    /// It prepares.
    Prepare,
    /// It has said where it listens.
    Listen,
    /// It connects.
    Connect,
    /// It has voted, and is bound by that.
    Vote,
    /// The plan is active.
    Run,
    /// It has said what came out.
    Done,
}

/// What happens to a worker that waits for an order.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum WorkerEvent {
    Said(Command),
    Quiet,
    /// Whoever gives orders is gone, or says that none will follow.
    HungUp,
}

/// What a worker that waits for an order is to do.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum WorkerAction {
    /// Go on waiting.
    Wait,
    Obey(Command),
    /// Nobody may order this now.
    Refuse(Command),
    /// Say this again.
    Say(Answer),
    /// It has waited for so long that nobody will decide.
    GiveUp(Duration),
    /// No more orders will come.
    Leave,
}

/// Where a worker is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WorkerState {
    /// The number of the present or the last task; zero before the first.
    task: TaskNumber,
    stage: Stage,
    /// What was answered last, when first, and when again.
    answer: Option<(Answer, Moment, Moment)>,
    /// How long to wait for an order.
    limit: Duration,
}

impl WorkerState {
    /// Before the first task. Everybody has `ready_limit` for each of three answers, and the coordinator for the verdict.
    pub(crate) fn new(ready_limit: Duration) -> Self {
        Self { task: TaskNumber::default(), stage: Stage::Done, answer: None, limit: 3 * ready_limit + BACKSTOP }
    }

    /// What follows from what happens. Whoever calls it waits for [`BEAT`](crate::control::judge::BEAT) at most for an order.
    pub(crate) fn step(&mut self, now: Moment, event: WorkerEvent) -> WorkerAction {
        match event {
            WorkerEvent::Said(command) => self.heed(command),
            WorkerEvent::Quiet => self.wait(now),
            WorkerEvent::HungUp => WorkerAction::Leave,
        }
    }

    /// What to do with a command; what comes twice, or too late, changes nothing. What is obeyed is noted.
    fn heed(&mut self, command: Command) -> WorkerAction {
        let (task, stage, before) = match &command {
            Command::Welcome(_) => return WorkerAction::Refuse(command),
            Command::Prepare { task, .. } => (*task, Stage::Prepare, Stage::Done),
            Command::Connect { task, .. } => (*task, Stage::Connect, Stage::Listen),
            Command::Run { task } => (*task, Stage::Run, Stage::Vote),
        };
        let is_next = if stage == Stage::Prepare { task > self.task } else { task == self.task };
        if is_next && self.stage == before {
            (self.task, self.stage, self.answer) = (task, stage, None);
            return WorkerAction::Obey(command);
        }
        if (task, stage) <= (self.task, self.stage) { WorkerAction::Wait } else { WorkerAction::Refuse(command) }
    }

    /// Notes what was answered.
    pub(crate) fn said(&mut self, now: Moment, answer: &Answer) {
        self.stage = match answer {
            Answer::Listening { .. } => Stage::Listen,
            Answer::Ready { .. } => Stage::Vote,
            Answer::Done { .. } => Stage::Done,
            _ => return,
        };
        let waits = self.stage != Stage::Done;
        self.answer = waits.then(|| (answer.clone(), now, now));
    }

    /// What to do while no command comes.
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

/// How a worker leaves that has failed: it says why, and stays until it is decided why the job ends. Whoever leaves takes
/// its connections along, and others would take that for the fault.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Farewell {
    has_said: bool,
    until: Moment,
}

/// What a worker that leaves is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FarewellAction {
    Wait,
    /// Say why: the verdict if there is one, for somebody whose connection broke.
    Say,
    Leave,
}

impl Farewell {
    /// Who dies takes its connections along, and the coordinator knows a moment later who that was. So who only lost a
    /// connection waits for that moment.
    pub(crate) fn new(now: Moment, has_lost_peers: bool) -> Self {
        let patience = if has_lost_peers { EXPLANATION } else { Duration::ZERO };
        Self { has_said: false, until: now.after(patience) }
    }

    /// What to do now, and whether it is decided why the job ends.
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
