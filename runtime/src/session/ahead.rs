//! What a call does before its turn, while its next step waits for another rank.
//!
//! Sends go out, and long messages of other machines are asked for. [`EarlyActs`](super::early::EarlyActs) says what each act
//! needs; `docs/decisions/0076` says why no cycle of waits comes of it.

use super::early::{AHEAD, DeparturePlan, EarlyReceive, EarlySend};
use super::run::{IncomingMessage, MessageFlow, StepOutcome, head, sink};
use super::script::{Act, CallScript};
use crate::clock::Moment;
use crate::error::RunResult;
use crate::session::buffers::CallBuffers;
use crate::session::ports::LanePorts;
use crate::transport::MemoryKind;
use topology::{Rank, ResourceId};

/// So many long messages of a rank are asked for at a time: while one comes, the next is on its way.
const MOST_ASKED: usize = 2;

/// Messages that the same resource limits, of which one that should have gone waits.
struct LateQueue {
    limited_by: ResourceId,
    /// How many bytes are on their way there, once somebody has counted them.
    unsent: Option<usize>,
}

impl MessageFlow {
    /// When a send that would have passed earlier ones is tried again.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.full.iter().map(|(_, until)| *until).min()
    }

    /// While the next act waits: does what may come before its turn; whether anything moved.
    pub(super) fn go_ahead(
        &mut self,
        script: &CallScript,
        ports: &mut LanePorts,
        buffers: &CallBuffers,
    ) -> RunResult<bool> {
        let mut has_moved = false;
        let is_due = |at: Moment| Moment::now() >= at;
        if self.tried != Some((self.next, self.done)) || self.retry_at().is_some_and(is_due) {
            let had_room;
            (has_moved, had_room) = self.send_ahead(script, ports, buffers)?;
            self.tried = had_room.then_some((self.next, self.done));
        }
        if script.acts[self.next].receives_long() {
            self.expect(script, ports, self.next);
        }
        has_moved |= self.ask_ahead(script, ports, buffers)?;
        has_moved |= self.receive_ahead(script, ports, buffers)?;
        Ok(has_moved)
    }

    /// Sends what may come before its turn, as far as there is room; whether it sent anything, and whether there was room for all.
    fn send_ahead(
        &mut self,
        script: &CallScript,
        ports: &mut LanePorts,
        buffers: &CallBuffers,
    ) -> RunResult<(bool, bool)> {
        let sends = &script.early.sends;
        while sends.get(self.passed[0]).is_some_and(|send| send.act as usize <= self.next) {
            self.passed[0] += 1;
        }
        let (mut has_sent, mut had_room) = (false, true);
        // What limits sends that should have gone before.
        let mut late: Vec<LateQueue> = Vec::new();
        if !self.full.is_empty() {
            let now = Moment::now();
            self.full.retain(|(_, until)| now < *until);
        }
        for &EarlySend { act, plan } in &sends[self.passed[0]..] {
            let ahead = act as usize - self.next;
            if ahead >= AHEAD {
                break;
            }
            if self.is_done(act as usize) {
                continue;
            }
            let Act::Send { to, tag, src } = &script.acts[act as usize] else { unreachable!("it is a send") };
            // Within a machine, messages wait for nothing.
            let plan = plan.filter(|_| ports.memory(*to) == MemoryKind::Network);
            // What finds no room is not done, and what comes behind it needs it.
            if script.early.may_begin(act as usize, ahead, self.done) && self.may_pass(script, ports, plan, &mut late) {
                match self.send(script, ports, act, *to, *tag, buffers.read(src))? {
                    StepOutcome::Finished => {
                        self.done |= 1 << ahead;
                        has_sent = true;
                        continue;
                    }
                    StepOutcome::Waits { .. } => had_room = false,
                }
            }
            late.extend(plan.map(|plan| LateQueue { limited_by: plan.limited_by, unsent: None }));
        }
        Ok((has_sent, had_room))
    }

    /// Whether an early send may pass those that should have gone before, if what limits it also limits one of these: only while little
    /// is on its way there. Otherwise the earlier one, for which others wait, would wait behind it as soon as it can go. If not, it is
    /// tried again when so much has left.
    fn may_pass(
        &mut self,
        script: &CallScript,
        ports: &LanePorts,
        plan: Option<DeparturePlan>,
        late: &mut [LateQueue],
    ) -> bool {
        let queue = plan.and_then(|plan| Some((plan, late.iter_mut().find(|of| of.limited_by == plan.limited_by)?)));
        let Some((plan, queue)) = queue else { return true };
        if self.full.iter().any(|(limited_by, _)| *limited_by == plan.limited_by) {
            return false;
        }
        let peers = || script.early.queues.get(&plan.limited_by).into_iter().flatten();
        let unsent = *queue.unsent.get_or_insert_with(|| peers().map(|peer| ports.unsent(*peer)).sum());
        match plan.pause(unsent) {
            None => {
                // It counts all again after this one.
                queue.unsent = None;
                true
            }
            Some(pause) => {
                self.full.push((plan.limited_by, Moment::now().after(pause)));
                false
            }
        }
    }

    fn is_done(&self, act: usize) -> bool {
        act < self.next || self.done >> (act - self.next) & 1 == 1
    }

    /// Receives what has come of messages before their turn; whether anything came.
    fn receive_ahead(&mut self, script: &CallScript, ports: &mut LanePorts, buffers: &CallBuffers) -> RunResult<bool> {
        let mut has_moved = false;
        let mut at = 0;
        while let Some(act) = self.incoming.get(at).map(|incoming| incoming.act as usize) {
            if act == self.next {
                at += 1;
                continue;
            }
            match self.receive_rest(ports, at, &mut sink(script, act, buffers)?)? {
                StepOutcome::Finished => {
                    self.done |= 1 << (act - self.next);
                    has_moved = true;
                }
                StepOutcome::Waits { moved, .. } => {
                    has_moved |= moved;
                    at += 1;
                }
            }
        }
        Ok(has_moved)
    }

    /// Asks for long messages of other machines that may come before their turn, but for few of a rank at a time: for those that
    /// were announced, and expects others; whether anything moved.
    fn ask_ahead(&mut self, script: &CallScript, ports: &mut LanePorts, buffers: &CallBuffers) -> RunResult<bool> {
        let receives = &script.early.receives;
        while receives.get(self.passed[1]).is_some_and(|early| early.act as usize <= self.next) {
            self.passed[1] += 1;
        }
        let mut has_moved = false;
        // What the next act receives comes before all of them.
        let first = self.passed[1];
        let begin = first - usize::from(first > 0 && receives[first - 1].act as usize == self.next);
        for (place, &EarlyReceive { act, behind, .. }) in receives.iter().enumerate().skip(first) {
            let act = act as usize;
            let ahead = act - self.next;
            if ahead >= AHEAD {
                break;
            }
            let has_begun = |act: usize| self.is_done(act) || self.position(act).is_some();
            if has_begun(act) || !script.early.may_begin(act, ahead, self.done) {
                continue;
            }
            if !self.is_expected(act) && !self.is_due(script, ports, &receives[begin..=place]) {
                if let Some((from, _)) = script.acts[act].source() {
                    has_moved |= ports.put_offers_aside(from)?;
                }
                continue;
            }
            let is_next = behind.is_none_or(|behind| has_begun(behind as usize));
            let is_near = is_next || behind.is_some_and(|behind| self.is_expected(behind as usize));
            if is_next && self.begin(script, ports, buffers, act)? {
                has_moved = true;
            } else if is_near {
                self.expect(script, ports, act);
            }
        }
        Ok(has_moved)
    }

    /// Whether the last of these may come beside those before it. Messages that come at the same time share what limits them, so one
    /// that this rank passes on at once would be late, and with it all ranks behind. The plan has its times; a message that is not
    /// on its way does not count.
    fn is_due(&self, script: &CallScript, ports: &LanePorts, receives: &[EarlyReceive]) -> bool {
        let Some((last, before)) = receives.split_last() else { return true };
        let Some((plan, source)) = last.plan.zip(script.acts[last.act as usize].source()) else { return true };
        before.iter().all(|earlier| {
            let act = earlier.act as usize;
            let Some((own, (from, _))) = earlier.plan.zip(script.acts[act].source()) else { return true };
            // A connection keeps its own order.
            if self.is_done(act) || from == source.0 || ports.memory(from) == MemoryKind::Mapped {
                return true;
            }
            let bytes = script.acts[act].writes().map_or(0, |dst| dst.bytes.len());
            match self.position(act).map(|at| self.incoming[at].done) {
                None if !self.is_expected(act) => true,
                come => bytes - come.unwrap_or(0) <= plan.spare(&own, bytes),
            }
        })
    }

    fn is_expected(&self, act: usize) -> bool {
        act >= self.next && self.expected >> (act - self.next) & 1 == 1
    }

    /// How many long messages of a rank are on their way, or may be.
    fn coming(&self, script: &CallScript, from: Rank) -> usize {
        let is_coming = |act: usize| script.acts[act].source().is_some_and(|(of, _)| of == from);
        let expected = (0..AHEAD).map(|ahead| self.next + ahead).filter(|act| self.is_expected(*act));
        let unasked = expected.filter(|act| !self.is_done(*act) && self.position(*act).is_none());
        self.incoming.iter().filter(|incoming| incoming.from == from).count()
            + unasked.filter(|act| is_coming(*act)).count()
    }

    /// Whether an open offer reads what the message of an act replaces.
    fn is_read(&self, script: &CallScript, act: usize) -> bool {
        let mut open = self.offers.iter().map(|open| &script.acts[open.act as usize]);
        open.any(|open| open.must_precede(&script.acts[act]))
    }

    /// Lets the long message of an act come before it is announced and asked for.
    fn expect(&mut self, script: &CallScript, ports: &mut LanePorts, act: usize) {
        let Some((from, tag)) = script.acts[act].source() else { return };
        if ports.memory(from) == MemoryKind::Network
            && !self.is_expected(act)
            && self.position(act).is_none()
            && self.coming(script, from) < MOST_ASKED
            && !self.is_read(script, act)
            && ports.expect(from, head(script, self.communicator, self.call, tag))
        {
            self.expected |= 1 << (act - self.next);
        }
    }

    /// Asks for the message of an act, if it was announced and is long. One that is not what is expected is found in its turn.
    fn begin(
        &mut self,
        script: &CallScript,
        ports: &mut LanePorts,
        buffers: &CallBuffers,
        act: usize,
    ) -> RunResult<bool> {
        let Some((from, tag)) = script.acts[act].source() else { return Ok(false) };
        let is_busy = || !self.is_expected(act) && self.coming(script, from) >= MOST_ASKED;
        if ports.memory(from) == MemoryKind::Mapped || is_busy() || self.is_read(script, act) {
            return Ok(false);
        }
        let Some(head) = ports.next(from, self.communicator)? else { return Ok(false) };
        let is_expected = (head.stamp, head.tag) == (script.stamp(self.call), tag);
        let (Some(offer), true) = (head.offer, is_expected) else { return Ok(false) };
        match ports.take_long(from, &head, offer, &mut sink(script, act, buffers)?)? {
            true => self.done |= 1 << (act - self.next),
            false => self.incoming.push(IncomingMessage { act: act as u32, from, offer, done: 0 }),
        }
        Ok(true)
    }
}
