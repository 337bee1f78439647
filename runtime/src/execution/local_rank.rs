//! One rank's part of a work: its steps of the program at one count, its lanes, its scratch and its stamp.
//!
//! The principal type is [`LocalRank`]. A rank has one for each work in which it takes part, and its
//! [`Executor`](crate::execution::executor::Executor) runs all of them at the same time.

use crate::error::{RunError, RunResult, Stamp};
use crate::execution::concurrent::Work;
use crate::interpreter::buffers::{Call, CallMemory};
use crate::interpreter::lanes::Lanes;
use crate::interpreter::{Interpreter, Pacing};
use crate::memory::heap::Area;
use crate::memory::segment::Segment;
use crate::numbers::CallNumber;
use crate::pacing::messages::MessageOrder;
use crate::pacing::order::ResourceOrder;
use crate::pacing::pace::{Emulation, Pacer};
use crate::pacing::sequencer::Sequencer;
use crate::plan::ByteSpan;
use crate::plan::RankPlan;
use crate::plan::geometry::Geometry;
use crate::transport::shared::arena::Arena;
use crate::transport::{LaneRequest, MemoryKind, Paced, Transports};
use program::{Buffer, Connection, Layout, Program, Slice};
use schedule::ReduceOp;
use topology::Rank;

/// The bytes before and behind a buffer that no program writes.
pub(crate) const GUARD: usize = 64;

/// Input and output of a rank in memory that other ranks can read, each with [`GUARD`] bytes on both sides.
pub(crate) struct Buffers {
    pub(crate) input: Area,
    pub(crate) output: Area,
}

/// The description of a local rank, before it has memory.
pub(crate) struct LocalRankSetup<'a> {
    /// The index of the work among those that run at the same time.
    pub(crate) work: usize,
    /// How many connections the works before this one have.
    pub(crate) first: u32,
    /// The plan's hash, in hexadecimal.
    pub(crate) digest: &'a str,
    pub(crate) arena: Arena,
    /// How many bytes a lane must accept even if its receiver takes none.
    pub(crate) backlog: usize,
    pub(crate) plan: RankPlan<'a>,
}

/// A rank that is ready to run its part of a work.
pub(crate) struct LocalRank<'a> {
    pub(crate) place: LocalRankSetup<'a>,
    /// Opened when the first run begins: only then do all ranks have their memory.
    lanes: Option<Lanes>,
    order: ResourceOrder,
    /// Present if messages between computers keep the plan's order; made with the lanes.
    message_order: Option<MessageOrder>,
    /// `None` once the caller has taken them.
    buffers: Option<Buffers>,
    scratch: Area,
}

impl<'a> RankPlan<'a> {
    /// The plan of number `number` of a work's group.
    pub(crate) fn new(work: &Work<'a>, number: Rank, tiles: u32) -> RunResult<Self> {
        let &Work { program, count, dtype, .. } = work;
        let geometry = Geometry::new(program, number, count, dtype, tiles)?;
        let (kernel, averages) = (program.op.map(|op| dtype.kernel(op)), averages(program, number, &geometry)?);
        Ok(Self { kernel, averages, ..Self::of_geometry(work, number, geometry) })
    }

    /// A plan that reduces nothing.
    pub(crate) fn of_geometry(work: &Work<'a>, number: Rank, geometry: Geometry) -> Self {
        let (rank, connections) = (work.group.ranks()[number.index()], work.connections().collect());
        let Work { program, dtype, .. } = *work;
        Self { rank, number, program, connections, geometry, dtype, kernel: None, averages: Vec::new() }
    }
}

impl<'a> LocalRankSetup<'a> {
    /// The lengths of the areas that [`LocalRank::new`] takes.
    pub(crate) fn areas(&self) -> [usize; 3] {
        let bytes = |buffer| self.plan.geometry.buffer_bytes(buffer);
        [bytes(Buffer::Input) + 2 * GUARD, bytes(Buffer::Output) + 2 * GUARD, bytes(Buffer::Scratch)]
    }
}

impl<'a> LocalRank<'a> {
    pub(crate) fn new(
        place: LocalRankSetup<'a>,
        [input, output, mut scratch]: [Area; 3],
        emulation: Option<&Emulation>,
    ) -> Self {
        // Touches the scratch now. Otherwise the kernel would provide its pages during the measured part.
        scratch.fill(0xcc);
        let plan = &place.plan;
        let order = emulation.map_or_else(ResourceOrder::default, |emulation| {
            ResourceOrder::of(plan.program, emulation.topology(), plan.rank, plan.geometry.tiles())
        });
        Self { place, lanes: None, order, message_order: None, buffers: Some(Buffers { input, output }), scratch }
    }

    /// The memory for the calls of this rank; `None` after the first time. Receivers read messages in it in place.
    pub(crate) fn take_buffers(&mut self) -> Option<Buffers> {
        self.buffers.take()
    }

    pub(crate) fn program(&self) -> &'a Program {
        self.place.plan.program
    }

    /// The number of this rank in the work's group.
    pub(crate) fn number(&self) -> Rank {
        self.place.plan.number
    }

    fn bytes(&self, buffer: Buffer) -> usize {
        self.place.plan.geometry.buffer_bytes(buffer)
    }

    pub(crate) fn check_call(&self, call: &Call<'_>) -> RunResult<()> {
        let size = |buffer, given, needed| {
            if given == needed {
                return Ok(());
            }
            Err(RunError::BufferSize { rank: self.place.plan.rank, buffer, given, needed })
        };
        let (needs_input, needs_output) = (self.bytes(Buffer::Input), self.bytes(Buffer::Output));
        match call {
            Call::InPlace(both) => size("in-place", both.len(), needs_input.max(needs_output)),
            Call::OutOfPlace { input, output } => {
                size("input", input.len(), needs_input)?;
                size("output", output.len(), needs_output)
            }
        }
    }

    /// Whether a sender may let its receiver read in place. On an emulated machine bytes travel ahead of their arrival,
    /// so no sender may wait for its receiver.
    fn is_direct(&self, emulation: Option<&Emulation>) -> bool {
        emulation.is_none() && self.place.backlog == 0
    }

    /// The connections whose messages this rank may read in place.
    pub(crate) fn read_in_place(&self, emulation: Option<&Emulation>) -> impl Iterator<Item = Connection> {
        let (to, direct) = (self.place.plan.rank, self.is_direct(emulation));
        let connections = self.place.plan.connections.iter().copied();
        connections.filter(move |connection| direct && connection.to == to)
    }

    /// Opens the lanes, once all ranks are ready.
    pub(crate) fn link(&mut self, emulation: Option<&Emulation>, transports: &mut Transports<'_>) -> RunResult<()> {
        if self.lanes.is_some() {
            return Ok(());
        }
        let direct = self.is_direct(emulation);
        let &LocalRankSetup { ref arena, first, backlog, ref plan, .. } = &self.place;
        // A sender that must be able to run ahead of its receiver keeps no order.
        let on_network = |lane: &Connection| transports.memory(lane) == MemoryKind::Network;
        self.message_order = direct.then(|| MessageOrder::of(plan, on_network)).flatten();
        let rates = self.message_order.as_ref().map(MessageOrder::rates);
        let request = |id, connection| {
            let paced = rates.as_ref().map(|rates| Paced { rate: rates.get(&id).copied() });
            LaneRequest { id, first, connection, arena, direct, backlog, paced }
        };
        self.lanes = Some(Lanes::new(plan.rank, &plan.connections, transports, request)?);
        Ok(())
    }

    /// One run of the program, ready to start. It contains everything that can be prepared before the common start.
    ///
    /// # Errors
    /// [`RunError::Program`] if the lanes are not open.
    pub(crate) fn prepare<'s>(
        &'s mut self,
        segment: &'s Segment,
        call: Call<'s>,
        emulation: Option<&'s Emulation>,
        number: CallNumber,
    ) -> RunResult<Interpreter<'s>> {
        let plan = &self.place.plan;
        let unlinked = || RunError::Program { rank: plan.rank, fault: "it runs before its lanes are open".to_owned() };
        let lanes = self.lanes.as_mut().ok_or_else(unlinked)?;
        let pacer = emulation.map(|of| Pacer::new(segment, &self.place.arena, of, plan, &self.order, number));
        let sequencer = self.message_order.as_ref().map(|order| Sequencer::new(order, plan));
        let memory = CallMemory { call, scratch: &mut self.scratch };
        let stamp = Stamp::new(number, self.place.digest, self.place.work);
        Ok(Interpreter::new(plan, lanes, memory, Pacing { pacer, sequencer }, stamp))
    }
}

/// What a rank has to divide after its program, and by which number: a program for averages computes sums.
pub(crate) fn averages(program: &Program, number: Rank, geometry: &Geometry) -> RunResult<Vec<(ByteSpan, u64)>> {
    let mut averages: Vec<(ByteSpan, u64)> = Vec::new();
    for (slice, by) in averaged_slots(program, number)? {
        let bytes = geometry.slot_bytes(slice);
        match averages.last_mut() {
            Some((last, same)) if (last.buffer, last.bytes.end, *same) == (slice.buffer, bytes.start, by) => {
                last.bytes.end = bytes.end;
            }
            _ => averages.push((ByteSpan { buffer: slice.buffer, bytes }, by)),
        }
    }
    Ok(averages)
}

/// The slots that a rank has to divide after its program, and by which number.
pub(crate) fn averaged_slots(program: &Program, number: Rank) -> RunResult<Vec<(Slice, u64)>> {
    if program.op != Some(ReduceOp::Avg) {
        return Ok(Vec::new());
    }
    let (demand, in_place) = (&program.demand, program.in_place);
    let layout =
        Layout::new(demand.clone(), in_place).map_err(|error| RunError::Mismatch { what: error.to_string() })?;
    let combined = demand.chunk_ids().zip(demand.chunks()).filter(|(_, chunk)| chunk.combine);
    let slots = combined.filter_map(|(id, chunk)| Some((layout.output_slot(id, number)?, chunk.holders.len() as u64)));
    Ok(slots.map(|(slot, by)| (slot.slice(1), by)).collect())
}
