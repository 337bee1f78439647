//! A small implementation of the naive protocol, to show its errors. Only the tests in `history` use it.
//!
//! Every rank decides by itself. It asks the others with ordered anonymous collectives, on the same channel that
//! carries the work: a barrier with a time-out before each trial, and afterwards a reduction of flags without a
//! time-out. A rank's n-th collective meets the n-th of every other rank, even if the two have different meanings.

use super::history::{RankEnding, Scenario};

/// The next call of a rank on the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RankCall {
    /// Returns after a time-out if a rank is missing.
    Barrier,
    /// A repetition of the measured collective. It has no time-out.
    Measure,
    /// The largest flag of all ranks, with the question of this rank. It has no time-out.
    Flag(&'static str, bool),
}

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallOutcome {
    Done,
    /// The largest flag.
    Answer(bool),
    TimedOut,
}

/// One rank. It gets the outcome of its last call, and makes the next call or decides.
struct SimulatedRank {
    scenario: Scenario,
    rank: usize,
    place: RankProgress,
    measured: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RankProgress {
    Begin,
    Barrier,
    AskedForTimeout,
    Measuring,
    Fallback,
    AskedForException,
}

enum Next {
    Call(RankCall),
    Decided(&'static str),
    /// It is stopped, and makes no call.
    Stopped,
}

/// The number of repetitions of a trial.
const REPETITIONS: u32 = 3;

impl SimulatedRank {
    fn throws(&self) -> Next {
        Next::Call(RankCall::Flag("did anybody fail?", true))
    }

    fn next(&mut self, last: Option<CallOutcome>) -> Next {
        let mine = |of: usize| of == self.rank;
        match (self.place, last) {
            (RankProgress::Begin, _) => match self.scenario {
                Scenario::Stops(rank) if mine(rank) => Next::Stopped,
                Scenario::ThrowsBeforeTheBarrier(rank) if mine(rank) => {
                    self.place = RankProgress::AskedForException;
                    self.throws()
                }
                Scenario::KnowsTheAnswer(rank) if mine(rank) => Next::Decided("cached"),
                Scenario::FailsBeforeEntry(rank) if mine(rank) => Next::Decided("failed"),
                _ => {
                    self.place = RankProgress::Barrier;
                    Next::Call(RankCall::Barrier)
                }
            },
            (RankProgress::Barrier, Some(CallOutcome::TimedOut)) => match self.scenario {
                // The naive assumption: if one rank times out, all do, so no rank need ask.
                Scenario::FailsBeforeEntry(_) | Scenario::LeavesInTime(_) => Next::Decided("timed out"),
                // `except: return True`: the rank could not ask, so it decides alone.
                Scenario::CannotAsk(rank) if mine(rank) => Next::Decided("timed out"),
                Scenario::Clocks(_) => {
                    self.place = RankProgress::Fallback;
                    Next::Call(RankCall::Measure)
                }
                _ => {
                    self.place = RankProgress::AskedForTimeout;
                    Next::Call(RankCall::Flag("did anybody time out?", true))
                }
            },
            (RankProgress::Barrier, _) => match self.scenario {
                Scenario::CannotAsk(rank) if mine(rank) => Next::Decided("timed out"),
                Scenario::CannotAsk(_) | Scenario::ThrowsBeforeTheBarrier(_) => {
                    self.place = RankProgress::AskedForTimeout;
                    Next::Call(RankCall::Flag("did anybody time out?", false))
                }
                _ => {
                    self.place = RankProgress::Measuring;
                    Next::Call(RankCall::Measure)
                }
            },
            (RankProgress::AskedForTimeout, Some(CallOutcome::Answer(true))) => Next::Decided("timed out"),
            (RankProgress::AskedForTimeout, _) => Next::Decided("measured"),
            (RankProgress::AskedForException, _) => Next::Decided("failed"),
            (RankProgress::Measuring | RankProgress::Fallback, _) => {
                self.measured += 1;
                // The fallback measures as often as fits into a time, by this rank's own clock.
                let enough = match (self.place, self.scenario) {
                    (RankProgress::Fallback, Scenario::Clocks(fast)) if mine(fast) => REPETITIONS + 1,
                    _ => REPETITIONS,
                };
                if self.measured < enough { Next::Call(RankCall::Measure) } else { Next::Decided("measured") }
            }
        }
    }
}

/// Runs a scenario. Returns how each of `ranks` ranks ends.
pub(super) fn play(scenario: Scenario, ranks: usize) -> Vec<RankEnding> {
    let mut all: Vec<SimulatedRank> =
        (0..ranks).map(|rank| SimulatedRank { scenario, rank, place: RankProgress::Begin, measured: 0 }).collect();
    let mut endings: Vec<Option<RankEnding>> = vec![None; ranks];
    let mut calls: Vec<Option<RankCall>> = vec![None; ranks];
    let mut last: Vec<Option<CallOutcome>> = vec![None; ranks];
    loop {
        for rank in 0..ranks {
            if endings[rank].is_some() || calls[rank].is_some() {
                continue;
            }
            match all[rank].next(last[rank]) {
                Next::Call(call) => calls[rank] = Some(call),
                Next::Decided(what) => endings[rank] = Some(RankEnding::Decides(what.to_owned())),
                Next::Stopped => endings[rank] = Some(RankEnding::Stopped),
            }
        }
        if calls.iter().all(Option::is_none) {
            break;
        }
        if calls.iter().all(Option::is_some) {
            // The calls that meet have the same size and type, so the channel does not notice different meanings.
            let largest = calls.iter().any(|call| matches!(call, Some(RankCall::Flag(_, true))));
            for rank in 0..ranks {
                let late = matches!(scenario, Scenario::LeavesInTime(early) if early != rank);
                last[rank] = Some(match calls[rank].take() {
                    Some(RankCall::Flag(..)) => CallOutcome::Answer(largest),
                    Some(RankCall::Barrier) if late || matches!(scenario, Scenario::Clocks(_)) => CallOutcome::TimedOut,
                    _ => CallOutcome::Done,
                });
            }
            continue;
        }
        // A rank is missing: barriers time out, and every other call waits for ever.
        let mut moved = false;
        for rank in 0..ranks {
            if calls[rank] == Some(RankCall::Barrier) {
                (calls[rank], last[rank], moved) = (None, Some(CallOutcome::TimedOut), true);
            }
        }
        if !moved {
            break;
        }
    }
    endings.into_iter().map(|ending| ending.unwrap_or(RankEnding::Hangs)).collect()
}
