//! What a rank does to carry its calls on.
//!
//! The principal type is [`Engine`]: the calls of a rank that are under way, and the lanes that they use.

use super::CallPlace;
use super::buffers::{CallBuffers, RawCall};
use super::run::{RunProgress, ScriptRun};
use super::script::CallScript;
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::session::ports::LanePorts;
use crate::transport::notice::WaitNotice;
use crate::transport::port::PortRelief;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// So many scratch buffers are kept for later calls.
const MOST_SPARE: usize = 4;

/// A call that has waited for so long may be in the way of another rank. Shorter than the time for which a rank looks before it
/// sleeps.
const STUCK: Duration = Duration::from_micros(50);

/// Names a call of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket {
    pub(super) communicator: u64,
    /// Which calls it is in order with.
    queue: (u64, u64),
    number: u64,
}

impl Ticket {
    /// Whether it is a call of all members of a communicator, and no message.
    pub(super) fn is_collective(self) -> bool {
        self.queue.0 == self.communicator
    }
}

/// Who carries on the calls of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Driver {
    Nobody,
    /// A thread that waits for one of them.
    Caller,
    /// The session's own thread, until somebody waits.
    ProgressThread,
}

/// The calls and lanes of a rank.
pub(super) struct Engine {
    pub(super) ports: LanePorts,
    /// For each stream its calls, the oldest first. Only that one is under way.
    queues: BTreeMap<(u64, u64), VecDeque<Queued>>,
    /// Calls that are over, until somebody asks.
    over: BTreeMap<u64, RunResult<()>>,
    /// Where a call has failed, why. Its messages are under way still, and a later call would take them for its own.
    stopped: BTreeMap<(u64, u64), RunError>,
    tickets: u64,
    /// Memory for calls to come.
    spare: Vec<Vec<u8>>,
    /// For whom this rank waits, as it has told all others, and in which queue.
    told: Option<((u64, u64), WaitNotice)>,
    /// Who carries on all calls now. All other threads sleep.
    pub(super) driver: Driver,
    /// How many threads sleep until a call is over, or until they must carry on.
    pub(super) followers: usize,
}

struct Queued {
    number: u64,
    script: Arc<CallScript>,
    run: ScriptRun,
    /// When it moved last, or came to the front.
    moved_at: Moment,
    /// Which rank it waits for.
    awaited: Option<Rank>,
}

/// How a call that waits stands.
pub(super) struct WaitingCall {
    /// When it moved last.
    pub(super) since: Moment,
    /// How many of its steps are finished.
    pub(super) finished: u64,
    /// Which rank it waits for.
    pub(super) peer: Rank,
}

impl Engine {
    pub(super) fn new(ports: LanePorts) -> Self {
        let (queues, over, spare) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let stopped = BTreeMap::new();
        Self { ports, queues, over, stopped, tickets: 0, spare, told: None, driver: Driver::Nobody, followers: 0 }
    }

    /// Whether no call is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether a call of this queue that begins now is the only one of all, and none of the queue has failed before.
    #[inline]
    pub(super) fn is_free(&self, queue: (u64, u64)) -> bool {
        let has_failed = !self.stopped.is_empty() && self.stopped.contains_key(&queue);
        self.queues.is_empty() && self.driver == Driver::Nobody && !has_failed
    }

    /// Whether a call of a stream is under way.
    pub(super) fn has_calls_of(&self, stream: u64) -> bool {
        self.queues.range((stream, 0)..=(stream, u64::MAX)).next().is_some()
    }

    /// A call of a queue has failed, and so will all that follow.
    #[cold]
    pub(super) fn stop(&mut self, queue: (u64, u64), why: RunError) {
        self.stopped.insert(queue, why);
    }

    /// Whether calls of more than one stream are under way.
    pub(super) fn is_shared(&self) -> bool {
        self.queues.len() > 1
    }

    /// Whether a look at the calls under way asks the system: at sockets, or soon at all sockets, to make room.
    pub(super) fn asks_system(&self, now: Moment) -> bool {
        let is_stuck = |first: &Queued| !self.ports.remote.is_empty() && now.since(first.moved_at) > STUCK;
        let mut firsts = self.queues.values().filter_map(VecDeque::front);
        firsts.any(|first| first.script.is_between_machines || is_stuck(first))
    }

    /// A call that has not done anything yet.
    #[inline]
    pub(super) fn begin(&mut self, script: &CallScript, at: CallPlace, of: RawCall) -> ScriptRun {
        let mut scratch = Vec::new();
        let bytes = script.lengths[2];
        if bytes > 0 {
            scratch = self.spare.pop().unwrap_or_default();
            scratch.resize(bytes, 0);
        }
        ScriptRun::new(CallBuffers::new(of, scratch), at.stream, at.number)
    }

    /// Ends a run: takes back what it has offered, and keeps its scratch.
    #[inline]
    pub(super) fn end(&mut self, run: ScriptRun) {
        let scratch = run.end(&mut self.ports);
        if scratch.capacity() > 0 && self.spare.len() < MOST_SPARE {
            self.spare.push(scratch);
        }
    }

    /// Calls of one stream and one queue are done one after the other. After one that has failed, none is done.
    pub(super) fn enqueue(&mut self, at: CallPlace, script: &Arc<CallScript>, run: ScriptRun, now: Moment) -> Ticket {
        self.tickets += 1;
        let (number, queue) = (self.tickets, (at.stream, script.queue));
        if let Some(why) = self.stopped.get(&queue) {
            self.over.insert(number, Err(why.again(script.rank)));
            self.end(run);
        } else {
            let queued = Queued { number, script: script.clone(), run, moved_at: now, awaited: None };
            self.queues.entry(queue).or_default().push_back(queued);
        }
        Ticket { communicator: at.communicator, queue, number }
    }

    /// Carries on the oldest call of every stream; whether anything moved.
    pub(super) fn carry_on(&mut self, now: Moment) -> bool {
        let mut moved = false;
        let mut ended = Vec::new();
        let Self { ports, queues, over, stopped, told, .. } = self;
        queues.retain(|name, queue| {
            while let Some(first) = queue.front_mut() {
                let progress = first.run.poll(&first.script, ports);
                if !matches!(progress, Ok(RunProgress::Waits(_)))
                    && let Some((_, notice)) = told.take_if(|(of, _)| of == name)
                {
                    ports.tell_wait(WaitNotice { awaited: None, ..notice });
                }
                match progress {
                    Ok(RunProgress::Done) => {}
                    Ok(RunProgress::Moved) => {
                        (moved, first.moved_at, first.awaited) = (true, now, None);
                        return true;
                    }
                    Ok(RunProgress::Waits(peer)) => {
                        first.awaited = Some(peer);
                        return true;
                    }
                    Err(error) => {
                        moved = true;
                        if let Some(Queued { number, script, run, .. }) = queue.pop_front() {
                            ended.push(run);
                            ended.extend(end_all(queue, &error, over));
                            stopped.insert(*name, error.again(script.rank));
                            over.insert(number, Err(error));
                        }
                        return false;
                    }
                }
                moved = true;
                if let Some(Queued { number, run, .. }) = queue.pop_front() {
                    over.insert(number, Ok(()));
                    ended.push(run);
                }
                if let Some(next) = queue.front_mut() {
                    next.moved_at = now;
                }
            }
            false
        });
        ended.into_iter().for_each(|run| self.end(run));
        moved || self.relieve(now)
    }

    /// Makes room for others where calls have waited for a while; whether anything moved. A message that is put aside is copied once
    /// more, and mostly its turn comes before.
    fn relieve(&mut self, now: Moment) -> bool {
        let waits = self.queues.values().filter_map(VecDeque::front).filter(|first| now.since(first.moved_at) > STUCK);
        let relief = waits.map(|first| first.run.needed_relief(&first.script)).max();
        relief.is_some_and(|relief| self.ports.relieve(relief))
    }

    /// When the first of the calls under way has something to do, if nothing arrives before; `latest` at the latest.
    pub(super) fn idle_until(&self, latest: Moment) -> Moment {
        let calls = self.queues.values().filter_map(VecDeque::front);
        calls.filter_map(|first| first.run.retry_at()).fold(latest, Moment::min)
    }

    /// The result of a call that is over. It is told once.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<RunResult<()>> {
        self.over.remove(&ticket.number)
    }

    /// Tells all peers for whom the oldest call of a stream waits, once; `ticket` is a call of this stream. A rank tells one wait at
    /// a time, and none of messages: a receive that was begun long ahead keeps nobody from going on.
    #[cold]
    pub(super) fn tell_wait(&mut self, ticket: Ticket) {
        let Some(first) = self.queues.get(&ticket.queue).and_then(VecDeque::front) else { return };
        let told = (ticket.queue, WaitNotice { communicator: ticket.communicator, awaited: first.awaited });
        let is_free = self.told.is_none_or(|(of, _)| of == ticket.queue || !self.queues.contains_key(&of));
        if ticket.is_collective() && is_free && self.told != Some(told) {
            self.told = Some(told);
            self.ports.tell_wait(told.1);
        }
    }

    /// Whom a rank that has waited for too long for another one finds late: the end of the chain of those who wait. The first is
    /// who waits for that one. In a circle, everybody waits for the next one.
    #[cold]
    pub(super) fn late(&mut self, communicator: u64, own: Rank, awaited: Rank) -> [Rank; 2] {
        // Notices between machines lie among messages.
        self.ports.relieve(PortRelief::Network);
        let (mut chain, mut last) = (vec![own], awaited);
        while let Some(next) = self.ports.waits_for(last, communicator) {
            if chain.contains(&next) || next == last {
                return [own, awaited];
            }
            chain.push(last);
            last = next;
        }
        [chain.last().copied().unwrap_or(own), last]
    }

    /// How the oldest call of a stream stands, if it waits; `ticket` is a call of this stream.
    pub(super) fn standing(&self, ticket: Ticket) -> Option<WaitingCall> {
        let first = self.queues.get(&ticket.queue)?.front()?;
        let (since, finished, peer) = (first.moved_at, first.run.finished() as u64, first.awaited?);
        Some(WaitingCall { since, finished, peer })
    }

    /// Gives up a call that is not over, and with it all others of its queue.
    pub(super) fn give_up(&mut self, ticket: Ticket, why: &RunError) {
        let Some(queue) = self.queues.get_mut(&ticket.queue) else { return };
        if let Some(queued) = queue.iter().find(|queued| queued.number == ticket.number) {
            let rank = queued.script.rank;
            let ended = end_all(queue, why, &mut self.over);
            self.queues.remove(&ticket.queue);
            self.stopped.insert(ticket.queue, why.again(rank));
            ended.into_iter().for_each(|run| self.end(run));
            self.over.remove(&ticket.number);
        }
    }

    /// Gives up all calls of these streams that are not over; how many.
    pub(super) fn give_up_streams(&mut self, streams: &BTreeSet<u64>, why: &RunError) -> usize {
        let named: Vec<(u64, u64)> =
            self.queues.keys().filter(|(stream, _)| streams.contains(stream)).copied().collect();
        let mut given_up = 0;
        for queue in named {
            let Some(mut calls) = self.queues.remove(&queue) else { continue };
            given_up += calls.len();
            // Whoever waits for one of them learns why.
            let ended = end_all(&mut calls, why, &mut self.over);
            ended.into_iter().for_each(|run| self.end(run));
        }
        given_up
    }

    /// What has failed in these streams does not matter any more: they are gone.
    pub(super) fn forget(&mut self, streams: &BTreeSet<u64>) {
        self.stopped.retain(|(stream, _), _| !streams.contains(stream));
    }
}

/// Ends all calls of a queue because of an error.
fn end_all(queue: &mut VecDeque<Queued>, why: &RunError, over: &mut BTreeMap<u64, RunResult<()>>) -> Vec<ScriptRun> {
    let end = |Queued { number, script, run, .. }| {
        over.insert(number, Err(why.again(script.rank)));
        run
    };
    queue.drain(..).map(end).collect()
}
