//! The operations of one rank.
//!
//! The principal function is [`emit`]. The threads of a threadblock are synchronized (`nop`) only where necessary:
//! before a signal about data, after a wait and before data, and between operations on the same chunks. If a
//! threadblock reaches a limit of the executor, it ends by releasing a semaphore; its continuation begins by acquiring
//! it.

use super::super::document::{
    ChannelRefs, ChannelType, ChunkRef, OpName, Operation, PlanBuffer, PlanThreadblock, Reduction, RemoteBuffer,
    RemoteBufferRefs,
};
use super::super::limits::{MAX_CHANNELS, MAX_CHANNELS_PER_OPERATION, MAX_OPERATIONS, MAX_SEMAPHORES};
use super::sync::{Sync, slots};
use super::{Wiring, remote_buffer};
use program::{Buffer, Instruction, Program, Slice, StepRef};
use schedule::ReduceOp;
use std::collections::BTreeSet;
use topology::Rank;

/// The most operations that one step becomes, without semaphores.
const STEP_OPERATIONS: usize = 10;
/// Operations at the end of a threadblock that continues in another.
const LAST_OPERATIONS: usize = 2;

/// The part of one rank.
pub(super) struct Emitted {
    pub(super) threadblocks: Vec<PlanThreadblock>,
    pub(super) remote_buffers: Vec<RemoteBuffer>,
    pub(super) semaphores: u32,
}

pub(super) fn emit(program: &Program, wiring: &Wiring, sync: &Sync, rank: Rank) -> Emitted {
    let emitted =
        Emitted { threadblocks: Vec::new(), remote_buffers: Vec::new(), semaphores: sync.count[rank.index()] };
    let mut emitter = PlanEmitter {
        program,
        wiring,
        sync,
        rank,
        emitted,
        part: ThreadblockDraft::default(),
        sent: Vec::new(),
        taken: Vec::new(),
    };
    emitter.sent = vec![0; program.connections.len()];
    emitter.taken = vec![0; program.connections.len()];
    for threadblock in 0..program.ranks[rank.index()].threadblocks.len() as u32 {
        emitter.threadblock(threadblock);
    }
    emitter.emitted
}

/// A threadblock under construction.
#[derive(Default)]
struct ThreadblockDraft {
    ops: Vec<Operation>,
    /// The rank's channels of each type that it uses.
    channels: [Vec<u32>; 2],
    /// The rank's remote buffers that it uses through each type.
    buffers: [Vec<u32>; 2],
    /// Chunks that operations accessed since the last synchronization, and whether they wrote.
    touched: Vec<(Slice, bool)>,
    /// Whether single threads have received signals since.
    learned: bool,
}

struct PlanEmitter<'p> {
    program: &'p Program,
    wiring: &'p Wiring,
    sync: &'p Sync,
    rank: Rank,
    emitted: Emitted,
    part: ThreadblockDraft,
    /// Messages of each connection sent and received so far.
    sent: Vec<u32>,
    taken: Vec<u32>,
}

/// The position of a channel type in the two lists.
fn list(kind: ChannelType) -> usize {
    usize::from(kind == ChannelType::Port)
}

impl PlanEmitter<'_> {
    fn threadblock(&mut self, number: u32) {
        let program = self.program;
        let steps = &program.ranks[self.rank.index()].threadblocks[number as usize].steps;
        if steps.is_empty() {
            return;
        }
        self.announce(steps.iter().filter_map(|step| step.instruction.receives_from()).map(|from| from.0).collect());
        for (step, content) in (0..).zip(steps) {
            let here = StepRef { threadblock: number, step };
            let none = (Vec::new(), Vec::new());
            let (acquired, released) = self.sync.semaphores[self.rank.index()].get(&here).unwrap_or(&none);
            self.make_room(acquired.len() + released.len());
            for ids in acquired.chunks(MAX_SEMAPHORES) {
                self.semaphores(OpName::SemAcquire, ids);
            }
            self.step(content.instruction);
            for ids in released.chunks(MAX_SEMAPHORES) {
                self.meet();
                self.semaphores(OpName::SemRelease, ids);
            }
        }
        self.close();
    }

    /// Tells all senders that need it that this rank has begun.
    fn announce(&mut self, connections: BTreeSet<u32>) {
        for kind in [ChannelType::Memory, ChannelType::Port] {
            let channel = |&connection: &u32| {
                let (of, _, own) = self.wiring.of_connection[connection as usize];
                (of == kind && self.sync.announced[connection as usize]).then_some(own)
            };
            let channels: Vec<u32> = connections.iter().filter_map(channel).collect();
            for channels in channels.chunks(MAX_CHANNELS_PER_OPERATION) {
                if self.part.channels[list(kind)].len() + channels.len() > MAX_CHANNELS {
                    self.go_on();
                }
                self.signal(OpName::Signal, kind, channels);
            }
        }
    }

    fn step(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Send { to, src } => self.send(to.0, src),
            Instruction::Receive { from, .. } => self.receive(from.0),
            Instruction::ReceiveReduce { from, src, dst } => {
                let number = self.taken[from.index()];
                self.receive(from.0);
                let staged = self.sync.targets[from.index()][number as usize];
                self.local(OpName::Reduce, &[src, staged], dst);
            }
            Instruction::Copy { src, dst } => self.local(OpName::Copy, &[src], dst),
            Instruction::Reduce { src, dst } => self.local(OpName::Reduce, &[dst, src], dst),
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => {
                unreachable!("the program was unfused before")
            }
        }
    }

    fn send(&mut self, connection: u32, src: Slice) {
        let number = self.sent[connection as usize];
        self.sent[connection as usize] += 1;
        let (kind, own, _) = self.wiring.of_connection[connection as usize];
        if number == 0 && self.sync.announced[connection as usize] {
            self.wait(kind, own);
        }
        if self.sync.ready[connection as usize].contains(&number) {
            self.wait(kind, own);
        }
        let target = self.sync.targets[connection as usize][number as usize];
        let to = self.program.connections[connection as usize].to.0;
        let buffer = self.remote(to, space(target.buffer), kind);
        let remote = ChunkRef { buffer_id: Some(buffer), ..reference(target) };
        let mut op =
            Operation::new(if kind == ChannelType::Port { OpName::PutWithSignalAndFlush } else { OpName::Put });
        op.src_buff = Some(vec![ChunkRef { space: Some(space(src.buffer)), ..reference(src) }]);
        op.dst_buff = Some(vec![remote]);
        op.channel_type = Some(kind);
        if kind == ChannelType::Port {
            // One thread starts the port, so all others must be done with their parts.
            self.meet();
            op.channel_ids = Some(vec![self.channel(kind, own)]);
            self.part.ops.push(op);
            self.part.learned = true;
        } else {
            self.touch(&[(src, false)]);
            self.part.ops.push(op);
            self.meet();
            self.signal(OpName::Signal, kind, &[own]);
        }
    }

    fn receive(&mut self, connection: u32) {
        let number = self.taken[connection as usize];
        self.taken[connection as usize] += 1;
        let (kind, _, own) = self.wiring.of_connection[connection as usize];
        if self.sync.ready[connection as usize].contains(&number) {
            self.meet();
            self.signal(OpName::Signal, kind, &[own]);
        }
        self.wait(kind, own);
    }

    /// A data operation within this rank.
    fn local(&mut self, name: OpName, sources: &[Slice], dst: Slice) {
        let touched: Vec<(Slice, bool)> = sources.iter().map(|&src| (src, false)).chain([(dst, true)]).collect();
        self.touch(&touched);
        let chunk = |slice: &Slice| ChunkRef { space: Some(space(slice.buffer)), ..reference(*slice) };
        let mut op = Operation::new(name);
        op.src_buff = Some(sources.iter().map(chunk).collect());
        op.dst_buff = Some(vec![chunk(&dst)]);
        if name == OpName::Reduce {
            op.reduce_op = self.program.op.map(|op| match op {
                ReduceOp::Min => Reduction::Min,
                ReduceOp::Max => Reduction::Max,
                // Products and averages are refused before.
                ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => Reduction::Sum,
            });
        }
        self.part.ops.push(op);
    }

    /// Synchronizes the threads if the next operation accesses the same chunks, or depends on signals that single
    /// threads received.
    fn touch(&mut self, slices: &[(Slice, bool)]) {
        let conflict = |&(a, writes): &(Slice, bool)| {
            let same = |&&(b, wrote): &&(Slice, bool)| {
                (writes || wrote) && slots(a).any(|slot| slots(b).any(|other| other == slot))
            };
            self.part.touched.iter().find(same).is_some()
        };
        if self.part.learned || slices.iter().any(conflict) {
            self.meet();
        }
        self.part.touched.extend_from_slice(slices);
    }

    /// Synchronizes the threads, if that is necessary.
    fn meet(&mut self) {
        if self.part.learned || !self.part.touched.is_empty() {
            self.part.ops.push(Operation::new(OpName::Nop));
            self.part.learned = false;
            self.part.touched.clear();
        }
    }

    fn wait(&mut self, kind: ChannelType, channel: u32) {
        self.signal(OpName::Wait, kind, &[channel]);
        self.part.learned = true;
    }

    /// A signal or a wait.
    fn signal(&mut self, name: OpName, kind: ChannelType, channels: &[u32]) {
        let mut op = Operation::new(name);
        op.channel_ids = Some(channels.iter().map(|&channel| self.channel(kind, channel)).collect());
        op.channel_type = Some(kind);
        self.part.ops.push(op);
    }

    fn semaphores(&mut self, name: OpName, ids: &[u32]) {
        let mut op = Operation::new(name);
        op.semaphore_ids = Some(ids.to_vec());
        self.part.ops.push(op);
        self.part.learned |= name == OpName::SemAcquire;
    }

    /// The position of a rank's channel in the threadblock's list.
    fn channel(&mut self, kind: ChannelType, channel: u32) -> u32 {
        position(&mut self.part.channels[list(kind)], channel)
    }

    /// The position of a remote buffer in the threadblock's list.
    fn remote(&mut self, rank: u32, space: PlanBuffer, kind: ChannelType) -> u32 {
        let buffers = &mut self.emitted.remote_buffers;
        let known = buffers.iter().position(|buffer| (buffer.rank, buffer.space) == (rank, space));
        let id = known.unwrap_or_else(|| {
            buffers.push(remote_buffer(rank, space, kind));
            buffers.len() - 1
        });
        if !buffers[id].access_channel_types.contains(&kind) {
            buffers[id].access_channel_types.push(kind);
        }
        position(&mut self.part.buffers[list(kind)], id as u32)
    }

    /// Continues in another threadblock unless one more step certainly fits.
    fn make_room(&mut self, semaphores: usize) {
        let semaphores = 2 * semaphores.div_ceil(MAX_SEMAPHORES) + 2;
        let operations = self.part.ops.len() + STEP_OPERATIONS + semaphores + LAST_OPERATIONS;
        let full = |list: &Vec<u32>| list.len() >= MAX_CHANNELS;
        if operations > MAX_OPERATIONS || self.part.channels.iter().chain(&self.part.buffers).any(full) {
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let semaphore = self.emitted.semaphores;
        self.emitted.semaphores += 1;
        // Also after signals and releases only, so that the continuation comes after them.
        self.part.learned = true;
        self.meet();
        self.semaphores(OpName::SemRelease, &[semaphore]);
        self.close();
        self.semaphores(OpName::SemAcquire, &[semaphore]);
        // Threads that acquire other semaphores next must also come after it.
        self.meet();
    }

    fn close(&mut self) {
        let part = std::mem::take(&mut self.part);
        let kinds = [ChannelType::Memory, ChannelType::Port];
        let channels = kinds.into_iter().zip(part.channels).filter(|(_, ids)| !ids.is_empty());
        let buffers = kinds.into_iter().zip(part.buffers).filter(|(_, ids)| !ids.is_empty());
        self.emitted.threadblocks.push(PlanThreadblock {
            id: self.emitted.threadblocks.len() as u32,
            ops: part.ops,
            channels: channels
                .map(|(channel_type, channel_ids)| ChannelRefs { channel_type, channel_ids, buff: None })
                .collect(),
            remote_buffer_refs: buffers
                .map(|(access_channel_type, remote_buffer_ids)| RemoteBufferRefs {
                    access_channel_type,
                    remote_buffer_ids,
                })
                .collect(),
        });
    }
}

/// The position of an id in a list; the id is added if it is not there.
fn position(ids: &mut Vec<u32>, id: u32) -> u32 {
    let known = ids.iter().position(|&other| other == id);
    known.unwrap_or_else(|| {
        ids.push(id);
        ids.len() - 1
    }) as u32
}

/// The chunks of a slice, without the buffer's owner.
fn reference(slice: Slice) -> ChunkRef {
    let (index, size) = (slice.index, slice.count);
    ChunkRef { rank: None, space: None, buffer_id: None, switch_channel_id: None, index, size }
}

fn space(buffer: Buffer) -> PlanBuffer {
    match buffer {
        Buffer::Input => PlanBuffer::Input,
        Buffer::Output => PlanBuffer::Output,
        Buffer::Scratch => PlanBuffer::Scratch,
    }
}
