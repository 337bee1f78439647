//! The rules that a program can break, with the evidence as fields.

use crate::{Buffer, ConnectionId, LayoutError, Slice, Slot, StepRef};
use schedule::ChunkId;
use std::fmt;
use topology::Rank;

/// A step of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepAt {
    /// The rank.
    pub rank: Rank,
    /// The threadblock.
    pub threadblock: u32,
    /// The position in the threadblock.
    pub step: u32,
}

impl fmt::Display for StepAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} threadblock {} step {}", self.rank, self.threadblock, self.step)
    }
}

/// A rule that a program breaks.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramViolation {
    /// The demand has no layout.
    #[error(transparent)]
    NoLayout(#[from] LayoutError),
    /// A number in the header does not follow from the demand.
    #[error("{what} is {given}, but the demand gives {expected}")]
    Header {
        /// Which number.
        what: &'static str,
        /// What the program says.
        given: u64,
        /// What follows from the demand.
        expected: u64,
    },
    /// The sizes of parts are not those of the demand.
    #[error("the sizes of the slots are not those of the demand")]
    Shape,
    /// The reduction is not the demand's.
    #[error("the reduction is not the one of the demand")]
    Operation,
    /// A buffer of the caller has the wrong number of slots.
    #[error("rank {rank} has {given} slots of {buffer}, but the demand gives {expected}")]
    BufferSlots {
        /// The rank.
        rank: Rank,
        /// Which buffer.
        buffer: Buffer,
        /// What the program says.
        given: usize,
        /// What follows from the demand.
        expected: u32,
    },
    /// A slot of a buffer of the caller has the wrong shape.
    #[error("slot {slot} of {buffer} of rank {rank} has the shape of part {part}, but the demand gives {expected}")]
    SlotPart {
        /// The rank.
        rank: Rank,
        /// Which buffer.
        buffer: Buffer,
        /// Which slot.
        slot: usize,
        /// What the program says.
        part: u32,
        /// What follows from the demand.
        expected: u32,
    },
    /// A step reduces in a program that has no reduction.
    #[error("{at} reduces, but the program has no reduction")]
    NoOperator {
        /// The step.
        at: StepAt,
    },
    /// A scratch slot has the shape of a part that does not exist.
    #[error("scratch slot {slot} of rank {rank} has the shape of part {part}, but there are {parts}")]
    ScratchPart {
        /// The rank.
        rank: Rank,
        /// Which slot.
        slot: usize,
        /// The part.
        part: u32,
        /// How many there are.
        parts: u32,
    },
    /// More slots or steps than the checker accepts; nothing was allocated.
    #[error("the program has {count} {what}, more than the {limit} that are supported")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A program of the first ranks of orbits does not say what the others do.
    #[error("rank {rank}: {reason}")]
    OrbitForm {
        /// A rank where this is so.
        rank: Rank,
        /// Why.
        reason: &'static str,
    },
    /// A connection to an unknown rank or to its own sender.
    #[error("connection {connection} goes from rank {from} to rank {to}")]
    Endpoints {
        /// Which one.
        connection: ConnectionId,
        /// Its sender.
        from: Rank,
        /// Its receiver.
        to: Rank,
    },
    /// Two connections with the same ends and the same channel.
    #[error("connections {connection} and {other} have the same ends and channel")]
    SameLane {
        /// The later one.
        connection: ConnectionId,
        /// The earlier one.
        other: ConnectionId,
    },
    /// A step uses a connection that does not exist or does not start or end at its rank.
    #[error("{at} uses connection {connection}, which is not its own")]
    ForeignConnection {
        /// The step.
        at: StepAt,
        /// The connection.
        connection: ConnectionId,
    },
    /// Two threadblocks send, or two receive, on one connection: the order of its messages is undefined.
    #[error("{at} and {other} are in two threadblocks that use the same end of connection {connection}")]
    SharedConnection {
        /// The later one.
        at: StepAt,
        /// The earlier one.
        other: StepAt,
        /// The connection.
        connection: ConnectionId,
    },
    /// A slice is empty or leaves its buffer.
    #[error("{at} names {slice}, but the buffer has {slots} slots")]
    OutOfBounds {
        /// The step.
        at: StepAt,
        /// The slice.
        slice: Slice,
        /// How many slots the buffer has.
        slots: u32,
    },
    /// Two slices of one step differ in the shapes of their slots.
    #[error("the slices of {at} have different shapes")]
    Shapes {
        /// The step.
        at: StepAt,
    },
    /// Two slices of one step overlap without being the same.
    #[error("the slices of {at} overlap")]
    Overlap {
        /// The step.
        at: StepAt,
    },
    /// A step writes into a buffer of the caller outside the output.
    #[error("{at} writes {slice}, which is not an output of this rank")]
    WritesInput {
        /// The step.
        at: StepAt,
        /// Where it writes.
        slice: Slice,
    },
    /// A dependency on a step that does not exist, or of the same threadblock.
    #[error("{at} waits for {}.{}, which is no step of another threadblock", .after.threadblock, .after.step)]
    BadDependency {
        /// The step.
        at: StepAt,
        /// What it waits for.
        after: StepRef,
    },
    /// A send without a receive, or the other way round.
    #[error("{at} has no partner at the other end of connection {connection}")]
    Unmatched {
        /// The step.
        at: StepAt,
        /// The connection.
        connection: ConnectionId,
    },
    /// A send and its receive differ in the shapes of their slots.
    #[error("{send} and {receive} are partners, but their slices have different shapes")]
    MessageShape {
        /// The send.
        send: StepAt,
        /// The receive.
        receive: StepAt,
    },
    /// Steps that wait for each other in a cycle, however many messages a connection can hold.
    #[error("deadlock: {} steps wait for each other, among them {}", .cycle.len(), list(.cycle))]
    Deadlock {
        /// The cycle; each waits for the one before it, the first for the last.
        cycle: Vec<StepAt>,
    },
    /// Two accesses to one slot, at least one of them a write, with no order between them.
    #[error("race on {slot} of rank {rank}: nothing orders {first} and {second}")]
    Race {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: Slot,
        /// One step.
        first: StepAt,
        /// The other.
        second: StepAt,
    },
    /// A step reads a slot that was not written before.
    #[error("{at} reads {slot} before anything is there")]
    Uninitialised {
        /// The step.
        at: StepAt,
        /// The slot.
        slot: Slot,
    },
    /// A step adds values of different chunks, or values that must not be added.
    #[error("{at} reduces unlike values into {slot}")]
    MixedReduce {
        /// The step.
        at: StepAt,
        /// Where the result goes.
        slot: Slot,
    },
    /// A step adds a contribution that is in the sum already.
    #[error("{at} adds rank {contributor}'s part of chunk {chunk} twice")]
    DoubleReduce {
        /// The step.
        at: StepAt,
        /// The chunk.
        chunk: ChunkId,
        /// The rank whose contribution is added twice.
        contributor: Rank,
    },
    /// An output slot ends with the wrong content.
    #[error("rank {rank} ends with {found} in {slot}, where {expected} belongs")]
    WrongResult {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: Slot,
        /// The right content.
        expected: String,
        /// The actual content.
        found: String,
    },
}

/// The first few steps of a cycle.
fn list(cycle: &[StepAt]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = cycle.iter().take(SHOWN).map(StepAt::to_string).collect();
    shown.join("; ")
}
