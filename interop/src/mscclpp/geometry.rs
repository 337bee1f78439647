//! The meaning of a plan's chunks for its collective, and the cells that they are cut into.
//!
//! The principal types are [`PlanGeometry`], the meaning of the plan's chunks, and [`Cells`], the memory of all ranks
//! as one row of cells at a given resolution. A cell is the smallest piece that every operation accesses as a whole.
//! Chunks are cut for groups of threadblocks (each does its share) and for the iterations of pipelines.

use super::document::{ExecutionPlan, PlanBuffer, ScratchUse};
use super::limits::SHARED_SCRATCH;
use super::resolve::{Operand, OperationEffect, Script};
use super::violation::{ChunkAt, PlanFault, PlanLocation, PlanViolation};
use schedule::Collective;
use std::collections::BTreeSet;

/// The most cells of all ranks together.
const MAX_CELLS: u64 = 1 << 20;

/// The meaning of a plan's chunks.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlanGeometry {
    pub(super) collective: Collective,
    pub(super) in_place: bool,
    pub(super) ranks: u32,
    /// Chunks of each rank's input, as the plan counts them.
    pub(super) input: u32,
    /// The same for the output.
    pub(super) output: u32,
    /// Chunks of one block: what [`program::Layout`] calls a block's parts, before cutting.
    pub(super) block: u32,
    /// The number of cells of a chunk, without cuts by pipelines.
    pub(super) factor: u32,
    /// The unit of all pipelines, in bytes; `None` without pipelines.
    pub(super) unit: Option<u32>,
    /// The number of units after which scratch is used again, if calls of all sizes share scratch.
    pub(super) ring: Option<u32>,
}

impl PlanGeometry {
    pub(super) fn of(plan: &ExecutionPlan, script: &Script) -> Result<Self, Vec<PlanViolation>> {
        let refuse = |at, fault| vec![PlanViolation { at, fault }];
        let plan_level = |fault| refuse(PlanLocation::Plan, fault);
        let Ok(collective) = plan.collective.parse::<Collective>() else {
            let reason = format!("what a `{}` must compute is not known", plan.collective);
            return Err(plan_level(PlanFault::Unsupported { reason }));
        };
        if collective.is_listed() {
            let reason = format!("what this {collective} must compute is not in the file");
            return Err(plan_level(PlanFault::Unsupported { reason }));
        }
        let ranks = plan.gpus.len() as u32;
        let Some(first) = plan.gpus.first() else {
            return Err(plan_level(PlanFault::Invalid { reason: "there are no ranks".into() }));
        };
        let (input, output) = (first.input_chunks, first.output_chunks);
        for (rank, gpu) in (0..).zip(&plan.gpus) {
            if (gpu.input_chunks, gpu.output_chunks) != (input, output) {
                let (own, other) = ((gpu.input_chunks, gpu.output_chunks), (input, output));
                let reason = format!("has {own:?} chunks of input and output, but rank 0 has {other:?}");
                return Err(refuse(PlanLocation::Gpu(rank), PlanFault::Invalid { reason }));
            }
        }
        let block = block(collective, ranks, input, output, plan.inplace).map_err(plan_level)?;
        let units: BTreeSet<u32> = pipeline_units(script);
        if units.len() > 1 {
            let reason = format!("pipelines of different `unit_size`s {units:?}");
            return Err(plan_level(PlanFault::Unsupported { reason }));
        }
        let unit = units.first().copied();
        let factor = factor(collective, ranks, block, script).map_err(plan_level)?;
        let in_place = plan.inplace;
        let ring = unit.filter(|_| plan.reuse_resources).and_then(|unit| ring(plan, unit));
        Ok(Self { collective, in_place, ranks, input, output, block, factor, unit, ring })
    }

    /// The number of chunks in a call's size, where the size is that of nccl-tests.
    pub(super) fn chunks_in_size(&self) -> u32 {
        self.block * self.collective.blocks(self.ranks as usize) as u32
    }

    /// C of the demand: chunks per rank (per pair for alltoall).
    pub(super) fn chunks_per_rank(&self) -> u32 {
        self.block * self.factor / parts_of_block(self.collective, self.ranks)
    }
}

/// The number of equal parts of a block that ranks have each for themselves: an allreduce is one block, and each rank
/// has a part of it.
fn parts_of_block(collective: Collective, ranks: u32) -> u32 {
    (collective.parts(ranks as usize) / collective.blocks(ranks as usize)) as u32
}

/// Chunks of a block, or the reason why the declared counts do not match the collective.
fn block(collective: Collective, ranks: u32, input: u32, output: u32, in_place: bool) -> Result<u32, PlanFault> {
    let [ratio_in, ratio_out] = collective.buffer_blocks(ranks.into()).map(|blocks| blocks as u32);
    let fits = |chunks: u32, ratio: u32| chunks > 0 && chunks.is_multiple_of(ratio);
    let (from_input, from_output) = (input / ratio_in.max(1), output / ratio_out.max(1));
    let whole = fits(input, ratio_in) && fits(output, ratio_out) && from_input == from_output;
    // In place one of the two may be absent, because it is part of the other.
    if whole || (in_place && output == 0 && fits(input, ratio_in)) {
        return Ok(from_input);
    }
    if in_place && input == 0 && fits(output, ratio_out) {
        return Ok(from_output);
    }
    let reason = format!(
        "an {collective} over {ranks} ranks has {ratio_in} and {ratio_out} blocks of input and output, \
         which {input} and {output} chunks are not"
    );
    Err(PlanFault::Invalid { reason })
}

/// All loops' units.
fn pipeline_units(script: &Script) -> BTreeSet<u32> {
    let actions = script.ranks.iter().flatten().flatten();
    let units = actions.filter_map(|(_, action)| match action {
        OperationEffect::Loop { unit, .. } => Some(*unit),
        _ => None,
    });
    units.collect()
}

/// The number of cells per chunk for which every share, and every rank's part of an allreduce, is a whole number of
/// cells.
fn factor(collective: Collective, ranks: u32, block: u32, script: &Script) -> Result<u32, PlanFault> {
    const MAX_FACTOR: u64 = 1 << 10;
    let mut factor = 1u64;
    for (_, action) in script.ranks.iter().flatten().flatten() {
        if let OperationEffect::Transfer { share: Some(share), .. } = action {
            factor = lcm(factor, share.tbg_size.into());
            if factor > MAX_FACTOR {
                let reason = format!("threadblock groups that cut a chunk into more than {MAX_FACTOR} pieces");
                return Err(PlanFault::Unsupported { reason });
            }
        }
    }
    factor = lcm(factor * u64::from(block), parts_of_block(collective, ranks).into()) / u64::from(block);
    u32::try_from(factor)
        .ok()
        .filter(|&factor| u64::from(factor) <= MAX_FACTOR * u64::from(ranks))
        .ok_or_else(|| PlanFault::Unsupported { reason: format!("chunks cut into {factor} pieces") })
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// The number of units that fill a chunk of the shared scratch buffer.
fn ring(plan: &ExecutionPlan, unit: u32) -> Option<u32> {
    let chunks = plan.gpus.iter().map(|gpu| u64::from(gpu.scratch_chunks)).max().filter(|&chunks| chunks > 0)?;
    let bytes = if plan.use_double_scratch_buffer { SHARED_SCRATCH / 2 } else { SHARED_SCRATCH };
    let alignment = u64::from(plan.buffer_alignment.max(1));
    let chunk = bytes.div_ceil(chunks).next_multiple_of(alignment);
    u32::try_from(chunk / u64::from(unit)).ok().filter(|&units| units > 0)
}

/// Consecutive cells, or every second one where they hold packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CellSpan {
    pub(super) first: u32,
    /// The number of pieces.
    pub(super) count: u32,
    /// Whether the pieces are packets, which take two cells each.
    pub(super) packet: bool,
    /// Whether the reader waits for the packets' flags.
    pub(super) awaited: bool,
}

impl CellSpan {
    /// The cells of its i-th piece.
    pub(super) fn cells(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count * if self.packet { 2 } else { 1 }
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        let (own, other) = (self.cells(), other.cells());
        own.start < other.end && other.start < own.end
    }
}

/// All ranks' memory as one row of cells.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    /// Iterations of a pipeline per chunk.
    pub(super) iterations: u32,
    factor: u32,
    /// Cells of a chunk of the caller's buffers, and of scratch.
    per_chunk: u32,
    per_scratch_chunk: u32,
    /// Where each rank's buffers start.
    starts: Vec<[u32; 3]>,
    /// Where each rank's memory ends.
    ends: Vec<u32>,
    scratch_room: Vec<u32>,
    pub(super) total: u32,
}

impl Cells {
    /// The memory when a pipeline goes over a chunk in `iterations` iterations.
    pub(super) fn new(plan: &ExecutionPlan, geometry: &PlanGeometry, iterations: u32) -> Result<Self, PlanFault> {
        let per_chunk = u64::from(geometry.factor) * u64::from(iterations);
        let kept = geometry.ring.map_or(iterations, |ring| ring.min(iterations));
        let per_scratch_chunk = u64::from(geometry.factor) * u64::from(kept);
        let doubled = if plan.protocol == ScratchUse::Ll { 2 } else { 1 };
        let (input, output) = (u64::from(geometry.input) * per_chunk, u64::from(geometry.output) * per_chunk);
        let mut starts = Vec::new();
        let mut ends = Vec::new();
        let mut scratch_room = Vec::new();
        let mut next = 0u64;
        for (rank, gpu) in (0u64..).zip(&plan.gpus) {
            let block = u64::from(geometry.block) * per_chunk;
            let scratch = u64::from(gpu.scratch_chunks) * per_scratch_chunk * doubled;
            let total = input + output + scratch;
            if next + total > MAX_CELLS {
                let reason = format!("more than {MAX_CELLS} pieces of chunks over all ranks");
                return Err(PlanFault::Unsupported { reason });
            }
            let start = next;
            let separate = [start, start + input, start + input + output];
            let [i, o, s] = separate;
            let in_place = match geometry.collective {
                Collective::AllGather | Collective::Gather => [o + rank * block, o, s],
                Collective::ReduceScatter | Collective::Scatter => [i, i + rank * block, s],
                Collective::AllReduce | Collective::AllToAll | Collective::AllToAllV | Collective::Broadcast => {
                    [i, i, s]
                }
                Collective::Reduce | Collective::SendRecv | Collective::Custom => [i, i, s],
            };
            starts.push(if geometry.in_place { in_place } else { separate });
            next += total;
            ends.push(next as u32);
            scratch_room.push(scratch as u32);
        }
        let starts = starts.into_iter().map(|starts| starts.map(|start| start as u32)).collect();
        let (per_chunk, per_scratch_chunk) = (per_chunk as u32, per_scratch_chunk as u32);
        let factor = geometry.factor;
        Ok(Self { iterations, factor, per_chunk, per_scratch_chunk, starts, ends, scratch_room, total: next as u32 })
    }

    /// The cells of an operand outside pipelines: all of them, or the share of one threadblock.
    pub(super) fn whole(&self, operand: Operand, share: Option<super::document::Share>) -> CellSpan {
        let per_chunk = self.per(operand.space);
        let mut first = operand.index * per_chunk;
        let mut count = operand.size * per_chunk;
        if let Some(share) = share {
            let start = count / share.tbg_size * share.tb_id;
            let end = count / share.tbg_size * (share.tb_id + 1);
            (first, count) = (first + start, end - start);
        }
        self.span(operand, first, count)
    }

    /// The cells of an operand that an iteration of a pipeline accesses.
    pub(super) fn slice(&self, operand: Operand, iteration: u32) -> CellSpan {
        let per_chunk = self.per(operand.space);
        let kept = per_chunk / self.factor;
        let iteration = if operand.space == PlanBuffer::Scratch { iteration % kept.max(1) } else { iteration };
        self.span(operand, operand.index * per_chunk + iteration * self.factor, self.factor)
    }

    fn span(&self, operand: Operand, first: u32, count: u32) -> CellSpan {
        let start = self.starts[operand.rank as usize][operand.space as usize];
        let first = start + if operand.packet { 2 * first } else { first };
        CellSpan { first, count, packet: operand.packet, awaited: operand.awaited }
    }

    fn per(&self, space: PlanBuffer) -> u32 {
        if space == PlanBuffer::Scratch { self.per_scratch_chunk } else { self.per_chunk }
    }

    /// The rank that owns a cell.
    pub(super) fn rank_of(&self, cell: u32) -> u32 {
        self.ends.partition_point(|&end| end <= cell) as u32
    }

    /// Whether a cell is scratch.
    pub(super) fn is_scratch(&self, cell: u32) -> bool {
        cell >= self.starts[self.rank_of(cell) as usize][PlanBuffer::Scratch as usize]
    }

    /// The name of a cell for people.
    pub(super) fn name(&self, cell: u32, packet: bool) -> ChunkAt {
        let rank = self.rank_of(cell);
        let [input, output, scratch] = self.starts[rank as usize];
        let later = |a: u32, b: u32| if a > b { (PlanBuffer::Input, a) } else { (PlanBuffer::Output, b) };
        let (buffer, start) = match () {
            () if cell >= scratch => (PlanBuffer::Scratch, scratch),
            () if cell >= input.max(output) => later(input, output),
            () if input < output => (PlanBuffer::Input, input),
            () => (PlanBuffer::Output, output),
        };
        let per_chunk = self.per(buffer) * if packet { 2 } else { 1 };
        ChunkAt { rank, buffer, chunk: (cell - start) / per_chunk.max(1) }
    }

    /// Where a rank's buffer starts.
    pub(super) fn start(&self, rank: u32, space: PlanBuffer) -> u32 {
        self.starts[rank as usize][space as usize]
    }

    /// Cells of a rank's scratch.
    pub(super) fn scratch_room(&self, rank: u32) -> u32 {
        self.scratch_room[rank as usize]
    }
}
