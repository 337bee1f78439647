//! The coordinator of the simulation: it does what its [`Judge`](crate::control::judge::Judge) decides.

use super::host::Host;
use super::setup::{PLAN, Party};
use super::world::{EPOCHS, LIMIT, PartyState, SimEvent, SimulatedWorld};
use crate::clock::Moment;
use crate::control::judge::{Decision, Heard, Observations, POLL_INTERVAL, RankEvent};
use crate::control::messages::{Answer, EpochSetup, PROTOCOL, Task, ToAgent, WorkerCommand, WorkerTerms};
use crate::control::plane::PULSE;
use crate::control::question::Question;
use crate::control::transcript;
use crate::execution::options::ExecutionOptions;
use crate::memory::segment::SegmentShape;
use crate::verdict::Phase;
use std::time::Duration;
use topology::Rank;

/// What the coordinator has seen of its ranks: beats, steps and phase; and for each agent, when it sent the last
/// message that has arrived.
pub(super) struct ObservedRanks(pub(super) Vec<(u64, u64, Phase)>, pub(super) Vec<Moment>);

impl Observations for ObservedRanks {
    fn beats(&self, rank: Rank) -> u64 {
        self.0[rank.index()].0
    }

    fn messages(&self, rank: Rank) -> u64 {
        self.1[rank.index()].0
    }

    fn progress(&self, rank: Rank) -> u64 {
        self.0[rank.index()].1
    }

    fn phase(&self, rank: Rank) -> Phase {
        self.0[rank.index()].2
    }

    fn activity(&self) -> u64 {
        self.0.iter().map(|(_, progress, phase)| progress * 8 + *phase as u64).sum()
    }
}

impl SimulatedWorld {
    pub(super) fn tell(&mut self, rank: usize, message: ToAgent) {
        transcript::told(Rank::from_index(rank), &message);
        self.send(rank, Party::Agent(rank), SimEvent::ToAgent(message));
    }

    /// An order reaches rank 0's worker at once, and the other workers through their agents.
    fn order(&mut self, rank: usize, command: WorkerCommand) {
        let epoch = self.epoch;
        match rank {
            0 => {
                transcript::ordered(Rank(0), epoch, &command);
                self.later(Duration::ZERO, Party::Worker(0), SimEvent::Command { epoch, command });
            }
            _ => self.tell(rank, ToAgent::Order { epoch, command }),
        }
    }

    pub(super) fn begin_epoch(&mut self) {
        self.epoch = self.epoch.next();
        let ranks = self.setup.ranks;
        self.judge = self.judge.next(self.epoch, self.now, (0..ranks).map(|rank| (rank > 0).then_some(rank)));
        self.seen.0 = vec![(0, 0, Phase::Prepare); ranks];
        for rank in 1..ranks {
            let silence_ms = LIMIT.as_millis() as u64;
            let setup = EpochSetup { job: [0; 32], segment: shape(ranks), place: None, absent: Vec::new(), silence_ms };
            self.tell(rank, ToAgent::SetUp { epoch: self.epoch, setup });
        }
        self.ask(Question::SetUp, None);
    }

    fn ask(&mut self, question: Question, ordered: Option<WorkerCommand>) {
        let asked = |rank: Rank| rank != Rank(0) || question != Question::SetUp;
        self.judge.ask(self.now, (question.clone(), LIMIT), asked, &self.seen);
        (self.question, self.ordered) = (question, ordered);
    }

    /// One step of the coordinator: an event has arrived, or it has waited for [`POLL_INTERVAL`].
    pub(super) fn step(&mut self, heard: Option<Heard>) {
        let is_old = |heard: &Heard| heard.epoch != self.epoch && !matches!(heard.event, RankEvent::Left(_));
        let known = heard.as_ref().is_some_and(is_old).then(|| self.judge.clone());
        let decision = self.judge.step(self.now, heard, &self.seen);
        if let Some(mut known) = known {
            let without = known.step(self.now, None, &self.seen);
            assert!(known == self.judge && decision == without, "an epoch that is over was heard");
        }
        self.obey(decision);
    }

    pub(super) fn glance(&mut self) {
        self.step(None);
        self.glances += 1;
        if self.glances.is_multiple_of((PULSE.as_millis() / POLL_INTERVAL.as_millis()) as u64) {
            let activity = self.seen.activity();
            (1..self.setup.ranks).for_each(|rank| self.tell(rank, ToAgent::Ping { at: self.now, activity }));
        }
        if self.coordinator != PartyState::Gone {
            self.later(POLL_INTERVAL, Party::Coordinator, SimEvent::Glance);
        }
    }

    fn obey(&mut self, decision: Decision) {
        match decision {
            Decision::Wait => {}
            Decision::Repeat(rank) => {
                if let Some(order) = self.ordered.clone() {
                    self.order(rank.index(), order);
                }
            }
            Decision::Complete(answers) => self.proceed(&answers),
            Decision::End(verdict, evidence) => {
                for rank in 1..self.setup.ranks {
                    let verdict = ToAgent::Verdict { epoch: self.epoch, verdict, evidence: evidence.clone() };
                    self.tell(rank, verdict);
                }
                self.pronounce(0, verdict);
                self.outcomes.push(Err((verdict, evidence)));
                self.judge.close(self.now, verdict);
            }
            Decision::Over => self.conclude(),
        }
    }

    /// All ranks have answered: takes the next step of the protocol.
    fn proceed(&mut self, answers: &[(Rank, Answer)]) {
        let ranks = self.setup.ranks;
        if let Some((order, question)) = self.question.then(answers) {
            (0..ranks).for_each(|rank| self.order(rank, order.clone()));
            return self.ask(question, Some(order));
        }
        match self.question {
            Question::SetUp => {
                for rank in 1..ranks {
                    let terms = terms(rank, ranks);
                    self.tell(rank, ToAgent::Enlist { epoch: self.epoch, terms });
                }
                self.start_worker(0, self.epoch);
                return self.ask(Question::Hello, None);
            }
            Question::Done { task, .. } => self.outcomes.push(Ok(task)),
            _ => {}
        }
        if self.outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64 == self.setup.tasks {
            return self.conclude();
        }
        self.task = self.task.next();
        let (task, what) = (self.task, Task::Trial(Vec::new()));
        (0..ranks).for_each(|rank| self.order(rank, WorkerCommand::Prepare { task, limit_ms: 1, what: what.clone() }));
        self.ask(Question::Listening { task, plan: PLAN.to_owned() }, None);
    }

    /// The epoch is over. The next one begins without faults, or the job ends.
    fn conclude(&mut self) {
        self.kill_worker(0);
        let is_done = self.outcomes.last().is_some_and(Result::is_ok);
        if is_done || self.judge.departed().is_some() || self.epoch == EPOCHS {
            (1..self.setup.ranks).for_each(|rank| self.tell(rank, ToAgent::End));
            self.crash(Party::Coordinator);
            return;
        }
        self.calm = true;
        self.hosts.iter_mut().for_each(Host::mend);
        self.begin_epoch();
    }
}

fn shape(ranks: usize) -> SegmentShape {
    SegmentShape { ranks, clocks: 0, room: 0, spread: true }
}

fn terms(rank: usize, ranks: usize) -> WorkerTerms {
    WorkerTerms {
        protocol: PROTOCOL,
        rank: Rank::from_index(rank),
        segment: shape(ranks),
        first_here: true,
        options: ExecutionOptions::default(),
        emulation: None,
    }
}
