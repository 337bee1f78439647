//! A small implementation of the naive protocol, to show its errors. Only the tests in `history` use it.
//!
//! Every rank decides by itself. It asks the others with ordered anonymous collectives, on the same channel that
//! carries the work: a barrier with a time-out before each trial, and afterwards a reduction of flags without a
//! time-out. A rank's n-th collective meets the n-th of every other rank, even if the two have different meanings.

use super::history::{Ending, Scenario};

/// The next call of a rank on the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// Returns after a time-out if a rank is missing.
    Barrier,
    /// A repetition of the measured collective. It has no time-out.
    Measure,
    /// The largest flag of all ranks, with the question of this rank. It has no time-out.
    Flag(&'static str, bool),
}

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    /// The largest flag.
    Answer(bool),
    TimedOut,
}

/// One rank. It gets the outcome of its last call, and makes the next call or decides.
struct Rank {
    scenario: Scenario,
    rank: usize,
    place: Place,
    measured: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Begin,
    Barrier,
    AskedForTimeout,
    Measuring,
    Fallback,
    AskedForException,
}

enum Next {
    Call(Call),
    Decided(&'static str),
    /// It is stopped, and makes no call.
    Stopped,
}

/// The number of repetitions of a trial.
const REPETITIONS: u32 = 3;

impl Rank {
    fn throws(&self) -> Next {
        Next::Call(Call::Flag("did anybody fail?", true))
    }

    fn next(&mut self, last: Option<Outcome>) -> Next {
        let mine = |of: usize| of == self.rank;
        match (self.place, last) {
            (Place::Begin, _) => match self.scenario {
                Scenario::Stops(rank) if mine(rank) => Next::Stopped,
                Scenario::ThrowsBeforeTheBarrier(rank) if mine(rank) => {
                    self.place = Place::AskedForException;
                    self.throws()
                }
                Scenario::KnowsTheAnswer(rank) if mine(rank) => Next::Decided("cached"),
                Scenario::FailsBeforeEntry(rank) if mine(rank) => Next::Decided("failed"),
                _ => {
                    self.place = Place::Barrier;
                    Next::Call(Call::Barrier)
                }
            },
            (Place::Barrier, Some(Outcome::TimedOut)) => match self.scenario {
                // The naive assumption: if one rank times out, all do, so no rank need ask.
                Scenario::FailsBeforeEntry(_) | Scenario::LeavesInTime(_) => Next::Decided("timed out"),
                // `except: return True`: the rank could not ask, so it decides alone.
                Scenario::CannotAsk(rank) if mine(rank) => Next::Decided("timed out"),
                Scenario::Clocks(_) => {
                    self.place = Place::Fallback;
                    Next::Call(Call::Measure)
                }
                _ => {
                    self.place = Place::AskedForTimeout;
                    Next::Call(Call::Flag("did anybody time out?", true))
                }
            },
            (Place::Barrier, _) => match self.scenario {
                Scenario::CannotAsk(rank) if mine(rank) => Next::Decided("timed out"),
                Scenario::CannotAsk(_) | Scenario::ThrowsBeforeTheBarrier(_) => {
                    self.place = Place::AskedForTimeout;
                    Next::Call(Call::Flag("did anybody time out?", false))
                }
                _ => {
                    self.place = Place::Measuring;
                    Next::Call(Call::Measure)
                }
            },
            (Place::AskedForTimeout, Some(Outcome::Answer(true))) => Next::Decided("timed out"),
            (Place::AskedForTimeout, _) => Next::Decided("measured"),
            (Place::AskedForException, _) => Next::Decided("failed"),
            (Place::Measuring | Place::Fallback, _) => {
                self.measured += 1;
                // The fallback measures as often as fits into a time, by this rank's own clock.
                let enough = match (self.place, self.scenario) {
                    (Place::Fallback, Scenario::Clocks(fast)) if mine(fast) => REPETITIONS + 1,
                    _ => REPETITIONS,
                };
                if self.measured < enough { Next::Call(Call::Measure) } else { Next::Decided("measured") }
            }
        }
    }
}

/// Runs a scenario. Returns how each of `ranks` ranks ends.
pub(super) fn play(scenario: Scenario, ranks: usize) -> Vec<Ending> {
    let mut all: Vec<Rank> = (0..ranks).map(|rank| Rank { scenario, rank, place: Place::Begin, measured: 0 }).collect();
    let mut endings: Vec<Option<Ending>> = vec![None; ranks];
    let mut calls: Vec<Option<Call>> = vec![None; ranks];
    let mut last: Vec<Option<Outcome>> = vec![None; ranks];
    loop {
        for rank in 0..ranks {
            if endings[rank].is_some() || calls[rank].is_some() {
                continue;
            }
            match all[rank].next(last[rank]) {
                Next::Call(call) => calls[rank] = Some(call),
                Next::Decided(what) => endings[rank] = Some(Ending::Decides(what.to_owned())),
                Next::Stopped => endings[rank] = Some(Ending::Stopped),
            }
        }
        if calls.iter().all(Option::is_none) {
            break;
        }
        if calls.iter().all(Option::is_some) {
            // The calls that meet have the same size and type, so the channel does not notice different meanings.
            let largest = calls.iter().any(|call| matches!(call, Some(Call::Flag(_, true))));
            for rank in 0..ranks {
                let late = matches!(scenario, Scenario::LeavesInTime(early) if early != rank);
                last[rank] = Some(match calls[rank].take() {
                    Some(Call::Flag(..)) => Outcome::Answer(largest),
                    Some(Call::Barrier) if late || matches!(scenario, Scenario::Clocks(_)) => Outcome::TimedOut,
                    _ => Outcome::Done,
                });
            }
            continue;
        }
        // A rank is missing: barriers time out, and every other call waits for ever.
        let mut moved = false;
        for rank in 0..ranks {
            if calls[rank] == Some(Call::Barrier) {
                (calls[rank], last[rank], moved) = (None, Some(Outcome::TimedOut), true);
            }
        }
        if !moved {
            break;
        }
    }
    endings.into_iter().map(|ending| ending.unwrap_or(Ending::Hangs)).collect()
}
