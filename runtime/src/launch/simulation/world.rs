//! Time, network and faults of the simulation.
//!
//! The principal type is [`SimulatedWorld`]: a queue of events. The parties run the same code with the same waits as in
//! a real job: the coordinator has a `Judge`, agents have an `AgentState`, workers a `WorkerState` and a `FailureExit`.
//! Their actions are simulated in `coordinator`, `agent` and `host`. Messages between coordinator and agents may be
//! late, lost, duplicated and reordered, which is worse than TCP.

use super::coordinator::ObservedRanks;
use super::host::{Host, Wake};
use super::setup::{FOR_EVER, InjectedFault, Party, Random, SimulationSetup};
use crate::clock::Moment;
use crate::control::judge::{Heard, Judge, POLL_INTERVAL, RankEvent};
use crate::control::messages::{ToAgent, WorkerCommand};
use crate::control::question::Question;
use crate::launch::agent::ENDING;
use crate::numbers::{Epoch, TaskNumber};
use crate::verdict::{Phase, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::Rank;

/// How long ranks may take to get ready, or work, without any movement.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
/// The most epochs of a job.
pub(super) const EPOCHS: Epoch = Epoch(4);

/// An event: something that arrives at a party, or wakes it.
#[derive(Clone, Debug)]
pub(super) enum SimEvent {
    /// Several events of ranks, in this order.
    Heard(Vec<Heard>),
    Beat {
        rank: usize,
        epoch: Epoch,
        sent: Moment,
        seen: (u64, u64, Phase),
    },
    Glance,
    ToAgent(ToAgent),
    /// The coordinator's end of the connection is closed.
    UnreachableAddresses,
    AgentWakes,
    Command {
        epoch: Epoch,
        command: WorkerCommand,
    },
    Worker {
        epoch: Epoch,
        wake: Wake,
    },
    Befalls(InjectedFault),
    Resumes,
}

impl SimEvent {
    fn is_timer(&self) -> bool {
        matches!(self, Self::Glance | Self::AgentWakes | Self::Worker { .. })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartyState {
    Runs,
    Stopped,
    Gone,
}

/// How a task ended, for the coordinator.
pub(super) type TaskOutcome = Result<TaskNumber, (Verdict, String)>;

pub(super) struct SimulatedWorld {
    pub(super) setup: SimulationSetup,
    pub(super) random: Random,
    pub(super) now: Moment,
    queue: BTreeMap<(Moment, u64), (Party, SimEvent)>,
    count: u64,
    /// Events of parties that are stopped.
    held: Vec<(Party, SimEvent)>,
    pub(super) coordinator: PartyState,
    pub(super) epoch: Epoch,
    pub(super) task: TaskNumber,
    pub(super) judge: Judge,
    pub(super) seen: ObservedRanks,
    pub(super) question: Question,
    pub(super) ordered: Option<WorkerCommand>,
    pub(super) glances: u64,
    pub(super) hosts: Vec<Host>,
    /// The plan of each rank that has begun a collective.
    pub(super) collectives: BTreeMap<(Epoch, TaskNumber), BTreeMap<usize, String>>,
    /// The ranks that have voted, by epoch and task.
    pub(super) votes: BTreeSet<(Epoch, TaskNumber, usize)>,
    /// The ranks that were hit by a fault or by the loss of a message.
    pub(super) faulty: BTreeSet<usize>,
    pub(super) outcomes: Vec<TaskOutcome>,
    /// The agents that cannot be reached, and until when.
    silent: BTreeMap<usize, Moment>,
    /// Whether no agent can be reached.
    isolated: bool,
    /// Whether faults have ended.
    pub(super) calm: bool,
}

impl SimulatedWorld {
    pub(super) fn new(setup: SimulationSetup) -> Self {
        let hosts = (0..setup.ranks).map(|rank| Host::new(rank, setup.ranks)).collect();
        let mut world = Self {
            random: Random(setup.seed),
            now: Moment(1_000_000_000),
            queue: BTreeMap::new(),
            count: 0,
            held: Vec::new(),
            coordinator: PartyState::Runs,
            epoch: Epoch::default(),
            task: TaskNumber::default(),
            judge: Judge::new(Epoch::default(), Moment(1_000_000_000), []),
            seen: ObservedRanks(Vec::new(), vec![Moment(0); setup.ranks]),
            question: Question::SetUp,
            ordered: None,
            glances: 0,
            hosts,
            collectives: BTreeMap::new(),
            votes: BTreeSet::new(),
            faulty: BTreeSet::new(),
            outcomes: Vec::new(),
            silent: BTreeMap::new(),
            isolated: false,
            calm: false,
            setup,
        };
        for (after, fault) in world.setup.faults.clone() {
            world.later(Duration::from_millis(after), Party::Coordinator, SimEvent::Befalls(fault));
        }
        (1..world.setup.ranks).for_each(|rank| world.later(Duration::ZERO, Party::Agent(rank), SimEvent::AgentWakes));
        world.begin_epoch();
        world.later(POLL_INTERVAL, Party::Coordinator, SimEvent::Glance);
        world
    }

    pub(super) fn later(&mut self, delay: Duration, party: Party, event: SimEvent) {
        self.count += 1;
        self.queue.insert((self.now.after(delay), self.count), (party, event));
    }

    /// Handles the next event. Returns whether there was one before `until`.
    pub(super) fn proceed_until(&mut self, until: Moment) -> bool {
        let Some((&(now, count), _)) = self.queue.first_key_value() else { return false };
        if now > until {
            return false;
        }
        let Some((party, event)) = self.queue.remove(&(now, count)) else { return false };
        self.now = now;
        match event {
            SimEvent::Befalls(fault) => self.befall(fault),
            SimEvent::Resumes => self.resume(party),
            event => match self.state(party) {
                PartyState::Runs => self.act(party, event),
                PartyState::Stopped => self.held.push((party, event)),
                PartyState::Gone => {}
            },
        }
        true
    }

    pub(super) fn state(&self, party: Party) -> PartyState {
        match party {
            Party::Coordinator => self.coordinator,
            Party::Agent(rank) => self.hosts[rank].agent,
            Party::Worker(rank) => self.hosts[rank].worker,
        }
    }

    fn set(&mut self, party: Party, state: PartyState) {
        match party {
            Party::Coordinator => self.coordinator = state,
            Party::Agent(rank) => self.hosts[rank].agent = state,
            Party::Worker(rank) => self.hosts[rank].worker = state,
        }
    }

    fn act(&mut self, party: Party, event: SimEvent) {
        match (party, event) {
            (Party::Coordinator, SimEvent::Heard(heard)) => heard.into_iter().for_each(|heard| self.step(Some(heard))),
            (Party::Coordinator, SimEvent::Beat { rank, epoch, sent, seen }) => {
                // A repeated beat is not a new sign of life.
                self.seen.1[rank] = self.seen.1[rank].max(sent);
                if epoch == self.epoch && seen.0 >= self.seen.0[rank].0 {
                    self.seen.0[rank] = seen;
                }
            }
            (Party::Coordinator, SimEvent::Glance) => self.glance(),
            (Party::Agent(rank), event) => self.agent(rank, event),
            (Party::Worker(rank), event) => self.worker(rank, event),
            (party, event) => panic!("{party:?} cannot meet {event:?}"),
        }
    }

    fn befall(&mut self, fault: InjectedFault) {
        if self.calm {
            return;
        }
        let rank_of = |party| match party {
            Party::Coordinator => 0,
            Party::Agent(rank) | Party::Worker(rank) => rank,
        };
        let rank = match fault {
            InjectedFault::Crash(party) | InjectedFault::Stop(party, _) => rank_of(party),
            InjectedFault::Slow(rank) => {
                self.hosts[rank].slow = true;
                if self.isolated {
                    self.faulty.insert(rank);
                }
                return;
            }
            InjectedFault::Silence(rank, _) | InjectedFault::CutLane(rank) | InjectedFault::CutLanes(rank) => rank,
            InjectedFault::Isolation | InjectedFault::CutOff => 0,
            InjectedFault::OtherPlan(rank) | InjectedFault::NoPlan(rank) | InjectedFault::OtherProtocol(rank) => rank,
        };
        self.faulty.insert(rank);
        // The two ends of a single connection cannot be told apart.
        if self.setup.ranks == 2 && matches!(fault, InjectedFault::Isolation | InjectedFault::CutOff) {
            self.faulty.insert(1);
        }
        match fault {
            InjectedFault::Crash(party) => self.crash(party),
            InjectedFault::Stop(party, millis) if self.state(party) == PartyState::Runs => {
                self.set(party, PartyState::Stopped);
                self.later(Duration::from_millis(millis), party, SimEvent::Resumes);
            }
            InjectedFault::Silence(rank, millis) => {
                self.silent.insert(rank, self.now.after(Duration::from_millis(millis)));
            }
            InjectedFault::Isolation => {
                self.isolated = true;
                // A slow rank would be silent for nearly the limit. Now it stays silent.
                let slow = (0..self.setup.ranks).filter(|&rank| self.hosts[rank].slow);
                self.faulty.extend(slow);
            }
            InjectedFault::CutOff => (1..self.setup.ranks).for_each(|rank| self.cut(rank)),
            InjectedFault::CutLane(rank) => {
                let next = (rank + 1) % self.setup.ranks;
                self.faulty.insert(next);
                self.cut_lane(rank, next);
            }
            InjectedFault::CutLanes(rank) => {
                let (ranks, is_plain) = (self.setup.ranks, self.setup.lost == 0 && self.setup.faults.len() == 1);
                for next in [(rank + 1) % ranks, (rank + ranks - 1) % ranks] {
                    self.cut_lane(rank, next);
                    // The two ends cannot be told apart, and a rank that was cut off may be unable to report it.
                    if ranks == 2 || !is_plain {
                        self.faulty.insert(next);
                    }
                }
            }
            fault => self.hosts[rank].odd = Some(fault),
        }
    }

    fn cut_lane(&mut self, one: usize, other: usize) {
        self.hosts[one].lost.insert(other);
        self.hosts[other].lost.insert(one);
    }

    pub(super) fn crash(&mut self, party: Party) {
        if self.state(party) == PartyState::Gone {
            return;
        }
        self.set(party, PartyState::Gone);
        self.held.retain(|(held, _)| *held != party);
        match party {
            Party::Coordinator => {
                for rank in 1..self.setup.ranks {
                    self.close(rank);
                }
                self.hang_up(0);
            }
            Party::Agent(rank) => {
                let delay = self.random.millis(50);
                if !self.is_silent(rank) {
                    self.say_left(rank, delay);
                }
                self.hang_up(rank);
            }
            Party::Worker(rank) => {
                let (epoch, delay) = (self.hosts[rank].epoch, self.random.millis(ENDING.as_millis() as u64));
                self.say_gone(rank, epoch, delay);
            }
        }
    }

    /// The connection with an agent breaks, and both ends learn it.
    fn cut(&mut self, rank: usize) {
        self.close(rank);
        let delay = self.random.millis(40);
        self.say_left(rank, delay);
        self.silent.insert(rank, self.now.after(Duration::from_millis(FOR_EVER)));
    }

    fn say_left(&mut self, rank: usize, delay: Duration) {
        let event = RankEvent::Left("its connection is closed".to_owned());
        let heard = Heard { epoch: self.epoch, rank: Rank::from_index(rank), event };
        self.later(delay, Party::Coordinator, SimEvent::Heard(vec![heard]));
    }

    /// The coordinator's end of a connection is closed. The agent learns it if it can be reached.
    fn close(&mut self, rank: usize) {
        if !self.is_silent(rank) {
            // It arrives after all messages of the connection.
            let delay = Duration::from_millis(self.setup.delay) + self.random.millis(50);
            self.later(delay, Party::Agent(rank), SimEvent::UnreachableAddresses);
        }
    }

    fn resume(&mut self, party: Party) {
        if self.state(party) != PartyState::Stopped {
            return;
        }
        self.set(party, PartyState::Runs);
        let (held, others) = std::mem::take(&mut self.held).into_iter().partition(|(held, _)| *held == party);
        self.held = others;
        // A party that continues handles its messages before its timers.
        let (timers, said): (Vec<_>, Vec<_>) = Vec::into_iter(held).partition(|(_, event)| event.is_timer());
        said.into_iter().chain(timers).for_each(|(_, event)| self.later(Duration::ZERO, party, event));
    }

    fn is_silent(&self, rank: usize) -> bool {
        self.isolated || self.silent.get(&rank).is_some_and(|&until| self.now < until)
    }

    /// Sends a message between the coordinator and an agent.
    pub(super) fn send(&mut self, rank: usize, party: Party, event: SimEvent) {
        let is_lost = !self.calm && self.random.below(100) < self.setup.lost;
        if is_lost {
            self.faulty.insert(rank);
        }
        // An agent that cannot be reached was counted as faulty when that began.
        if is_lost || self.is_silent(rank) {
            return;
        }
        if !self.calm && self.random.below(100) < self.setup.doubled {
            let delay = self.random.millis(4000);
            self.later(delay, party, event.clone());
        }
        let delay = self.random.millis(self.setup.delay);
        self.later(delay, party, event);
    }
}
