//! One call of a rank's script.
//!
//! The principal type is [`ScriptRun`]: how far the call is, and what it has offered. It never waits: [`ScriptRun::poll`] does
//! what it can.

use super::script::{Act, CallScript};
use crate::dtype::Kernel;
use crate::error::{RunError, RunResult, Stamp};
use crate::numbers::CallNumber;
use crate::plan::Span;
use crate::session::buffers::CallBuffers;
use crate::session::lane::{MessageHead, Offer, SHORT};
use crate::session::ports::LanePorts;
use std::sync::Arc;
use topology::Rank;

/// What came of a look at a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunProgress {
    /// Something moved.
    Moved,
    /// It waits for this rank.
    Waits(Rank),
    /// The call is over.
    Done,
}

/// One call.
pub(super) struct ScriptRun {
    script: Arc<CallScript>,
    state: RunState,
}

/// What changes while a script runs.
struct RunState {
    buffers: CallBuffers,
    communicator: u64,
    call: u32,
    next: usize,
    /// Long messages that were not read yet: which act, to whom.
    offers: Vec<(u32, Rank, Offer)>,
}

impl ScriptRun {
    /// The `call`-th call of a communicator.
    pub(super) fn new(script: Arc<CallScript>, buffers: CallBuffers, communicator: u64, call: u32) -> Self {
        Self { script, state: RunState { buffers, communicator, call, next: 0, offers: Vec::new() } }
    }

    /// How many steps are finished.
    pub(super) fn finished(&self) -> usize {
        self.state.next
    }

    /// Does what it can without waiting.
    ///
    /// # Errors
    /// [`RunError::Stamp`] if a peer does something else, [`RunError::Lane`] if it has given up, [`RunError::Program`].
    pub(super) fn poll(&mut self, ports: &mut LanePorts) -> RunResult<RunProgress> {
        let Self { script, state } = self;
        state.poll(script, ports)
    }

    /// Takes back what was offered: the call has failed, and its buffers are the caller's again.
    pub(super) fn give_up(&mut self, ports: &mut LanePorts) {
        for (_, to, offer) in self.state.offers.drain(..) {
            ports.to(to).revoke(offer);
        }
    }
}

impl RunState {
    fn poll(&mut self, script: &CallScript, ports: &mut LanePorts) -> RunResult<RunProgress> {
        let before = self.next;
        while self.next < script.acts.len() {
            if let Some(peer) = self.step(script, ports)? {
                return Ok(if self.next > before { RunProgress::Moved } else { RunProgress::Waits(peer) });
            }
            self.next += 1;
        }
        if let Some(peer) = self.first_unread(ports, |_| true) {
            return Ok(if self.next > before { RunProgress::Moved } else { RunProgress::Waits(peer) });
        }
        for (span, by) in &script.averages {
            script.dtype.divide(self.buffers.write(span, script.rank)?, *by);
        }
        Ok(RunProgress::Done)
    }

    /// Does the next step; the rank that it waits for, if it must.
    #[inline]
    fn step(&mut self, script: &CallScript, ports: &mut LanePorts) -> RunResult<Option<Rank>> {
        let awaits = &script.awaits[self.next];
        if !awaits.is_empty()
            && let Some(peer) = self.first_unread(ports, |act| awaits.contains(&act))
        {
            return Ok(Some(peer));
        }
        match &script.acts[self.next] {
            Act::Send { to, tag, src } => return Ok(self.send(script, ports, *to, *tag, src)),
            Act::Receive { from, tag, dst } => {
                let Some(head) = self.arrived(script, ports, *from, *tag)? else { return Ok(Some(*from)) };
                let dst = self.buffers.write(dst, script.rank)?;
                self.take(script, ports, *from, &head, dst.len(), |at, piece| {
                    dst[at..at + piece.len()].copy_from_slice(piece);
                })?;
            }
            Act::Combine { from, tag, src, dst } => {
                let Some(head) = self.arrived(script, ports, *from, *tag)? else { return Ok(Some(*from)) };
                let (kernel, is_same) = (self.kernel(script)?, src == dst);
                let result = self.buffers.write(dst, script.rank)?;
                // Never two views of the same bytes.
                let operand = if is_same { &[] } else { self.buffers.read(src) };
                self.take(script, ports, *from, &head, result.len(), |at, piece| {
                    let part = at..at + piece.len();
                    match is_same {
                        true => (kernel.accumulate)(&mut result[part], piece),
                        false => (kernel.combine)(&mut result[part.clone()], &operand[part], piece),
                    }
                })?;
            }
            Act::Copy { src, dst } => {
                if src != dst {
                    self.buffers.write(dst, script.rank)?.copy_from_slice(self.buffers.read(src));
                }
            }
            Act::Reduce { src, dst } => {
                let kernel = self.kernel(script)?;
                (kernel.accumulate)(self.buffers.write(dst, script.rank)?, self.buffers.read(src));
            }
        }
        Ok(None)
    }

    fn kernel(&self, script: &CallScript) -> RunResult<Kernel> {
        let fault = || RunError::Program { rank: script.rank, fault: "it reduces without an operator".to_owned() };
        script.kernel.ok_or_else(fault)
    }

    /// Sends or offers; whom it waits for if there is no room.
    fn send(&mut self, script: &CallScript, ports: &mut LanePorts, to: Rank, tag: u32, src: &Span) -> Option<Rank> {
        let data = self.buffers.read(src);
        let (communicator, stamp) = (self.communicator, script.stamp(self.call));
        let head = MessageHead { bytes: 0, offer: None, communicator, stamp, tag };
        if data.len() <= SHORT {
            let head = MessageHead { bytes: data.len() as u32, ..head };
            return (!ports.to(to).send(head, data)).then_some(to);
        }
        match ports.to(to).offer(head, data.as_ptr(), data.len()) {
            Some(offer) => {
                self.offers.push((self.next as u32, to, offer));
                None
            }
            None => {
                // Offers that were read make room for others.
                self.first_unread(ports, |_| true);
                Some(to)
            }
        }
    }

    /// The next message, if it is there, and is the one that the script expects.
    #[inline]
    fn arrived(
        &self,
        script: &CallScript,
        ports: &mut LanePorts,
        from: Rank,
        tag: u32,
    ) -> RunResult<Option<MessageHead>> {
        let Some(head) = ports.next(from, self.communicator) else { return Ok(None) };
        let expected = script.stamp(self.call);
        if (head.stamp, head.tag) != (expected, tag) {
            let stamp = |word: u64| Stamp { call: CallNumber(word >> 32), plan: word & 0xffff_ffff, work: 0 };
            let (expected, found) = (stamp(expected), stamp(head.stamp));
            return Err(RunError::Stamp { rank: script.rank, peer: from, expected, found });
        }
        Ok(Some(head))
    }

    /// Hands a message of `expected` bytes to `take` and ends it.
    fn take(
        &self,
        script: &CallScript,
        ports: &mut LanePorts,
        from: Rank,
        head: &MessageHead,
        expected: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> RunResult<()> {
        let lost = |what: &str| RunError::Lane {
            rank: script.rank,
            peer: from,
            source: std::io::Error::other(what.to_owned()),
        };
        match head.offer {
            None if head.bytes as usize != expected => return Err(lost("its message has another length")),
            None => ports.pieces(from, head, take),
            Some(offer) => {
                let lent = ports.begin(from, offer).map_err(|_| lost("it has given up"))?;
                if lent.bytes == expected {
                    // SAFETY: its sender keeps these bytes as they are until `release`, or until it revokes the offer, for which
                    // it waits while we read (`LaneSender::revoke`). They are in this process.
                    take(0, unsafe { std::slice::from_raw_parts(lent.address, lent.bytes) });
                }
                ports.release(from, head);
                return if lent.bytes == expected { Ok(()) } else { Err(lost("its message has another length")) };
            }
        }
        ports.release(from, head);
        Ok(())
    }

    /// Notes which offers have been read; the receiver of the first that has not, among those of the acts that `is_meant`.
    fn first_unread(&mut self, ports: &mut LanePorts, is_meant: impl Fn(u32) -> bool) -> Option<Rank> {
        self.offers.retain(|&(_, to, offer)| !ports.to(to).is_read(offer));
        self.offers.iter().find(|(act, ..)| is_meant(*act)).map(|&(_, to, _)| to)
    }
}
