//! An MSCCL file as it is written: elements, attributes, and where each stands.
//!
//! The principal type is [`Algorithm`]. Nothing is judged here: a value that has the right type is kept, even if it
//! makes no sense; [`super::limits`] and [`super::import`] find such values.

use std::fmt;

/// A place in a file: line and column, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TextPosition {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

schedule::words! {
    /// How bytes cross a connection.
    Protocol {
        /// Bulk slots with head and tail counters.
        Simple => "Simple",
        /// Four bytes of data with four of flag.
        Ll => "LL",
        /// 120 bytes of data with eight of flag.
        Ll128 => "LL128",
    }
}

schedule::words! {
    /// The collective that a file claims to compute.
    ClaimedCollective {
        /// Every rank ends with the sum.
        AllReduce => "allreduce",
        /// Every rank ends with the blocks of all ranks.
        AllGather => "allgather",
        /// Every rank ends with its block of the sum, as microsoft/msccl spells it.
        ReduceScatterMsccl => "reduce_scatter",
        /// The same, as the executor spells it.
        ReduceScatterExecutor => "reducescatter",
        /// Every rank sends a block to every rank.
        AllToAll => "alltoall",
        /// The root's buffer reaches all ranks.
        Broadcast => "broadcast",
        /// The root ends with the sum.
        Reduce => "reduce",
        /// The root ends with the blocks of all ranks (executor).
        Gather => "gather",
        /// Every rank ends with its block of the root's buffer (executor).
        Scatter => "scatter",
        /// Blocks whose sizes come with the call (executor).
        AllToAllV => "alltoallv",
        /// Half of a pair (executor).
        Send => "send",
        /// The other half (executor).
        Recv => "recv",
        /// Any other result, which only the steps define (microsoft/msccl).
        Custom => "custom",
    }
}

schedule::words! {
    /// One of a rank's buffers.
    Space {
        /// The data that the caller sends.
        Input => "i",
        /// The data that the caller receives.
        Output => "o",
        /// Private to the algorithm.
        Scratch => "s",
    }
}

schedule::words! {
    /// The type of a step.
    StepType {
        /// Sends the source.
        Send => "s",
        /// Receives into the destination.
        Receive => "r",
        /// Receives into the destination and sends the received data on.
        ReceiveCopySend => "rcs",
        /// Receives, adds the source and sends the sum without storing it.
        ReceiveReduceSend => "rrs",
        /// Receives, adds the source and stores the sum in the destination.
        ReceiveReduceCopy => "rrc",
        /// The same, and sends the sum.
        ReceiveReduceCopySend => "rrcs",
        /// Copies the source to the destination.
        Copy => "cpy",
        /// Adds the source to the destination.
        Reduce => "re",
        /// Does nothing; carries a dependency of the next step that is not a `nop`.
        Nop => "nop",
    }
}

impl StepType {
    /// Whether it sends to the threadblock's peer.
    pub fn sends(self) -> bool {
        matches!(self, Self::Send | Self::ReceiveCopySend | Self::ReceiveReduceSend | Self::ReceiveReduceCopySend)
    }

    /// Whether it receives from the threadblock's peer.
    pub fn receives(self) -> bool {
        matches!(
            self,
            Self::Receive
                | Self::ReceiveCopySend
                | Self::ReceiveReduceSend
                | Self::ReceiveReduceCopy
                | Self::ReceiveReduceCopySend
        )
    }

    /// Whether its source is a slice of this rank that it reads.
    pub fn reads_source(self) -> bool {
        !matches!(self, Self::Receive | Self::ReceiveCopySend | Self::Nop)
    }

    /// Whether its destination is a slice of this rank that it writes.
    pub fn writes_destination(self) -> bool {
        !matches!(self, Self::Send | Self::ReceiveReduceSend | Self::Nop)
    }
}

/// `<algo>`: the whole file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Algorithm {
    /// Where it starts.
    pub at: TextPosition,
    /// `name`
    pub name: String,
    /// `proto`
    pub protocol: Protocol,
    /// `nchannels`
    pub channels: u32,
    /// `nchunksperloop`: into how many chunks the larger of the caller's buffers is cut.
    pub chunks: u32,
    /// `ngpus`
    pub ranks: u32,
    /// `coll`; absent in the oldest files, which no runtime loads.
    pub operation: Option<ClaimedCollective>,
    /// `inplace`: whether the file serves in-place calls.
    pub in_place: Option<bool>,
    /// `outofplace`: whether the file serves out-of-place calls (executor; elsewhere the opposite of `inplace`).
    pub out_of_place: Option<bool>,
    /// `minBytes`: the least number of bytes it serves.
    pub min_bytes: Option<u64>,
    /// `maxBytes`: the limit above; for the executor, 0 means no limit.
    pub max_bytes: Option<u64>,
    /// `nthreads`
    pub threads: Option<u32>,
    /// `redop`: some tools write it, no runtime reads it.
    pub reduction: Option<String>,
    /// `<gpu>` elements, in the order of the file.
    pub gpus: Vec<GpuElement>,
}

/// `<gpu>`: the part of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuElement {
    /// Where it starts.
    pub at: TextPosition,
    /// `id`: the rank.
    pub id: u32,
    /// `i_chunks`
    pub input_chunks: u32,
    /// `o_chunks`
    pub output_chunks: u32,
    /// `s_chunks`
    pub scratch_chunks: u32,
    /// `<tb>` elements, in the order of the file.
    pub blocks: Vec<ThreadblockElement>,
}

/// `<tb>`: steps that run one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadblockElement {
    /// Where it starts.
    pub at: TextPosition,
    /// `id`
    pub id: u32,
    /// `send`: the rank it may send to.
    pub send: Option<u32>,
    /// `recv`: the rank it may receive from.
    pub recv: Option<u32>,
    /// `chan`: the channel of both connections; absent for blocks that only work locally.
    pub channel: Option<u32>,
    /// `<step>` elements, in the order of the file.
    pub steps: Vec<StepElement>,
}

/// `<step>`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepElement {
    /// Where it starts.
    pub at: TextPosition,
    /// `s`: its number.
    pub number: u32,
    /// `type`
    pub kind: StepType,
    /// `srcbuf` and `srcoff`; for a receive, the sender's place of the data.
    pub src: BufferOffset,
    /// `dstbuf` and `dstoff`; for a send, the receiver's place of the data.
    pub dst: BufferOffset,
    /// `cnt`: how many consecutive chunks.
    pub count: u32,
    /// `depid` and `deps`: the threadblock and the step of this rank that must have finished.
    pub after: Option<(u32, u32)>,
    /// `hasdep`: whether it announces that it has finished, because other steps wait for it.
    pub announces: bool,
}

/// A buffer and an offset in chunks; no offset where the file says −1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferOffset {
    /// The buffer.
    pub space: Space,
    /// The first chunk.
    pub offset: Option<u32>,
}

impl fmt::Display for BufferOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{}[{offset}]", self.space),
            None => write!(f, "{}[-1]", self.space),
        }
    }
}
