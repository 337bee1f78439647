//! Which chunks an operation of a plan accesses, for the [`adversary`](super::adversary).

use super::super::*;

/// One chunk somewhere.
pub(super) struct Spot {
    pub(super) rank: usize,
    pub(super) space: PlanBuffer,
    pub(super) chunk: u32,
    pub(super) packet: bool,
}

/// The places of an operation, chunk by chunk: those that are read and added, and those that are written.
pub(super) fn transfers(
    plan: &ExecutionPlan,
    rank: usize,
    block: usize,
    op: &Operation,
) -> Vec<(Vec<Spot>, Vec<Spot>)> {
    let (sources, targets) = (op.src_buff.as_deref().unwrap(), op.dst_buff.as_deref().unwrap());
    let packets = |name: &str| op.name.to_string().contains(name);
    let spots = |chunk: &ChunkRef, offset: u32, packet: bool| -> Vec<Spot> {
        let spot = |rank: usize, space: PlanBuffer| Spot { rank, space, chunk: chunk.index + offset, packet };
        if let Some(space) = chunk.space {
            return vec![spot(rank, space)];
        }
        let gpu = &plan.gpus[rank];
        if let Some(id) = chunk.buffer_id {
            let ids = gpu.threadblocks[block].remote_buffer_refs.iter().flat_map(|refs| &refs.remote_buffer_ids);
            let id = *ids.collect::<Vec<_>>()[id as usize];
            let buffer = &gpu.remote_buffers[id as usize];
            return vec![spot(buffer.rank as usize, buffer.space)];
        }
        (0..plan.gpus.len()).map(|rank| spot(rank, PlanBuffer::Output)).collect()
    };
    let pairs = matches!(op.name, OpName::Put | OpName::PutPackets | OpName::Get | OpName::Copy);
    let mut transfers = Vec::new();
    for offset in 0..sources[0].size {
        if pairs {
            transfers.extend(
                sources
                    .iter()
                    .zip(targets)
                    .map(|(source, target)| (spots(source, offset, false), spots(target, offset, packets("ppkt")))),
            );
            continue;
        }
        let source = |(place, chunk): (usize, &ChunkRef)| {
            let packet = packets("pkt") && (place > 0 || op.name == OpName::UnpackPackets);
            spots(chunk, offset, packet)
        };
        let target = |(place, chunk): (usize, &ChunkRef)| spots(chunk, offset, packets("pkt") && place > 0);
        let sources = sources.iter().enumerate().flat_map(source).collect();
        transfers.push((sources, targets.iter().enumerate().flat_map(target).collect()));
    }
    transfers
}

/// Whether two operations access the same chunks with the same threads.
pub(super) fn alike(a: &Operation, b: &Operation) -> bool {
    let all = |op: &Operation| -> Vec<(Option<PlanBuffer>, u32, u32)> {
        let chunks = op.src_buff.iter().chain(&op.dst_buff).flatten();
        chunks.map(|chunk| (chunk.space, chunk.index, chunk.size)).collect()
    };
    let packets = |op: &Operation| op.name.to_string().contains("pkt");
    let (of_a, of_b) = (all(a), all(b));
    let overlap = |x: &(Option<PlanBuffer>, u32, u32), y: &(Option<PlanBuffer>, u32, u32)| {
        x.0 == y.0 && x.1 < y.1 + y.2 && y.1 < x.1 + x.2
    };
    let touching: Vec<_> =
        of_a.iter().flat_map(|x| of_b.iter().map(move |y| (x, y))).filter(|(x, y)| overlap(x, y)).collect();
    packets(a) == packets(b) && !touching.is_empty() && touching.iter().all(|(x, y)| x == y)
}
