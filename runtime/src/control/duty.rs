//! What a worker may do and when: its part of the protocol without channels or clocks.
//!
//! The principal type is [`Duty`]. A plan that a worker has voted for becomes active with the order to run it, and with
//! nothing else. That order bears the number of the task, and goes out when every rank of the epoch has voted for the same
//! number and hash. Tasks are numbered from 1 through all epochs of a job, and the k-th collective of task n has number
//! n·2³² + k on every rank (see [`first_epoch`](crate::measure::trial::first_epoch)), so two ranks never mean two plans by one number.
//! Whoever has answered and hears nothing says it again, which is how it asks; after a while it gives up.

use crate::clock::Moment;
use crate::control::messages::{Answer, Command};
use std::time::Duration;

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

/// What a command means now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Heed {
    Obey,
    /// It came twice, or too late.
    Ignore,
    /// Nobody may order this now.
    Refuse,
}

/// What somebody does who waits for an order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Patience {
    Wait,
    /// Say this again.
    Ask(Answer),
    /// It has waited for so long that nobody will decide.
    GiveUp(Duration),
}

/// Where a worker is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Duty {
    /// The number of the present or the last task; zero before the first.
    job: u64,
    stage: Stage,
    /// What was answered last, when first, and when again.
    answer: Option<(Answer, Moment, Moment)>,
    /// How long to wait for an order.
    limit: Duration,
}

impl Duty {
    /// Before the first task.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { job: 0, stage: Stage::Done, answer: None, limit }
    }

    /// What to do with a command. What is obeyed is noted.
    pub(crate) fn heed(&mut self, command: &Command) -> Heed {
        let (job, stage, before) = match command {
            Command::Welcome(_) => return Heed::Refuse,
            Command::Prepare { job, .. } => (*job, Stage::Prepare, Stage::Done),
            Command::Connect { job, .. } => (*job, Stage::Connect, Stage::Listen),
            Command::Run { job } => (*job, Stage::Run, Stage::Vote),
        };
        let is_next = if stage == Stage::Prepare { job > self.job } else { job == self.job };
        if is_next && self.stage == before {
            (self.job, self.stage, self.answer) = (job, stage, None);
            return Heed::Obey;
        }
        if (job, stage) <= (self.job, self.stage) { Heed::Ignore } else { Heed::Refuse }
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
    pub(crate) fn wait(&mut self, now: Moment) -> Patience {
        let Some((answer, first, last)) = &mut self.answer else { return Patience::Wait };
        let waited = now.since(*first);
        if waited > self.limit {
            return Patience::GiveUp(waited);
        }
        if now.since(*last) < ASKING {
            return Patience::Wait;
        }
        *last = now;
        Patience::Ask(answer.clone())
    }
}
