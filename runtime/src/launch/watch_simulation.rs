//! Random orders of messages, deaths and cuts between the watches of a session's processes.
//!
//! In every order the following must hold. A process that runs, and is not cut off, learns that the session is over if another one has
//! died, is stopped or was cut off. It never takes a process for gone that nothing has happened to. What has ended in order, or a
//! communicator that is broken, is known to all.

use crate::clock::Moment;
use crate::error::{Breach, RunErrorKind};
use crate::launch::simulation::setup::Random;
use crate::launch::watch_state::{GRACE, WatchState};
use crate::session::status::{SessionEnd, SessionStatus};
use crate::verdict::{Cause, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use topology::Rank;

const SILENCE: Duration = Duration::from_secs(1);
/// How long after the last fault everybody must know.
const LATEST: Duration = Duration::from_secs(4);

/// What happens to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchFault {
    /// It dies; whether others can see that, because they are on its machine.
    Dies { seen: bool },
    /// It does not run any more.
    Stops,
    /// All its connections end.
    Cut,
    /// It leaves in order.
    Leaves,
    /// A call of communicator 7 fails there.
    Breaks,
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
enum WatchEvent {
    Fault(usize, WatchFault),
    /// From one process to another.
    Said(usize, usize, Option<SessionEnd>),
    /// The line of the second with the first has ended.
    Ended(usize, usize),
    Look(usize),
}

/// A process.
struct WatchedProcess {
    state: WatchState,
    status: Arc<SessionStatus>,
    fault: Option<WatchFault>,
}

/// What is told: by whom.
type ToldEnds = Arc<Mutex<Vec<(usize, SessionEnd)>>>;

struct WatchWorld {
    random: Random,
    /// By time, then by the order in which they were planned.
    events: BTreeMap<(u64, u64), WatchEvent>,
    planned: u64,
    now: u64,
    /// When the last message of a process to another arrives.
    arrivals: BTreeMap<(usize, usize), u64>,
    processes: Vec<WatchedProcess>,
    told: ToldEnds,
    /// The longest way of a message, in µs.
    delay: u64,
}

/// The processes with which one has a line, in the order of its lines.
fn others(own: usize, ranks: usize) -> std::ops::Range<usize> {
    if own == 0 { 1..ranks } else { 0..1 }
}

impl WatchWorld {
    fn new(seed: u64, ranks: usize, delay: u64) -> Self {
        let told: ToldEnds = Arc::default();
        let process = |own: usize| {
            let status = Arc::new(SessionStatus::new(Vec::new()));
            let hears = told.clone();
            status.on_end(move |end| hears.lock().unwrap().push((own, end.clone())));
            let lines = others(own, ranks).map(Rank::from_index);
            WatchedProcess {
                state: WatchState::new(Rank::from_index(own), lines, SILENCE, Moment(0)),
                status,
                fault: None,
            }
        };
        let processes = (0..ranks).map(process).collect();
        let (events, arrivals) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self { random: Random(seed), events, planned: 0, now: 0, arrivals, processes, told, delay };
        (0..ranks).for_each(|rank| world.plan(0, WatchEvent::Look(rank)));
        world
    }

    fn plan(&mut self, at: u64, event: WatchEvent) {
        self.planned += 1;
        self.events.insert((at, self.planned), event);
    }

    /// Messages of one process to another arrive in the order in which they were sent.
    fn send(&mut self, from: usize, to: usize, event: WatchEvent) {
        let at = self.now + 1 + self.random.below(self.delay);
        let arrival = self.arrivals.entry((from, to)).or_default();
        *arrival = at.max(*arrival);
        let at = *arrival;
        self.plan(at, event);
    }

    fn moment(&self) -> Moment {
        Moment(0).after(Duration::from_micros(self.now))
    }

    /// Whether a process takes part in anything.
    fn runs(&self, rank: usize) -> bool {
        let fault = self.processes[rank].fault;
        !matches!(fault, Some(WatchFault::Dies { .. } | WatchFault::Stops | WatchFault::Leaves))
    }

    /// Sends what statuses have told.
    fn deliver(&mut self) {
        let told: Vec<(usize, SessionEnd)> = self.told.lock().unwrap().drain(..).collect();
        for (from, end) in told {
            self.say(from, Some(&end));
        }
    }

    fn say(&mut self, from: usize, end: Option<&SessionEnd>) {
        let is_cut = |world: &Self, rank: usize| world.processes[rank].fault == Some(WatchFault::Cut);
        for to in others(from, self.processes.len()) {
            if !is_cut(self, from) && !is_cut(self, to) {
                self.send(from, to, WatchEvent::Said(from, to, end.cloned()));
            }
        }
    }

    fn happen(&mut self, event: WatchEvent) {
        let (ranks, now) = (self.processes.len(), self.moment());
        match event {
            WatchEvent::Fault(rank, fault) => {
                if self.processes[rank].fault.is_some() {
                    return;
                }
                if fault == WatchFault::Breaks {
                    let reason = "it failed".to_owned();
                    let breach = Breach { by: Rank::from_index(rank), cause: None, kind: RunErrorKind::Late, reason };
                    self.processes[rank].status.break_off(7, breach);
                    return self.deliver();
                }
                if fault == WatchFault::Leaves {
                    self.say(rank, Some(&SessionEnd::Left(Rank::from_index(rank))));
                }
                self.processes[rank].fault = Some(fault);
                if fault != WatchFault::Stops {
                    for other in others(rank, ranks) {
                        self.send(rank, other, WatchEvent::Ended(rank, other));
                        self.send(other, rank, WatchEvent::Ended(other, rank));
                    }
                }
            }
            WatchEvent::Said(from, to, end) if self.runs(to) => {
                let line = others(to, ranks).position(|other| other == from).unwrap();
                let WatchedProcess { state, status, .. } = &mut self.processes[to];
                if !state.is_open(line) {
                    return;
                }
                let mut passed_on = Vec::new();
                state.hear(line, end.as_ref(), (status, now), |line| passed_on.push(line));
                for line in passed_on {
                    let other = others(to, ranks).nth(line).unwrap();
                    self.send(to, other, WatchEvent::Said(to, other, end.clone()));
                }
                self.judge(to);
            }
            WatchEvent::Ended(from, to) if self.runs(to) => {
                let line = others(to, ranks).position(|other| other == from).unwrap();
                if self.processes[to].state.is_open(line) {
                    self.processes[to].state.ended(line, now);
                }
                self.judge(to);
            }
            WatchEvent::Look(rank) if self.runs(rank) => {
                self.say(rank, None);
                self.judge(rank);
                self.plan(self.now + SILENCE.as_micros() as u64 / 5, WatchEvent::Look(rank));
            }
            _ => {}
        }
    }

    fn judge(&mut self, rank: usize) {
        let dead: Vec<bool> =
            self.processes.iter().map(|process| process.fault == Some(WatchFault::Dies { seen: true })).collect();
        let now = self.moment();
        let WatchedProcess { state, status, .. } = &mut self.processes[rank];
        state.judge(now, status, &|other| dead[other.index()]);
        if state.next_look().is_some() {
            let at = self.now + GRACE.as_micros() as u64;
            // Once is enough: whoever judges again later finds nothing to decide.
            self.plan(at, WatchEvent::Ended(rank, rank));
        }
        self.deliver();
    }

    fn run_until(&mut self, end: u64) {
        while let Some((&(at, number), _)) = self.events.first_key_value()
            && at <= end
        {
            let event = self.events.remove(&(at, number)).unwrap();
            self.now = at;
            match event {
                WatchEvent::Ended(from, to) if from == to => {
                    if self.runs(from) {
                        self.judge(from);
                    }
                }
                event => self.happen(event),
            }
        }
        self.now = end;
    }
}

/// Plays one random session, and checks what everybody knows at the end.
fn play(seed: u64) {
    let mut random = Random(seed ^ 0xfade);
    let ranks = 2 + random.below(6) as usize;
    // Cuts reach all lines of a process before the grace is over, as when an interface goes down.
    let delay = [1, 300, 20_000][random.below(3) as usize];
    let mut world = WatchWorld::new(seed, ranks, delay);
    let mut last = 0;
    for _ in 0..1 + random.below(3) {
        let fault = match random.below(8) {
            0 | 1 => WatchFault::Dies { seen: true },
            2 => WatchFault::Dies { seen: false },
            3 => WatchFault::Stops,
            4 => WatchFault::Cut,
            5 => WatchFault::Leaves,
            _ => WatchFault::Breaks,
        };
        let at = random.below(2_000_000);
        last = last.max(at);
        let rank = random.below(ranks as u64) as usize;
        world.plan(at, WatchEvent::Fault(rank, fault));
    }
    world.run_until(last + LATEST.as_micros() as u64);
    check(seed, &world);
}

fn check(seed: u64, world: &WatchWorld) {
    let faults: Vec<Option<WatchFault>> = world.processes.iter().map(|process| process.fault).collect();
    let context = |rank: usize| format!("seed {seed}, rank {rank}, faults {faults:?}");
    let is_bad = |fault: Option<WatchFault>| fault.is_some_and(|fault| fault != WatchFault::Leaves);
    let hit: BTreeSet<usize> = (0..faults.len()).filter(|&rank| is_bad(faults[rank])).collect();
    // From one line that is left nobody can tell which of its ends was cut.
    let is_pair = |rank: usize| rank == 0 && (1..faults.len()).filter(|&other| faults[other].is_none()).count() <= 1;
    for (rank, process) in world.processes.iter().enumerate() {
        if !world.runs(rank) {
            continue;
        }
        let is_cut = faults[rank] == Some(WatchFault::Cut);
        let hub_lives = faults[0].is_none();
        let others_hit = hit.iter().any(|&other| other != rank && (other == 0 || hub_lives || rank == 0));
        // Who is cut off when nobody else is left notices nothing.
        let has_lost = is_cut && others(rank, faults.len()).any(|other| faults[other].is_none());
        if others_hit || has_lost {
            assert!(process.status.verdict().is_some(), "nobody is blamed: {}", context(rank));
        }
        // Rank 0 also names itself if all others have died at once, where it cannot see that they are dead.
        let names_right =
            |verdict: Verdict| hit.contains(&verdict.rank.index()) || verdict.cause == Cause::Cut && hit.len() > 1;
        if let Some(verdict) = process.status.verdict().filter(|_| !is_cut) {
            assert!(names_right(verdict), "{verdict}: {}", context(rank));
        }
        // Who is cut off cannot know what has happened to the others; but rank 0 then blames itself.
        if is_cut && (rank > 0 || is_pair(rank)) {
            continue;
        }
        for other in (0..faults.len()).filter(|other| *other != rank) {
            let gone = process.status.is_gone(Rank::from_index(other));
            assert!(!gone || faults[other].is_some(), "rank {other} is taken for gone: {}", context(rank));
            if faults[other] == Some(WatchFault::Leaves) && hub_lives && hit.is_empty() {
                assert!(process.status.has_left(Rank::from_index(other)), "rank {other} has left: {}", context(rank));
            }
        }
    }
}

#[test]
fn no_order_of_news_hides_a_failure_or_blames_the_innocent() {
    (0..20_000).for_each(play);
}

/// All who watch know of a communicator that is broken, and nothing else has ended.
#[test]
fn a_broken_communicator_is_known_to_all() {
    for seed in 0..500 {
        let ranks = 2 + seed as usize % 6;
        let mut world = WatchWorld::new(seed, ranks, 5000);
        world.plan(1000, WatchEvent::Fault(seed as usize % ranks, WatchFault::Breaks));
        world.run_until(2_000_000);
        for process in &world.processes {
            assert!(process.status.breach(7).is_some() && process.status.verdict().is_none());
            assert!(process.status.breach(8).is_none());
        }
    }
}

/// Rank 0, which has lost everybody at once, says that it was cut off, and the others that it is lost.
#[test]
fn who_lost_everybody_was_cut_off() {
    let mut world = WatchWorld::new(1, 5, 20_000);
    world.plan(1000, WatchEvent::Fault(0, WatchFault::Cut));
    world.run_until(2_000_000);
    for process in &world.processes {
        let verdict = process.status.verdict().unwrap();
        assert_eq!(verdict.rank, Rank(0), "{verdict}");
        assert!((1..5).all(|rank| !process.status.is_gone(Rank(rank))));
    }
}
