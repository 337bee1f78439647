//! Executes one rank's part of a program in one thread, without blocking calls.
//!
//! The principal type is [`Interpreter`], a state machine. It polls the threadblocks round robin. Each threadblock
//! moves up to a piece of its current step, as far as its lanes have room or data, and keeps its place. So any message
//! passes through a bounded ring, and one thread serves any number of threadblocks, also of several programs. The
//! caller sleeps when nothing moves ([`Executor`](crate::execution::executor::Executor)).
//!
//! * [`carry`] moves bytes, with one match arm for each instruction.
//! * [`recorder`] keeps when each step began and ended, where that is asked for.

pub(crate) mod buffers;
mod carry;
pub(crate) mod lanes;
pub(crate) mod recorder;

use crate::clock::{Moment, WaitFor};
use crate::error::{RunError, RunResult, Stamp};
use crate::interpreter::buffers::CallMemory;
use crate::interpreter::lanes::Lanes;
use crate::interpreter::recorder::{Recorder, StepTime};
use crate::pacing::pace::Pacer;
use crate::pacing::sequencer::Sequencer;
use crate::plan::{ByteSpan, RankPlan};
use crate::verdict::Phase;
use program::{ConnectionId, Instruction, RankProgram, Step, StepRef};
use std::time::Duration;

/// About the most bytes that one step moves before the next threadblock is polled. Large enough that a poll costs
/// little; small enough to stay in a core's cache between writer and reader.
const PIECE: usize = 128 << 10;

/// How much of a slice is done: whole slots, and bytes of the next slot.
#[derive(Clone, Copy, PartialEq, Default)]
struct Extent {
    slot: u32,
    offset: usize,
}

/// The place of a threadblock in its steps.
#[derive(Clone, Default)]
struct Cursor {
    tile: usize,
    step: usize,
    /// Whether the step's dependencies are met and its connections opened.
    started: bool,
    /// How much of the step is done.
    done: Extent,
    /// How much of a fused step is sent; it follows the receive.
    forwarded: Extent,
    /// On an emulated machine, the step completes no earlier.
    not_before: Moment,
}

/// The outcome of a poll, of one threadblock or of all.
pub(crate) enum Poll {
    /// Something moved.
    Moved,
    /// Nothing can move before this wait is over.
    Blocked(WaitFor),
    /// All steps of all tiles are finished.
    Done,
}

/// The parts that decide when a message may begin.
pub(crate) struct Pacing<'a> {
    /// On an emulated machine.
    pub(crate) pacer: Option<Pacer<'a>>,
    /// Between computers.
    pub(crate) sequencer: Option<Sequencer<'a>>,
}

/// One run of a rank's program.
pub(crate) struct Interpreter<'a> {
    plan: &'a RankPlan<'a>,
    own: &'a RankProgram,
    lanes: &'a mut Lanes,
    memory: CallMemory<'a>,
    pacer: Option<Pacer<'a>>,
    sequencer: Option<Sequencer<'a>>,
    stamp: Stamp,
    /// For each threadblock, the first slot that was not yet offered before its send began: tile, step, slot.
    ahead: Vec<(usize, usize, u32)>,
    /// For each connection, whether its stamp was sent, or received and compared.
    opened: Vec<bool>,
    cursors: Vec<Cursor>,
    ends: Vec<Moment>,
    recorder: Option<Recorder>,
    finished: u64,
}

impl<'a> Interpreter<'a> {
    pub(crate) fn new(
        plan: &'a RankPlan<'a>,
        lanes: &'a mut Lanes,
        memory: CallMemory<'a>,
        Pacing { pacer, sequencer }: Pacing<'a>,
        stamp: Stamp,
    ) -> Self {
        let own = plan.own();
        let cursors = vec![Cursor::default(); own.threadblocks.len()];
        let opened = vec![false; plan.connections.len()];
        let ends = vec![Moment::default(); cursors.len()];
        let ahead = vec![(0, 0, 0); cursors.len()];
        Self {
            plan,
            own,
            lanes,
            memory,
            pacer,
            sequencer,
            stamp,
            ahead,
            opened,
            cursors,
            ends,
            recorder: None,
            finished: 0,
        }
    }

    /// Keeps the times of all steps from now on.
    pub(crate) fn record(&mut self) {
        self.recorder = Some(Recorder::new(self.own));
    }

    /// Call before the first round, with the common start.
    pub(crate) fn begin(&mut self, start: Moment) {
        if let Some(pacer) = &mut self.pacer {
            pacer.begin(start);
        }
    }

    /// One round: every threadblock moves what it can.
    ///
    /// # Errors
    /// A peer that executes another call or plan, a broken lane, or a program that no verifier accepts.
    pub(crate) fn sweep(&mut self) -> RunResult<Poll> {
        let (mut moved, mut working, mut wake) = (false, false, WaitFor::Peer);
        self.admit()?;
        self.call();
        for block in 0..self.cursors.len() {
            match self.poll(block)? {
                Poll::Done => continue,
                Poll::Moved => moved = true,
                Poll::Blocked(until) => wake = wake.min(until),
            }
            working = true;
        }
        let kept = self.lanes.remote && !self.lanes.outgoing.flush()?;
        if !working && !kept {
            self.average()?;
            return Ok(Poll::Done);
        }
        Ok(if moved { Poll::Moved } else { Poll::Blocked(wake) })
    }

    /// How many steps are finished.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// When each threadblock finished, and the times of the steps that carry messages, if they were kept.
    pub(crate) fn ends(self) -> (Vec<Moment>, Vec<StepTime>) {
        (self.ends, self.recorder.map_or_else(Vec::new, |recorder| recorder.times(self.own)))
    }

    /// Admits the incoming messages that may arrive now.
    fn admit(&mut self) -> RunResult<()> {
        let Some(sequencer) = &mut self.sequencer else { return Ok(()) };
        while let Some((lane, bytes)) = sequencer.admit() {
            self.lanes.incoming.admit(lane, bytes)?;
        }
        Ok(())
    }

    /// Tells the sequencer which messages could be sent, so that they begin in order.
    fn call(&mut self) {
        let Some(mut sequencer) = self.sequencer.take() else { return };
        for (block, cursor) in self.cursors.iter().enumerate() {
            let (index, tile) = (cursor.step, cursor.tile);
            if cursor.started || tile == self.plan.geometry.tiles() {
                continue;
            }
            if let Some(place) = sequencer.waits(block, index, tile)
                && self.near_the_last(tile)
                && self.dependencies_met(block, index, tile)
            {
                sequencer.is_ready(place);
            }
        }
        self.sequencer = Some(sequencer);
    }

    /// Whether a step has to wait with its message until earlier messages have passed.
    fn may_send(&mut self, block: usize, index: usize, tile: usize) -> WaitFor {
        self.sequencer
            .as_mut()
            .map_or(WaitFor::Nothing, |sequencer| sequencer.may_send(block, index, tile, Moment::now()))
    }

    fn step(&self, block: usize) -> &'a Step {
        &self.own.threadblocks[block].steps[self.cursors[block].step]
    }

    fn poll(&mut self, block: usize) -> RunResult<Poll> {
        let steps = self.own.threadblocks[block].steps.len();
        if steps == 0 || self.cursors[block].tile == self.plan.geometry.tiles() {
            return Ok(Poll::Done);
        }
        let step = self.step(block);
        let mut opened = false;
        if !self.cursors[block].started {
            let (index, tile) = (self.cursors[block].step, self.cursors[block].tile);
            let ready = self.near_the_last(tile) && self.dependencies_met(block, index, tile);
            let wait = match ready {
                false => WaitFor::Peer,
                true => match self.may_send(block, index, tile) {
                    WaitFor::Nothing => self.open(block, step)?,
                    wait => wait,
                },
            };
            if wait != WaitFor::Nothing {
                return Ok(Poll::Blocked(wait));
            }
            self.cursors[block].started = true;
            opened = true;
            if let Some(recorder) = &mut self.recorder {
                recorder.begins(block, index, tile);
            }
        }
        let moved = self.advance(block, step)? | self.look_ahead(block)? || opened;
        let cursor = &mut self.cursors[block];
        let last = if step.instruction.is_fused() { cursor.forwarded } else { cursor.done };
        if last.slot < step.instruction.shape().count {
            return Ok(if moved { Poll::Moved } else { Poll::Blocked(WaitFor::Peer) });
        }
        let now = Moment::now();
        if cursor.not_before > now {
            return Ok(if moved { Poll::Moved } else { Poll::Blocked(WaitFor::Moment(cursor.not_before)) });
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.ends(block, cursor.step);
        }
        let wraps = cursor.step + 1 == steps;
        if wraps && cursor.tile + 1 == self.plan.geometry.tiles() {
            // How late this computer wakes a rank is no part of an emulated machine.
            self.ends[block] = if self.pacer.is_some() { cursor.not_before } else { now };
        }
        *cursor = Cursor {
            tile: cursor.tile + usize::from(wraps),
            step: if wraps { 0 } else { cursor.step + 1 },
            ..Cursor::default()
        };
        self.finished += 1;
        Ok(Poll::Moved)
    }

    /// Offers the data of later sends, as far as it is complete, so that the receiver need not wait for this rank
    /// between two messages. Returns whether anything was offered.
    fn look_ahead(&mut self, block: usize) -> RunResult<bool> {
        let (steps, cursor) = (&self.own.threadblocks[block].steps, &self.cursors[block]);
        let (now, done) = ((cursor.tile, cursor.step), cursor.done.slot);
        let Instruction::Send { src: current, .. } = steps[now.1].instruction else { return Ok(false) };
        if self.pacer.is_some() {
            return Ok(false);
        }
        // Slots that are neighbours in memory are sent together.
        let together = self.plan.geometry.tiles() == 1;
        let under_way = if together { current.count } else { done + 1 };
        let (mut at, mut moved) = (self.ahead[block].max((now.0, now.1, under_way)), false);
        while let (tile, index, slot) = at
            && tile < self.plan.geometry.tiles()
            && let Instruction::Send { to, src } = steps[index].instruction
        {
            if slot >= src.count {
                at = if index + 1 == steps.len() { (tile + 1, 0, 0) } else { (tile, index + 1, 0) };
                continue;
            }
            let ready = self.opened[to.index()] && ((tile, index) == now || self.dependencies_met(block, index, tile));
            let bytes = match together {
                true => self.plan.geometry.whole(src),
                false => self.plan.geometry.piece(src, slot, tile),
            };
            let data = ByteSpan { buffer: src.buffer, bytes };
            // The receiver may take it at once.
            if let Some(recorder) = self.recorder.as_mut().filter(|_| ready) {
                recorder.begins(block, index, tile);
            }
            if !ready || !data.bytes.is_empty() && !self.lanes.outgoing.offer(to, self.memory.read(&data))? {
                break;
            }
            (at, moved) = ((tile, index, if together { src.count } else { slot + 1 }), true);
        }
        self.ahead[block] = at;
        Ok(moved)
    }

    /// Whether scratch has room for a tile: no threadblock may be too far behind it.
    fn near_the_last(&self, tile: usize) -> bool {
        let ahead = self.plan.geometry.tiles_ahead();
        tile < ahead
            || self
                .cursors
                .iter()
                .zip(&self.own.threadblocks)
                .all(|(cursor, block)| block.steps.is_empty() || tile - cursor.tile.min(tile) < ahead)
    }

    /// Whether all steps that a step waits for are finished in a tile.
    fn dependencies_met(&self, block: usize, index: usize, tile: usize) -> bool {
        let step = &self.own.threadblocks[block].steps[index];
        let finished = |on: &StepRef| {
            let other = &self.cursors[on.threadblock as usize];
            (other.tile, other.step) > (tile, on.step as usize)
        };
        let ready = step.after.iter().all(finished);
        // An emulated message departs as a whole, so its first step waits for the dependencies of all its steps.
        ready
            && self.pacer.as_ref().is_none_or(|pacer| {
                let message = pacer.message_from(block, index);
                message.iter().flat_map(|later| &later.after).all(finished)
            })
    }

    /// Exchanges the words before a step's payload: the stamp before a connection's first message, and arrival times on
    /// an emulated machine. Returns whether the step has to wait for them.
    fn open(&mut self, block: usize, step: &Step) -> RunResult<WaitFor> {
        let (from, to) = (step.instruction.receives_from(), step.instruction.sends_to());
        if let Some(id) = from.filter(|id| !self.opened[id.index()]) {
            let Some(words) = self.lanes.incoming.receive_words::<2>(id)? else { return Ok(WaitFor::Peer) };
            let found = Stamp::of_words(words);
            if found != self.stamp {
                let peer = self.plan.connections[id.index()].from;
                return Err(RunError::Stamp { rank: self.plan.rank, peer, expected: self.stamp, found });
            }
            self.opened[id.index()] = true;
        }
        if let Some(id) = to.filter(|id| !self.opened[id.index()]) {
            if !self.lanes.outgoing.send_words(id, self.stamp.words())? {
                return Ok(WaitFor::Peer);
            }
            self.opened[id.index()] = true;
        }
        self.pace(block, step)
    }

    /// The part of [`Self::open`] for an emulated machine.
    fn pace(&mut self, block: usize, step: &Step) -> RunResult<WaitFor> {
        let Some(pacer) = &mut self.pacer else { return Ok(WaitFor::Nothing) };
        let (index, tile) = (self.cursors[block].step, self.cursors[block].tile);
        let (from, to) = (step.instruction.receives_from(), step.instruction.sends_to());
        let mut ready = pacer.ready(block, index, step);
        if let Some(id) = from {
            if pacer.arrival(block).is_none() {
                let Some([arrival]) = self.lanes.incoming.receive_words::<1>(id)? else { return Ok(WaitFor::Peer) };
                pacer.set_arrival(block, Moment(arrival));
            }
            ready = ready.max(pacer.arrival(block).unwrap_or_default());
        }
        if let Some(id) = to {
            // A message claims its link at its time, so that the message that is ready first is served first.
            if ready > Moment::now() {
                return Ok(WaitFor::Moment(ready));
            }
            let claimed = pacer.departure(block).map(Ok);
            let departure = match claimed.unwrap_or_else(|| pacer.claim((block, index, tile), id, ready)) {
                Ok(departure) => departure,
                Err(wait) => return Ok(wait),
            };
            if !self.lanes.outgoing.send_words(id, [departure.arrival.max(ready).0])? {
                return Ok(WaitFor::Peer);
            }
        }
        self.cursors[block].not_before = pacer.finish(block, index, ready);
        Ok(WaitFor::Nothing)
    }

    /// The deadline error of the first step that waits for a peer, or else of the first step that waits.
    pub(crate) fn overdue(&self, waited: Duration) -> RunError {
        let stuck = (0..self.cursors.len()).filter(|&block| {
            !self.own.threadblocks[block].steps.is_empty() && self.cursors[block].tile < self.plan.geometry.tiles()
        });
        let waits_for_peer = |&block: &usize| {
            let step = self.step(block);
            self.dependencies_met(block, self.cursors[block].step, self.cursors[block].tile)
                && (step.instruction.sends_to().or(step.instruction.receives_from())).is_some()
        };
        let block = stuck.clone().find(waits_for_peer).or_else(|| stuck.clone().next()).unwrap_or(0);
        let (cursor, step) = (&self.cursors[block], self.step(block));
        let connection = |id: ConnectionId| &self.plan.connections[id.index()];
        let from = step.instruction.receives_from().map(|id| connection(id).from);
        let peer = from.or(step.instruction.sends_to().map(|id| connection(id).to));
        let place = format!("step {} of threadblock {block}, tile {}", cursor.step, cursor.tile);
        let waited_ms = waited.as_millis() as u64;
        RunError::Deadline { rank: self.plan.rank, peer, phase: Phase::Work, place, waited_ms, finished: self.finished }
    }
}
