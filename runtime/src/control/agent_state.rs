//! What an agent does and when it gives up: its part of the protocol without sockets, threads or clocks.
//!
//! The principal type is [`AgentState`].

use crate::clock::Moment;
use crate::control::judge::{LAST_WORDS, distant_beat};
use crate::control::messages::ToAgent;
use crate::numbers::Epoch;
use crate::verdict::{Cause, Verdict};
use std::io::{self, ErrorKind};
use std::time::Duration;
use topology::Rank;

/// What an agent knows of its job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AgentState {
    rank: Rank,
    /// How often to pass a sign of life on, and when it was done last.
    between: Duration,
    beaten: Moment,
    /// The present epoch; zero before the first.
    epoch: Epoch,
    enlisted: bool,
    /// When the coordinator said something last, and how long it may be silent.
    heard: Moment,
    silence: Duration,
    /// How the epoch ended, if it has.
    sentence: Option<(Verdict, String)>,
    /// When a worker that was told the verdict is ended.
    until: Option<Moment>,
}

/// What happens to an agent.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum AgentEvent {
    /// The coordinator says something.
    Said(ToAgent),
    /// It says nothing.
    Quiet,
    /// The connection with it has ended.
    Closed(io::Error),
}

/// What an agent is to do.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum AgentAction {
    /// What the coordinator says.
    Obey(ToAgent),
    /// Make the verdict known on this machine, and hang up: the worker may still say its last words.
    Pronounce(Verdict),
    /// End the worker, which may leave by itself for so long.
    EndWorker(Duration),
    /// Give a sign of life.
    Beat,
    /// Its part in the job is over.
    Leave(Parting),
}

/// How an agent's part in a job ends.
#[derive(Debug)]
pub(crate) enum Parting {
    /// The job is over, and nothing went wrong in its last epoch.
    Done,
    /// With the verdict on the last epoch, and its evidence.
    Ended(Verdict, String),
    /// The coordinator does not want it, for this reason.
    Refused(String),
    /// The coordinator is gone: nobody is left who could decide.
    Abandoned(io::Error),
}

impl AgentState {
    /// Of a job with so many `ranks`. Others may take twice `limit` until all have come.
    pub(crate) fn new(rank: Rank, ranks: usize, now: Moment, limit: Duration) -> Self {
        let (between, silence) = (distant_beat(ranks), 2 * limit);
        Self {
            rank,
            between,
            beaten: now,
            epoch: Epoch::default(),
            enlisted: false,
            heard: now,
            silence,
            sentence: None,
            until: None,
        }
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What follows from what happens, in this order. Whoever calls it waits for [`BEAT`](crate::control::judge::BEAT) at
    /// most for the coordinator to say something.
    pub(crate) fn step(&mut self, now: Moment, event: AgentEvent) -> Vec<AgentAction> {
        let mut actions = match event {
            AgentEvent::Said(message) => self.admit(now, message).map_or_else(Vec::new, |message| self.obey(message)),
            AgentEvent::Quiet => self.overdue(now),
            AgentEvent::Closed(error) => self.leave(Parting::Abandoned(error)),
        };
        if now.since(self.beaten) >= self.between {
            self.beaten = now;
            actions.push(AgentAction::Beat);
        }
        actions
    }

    /// The message, if it is to be obeyed. What belongs to another epoch, comes twice, or after the verdict is not, and
    /// changes nothing.
    fn admit(&mut self, now: Moment, message: ToAgent) -> Option<ToAgent> {
        let is_open = |epoch: &Epoch| *epoch == self.epoch && self.sentence.is_none();
        match &message {
            ToAgent::SetUp { epoch, setup } if *epoch > self.epoch => {
                self.silence = Duration::from_millis(setup.silence_ms);
                (self.epoch, self.enlisted, self.sentence, self.until) = (*epoch, false, None, None);
            }
            ToAgent::Enlist { epoch, .. } if is_open(epoch) && !self.enlisted => self.enlisted = true,
            ToAgent::Verdict { epoch, verdict, evidence } if is_open(epoch) => {
                self.sentence = Some((*verdict, evidence.clone()));
                self.until = Some(now.after(LAST_WORDS));
            }
            ToAgent::Order { epoch, .. } | ToAgent::Release { epoch, .. } if is_open(epoch) => {}
            ToAgent::Keep { .. } | ToAgent::Forget { .. } | ToAgent::Ping { .. } => {}
            ToAgent::End | ToAgent::Refused { .. } => {}
            _ => return None,
        }
        self.heard = now;
        Some(message)
    }

    fn obey(&mut self, message: ToAgent) -> Vec<AgentAction> {
        match message {
            // What is left of the last epoch ends before this one begins.
            ToAgent::SetUp { .. } => vec![AgentAction::EndWorker(Duration::ZERO), AgentAction::Obey(message)],
            ToAgent::Verdict { verdict, .. } => {
                let is_stuck = (verdict.rank, verdict.cause) == (self.rank, Cause::Silent);
                let end = is_stuck.then_some(AgentAction::EndWorker(Duration::ZERO));
                [AgentAction::Pronounce(verdict)].into_iter().chain(end).collect()
            }
            ToAgent::End => self.leave(Parting::Done),
            ToAgent::Refused { reason } => vec![AgentAction::Leave(Parting::Refused(reason))],
            message => vec![AgentAction::Obey(message)],
        }
    }

    /// What time demands when no message waits to be heard.
    fn overdue(&mut self, now: Moment) -> Vec<AgentAction> {
        if now.since(self.heard) > self.silence {
            let what = format!("it gave no sign of life for {:?}", self.silence);
            return self.leave(Parting::Abandoned(io::Error::new(ErrorKind::TimedOut, what)));
        }
        let is_over = self.until.take_if(|until| now > *until).is_some();
        is_over.then_some(AgentAction::EndWorker(Duration::ZERO)).into_iter().collect()
    }

    /// Leaves with the worker, which has time for its last words. How the last epoch ended says more than how the job did.
    fn leave(&mut self, otherwise: Parting) -> Vec<AgentAction> {
        let sentence = self.sentence.take();
        let parting = sentence.map_or(otherwise, |(verdict, evidence)| Parting::Ended(verdict, evidence));
        vec![AgentAction::EndWorker(LAST_WORDS), AgentAction::Leave(parting)]
    }
}
