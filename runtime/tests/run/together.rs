//! Several collectives at the same time, in overlapping and disjoint groups of ranks, over every transport.

use crate::agents::Spread;
use crate::plans::{COLLECTIVES, PlanSpec};
use crate::worker::{Mischief, launch};
use program::VerifiedProgram;
use runtime::{
    Assignment, Cause, DType, Emulation, ExecutionOptions, Group, Hosts, Job, JobSpec, ProgramSource, RunError,
    RunResult, SplitChoice, Trial, TrialReport, try_together,
};
use schedule::Collective;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// A seeded generator: equal seeds give equal tests.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// A collective with its group.
struct Item {
    spec: PlanSpec,
    program: VerifiedProgram,
    group: Group,
    trial: Trial,
}

impl Item {
    fn new(spec: PlanSpec, group: Group, count: u64, dtype: DType) -> Self {
        let trial = Trial { warmups: 1, repetitions: 3, ..Trial::once(count, dtype) };
        Self { program: spec.program(), spec, group, trial }
    }

    /// A random collective of any kind and size, in a random group of at most `ranks` ranks.
    fn any(dice: &mut Dice, ranks: usize) -> Self {
        let mut members: Vec<usize> = (0..ranks).collect();
        let size = 1 + dice.below(ranks);
        let group = (0..size).map(|_| Rank::from_index(members.swap_remove(dice.below(members.len()))));
        let group = Group::new(group.collect::<Vec<_>>()).unwrap();
        let family = dice.one_of(&["ring", "clique"]);
        let collective = dice.one_of(&COLLECTIVES);
        let in_place = dice.below(2) == 0;
        let spec = PlanSpec {
            in_place,
            chunks: 1 + dice.below(3) as u32,
            ..PlanSpec::new(&format!("{family}:{size}"), collective)
        };
        let count = dice.one_of(&[0, 1, 17, 1001, 20_011, 300_000, 1_000_003]);
        let count = if collective == Collective::AllToAll { count / 8 } else { count };
        Self::new(spec, group, count, dice.one_of(DType::ALL))
    }

    fn assignment(&self) -> Assignment<'_> {
        Assignment { program: &self.program, group: self.group.clone(), trial: self.trial.clone() }
    }
}

fn check(items: &[Item], reports: RunResult<Vec<TrialReport>>) {
    let what = || items.iter().map(|item| format!("{} by {:?}", item.spec, item.group)).collect::<Vec<_>>().join("; ");
    let reports = reports.unwrap_or_else(|error| panic!("{error}: {}", what()));
    assert_eq!(reports.len(), items.len());
    for (item, report) in items.iter().zip(&reports) {
        assert_eq!(report.wrong(), 0, "{} in {}", item.spec, what());
        assert_eq!((report.ranks.len(), report.spans().len()), (item.group.ranks().len(), 3));
    }
    // All collectives start at the same time, and none ends later than the span of all.
    for (repetition, all) in TrialReport::spans_of_all(&reports).into_iter().enumerate() {
        assert!(reports.iter().all(|report| report.spans()[repetition].0 <= all.0));
    }
}

fn in_threads(items: &[Item], ranks: usize, options: &ExecutionOptions) {
    let assignments: Vec<_> = items.iter().map(Item::assignment).collect();
    check(items, try_together(ranks, &assignments, options));
}

fn run(job: &mut Job, items: &[Item]) -> RunResult<Vec<TrialReport>> {
    let words: Vec<String> = items.iter().map(|item| item.spec.to_string()).collect();
    let source = |words| ProgramSource { words, files: &[] };
    let trials: Vec<_> = items.iter().zip(&words).map(|(item, words)| (source(words), item.assignment())).collect();
    job.run_together(&trials)
}

/// Each subset runs together with its complement and with the group of all ranks, which overlaps both.
#[test]
fn every_subset_of_six_ranks_is_a_group() {
    let all_reduce = |group: &Group, index: usize| {
        let collective = COLLECTIVES[index % COLLECTIVES.len()];
        Item::new(PlanSpec::new(&format!("ring:{}", group.ranks().len()), collective), group.clone(), 1003, DType::I64)
    };
    for subset in 0_u32..64 {
        let choose = |rank: i64| Some(SplitChoice { color: subset >> rank & 1, key: -rank });
        let groups = Group::all(6).split(&(0..6).map(choose).collect::<Vec<_>>());
        let groups = groups.into_iter().chain([Group::all(6)]);
        let items: Vec<Item> =
            groups.enumerate().map(|(index, group)| all_reduce(&group, subset as usize + index)).collect();
        in_threads(&items, 6, &ExecutionOptions::default());
    }
}

#[test]
fn whatever_is_in_flight_in_threads_is_right() {
    let mut dice = Dice(1);
    for round in 0..25 {
        let ranks = 2 + dice.below(6);
        let items: Vec<Item> = (0..1 + dice.below(8)).map(|_| Item::any(&mut dice, ranks)).collect();
        let options = match round % 3 {
            0 => ExecutionOptions { ring_bytes: 4096, tile_bytes: Some(5000), ..ExecutionOptions::default() },
            _ => ExecutionOptions::default(),
        };
        in_threads(&items, ranks, &options);
    }
}

#[test]
fn whatever_is_in_flight_in_processes_is_right() {
    for (seed, hosts) in [(2, Hosts::One), (3, Hosts::Each), (4, Hosts::Of(vec![0, 1, 1, 0, 2]))] {
        let options = ExecutionOptions { hosts, ..ExecutionOptions::default() };
        let mut job = launch(&JobSpec { ranks: 5, options, ..JobSpec::default() }, |_| Mischief::None).unwrap();
        let mut dice = Dice(seed);
        for _ in 0..8 {
            let items: Vec<Item> = (0..1 + dice.below(6)).map(|_| Item::any(&mut dice, 5)).collect();
            let reports = run(&mut job, &items);
            check(&items, reports);
        }
    }
}

#[test]
fn whatever_is_in_flight_between_machines_is_right() {
    let mut spread = Spread::form(&["a", "b", "b", "a", "c"], Duration::from_secs(30));
    let mut dice = Dice(5);
    for _ in 0..5 {
        let items: Vec<Item> = (0..1 + dice.below(5)).map(|_| Item::any(&mut dice, 5)).collect();
        let reports = run(spread.job(), &items);
        check(&items, reports);
    }
}

/// Two collectives on the links of one emulated machine take about twice as long as one.
#[test]
fn collectives_in_flight_share_the_links_of_an_emulated_machine() {
    let machine = Arc::new(crate::plans::machine("ring:4,alpha=1000us,bandwidth=0.1GBps"));
    let options =
        ExecutionOptions { emulation: Some(Emulation::new(machine, 1.0).unwrap()), ..ExecutionOptions::default() };
    let plan =
        |collective| PlanSpec { size: 800_000, ..PlanSpec::new("ring:4,alpha=1000us,bandwidth=0.1GBps", collective) };
    let time = |items: &[Item]| {
        let assignments: Vec<_> = items.iter().map(Item::assignment).collect();
        let reports = try_together(4, &assignments, &options).unwrap();
        assert!(reports.iter().all(|report| report.wrong() == 0));
        TrialReport::spans_of_all(&reports).into_iter().map(|span| span.0).fold(f64::INFINITY, f64::min)
    };
    let item = || Item::new(plan(Collective::AllGather), Group::all(4), 50_000, DType::F32);
    let (one, two) = (time(&[item()]), time(&[item(), item()]));
    assert!((1.5..2.5).contains(&(two / one)), "{one} µs alone, {two} µs together");
}

/// A program for a group cannot run on an emulated machine if it uses other links.
#[test]
fn what_does_not_fit_is_refused_before_it_runs() {
    let item = |ranks: &[u32], size: usize, repetitions| {
        let group = Group::new(ranks.iter().copied().map(Rank)).unwrap();
        let mut item = Item::new(PlanSpec::new(&format!("ring:{size}"), Collective::AllReduce), group, 10, DType::F32);
        item.trial.repetitions = repetitions;
        item
    };
    let refused = |items: &[Item], options: &ExecutionOptions| {
        let assignments: Vec<_> = items.iter().map(Item::assignment).collect();
        let error = try_together(4, &assignments, options).unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    };
    let plain = ExecutionOptions::default();
    assert!(refused(&[item(&[0, 1, 2], 2, 1)], &plain).contains("the plan is for 2 ranks, its group has 3"));
    assert!(refused(&[item(&[0, 4], 2, 1)], &plain).contains("for rank 4 as well, the job has 4 ranks"));
    assert!(refused(&[item(&[0, 1], 2, 1), item(&[2, 3], 2, 5)], &plain).contains("as many repetitions"));
    let machine = Arc::new(crate::plans::machine("ring:4"));
    let emulated =
        ExecutionOptions { emulation: Some(Emulation::new(machine, 1.0).unwrap()), ..ExecutionOptions::default() };
    let text = refused(&[item(&[0, 1, 2, 3], 4, 1), item(&[0, 2], 2, 1)], &emulated);
    assert!(text.contains("plan 2 of 2") && text.contains("another topology"), "{text}");
}

#[test]
fn one_plans_fault_ends_all_and_is_named() {
    // Rank 2 loads another plan than the others, for each of its plans.
    let mischief = |rank| if rank == Rank(2) { Mischief::OtherPlan } else { Mischief::None };
    let mut job = launch(&JobSpec { ranks: 4, ..JobSpec::default() }, mischief).unwrap();
    let items: Vec<Item> = [[0, 1], [2, 3]]
        .into_iter()
        .map(|ranks| {
            let group = Group::new(ranks.map(Rank)).unwrap();
            let plan = PlanSpec { chunks: 2, ..PlanSpec::new("ring:2", Collective::AllReduce) };
            Item::new(plan, group, 1000, DType::F32)
        })
        .collect();
    let error = run(&mut job, &items).unwrap_err();
    let RunError::Ended { verdict, evidence, .. } = error else { panic!("{error}") };
    assert!(evidence.starts_with("its plan 1 of 2 is"), "{evidence}");
    assert_eq!((verdict.rank, verdict.cause), (Rank(2), Cause::Disagrees), "{evidence}");
}
