//! Kernels and tables with one mistake each: the machine or the reference finds every one.

use super::job::{MODULE, Outcome, Terms, run_changed, run_plan};
use crate::device::KERNEL_PTX;
use crate::device::kernel_plan::KernelPlan;
use crate::device::tables::{KernelStep, PUBLISHES, READS, RECEIVES, REDUCES, SENDS, STORES};
use program::testing::schedules::{Random, demand, random_topology, random_trees, ring_allreduce};
use program::testing::{checked, lowered};
use program::{Program, VerifiedProgram, check};
use ptx::{Fault, Module};
use schedule::Collective;

/// How many interleavings a mistake may stay hidden.
const SEEDS: u64 = 12;
/// The most mutants of one kind and program.
const MOST: usize = 6;

fn outcomes(program: &VerifiedProgram, module: &Module) -> Vec<Outcome> {
    let terms = |seed| Terms { seed, count: 23, tile_bytes: 16, ..Terms::PLAIN };
    (0..SEEDS).map(|seed| run_changed(program, terms(seed), module, |_, _| {})).collect()
}

/// Programs with fused steps, waits between the blocks of a rank, and averages.
fn programs() -> Vec<VerifiedProgram> {
    let mut random = Random(5);
    let topology = random_topology(4, &mut random);
    let tree = random_trees(&topology, &demand(Collective::AllReduce, 4, 3), &mut random);
    [ring_allreduce(3, 1), tree].iter().map(|schedule| checked(lowered(schedule, false))).collect()
}

#[test]
fn weaker_orders_and_smaller_scopes_are_races() {
    let changes = [
        ("ld.acquire.sys", "ld.relaxed.sys"),
        ("st.release.sys", "st.relaxed.sys"),
        ("ld.acquire.gpu", "ld.relaxed.gpu"),
        ("st.release.gpu", "st.relaxed.gpu"),
        ("ld.acquire.sys", "ld.acquire.gpu"),
        ("st.release.sys", "st.release.gpu"),
        ("ld.acquire.gpu", "ld.acquire.cta"),
        ("st.release.gpu", "st.release.cta"),
    ];
    let programs = programs();
    for (strong, weak) in changes {
        let module = Module::parse(&KERNEL_PTX.replace(strong, weak)).unwrap();
        let races = programs.iter().flat_map(|program| outcomes(program, &module));
        let races = races.filter(|outcome| matches!(outcome, Outcome::Fault(Fault::Race { .. }))).count();
        assert!(races > 0, "{weak} instead of {strong} is not found");
    }
    for program in &programs {
        assert!(outcomes(program, &MODULE).iter().all(|outcome| *outcome == Outcome::Right));
    }
}

#[test]
fn every_barrier_of_the_kernel_matters() {
    // The kernel for f32 is the first one.
    let end = KERNEL_PTX.find("\n}\n").unwrap();
    let barriers: Vec<usize> = KERNEL_PTX[..end].match_indices("bar.sync").map(|(at, _)| at).collect();
    assert_eq!(barriers.len(), 5);
    let programs = programs();
    for at in barriers {
        let mut text = KERNEL_PTX.to_owned();
        let line = text[at..].find('\n').unwrap();
        text.replace_range(at..at + line, "");
        let module = Module::parse(&text).unwrap();
        let found =
            programs.iter().flat_map(|program| outcomes(program, &module)).any(|outcome| outcome != Outcome::Right);
        let number = KERNEL_PTX[..at].lines().count();
        assert!(found, "the barrier in line {number} can be left out");
    }
}

/// How a table can be wrong.
#[derive(Clone, Copy, Debug)]
enum Slip {
    DropWait,
    DropReceive,
    DropPublish,
    OtherMessage,
    SourceOffset,
    DestinationOffset,
    OtherBuffer,
    ShortPiece,
    DropReduce,
    DropSend,
}

const SLIPS: [Slip; 10] = [
    Slip::DropWait,
    Slip::DropReceive,
    Slip::DropPublish,
    Slip::OtherMessage,
    Slip::SourceOffset,
    Slip::DestinationOffset,
    Slip::OtherBuffer,
    Slip::ShortPiece,
    Slip::DropReduce,
    Slip::DropSend,
];

impl KernelPlan {
    /// The plan with a mistake in step `index` of a rank, counted over its blocks.
    /// `None` after the last step, and `Some(None)` where the step cannot have this mistake.
    fn mutant(&self, rank: usize, index: usize, slip: Slip) -> Option<Option<Self>> {
        let mut plan = self.clone();
        let tables = &mut plan.ranks[rank];
        let place =
            |(block, steps): (usize, &Vec<KernelStep>)| (0..steps.len()).map(|at| (block, at)).collect::<Vec<_>>();
        let (block, at) = tables.blocks.iter().enumerate().flat_map(place).nth(index)?;
        // A later signal of the same block tells the same.
        let is_last = tables.blocks[block][at + 1..].iter().all(|step| step.kind & PUBLISHES == 0);
        let step = &mut tables.blocks[block][at];
        let piece = &mut tables.pieces[step.first_piece as usize];
        let has = |flag: u32| step.kind & flag != 0;
        let is_possible = match slip {
            Slip::DropWait => step.wait_count > 0,
            Slip::DropReceive | Slip::OtherMessage => has(RECEIVES),
            Slip::DropPublish => has(PUBLISHES) && is_last,
            Slip::SourceOffset => has(READS) && piece.length > 0,
            Slip::DestinationOffset => has(STORES) && piece.length > 0,
            Slip::OtherBuffer => has(READS) && piece.length > 0,
            Slip::ShortPiece => piece.length > 0,
            Slip::DropReduce => has(REDUCES),
            Slip::DropSend => has(SENDS),
        };
        if !is_possible {
            return Some(None);
        }
        match slip {
            Slip::DropWait => step.wait_count -= 1,
            Slip::DropReceive => step.kind &= !RECEIVES,
            Slip::DropPublish => step.kind &= !PUBLISHES,
            Slip::OtherMessage => step.in_ordinal += 1,
            Slip::SourceOffset => piece.source += 1,
            Slip::DestinationOffset => piece.destination += 1,
            Slip::OtherBuffer => piece.source_buffer = (piece.source_buffer + 1) % 2,
            Slip::ShortPiece => piece.length -= 1,
            Slip::DropReduce => step.kind &= !REDUCES,
            Slip::DropSend => step.kind &= !SENDS,
        }
        Some(Some(plan))
    }
}

/// All plans with one such mistake.
fn slipped(program: &Program, plan: &KernelPlan, slip: Slip) -> Vec<KernelPlan> {
    let mut mutants = Vec::new();
    for rank in 0..plan.ranks() {
        let mut index = 0;
        while let Some(mutant) = plan.mutant(rank, index, slip) {
            let is_harmless = matches!(slip, Slip::DropWait) && is_idle_wait(program, rank, index);
            mutants.extend(mutant.filter(|_| !is_harmless));
            index += 1;
        }
    }
    mutants
}

/// Whether the program checker proves that the last wait of a step is not needed, because others imply it.
fn is_idle_wait(program: &Program, rank: usize, index: usize) -> bool {
    let mut program = program.clone();
    let mut steps = program.ranks[rank].threadblocks.iter_mut().flat_map(|block| &mut block.steps);
    steps.nth(index).is_some_and(|step| step.after.pop().is_some()) && check(program).is_ok()
}

#[test]
fn wrong_tables_are_found() {
    let mut made = [0; SLIPS.len()];
    for program in programs() {
        let terms = |seed| Terms { seed, count: 23, tile_bytes: 16, threads: 2, ..Terms::PLAIN };
        let plan = KernelPlan::new(&program, 23, Terms::PLAIN.dtype, 16).unwrap();
        for (slip, made) in SLIPS.into_iter().zip(&mut made) {
            let mutants = slipped(program.program(), &plan, slip);
            *made += mutants.len();
            // Some of each kind, from all over the program.
            for (number, mutant) in mutants.iter().enumerate().step_by(mutants.len().div_ceil(MOST).max(1)) {
                let is_right = |seed| run_plan(&program, mutant, terms(seed), &MODULE, |_, _| {}) == Outcome::Right;
                assert!(!(0..SEEDS).all(is_right), "{slip:?}, mutant {number} of {}", mutants.len());
            }
        }
    }
    assert!(made.iter().all(|made| *made > 0), "a mistake was never made: {made:?}");
}
