//! Programs written as plans, read again, judged, and executed.

use super::super::*;
use program::testing::executor::{Executor, Transport};
use program::testing::schedules::{self, Random};
use program::testing::{STANDARD, checked, lowered};
use schedule::{Collective, VerifiedSchedule};

/// Lowers, exports, reads, imports and runs.
fn road(schedule: &VerifiedSchedule, machines: &[u32], random: &mut Random) {
    // Large programs use only one of the forms, chosen at random.
    let ways = if schedule.schedule().demand.request().ranks > 6 {
        [random.below(2) == 0; 1].to_vec()
    } else {
        vec![false, true]
    };
    for in_place in ways {
        let program = checked(lowered(schedule, in_place));
        let options = PlanExportOptions { machines: machines.to_vec(), ..PlanExportOptions::default() };
        let plan = export(&program, &options).unwrap_or_else(|error| panic!("{error}"));
        let text = write(&plan);
        let file = read(&text, "plan.json").unwrap();
        assert_eq!(file.plan(), &plan);
        let import = file.import(program.program().demand.request().size_bytes).unwrap();
        assert!(import.notes.is_empty(), "{:?}", import.notes);
        assert_eq!(import.program.window(), 0);
        let back = import.program.program();
        assert_eq!(back.in_place, in_place);
        let count = u64::from(back.shape.parts());
        let executor = Executor { program: back, count, tiles: 1, transport: Transport::Window(0) };
        let state = executor.run(random).expect("the program runs to its end");
        executor.judge(&state).unwrap();
    }
}

#[test]
fn every_collective_over_2_to_16_ranks_comes_back() {
    let random = &mut Random(3);
    for ranks in 2..=16 {
        for collective in STANDARD {
            let chunks = 1 + (ranks as u32 % 2);
            let demand =
                schedules::demand(collective, ranks, if collective == Collective::AllToAll { 1 } else { chunks });
            let machines: Vec<u32> = (0..ranks as u32).map(|rank| rank * 2 / ranks as u32).collect();
            let topology = schedules::random_topology(ranks, random);
            let schedule = schedules::random_trees(&topology, &demand, random);
            road(&schedule, if ranks.is_multiple_of(3) { &machines } else { &[] }, random);
            if ranks <= 4 && !collective.combines() {
                road(&schedules::direct(&demand), &[], random);
            }
        }
        road(&schedules::ring_allreduce(ranks, 1), &[], random);
    }
}

#[test]
fn the_executor_s_limits_are_kept_by_going_on_in_other_threadblocks() {
    // 15 · 4 messages in one threadblock, four operations each.
    let program = checked(lowered(&schedules::ring_allgather(16, 4), false));
    let plan = export(&program, &PlanExportOptions::default()).unwrap();
    let blocks: usize = plan.gpus.iter().map(|gpu| gpu.threadblocks.len()).sum();
    let before: usize = program.program().ranks.iter().map(|rank| rank.threadblocks.len()).sum();
    assert!(blocks > before, "{blocks} threadblocks from {before}");
    assert_eq!(limits::check(&plan), []);
}

#[test]
fn long_threadblocks_with_many_dependencies_go_on_rightly() {
    let random = &mut Random(5);
    for chunks in [2, 3, 4] {
        let topology = schedules::random_topology(8, random);
        let demand = schedules::demand(Collective::AllReduce, 8, chunks);
        let program = checked(lowered(&schedules::random_trees(&topology, &demand, random), false));
        match export(&program, &PlanExportOptions::default()) {
            Ok(plan) => assert_eq!(limits::check(&plan), []),
            Err(error) => assert!(matches!(error, PlanExportError::Threadblocks { .. }), "{error}"),
        }
    }
}

#[test]
fn what_the_format_cannot_say_is_refused() {
    let refusal = |program: &VerifiedProgram| export(program, &PlanExportOptions::default()).unwrap_err().to_string();
    let mut request = schedule::Request::new(Collective::Broadcast, 3, 64);
    request.root = Some(topology::Rank(1));
    let demand = std::sync::Arc::new(schedule::Demand::new(request).unwrap());
    let program = checked(lowered(&schedules::direct(&demand), false));
    expect_test::expect!["MSCCL++ plans cannot express a root other than rank 0, such as rank 1"]
        .assert_eq(&refusal(&program));
    let mut request = schedule::Request::new(Collective::AllGather, 3, 64);
    request.members = [topology::Rank(0), topology::Rank(2)].into_iter().collect();
    let demand = std::sync::Arc::new(schedule::Demand::new(request).unwrap());
    let program = checked(lowered(&schedules::direct(&demand), false));
    expect_test::expect!["MSCCL++ plans cannot express a collective over 2 of 3 ranks"].assert_eq(&refusal(&program));
}
