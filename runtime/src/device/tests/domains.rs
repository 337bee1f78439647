//! Programs in rounds whose ranks are all in one domain: one launch for all of them on the PTX machine, judged by the naive reference.

use super::job::{MODULE, with_op};
use crate::device::kernel_name;
use crate::device::rounds::derive::Rounds;
use crate::device::rounds::mapped::LaunchBytes;
use crate::device::rounds::plan::RoundPlan;
use crate::device::rounds::tables::MappedAddresses;
use crate::device::tables::{Encode, KernelBlock};
use crate::dtype::DType;
use crate::measure::reference::{BufferPlaces, Reference};
use program::testing::schedules::{Random, demand, random_topology, random_trees, ring_allreduce};
use program::testing::{STANDARD, checked, lowered};
use program::{LowerOptions, VerifiedProgram, lower};
use ptx::{Fault, Launch, Machine, Module};
use schedule::ReduceOp;
use topology::Rank;

/// How a program is run.
#[derive(Clone, Copy, Debug)]
struct DomainTerms {
    count: u64,
    dtype: DType,
    sizes: LaunchBytes,
    threads: u32,
    seed: u64,
}

const PLAIN: DomainTerms =
    DomainTerms { count: 40, dtype: DType::F32, sizes: LaunchBytes { block: 96, tile: 24 }, threads: 3, seed: 1 };

/// A rank's part in the memory of the machine.
struct DomainMember {
    input: u64,
    output: u64,
    places: BufferPlaces,
}

/// All ranks, with tables for two calls and more.
struct Domain<'a> {
    machine: Machine,
    program: &'a VerifiedProgram,
    terms: DomainTerms,
    members: Vec<DomainMember>,
    grid: u64,
    devices: Vec<u32>,
}

impl<'a> Domain<'a> {
    /// `change` may make the tables of a rank wrong.
    fn new(program: &'a VerifiedProgram, terms: DomainTerms, change: &dyn Fn(Rank, &mut Vec<u8>)) -> Self {
        let DomainTerms { count, dtype, sizes, .. } = terms;
        let (mut machine, ranks) = (Machine::new(), program.program().ranks.len());
        let rounds = Rounds::within(program, &vec![0; ranks]).unwrap();
        let plan = |rank| RoundPlan::of(&rounds, program, Rank::from_index(rank), (count, dtype), sizes).unwrap();
        let plans: Vec<_> = (0..ranks).map(plan).collect();
        let mut place = |bytes: u64, align: u64| machine.allocate((bytes as usize).max(1), align);
        let shared: Vec<u64> = plans.iter().map(|plan| place(plan.mapped_needs().unwrap().shared_bytes, 128)).collect();
        let reference = reference(program, terms, 0);
        let (mut members, mut blocks, mut devices, mut tables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for plan in &plans {
            let places = reference.places(plan.rank());
            let [input, output, scratch, inboxes] = plan.buffer_bytes();
            let common = (places.input_at + places.input).max(places.output_at + places.output) * dtype.size();
            let output = place(if program.program().in_place { common as u64 } else { output }, 16);
            let input = if program.program().in_place { output } else { place(input, 16) };
            let (scratch, inboxes) = (place(scratch, 256), place(inboxes, 256));
            let (counters, abort) = (place(plan.mapped_needs().unwrap().counter_bytes, 8), place(4, 4));
            let at = place(plan.table_bytes(), 256);
            let mapped = MappedAddresses { shared: shared.clone(), counters, abort };
            let mut bytes = plan.tables(at, [input, output, scratch, inboxes], Some(&mapped));
            change(plan.rank(), &mut bytes);
            let [launch] = plan.launches().try_into().unwrap();
            let begin = launch.begin as usize;
            blocks.extend_from_slice(&bytes[begin..begin + launch.blocks as usize * KernelBlock::BYTES as usize]);
            devices.extend(vec![plan.rank().0; launch.blocks as usize]);
            tables.push((at, bytes));
            members.push(DomainMember { input, output, places });
        }
        let grid = place(blocks.len() as u64, 16);
        tables.push((grid, blocks));
        tables.iter().for_each(|(at, bytes)| machine.write(*at, bytes).unwrap());
        Self { machine, program, terms, members, grid, devices }
    }

    /// One call with new inputs; how many elements are wrong.
    fn call(&mut self, module: &Module, call: u32) -> Result<u64, Fault> {
        let (reference, in_place) = (reference(self.program, self.terms, call), self.program.program().in_place);
        let size = self.terms.dtype.size();
        for (index, member) in self.members.iter().enumerate() {
            let BufferPlaces { input, output, input_at, output_at } = member.places;
            let (length, at) = match in_place {
                true => ((output_at + output).max(input_at + input), input_at),
                false => (input, 0),
            };
            let mut filled = vec![0xA5; length * size];
            reference.fill(Rank::from_index(index), &mut filled, at);
            self.machine.write(member.input, &filled)?;
        }
        let launch = Launch {
            kernel: &kernel_name(self.terms.dtype),
            devices: &self.devices,
            threads: self.terms.threads,
            parameters: &[self.grid],
            seed: self.terms.seed.wrapping_mul(31).wrapping_add(call.into()),
        };
        self.machine.launch(module, &launch)?;
        let mut wrong = 0;
        for (index, member) in self.members.iter().enumerate() {
            let BufferPlaces { output, output_at, .. } = member.places;
            let at = if in_place { output_at } else { 0 };
            let bytes = self.machine.read(member.output, (at + output) * size)?;
            wrong += reference.wrong(Rank::from_index(index), &bytes, at);
        }
        Ok(wrong)
    }
}

fn reference<'a>(program: &'a VerifiedProgram, terms: DomainTerms, call: u32) -> Reference<'a> {
    let (program, seed) = (program.program(), terms.seed.wrapping_add(u64::from(call) << 32));
    Reference::new(&program.demand, program.op, terms.count as usize, terms.dtype, seed)
}

/// What two calls come to: how many elements are wrong.
fn run(
    program: &VerifiedProgram,
    terms: DomainTerms,
    module: &Module,
    change: &dyn Fn(Rank, &mut Vec<u8>),
) -> Result<u64, Fault> {
    let mut domain = Domain::new(program, terms, change);
    (0..2).map(|call| domain.call(module, call)).sum()
}

fn right(program: &VerifiedProgram, terms: DomainTerms, what: &str) {
    assert_eq!(run(program, terms, &MODULE, &|_, _| {}), Ok(0), "{what}, {terms:?}");
}

#[test]
fn domains_of_every_collective() {
    let mut random = Random(29);
    for round in 0..4 {
        for collective in STANDARD {
            let ranks = if round == 3 { 9 + random.below(8) } else { 2 + random.below(5) };
            let topology = random_topology(ranks, &mut random);
            let demand = demand(collective, ranks, 1 + random.below(3) as u32);
            let schedule = random_trees(&topology, &demand, &mut random);
            let options = LowerOptions { in_place: round % 2 == 1, ..LowerOptions::default() };
            let terms = DomainTerms {
                count: [1, 7, 32, 61][random.below(4)],
                dtype: DType::ALL[random.below(DType::ALL.len())],
                sizes: LaunchBytes { block: [8, 200, 1 << 20][random.below(3)], tile: [16, 1 << 20][random.below(2)] },
                threads: 1 + random.below(4) as u32,
                seed: random.draw(),
            };
            let program = checked(lower(&schedule, &options).unwrap());
            right(&program, terms, &format!("{collective} of {ranks} ranks"));
        }
    }
}

#[test]
fn domains_with_every_reduction() {
    for (seed, op) in (0..).zip([ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg]) {
        for in_place in [false, true] {
            let program = with_op(checked(lowered(&ring_allreduce(3, 1), in_place)), op);
            right(&program, DomainTerms { seed, ..PLAIN }, &format!("{op}, in place {in_place}"));
        }
    }
}

/// Kernels with a weaker order, and tables in which a channel has less room, or a flag lies elsewhere.
#[test]
fn mistakes_in_domains_are_found() {
    let program = checked(lowered(&ring_allreduce(3, 1), false));
    let is_found = |module: &Module, change: &dyn Fn(Rank, &mut Vec<u8>)| {
        (0..8).any(|seed| run(&program, DomainTerms { seed, ..PLAIN }, module, change) != Ok(0))
    };
    assert!(!is_found(&MODULE, &|_, _| {}));
    for (strong, weak) in [("ld.acquire.sys", "ld.relaxed.sys"), ("st.release.sys", "st.relaxed.sys")] {
        let module = Module::parse(&crate::device::KERNEL_PTX.replace(strong, weak)).unwrap();
        assert!(is_found(&module, &|_, _| {}), "{weak} instead of {strong}");
    }
    // Where the channels of the first block lie in the tables of rank 1, and words of the first of them.
    let rounds = Rounds::within(&program, &[0; 3]).unwrap();
    let plan = RoundPlan::of(&rounds, &program, Rank(1), (PLAIN.count, PLAIN.dtype), PLAIN.sizes).unwrap();
    let launch = plan.launches()[0];
    let channels = (launch.begin + u64::from(launch.blocks) * KernelBlock::BYTES).next_multiple_of(256) as usize;
    for (what, word, by) in [("inbox", 0, 128), ("arrived", 1, 128), ("taken", 2, 128), ("slot bytes", 3, 0)] {
        let change = |rank: Rank, bytes: &mut Vec<u8>| {
            let at = channels + word * 8;
            let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let new = if by == 0 { 0 } else { old.wrapping_add(by) };
            if rank == Rank(1) {
                bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
            }
        };
        assert!(is_found(&MODULE, &change), "{what}");
    }
}
