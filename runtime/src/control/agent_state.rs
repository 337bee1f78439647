//! What an agent does and when it gives up: its part of the control protocol, without sockets, threads or clocks.
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

/// What an agent knows about its job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AgentState {
    rank: Rank,
    /// How often to send a sign of life, and when the last one was sent.
    between: Duration,
    beaten: Moment,
    /// The current epoch; zero before the first.
    epoch: Epoch,
    enlisted: bool,
    /// When the last valid message of the coordinator arrived, and how long the coordinator may be silent.
    heard: Moment,
    silence: Duration,
    /// The verdict on the current epoch and its evidence, if there is a verdict.
    sentence: Option<(Verdict, String)>,
    /// When a worker that has been told the verdict is killed.
    until: Option<Moment>,
}

/// An event of an agent.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum AgentEvent {
    /// A message of the coordinator.
    Said(ToAgent),
    /// No message arrived.
    Quiet,
    /// The connection with the coordinator has ended.
    UnreachableAddresses(io::Error),
}

/// A step that the agent has to take.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is passed on at once")]
pub(crate) enum AgentAction {
    /// Do what the coordinator says.
    Obey(ToAgent),
    /// Publish the verdict on this machine, and send the worker no more orders. The worker may still report its error.
    Pronounce(Verdict),
    /// End the worker, after this time at the latest.
    EndWorker(Duration),
    /// Send a sign of life.
    Beat,
    /// Leave the job.
    Leave(AgentOutcome),
}

/// How an agent's part in a job ends.
#[derive(Debug)]
pub(crate) enum AgentOutcome {
    /// The job is over, and its last epoch ended without a verdict.
    Done,
    /// The last epoch ended with this verdict and this evidence.
    Ended(Verdict, String),
    /// The coordinator refused the agent, for this reason.
    Refused(String),
    /// The coordinator is gone, so no process can decide any more.
    Abandoned(io::Error),
}

impl AgentState {
    /// The agent of `rank` in a job of `ranks` ranks. Until the first setup, the coordinator may be silent for twice
    /// `limit`.
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

    /// The current epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The actions that follow from an event, in this order. The caller waits at most
    /// [`BEAT`](crate::control::judge::BEAT) for a message before it reports [`AgentEvent::Quiet`].
    pub(crate) fn step(&mut self, now: Moment, event: AgentEvent) -> Vec<AgentAction> {
        let mut actions = match event {
            AgentEvent::Said(message) => self.admit(now, message).map_or_else(Vec::new, |message| self.obey(message)),
            AgentEvent::Quiet => self.overdue(now),
            AgentEvent::UnreachableAddresses(error) => self.leave(AgentOutcome::Abandoned(error)),
        };
        if now.since(self.beaten) >= self.between {
            self.beaten = now;
            actions.push(AgentAction::Beat);
        }
        actions
    }

    /// The message, if it counts. A message of another epoch, a repeated one, or one after the verdict changes nothing.
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
            // The last epoch's worker ends before this epoch begins.
            ToAgent::SetUp { .. } => vec![AgentAction::EndWorker(Duration::ZERO), AgentAction::Obey(message)],
            ToAgent::Verdict { verdict, .. } => {
                let is_stuck = (verdict.rank, verdict.cause) == (self.rank, Cause::Silent);
                let end = is_stuck.then_some(AgentAction::EndWorker(Duration::ZERO));
                [AgentAction::Pronounce(verdict)].into_iter().chain(end).collect()
            }
            ToAgent::End => self.leave(AgentOutcome::Done),
            ToAgent::Refused { reason } => vec![AgentAction::Leave(AgentOutcome::Refused(reason))],
            message => vec![AgentAction::Obey(message)],
        }
    }

    /// The actions that are due at `now` when no message arrived.
    fn overdue(&mut self, now: Moment) -> Vec<AgentAction> {
        if now.since(self.heard) > self.silence {
            let what = format!("it gave no sign of life for {:?}", self.silence);
            return self.leave(AgentOutcome::Abandoned(io::Error::new(ErrorKind::TimedOut, what)));
        }
        let is_over = self.until.take_if(|until| now > *until).is_some();
        is_over.then_some(AgentAction::EndWorker(Duration::ZERO)).into_iter().collect()
    }

    /// Leaves and ends the worker, which has time to report its error. An earlier verdict says more than the job's end.
    fn leave(&mut self, otherwise: AgentOutcome) -> Vec<AgentAction> {
        let sentence = self.sentence.take();
        let outcome = sentence.map_or(otherwise, |(verdict, evidence)| AgentOutcome::Ended(verdict, evidence));
        vec![AgentAction::EndWorker(LAST_WORDS), AgentAction::Leave(outcome)]
    }
}
