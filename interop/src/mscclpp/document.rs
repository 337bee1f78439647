//! An MSCCL++ execution plan as it is written: the keys of the JSON and their types.
//!
//! The principal type is [`ExecutionPlan`], for reading and writing. Numbers are kept as they are; [`super::limits`]
//! and [`super::model`] know their meaning.
//!
//! The schema is the union of what the executor's parser reads (`src/core/executor/execution_plan.cc` of
//! microsoft/mscclpp 0.9.0), what its Python language writes, and what the shipped plans contain.

use serde::{Deserialize, Serialize};

/// A whole plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutionPlan {
    /// The name of the plan.
    pub name: String,
    /// The collective: one of our names, or another word, for which no result is defined.
    pub collective: String,
    /// Whether scratch holds packets (twice the bytes) or data.
    pub protocol: ScratchUse,
    /// Whether input and output are the same memory.
    pub inplace: bool,
    /// Whether calls of all sizes share one scratch buffer.
    #[serde(default)]
    pub reuse_resources: bool,
    /// One per rank, in order.
    pub gpus: Vec<Gpu>,
    /// Threads of every threadblock.
    #[serde(default = "default_threads")]
    pub num_threads_per_block: u32,
    /// Whether calls use two halves of scratch in turn.
    #[serde(default)]
    pub use_double_scratch_buffer: bool,
    /// Chunks are multiples of this many bytes.
    #[serde(default = "default_alignment")]
    pub buffer_alignment: u32,
    /// The smallest message it serves, in bytes.
    #[serde(default)]
    pub min_message_size: u64,
    /// The largest message it serves, in bytes.
    #[serde(default = "unlimited")]
    pub max_message_size: u64,
}

/// The default of threads per block.
pub(super) fn default_threads() -> u32 {
    1024
}

/// The default of bytes per unit of division.
pub(super) fn default_alignment() -> u32 {
    16
}

fn unlimited() -> u64 {
    u64::MAX
}

/// The part of one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The rank; it is also the position in the list.
    pub id: u32,
    /// Chunks of the input buffer.
    pub input_chunks: u32,
    /// Chunks of the output buffer.
    pub output_chunks: u32,
    /// Chunks of scratch.
    pub scratch_chunks: u32,
    /// Sequences of operations that run concurrently.
    pub threadblocks: Vec<PlanThreadblock>,
    /// Connections for signals to other ranks.
    pub channels: Vec<Channel>,
    /// Buffers of other ranks that this rank accesses.
    #[serde(default)]
    pub remote_buffers: Vec<RemoteBuffer>,
    /// Counters between this rank's threadblocks.
    #[serde(default)]
    pub semaphores: Vec<Semaphore>,
}

/// Channels of one type: `connected_to` for memory and port, the other keys for switch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// The medium of the channels.
    pub channel_type: ChannelType,
    /// One channel for each, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_to: Option<Vec<u32>>,
    /// The buffer that a switch channel spans; older plans say `buff`.
    #[serde(default, alias = "buff", skip_serializing_if = "Option::is_none")]
    pub buffer_type: Option<PlanBuffer>,
    /// One switch channel for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_groups: Option<Vec<RankGroup>>,
}

/// The ranks of a switch channel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankGroup {
    /// The number of ranks.
    pub size: u32,
    /// The ranks.
    pub ranks: Vec<u32>,
}

/// A buffer of another rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteBuffer {
    /// The rank.
    pub rank: u32,
    /// The buffer.
    #[serde(rename = "type")]
    pub space: PlanBuffer,
    /// The media through which it is accessed.
    pub access_channel_types: Vec<ChannelType>,
}

/// A counter between threadblocks of one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Semaphore {
    /// How often it can be acquired before the first release.
    pub init_value: i32,
}

/// A sequence of operations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanThreadblock {
    /// Its position in the list.
    pub id: u32,
    /// Its operations, in order.
    pub ops: Vec<Operation>,
    /// The channels of the rank that it uses.
    pub channels: Vec<ChannelRefs>,
    /// The remote buffers of the rank that it uses.
    #[serde(default)]
    pub remote_buffer_refs: Vec<RemoteBufferRefs>,
}

/// Channels of one type that a threadblock uses; operations refer to positions in this list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelRefs {
    /// The type.
    pub channel_type: ChannelType,
    /// Positions among the rank's channels of that type.
    pub channel_ids: Vec<u32>,
    /// Ignored by the executor; found in older plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buff: Option<PlanBuffer>,
}

/// Remote buffers with one kind of access that a threadblock uses; operations refer to positions in this list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteBufferRefs {
    /// The medium through which they are accessed.
    pub access_channel_type: ChannelType,
    /// Positions among the rank's remote buffers.
    pub remote_buffer_ids: Vec<u32>,
}

/// One operation; its name determines its keys.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The name of the operation.
    pub name: OpName,
    /// The chunks that it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_buff: Option<Vec<ChunkRef>>,
    /// The chunks that it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_buff: Option<Vec<ChunkRef>>,
    /// Channels, as positions in the threadblock's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_ids: Option<Vec<u32>>,
    /// The type of those channels and of the remote buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_type: Option<ChannelType>,
    /// The reduction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_op: Option<Reduction>,
    /// The share of this threadblock, if several threadblocks do one operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tbg_info: Option<Share>,
    /// The barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_id: Option<u32>,
    /// The number of threadblocks that meet at the barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_threadblocks: Option<u32>,
    /// The semaphores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore_ids: Option<Vec<u32>>,
    /// How a pipeline repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iter_context: Option<IterContext>,
    /// The operations that a pipeline repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<Vec<Operation>>,
}

impl Operation {
    /// An operation with only a name.
    pub fn new(name: OpName) -> Self {
        Self {
            name,
            src_buff: None,
            dst_buff: None,
            channel_ids: None,
            channel_type: None,
            reduce_op: None,
            tbg_info: None,
            barrier_id: None,
            num_threadblocks: None,
            semaphore_ids: None,
            iter_context: None,
            ops: None,
        }
    }

    /// The chunks that it reads; empty if the key is absent.
    pub(super) fn sources(&self) -> &[ChunkRef] {
        self.src_buff.as_deref().unwrap_or_default()
    }

    /// The chunks that it writes; empty if the key is absent.
    pub(super) fn targets(&self) -> &[ChunkRef] {
        self.dst_buff.as_deref().unwrap_or_default()
    }

    /// Its channels; empty if the key is absent.
    pub(super) fn channels(&self) -> &[u32] {
        self.channel_ids.as_deref().unwrap_or_default()
    }
}

/// Consecutive chunks of a buffer: a local one (`type`), another rank's (`buffer_id`) or a switch channel's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkRef {
    /// For a local buffer, the rank itself; the executor ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// A local buffer.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub space: Option<PlanBuffer>,
    /// A remote buffer, as position in the threadblock's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_id: Option<u32>,
    /// A switch channel, as position in the threadblock's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_channel_id: Option<u32>,
    /// The first chunk.
    pub index: u32,
    /// How many chunks.
    pub size: u32,
}

/// The share of a threadblock in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The number of the share.
    pub tb_id: u32,
    /// The number of shares.
    pub tbg_size: u32,
}

/// How a pipeline repeats: over `num_chunks` chunks, `unit_size` bytes at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IterContext {
    /// Bytes of one iteration.
    pub unit_size: u32,
    /// Chunks of all iterations.
    pub num_chunks: u32,
}

schedule::words! {
    /// The use of scratch.
    ScratchUse {
        /// Data, ordered by signals.
        Simple => "Simple",
        /// Packets that carry their own flag.
        Ll => "LL",
    }
}

schedule::words! {
    /// One of a rank's buffers.
    PlanBuffer {
        /// The data that the caller sends.
        Input => "i",
        /// The data that the caller receives.
        Output => "o",
        /// Private to the plan.
        Scratch => "s",
    }
}

schedule::words! {
    /// The media for data and signals.
    ChannelType {
        /// Loads and stores to mapped memory.
        Memory => "memory",
        /// A proxy that drives a NIC or a copy engine.
        Port => "port",
        /// Multicast and reduction in the switch.
        Switch => "switch",
        /// Nothing.
        None => "none",
    }
}

schedule::words! {
    /// The reductions.
    Reduction {
        /// a + b
        Sum => "sum",
        /// The smaller.
        Min => "min",
        /// The larger.
        Max => "max",
    }
}

schedule::words! {
    /// The names of operations.
    OpName {
        /// Synchronizes all threads of the threadblock.
        Nop => "nop",
        /// Synchronizes all threads of several threadblocks.
        Barrier => "barrier",
        /// Local copy.
        Copy => "copy",
        /// Writes to another rank.
        Put => "put",
        /// Writes to another rank, then signals.
        PutWithSignal => "pws",
        /// Writes to another rank, signals, and waits until both are done.
        PutWithSignalAndFlush => "pwsf",
        /// Reads from another rank.
        Get => "get",
        /// Tells another rank that earlier operations are done.
        Signal => "signal",
        /// Waits for a signal.
        Wait => "wait",
        /// A signal that orders no memory.
        RelaxedSignal => "rlxsignal",
        /// A wait that orders no memory.
        RelaxedWait => "rlxwait",
        /// Waits until a port has finished all its tasks.
        Flush => "flush",
        /// Local reduction.
        Reduce => "re",
        /// Local reduction whose result is also written to other ranks.
        ReduceSend => "res",
        /// Reduction with values read from other ranks.
        ReadReduce => "rre",
        /// `ReduceSend` and `ReadReduce` in one.
        ReadReduceSend => "rres",
        /// Writes packets to another rank.
        PutPackets => "ppkt",
        /// Writes received packets to other ranks.
        ReadPutPackets => "rppkt",
        /// Local data to packets.
        CopyPackets => "cpkt",
        /// Packets to local data.
        UnpackPackets => "upkt",
        /// Local reduction of packets.
        ReducePackets => "repkt",
        /// Local reduction of packets to data and packets.
        ReduceCopyPackets => "recpkt",
        /// Local reduction of packets, written to other ranks as packets.
        ReduceSendPackets => "respkt",
        /// Local reduction of packets to data and packets, written to other ranks as packets.
        ReduceCopySendPackets => "recspkt",
        /// The switch reduces all ranks' values and stores the result at all of them.
        GroupLoadReduceStore => "glres",
        /// The switch stores a value at all ranks.
        GroupStore => "gstore",
        /// The switch stores packets at all ranks.
        GroupStorePackets => "gstorepkt",
        /// Repeats operations over parts of the chunks.
        Pipeline => "pipeline",
        /// Acquires a semaphore.
        SemAcquire => "sem_acquire",
        /// Releases a semaphore.
        SemRelease => "sem_release",
    }
}
