//! One rank's standing arrangements for a program at one count: lanes, scratch, reduction.
//!
//! The principal type is [`Executor`]; it is made once per trial and runs the program once per repetition.

use crate::board::{Arena, Board};
use crate::clock::Moment;
use crate::dtype::DType;
use crate::error::{Phase, RunError, RunResult, Stamp};
use crate::geometry::Geometry;
use crate::heap::{Area, Heap, PeerHeap};
use crate::interpreter::{Interpreter, RankPlan};
use crate::lanes::Lanes;
use crate::memory::{Call, Memory, Span};
use crate::options::Options;
use crate::order::{ResourceOrder, transfer_count};
use crate::pace::{Emulation, Pacer};
use crate::probe::Flows;
use crate::ring::Rings;
use crate::trial::Sample;
use crate::watch::Watch;
use crate::wiring::{Wires, Wiring};
use crate::work::Work;
use schedule::ReduceOp;
use schedule::program::{Buffer, Layout, Program, digest};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// How long after the last arrival an emulated collective starts, so that every rank is awake by then.
const EMULATED_LEAD: Duration = Duration::from_micros(500);

/// How long after the last arrival a probe starts: waking up must not look like latency.
const PROBE_LEAD: Duration = Duration::from_micros(200);

/// One run of one rank.
pub(crate) struct Run {
    /// When all ranks were to start.
    pub(crate) announced: Moment,
    /// When this one did, and when it was done.
    pub(crate) sample: Sample,
    /// When each of its threadblocks was done.
    pub(crate) threadblocks: Vec<Moment>,
}

/// One rank, ready to run.
pub(crate) struct Executor<'a> {
    board: &'a Board,
    plan: RankPlan<'a>,
    emulation: Option<&'a Emulation>,
    wiring: Wiring,
    /// Made when the first run begins: only then do all ranks have their memory.
    lanes: Option<Lanes>,
    arena: Arena,
    order: ResourceOrder,
    heap: Heap,
    /// Taken by whoever fills and reads them.
    buffers: Option<Buffers>,
    scratch: Area,
    /// How much a lane must take that its receiver does not.
    backlog: usize,
    digest: String,
    limit: Duration,
    /// How long after the last arrival a run starts.
    lead: Duration,
}

/// Input and output of a rank in memory that others can read, each with [`GUARD`] bytes on both sides.
pub(crate) struct Buffers {
    pub(crate) input: Area,
    pub(crate) output: Area,
}

/// Bytes before and behind a buffer that no program writes.
pub(crate) const GUARD: usize = 64;

impl<'a> Executor<'a> {
    pub(crate) fn new(
        board: &'a Board,
        rank: Rank,
        work: Work<'a>,
        wiring: Wiring,
        options: &'a Options,
    ) -> RunResult<Self> {
        let Work { program, count, dtype, .. } = work;
        if program.ranks.len() != board.rank_count() {
            let what = format!("the plan is for {} ranks, the job has {}", program.ranks.len(), board.rank_count());
            return Err(RunError::Mismatch { what });
        }
        if let Some(emulation) = &options.emulation {
            emulation.check(program)?;
        }
        let tiles = work.tiles(options);
        let geometry = Geometry::new(program, rank, count, dtype, tiles)?;
        let (kernel, averages) = (program.op.map(|op| dtype.kernel(op)), averages(program, rank, &geometry)?);
        let plan = RankPlan { rank, program, geometry, dtype, kernel, averages };
        Self::arrange(board, plan, work.backlog(tiles)?, wiring, options)
    }

    /// One rank of a probe.
    pub(crate) fn of_flows(
        board: &'a Board,
        rank: Rank,
        flows: &'a Flows,
        wiring: Wiring,
        options: &'a Options,
    ) -> RunResult<Self> {
        let geometry = Geometry::of_slots(flows.slots(rank));
        let (program, dtype) = (flows.program(), DType::U8);
        let plan = RankPlan { rank, program, geometry, dtype, kernel: None, averages: Vec::new() };
        let mut executor = Self::arrange(board, plan, 0, wiring, options)?;
        executor.lead = PROBE_LEAD;
        Ok(executor)
    }

    fn arrange(
        board: &'a Board,
        plan: RankPlan<'a>,
        backlog: usize,
        wiring: Wiring,
        options: &'a Options,
    ) -> RunResult<Self> {
        let emulation = options.emulation.as_ref();
        if let Some(emulation) = emulation {
            emulation.check_messages(&plan)?;
            // Emulated arrivals are timers: the default slack of 50 µs would be a measurable part of them.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
                .map_err(std::io::Error::from)
                .map_err(RunError::system("sharpening timers"))?;
        }
        let (program, rank) = (plan.program, plan.rank);
        let bytes = |buffer| plan.geometry.buffer_bytes(buffer);
        let lengths = [bytes(Buffer::Input) + 2 * GUARD, bytes(Buffer::Output) + 2 * GUARD, bytes(Buffer::Scratch)];
        let (heap, [input, output, mut scratch]) = Heap::new(lengths).map_err(RunError::system("making buffers"))?;
        // Not zeroes, which the kernel would provide only when they are first touched: in the measured part.
        scratch.fill(0xcc);
        board.publish_heap(rank, heap.place().map_err(RunError::system("publishing buffers"))?);
        Ok(Self {
            board,
            emulation,
            wiring,
            lanes: None,
            arena: arena(board, program, backlog, options)?,
            order: emulation.map_or_else(ResourceOrder::default, |emulation| {
                ResourceOrder::of(program, emulation.topology(), rank, plan.geometry.tiles())
            }),
            heap,
            buffers: Some(Buffers { input, output }),
            scratch,
            backlog,
            digest: digest(program),
            limit: options.work_limit,
            lead: emulation.map_or(Duration::ZERO, |_| EMULATED_LEAD),
            plan,
        })
    }

    /// Memory for the calls of this rank, once. Messages in it are read in place by their receivers.
    pub(crate) fn take_buffers(&mut self) -> Option<Buffers> {
        self.buffers.take()
    }

    /// Opens the lanes, when all ranks are here.
    fn link(&mut self, epoch: u64) -> RunResult<Lanes> {
        let (board, rank, program) = (self.board, self.plan.rank, self.plan.program);
        board.meet(rank, 2 * epoch - 1, Duration::ZERO, self.limit)?;
        // In an emulated machine bytes travel ahead of their arrival, so no sender may wait for its receiver.
        let direct = self.emulation.is_none() && self.backlog == 0;
        let sends_here = |from: Rank| {
            let mut connections = program.connections.iter();
            !self.wiring.hosts.apart(from, rank) && connections.any(|lane| (lane.from, lane.to) == (from, rank))
        };
        let peer = |index| {
            let from = Rank::from_index(index);
            // A heap that cannot be read is copied through the ring.
            (direct && sends_here(from)).then(|| PeerHeap::open(board.heap(from)).ok().map(Arc::new)).flatten()
        };
        let peers: Vec<_> = (0..program.ranks.len()).map(peer).collect();
        let heap = direct.then_some(&self.heap);
        let rings = Rings { board, arena: &self.arena, heap, peers: &peers };
        let remote = !self.wiring.streams.is_empty();
        Lanes::new(rank, program, remote, &mut Wires { rings, wiring: &mut self.wiring, backlog: self.backlog })
    }

    pub(crate) fn rank(&self) -> Rank {
        self.plan.rank
    }

    pub(crate) fn program(&self) -> &'a Program {
        self.plan.program
    }

    pub(crate) fn input_bytes(&self) -> usize {
        self.plan.geometry.buffer_bytes(Buffer::Input)
    }

    pub(crate) fn output_bytes(&self) -> usize {
        self.plan.geometry.buffer_bytes(Buffer::Output)
    }

    /// The plan's hash, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    fn check_call(&self, call: &Call<'_>) -> RunResult<()> {
        let size = |buffer, given, needed| {
            if given == needed {
                return Ok(());
            }
            Err(RunError::BufferSize { rank: self.plan.rank, buffer, given, needed })
        };
        match call {
            Call::InPlace(both) => size("in-place", both.len(), self.input_bytes().max(self.output_bytes())),
            Call::OutOfPlace { input, output } => {
                size("input", input.len(), self.input_bytes())?;
                size("output", output.len(), self.output_bytes())
            }
        }
    }

    /// Runs the program once, together with all other ranks. `epoch` is the same on all ranks, and larger each time.
    pub(crate) fn run(&mut self, call: Call<'_>, epoch: u64) -> RunResult<Run> {
        self.check_call(&call)?;
        let (board, rank) = (self.board, self.plan.rank);
        board.enter(rank, Phase::Start);
        if self.lanes.is_none() {
            self.lanes = Some(self.link(epoch)?);
        }
        // All that can be made before the common start is: what follows it is measured.
        let pacer = self.emulation.map(|of| Pacer::new(board, &self.arena, of, &self.plan, &self.order, epoch));
        let memory = Memory { call, scratch: &mut self.scratch };
        let stamp = Stamp { epoch, plan: first_word(&self.digest) };
        let lanes = self.lanes.as_mut().expect("they were opened above");
        let interpreter = Interpreter::new(&self.plan, lanes, memory, pacer, stamp);
        let mut watch = Watch::new(board, rank, self.wiring.poller.as_ref());
        let announced = board.meet(rank, 2 * epoch, self.lead, self.limit)?;
        board.enter(rank, Phase::Work);
        let start = match self.emulation {
            // Its messages start at the announced moment, whenever this computer lets the rank run.
            Some(_) => announced,
            None => announced.wait(),
        };
        let threadblocks = interpreter.run(start, self.limit, &mut watch)?;
        let sample = Sample { start, end: Moment::now() };
        // What ranks do afterwards must not slow down those that still work.
        board.enter(rank, Phase::Report);
        board.meet(rank, 2 * epoch + 1, Duration::ZERO, self.limit)?;
        Ok(Run { announced, sample, threadblocks })
    }
}

/// What `rank` has to divide, and by what, once its program is done: a program for averages computes sums.
fn averages(program: &Program, rank: Rank, geometry: &Geometry) -> RunResult<Vec<(Span, u64)>> {
    if program.op != Some(ReduceOp::Avg) {
        return Ok(Vec::new());
    }
    let (demand, in_place) = (&program.demand, program.in_place);
    let layout =
        Layout::new(demand.clone(), in_place).map_err(|error| RunError::Mismatch { what: error.to_string() })?;
    let mut averages: Vec<(Span, u64)> = Vec::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()).filter(|(_, chunk)| chunk.combine) {
        let Some(slot) = layout.output_slot(id, rank) else { continue };
        let (bytes, by) = (geometry.slot_bytes(slot.slice(1)), chunk.holders.len() as u64);
        match averages.last_mut() {
            Some((last, same)) if (last.buffer, last.bytes.end, *same) == (slot.buffer, bytes.start, by) => {
                last.bytes.end = bytes.end;
            }
            _ => averages.push((Span { buffer: slot.buffer, bytes }, by)),
        }
    }
    Ok(averages)
}

/// The first eight bytes of a digest in hexadecimal: what a message has room for.
fn first_word(digest: &str) -> u64 {
    digest.get(..16).and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default()
}

/// The layout of the shared memory for `program`, whose lanes hold at least `backlog` bytes.
pub(crate) fn arena(board: &Board, program: &Program, backlog: usize, options: &Options) -> RunResult<Arena> {
    let flags = if options.emulation.is_some() { transfer_count(program) } else { 0 };
    // Room for the words that precede messages.
    let least = if backlog == 0 { 0 } else { backlog + 4096 };
    board.lay_out(program.connections.len(), least, options.ring_bytes.max(least), flags)
}
