//! A small implementation of the naive protocol, to show what it does wrong; nothing but tests of history uses it.
//!
//! Every rank decides for itself and asks the others by ordered anonymous collectives on the same channel that carries
//! the work: a barrier with a time-out before each trial, and a reduction of flags, without one, about what happened. A
//! rank's n-th collective meets the n-th of every other rank, whatever either means by it.

use super::history::{Ending, Scenario};

/// What a rank does next on the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// Gives up after a while.
    Barrier,
    /// A repetition of the measured collective. It has no time-out of its own.
    Measure,
    /// The largest flag of all, and what this rank asks with it. It has no time-out.
    Flag(&'static str, bool),
}

/// What came of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    /// The largest flag.
    Answer(bool),
    TimedOut,
}

/// One rank: it is told what came of its last call, and makes the next, or decides.
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
    /// It is stopped, and calls nothing.
    Stopped,
}

/// How often a trial is measured.
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
                // Whoever reviewed this thought: if one times out, all do, so nobody need ask.
                Scenario::FailsBeforeEntry(_) | Scenario::LeavesInTime(_) => Next::Decided("timed out"),
                // `except: return True`: it could not ask, so it decides.
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
                // The fallback measures as often as fits a time, by this rank's own clock.
                let enough = match (self.place, self.scenario) {
                    (Place::Fallback, Scenario::Clocks(fast)) if mine(fast) => REPETITIONS + 1,
                    _ => REPETITIONS,
                };
                if self.measured < enough { Next::Call(Call::Measure) } else { Next::Decided("measured") }
            }
        }
    }
}

/// Plays a scenario: how each of `ranks` ends.
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
            // What meets is of the same size and type, so the channel does not mind what it means.
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
        // Somebody is missing: barriers time out, and everything else waits for ever.
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
