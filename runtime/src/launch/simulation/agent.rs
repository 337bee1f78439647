//! Agents of the simulation: they do what their [`AgentState`](crate::control::agent_state::AgentState) says.

use super::setup::Party;
use super::world::{PartyState, SimEvent, SimulatedWorld};
use crate::control::agent_state::{AgentAction, AgentEvent};
use crate::control::judge::BEAT;
use crate::control::messages::{Answer, ToAgent};
use crate::numbers::Epoch;
use crate::verdict::Phase;
use std::io::ErrorKind;
use std::time::Duration;

impl SimulatedWorld {
    pub(super) fn agent(&mut self, rank: usize, event: SimEvent) {
        if matches!(event, SimEvent::AgentWakes) {
            self.later(BEAT, Party::Agent(rank), SimEvent::AgentWakes);
        }
        // An agent that ends its worker receives no messages meanwhile.
        if let Some(until) = self.hosts[rank].leaving {
            if self.now >= until || self.hosts[rank].worker == PartyState::Gone {
                self.kill_worker(rank);
                self.crash(Party::Agent(rank));
            }
            return;
        }
        let (now, known) = (self.now, self.hosts[rank].agent_state.clone());
        let mut is_old = false;
        let event = match event {
            SimEvent::ToAgent(message) => {
                let is_setup = matches!(message, ToAgent::SetUp { .. });
                let is_other = |epoch| epoch < known.epoch() || epoch > known.epoch() && !is_setup;
                is_old = epoch_of(&message).is_some_and(is_other);
                AgentEvent::Said(message)
            }
            SimEvent::UnreachableAddresses => AgentEvent::UnreachableAddresses(ErrorKind::UnexpectedEof.into()),
            SimEvent::AgentWakes => AgentEvent::Quiet,
            other => panic!("an agent cannot meet {other:?}"),
        };
        let actions = self.hosts[rank].agent_state.step(now, event);
        let unchanged = || match &actions[..] {
            [] => known == self.hosts[rank].agent_state,
            actions => matches!(actions, [AgentAction::Beat]),
        };
        assert!(!is_old || unchanged(), "an old epoch was heard: {actions:?}");
        actions.into_iter().for_each(|action| self.act_as_agent(rank, action));
    }

    fn act_as_agent(&mut self, rank: usize, action: AgentAction) {
        let host = &mut self.hosts[rank];
        match action {
            AgentAction::Obey(message) => self.obey_as_agent(rank, message),
            AgentAction::Pronounce(verdict) => self.pronounce(rank, verdict),
            AgentAction::EndWorker(Duration::ZERO) => self.kill_worker(rank),
            AgentAction::EndWorker(patience) => {
                host.leaving = Some(self.now.after(patience));
                self.hang_up(rank);
            }
            AgentAction::Beat => {
                let (epoch, seen) = (host.agent_state.epoch(), (host.beats, host.steps, host.phase));
                self.send(rank, Party::Coordinator, SimEvent::Beat { rank, epoch, sent: self.now, seen });
            }
            AgentAction::Leave(outcome) => host.outcome = Some(outcome),
        }
    }

    fn obey_as_agent(&mut self, rank: usize, message: ToAgent) {
        match message {
            ToAgent::SetUp { epoch, .. } => {
                let host = &mut self.hosts[rank];
                // The agent has a new segment.
                (host.verdict, host.epoch, host.phase, host.beats, host.steps) = (None, epoch, Phase::Prepare, 0, 0);
                let answer = Answer::IsSetUp { machine: String::new(), segment: None };
                self.answer_as(rank, epoch, answer);
            }
            ToAgent::Enlist { epoch, .. } => self.start_worker(rank, epoch),
            ToAgent::Order { epoch, command } => {
                self.later(Duration::ZERO, Party::Worker(rank), SimEvent::Command { epoch, command });
            }
            ToAgent::Ping { activity, .. } => self.hosts[rank].elsewhere.1 = activity,
            _ => {}
        }
    }
}

/// The epoch of a message; `None` if it has none.
fn epoch_of(message: &ToAgent) -> Option<Epoch> {
    match message {
        ToAgent::SetUp { epoch, .. }
        | ToAgent::Enlist { epoch, .. }
        | ToAgent::Order { epoch, .. }
        | ToAgent::Release { epoch, .. }
        | ToAgent::Verdict { epoch, .. } => Some(*epoch),
        _ => None,
    }
}
