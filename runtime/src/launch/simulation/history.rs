//! Known bugs of other protocols. In each scenario the naive protocol hangs or disagrees, and the real one does not.

use super::naive;
use super::play;
use super::setup::{FOR_EVER, InjectedFault, Party, SimulationSetup};
use super::world::{PartyState, SimulatedWorld};
use crate::control::agent_state::AgentOutcome;
use crate::verdict::{Cause, Verdict};
use topology::Rank;

/// What happens to one of the ranks, or how it differs from the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scenario {
    /// It is stopped before the trial and never continues.
    Stops(usize),
    /// It throws an exception before the barrier of the trial.
    ThrowsBeforeTheBarrier(usize),
    /// All its questions to the others fail, but only on its side.
    CannotAsk(usize),
    /// The trial times out. By the clock of this rank, one more repetition fits into the time than by the other clocks.
    Clocks(usize),
    /// It fails before it enters the trial, and reports nothing.
    FailsBeforeEntry(usize),
    /// It finishes the trial just before the deadline, and all others just after it.
    LeavesInTime(usize),
    /// It finds an answer in its cache, and the others find none.
    KnowsTheAnswer(usize),
}

/// How a rank ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RankEnding {
    /// It decides this.
    Decides(String),
    Hangs,
    /// It is stopped and cannot do anything.
    Stopped,
}

const RANKS: usize = 3;

/// Runs a scenario on the real protocol. Returns the simulation and how every rank ends.
fn ours(scenario: Scenario) -> (SimulatedWorld, Vec<RankEnding>) {
    let fault = match scenario {
        Scenario::Stops(rank) => InjectedFault::Stop(Party::Worker(rank), FOR_EVER),
        Scenario::ThrowsBeforeTheBarrier(rank) => InjectedFault::NoPlan(rank),
        Scenario::CannotAsk(rank) => InjectedFault::Silence(rank, FOR_EVER),
        // No clock decides how often to repeat; the order says it. A slow rank is only slow.
        Scenario::Clocks(rank) | Scenario::LeavesInTime(rank) => InjectedFault::Slow((rank + 1) % RANKS),
        Scenario::FailsBeforeEntry(rank) => InjectedFault::Crash(Party::Worker(rank)),
        Scenario::KnowsTheAnswer(rank) => InjectedFault::OtherPlan(rank),
    };
    // By then the rank has joined and prepares its first task.
    let world = play(SimulationSetup {
        seed: 3,
        ranks: RANKS,
        tasks: 1,
        delay: 2,
        lost: 0,
        doubled: 0,
        faults: vec![(110, fault)],
    });
    let decided = match world.outcomes.first() {
        Some(Err((verdict, _))) => verdict.to_string(),
        Some(Ok(_)) => "measured".to_owned(),
        None => "nothing".to_owned(),
    };
    let ending = |rank: usize| match (&world.hosts[rank], rank) {
        (host, 1..) if host.agent == PartyState::Runs => RankEnding::Hangs,
        (host, 1..) if matches!(host.outcome, Some(AgentOutcome::Abandoned(_))) => {
            RankEnding::Decides("nobody decides".to_owned())
        }
        _ => RankEnding::Decides(decided.clone()),
    };
    let endings = (0..RANKS).map(ending).collect();
    (world, endings)
}

fn verdict(world: &SimulatedWorld) -> Verdict {
    match world.outcomes.first() {
        Some(Err((verdict, _))) => *verdict,
        other => panic!("{other:?} is no verdict"),
    }
}

fn decides(what: &str) -> RankEnding {
    RankEnding::Decides(what.to_owned())
}

/// Whether all ranks decide the same.
fn agreed(endings: &[RankEnding]) -> bool {
    matches!(endings.first(), Some(RankEnding::Decides(_))) && endings.iter().all(|ending| *ending == endings[0])
}

#[test]
fn the_verdict_travels_on_the_suspect_channel() {
    let endings = naive::play(Scenario::Stops(1), RANKS);
    assert_eq!(
        endings,
        [RankEnding::Hangs, RankEnding::Stopped, RankEnding::Hangs],
        "who asks about a time-out waits for ever"
    );
    let (world, endings) = ours(Scenario::Stops(1));
    assert!(agreed(&endings), "{endings:?}");
    assert_eq!((verdict(&world).rank, verdict(&world).cause), (Rank(1), Cause::Silent));
}

#[test]
fn local_exceptions_desynchronise_the_sequence() {
    let endings = naive::play(Scenario::ThrowsBeforeTheBarrier(1), RANKS);
    // Its question about failures is its first collective and meets their barrier. Theirs about time-outs meets
    // nothing.
    assert!(!agreed(&endings) && endings.contains(&RankEnding::Hangs), "{endings:?}");
    let (world, endings) = ours(Scenario::ThrowsBeforeTheBarrier(1));
    assert!(agreed(&endings), "{endings:?}");
    assert_eq!((verdict(&world).rank, verdict(&world).cause), (Rank(1), Cause::Failed));
}

#[test]
fn who_could_not_ask_decides_alone() {
    let endings = naive::play(Scenario::CannotAsk(1), RANKS);
    assert_eq!(endings[1], decides("timed out"));
    assert!(!agreed(&endings), "{endings:?}");
    let (world, endings) = ours(Scenario::CannotAsk(1));
    // The rank cannot know the decision and does not guess: it ends. The others agree.
    assert_eq!(endings[1], decides("nobody decides"));
    assert!(endings[0] == endings[2] && endings[0] == decides(&verdict(&world).to_string()), "{endings:?}");
    assert_eq!(verdict(&world).rank, Rank(1));
}

#[test]
fn the_fallback_measures_again_as_often_as_each_clock_says() {
    let endings = naive::play(Scenario::Clocks(1), RANKS);
    assert_eq!(endings, [decides("measured"), RankEnding::Hangs, decides("measured")]);
    let (_, endings) = ours(Scenario::Clocks(1));
    assert!(agreed(&endings) && endings[0] == decides("measured"), "{endings:?}");
}

#[test]
fn if_one_times_out_all_do_is_not_true() {
    // One rank fails before it enters the trial, and one just finishes in time.
    let endings = naive::play(Scenario::FailsBeforeEntry(1), RANKS);
    assert!(!agreed(&endings) && endings[0] == decides("timed out"), "{endings:?}");
    let endings = naive::play(Scenario::LeavesInTime(1), RANKS);
    assert!(endings.contains(&RankEnding::Hangs) && endings.contains(&decides("timed out")), "{endings:?}");
    let (world, endings) = ours(Scenario::FailsBeforeEntry(1));
    assert!(agreed(&endings), "{endings:?}");
    assert_eq!((verdict(&world).rank, verdict(&world).cause), (Rank(1), Cause::Died));
    let (_, endings) = ours(Scenario::LeavesInTime(1));
    assert!(agreed(&endings), "{endings:?}");
}

#[test]
fn the_second_start_hangs_where_one_rank_finds_the_answer_in_its_cache() {
    let endings = naive::play(Scenario::KnowsTheAnswer(1), RANKS);
    assert_eq!(endings, [RankEnding::Hangs, decides("cached"), RankEnding::Hangs]);
    let (world, endings) = ours(Scenario::KnowsTheAnswer(1));
    assert!(agreed(&endings), "{endings:?}");
    assert_eq!((verdict(&world).rank, verdict(&world).cause), (Rank(1), Cause::Disagrees));
}
