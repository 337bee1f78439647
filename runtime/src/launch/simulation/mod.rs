//! Random schedules of the control protocol: messages that are late, lost, duplicated and reordered; crashes; stops;
//! ranks that differ from the others.
//!
//! Every schedule must satisfy the following. No collective has two plans, and none begins before all ranks have voted.
//! The coordinator decides and every rank ends in bounded time. A verdict names a rank that was hit by a fault.
//! Messages of an epoch that is over change nothing. A job that was rebuilt works.

mod agent;
mod coordinator;
mod history;
mod host;
mod naive;
pub(super) mod setup;
mod transcripts;
mod world;

use crate::clock::Moment;
use crate::control::agent_state::AgentOutcome;
use crate::numbers::TaskNumber;
use crate::verdict::Cause;
use setup::{FOR_EVER, InjectedFault, Party, Random, SimulationSetup};
use std::time::Duration;
use topology::Rank;
use world::{PartyState, SimulatedWorld, TaskOutcome};

/// How long a job may take: four epochs of seven questions, with a limit for each, and the time that ranks need.
const LONGEST: Duration = Duration::from_secs(100);
/// How long the others may take after the coordinator's end: its silence, a worker's own deadline, the last reports.
const AFTERWARDS: Duration = Duration::from_secs(12);

/// Runs a job until every party has ended that can end.
fn play(setup: SimulationSetup) -> SimulatedWorld {
    let seed = setup.seed;
    let mut world = SimulatedWorld::new(setup);
    let begin = world.now;
    while world.coordinator != PartyState::Gone && world.proceed_until(begin.after(LONGEST)) {}
    if world.coordinator == PartyState::Stopped {
        // The others have not waited for the stopped coordinator.
        assert_all_left(&world);
        return world;
    }
    assert_eq!(
        world.coordinator,
        PartyState::Gone,
        "seed {seed}: the task has not ended after {:?}",
        world.now.since(begin)
    );
    let now = world.now;
    while world.proceed_until(now.after(AFTERWARDS)) {}
    assert_all_left(&world);
    world
}

/// Checks that no party still runs.
fn assert_all_left(world: &SimulatedWorld) {
    let setup = &world.setup;
    for (rank, host) in world.hosts.iter().enumerate() {
        assert!(rank == 0 || host.agent != PartyState::Runs, "agent {rank} waits for ever: {setup:?}");
        // For others, a worker without orders from its stopped agent looks stopped as well.
        let agent = if rank == 0 { world.coordinator } else { host.agent };
        assert!(
            host.worker != PartyState::Runs || agent == PartyState::Stopped,
            "worker {rank} waits for ever: {setup:?}"
        );
    }
}

fn check(setup: SimulationSetup) -> SimulatedWorld {
    let seed = setup.seed;
    let (ranks, tasks, crashes) = (setup.ranks, setup.tasks, setup.faults.clone());
    let world = play(setup);
    let right = world.outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
    for outcome in &world.outcomes {
        let Err((verdict, evidence)) = outcome else { continue };
        // If the coordinator and all others have lost each other, nobody can tell which side was lost.
        let all_others = || verdict.cause == Cause::Cut && (1..ranks).all(|rank| world.faulty.contains(&rank));
        let was_hit = world.faulty.contains(&verdict.rank.index()) || verdict.rank == Rank(0) && all_others();
        assert!(was_hit, "{verdict}: {evidence}, but it did nothing: {:?}, hit {:?}", world.setup, world.faulty);
    }
    assert!(!world.faulty.is_empty() || right == tasks, "seed {seed}: {:?}", world.outcomes);
    // Every task that can be rebuilt is. Agents that died or were cut off cannot return, nor can a lost coordinator.
    let is_final = |&(_, fault): &(u64, InjectedFault)| match fault {
        InjectedFault::Crash(party) | InjectedFault::Stop(party, _) => !matches!(party, Party::Worker(_)),
        InjectedFault::Silence(..) | InjectedFault::Isolation | InjectedFault::CutOff => true,
        _ => false,
    };
    if !crashes.iter().any(is_final) && world.setup.lost == 0 {
        assert_eq!(right, tasks, "seed {seed}: the task was not rebuilt: {:?}", world.outcomes);
    }
    world
}

fn random_setup(seed: u64) -> SimulationSetup {
    let mut random = Random(seed ^ 0x5eed);
    let ranks = 2 + random.below(4) as usize;
    let mut faults = Vec::new();
    for _ in 0..random.below(3) {
        let rank = random.below(ranks as u64) as usize;
        let party = match (random.below(6), rank) {
            (0, _) => Party::Coordinator,
            (1 | 2, 1..) => Party::Agent(rank),
            _ => Party::Worker(rank),
        };
        let millis = [300, 2500, FOR_EVER][random.below(3) as usize];
        let fault = match random.below(11) {
            0 | 1 => InjectedFault::Crash(party),
            2 | 3 => InjectedFault::Stop(party, millis),
            4 if rank > 0 => InjectedFault::Silence(rank, millis),
            4 | 5 => InjectedFault::CutLane(rank),
            10 => InjectedFault::CutLanes(rank),
            6 => InjectedFault::OtherPlan(rank),
            7 => InjectedFault::NoPlan(rank),
            8 => [InjectedFault::CutOff, InjectedFault::Isolation][random.below(2) as usize],
            _ => [InjectedFault::OtherProtocol(rank), InjectedFault::Slow(rank)][random.below(2) as usize],
        };
        faults.push((random.below(3000), fault));
    }
    let lost = [0, 0, 0, 2, 10][random.below(5) as usize];
    let doubled = [0, 10, 30][random.below(3) as usize];
    let delay = [1, 20, 150][random.below(3) as usize];
    SimulationSetup { seed, ranks, tasks: 1 + random.below(3), delay, lost, doubled, faults }
}

fn schedules(from: u64, count: u64) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                for seed in (from..from + count).filter(|seed| seed % workers == worker) {
                    check(random_setup(seed));
                }
            });
        }
    });
}

#[test]
fn no_schedule_hangs_disagrees_or_blames_the_innocent() {
    schedules(1_000_000, 2_000);
}

#[test]
fn long_no_schedule_hangs_disagrees_or_blames_the_innocent() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    schedules(0, if is_long { 100_000 } else { 500 });
}

/// A job of three ranks with only these faults.
fn with(faults: Vec<(u64, InjectedFault)>) -> SimulatedWorld {
    check(SimulationSetup { seed: 1, ranks: 3, tasks: 2, delay: 2, lost: 0, doubled: 0, faults })
}

fn first(world: &SimulatedWorld) -> &TaskOutcome {
    world.outcomes.first().expect("the task has an outcome")
}

#[test]
fn a_job_without_faults_runs_all_tasks_and_everybody_leaves_in_peace() {
    let world = with(Vec::new());
    assert_eq!(world.outcomes, [Ok(TaskNumber(1)), Ok(TaskNumber(2))]);
    assert!(world.hosts[1..].iter().all(|host| matches!(host.outcome, Some(AgentOutcome::Done))));
}

#[test]
fn each_fault_has_its_verdict() {
    let cases = [
        (InjectedFault::Crash(Party::Worker(1)), Rank(1), Cause::Died),
        (InjectedFault::Crash(Party::Agent(2)), Rank(2), Cause::Lost),
        (InjectedFault::Stop(Party::Worker(2), FOR_EVER), Rank(2), Cause::Silent),
        (InjectedFault::Stop(Party::Agent(1), 2500), Rank(1), Cause::Silent),
        (InjectedFault::Silence(2, FOR_EVER), Rank(2), Cause::Silent),
        (InjectedFault::CutOff, Rank(0), Cause::Cut),
        (InjectedFault::Isolation, Rank(0), Cause::Cut),
        (InjectedFault::CutLanes(0), Rank(0), Cause::Cut),
        (InjectedFault::CutLanes(2), Rank(2), Cause::Cut),
        (InjectedFault::OtherPlan(1), Rank(1), Cause::Disagrees),
        (InjectedFault::NoPlan(2), Rank(2), Cause::Failed),
        (InjectedFault::OtherProtocol(2), Rank(2), Cause::Disagrees),
    ];
    for (fault, rank, cause) in cases {
        // A worker's protocol version is fixed when it starts.
        let after = if matches!(fault, InjectedFault::OtherProtocol(_)) { 0 } else { 40 };
        let world = with(vec![(after, fault)]);
        let Err((verdict, evidence)) = first(&world) else { panic!("{fault:?} did nothing") };
        assert_eq!((verdict.rank, verdict.cause), (rank, cause), "{fault:?}: {verdict}: {evidence}");
    }
}

#[test]
fn a_slow_rank_is_waited_for_and_a_cut_lane_is_named_by_its_ends() {
    assert_eq!(with(vec![(0, InjectedFault::Slow(1))]).outcomes, [Ok(TaskNumber(1)), Ok(TaskNumber(2))]);
    let world = with(vec![(0, InjectedFault::CutLane(1))]);
    let Err((verdict, evidence)) = first(&world) else { panic!("a cut lane did nothing") };
    assert!(verdict.cause == Cause::Cut && [Rank(1), Rank(2)].contains(&verdict.rank), "{verdict}: {evidence}");
}

#[test]
fn a_coordinator_that_still_hears_somebody_blames_whom_it_lost() {
    let lost = |agents: std::ops::Range<usize>| {
        let faults = agents.map(|rank| (400, InjectedFault::Crash(Party::Agent(rank)))).collect();
        check(SimulationSetup { seed: 1, ranks: 4, tasks: 2, delay: 2, lost: 0, doubled: 0, faults })
    };
    let world = lost(1..3);
    let Err((verdict, _)) = first(&world) else { panic!("two crashes did nothing") };
    assert!(verdict.cause == Cause::Lost && verdict.rank != Rank(0), "{verdict}");
    // If all agents are lost at once, the coordinator's own connection is more likely the cause.
    let world = lost(1..4);
    let Err((verdict, _)) = first(&world) else { panic!("three crashes did nothing") };
    assert_eq!((verdict.rank, verdict.cause), (Rank(0), Cause::Cut), "{verdict}");
}

#[test]
fn a_coordinator_that_was_stopped_blames_itself() {
    for after in [100, 700, 1100] {
        let world = with(vec![(after, InjectedFault::Stop(Party::Coordinator, 5000))]);
        for outcome in &world.outcomes {
            let Err((verdict, _)) = outcome else { continue };
            assert_eq!(verdict.rank, Rank(0), "stopped after {after} ms: {verdict}");
        }
        assert!(world.now > Moment(0));
    }
}
