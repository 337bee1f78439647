//! What one rank does in one call, step after step.
//!
//! The principal type is [`CallScript`], a rank's part of a program for one count and data type. The steps of all threadblocks
//! are in one order ([`VerifiedProgram::sequences`]), so a call ([`ScriptRun`](super::run::ScriptRun)) is an index into a list,
//! and a call of a few bytes takes little more time than its messages. No cycle of waits is possible: all steps of all ranks
//! can happen one after the other in this order.
//!
//! A step that sends a long message does not wait until its receiver has read it. Only a later step that writes to the
//! same bytes does, and so does the end of the call.
//!
//! While a step waits for another rank, later ones may come before it: sends, if their bytes are there and there is room, and
//! requests for long messages of other machines, if nothing needs the bytes that they replace. Otherwise two ranks would not use
//! a connection in both directions at once. Each rank's messages to another keep their order, and nothing waits for room before
//! its turn, so there is no new cycle of waits.

use super::early::{ArrivalPlan, DeparturePlan, EarlyActs, PassagePlan};
use crate::dtype::{DType, Kernel};
use crate::error::{RunError, RunResult};
use crate::execution::local_rank::averages;
use crate::plan::ByteSpan;
use crate::plan::geometry::Geometry;
use crate::transport::{SHORT_AT_MOST, SHORT_EVERYWHERE};
use program::{Buffer, Instruction, StepRef, VerifiedProgram, digest};
use std::collections::BTreeSet;
use std::ops::Range;
use topology::Rank;

/// A step with the bytes that it moves. Peers are ranks of the session.
pub(super) enum Act {
    Send {
        to: Rank,
        tag: u32,
        src: ByteSpan,
    },
    Receive {
        from: Rank,
        tag: u32,
        dst: ByteSpan,
    },
    /// `dst = src ⊕ received`.
    Combine {
        from: Rank,
        tag: u32,
        src: ByteSpan,
        dst: ByteSpan,
    },
    Copy {
        src: ByteSpan,
        dst: ByteSpan,
    },
    /// `dst = dst ⊕ src`.
    Reduce {
        src: ByteSpan,
        dst: ByteSpan,
    },
}

impl Act {
    pub(super) fn writes(&self) -> Option<&ByteSpan> {
        match self {
            Self::Send { .. } => None,
            Self::Receive { dst, .. }
            | Self::Combine { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. } => Some(dst),
        }
    }

    /// What it reads, beside what it writes.
    fn reads(&self) -> Option<&ByteSpan> {
        match self {
            Self::Receive { .. } => None,
            Self::Send { src, .. } | Self::Combine { src, .. } | Self::Copy { src, .. } | Self::Reduce { src, .. } => {
                Some(src)
            }
        }
    }

    /// From whom it receives, and the tag of the message.
    pub(super) fn source(&self) -> Option<(Rank, u32)> {
        match self {
            Self::Receive { from, tag, .. } | Self::Combine { from, tag, .. } => Some((*from, *tag)),
            Self::Send { .. } | Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// Whether it receives a message that is long wherever it comes from.
    pub(super) fn receives_long(&self) -> bool {
        self.source().is_some() && self.writes().is_some_and(|dst| dst.bytes.len() > SHORT_AT_MOST)
    }

    /// Whether a later act has to wait for this one: one of them writes what the other reads or writes.
    pub(super) fn must_precede(&self, later: &Self) -> bool {
        let meet = |one: Option<&ByteSpan>, other: Option<&ByteSpan>| {
            one.zip(other).is_some_and(|(one, other)| meets(one, other))
        };
        meet(self.writes(), later.reads()) || meet(self.writes(), later.writes()) || meet(self.reads(), later.writes())
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

    /// The beginning of the program's digest: the same for programs that do the same.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// The program.
    pub fn program(&self) -> &VerifiedProgram {
        &self.program
    }
}

/// One rank's part of a program, for one count and data type.
pub(super) struct CallScript {
    /// Which rank of the session this is.
    pub(super) rank: Rank,
    pub(super) acts: Vec<Act>,
    /// For each act the earlier sends that must have been read before it: they read what it writes.
    pub(super) awaits: Vec<Vec<u32>>,
    /// What may come before its turn.
    pub(super) early: EarlyActs,
    kernel: Option<Kernel>,
    pub(super) dtype: DType,
    pub(super) averages: Vec<(ByteSpan, u64)>,
    /// To whom it sends, each rank once.
    pub(super) receivers: Vec<Rank>,
    /// Whether some of its messages go to another machine, or come from there; the session says so.
    pub(super) is_between_machines: bool,
    /// Bytes of input, output and scratch.
    pub(super) lengths: [usize; 3],
    /// Tells this plan, count and type from others.
    plan: u32,
    /// Messages that a rank receives from itself do not wait behind those that it sends to itself: 1, otherwise 0.
    pub(super) queue: u64,
}

impl CallScript {
    /// The part of `number`, one of `members`, which are ranks of the session.
    ///
    /// # Errors
    /// [`RunError::TooLarge`], [`RunError::Indivisible`].
    pub(super) fn new(
        sequenced: &SequencedProgram,
        number: Rank,
        members: &[Rank],
        count: u64,
        dtype: DType,
    ) -> RunResult<Self> {
        let (program, rank) = (sequenced.program.program(), members[number.index()]);
        let geometry = Geometry::new(program, number, count, dtype, 1)?;
        let span = |slice: program::Slice| ByteSpan { buffer: slice.buffer, bytes: geometry.whole(slice) };
        let connection = |id: program::ConnectionId| &program.connections[id.index()];
        let from = |id| (members[connection(id).from.index()], id.0);
        let own = &program.ranks[number.index()];
        let order = &sequenced.orders[number.index()];
        let mut acts = Vec::with_capacity(order.len());
        let mut plans = Vec::with_capacity(order.len());
        for at in order {
            let step = &own.threadblocks[at.threadblock as usize].steps[at.step as usize];
            let arrives = step.instruction.receives_from().and_then(|id| ArrivalPlan::of(program, step.transfer, id));
            let sends = step.instruction.sends_to();
            let departs = sends.and_then(|id| DeparturePlan::of(program, step.transfer, id));
            let times = step.transfer.and_then(|transfer| program.tempo.times.get(transfer as usize));
            let leaves = times.filter(|_| sends.is_some()).map(|times| times[0]);
            plans.push(PassagePlan { arrives, leaves, departs });
            acts.push(match step.instruction {
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
            early: EarlyActs::of(&acts, &plans),
            receivers: receivers(&acts),
            is_between_machines: false,
            acts,
            kernel: program.op.map(|op| dtype.kernel(op)),
            dtype,
            averages: averages(program, number, &geometry)?,
            lengths,
            plan: sequenced.digest ^ mark(count, 1 + dtype as usize),
            queue: 0,
        })
    }

    /// One message to each of some ranks, and one from each of some: `(rank, bytes)` of the input, and of the output. Which is
    /// the rank's own is copied.
    pub(super) fn exchange(rank: Rank, sends: &[(Rank, Range<usize>)], receives: &[(Rank, Range<usize>)]) -> Self {
        let span = |buffer, bytes: &Range<usize>| ByteSpan { buffer, bytes: bytes.clone() };
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
            early: EarlyActs::of(&acts, &[]),
            receivers: receivers(&acts),
            is_between_machines: false,
            acts,
            kernel: None,
            dtype: DType::U8,
            averages: Vec::new(),
            lengths: [end(sends), end(receives), 0],
            plan: mark(0, 0),
            queue: 0,
        }
    }

    /// One message to a rank, or from it, which may be this rank.
    pub(super) fn message(rank: Rank, peer: Rank, bytes: usize, is_sent: bool) -> Self {
        let span = |buffer| ByteSpan { buffer, bytes: 0..bytes };
        let (act, lengths) = match is_sent {
            true => (Act::Send { to: peer, tag: 0, src: span(Buffer::Input) }, [bytes, 0, 0]),
            false => (Act::Receive { from: peer, tag: 0, dst: span(Buffer::Output) }, [0, bytes, 0]),
        };
        Self {
            rank,
            receivers: is_sent.then_some(peer).into_iter().collect(),
            is_between_machines: false,
            acts: vec![act],
            awaits: vec![Vec::new()],
            early: EarlyActs::default(),
            kernel: None,
            dtype: DType::U8,
            averages: Vec::new(),
            lengths,
            plan: mark(0, 0),
            queue: u64::from(!is_sent),
        }
    }

    /// With whom it exchanges messages, some of them several times.
    pub(super) fn peers(&self) -> impl Iterator<Item = Rank> {
        self.acts.iter().filter_map(Act::source).map(|(from, _)| from).chain(self.receivers.iter().copied())
    }

    /// How many bytes it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let awaits: usize = self.awaits.iter().map(|of| size_of::<Vec<u32>>() + size_of_val(&**of)).sum();
        size_of::<Self>()
            + size_of_val(&*self.acts)
            + awaits
            + self.early.bytes()
            + size_of_val(&*self.averages)
            + size_of_val(&*self.receivers)
    }

    /// How it reduces.
    ///
    /// # Errors
    /// If its program reduces without an operator, which no verified program does.
    pub(super) fn kernel(&self) -> RunResult<Kernel> {
        let fault = || RunError::Program { rank: self.rank, fault: "it reduces without an operator".to_owned() };
        self.kernel.ok_or_else(fault)
    }

    /// What precedes the messages of a call.
    pub(super) fn stamp(&self, call: u32) -> u64 {
        u64::from(call) << 32 | u64::from(self.plan)
    }
}

/// To whom some acts send, each rank once.
fn receivers(acts: &[Act]) -> Vec<Rank> {
    let to = |act: &Act| if let Act::Send { to, .. } = act { Some(*to) } else { None };
    acts.iter().filter_map(to).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Tells counts and types of elements apart.
fn mark(count: u64, dtype: usize) -> u32 {
    (count as u32).wrapping_mul(0x9e37_79b1) ^ (count >> 32) as u32 ^ (dtype as u32) << 27
}

fn meets(one: &ByteSpan, other: &ByteSpan) -> bool {
    one.buffer == other.buffer && one.bytes.start < other.bytes.end && other.bytes.start < one.bytes.end
}

/// For each act, the earlier long sends that read what it writes, and that no act in between waits for.
fn awaits(acts: &[Act]) -> Vec<Vec<u32>> {
    let mut open: Vec<(u32, &ByteSpan)> = Vec::new();
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
            && src.bytes.len() > SHORT_EVERYWHERE
        {
            open.push((index, src));
        }
    }
    awaits
}
