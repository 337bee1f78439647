//! One call of a rank's script.
//!
//! The principal type is [`ScriptRun`]: how far the call is, and what it has offered. It never waits: [`ScriptRun::poll`] does
//! what it can.

use super::script::{Act, CallScript};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::session::buffers::CallBuffers;
use crate::session::ports::LanePorts;
use crate::transport::port::{MessageHead, Offer, OfferState, PortRelief};
use crate::transport::sink::Sink;
use topology::{Rank, ResourceId};

/// The result of one poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunProgress {
    /// Something moved.
    Moved,
    /// It waits for this rank.
    Waits(Rank),
    /// The call is over.
    Done,
}

/// One call. All its functions take the same script.
pub(super) struct ScriptRun {
    buffers: CallBuffers,
    flow: MessageFlow,
}

/// How far a call's messages are.
pub(super) struct MessageFlow {
    pub(super) communicator: u64,
    pub(super) call: u32,
    pub(super) next: usize,
    /// One bit for each of the next acts: whether it was done early.
    pub(super) done: u64,
    /// One bit for each of the next acts: whether its message may come before it is asked for.
    pub(super) expected: u64,
    /// The next act, and what was done, when sends were last tried before their turn.
    pub(super) tried: Option<(usize, u64)>,
    /// Resources through which so much is on its way that nothing passes what should have gone before, and until when.
    pub(super) full: Vec<(ResourceId, Moment)>,
    /// How many of the sends, and of the receives, that may come before their turn are over.
    pub(super) passed: [usize; 2],
    /// Long messages that their receivers do not have yet.
    pub(super) offers: Vec<OpenOffer>,
    /// Long messages that come in fragments: that of the next act, and those of later acts.
    pub(super) incoming: Vec<IncomingMessage>,
}

/// A long message that this rank has offered.
pub(super) struct OpenOffer {
    /// Which act sends it.
    pub(super) act: u32,
    to: Rank,
    offer: Offer,
}

/// A long message that comes in fragments.
pub(super) struct IncomingMessage {
    /// Which act receives it.
    pub(super) act: u32,
    pub(super) from: Rank,
    pub(super) offer: u32,
    /// Bytes that are here.
    pub(super) done: usize,
}

impl ScriptRun {
    /// The `call`-th call of a communicator.
    #[inline]
    pub(super) fn new(buffers: CallBuffers, communicator: u64, call: u32) -> Self {
        let (offers, incoming) = (Vec::new(), Vec::new());
        let (done, expected) = (0, 0);
        let flow = MessageFlow {
            communicator,
            call,
            next: 0,
            done,
            expected,
            tried: None,
            full: Vec::new(),
            passed: [0; 2],
            offers,
            incoming,
        };
        Self { buffers, flow }
    }

    /// Which other lanes this waiting call must empty, because a peer may be blocked until older messages are taken.
    pub(super) fn needed_relief(&self, script: &CallScript) -> PortRelief {
        let sends = matches!(script.acts.get(self.flow.next), Some(Act::Send { .. }));
        match (sends, self.flow.offers.is_empty()) {
            (true, _) => PortRelief::All,
            (false, false) => PortRelief::Network,
            (false, true) => PortRelief::Full,
        }
    }

    /// When it has something to do, if nothing arrives before.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.flow.retry_at()
    }

    /// How many acts are finished.
    pub(super) fn finished(&self) -> usize {
        self.flow.next
    }

    /// Does what it can without waiting.
    ///
    /// # Errors
    /// [`RunError::OtherCall`] if a peer does something else, [`RunError::Lane`] if it has given up, [`RunError::Program`].
    pub(super) fn poll(&mut self, script: &CallScript, ports: &mut LanePorts) -> RunResult<RunProgress> {
        let Self { buffers, flow } = self;
        let mut has_moved = !flow.offers.is_empty() && flow.advance(script, ports, buffers)?;
        let progress = |has_moved, peer| Ok(if has_moved { RunProgress::Moved } else { RunProgress::Waits(peer) });
        while flow.next < script.acts.len() {
            match flow.step(script, ports, buffers)? {
                StepOutcome::Finished => {}
                StepOutcome::Waits { peer, moved } => {
                    let has_gone_on = flow.go_ahead(script, ports, buffers)?;
                    // Those that it does not look at may wait for the rest of what it has sent, and others for them.
                    ports.flush(&script.receivers)?;
                    return progress(has_moved || moved || has_gone_on, peer);
                }
            }
            flow.next += 1;
            flow.done >>= 1;
            flow.expected >>= 1;
            has_moved = true;
        }
        flow.full.clear();
        let unsent = ports.flush(&script.receivers)?;
        if let Some(peer) = flow.offers.first().map(|open| open.to).or(unsent) {
            return progress(has_moved, peer);
        }
        for (span, by) in &script.averages {
            script.dtype.divide(buffers.write(span, script.rank)?, *by);
        }
        Ok(RunProgress::Done)
    }

    /// Ends the call: its buffers are the caller's again, and its scratch serves another call. If it has not succeeded,
    /// what it has offered is taken back.
    #[inline]
    pub(super) fn end(self, ports: &mut LanePorts) -> Vec<u8> {
        for OpenOffer { to, offer, .. } in &self.flow.offers {
            ports.revoke(*to, offer);
        }
        for IncomingMessage { from, offer, .. } in self.flow.incoming {
            ports.abandon(from, offer);
        }
        if self.flow.expected != 0 {
            // The call has failed, and no other one of its communicator is made.
            ports.forget(&[self.flow.communicator].into());
        }
        self.buffers.into_scratch()
    }
}

/// What came of a step.
pub(super) enum StepOutcome {
    Finished,
    /// It waits for this rank; whether a part of a message moved meanwhile.
    Waits {
        peer: Rank,
        moved: bool,
    },
}

impl StepOutcome {
    const fn waits(peer: Rank) -> Self {
        Self::Waits { peer, moved: false }
    }
}

impl MessageFlow {
    /// Carries all offers on, and forgets those that were taken; whether anything moved.
    fn advance(&mut self, script: &CallScript, ports: &mut LanePorts, buffers: &CallBuffers) -> RunResult<bool> {
        let mut has_moved = false;
        let mut index = 0;
        while let Some(OpenOffer { act, to, offer }) = self.offers.get_mut(index) {
            let Act::Send { tag, src, .. } = &script.acts[*act as usize] else { unreachable!("only sends offer") };
            let head = head(script, self.communicator, self.call, *tag);
            match ports.advance(*to, offer, head, buffers.read(src))? {
                OfferState::Open { moved } => {
                    has_moved |= moved;
                    index += 1;
                }
                OfferState::Taken => {
                    has_moved = true;
                    self.offers.swap_remove(index);
                }
                OfferState::Refused => {
                    let peer = *to;
                    self.offers.swap_remove(index);
                    let source = std::io::Error::other("it has given up");
                    return Err(RunError::Lane { rank: script.rank, peer, source });
                }
            }
        }
        Ok(has_moved)
    }

    /// Does the next step.
    #[inline]
    fn step(&mut self, script: &CallScript, ports: &mut LanePorts, buffers: &CallBuffers) -> RunResult<StepOutcome> {
        if self.done & 1 == 1 {
            return Ok(StepOutcome::Finished);
        }
        let awaits = &script.awaits[self.next];
        if !awaits.is_empty() && self.offers.iter().any(|open| awaits.contains(&open.act)) {
            self.advance(script, ports, buffers)?;
            if let Some(open) = self.offers.iter().find(|open| awaits.contains(&open.act)) {
                return Ok(StepOutcome::waits(open.to));
            }
        }
        match &script.acts[self.next] {
            Act::Send { to, tag, src } => {
                return self.send(script, ports, self.next as u32, *to, *tag, buffers.read(src));
            }
            Act::Receive { from, tag, .. } | Act::Combine { from, tag, .. } => {
                let mut sink = sink(script, self.next, buffers)?;
                return self.receive(script, ports, *from, *tag, &mut sink);
            }
            Act::Copy { src, dst } => {
                if src != dst {
                    buffers.write(dst, script.rank)?.copy_from_slice(buffers.read(src));
                }
            }
            Act::Reduce { src, dst } => {
                (script.kernel()?.accumulate)(buffers.write(dst, script.rank)?, buffers.read(src));
            }
        }
        Ok(StepOutcome::Finished)
    }

    /// Sends a short message, or offers a long one.
    #[inline]
    pub(super) fn send(
        &mut self,
        script: &CallScript,
        ports: &mut LanePorts,
        act: u32,
        to: Rank,
        tag: u32,
        data: &[u8],
    ) -> RunResult<StepOutcome> {
        let head = head(script, self.communicator, self.call, tag);
        if data.len() <= ports.longest_short(to) {
            let head = MessageHead { bytes: data.len() as u32, ..head };
            let is_sent = ports.send(to, head, data)?;
            return Ok(if is_sent { StepOutcome::Finished } else { StepOutcome::waits(to) });
        }
        let Some(offer) = ports.offer(to, head, data)? else { return Ok(StepOutcome::waits(to)) };
        self.offers.push(OpenOffer { act, to, offer });
        Ok(StepOutcome::Finished)
    }

    /// Receives a message, if it is there, and is the one that the script expects.
    #[inline]
    fn receive(
        &mut self,
        script: &CallScript,
        ports: &mut LanePorts,
        from: Rank,
        tag: u32,
        sink: &mut Sink<'_>,
    ) -> RunResult<StepOutcome> {
        if let Some(at) = self.position(self.next) {
            return self.receive_rest(ports, at, sink);
        }
        let Some(head) = ports.next(from, self.communicator)? else { return Ok(StepOutcome::waits(from)) };
        let expected = script.stamp(self.call);
        if (head.stamp, head.tag) != (expected, tag) {
            let calls = [expected, head.stamp].map(|stamp| (stamp >> 32) as u32);
            return Err(RunError::OtherCall { rank: script.rank, peer: from, calls });
        }
        match head.offer {
            None => ports.take_short(from, &head, sink)?,
            Some(offer) => {
                if !ports.take_long(from, &head, offer, sink)? {
                    self.incoming.push(IncomingMessage { act: self.next as u32, from, offer, done: 0 });
                    return Ok(StepOutcome::Waits { peer: from, moved: true });
                }
            }
        }
        Ok(StepOutcome::Finished)
    }

    /// Which of the messages in fragments an act receives.
    pub(super) fn position(&self, act: usize) -> Option<usize> {
        self.incoming.iter().position(|incoming| incoming.act as usize == act)
    }

    /// Receives what has come of a message in fragments.
    pub(super) fn receive_rest(
        &mut self,
        ports: &mut LanePorts,
        at: usize,
        sink: &mut Sink<'_>,
    ) -> RunResult<StepOutcome> {
        let incoming = &mut self.incoming[at];
        let done = ports.take_fragments(incoming.from, incoming.offer, incoming.done, sink)?;
        let moved = done > incoming.done;
        incoming.done = done;
        if done < sink.len() {
            return Ok(StepOutcome::Waits { peer: incoming.from, moved });
        }
        self.incoming.remove(at);
        Ok(StepOutcome::Finished)
    }
}

/// Where the message of an act goes.
pub(super) fn sink<'a>(script: &CallScript, act: usize, buffers: &'a CallBuffers) -> RunResult<Sink<'a>> {
    match &script.acts[act] {
        Act::Combine { src, dst, .. } => {
            let (kernel, result) = (script.kernel()?, buffers.write(dst, script.rank)?);
            // Never two views of the same bytes.
            Ok(match src == dst {
                true => Sink::Accumulate { kernel, result },
                false => Sink::Combine { kernel, operand: buffers.read(src), result },
            })
        }
        Act::Receive { dst, .. } | Act::Copy { dst, .. } | Act::Reduce { dst, .. } => {
            Ok(Sink::Copy(buffers.write(dst, script.rank)?))
        }
        Act::Send { .. } => Err(RunError::Program { rank: script.rank, fault: "a send receives nothing".to_owned() }),
    }
}

/// The header of a message.
pub(super) fn head(script: &CallScript, communicator: u64, call: u32, tag: u32) -> MessageHead {
    MessageHead { bytes: 0, offer: None, communicator, stamp: script.stamp(call), tag }
}
