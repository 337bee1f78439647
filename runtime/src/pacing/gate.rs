//! When a message may begin, for the messages of one direction.
//!
//! The principal type is [`MessageGate`]. Bytes that a lane has accepted have not left yet: they are in the socket and
//! leave at the lane's rate. A message that begins before they have left overtakes them, in queues that take large
//! packets whole. So the gate counts these bytes, and the next message waits for them.
//!
//! A message need not wait for the end of those before it, only until as much of them has passed as the plan assumes
//! for that time. It does not wait for messages of another queue that have not begun.

use crate::clock::{Moment, WaitFor};
use crate::pacing::messages::{MessageQueues, PacedMessage};
use crate::plan::RankPlan;
use program::ConnectionId;
use std::collections::BTreeMap;
use std::time::Duration;

/// The next message begins this many bytes before a lane has sent all of the last one, so that waking up leaves no gap.
const EARLY: f64 = 16384.0;

/// A message that has begun and has not passed completely.
struct UnderWay {
    /// Its place in the order of all tiles.
    place: usize,
    bytes: usize,
    /// Bytes that its lane has not taken, or not delivered.
    left: usize,
    /// Bytes that its lane has taken and still held at the moment `at`.
    held: f64,
    at: Moment,
    /// How fast the lane sends them, in bytes per second, if known.
    rate: Option<f64>,
}

impl UnderWay {
    /// The bytes that the lane holds at `now`.
    fn held(&self, now: Moment) -> f64 {
        self.rate.map_or(0.0, |rate| (self.held - now.since(self.at).as_secs_f64() * rate).max(0.0))
    }

    fn passed(&mut self, bytes: usize, now: Moment) {
        (self.held, self.at) = (self.held(now) + bytes as f64, now);
        self.left = self.left.saturating_sub(bytes);
    }

    /// How long to wait until at most `spare` bytes of it are left.
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

/// The messages of one direction in one run.
pub(super) struct MessageGate<'a> {
    pub(super) line: &'a MessageQueues,
    pub(super) plan: &'a RankPlan<'a>,
    /// A message may begin this many bytes early, so that it is on its way while the one before it passes.
    lead: usize,
    /// For each queue, how many messages have begun.
    opened: Vec<usize>,
    under_way: Vec<UnderWay>,
    /// Bytes that passed before their message began, by place.
    early: BTreeMap<usize, usize>,
}

impl<'a> MessageGate<'a> {
    pub(super) fn new(line: &'a MessageQueues, plan: &'a RankPlan<'a>, lead: usize) -> Self {
        let opened = vec![0; line.queues.len()];
        Self { line, plan, lead, opened, under_way: Vec::new(), early: BTreeMap::new() }
    }

    /// The message at a place, and the number of the tile.
    fn at(&self, place: usize) -> (&'a PacedMessage, usize) {
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

    /// The next message of each queue.
    pub(super) fn firsts(&self) -> impl Iterator<Item = usize> {
        let queues = self.line.queues.iter().zip(&self.opened);
        queues.filter_map(|(queue, &opened)| {
            let tile = opened / queue.len();
            (tile < self.plan.geometry.tiles()).then(|| tile * self.line.len() + queue[opened % queue.len()])
        })
    }

    /// Whether the next message of a queue has to wait, as far as is known. It waits until enough has passed of the
    /// earlier messages: of all in its own queue, and of those in other queues that have begun.
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
            // A lane keeps its own order.
            return usize::MAX;
        }
        let [start, end] = before.times.map(|time| time.0);
        let together = tile == next_tile && end > start;
        let share = if together { ((end - next.times[0].0) / (end - start)).clamp(0.0, 1.0) } else { 0.0 };
        self.lead + (other.bytes as f64 * share) as usize
    }

    /// Begins the next message of a queue. Returns its lane and its bytes.
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
