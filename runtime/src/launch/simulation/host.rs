//! Workers of the simulation.
//!
//! The principal type is [`Host`]: a rank's worker, and its agent if it has one. A collective is simulated by steps.
//! Each step needs the previous step of the neighbour that sends.

use super::setup::{InjectedFault, PLAN, Party};
use super::world::{LIMIT, PartyState, SimEvent, SimulatedWorld};
use crate::clock::Moment;
use crate::control::agent_state::{AgentOutcome, AgentState};
use crate::control::judge::{BEAT, Heard, Observations, RankEvent};
use crate::control::messages::{Answer, PROTOCOL, TaskResult, WorkerCommand};
use crate::control::worker_state::{BACKSTOP, FailureExit, FarewellAction, WorkerAction, WorkerEvent, WorkerState};
use crate::numbers::{Epoch, TaskNumber};
use crate::transport::network::TransportAddress;
use crate::verdict::{Phase, Verdict};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use topology::Rank;

/// The number of steps of a collective.
const STEPS: u64 = 6;

/// The reason for which a worker wakes up.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    Starts,
    Beats,
    Prepared(TaskNumber),
    Connected(TaskNumber),
    Steps(TaskNumber),
}

/// One rank.
pub(super) struct Host {
    pub(super) agent: PartyState,
    pub(super) worker: PartyState,
    pub(super) agent_state: AgentState,
    /// The epoch of the worker.
    pub(super) epoch: Epoch,
    worker_state: WorkerState,
    /// Orders that arrived while the worker was busy.
    orders: VecDeque<WorkerCommand>,
    busy: bool,
    /// The plan that it has prepared.
    plan: String,
    /// The verdict in its segment.
    pub(super) verdict: Option<Verdict>,
    /// When the channel of the worker's orders was closed.
    hung_up: Option<Moment>,
    pub(super) phase: Phase,
    pub(super) beats: u64,
    /// The activity of all ranks, as this rank has seen it last, and as it is now.
    pub(super) elsewhere: (u64, u64),
    /// Steps in the current collective, and in all collectives.
    done: u64,
    pub(super) steps: u64,
    /// The collective that is running, and when it moved last.
    working: Option<(TaskNumber, Moment)>,
    /// Once the worker has failed: how it leaves, why, and whether it lost a neighbour.
    failure_exit: Option<(FailureExit, &'static str, bool)>,
    /// Its report of the failure.
    said: Option<Answer>,
    /// The neighbours to which its data connection is broken.
    pub(super) lost: BTreeSet<usize>,
    pub(super) odd: Option<InjectedFault>,
    pub(super) slow: bool,
    pub(super) outcome: Option<AgentOutcome>,
    /// When an agent that leaves kills its worker.
    pub(super) leaving: Option<Moment>,
}

impl Host {
    pub(super) fn new(rank: usize, ranks: usize) -> Self {
        Self {
            agent: PartyState::Runs,
            worker: PartyState::Gone,
            agent_state: AgentState::new(Rank::from_index(rank), ranks, Moment(1_000_000_000), LIMIT),
            epoch: Epoch::default(),
            worker_state: WorkerState::new(LIMIT),
            orders: VecDeque::new(),
            busy: false,
            plan: String::new(),
            verdict: None,
            hung_up: None,
            phase: Phase::Prepare,
            beats: 0,
            elsewhere: (0, 0),
            done: 0,
            steps: 0,
            working: None,
            failure_exit: None,
            said: None,
            lost: BTreeSet::new(),
            odd: None,
            slow: false,
            outcome: None,
            leaving: None,
        }
    }

    /// Whether the worker knows that the epoch is over.
    fn is_decided(&self) -> bool {
        self.verdict.is_some() || self.hung_up.is_some()
    }

    /// Removes the faults of the last worker, so that the next one has none.
    pub(super) fn mend(&mut self) {
        (self.lost, self.odd, self.slow) = (BTreeSet::new(), None, false);
    }
}

impl SimulatedWorld {
    /// The worker learns that no order will follow: its launcher says so, or is gone.
    pub(super) fn hang_up(&mut self, rank: usize) {
        self.hosts[rank].hung_up.get_or_insert(self.now);
    }

    /// Publishes a verdict in the worker's segment. No order will follow.
    pub(super) fn pronounce(&mut self, rank: usize, verdict: Verdict) {
        self.hosts[rank].verdict.get_or_insert(verdict);
        self.hang_up(rank);
    }

    pub(super) fn start_worker(&mut self, rank: usize, epoch: Epoch) {
        let host = &mut self.hosts[rank];
        (host.worker, host.worker_state, host.busy) = (PartyState::Runs, WorkerState::new(LIMIT), true);
        (host.epoch, host.phase, host.beats, host.done, host.steps) = (epoch, Phase::Prepare, 0, 0, 0);
        (host.working, host.hung_up, host.failure_exit, host.said) = (None, None, None, None);
        host.orders.clear();
        if rank == 0 {
            host.verdict = None;
        }
        let delay = self.random.millis(100);
        self.later(delay, Party::Worker(rank), SimEvent::Worker { epoch, wake: Wake::Starts });
    }

    pub(super) fn kill_worker(&mut self, rank: usize) {
        self.crash(Party::Worker(rank));
    }

    /// The thread that reads a worker's answers notices its end.
    pub(super) fn say_gone(&mut self, rank: usize, epoch: Epoch, delay: Duration) {
        let said = self.hosts[rank].said.take().map(RankEvent::Answer);
        let gone = RankEvent::Gone("it was killed".to_owned());
        let heard = |event| Heard { epoch, rank: Rank::from_index(rank), event };
        let heard = SimEvent::Heard(said.into_iter().chain([gone]).map(heard).collect());
        if rank == 0 {
            self.later(delay, Party::Coordinator, heard);
        } else if self.hosts[rank].agent != PartyState::Gone {
            self.send(rank, Party::Coordinator, heard);
        }
    }

    pub(super) fn answer_as(&mut self, rank: usize, epoch: Epoch, answer: Answer) {
        let heard = Heard { epoch, rank: Rank::from_index(rank), event: RankEvent::Answer(answer) };
        match rank {
            0 => self.later(Duration::ZERO, Party::Coordinator, SimEvent::Heard(vec![heard])),
            // A stopped agent passes nothing on. Messages in its pipe count as lost.
            _ if self.hosts[rank].agent == PartyState::Runs => {
                self.send(rank, Party::Coordinator, SimEvent::Heard(vec![heard]));
            }
            _ => {}
        }
    }

    fn answer(&mut self, rank: usize, answer: Answer) {
        let (now, epoch) = (self.now, self.hosts[rank].epoch);
        self.hosts[rank].worker_state.said(now, &answer);
        if let Answer::Ready { task, plan } = &answer
            && plan == PLAN
        {
            self.votes.insert((epoch, *task, rank));
        }
        self.answer_as(rank, epoch, answer);
    }

    /// The worker fails, perhaps because it has lost neighbours.
    fn fail(&mut self, rank: usize, reason: &'static str, has_lost_peers: bool) {
        self.hosts[rank].failure_exit = Some((FailureExit::new(self.now, has_lost_peers), reason, has_lost_peers));
        self.take_leave(rank);
    }

    fn take_leave(&mut self, rank: usize) {
        let (now, is_decided) = (self.now, self.hosts[rank].is_decided());
        let Some((failure_exit, reason, has_lost_peers)) = &mut self.hosts[rank].failure_exit else { return };
        let (action, reason, has_lost_peers) = (failure_exit.step(now, is_decided), *reason, *has_lost_peers);
        match action {
            FarewellAction::Wait => {}
            FarewellAction::Say => {
                let peers = if has_lost_peers && !is_decided { self.lost_peers(rank) } else { Vec::new() };
                // If the lost neighbours have finished and check nothing any more, only this worker may report it.
                if !peers.is_empty() && peers.iter().all(|&peer| self.hosts[peer].working.is_none()) {
                    self.faulty.insert(rank);
                }
                let (phase, peers) = (self.hosts[rank].phase, peers.into_iter().map(Rank::from_index).collect());
                let failed = Answer::Failed { phase, reason: reason.to_owned(), peers };
                self.hosts[rank].said = Some(failed.clone());
                self.answer(rank, failed);
                self.take_leave(rank);
            }
            FarewellAction::Leave => self.kill_worker(rank),
        }
    }

    /// The neighbours that the worker has lost.
    fn lost_peers(&self, rank: usize) -> Vec<usize> {
        let (ranks, host) = (self.setup.ranks, &self.hosts[rank]);
        let is_dead = |peer: &Host| peer.epoch == host.epoch && peer.worker == PartyState::Gone;
        let is_lost = |&peer: &usize| is_dead(&self.hosts[peer]) || host.lost.contains(&peer);
        [(rank + 1) % ranks, (rank + ranks - 1) % ranks].into_iter().filter(is_lost).collect()
    }

    pub(super) fn worker(&mut self, rank: usize, event: SimEvent) {
        match event {
            SimEvent::Command { epoch, command } if epoch == self.hosts[rank].epoch => {
                self.hosts[rank].orders.push_back(command);
                self.hear_orders(rank);
            }
            SimEvent::Worker { epoch, wake } if epoch == self.hosts[rank].epoch => match wake {
                Wake::Starts => {
                    let odd = self.hosts[rank].odd == Some(InjectedFault::OtherProtocol(rank));
                    let hello = Answer::Hello { protocol: PROTOCOL + u32::from(odd), rank: Rank::from_index(rank) };
                    self.finish(rank, hello);
                    self.wake(rank, BEAT, Wake::Beats);
                }
                Wake::Beats => self.beat(rank),
                Wake::Prepared(task) => self.prepared(rank, task),
                Wake::Connected(task) => {
                    let plan = self.hosts[rank].plan.clone();
                    self.finish(rank, Answer::Ready { task, plan });
                }
                Wake::Steps(task) => self.work(rank, task),
            },
            _ => {}
        }
    }

    /// The worker has finished what it was busy with: it answers, and takes the next order.
    fn finish(&mut self, rank: usize, answer: Answer) {
        self.answer(rank, answer);
        self.hosts[rank].busy = false;
        self.hear_orders(rank);
    }

    fn hear_orders(&mut self, rank: usize) {
        while !self.hosts[rank].busy {
            let Some(command) = self.hosts[rank].orders.pop_front() else { return };
            self.step_worker(rank, WorkerEvent::Said(command));
        }
    }

    fn step_worker(&mut self, rank: usize, event: WorkerEvent) {
        let now = self.now;
        match self.hosts[rank].worker_state.step(now, event) {
            WorkerAction::Wait => {}
            WorkerAction::Obey(command) => self.obey_as_worker(rank, command),
            WorkerAction::Refuse(command) => panic!("rank {rank} refuses {command:?}"),
            WorkerAction::Say(answer) => self.answer_as(rank, self.hosts[rank].epoch, answer),
            WorkerAction::GiveUp(_) => self.fail(rank, "nobody decides", false),
            WorkerAction::Leave if self.hosts[rank].verdict.is_some() => self.fail(rank, "the verdict", false),
            WorkerAction::Leave => self.kill_worker(rank),
        }
    }

    fn wake(&mut self, rank: usize, delay: Duration, wake: Wake) {
        let epoch = self.hosts[rank].epoch;
        self.later(delay, Party::Worker(rank), SimEvent::Worker { epoch, wake });
    }

    fn obey_as_worker(&mut self, rank: usize, command: WorkerCommand) {
        self.hosts[rank].busy = true;
        match command {
            WorkerCommand::Prepare { task, .. } => {
                self.hosts[rank].phase = Phase::Prepare;
                let delay = self.random.millis(300);
                self.wake(rank, delay, Wake::Prepared(task));
            }
            WorkerCommand::Connect { task, .. } => {
                let delay = self.random.millis(50);
                self.wake(rank, delay, Wake::Connected(task));
            }
            WorkerCommand::Run { task } => {
                let (epoch, plan) = (self.hosts[rank].epoch, self.hosts[rank].plan.clone());
                let began = self.collectives.entry((epoch, task)).or_default();
                began.insert(rank, plan.clone());
                assert!(began.values().all(|other| *other == plan), "two plans in collective {task} of epoch {epoch}");
                let all_voted = (0..self.setup.ranks).all(|other| self.votes.contains(&(epoch, task, other)));
                assert!(all_voted, "rank {rank} began collective {task} of epoch {epoch} before all had voted");
                let host = &mut self.hosts[rank];
                (host.phase, host.done, host.working) = (Phase::Work, 0, Some((task, self.now)));
                self.wake(rank, Duration::ZERO, Wake::Steps(task));
            }
            WorkerCommand::Welcome(_) => {}
        }
    }

    fn prepared(&mut self, rank: usize, task: TaskNumber) {
        if self.hosts[rank].odd == Some(InjectedFault::NoPlan(rank)) {
            return self.fail(rank, "there is no plan", false);
        }
        let is_odd = self.hosts[rank].odd == Some(InjectedFault::OtherPlan(rank));
        let plan = if is_odd { "another plan" } else { PLAN }.to_owned();
        self.hosts[rank].plan.clone_from(&plan);
        self.finish(rank, Answer::Listening { task, plan, address: TransportAddress::default() });
    }

    /// One step, if the neighbour that sends has done the same step.
    fn work(&mut self, rank: usize, task: TaskNumber) {
        let (ranks, epoch) = (self.setup.ranks, self.hosts[rank].epoch);
        let sender = &self.hosts[(rank + ranks - 1) % ranks];
        let began = self.collectives.get(&(epoch, task)).is_some_and(|began| began.len() == ranks);
        let has_sent = sender.epoch == epoch
            && sender.worker != PartyState::Gone
            && (sender.working.is_none_or(|(other, _)| other > task) || sender.done >= self.hosts[rank].done);
        let host = &mut self.hosts[rank];
        if host.failure_exit.is_some() {
            return;
        }
        if began && has_sent && host.lost.is_empty() {
            (host.done, host.steps, host.working) = (host.done + 1, host.steps + 1, Some((task, self.now)));
        }
        if host.done == STEPS {
            (host.working, host.phase) = (None, Phase::Report);
            let finding = TaskResult::Trial(Vec::new());
            return self.finish(rank, Answer::Done { task, finding });
        }
        let delay = if host.slow { Duration::from_millis(800) } else { self.random.millis(40) };
        self.wake(rank, delay, Wake::Steps(task));
    }

    /// A sign of life, and the checks of a worker that waits.
    fn beat(&mut self, rank: usize) {
        let (now, activity) = (self.now, self.seen.activity());
        let host = &mut self.hosts[rank];
        host.beats += 1;
        if rank == 0 {
            host.elsewhere.1 = activity;
        }
        if let (Some((_, moved)), true) = (&mut host.working, host.elsewhere.0 != host.elsewhere.1) {
            (*moved, host.elsewhere.0) = (now, host.elsewhere.1);
        }
        // The control thread does not wait longer than this until the worker leaves.
        if host.hung_up.is_some_and(|hung_up| now.since(hung_up) >= BACKSTOP) {
            self.kill_worker(rank);
        } else if host.failure_exit.is_some() {
            self.take_leave(rank);
        } else if let Some((_, moved)) = host.working {
            self.watch(rank, moved);
        } else if !host.busy {
            let event = if host.hung_up.is_some() { WorkerEvent::HungUp } else { WorkerEvent::Quiet };
            self.step_worker(rank, event);
        }
        if self.hosts[rank].worker == PartyState::Gone {
            return;
        }
        if rank == 0 && self.coordinator != PartyState::Gone {
            let host = &self.hosts[0];
            let (epoch, seen) = (host.epoch, (host.beats, host.steps, host.phase));
            self.later(Duration::ZERO, Party::Coordinator, SimEvent::Beat { rank, epoch, sent: now, seen });
        }
        self.wake(rank, BEAT, Wake::Beats);
    }

    /// Ends the work of a collective after a verdict, at the deadline, or after the loss of a neighbour.
    fn watch(&mut self, rank: usize, moved: Moment) {
        if self.hosts[rank].is_decided() {
            self.fail(rank, "the verdict", false);
        } else if self.now.since(moved) > LIMIT + BACKSTOP {
            self.fail(rank, "nothing moved", false);
        } else if !self.lost_peers(rank).is_empty() {
            self.fail(rank, "a connection broke", true);
        }
    }
}
