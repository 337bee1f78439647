//! Ranks of one program, whose blocks run together on the PTX machine.

use crate::device::kernel_plan::{KernelAddresses, KernelNeeds, KernelPlan, KernelTables};
use crate::device::{KERNEL_PTX, kernel_name};
use crate::dtype::DType;
use crate::measure::reference::{BufferPlaces, Reference};
use program::testing::schedules::Random;
use program::{Program, VerifiedProgram, check};
use ptx::{Fault, Launch, Machine, Module, Ran};
use schedule::{Demand, ReduceOp, Request};
use std::sync::{Arc, LazyLock};
use topology::Rank;

/// The kernel as it ships.
pub(super) static MODULE: LazyLock<Module> = LazyLock::new(|| Module::parse(KERNEL_PTX).unwrap());

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) count: u64,
    pub(super) dtype: DType,
    pub(super) tile_bytes: usize,
    pub(super) threads: u32,
    pub(super) seed: u64,
    /// How many launches, one after the other, use the same tables.
    pub(super) calls: u32,
    pub(super) poll_limit: u64,
}

impl Terms {
    pub(super) const PLAIN: Self =
        Self { count: 13, dtype: DType::F32, tile_bytes: 1 << 20, threads: 4, seed: 1, calls: 2, poll_limit: u64::MAX };
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Right,
    /// So many wrong elements, in this call.
    Wrong(u64, u32),
    Fault(Fault),
}

/// A rank's memory: where it is, and what lies in it.
pub(super) struct RankMemory {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) private: u64,
    pub(super) abort: u64,
    pub(super) needs: KernelNeeds,
    pub(super) places: BufferPlaces,
}

pub(super) struct Job<'a> {
    pub(super) machine: Machine,
    pub(super) ranks: Vec<RankMemory>,
    program: &'a Program,
    terms: Terms,
    devices: Vec<u32>,
    grid: u64,
}

/// A program with another reduction.
pub(in crate::device) fn with_op(program: VerifiedProgram, op: ReduceOp) -> VerifiedProgram {
    let mut program = program.into_program();
    let request = Request { op: Some(op), ..program.demand.request().clone() };
    let demand = Demand::new(request).unwrap().with_chunk_bytes(program.demand.chunk_bytes()).unwrap();
    (program.op, program.demand) = (Some(op), Arc::new(demand));
    check(program).unwrap()
}

fn reference<'a>(program: &'a Program, terms: &Terms, call: u32) -> Reference<'a> {
    let seed = terms.seed.wrapping_add(u64::from(call) << 32);
    Reference::new(&program.demand, program.op, terms.count as usize, terms.dtype, seed)
}

impl<'a> Job<'a> {
    /// Allocates and fills all memory. `change` may make the tables of a rank wrong.
    pub(super) fn new(
        program: &'a Program,
        plan: &KernelPlan,
        terms: Terms,
        change: impl Fn(Rank, &mut KernelTables),
    ) -> Result<Self, Fault> {
        let (mut machine, mut random) = (Machine::new(), Random(terms.seed));
        let size = terms.dtype.size();
        let all = || (0..program.ranks.len()).map(Rank::from_index);
        let shared: Vec<u64> =
            all().map(|rank| machine.allocate(plan.needs(rank).shared_bytes as usize, 128)).collect();
        let reference = reference(program, &terms, 0);
        let (mut ranks, mut blocks, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for rank in all() {
            let (needs, places) = (plan.needs(rank), reference.places(rank));
            // Buffers of callers are aligned as their elements are, or better.
            let mut buffer = |elements: usize| {
                let align = [size as u64, 16, 256][random.below(3)];
                machine.allocate((elements * size).max(1), align)
            };
            let (input, output) = match program.in_place {
                true => {
                    let common = (places.input_at + places.input).max(places.output_at + places.output);
                    let common = buffer(common);
                    (common, common)
                }
                false => (buffer(places.input), buffer(places.output)),
            };
            let (private, abort) = (machine.allocate(needs.private_bytes as usize, 16), machine.allocate(4, 4));
            let poll_limit = terms.poll_limit;
            let at = KernelAddresses { input, output, private, shared: shared.clone(), abort, poll_limit };
            let mut tables = plan.tables(rank, &at);
            change(rank, &mut tables);
            machine.write(private, &tables.private)?;
            blocks.extend(tables.blocks);
            devices.extend(vec![rank.0; needs.blocks]);
            ranks.push(RankMemory { input, output, private, abort, needs, places });
        }
        let grid = machine.allocate(blocks.len().max(1), 16);
        machine.write(grid, &blocks)?;
        Ok(Self { machine, ranks, program, terms, devices, grid })
    }

    pub(super) fn launch(&mut self, module: &Module, call: u32) -> Result<Ran, Fault> {
        let launch = Launch {
            kernel: &kernel_name(self.terms.dtype),
            devices: &self.devices,
            threads: self.terms.threads,
            parameters: &[self.grid],
            seed: self.terms.seed.wrapping_mul(31).wrapping_add(call.into()),
        };
        self.machine.launch(module, &launch)
    }

    /// One call with new inputs; how many elements are wrong.
    fn call(&mut self, module: &Module, call: u32) -> Result<u64, Fault> {
        let (program, terms) = (self.program, self.terms);
        let size = terms.dtype.size();
        let reference = reference(program, &terms, call);
        for (rank, memory) in self.ranks.iter().enumerate() {
            let BufferPlaces { input, output, input_at, output_at } = memory.places;
            let (rank, in_place) = (Rank::from_index(rank), program.in_place);
            let length = if in_place { (output_at + output).max(input_at + input) } else { output };
            let mut common = vec![0xA5; length * size];
            if in_place {
                reference.fill(rank, &mut common, input_at);
            } else {
                let mut filled = vec![0; input * size];
                reference.fill(rank, &mut filled, 0);
                self.machine.write(memory.input, &filled)?;
            }
            self.machine.write(memory.output, &common)?;
        }
        self.launch(module, call)?;
        let mut wrong = 0;
        for (rank, memory) in self.ranks.iter().enumerate() {
            let BufferPlaces { input, output, output_at, .. } = memory.places;
            let rank = Rank::from_index(rank);
            let at = if program.in_place { output_at } else { 0 };
            wrong += reference.wrong(rank, &self.machine.read(memory.output, (at + output) * size)?, at);
            if !program.in_place {
                wrong += reference.changed(rank, &self.machine.read(memory.input, input * size)?);
            }
        }
        Ok(wrong)
    }
}

/// Runs a program as `terms` say.
pub(super) fn run(program: &VerifiedProgram, terms: Terms) -> Outcome {
    run_changed(program, terms, &MODULE, |_, _| {})
}

/// The same with another kernel, or other tables.
pub(super) fn run_changed(
    program: &VerifiedProgram,
    terms: Terms,
    module: &Module,
    change: impl Fn(Rank, &mut KernelTables),
) -> Outcome {
    let plan = KernelPlan::new(program, terms.count, terms.dtype, terms.tile_bytes).unwrap();
    run_plan(program, &plan, terms, module, change)
}

/// The same with a plan that may be wrong.
pub(super) fn run_plan(
    program: &VerifiedProgram,
    plan: &KernelPlan,
    terms: Terms,
    module: &Module,
    change: impl Fn(Rank, &mut KernelTables),
) -> Outcome {
    let calls = || -> Result<Option<(u64, u32)>, Fault> {
        let mut job = Job::new(program.program(), plan, terms, change)?;
        for call in 0..terms.calls {
            let wrong = job.call(module, call)?;
            if wrong > 0 {
                return Ok(Some((wrong, call)));
            }
        }
        Ok(None)
    };
    match calls() {
        Ok(None) => Outcome::Right,
        Ok(Some((wrong, call))) => Outcome::Wrong(wrong, call),
        Err(fault) => Outcome::Fault(fault),
    }
}
