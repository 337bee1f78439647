//! From programs to execution plans of MSCCL++.
//!
//! The principal function is [`export`]. Every message becomes a `put` by its sender directly into the receiver's
//! buffer, a signal after it, and a wait for the signal. Data to be reduced first lands in its own scratch.
//! Dependencies between threadblocks become semaphores. A receiver signals that a place is free only if the sender
//! cannot know this otherwise ([`sync`]). Each sender gets one signal that its receiver has begun. Threadblocks that
//! are too long continue in others.
//!
//! The plan is imported again before it is returned, so a plan that this crate would refuse is never written.

mod emit;
mod sync;

use super::document::{Channel, ChannelType, ExecutionPlan, Gpu, RemoteBuffer, ScratchUse, Semaphore};
use super::limits::RESIDENT_THREADBLOCKS;
use super::{PlanFile, PlanViolation};
use program::{PartShape, Program, VerifiedProgram};
use schedule::{Collective, Findings, ReduceOp};
use sync::Sync;
use topology::Rank;

/// How to export.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanExportOptions {
    /// The name of the plan.
    pub name: String,
    /// The smallest message that it serves, in bytes as the executor counts them (of the input; for allgather, of the
    /// output).
    pub min_message_size: u64,
    /// The largest message; 32-bit offsets limit it in any case.
    pub max_message_size: u64,
    /// For each rank its machine; between machines the plan uses port channels. If empty, all ranks are on one machine.
    pub machines: Vec<u32>,
}

impl Default for PlanExportOptions {
    fn default() -> Self {
        Self { name: "antiphon".into(), min_message_size: 0, max_message_size: u64::MAX, machines: Vec::new() }
    }
}

/// Why a program cannot be written as a plan.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanExportError {
    /// The format cannot express the program.
    #[error("MSCCL++ plans cannot express {what}")]
    Inexpressible {
        /// The inexpressible part.
        what: String,
    },
    /// The program needs a transport with buffers.
    #[error("the program relies on {window} buffered messages per connection; MSCCL++ buffers none")]
    Window {
        /// The number of messages to buffer.
        window: u32,
    },
    /// More threadblocks than certainly run at the same time.
    #[error(
        "rank {rank} would need {found} threadblocks, at most {limit} certainly run at once; plan with fewer chunks"
    )]
    Threadblocks {
        /// The rank.
        rank: Rank,
        /// The number of its threadblocks.
        found: usize,
        /// The most that are allowed.
        limit: usize,
    },
    /// The plan does not pass the import, which is a defect of the exporter.
    #[error("the exported plan is not right: {}", .0.iter().next().map_or(String::new(), ToString::to_string))]
    Unproven(Findings<PlanViolation>),
}

/// Writes a program as a plan.
///
/// # Errors
/// [`PlanExportError`]: there are no plans for collectives over some of the ranks, with blocks of unequal sizes, with a
/// root other than 0, or with another reduction than sum, min and max, and none for programs that need more
/// threadblocks than run at the same time.
pub fn export(verified: &VerifiedProgram, options: &PlanExportOptions) -> Result<ExecutionPlan, PlanExportError> {
    expressible(verified)?;
    let program = verified.program().clone().unfused();
    let wiring = Wiring::new(&program, &options.machines);
    let sync = Sync::new(&program);
    let (input_chunks, output_chunks) = blocks(&program);
    let mut gpus = Vec::with_capacity(program.ranks.len());
    let mut most_chunks = input_chunks.max(output_chunks);
    for rank in (0..program.ranks.len()).map(Rank::from_index) {
        let emitted = emit::emit(&program, &wiring, &sync, rank);
        let scratch_chunks = sync.scratch[rank.index()];
        most_chunks = most_chunks.max(scratch_chunks);
        if emitted.threadblocks.len() > RESIDENT_THREADBLOCKS {
            let found = emitted.threadblocks.len();
            return Err(PlanExportError::Threadblocks { rank, found, limit: RESIDENT_THREADBLOCKS });
        }
        gpus.push(Gpu {
            id: rank.0,
            input_chunks,
            output_chunks,
            scratch_chunks,
            threadblocks: emitted.threadblocks,
            channels: wiring.channels(rank),
            remote_buffers: emitted.remote_buffers,
            semaphores: vec![Semaphore { init_value: 0 }; emitted.semaphores as usize],
        });
    }
    let request = program.demand.request();
    // What an executor counts as the size of a message.
    let counted = match request.collective {
        Collective::AllGather => output_chunks,
        Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll | Collective::AllToAllV => {
            input_chunks
        }
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => input_chunks,
        Collective::SendRecv | Collective::Custom => input_chunks,
    };
    let plan = ExecutionPlan {
        name: options.name.clone(),
        collective: request.collective.to_string(),
        protocol: ScratchUse::Simple,
        inplace: program.in_place,
        reuse_resources: false,
        gpus,
        num_threads_per_block: super::document::default_threads(),
        use_double_scratch_buffer: false,
        buffer_alignment: super::document::default_alignment(),
        min_message_size: options.min_message_size,
        max_message_size: options.max_message_size.min(largest(counted, most_chunks)),
    };
    let file = PlanFile::from(plan);
    file.import(request.size_bytes).map_err(PlanExportError::Unproven)?;
    Ok(file.plan)
}

/// The text of a plan.
pub fn write(plan: &ExecutionPlan) -> String {
    let mut text = serde_json::to_string_pretty(plan).expect("plain data without maps is always representable");
    text.push('\n');
    text
}

/// The largest message for which every offset fits 32 bits.
fn largest(counted: u32, most: u32) -> u64 {
    let alignment = u64::from(super::document::default_alignment());
    let chunk = u64::from(u32::MAX) / u64::from(most.max(1)) / alignment * alignment;
    chunk * u64::from(counted)
}

fn expressible(verified: &VerifiedProgram) -> Result<(), PlanExportError> {
    let program = verified.program();
    let request = program.demand.request();
    let refuse = |what: String| Err(PlanExportError::Inexpressible { what });
    if request.collective.is_listed() || !matches!(program.shape, PartShape::Equal { .. }) {
        return refuse(format!("{} with blocks of unequal sizes", request.collective));
    }
    if request.members.len() != request.ranks {
        return refuse(format!("a collective over {} of {} ranks", request.members.len(), request.ranks));
    }
    if let Some(root) = request.root.filter(|root| root.0 != 0) {
        return refuse(format!("a root other than rank 0, such as rank {root}"));
    }
    if let Some(op @ (ReduceOp::Prod | ReduceOp::Avg)) = program.op {
        return refuse(format!("the reduction `{op}`"));
    }
    match verified.window() {
        0 => Ok(()),
        window => Err(PlanExportError::Window { window }),
    }
}

/// Chunks of every rank's input and output. Ranks without one of the two get a number for both, because the executor
/// divides by both.
fn blocks(program: &Program) -> (u32, u32) {
    let request = program.demand.request();
    let blocks = request.collective.buffer_blocks(request.ranks as u64);
    let [input, output] = blocks.map(|blocks| blocks as u32 * program.shape.parts());
    (input, output)
}

/// The channels: one pair for each connection, in the order of connections, so that both ends have the same numbering.
struct Wiring {
    /// For each connection its type and its position among the sender's and the receiver's channels of that type.
    of_connection: Vec<(ChannelType, u32, u32)>,
    /// Per rank, the peers of its memory channels and of its port channels.
    peers: Vec<[Vec<u32>; 2]>,
}

impl Wiring {
    fn new(program: &Program, machines: &[u32]) -> Self {
        let mut peers = vec![[Vec::new(), Vec::new()]; program.ranks.len()];
        let mut of_connection = Vec::with_capacity(program.connections.len());
        let machine = |rank: Rank| machines.get(rank.index()).copied().unwrap_or(0);
        for connection in &program.connections {
            let (from, to) = (connection.from, connection.to);
            let apart = machine(from) != machine(to);
            let kind = if apart { ChannelType::Port } else { ChannelType::Memory };
            let mut join = |own: Rank, other: Rank| {
                let list: &mut Vec<u32> = &mut peers[own.index()][usize::from(apart)];
                list.push(other.0);
                list.len() as u32 - 1
            };
            of_connection.push((kind, join(from, to), join(to, from)));
        }
        Self { of_connection, peers }
    }

    fn channels(&self, rank: Rank) -> Vec<Channel> {
        let kinds = [ChannelType::Memory, ChannelType::Port];
        let lists = kinds.into_iter().zip(&self.peers[rank.index()]).filter(|(_, peers)| !peers.is_empty());
        let channel = |(channel_type, peers): (ChannelType, &Vec<u32>)| Channel {
            channel_type,
            connected_to: Some(peers.clone()),
            buffer_type: None,
            rank_groups: None,
        };
        lists.map(channel).collect()
    }
}

/// A remote buffer under construction.
fn remote_buffer(rank: u32, space: super::PlanBuffer, kind: ChannelType) -> RemoteBuffer {
    RemoteBuffer { rank, space, access_channel_types: vec![kind] }
}
