//! What the coordinator tells its ranks, and what it hears from them, as lines of the log (`-vvv`).
//!
//! A real job and the simulation write them at the same places of the protocol. So a test compares what both say. Signs of
//! life, barriers and files are left out: they are no steps of the protocol.

use crate::control::judge::{Heard, RankEvent};
use crate::control::messages::{Answer, ToAgent, WorkerCommand};
use crate::numbers::Epoch;
use std::fmt::Arguments;
use topology::Rank;

/// A message to a rank's agent.
pub(crate) fn told(rank: Rank, message: &ToAgent) {
    match message {
        ToAgent::SetUp { epoch, .. } => tracing::trace!("rank {rank}, epoch {epoch}, told: set up"),
        ToAgent::Enlist { epoch, .. } => tracing::trace!("rank {rank}, epoch {epoch}, told: start the worker"),
        ToAgent::Order { epoch, command } => ordered(rank, *epoch, command),
        ToAgent::Verdict { epoch, verdict, .. } => tracing::trace!("rank {rank}, epoch {epoch}, told: {verdict}"),
        ToAgent::End => tracing::trace!("rank {rank}, told: the job is over"),
        ToAgent::Refused { reason } => tracing::trace!("rank {rank}, told: it is refused: {reason}"),
        ToAgent::Keep { .. } | ToAgent::Forget { .. } | ToAgent::Release { .. } | ToAgent::Ping { .. } => {}
    }
}

/// An order to a rank's worker.
pub(crate) fn ordered(rank: Rank, epoch: Epoch, command: &WorkerCommand) {
    match command {
        WorkerCommand::Welcome(_) => {}
        WorkerCommand::Prepare { task, .. } => tracing::trace!("rank {rank}, epoch {epoch}, told: prepare task {task}"),
        WorkerCommand::Connect { task, .. } => {
            tracing::trace!("rank {rank}, epoch {epoch}, told: connect for task {task}");
        }
        WorkerCommand::Run { task } => tracing::trace!("rank {rank}, epoch {epoch}, told: run task {task}"),
    }
}

/// What a rank has said, or what happened to it.
pub(crate) fn heard(Heard { epoch, rank, event }: &Heard) {
    let says = |what: Arguments<'_>| tracing::trace!("rank {rank}, epoch {epoch}, said: {what}");
    match event {
        RankEvent::Answer(Answer::IsSetUp { .. }) => says(format_args!("it is set up")),
        RankEvent::Answer(Answer::Kept { .. }) => {}
        RankEvent::Answer(Answer::Hello { .. }) => says(format_args!("hello")),
        RankEvent::Answer(Answer::Listening { task, .. }) => says(format_args!("it listens for task {task}")),
        RankEvent::Answer(Answer::Ready { task, .. }) => says(format_args!("it is ready for task {task}")),
        RankEvent::Answer(Answer::Done { task, .. }) => says(format_args!("it has done task {task}")),
        RankEvent::Answer(Answer::Failed { reason, .. }) => says(format_args!("it failed: {reason}")),
        RankEvent::Gone(how) => says(format_args!("its worker is gone: {how}")),
        RankEvent::Left(how) => says(format_args!("its agent has left: {how}")),
    }
}
