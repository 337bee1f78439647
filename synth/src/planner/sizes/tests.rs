//! Sweeps over sizes, judged by the verifier and by separate searches.

use super::*;
use crate::planner::synthesize;
use crate::problem::{Limits, StrategyKind};
use schedule::{Collective, verify};

const SIZES: [u64; 8] = [1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 23, 1 << 26, 1 << 30];

fn task(spec: &str, collective: Collective) -> SizeTask {
    let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
    let request = Request::new(collective, topology.rank_count(), 0);
    SizeTask { topology, constraints: Arc::new(Constraints::none()), request, chunks: None }
}

fn options(strategy: StrategyKind) -> SearchOptions {
    SearchOptions { strategy: Some(strategy), ..SearchOptions::default() }
}

/// Checks that the windows are disjoint and cover all sizes, and that every plan is valid and has the stated makespan
/// at every size of its window.
fn check(task: &SizeTask, found: &SizeSweep) {
    assert_eq!(found.windows[0].from_bytes, SIZES[0]);
    assert_eq!(found.windows.last().map(|it| it.to_bytes), Some(SIZES[7] + 1));
    assert!(found.windows.windows(2).all(|pair| pair[0].to_bytes == pair[1].from_bytes));
    assert!(found.windows.iter().all(|it| it.from_bytes < it.to_bytes));
    for at in &found.sizes {
        let window = &found.windows[at.window];
        assert!((window.from_bytes..window.to_bytes).contains(&at.size_bytes));
        let retimed = SendOrder::new(&window.schedule).at(task, at.size_bytes).expect("it can be played");
        let verified = verify(retimed, &task.topology).expect("and is right");
        assert!((verified.schedule().makespan() / at.makespan - 1.0).abs() < 1e-6, "{at:?}");
        assert!(at.makespan.0 <= at.best.0 * (1.0 + TOLERANCE));
        assert!(at.best.0 >= at.bound.value.0 * (1.0 - 1e-7));
    }
}

#[test]
fn windows_cover_the_sizes_with_right_plans() {
    for (spec, collective) in [
        ("dgx1", Collective::AllGather),
        ("ring:5,direction=both", Collective::ReduceScatter),
        ("hypercube:3", Collective::AllReduce),
        ("dgx1", Collective::AllReduce),
        ("switch:6", Collective::AllToAll),
        ("mesh2d:2x3", Collective::Broadcast),
    ] {
        let task = task(spec, collective);
        let found = synthesize_sizes(&task, &SIZES, &options(StrategyKind::Classic), &|_| {}).expect("plans");
        check(&task, &found);
        assert!(found.windows.len() < SIZES.len(), "{spec} {collective}: {} windows", found.windows.len());
        // Except for the tolerance, no worse than a separate search at each size.
        for at in &found.sizes {
            let problems = task.problems(at.size_bytes).expect("problems");
            let alone = synthesize(&problems, &options(StrategyKind::Classic), &|_| {}).expect("a plan");
            let alone = alone.report.makespan_us;
            assert!(at.makespan.0 <= alone * (1.0 + 2.0 * TOLERANCE), "{spec} {collective} {at:?} alone {alone}");
        }
    }
}

#[test]
fn sizes_share_their_work() {
    let task = task("ring:4,direction=both", Collective::AllGather);
    let limits = Limits { restarts: 4, ..Limits::default() };
    let options = SearchOptions { limits, ..options(StrategyKind::Matching) };
    let found = synthesize_sizes(&task, &SIZES, &options, &|_| {}).expect("plans");
    check(&task, &found);
    let searched = found.sizes.iter().filter(|at| at.searched).count();
    assert!(searched < SIZES.len(), "{searched} of {} sizes were searched", SIZES.len());
}

#[test]
fn plans_that_are_too_large_are_refused_at_once() {
    let task = task("torus2d:64x64", Collective::AllGather);
    let refused = synthesize_sizes(&task, &SIZES, &SearchOptions::default(), &|_| {});
    assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
}

#[test]
fn no_size_is_an_error() {
    let refused = synthesize_sizes(&task("ring:3", Collective::AllGather), &[], &SearchOptions::default(), &|_| {});
    assert!(matches!(refused, Err(SynthError::NoProblem)));
}
