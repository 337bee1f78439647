//! What one rank does in one call, step after step.
//!
//! The principal types are [`CallScript`], a rank's part of a program for one count and data type, and [`ScriptRun`], one call of
//! it. The steps of all threadblocks are in one order ([`VerifiedProgram::sequences`]), so a run is an index into a list, and
//! a call of a few bytes takes no more than its messages do. No cycle of waits comes of it: that order is one in which all
//! steps of all ranks can happen one after the other.
//!
//! A step that sends a long message does not wait until its receiver has read it. Only a later step that writes to the
//! same bytes does, and so does the end of the call.

use crate::dtype::{DType, Kernel};
use crate::error::{RunError, RunResult, Stamp};
use crate::execution::local_rank::averages;
use crate::numbers::CallNumber;
use crate::plan::Span;
use crate::plan::geometry::Geometry;
use crate::session::buffers::CallBuffers;
use crate::session::lane::{MessageHead, Offer, SHORT};
use crate::session::ports::LanePorts;
use program::{Buffer, Instruction, StepRef, VerifiedProgram, digest};
use std::ops::Range;
use std::sync::Arc;
use topology::Rank;

/// A step with the bytes that it moves. Peers are ranks of the session.
enum Act {
    Send {
        to: Rank,
        tag: u32,
        src: Span,
    },
    Receive {
        from: Rank,
        tag: u32,
        dst: Span,
    },
    /// `dst = src ⊕ received`.
    Combine {
        from: Rank,
        tag: u32,
        src: Span,
        dst: Span,
    },
    Copy {
        src: Span,
        dst: Span,
    },
    /// `dst = dst ⊕ src`.
    Reduce {
        src: Span,
        dst: Span,
    },
}

impl Act {
    fn writes(&self) -> Option<&Span> {
        match self {
            Self::Send { .. } => None,
            Self::Receive { dst, .. }
            | Self::Combine { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. } => Some(dst),
        }
    }
}

/// A program that ranks can do step after step; it serves every count and data type.
pub struct SequencedProgram {
    program: VerifiedProgram,
    /// For each rank its steps.
    orders: Vec<Vec<StepRef>>,
    /// The beginning of the program's digest.
    digest: u32,
}

impl SequencedProgram {
    /// The program in one order of single steps for each rank.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if it has fused steps or needs lanes with room.
    pub fn new(program: VerifiedProgram) -> RunResult<Self> {
        let refuse = || RunError::Mismatch { what: "the plan has fused steps, or needs lanes with room".to_owned() };
        let orders = program.sequences().ok_or_else(refuse)?;
        let named = digest(program.program());
        let digest = named.get(..8).and_then(|word| u32::from_str_radix(word, 16).ok()).unwrap_or_default();
        Ok(Self { program, orders, digest })
    }

    /// The program.
    pub fn program(&self) -> &VerifiedProgram {
        &self.program
    }
}

/// One rank's part of a program, for one count and data type.
pub(crate) struct CallScript {
    /// Which rank of the session this is.
    rank: Rank,
    acts: Vec<Act>,
    /// For each act the earlier sends that must have been read before it: they read what it writes.
    awaits: Vec<Vec<u32>>,
    kernel: Option<Kernel>,
    dtype: DType,
    averages: Vec<(Span, u64)>,
    /// Bytes of input, output and scratch.
    pub(crate) lengths: [usize; 3],
    /// Tells this plan, count and type from others.
    plan: u32,
}

impl CallScript {
    /// The part of `number`, one of `members`, which are ranks of the session.
    ///
    /// # Errors
    /// [`RunError::TooLarge`], [`RunError::Indivisible`].
    pub(crate) fn new(
        sequenced: &SequencedProgram,
        number: Rank,
        members: &[Rank],
        count: u64,
        dtype: DType,
    ) -> RunResult<Self> {
        let (program, rank) = (sequenced.program.program(), members[number.index()]);
        let geometry = Geometry::new(program, number, count, dtype, 1)?;
        let span = |slice: program::Slice| Span { buffer: slice.buffer, bytes: geometry.whole(slice) };
        let connection = |id: program::ConnectionId| &program.connections[id.index()];
        let from = |id| (members[connection(id).from.index()], id.0);
        let own = &program.ranks[number.index()];
        let order = &sequenced.orders[number.index()];
        let mut acts = Vec::with_capacity(order.len());
        for at in order {
            acts.push(match own.threadblocks[at.threadblock as usize].steps[at.step as usize].instruction {
                Instruction::Send { to, src } => {
                    Act::Send { to: members[connection(to).to.index()], tag: to.0, src: span(src) }
                }
                Instruction::Receive { from: id, dst } => {
                    let (from, tag) = from(id);
                    Act::Receive { from, tag, dst: span(dst) }
                }
                Instruction::ReceiveReduce { from: id, src, dst } => {
                    let (from, tag) = from(id);
                    Act::Combine { from, tag, src: span(src), dst: span(dst) }
                }
                Instruction::Copy { src, dst } => Act::Copy { src: span(src), dst: span(dst) },
                Instruction::Reduce { src, dst } => Act::Reduce { src: span(src), dst: span(dst) },
                Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => {
                    return Err(RunError::Program { rank, fault: "it has fused steps".to_owned() });
                }
            });
        }
        let lengths = [Buffer::Input, Buffer::Output, Buffer::Scratch].map(|buffer| geometry.buffer_bytes(buffer));
        Ok(Self {
            rank,
            awaits: awaits(&acts),
            acts,
            kernel: program.op.map(|op| dtype.kernel(op)),
            dtype,
            averages: averages(program, number, &geometry)?,
            lengths,
            plan: sequenced.digest ^ mark(count, dtype.size()),
        })
    }

    /// One message to each of some ranks, and one from each of some: `(rank, bytes)` of the input, and of the output. Which is
    /// the rank's own is copied.
    pub(crate) fn exchange(rank: Rank, sends: &[(Rank, Range<usize>)], receives: &[(Rank, Range<usize>)]) -> Self {
        let span = |buffer, bytes: &Range<usize>| Span { buffer, bytes: bytes.clone() };
        let of =
            |list: &[(Rank, Range<usize>)]| list.iter().find(|(peer, _)| *peer == rank).map(|(_, bytes)| bytes.clone());
        let own = of(sends)
            .zip(of(receives))
            .map(|(src, dst)| Act::Copy { src: span(Buffer::Input, &src), dst: span(Buffer::Output, &dst) });
        let others = |(peer, bytes): &&(Rank, Range<usize>)| *peer != rank && !bytes.is_empty();
        let send = sends.iter().filter(others).map(|(to, bytes)| Act::Send {
            to: *to,
            tag: 0,
            src: span(Buffer::Input, bytes),
        });
        let receive = receives.iter().filter(others);
        let receive =
            receive.map(|(from, bytes)| Act::Receive { from: *from, tag: 0, dst: span(Buffer::Output, bytes) });
        let acts: Vec<Act> = own.into_iter().chain(send).chain(receive).collect();
        let end = |list: &[(Rank, Range<usize>)]| list.iter().map(|(_, bytes)| bytes.end).max().unwrap_or(0);
        Self {
            rank,
            awaits: awaits(&acts),
            acts,
            kernel: None,
            dtype: DType::U8,
            averages: Vec::new(),
            lengths: [end(sends), end(receives), 0],
            plan: mark(0, 0),
        }
    }

    /// What precedes the messages of a call.
    fn stamp(&self, call: u32) -> u64 {
        u64::from(call) << 32 | u64::from(self.plan)
    }
}

/// Tells counts and sizes of elements apart.
fn mark(count: u64, size: usize) -> u32 {
    (count as u32).wrapping_mul(0x9e37_79b1) ^ (count >> 32) as u32 ^ size as u32
}

/// For each act, the earlier long sends that read what it writes, and that no act in between waits for.
fn awaits(acts: &[Act]) -> Vec<Vec<u32>> {
    let meets = |a: &Span, b: &Span| a.buffer == b.buffer && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end;
    let mut open: Vec<(u32, &Span)> = Vec::new();
    let mut awaits = Vec::with_capacity(acts.len());
    for (index, act) in (0..).zip(acts) {
        let mut before = Vec::new();
        if let Some(dst) = act.writes() {
            open.retain(|(send, src)| {
                let must_wait = meets(src, dst);
                before.extend(must_wait.then_some(*send));
                !must_wait
            });
        }
        awaits.push(before);
        if let Act::Send { src, .. } = act
            && src.bytes.len() > SHORT
        {
            open.push((index, src));
        }
    }
    awaits
}

/// What came of a look at a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunProgress {
    /// Something moved.
    Moved,
    /// It waits for this rank.
    Waits(Rank),
    /// The call is over.
    Done,
}

/// One call.
pub(crate) struct ScriptRun {
    script: Arc<CallScript>,
    buffers: CallBuffers,
    communicator: u64,
    call: u32,
    next: usize,
    /// Long messages that were not read yet: which act, to whom.
    offers: Vec<(u32, Rank, Offer)>,
}

impl ScriptRun {
    /// The `call`-th call of a communicator.
    pub(crate) fn new(script: Arc<CallScript>, buffers: CallBuffers, communicator: u64, call: u32) -> Self {
        Self { script, buffers, communicator, call, next: 0, offers: Vec::new() }
    }

    /// How many steps are finished.
    pub(crate) fn finished(&self) -> usize {
        self.next
    }

    /// Does what it can without waiting.
    ///
    /// # Errors
    /// [`RunError::Stamp`] if a peer does something else, [`RunError::Lane`] if it has given up, [`RunError::Program`].
    pub(crate) fn poll(&mut self, ports: &mut LanePorts) -> RunResult<RunProgress> {
        let script = self.script.clone();
        let before = self.next;
        while self.next < script.acts.len() {
            if let Some(peer) = self.step(&script, ports)? {
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
        if data.len() <= SHORT {
            let head = MessageHead { bytes: data.len() as u32, offer: None, communicator, stamp, tag };
            return (!ports.to(to).send(head, data)).then_some(to);
        }
        let head = MessageHead { bytes: 0, offer: None, communicator, stamp, tag };
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

    /// Takes back what was offered: the call has failed, and its buffers are the caller's again.
    pub(crate) fn give_up(&mut self, ports: &mut LanePorts) {
        for (_, to, offer) in self.offers.drain(..) {
            ports.to(to).revoke(offer);
        }
    }
}
