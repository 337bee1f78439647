//! When a message of one direction may begin.
//!
//! The principal type is [`MessageGate`]. What a lane has taken has not left: it lies in the socket, and goes at the lane's rate.
//! A message that is not all sent when the next begins is overtaken by it, in queues that take large packets whole. So who
//! sends keeps count, and waits that long.
//!
//! A message need not wait for the end of those before it, only until as much of them has passed as the plan has by then.
//! What another queue waits for, and is not there yet, it does not wait for.

use crate::clock::{Moment, WaitFor};
use crate::pacing::messages::{MessageQueues, Passage};
use crate::plan::RankPlan;
use program::ConnectionId;
use std::collections::BTreeMap;
use std::time::Duration;

/// The next message begins this many bytes before a lane has let go of the last, so that waking up leaves no gap.
const EARLY: f64 = 16384.0;

/// A message that has had its turn and has not all passed.
struct UnderWay {
    /// In the line of all tiles.
    place: usize,
    bytes: usize,
    /// What its lane has not taken, or not brought.
    left: usize,
    /// What its lane has taken and still holds, at a moment.
    held: f64,
    at: Moment,
    /// How fast the lane lets go of it, in bytes per second, if that is known.
    rate: Option<f64>,
}

impl UnderWay {
    /// What the lane holds.
    fn held(&self, now: Moment) -> f64 {
        self.rate.map_or(0.0, |rate| (self.held - now.since(self.at).as_secs_f64() * rate).max(0.0))
    }

    fn passed(&mut self, bytes: usize, now: Moment) {
        (self.held, self.at) = (self.held(now) + bytes as f64, now);
        self.left = self.left.saturating_sub(bytes);
    }

    /// How long to wait until no more than `spare` bytes of it are left.
    fn has_passed_but(&self, spare: usize, now: Moment) -> WaitFor {
        let over = self.left as f64 + self.held(now) - spare as f64 - EARLY;
        match self.rate {
            _ if self.left > spare => WaitFor::Peer,
            Some(rate) if over > 0.0 => {
                WaitFor::Moment(now.after(Duration::try_from_secs_f64(over / rate).unwrap_or(Duration::MAX)))
            }
            _ => WaitFor::Nothing,
        }
    }
}

/// Messages of one direction in one run.
pub(super) struct MessageGate<'a> {
    pub(super) line: &'a MessageQueues,
    pub(super) plan: &'a RankPlan<'a>,
    /// A message may begin so many bytes early: the next ones are on their way while the last ones pass.
    lead: usize,
    /// How many of each queue have had their turn.
    opened: Vec<usize>,
    under_way: Vec<UnderWay>,
    /// What has passed of messages before their turn, by place.
    early: BTreeMap<usize, usize>,
}

impl<'a> MessageGate<'a> {
    pub(super) fn new(line: &'a MessageQueues, plan: &'a RankPlan<'a>, lead: usize) -> Self {
        let opened = vec![0; line.queues.len()];
        Self { line, plan, lead, opened, under_way: Vec::new(), early: BTreeMap::new() }
    }

    /// A message, and which tile of it.
    fn at(&self, place: usize) -> (&'a Passage, usize) {
        (&self.line.passages[place % self.line.len()], place / self.line.len())
    }

    /// How many messages of its queue are before this one, in all tiles.
    fn before(&self, place: usize) -> usize {
        let (passage, tile) = self.at(place);
        tile * self.line.queues[passage.queue].len() + passage.index
    }

    pub(super) fn is_open(&self, place: usize) -> bool {
        self.before(place) < self.opened[self.at(place).0.queue]
    }

    /// Whether it is the next of its queue.
    pub(super) fn is_first(&self, place: usize) -> bool {
        self.before(place) == self.opened[self.at(place).0.queue]
    }

    /// The next of each queue.
    pub(super) fn firsts(&self) -> impl Iterator<Item = usize> {
        let queues = self.line.queues.iter().zip(&self.opened);
        queues.filter_map(|(queue, &opened)| {
            let tile = opened / queue.len();
            (tile < self.plan.geometry.tiles()).then(|| tile * self.line.len() + queue[opened % queue.len()])
        })
    }

    /// Whether the next message of a queue has to wait, as far as is known: until enough has passed of those before it, of
    /// other queues those that have begun.
    pub(super) fn wait(&self, place: usize, now: Moment) -> WaitFor {
        let queue = self.at(place).0.queue;
        let holds = |other: &&UnderWay| {
            other.place < place && (self.at(other.place).0.queue == queue || other.left < other.bytes)
        };
        let before = self.under_way.iter().filter(holds);
        before.map(|other| other.has_passed_but(self.spare(other, place), now)).max().unwrap_or(WaitFor::Nothing)
    }

    /// How much of a message need not have passed when another one begins.
    fn spare(&self, other: &UnderWay, place: usize) -> usize {
        let ((before, tile), (next, next_tile)) = (self.at(other.place), self.at(place));
        if before.lane == next.lane {
            // A lane has an order of its own.
            return usize::MAX;
        }
        let [start, end] = before.times.map(|time| time.0);
        let together = tile == next_tile && end > start;
        let share = if together { ((end - next.times[0].0) / (end - start)).clamp(0.0, 1.0) } else { 0.0 };
        self.lead + (other.bytes as f64 * share) as usize
    }

    /// The next message of a queue has its turn: its lane and bytes.
    pub(super) fn open(&mut self, place: usize, now: Moment) -> (ConnectionId, usize) {
        self.under_way.retain(|other| other.left > 0 || other.held(now) > 0.0);
        let (passage, tile) = self.at(place);
        self.opened[passage.queue] += 1;
        let (bytes, early) = (passage.bytes(self.plan, tile), self.early.remove(&place).unwrap_or(0));
        if bytes > early {
            let left = bytes - early;
            self.under_way.push(UnderWay { place, bytes, left, held: 0.0, at: now, rate: passage.rate });
        }
        (passage.lane, bytes)
    }

    pub(super) fn passed(&mut self, place: usize, bytes: usize) {
        if !self.is_open(place) {
            *self.early.entry(place).or_default() += bytes;
        } else if let Some(message) = self.under_way.iter_mut().find(|other| other.place == place) {
            message.passed(bytes, Moment::now());
        }
    }
}
