//! When messages leave: a list scheduler that keeps ports busy, forwards and backwards in time.
//!
//! The principal type is [`TreePlayer`]. A backward play gives each delivery its latest start. The next forward play
//! uses that order (justification [1]). In a forward play, trees may be left: an idle link may bring a chunk that its
//! receiver would get later over another link, if the busiest of its slots still has time for what is planned. The
//! trees decide how much each link carries; the available chunks decide the rest.
//!
//! [1] Valls, Ballestín and Quintanilla, "Justification and RCPSP: a technique that pays", EJOR 2005.

use super::machine::LoadedMachine;
use super::messages::TreeMessages;
use crate::ordering::bits::BitMatrix;
use crate::ordering::lists::Lists;
use crate::problem::distance::Key;
use crate::problem::{Deadline, Problem};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::LinkId;

/// Instants this close (relative to the mean transfer time) count as one.
const INSTANT: f64 = 1e-7;
/// How many chunks a link examines before it brings the most urgent of them.
const LOOKS: usize = 24;
/// Links that are planned to be busy for less than this fraction of the time left may do more than planned.
const SLACK: f64 = 0.5;
const NONE: u32 = u32::MAX;
/// How often the deadline is checked, in instants.
const POLLED: u32 = 64;

/// The direction of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Forwards. With a horizon (µs), idle links may bring chunks that are planned for other links, if everything
    /// planned still ends before it.
    Forwards {
        detours: Option<Horizon>,
    },
    Backwards,
}

/// The time at which everything should have arrived, in µs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Horizon(pub(super) f64);

impl Eq for Horizon {}

/// What happens at an instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PlayEvent {
    /// A message no longer waits for anything.
    Ready(u32),
    Arrived(u32),
    Free(u32),
}

/// Links and starts (µs) of all messages, and the last arrival.
#[derive(Clone, Debug)]
pub(super) struct PlayedTrees {
    pub(super) links: Vec<LinkId>,
    pub(super) starts: Vec<f64>,
    pub(super) makespan: f64,
}

/// The chunks that ranks have, and the deliveries that have not begun; used by detours.
#[derive(Clone, Debug)]
struct DetourHoldings {
    has: BitMatrix,
    needs: BitMatrix,
    /// By rank and chunk: the message that delivers the chunk.
    job: Vec<u32>,
}

impl DetourHoldings {
    fn new(problem: &Problem, jobs: &TreeMessages) -> Self {
        let (ranks, chunks) = (problem.topology.rank_count(), problem.demand.chunks().len());
        let (has, needs) = (BitMatrix::new(ranks, chunks), BitMatrix::new(ranks, chunks));
        let mut holdings = Self { has, needs, job: vec![NONE; ranks * chunks] };
        for (id, chunk) in problem.demand.chunk_ids().zip(problem.demand.chunks()) {
            chunk.holders.iter().for_each(|holder| holdings.has.set(holder.index(), id.index()));
        }
        for (number, job) in jobs.all.iter().enumerate() {
            let to = problem.topology.link(job.link).to.index();
            holdings.needs.set(to, job.chunk.index());
            holdings.job[to * chunks + job.chunk.index()] = number as u32;
        }
        holdings
    }
}

/// Plays the messages once.
pub(super) struct TreePlayer<'a> {
    problem: &'a Problem,
    jobs: &'a TreeMessages,
    machine: &'a LoadedMachine,
    instant: f64,
    /// When each slot becomes free, in µs.
    free: Vec<f64>,
    /// For each link (the representative of its orbit), the messages that could leave, most urgent first.
    waiting: Vec<BinaryHeap<Reverse<(u32, u32)>>>,
    events: BinaryHeap<Reverse<(Key, PlayEvent)>>,
    /// For each message, how many messages it still waits for.
    open: Vec<u32>,
    begun: Vec<bool>,
    detours: Option<f64>,
    holdings: DetourHoldings,
    /// For each slot, how long messages that have not begun will keep it busy, as planned.
    planned: Vec<f64>,
    /// Links that are free now: those with a planned message, and those without.
    candidates: Vec<(u32, LinkId)>,
    idle: Vec<LinkId>,
    played: PlayedTrees,
}

impl<'a> TreePlayer<'a> {
    pub(super) fn new(problem: &'a Problem, jobs: &'a TreeMessages, machine: &'a LoadedMachine) -> Self {
        let topology = &*problem.topology;
        let mean = durations(problem, jobs, machine).sum::<f64>() / jobs.all.len().max(1) as f64;
        let count = jobs.all.len();
        Self {
            problem,
            jobs,
            machine,
            instant: mean * INSTANT,
            free: vec![0.0; machine.slot_count()],
            waiting: vec![BinaryHeap::new(); topology.links().len()],
            events: BinaryHeap::new(),
            open: vec![0; count],
            begun: vec![false; count],
            detours: None,
            holdings: DetourHoldings { has: BitMatrix::new(0, 0), needs: BitMatrix::new(0, 0), job: Vec::new() },
            planned: Vec::new(),
            candidates: Vec::new(),
            idle: Vec::new(),
            played: PlayedTrees {
                links: jobs.all.iter().map(|job| job.link).collect(),
                starts: vec![0.0; count],
                makespan: 0.0,
            },
        }
    }

    /// Plays all messages. Of those that can leave at once, the one of the lowest `urgency` leaves. `None` if the deadline
    /// passes meanwhile.
    pub(super) fn play(mut self, urgency: &[u32], direction: Direction, deadline: &Deadline) -> Option<PlayedTrees> {
        let (before, after) = match direction {
            Direction::Forwards { .. } => (&self.jobs.causes, &self.jobs.followers),
            Direction::Backwards => (&self.jobs.followers, &self.jobs.causes),
        };
        if let Direction::Forwards { detours: Some(Horizon(end)) } = direction {
            self.detours = Some(end);
            self.holdings = DetourHoldings::new(self.problem, self.jobs);
            self.planned = vec![0.0; self.free.len()];
            (0..self.jobs.all.len()).for_each(|job| self.plan(job, 1.0));
        }
        for job in 0..self.jobs.all.len() {
            self.open[job] = before.of(job).len() as u32;
            if self.open[job] == 0 {
                self.events.push(Reverse((Key::new(0.0), PlayEvent::Ready(job as u32))));
            }
        }
        let mut instants = 0u32;
        while let Some(&Reverse((key, _))) = self.events.peek() {
            instants += 1;
            if instants.is_multiple_of(POLLED) && deadline.has_passed() {
                return None;
            }
            let now = key.value();
            self.happen(now, urgency, after);
            let mut candidates = std::mem::take(&mut self.candidates);
            candidates.sort_unstable();
            candidates.dedup();
            for (_, link) in candidates.drain(..) {
                self.leave(link, now);
            }
            self.candidates = candidates;
            if let Some(horizon) = self.detours {
                self.detour(now, horizon, urgency);
            }
        }
        Some(self.played)
    }

    /// Processes all events of this instant, and collects the links over which something could leave now.
    fn happen(&mut self, now: f64, urgency: &[u32], after: &Lists) {
        let problem = self.problem;
        while let Some(&Reverse((key, event))) = self.events.peek() {
            if key.value() > now + self.instant {
                break;
            }
            self.events.pop();
            match event {
                PlayEvent::Ready(job) if !self.begun[job as usize] => {
                    let link = self.machine.representative(self.jobs.all[job as usize].link);
                    self.waiting[link.index()].push(Reverse((urgency[job as usize], job)));
                    self.consider(link, now);
                }
                PlayEvent::Ready(_) => {}
                PlayEvent::Arrived(job) => {
                    for &next in after.of(job as usize) {
                        self.open[next as usize] -= 1;
                        if self.open[next as usize] == 0 {
                            self.events.push(Reverse((key, PlayEvent::Ready(next))));
                        }
                    }
                    if self.detours.is_some() {
                        let to = problem.topology.link(self.jobs.all[job as usize].link).to;
                        let chunk = self.jobs.all[job as usize].chunk;
                        self.holdings.has.set(to.index(), chunk.index());
                        problem.topology.outgoing(to).iter().for_each(|&link| self.consider(link, now));
                    }
                }
                PlayEvent::Free(slot) => {
                    let machine = self.machine;
                    machine.users(slot as usize).iter().for_each(|&link| self.consider(link, now));
                }
            }
        }
    }

    fn consider(&mut self, link: LinkId, now: f64) {
        if self.start(link, now).is_none() {
            return;
        }
        match self.waiting[link.index()].peek() {
            Some(&Reverse((urgency, _))) => self.candidates.push((urgency, link)),
            None if self.detours.is_some() => self.idle.push(link),
            None => {}
        }
    }

    /// When a message over `link` could leave, if that is at this instant.
    fn start(&self, link: LinkId, now: f64) -> Option<f64> {
        let mut start = now;
        for &slot in &self.machine.slots()[self.machine.range(link)] {
            let free = self.free[slot as usize];
            if free > now + self.instant {
                return None;
            }
            start = start.max(free);
        }
        Some(start)
    }

    /// Sends the most urgent message of a link, if it can still leave.
    fn leave(&mut self, link: LinkId, now: f64) {
        let Some(start) = self.start(link, now) else { return };
        while let Some(Reverse((_, job))) = self.waiting[link.index()].pop() {
            if !self.begun[job as usize] {
                return self.send(job as usize, self.jobs.all[job as usize].link, start);
            }
        }
        if self.detours.is_some() {
            self.idle.push(link);
        }
    }

    /// Lets idle links bring chunks that are planned for other links, the most urgent first.
    fn detour(&mut self, now: f64, horizon: f64, urgency: &[u32]) {
        let mut idle = std::mem::take(&mut self.idle);
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|&link| self.start(link, now).is_some());
        let mut offers: Vec<(u32, LinkId, u32)> = Vec::with_capacity(idle.len());
        for &link in &idle {
            offers.extend(self.offer(link, now, horizon, urgency).map(|job| (urgency[job as usize], link, job)));
        }
        offers.sort_unstable();
        for (_, link, job) in offers {
            let Some(start) = self.start(link, now) else { continue };
            if !self.begun[job as usize] && self.has_time(link, job as usize, now, horizon) {
                self.send(job as usize, link, start);
            }
        }
        idle.clear();
        self.idle = idle;
    }

    /// The most urgent message that `link` could take over from another link.
    fn offer(&self, link: LinkId, now: f64, horizon: f64, urgency: &[u32]) -> Option<u32> {
        let ends = self.problem.topology.link(link);
        let DetourHoldings { has, needs, job } = &self.holdings;
        let mut best: Option<(u32, u32)> = None;
        let mut looks = 0;
        for (word, (has, needs)) in has.row(ends.from.index()).iter().zip(needs.row(ends.to.index())).enumerate() {
            let mut both = has & needs;
            while both != 0 {
                let chunk = word * 64 + both.trailing_zeros() as usize;
                both &= both - 1;
                let job = job[ends.to.index() * self.problem.demand.chunks().len() + chunk];
                let urgency = urgency[job as usize];
                if best.is_none_or(|(most, _)| urgency < most) {
                    best = Some((urgency, job));
                }
                looks += 1;
            }
            if looks >= LOOKS {
                break;
            }
        }
        let (_, job) = best?;
        let chunk = self.jobs.all[job as usize].chunk;
        let fits = self.has_time(link, job as usize, now, horizon) && self.problem.allows(chunk, link);
        fits.then_some(job)
    }

    /// Whether `link` can do this message now and still everything planned for it before the horizon, without being busier
    /// than the links that it relieves.
    fn has_time(&self, link: LinkId, job: usize, now: f64, horizon: f64) -> bool {
        let machine = self.machine;
        let size = self.size(job);
        let slots = |link: LinkId| &machine.slots()[machine.range(link)];
        let (ours, theirs) = (slots(link), slots(self.jobs.all[job].link));
        let left = horizon - now;
        let (mut busy, mut more): (f64, f64) = (0.0, 0.0);
        for (slot, added) in ours.iter().zip(&machine.busy(size)[machine.range(link)]) {
            // Slots that both links use carry no more than before.
            if !theirs.contains(slot) {
                more = more.max(*added);
                busy = busy.max(self.planned[*slot as usize] + added);
            }
        }
        let relieved = theirs.iter().filter(|slot| !ours.contains(slot)).map(|&slot| self.planned[slot as usize]);
        let relieved = relieved.fold(0.0, f64::max);
        busy <= left && (busy <= relieved + more || busy <= left * SLACK)
    }

    fn size(&self, job: usize) -> usize {
        self.machine.size(self.problem.demand.bytes_of(self.jobs.all[job].chunk))
    }

    /// Adds or removes the planned busy times of a message.
    fn plan(&mut self, job: usize, times: f64) {
        let (machine, size) = (self.machine, self.size(job));
        let range = machine.range(self.jobs.all[job].link);
        for (&slot, busy) in machine.slots()[range.clone()].iter().zip(&machine.busy(size)[range]) {
            self.planned[slot as usize] += times * busy;
        }
    }

    fn send(&mut self, job: usize, link: LinkId, start: f64) {
        let (machine, size) = (self.machine, self.size(job));
        self.begun[job] = true;
        if self.detours.is_some() {
            self.plan(job, -1.0);
            let to = self.problem.topology.link(link).to;
            let chunk = self.jobs.all[job].chunk;
            self.holdings.needs.clear(to.index(), chunk.index());
        }
        let range = machine.range(link);
        for (&slot, busy) in machine.slots()[range.clone()].iter().zip(&machine.busy(size)[range]) {
            let free = start + busy;
            self.free[slot as usize] = free;
            self.events.push(Reverse((Key::new(free), PlayEvent::Free(slot))));
        }
        let end = start + machine.duration(size, link);
        self.events.push(Reverse((Key::new(end), PlayEvent::Arrived(job as u32))));
        self.played.links[job] = link;
        self.played.starts[job] = start;
        self.played.makespan = self.played.makespan.max(end);
    }
}

/// The time from start to arrival of each message, in µs.
pub(super) fn durations<'a>(
    problem: &'a Problem,
    jobs: &'a TreeMessages,
    machine: &'a LoadedMachine,
) -> impl Iterator<Item = f64> + 'a {
    let of = move |job: &super::messages::ChunkMessage| {
        machine.duration(machine.size(problem.demand.bytes_of(job.chunk)), job.link)
    };
    jobs.all.iter().map(of)
}
