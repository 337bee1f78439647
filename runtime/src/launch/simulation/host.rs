//! Agents and workers of the simulation.
//!
//! The principal type is [`Host`]: a rank's worker, and its agent if it has one. The work of a collective is imitated by
//! steps, of which each needs the step before on the neighbour that sends.

use super::setup::{Fault, PLAN, Party};
use super::world::{Happening, LIMIT, State, World};
use crate::clock::Moment;
use crate::control::charge::{Charge, Overdue};
use crate::control::duty::{Duty, Heed, Patience};
use crate::control::judge::{BEAT, Event, Heard, LAST_WORDS, Sight};
use crate::control::messages::{Answer, Command, Finding, PROTOCOL, ToAgent};
use crate::transport::tcp::Doors;
use crate::verdict::{Cause, Phase, Verdict};
use std::collections::BTreeSet;
use std::time::Duration;
use topology::Rank;

/// How much later than the coordinator a worker decides alone.
const BACKSTOP: Duration = Duration::from_secs(2);
/// How long who lost a neighbour waits for the reason.
const EXPLANATION: Duration = Duration::from_millis(300);
/// How many steps a collective has.
const STEPS: u64 = 6;

/// What a worker is woken for.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    Starts,
    Beats,
    Prepared(u64),
    Connected(u64),
    Steps(u64),
}

/// How an agent ended.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Parting {
    Ended(Option<Verdict>),
    Abandoned,
}

/// One rank.
pub(super) struct Host {
    pub(super) agent: State,
    pub(super) worker: State,
    charge: Charge,
    /// The epoch of the worker.
    pub(super) epoch: u64,
    duty: Duty,
    /// What it has prepared.
    plan: String,
    /// What its segment says.
    pub(super) verdict: Option<Verdict>,
    /// The launcher of the worker is gone.
    orphaned: bool,
    phase: Phase,
    beats: u64,
    /// The activity of all ranks, as it was when this one looked last, and as it is.
    elsewhere: (u64, u64),
    /// Steps in the present collective, and in all.
    done: u64,
    steps: u64,
    /// The collective it is in, and when it moved last.
    working: Option<(u64, Moment)>,
    /// When it noticed that it has lost a neighbour.
    noticed: Option<Moment>,
    /// Why it ended.
    said: Option<Answer>,
    /// It ended by itself: it keeps its connections until the verdict.
    has_failed: bool,
    /// The neighbours to which its data connection is cut.
    pub(super) lost: BTreeSet<usize>,
    pub(super) odd: Option<Fault>,
    pub(super) slow: bool,
    pub(super) parting: Option<Parting>,
    /// When an agent that leaves ends its worker.
    leaving: Option<Moment>,
}

impl Host {
    pub(super) fn new() -> Self {
        Self {
            agent: State::Runs,
            worker: State::Gone,
            charge: Charge::new(Moment(1_000_000_000), 3 * LIMIT),
            epoch: 0,
            duty: Duty::new(LIMIT),
            plan: String::new(),
            verdict: None,
            orphaned: false,
            phase: Phase::Prepare,
            beats: 0,
            elsewhere: (0, 0),
            done: 0,
            steps: 0,
            working: None,
            noticed: None,
            said: None,
            has_failed: false,
            lost: BTreeSet::new(),
            odd: None,
            slow: false,
            parting: None,
            leaving: None,
        }
    }

    /// Whoever started the worker is gone, which its control thread sees.
    pub(super) fn orphan(&mut self) {
        self.orphaned = true;
    }

    /// What went wrong with its workers does not go wrong with the next one.
    pub(super) fn mend(&mut self) {
        (self.lost, self.odd, self.slow) = (BTreeSet::new(), None, false);
    }
}

impl World {
    pub(super) fn agent(&mut self, rank: usize, happening: Happening) {
        let now = self.now;
        match happening {
            Happening::ToAgent(message) => {
                let known = self.hosts[rank].charge.clone();
                let of = epoch_of(&message);
                let is_muster = matches!(message, ToAgent::Muster { .. });
                let admitted = self.hosts[rank].charge.admit(now, message);
                let is_old = of.is_some_and(|epoch| epoch < known.epoch() || epoch > known.epoch() && !is_muster);
                assert!(!is_old || admitted.is_none() && known == self.hosts[rank].charge, "an old epoch was heard");
                if let Some(message) = admitted {
                    self.heed(rank, message);
                }
            }
            Happening::Closed => self.leave(rank, Parting::Abandoned),
            Happening::AgentWakes => {
                match self.hosts[rank].charge.overdue(now) {
                    Some(Overdue::Coordinator(_)) => self.leave(rank, Parting::Abandoned),
                    Some(Overdue::Worker) => self.kill_worker(rank),
                    None => {}
                }
                if self.hosts[rank].leaving.is_some_and(|until| now >= until) {
                    self.kill_worker(rank);
                    return self.crash(Party::Agent(rank));
                }
                let host = &self.hosts[rank];
                let (epoch, seen) = (host.charge.epoch(), (host.beats, host.steps, host.phase));
                self.send(rank, Party::Coordinator, Happening::Beat { rank, epoch, sent: now, seen });
                self.later(BEAT, Party::Agent(rank), Happening::AgentWakes);
            }
            other => panic!("an agent cannot meet {other:?}"),
        }
    }

    fn heed(&mut self, rank: usize, message: ToAgent) {
        match message {
            ToAgent::Muster { epoch, .. } => {
                self.kill_worker(rank);
                let host = &mut self.hosts[rank];
                // Its segment is a new one.
                (host.verdict, host.epoch, host.phase, host.beats, host.steps) = (None, epoch, Phase::Prepare, 0, 0);
                let answer = Answer::Mustered { machine: String::new(), segment: None };
                self.answer_as(rank, epoch, answer);
            }
            ToAgent::Enlist { epoch, .. } => self.start_worker(rank, epoch),
            ToAgent::Order { epoch, command } => {
                self.later(Duration::ZERO, Party::Worker(rank), Happening::Command { epoch, command });
            }
            ToAgent::Verdict { verdict, .. } => drop(self.hosts[rank].verdict.get_or_insert(verdict)),
            ToAgent::Ping { activity, .. } => self.hosts[rank].elsewhere.1 = activity,
            ToAgent::End => self.leave(rank, Parting::Ended(None)),
            _ => {}
        }
    }

    /// An agent's part is over: its worker has time for its last words.
    fn leave(&mut self, rank: usize, otherwise: Parting) {
        let host = &mut self.hosts[rank];
        if host.leaving.is_some() {
            return;
        }
        let sentence = host.charge.sentence().map(|(verdict, _)| *verdict);
        host.parting = Some(sentence.map_or(otherwise, |verdict| Parting::Ended(Some(verdict))));
        let orphaned = Verdict { rank: Rank::from_index(rank), cause: Cause::Orphaned, phase: host.phase };
        host.verdict.get_or_insert(orphaned);
        host.leaving = Some(self.now.after(LAST_WORDS));
    }

    pub(super) fn start_worker(&mut self, rank: usize, epoch: u64) {
        let host = &mut self.hosts[rank];
        host.worker = State::Runs;
        host.duty = Duty::new(3 * LIMIT + BACKSTOP);
        (host.epoch, host.phase, host.beats, host.done, host.steps) = (epoch, Phase::Prepare, 0, 0, 0);
        (host.working, host.noticed, host.orphaned) = (None, None, false);
        (host.said, host.has_failed) = (None, false);
        if rank == 0 {
            host.verdict = None;
        }
        let delay = self.random.millis(100);
        self.later(delay, Party::Worker(rank), Happening::Worker { epoch, wake: Wake::Starts });
    }

    pub(super) fn kill_worker(&mut self, rank: usize) {
        self.crash(Party::Worker(rank));
    }

    /// A worker's end shows where its answers are read.
    pub(super) fn say_gone(&mut self, rank: usize, epoch: u64, delay: Duration) {
        let said = self.hosts[rank].said.take().map(Event::Answer);
        let gone = Event::Gone("it was killed".to_owned());
        let heard = |event| Heard { epoch, rank: Rank::from_index(rank), event };
        let heard = Happening::Heard(said.into_iter().chain([gone]).map(heard).collect());
        if rank == 0 {
            self.later(delay, Party::Coordinator, heard);
        } else if self.hosts[rank].agent != State::Gone {
            self.send(rank, Party::Coordinator, heard);
        }
    }

    fn answer_as(&mut self, rank: usize, epoch: u64, answer: Answer) {
        let heard = Heard { epoch, rank: Rank::from_index(rank), event: Event::Answer(answer) };
        match rank {
            0 => self.later(Duration::ZERO, Party::Coordinator, Happening::Heard(vec![heard])),
            // An agent that is stopped passes nothing on; what is in its pipe counts as lost.
            _ if self.hosts[rank].agent == State::Runs => {
                self.send(rank, Party::Coordinator, Happening::Heard(vec![heard]));
            }
            _ => {}
        }
    }

    fn answer(&mut self, rank: usize, answer: Answer) {
        let (now, epoch) = (self.now, self.hosts[rank].epoch);
        self.hosts[rank].duty.said(now, &answer);
        if let Answer::Ready { job, plan } = &answer
            && plan == PLAN
        {
            self.votes.insert((epoch, *job, rank));
        }
        self.answer_as(rank, epoch, answer);
    }

    fn fail(&mut self, rank: usize, reason: &str, peers: &[usize]) {
        let (phase, peers) = (self.hosts[rank].phase, peers.iter().copied().map(Rank::from_index).collect());
        let failed = Answer::Failed { phase, reason: reason.to_owned(), peers };
        (self.hosts[rank].said, self.hosts[rank].has_failed) = (Some(failed.clone()), true);
        self.answer(rank, failed);
        self.kill_worker(rank);
    }

    pub(super) fn worker(&mut self, rank: usize, happening: Happening) {
        match happening {
            Happening::Command { epoch, command } if epoch == self.hosts[rank].epoch => {
                self.order_worker(rank, command)
            }
            Happening::Worker { epoch, wake } if epoch == self.hosts[rank].epoch => match wake {
                Wake::Starts => {
                    let odd = self.hosts[rank].odd == Some(Fault::OtherProtocol(rank));
                    let hello = Answer::Hello { protocol: PROTOCOL + u32::from(odd), rank: Rank::from_index(rank) };
                    self.answer(rank, hello);
                    self.wake(rank, BEAT, Wake::Beats);
                }
                Wake::Beats => self.beat(rank),
                Wake::Prepared(job) => self.prepared(rank, job),
                Wake::Connected(job) => {
                    let plan = self.hosts[rank].plan.clone();
                    self.answer(rank, Answer::Ready { job, plan });
                }
                Wake::Steps(job) => self.work(rank, job),
            },
            _ => {}
        }
    }

    fn wake(&mut self, rank: usize, delay: Duration, wake: Wake) {
        let epoch = self.hosts[rank].epoch;
        self.later(delay, Party::Worker(rank), Happening::Worker { epoch, wake });
    }

    fn order_worker(&mut self, rank: usize, command: Command) {
        match self.hosts[rank].duty.heed(&command) {
            Heed::Ignore => return,
            Heed::Refuse => panic!("rank {rank} refuses {command:?}"),
            Heed::Obey => {}
        }
        match command {
            Command::Prepare { job, .. } => {
                self.hosts[rank].phase = Phase::Prepare;
                let delay = self.random.millis(300);
                self.wake(rank, delay, Wake::Prepared(job));
            }
            Command::Connect { job, .. } => {
                let delay = self.random.millis(50);
                self.wake(rank, delay, Wake::Connected(job));
            }
            Command::Run { job } => {
                let (epoch, plan) = (self.hosts[rank].epoch, self.hosts[rank].plan.clone());
                let began = self.collectives.entry((epoch, job)).or_default();
                began.insert(rank, plan.clone());
                assert!(began.values().all(|other| *other == plan), "two plans in collective {job} of epoch {epoch}");
                let all_voted = (0..self.setup.ranks).all(|other| self.votes.contains(&(epoch, job, other)));
                assert!(all_voted, "rank {rank} began collective {job} of epoch {epoch} before all had voted");
                let host = &mut self.hosts[rank];
                (host.phase, host.done, host.working) = (Phase::Work, 0, Some((job, self.now)));
                self.wake(rank, Duration::ZERO, Wake::Steps(job));
            }
            Command::Welcome(_) => {}
        }
    }

    fn prepared(&mut self, rank: usize, job: u64) {
        if self.hosts[rank].odd == Some(Fault::NoPlan(rank)) {
            return self.fail(rank, "there is no plan", &[]);
        }
        let is_odd = self.hosts[rank].odd == Some(Fault::OtherPlan(rank));
        let plan = if is_odd { "another plan" } else { PLAN }.to_owned();
        self.hosts[rank].plan.clone_from(&plan);
        self.answer(rank, Answer::Listening { job, plan, doors: Doors { addresses: Vec::new(), spare: false } });
    }

    /// One step, if the neighbour that sends has come so far.
    fn work(&mut self, rank: usize, job: u64) {
        let (ranks, epoch) = (self.setup.ranks, self.hosts[rank].epoch);
        let sender = &self.hosts[(rank + ranks - 1) % ranks];
        let began = self.collectives.get(&(epoch, job)).is_some_and(|began| began.len() == ranks);
        let has_sent = sender.epoch == epoch
            && sender.worker != State::Gone
            && (sender.working.is_none_or(|(other, _)| other > job) || sender.done >= self.hosts[rank].done);
        let host = &mut self.hosts[rank];
        if began && has_sent && host.lost.is_empty() {
            (host.done, host.steps, host.working) = (host.done + 1, host.steps + 1, Some((job, self.now)));
        }
        if host.done == STEPS {
            (host.working, host.phase) = (None, Phase::Report);
            let finding = Finding::Trial(Vec::new());
            return self.answer(rank, Answer::Done { job, finding });
        }
        let delay = if host.slow { Duration::from_millis(800) } else { self.random.millis(40) };
        self.wake(rank, delay, Wake::Steps(job));
    }

    /// What a worker looks at while it waits: the verdict, its deadlines, its neighbours.
    fn beat(&mut self, rank: usize) {
        let now = self.now;
        let host = &mut self.hosts[rank];
        host.beats += 1;
        if host.orphaned || host.verdict.is_some() {
            return self.fail(rank, "the verdict", &[]);
        }
        if rank == 0 {
            host.elsewhere.1 = self.seen.activity();
        }
        if let (Some((_, moved)), true) = (&mut host.working, host.elsewhere.0 != host.elsewhere.1) {
            (*moved, host.elsewhere.0) = (now, host.elsewhere.1);
        }
        let patience = host.duty.wait(now);
        let working = host.working;
        match patience {
            Patience::Wait => {}
            Patience::Ask(answer) => self.answer_as(rank, self.hosts[rank].epoch, answer),
            Patience::GiveUp(_) => return self.fail(rank, "nobody decides", &[]),
        }
        if let Some((_, moved)) = working {
            if now.since(moved) > LIMIT + BACKSTOP {
                return self.fail(rank, "nothing moved", &[]);
            }
            let ranks = self.setup.ranks;
            let neighbours = [(rank + 1) % ranks, (rank + ranks - 1) % ranks];
            let epoch = self.hosts[rank].epoch;
            let is_dead = |peer: usize| {
                let peer = &self.hosts[peer];
                peer.epoch == epoch && peer.worker == State::Gone && !peer.has_failed
            };
            let is_lost = |peer: &usize| is_dead(*peer) || self.hosts[rank].lost.contains(peer);
            let peers: Vec<usize> = neighbours.into_iter().filter(is_lost).collect();
            if !peers.is_empty() {
                let noticed = *self.hosts[rank].noticed.get_or_insert(now);
                if now.since(noticed) > EXPLANATION {
                    // Who misses only those that are done, and look at nothing any more, may be the only one who says so.
                    if peers.iter().all(|&peer| self.hosts[peer].working.is_none()) {
                        self.faulty.insert(rank);
                    }
                    return self.fail(rank, "a connection broke", &peers);
                }
            }
        }
        if rank == 0 && self.coordinator != State::Gone {
            let host = &self.hosts[0];
            let (epoch, seen) = (host.epoch, (host.beats, host.steps, host.phase));
            self.later(Duration::ZERO, Party::Coordinator, Happening::Beat { rank, epoch, sent: now, seen });
        }
        self.wake(rank, BEAT, Wake::Beats);
    }
}

/// The epoch that a message belongs to, if it belongs to one.
fn epoch_of(message: &ToAgent) -> Option<u64> {
    match message {
        ToAgent::Muster { epoch, .. }
        | ToAgent::Enlist { epoch, .. }
        | ToAgent::Order { epoch, .. }
        | ToAgent::Release { epoch, .. }
        | ToAgent::Verdict { epoch, .. } => Some(*epoch),
        _ => None,
    }
}
