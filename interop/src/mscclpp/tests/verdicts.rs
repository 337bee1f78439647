//! Plans that are accepted, plans that are refused, and the reasons.

use super::super::*;
use super::samples::*;

fn faults(plan: ExecutionPlan) -> Vec<String> {
    match PlanFile::from(plan).import(1 << 12) {
        Ok(_) => Vec::new(),
        Err(violations) => violations.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn an_exchange_of_two_ranks_is_right() {
    assert_eq!(faults(pair_allgather()), Vec::<String>::new());
}

#[test]
fn packets_order_piece_by_piece() {
    assert_eq!(faults(pair_packets()), Vec::<String>::new());
}

#[test]
fn every_operation_of_the_exchange_is_needed() {
    let plan = pair_allgather();
    for op in 0..plan.gpus[0].threadblocks[0].ops.len() {
        let mut mutant = plan.clone();
        mutant.gpus[0].threadblocks[0].ops.remove(op);
        assert_ne!(faults(mutant), Vec::<String>::new(), "without operation {op}");
    }
}

#[test]
fn a_plan_survives_writing_and_reading() {
    for plan in [pair_allgather(), pair_packets()] {
        let text = serde_json::to_string_pretty(&plan).unwrap();
        assert_eq!(read(&text, "plan.json").unwrap().plan(), &plan);
        assert!(detects(&text));
    }
}

#[test]
fn places_are_given_in_the_text() {
    let mut plan = pair_allgather();
    plan.gpus[1].threadblocks[0].ops[3].src_buff.as_mut().unwrap()[0].index = 7;
    let text = serde_json::to_string_pretty(&plan).unwrap();
    let violations = read(&text, "plan.json").unwrap().import(64).unwrap_err();
    let first = violations.iter().next().unwrap();
    expect_test::expect!["rank 1 threadblock 0 op 3: chunks 7..8 of `i` of rank 1, which has 1"]
        .assert_eq(&first.to_string());
    let (line, _) = PlanFile::locate(&text, first.at).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let before = lines[..line].join("\n");
    assert_eq!(before.matches("\"name\": \"put\"").count(), 2, "the second put ends there");
}

#[test]
fn switches_barriers_and_semaphores_are_understood() {
    assert_eq!(faults(switch_allreduce()), Vec::<String>::new());
    assert_eq!(faults(barrier_allgather()), Vec::<String>::new());
}
