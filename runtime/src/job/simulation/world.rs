//! Time, network and faults of the simulation, and the coordinator in it.
//!
//! The principal type is [`World`]: a queue of what happens when. Every party decides by the code that a real job decides
//! by: the coordinator by its `Judge`, agents by a `Charge`, workers by a `Duty`. What the parties do then is imitated
//! here and in `host`. Messages between coordinator and agents may be late, lost, doubled and out of order, which is worse
//! than TCP is.

use super::super::judge::{Decision, Event, Heard, Judge, LAST_WORDS, Sight};
use super::super::messages::{Answer, Command, Muster, PROTOCOL, Task, Terms, ToAgent};
use super::super::question::Question;
use super::host::{Host, Wake};
use crate::board::{BoardShape, Verdict};
use crate::clock::Moment;
use crate::error::Phase;
use crate::wiring::Hosts;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::Rank;

/// How long ranks may take to get ready, and to work, without any movement.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
/// How often a waiting coordinator looks around.
const GLANCE: Duration = Duration::from_millis(20);
/// How many epochs a job may have.
const EPOCHS: u64 = 4;
/// The plan that the coordinator has.
pub(super) const PLAN: &str = "the plan";

/// A small generator with a fixed stream (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % limit
    }

    pub(super) fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_micros(50 + self.below(1000 * limit))
    }
}

/// Who acts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    Coordinator,
    /// What looks after a rank but 0.
    Agent(usize),
    Worker(usize),
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Crash(Party),
    /// For so many milliseconds.
    Stop(Party, u64),
    /// Nothing passes between the coordinator and an agent for so many milliseconds.
    Silence(usize, u64),
    /// The data connection between two neighbours breaks.
    CutLane(usize),
    /// The worker prepares another plan.
    OtherPlan(usize),
    /// It finds none.
    NoPlan(usize),
    /// It speaks another version of the protocol.
    OtherProtocol(usize),
    /// It works so slowly that others nearly give up.
    Slow(usize),
}

/// One schedule.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) tasks: u64,
    /// The longest that a message takes, in milliseconds.
    pub(super) delay: u64,
    /// How many of a hundred messages are lost, and doubled.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// After so many milliseconds.
    pub(super) faults: Vec<(u64, Fault)>,
}

/// What arrives at a party, or wakes it.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// In this order.
    Heard(Vec<Heard>),
    Beat { rank: usize, epoch: u64, seen: (u64, u64, Phase) },
    Glance,
    ToAgent(ToAgent),
    /// The coordinator's end of the connection is closed.
    Closed,
    AgentWakes,
    Command { epoch: u64, command: Command },
    Worker { epoch: u64, wake: Wake },
    Befalls(Fault),
    Resumes,
}

impl Happening {
    fn is_timer(&self) -> bool {
        matches!(self, Self::Glance | Self::AgentWakes | Self::Worker { .. })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Runs,
    Stopped,
    Gone,
}

/// How a task ended, for the coordinator.
pub(super) type Outcome = Result<u64, (Verdict, String)>;

/// What the coordinator has seen of its ranks: beats, steps, phase.
pub(super) struct Seen(Vec<(u64, u64, Phase)>);

impl Sight for Seen {
    fn beats(&self, rank: Rank) -> u64 {
        self.0[rank.index()].0
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

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) now: Moment,
    queue: BTreeMap<(Moment, u64), (Party, Happening)>,
    count: u64,
    /// What waits for a party that is stopped.
    held: Vec<(Party, Happening)>,
    pub(super) coordinator: State,
    pub(super) epoch: u64,
    pub(super) job: u64,
    judge: Judge,
    pub(super) seen: Seen,
    question: Question,
    ordered: Option<Command>,
    closing: Option<Moment>,
    glances: u64,
    pub(super) hosts: Vec<Host>,
    /// Plans by collective and rank, of those who began it.
    pub(super) collectives: BTreeMap<(u64, u64), BTreeMap<usize, String>>,
    /// Who voted in an epoch for a task.
    pub(super) votes: BTreeSet<(u64, u64, usize)>,
    /// Who was hit by a fault, or by the loss of a message.
    pub(super) faulty: BTreeSet<usize>,
    pub(super) outcomes: Vec<Outcome>,
    /// Which agents cannot be reached, until when.
    silent: BTreeMap<usize, Moment>,
    /// Whether nothing more goes wrong.
    pub(super) calm: bool,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let hosts = (0..setup.ranks).map(|_| Host::new()).collect();
        let mut world = Self {
            random: Random(setup.seed),
            now: Moment(1_000_000_000),
            queue: BTreeMap::new(),
            count: 0,
            held: Vec::new(),
            coordinator: State::Runs,
            epoch: 0,
            job: 0,
            judge: Judge::new(0, Moment(1_000_000_000), []),
            seen: Seen(Vec::new()),
            question: Question::Mustered,
            ordered: None,
            closing: None,
            glances: 0,
            hosts,
            collectives: BTreeMap::new(),
            votes: BTreeSet::new(),
            faulty: BTreeSet::new(),
            outcomes: Vec::new(),
            silent: BTreeMap::new(),
            calm: false,
            setup,
        };
        for (after, fault) in world.setup.faults.clone() {
            world.later(Duration::from_millis(after), Party::Coordinator, Happening::Befalls(fault));
        }
        (1..world.setup.ranks).for_each(|rank| world.later(Duration::ZERO, Party::Agent(rank), Happening::AgentWakes));
        world.begin_epoch();
        world.later(GLANCE, Party::Coordinator, Happening::Glance);
        world
    }

    pub(super) fn later(&mut self, delay: Duration, party: Party, happening: Happening) {
        self.count += 1;
        self.queue.insert((self.now.after(delay), self.count), (party, happening));
    }

    /// Lets happen what happens next; whether there was anything, before `until`.
    pub(super) fn step(&mut self, until: Moment) -> bool {
        let Some((&(now, count), _)) = self.queue.first_key_value() else { return false };
        if now > until {
            return false;
        }
        let Some((party, happening)) = self.queue.remove(&(now, count)) else { return false };
        self.now = now;
        match happening {
            Happening::Befalls(fault) => self.befall(fault),
            Happening::Resumes => self.resume(party),
            happening => match self.state(party) {
                State::Runs => self.act(party, happening),
                State::Stopped => self.held.push((party, happening)),
                State::Gone => {}
            },
        }
        true
    }

    pub(super) fn state(&self, party: Party) -> State {
        match party {
            Party::Coordinator => self.coordinator,
            Party::Agent(rank) => self.hosts[rank].agent,
            Party::Worker(rank) => self.hosts[rank].worker,
        }
    }

    fn set(&mut self, party: Party, state: State) {
        match party {
            Party::Coordinator => self.coordinator = state,
            Party::Agent(rank) => self.hosts[rank].agent = state,
            Party::Worker(rank) => self.hosts[rank].worker = state,
        }
    }

    fn act(&mut self, party: Party, happening: Happening) {
        match (party, happening) {
            (Party::Coordinator, Happening::Heard(heard)) => heard.into_iter().for_each(|heard| self.hear(heard)),
            (Party::Coordinator, Happening::Beat { rank, epoch, seen }) => {
                if epoch == self.epoch && seen.0 >= self.seen.0[rank].0 {
                    self.seen.0[rank] = seen;
                }
            }
            (Party::Coordinator, Happening::Glance) => self.glance(),
            (Party::Agent(rank), happening) => self.agent(rank, happening),
            (Party::Worker(rank), happening) => self.worker(rank, happening),
            (party, happening) => panic!("{party:?} cannot meet {happening:?}"),
        }
    }

    fn befall(&mut self, fault: Fault) {
        if self.calm {
            return;
        }
        let rank_of = |party| match party {
            Party::Coordinator => 0,
            Party::Agent(rank) | Party::Worker(rank) => rank,
        };
        let rank = match fault {
            Fault::Crash(party) | Fault::Stop(party, _) => rank_of(party),
            Fault::Slow(rank) => {
                self.hosts[rank].slow = true;
                return;
            }
            Fault::Silence(rank, _) | Fault::CutLane(rank) => rank,
            Fault::OtherPlan(rank) | Fault::NoPlan(rank) | Fault::OtherProtocol(rank) => rank,
        };
        self.faulty.insert(rank);
        match fault {
            Fault::Crash(party) => self.crash(party),
            Fault::Stop(party, millis) if self.state(party) == State::Runs => {
                self.set(party, State::Stopped);
                self.later(Duration::from_millis(millis), party, Happening::Resumes);
            }
            Fault::Silence(rank, millis) => {
                self.silent.insert(rank, self.now.after(Duration::from_millis(millis)));
            }
            Fault::CutLane(rank) => {
                let next = (rank + 1) % self.setup.ranks;
                self.faulty.insert(next);
                self.hosts[rank].lost = Some(next);
                self.hosts[next].lost = Some(rank);
            }
            fault => self.hosts[rank].odd = Some(fault),
        }
    }

    pub(super) fn crash(&mut self, party: Party) {
        if self.state(party) == State::Gone {
            return;
        }
        self.set(party, State::Gone);
        self.held.retain(|(held, _)| *held != party);
        match party {
            Party::Coordinator => {
                for rank in 1..self.setup.ranks {
                    self.close(rank);
                }
                self.hosts[0].orphan();
            }
            Party::Agent(rank) => {
                let event = Event::Left("its connection is closed".to_owned());
                let heard = Heard { epoch: self.epoch, rank: Rank::from_index(rank), event };
                let delay = self.random.millis(50);
                self.later(delay, Party::Coordinator, Happening::Heard(vec![heard]));
                self.hosts[rank].orphan();
            }
            Party::Worker(rank) => {
                let (epoch, delay) = (self.hosts[rank].epoch, self.random.millis(200));
                self.say_gone(rank, epoch, delay);
            }
        }
    }

    /// The coordinator's end of a connection is closed, which an agent learns if it can be reached.
    fn close(&mut self, rank: usize) {
        if !self.is_silent(rank) {
            // It is the last that is said on a connection.
            let delay = Duration::from_millis(self.setup.delay) + self.random.millis(50);
            self.later(delay, Party::Agent(rank), Happening::Closed);
        }
    }

    fn resume(&mut self, party: Party) {
        if self.state(party) != State::Stopped {
            return;
        }
        self.set(party, State::Runs);
        let (held, others) = std::mem::take(&mut self.held).into_iter().partition(|(held, _)| *held == party);
        self.held = others;
        // Who wakes up hears what was said meanwhile before it looks at the time.
        let (timers, said): (Vec<_>, Vec<_>) = Vec::into_iter(held).partition(|(_, happening)| happening.is_timer());
        said.into_iter().chain(timers).for_each(|(_, happening)| self.later(Duration::ZERO, party, happening));
    }

    fn is_silent(&self, rank: usize) -> bool {
        self.silent.get(&rank).is_some_and(|&until| self.now < until)
    }

    /// Sends between the coordinator and an agent.
    pub(super) fn send(&mut self, rank: usize, party: Party, happening: Happening) {
        let is_lost = !self.calm && self.random.below(100) < self.setup.lost;
        if is_lost || self.is_silent(rank) {
            self.faulty.insert(rank);
            return;
        }
        if !self.calm && self.random.below(100) < self.setup.doubled {
            let delay = self.random.millis(4000);
            self.later(delay, party, happening.clone());
        }
        let delay = self.random.millis(self.setup.delay);
        self.later(delay, party, happening);
    }

    fn tell(&mut self, rank: usize, message: ToAgent) {
        self.send(rank, Party::Agent(rank), Happening::ToAgent(message));
    }

    /// An order reaches rank 0's worker at once, the others by their agents.
    fn order(&mut self, rank: usize, command: Command) {
        let epoch = self.epoch;
        match rank {
            0 => self.later(Duration::ZERO, Party::Worker(0), Happening::Command { epoch, command }),
            _ => self.tell(rank, ToAgent::Order { epoch, command }),
        }
    }

    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.closing = None;
        let ranks = self.setup.ranks;
        self.judge = self.judge.next(self.epoch, self.now, (0..ranks).map(|rank| rank > 0));
        self.seen = Seen(vec![(0, 0, Phase::Prepare); ranks]);
        for rank in 1..ranks {
            let silence_ms = LIMIT.as_millis() as u64;
            let muster = Muster { job: [0; 32], board: shape(ranks), place: None, absent: Vec::new(), silence_ms };
            self.tell(rank, ToAgent::Muster { epoch: self.epoch, muster });
        }
        self.ask(Question::Mustered, None);
    }

    fn ask(&mut self, question: Question, ordered: Option<Command>) {
        let asked = |rank: Rank| rank != Rank(0) || question != Question::Mustered;
        self.judge.ask(self.now, (question.clone(), LIMIT), asked, &self.seen);
        (self.question, self.ordered) = (question, ordered);
    }

    fn hear(&mut self, heard: Heard) {
        match self.judge.look(self.now, &self.seen) {
            Decision::Wait => {}
            decision => self.obey(decision),
        }
        let is_old = heard.epoch != self.epoch && !matches!(heard.event, Event::Left(_));
        let known = is_old.then(|| self.judge.clone());
        let decision = self.judge.hear(self.now, heard, &self.seen);
        if let Some(known) = known {
            assert!(known == self.judge && decision == Decision::Wait, "an epoch that is over was heard");
        }
        self.obey(decision);
    }

    fn glance(&mut self) {
        let decision = self.judge.look(self.now, &self.seen);
        self.obey(decision);
        if self.closing.is_some_and(|until| self.now >= until) {
            self.conclude();
        }
        self.glances += 1;
        for rank in 1..self.setup.ranks {
            if self.glances.is_multiple_of(5) {
                self.tell(rank, ToAgent::Ping { at: self.now, activity: self.seen.activity() });
            }
        }
        if self.coordinator != State::Gone {
            self.later(GLANCE, Party::Coordinator, Happening::Glance);
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
                self.hosts[0].verdict.get_or_insert(verdict);
                self.outcomes.push(Err((verdict, evidence)));
                self.closing = Some(self.now.after(LAST_WORDS));
            }
        }
    }

    /// All have answered: the next step of the protocol.
    fn proceed(&mut self, answers: &[(Rank, Answer)]) {
        let ranks = self.setup.ranks;
        if let Some((order, question)) = self.question.then(answers) {
            (0..ranks).for_each(|rank| self.order(rank, order.clone()));
            return self.ask(question, Some(order));
        }
        match self.question {
            Question::Mustered => {
                for rank in 1..ranks {
                    let terms = terms(rank, ranks);
                    self.tell(rank, ToAgent::Enlist { epoch: self.epoch, terms });
                }
                self.start_worker(0, self.epoch);
                return self.ask(Question::Hello, None);
            }
            Question::Done { job } => self.outcomes.push(Ok(job)),
            _ => {}
        }
        if self.outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64 == self.setup.tasks {
            self.closing = Some(self.now);
            return;
        }
        self.job += 1;
        let (job, task) = (self.job, Task::Trial(Vec::new()));
        (0..ranks).for_each(|rank| self.order(rank, Command::Prepare { job, limit_ms: 1, task: task.clone() }));
        self.ask(Question::Listening { job, plan: PLAN.to_owned() }, None);
    }

    /// The epoch is over: the next one begins without faults, or the job ends.
    fn conclude(&mut self) {
        self.closing = None;
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

fn shape(ranks: usize) -> BoardShape {
    BoardShape { ranks, clocks: 0, arena: 0, spread: true }
}

fn terms(rank: usize, ranks: usize) -> Terms {
    Terms {
        protocol: PROTOCOL,
        rank: Rank::from_index(rank),
        board: shape(ranks),
        first_here: true,
        ring_bytes: 0,
        tile_bytes: None,
        work_limit_ms: 0,
        emulation: None,
        hosts: Hosts::Each,
        interfaces: Vec::new(),
        ready_limit_ms: 0,
    }
}
