//! The text that the checker prints for each kind of mistake.

use super::{check, checked, lowered, schedules};
use crate::rewrite::{expand, resliced, row};
use crate::{
    Buffer, ConnectionId, Instruction, PartShape, Program, ProgramViolation, Slice, Step, StepRef, Threadblock,
};
use expect_test::{Expect, expect};
use schedule::{Chunk, Collective, Demand, RankSet, Request};
use std::sync::Arc;
use topology::Rank;

/// Makes one mistake in `program` and compares the checker's output, line by line.
fn refuses(mut program: Program, mistake: impl FnOnce(&mut Program), expected: Expect) {
    mistake(&mut program);
    let violations = check(program).expect_err("the mistake is found");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    expected.assert_eq(&lines.join("\n"));
}

fn allreduce() -> Program {
    lowered(&schedules::ring_allreduce(3, 1), false)
}

fn allgather() -> Program {
    lowered(&schedules::ring_allgather(3, 1), false)
}

fn step(program: &mut Program, rank: usize, threadblock: usize, step: usize) -> &mut Step {
    &mut program.ranks[rank].threadblocks[threadblock].steps[step]
}

fn slice(buffer: Buffer, index: u32) -> Slice {
    Slice { buffer, index, count: 1 }
}

fn block(instructions: &[Instruction]) -> Threadblock {
    Threadblock { steps: instructions.iter().copied().map(Step::new).collect() }
}

#[test]
fn the_header_must_follow_from_the_demand() {
    refuses(
        allreduce(),
        |p| p.shape = PartShape::Equal { parts: 4 },
        expect!["the number of parts is 4, but the demand gives 3"],
    );
    refuses(allreduce(), |p| drop(p.ranks.pop()), expect!["the number of ranks is 2, but the demand gives 3"]);
    refuses(allreduce(), |p| p.op = None, expect!["the reduction is not the one of the demand"]);
    refuses(
        allreduce(),
        |p| p.ranks[0].scratch_parts = vec![0; 1 << 26],
        expect!["the program has 67108882 slots, more than the 67108864 that are supported"],
    );
    refuses(
        allreduce(),
        |p| p.ranks[0].input_parts.push(0),
        expect!["rank 0 has 4 slots of input, but the demand gives 3"],
    );
    refuses(
        allreduce(),
        |p| p.ranks[0].output_parts.swap(1, 2),
        expect![[r#"
            slot 1 of output of rank 0 has the shape of part 2, but the demand gives 1
            slot 2 of output of rank 0 has the shape of part 1, but the demand gives 2
            the slices of rank 0 threadblock 1 step 0 have different shapes
            the slices of rank 0 threadblock 1 step 1 have different shapes"#]],
    );
    refuses(
        allreduce(),
        |p| p.ranks[1].scratch_parts = vec![2, 3],
        expect!["scratch slot 1 of rank 1 has the shape of part 3, but there are 3"],
    );
    let custom = |p: &mut Program| {
        let (holders, wanted_by) = (RankSet::one(Rank(0)), RankSet::all(3));
        let chunk = Chunk { holders, wanted_by, combine: false, bytes: None, release: topology::Micros::ZERO };
        p.demand = Arc::new(Demand::from_chunks(Request::new(Collective::Custom, 3, 8), vec![chunk]).unwrap());
    };
    refuses(
        allreduce(),
        custom,
        expect![[r#"
            the number of parts is 3, but the demand gives 1
            the reduction is not the one of the demand"#]],
    );
}

#[test]
fn what_is_named_must_exist_and_fit() {
    refuses(
        allreduce(),
        |p| p.connections[0].to = Rank(0),
        expect![[r#"
        connection c0 goes from rank 0 to rank 0
        rank 1 threadblock 0 step 0 uses connection c0, which is not its own
        rank 1 threadblock 0 step 1 uses connection c0, which is not its own
        rank 1 threadblock 0 step 2 uses connection c0, which is not its own
        rank 1 threadblock 0 step 3 uses connection c0, which is not its own"#]],
    );
    refuses(
        allreduce(),
        |p| p.connections.push(p.connections[0]),
        expect!["connections c3 and c0 have the same ends and channel"],
    );
    let send = |to, src| Instruction::Send { to: ConnectionId(to), src };
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 0).instruction = send(9, slice(Buffer::Input, 0)),
        expect!["rank 0 threadblock 0 step 0 uses connection c9, which is not its own"],
    );
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 0).instruction = send(0, slice(Buffer::Input, 3)),
        expect!["rank 0 threadblock 0 step 0 names input[3], but the buffer has 3 slots"],
    );
    let none = Slice { buffer: Buffer::Input, index: 0, count: 0 };
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 0).instruction = send(0, none),
        expect!["rank 0 threadblock 0 step 0 names input[0..0], but the buffer has 3 slots"],
    );
    let reduce = |src, dst| Instruction::ReceiveReduce { from: ConnectionId(2), src, dst };
    let shapes = reduce(slice(Buffer::Input, 2), slice(Buffer::Output, 1));
    refuses(
        allreduce(),
        |p| step(p, 0, 1, 0).instruction = shapes,
        expect!["the slices of rank 0 threadblock 1 step 0 have different shapes"],
    );
    let input = reduce(slice(Buffer::Input, 2), slice(Buffer::Input, 2));
    refuses(
        allreduce(),
        |p| step(p, 0, 1, 0).instruction = input,
        expect!["rank 0 threadblock 1 step 0 writes input[2], which is not an output of this rank"],
    );
    let onto_itself = Instruction::Copy { src: slice(Buffer::Output, 0), dst: slice(Buffer::Output, 0) };
    refuses(
        allreduce(),
        |p| p.ranks[0].threadblocks.push(block(&[onto_itself])),
        expect!["the slices of rank 0 threadblock 2 step 0 overlap"],
    );
    let after = |threadblock, step| vec![StepRef { threadblock, step }];
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 1).after = after(0, 0),
        expect!["rank 0 threadblock 0 step 1 waits for 0.0, which is no step of another threadblock"],
    );
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 1).after = after(1, 9),
        expect!["rank 0 threadblock 0 step 1 waits for 1.9, which is no step of another threadblock"],
    );
}

#[test]
fn messages_must_match_and_never_wait_in_a_cycle() {
    let split = |p: &mut Program| {
        let last = p.ranks[0].threadblocks[1].steps.pop().unwrap();
        p.ranks[0].threadblocks.push(Threadblock { steps: vec![last] });
    };
    refuses(
        allreduce(),
        split,
        expect![
            "rank 0 threadblock 2 step 0 and rank 0 threadblock 1 step 2 are in two threadblocks that use the same end of connection c2"
        ],
    );
    refuses(
        allreduce(),
        |p| drop(p.ranks[0].threadblocks[0].steps.pop()),
        expect!["rank 1 threadblock 0 step 3 has no partner at the other end of connection c0"],
    );
    refuses(
        allreduce(),
        |p| p.ranks[0].threadblocks[0].steps.swap(2, 3),
        expect![[r#"
        rank 0 threadblock 0 step 2 and rank 1 threadblock 0 step 2 are partners, but their slices have different shapes
        rank 0 threadblock 0 step 3 and rank 1 threadblock 0 step 3 are partners, but their slices have different shapes"#]],
    );
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 0).after = vec![StepRef { threadblock: 1, step: 3 }],
        expect![
            "deadlock: 7 steps wait for each other, among them rank 1 threadblock 0 step 0; rank 1 threadblock 1 step 1; rank 2 threadblock 0 step 1; rank 2 threadblock 1 step 2"
        ],
    );
}

#[test]
fn accesses_must_be_ordered_and_values_right() {
    refuses(
        allreduce(),
        |p| step(p, 0, 0, 1).after.clear(),
        expect![
            "race on output[2] of rank 0: nothing orders rank 0 threadblock 1 step 0 and rank 0 threadblock 0 step 1"
        ],
    );
    let empty = |p: &mut Program| {
        p.ranks[0].scratch_parts = vec![0];
        step(p, 0, 0, 0).instruction = Instruction::Send { to: ConnectionId(0), src: slice(Buffer::Scratch, 0) };
    };
    refuses(
        allreduce(),
        empty,
        expect![[r#"
        rank 0 threadblock 0 step 0 reads scratch[0] before anything is there
        rank 1 threadblock 1 step 1 reads output[0] before anything is there
        rank 2 threadblock 1 step 2 reads output[0] before anything is there
        rank 0 threadblock 0 step 3 reads output[0] before anything is there
        rank 0 ends with nothing in output[0], where chunk 0 with 3 of 3 contributions belongs
        rank 1 ends with nothing in output[0], where chunk 0 with 3 of 3 contributions belongs
        rank 2 ends with nothing in output[0], where chunk 0 with 3 of 3 contributions belongs"#]],
    );
    let again = |p: &mut Program| {
        let (from, dst) = (ConnectionId(0), slice(Buffer::Output, 0));
        step(p, 1, 0, 3).instruction = Instruction::ReceiveReduce { from, src: dst, dst };
    };
    refuses(allreduce(), again, expect!["rank 1 threadblock 0 step 3 adds rank 0's part of chunk 0 twice"]);
    let unlike = |p: &mut Program| {
        let Instruction::ReceiveReduce { src, .. } = &mut step(p, 0, 1, 0).instruction else { unreachable!() };
        src.index = (src.index + 1) % 3;
    };
    refuses(
        lowered(&schedules::ring_reducescatter(3, 1), false),
        unlike,
        expect![[r#"
        rank 0 threadblock 1 step 0 reduces unlike values into scratch[0]
        rank 0 threadblock 0 step 1 reads scratch[0] before anything is there
        rank 1 ends with nothing in output[0], where chunk 1 with 3 of 3 contributions belongs"#]],
    );
    let wrong = |p: &mut Program| step(p, 0, 0, 1).instruction = step(p, 0, 0, 0).instruction;
    refuses(allgather(), wrong, expect!["rank 1 ends with chunk 0 in output[2], where chunk 2 belongs"]);
}

/// Two ranks, each with one threadblock that sends all its chunks before it receives any.
fn send_all_first(chunks: u32) -> Program {
    let mut program = lowered(&schedules::ring_allgather(2, chunks), true);
    for rank in &mut program.ranks {
        let slot = |step: &Step, k| resliced(step, |slice| Slice { index: slice.index + k, count: 1, ..slice });
        rank.threadblocks = expand(rank, |step| row((0..step.instruction.shape().count).map(|k| slot(step, k))));
        let mut steps: Vec<Step> = rank.threadblocks.drain(..).flat_map(|block| block.steps).collect();
        steps.iter_mut().for_each(|step| step.after.clear());
        steps.sort_by_key(|step| step.instruction.receives_from().is_some());
        rank.threadblocks.push(Threadblock { steps });
    }
    program
}

#[test]
fn the_window_is_the_least_that_suffices() {
    for chunks in [1, 3, 7, 11, 300] {
        assert_eq!(checked(send_all_first(chunks)).window(), chunks);
    }
    // Only with unlimited room may the checker say that more room does not help.
    let mut stuck = send_all_first(11);
    stuck.ranks[0].threadblocks[0].steps.rotate_left(11);
    assert_eq!(checked(stuck.clone()).window(), 0);
    stuck.ranks[1].threadblocks[0].steps.rotate_left(11);
    let Some(ProgramViolation::Deadlock { cycle }) = check(stuck).unwrap_err().iter().next().cloned() else {
        panic!("it would run")
    };
    assert!(cycle.len() >= 4);
}
