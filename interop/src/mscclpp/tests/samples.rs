//! Small plans as readable text: one line per operation.

use super::super::*;

/// A plan of `ranks` similar ranks, given by the operations of each threadblock of each rank.
pub(super) struct Sample {
    pub(super) collective: &'static str,
    pub(super) protocol: ScratchUse,
    pub(super) inplace: bool,
    pub(super) chunks: [u32; 3],
    pub(super) semaphores: Vec<i32>,
}

/// A local buffer reference such as `i0` or `s2+2`.
fn chunk(text: &str) -> ChunkRef {
    let (space, rest) = text.split_at(1);
    let (index, size) = rest.split_once('+').unwrap_or((rest, "1"));
    let space_of = |space: &str| match space {
        "i" => PlanBuffer::Input,
        "o" => PlanBuffer::Output,
        _ => PlanBuffer::Scratch,
    };
    let (index, size) = (index.parse().unwrap(), size.parse().unwrap());
    let mut reference = ChunkRef { rank: None, space: None, buffer_id: None, switch_channel_id: None, index, size };
    match space {
        "0" | "1" | "2" | "3" => unreachable!("a remote buffer is written r0:3"),
        _ => reference.space = Some(space_of(space)),
    }
    reference
}

/// `r1:3+2` is chunks 3 and 4 of remote buffer 1, `w0:3` of switch channel 0.
fn operand(text: &str) -> ChunkRef {
    let Some((head, rest)) = text.split_once(':') else { return chunk(text) };
    let mut reference = chunk(&format!("s{rest}"));
    reference.space = None;
    let id = Some(head[1..].parse().unwrap());
    if head.starts_with('w') {
        reference.switch_channel_id = id
    } else {
        reference.buffer_id = id
    }
    reference
}

/// One operation: `put i0 > r0:1`, `signal 0 1`, `sem_release 2`, `barrier 0 2`, `re i0 s1 > o0 share 0 2`.
pub(super) fn op(text: &str) -> Operation {
    let (text, share) = text.split_once(" share ").map_or((text, None), |(text, share)| (text, Some(share)));
    let mut words = text.split_whitespace();
    let name = serde_json::from_str(&format!("\"{}\"", words.next().unwrap())).unwrap();
    let mut op = Operation::new(name);
    let rest: Vec<&str> = words.collect();
    let numbers = || rest.iter().map(|word| word.parse::<u32>().unwrap()).collect::<Vec<u32>>();
    match name {
        OpName::Nop => {}
        OpName::Signal | OpName::Wait | OpName::RelaxedSignal | OpName::RelaxedWait => {
            op.channel_ids = Some(numbers());
            op.channel_type = Some(ChannelType::Memory);
        }
        OpName::SemAcquire | OpName::SemRelease => op.semaphore_ids = Some(numbers()),
        OpName::Barrier => (op.barrier_id, op.num_threadblocks) = (Some(numbers()[0]), Some(numbers()[1])),
        _ => {
            let middle = rest.iter().position(|&word| word == ">").unwrap();
            let operands = |words: &[&str]| Some(words.iter().map(|word| operand(word)).collect::<Vec<_>>());
            op.src_buff = operands(&rest[..middle]);
            op.dst_buff = operands(&rest[middle + 1..]);
            op.channel_type = Some(ChannelType::Memory);
        }
    }
    op.tbg_info = share.map(|share| {
        let (tb_id, tbg_size) = share.split_once(' ').unwrap();
        Share { tb_id: tb_id.parse().unwrap(), tbg_size: tbg_size.parse().unwrap() }
    });
    op
}

impl Sample {
    pub(super) fn new(collective: &'static str, chunks: [u32; 3]) -> Self {
        Self { collective, protocol: ScratchUse::Simple, inplace: false, chunks, semaphores: Vec::new() }
    }

    /// A plan in which every threadblock has memory channels to all other ranks (ascending, one per threadblock and
    /// peer) and reaches their scratch (remote buffers 0, 1, …) and then their outputs.
    pub(super) fn plan(&self, ranks: u32, blocks: impl Fn(u32) -> Vec<Vec<String>>) -> ExecutionPlan {
        let gpus = (0..ranks).map(|rank| {
            let peers: Vec<u32> = (0..ranks).filter(|&peer| peer != rank).collect();
            let content = blocks(rank);
            let connected: Vec<u32> = content.iter().flat_map(|_| peers.iter().copied()).collect();
            let buffers = [PlanBuffer::Scratch, PlanBuffer::Output].into_iter().flat_map(|space| {
                peers.iter().map(move |&rank| RemoteBuffer {
                    rank,
                    space,
                    access_channel_types: vec![ChannelType::Memory],
                })
            });
            let count = peers.len() as u32;
            let threadblocks = (0..).zip(&content).map(|(id, lines)| PlanThreadblock {
                id,
                ops: lines.iter().map(|line| op(line)).collect(),
                channels: vec![ChannelRefs {
                    channel_type: ChannelType::Memory,
                    channel_ids: (id * count..(id + 1) * count).collect(),
                    buff: None,
                }],
                remote_buffer_refs: vec![RemoteBufferRefs {
                    access_channel_type: ChannelType::Memory,
                    remote_buffer_ids: (0..2 * count).collect(),
                }],
            });
            let [input_chunks, output_chunks, scratch_chunks] = self.chunks;
            let everyone = RankGroup { size: ranks, ranks: (0..ranks).collect() };
            Gpu {
                id: rank,
                input_chunks,
                output_chunks,
                scratch_chunks,
                threadblocks: threadblocks.collect(),
                channels: vec![
                    Channel {
                        channel_type: ChannelType::Memory,
                        connected_to: Some(connected),
                        buffer_type: None,
                        rank_groups: None,
                    },
                    Channel {
                        channel_type: ChannelType::Switch,
                        connected_to: None,
                        buffer_type: Some(PlanBuffer::Output),
                        rank_groups: Some(vec![everyone]),
                    },
                ],
                remote_buffers: buffers.collect(),
                semaphores: self.semaphores.iter().map(|&init_value| Semaphore { init_value }).collect(),
            }
        });
        ExecutionPlan {
            name: "sample".into(),
            collective: self.collective.into(),
            protocol: self.protocol,
            inplace: self.inplace,
            reuse_resources: false,
            gpus: gpus.collect(),
            num_threads_per_block: 1024,
            use_double_scratch_buffer: self.protocol == ScratchUse::Ll,
            buffer_alignment: 16,
            min_message_size: 0,
            max_message_size: u64::MAX,
        }
    }
}

/// Lines of a threadblock.
pub(super) fn lines(text: &[&str]) -> Vec<String> {
    text.iter().map(|&line| line.to_owned()).collect()
}

/// Two ranks exchange their blocks by `put`, each through its own threadblock.
pub(super) fn pair_allgather() -> ExecutionPlan {
    Sample::new("allgather", [1, 2, 0]).plan(2, |rank| {
        let put = format!("put i0 > r1:{rank}");
        let own = format!("copy i0 > o{rank}");
        vec![lines(&["signal 0", "wait 0", "nop", &put, &own, "nop", "signal 0", "wait 0"])]
    })
}

/// An in-place allreduce of two ranks by packets.
pub(super) fn pair_packets() -> ExecutionPlan {
    let sample = Sample { inplace: true, protocol: ScratchUse::Ll, ..Sample::new("allreduce", [2, 2, 2]) };
    sample.plan(2, |rank| {
        let (own, other) = (rank, 1 - rank);
        let give = format!("ppkt i{other} > r0:{other}");
        let add = format!("respkt i{own} s{own} > i{own} r0:{own}");
        let take = format!("upkt s{other} > i{other}");
        vec![lines(&[&give]), lines(&[&add]), lines(&[&take])]
    })
}

/// An in-place allreduce by the switch: each rank reduces and stores its own chunk.
pub(super) fn switch_allreduce() -> ExecutionPlan {
    let sample = Sample { inplace: true, ..Sample::new("allreduce", [3, 3, 0]) };
    let mut plan = sample.plan(3, |rank| {
        let reduce = format!("glres w0:{rank} > w0:{rank}");
        vec![lines(&["signal 0 1", "wait 0 1", "nop", &reduce, "nop", "signal 0 1", "wait 0 1"])]
    });
    for gpu in &mut plan.gpus {
        let refs = ChannelRefs { channel_type: ChannelType::Switch, channel_ids: vec![0], buff: None };
        gpu.threadblocks[0].channels.push(refs);
        gpu.threadblocks[0].ops[3].channel_type = Some(ChannelType::Switch);
    }
    plan
}

/// Two threadblocks per rank: one sends half of the block and waits; the other sends the rest after a signal that the
/// peer has begun. They meet at a barrier, and one hands on to the other by a semaphore.
pub(super) fn barrier_allgather() -> ExecutionPlan {
    let sample = Sample { semaphores: vec![0], ..Sample::new("allgather", [2, 4, 2]) };
    sample.plan(2, |rank| {
        let (own, other) = (2 * rank, 2 * (1 - rank));
        let first = format!("put i0 > r0:{}", 0);
        let second = format!("put i1 > r1:{}", own + 1);
        let here = format!("copy i0+2 > o{own}+2");
        let home = format!("copy s0 > o{other}");
        vec![
            lines(&[
                "signal 0",
                "wait 0",
                "nop",
                "barrier 0 2",
                &first,
                "nop",
                "signal 0",
                "wait 0",
                "nop",
                "sem_release 0",
            ]),
            lines(&["barrier 0 2", &second, &here, "nop", "signal 0", "wait 0", "sem_acquire 0", "nop", &home]),
        ]
    })
}
