//! The competition of the candidates of one cell: who is measured when, and when that is enough.
//!
//! The principal type is [`Contest`]. Rank 0 alone decides, by its numbers, and tells the others after every round. Candidates take
//! turns in blocks, so that a drift of the machine affects all alike. Where the time is too short for all, the fastest in their
//! first calls go on, as in successive halving (Jamieson & Talwalkar, AISTATS 2016).

use super::bench::{CellBench, ReadyCandidate};
use super::candidate::TuneCandidate;
use super::shares::{BLOCK_US, CellTime};
use super::timing::CallTimes;
use super::{CandidateRefusal, CandidateSamples, TuneOptions};
use crate::communicator::Communicator;
use crate::error::CommResult;
use std::time::Duration;
use tune::{CandidateTimes, Summary, remaining, summarize, winner};

/// Calls in a block, at most.
const MOST_CALLS: usize = 16;
/// Rounds before a decision, at least.
const LEAST_ROUNDS: usize = 3;
/// Candidates that are compared, however little time there is: stock, and one that may be faster.
const LEAST_COMPARED: usize = 2;
/// Rounds in which every candidate has so many times that they can decide, also where a round gives one time.
const DECIDING_ROUNDS: usize = 6;
/// Samples after which nothing new is expected.
const MOST_SAMPLES: usize = 64;
/// About how long a loop without pauses takes at least, in microseconds: in shorter ones, those who do not wait for others, like
/// the root of a broadcast, are through before the first call has ended everywhere.
const LOOP_US: f64 = 1000.0;
/// Calls in a loop, at most.
const MOST_IN_LOOP: usize = 1000;
/// Calls of a screening, the first times of a candidate before the comparison, if one does not take as long as a block.
const SCREENING: usize = 3;
/// Screenings of who seems to have no chance, after the first one: the processor may have done something else meanwhile.
const MORE_SCREENINGS: usize = 2;
/// A screening of calls that take longer, in microseconds, is not repeated: what the processor does else is short beside them.
const LONG_SCREENING_US: f64 = 33_000.0;
/// A candidate that takes so many times as long as the best one in all screenings is measured no further.
const NO_CHANCE: f64 = 4.0;
/// Functions whose calls take longer, in microseconds, have to be right after every fourth of their blocks, and others after each:
/// it takes longer to look at long results than to compute them.
const LONG_CHECK_US: f64 = 2_000.0;
/// See [`LONG_CHECK_US`].
const LONG_CHECKS: usize = 4;
/// Where every candidate is to be measured so and so often, ranks may be late at so many more calls before that is given up.
const MOST_ROUNDS: usize = 4;

/// What rank 0 says after a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundOutcome {
    Stop,
    Continue,
}

/// A candidate in the competition of one cell.
pub(super) struct Contender<'a> {
    /// `None` once it was refused.
    ready: Option<ReadyCandidate<'a>>,
    pub(super) samples: CandidateSamples,
    /// About how long a call takes, in microseconds; the same on all ranks.
    expected_us: f64,
}

/// The competition of one cell. The first contender is stock.
pub(super) struct Contest<'a>(pub(super) Vec<Contender<'a>>);

impl<'a> Contender<'a> {
    /// One that was refused before.
    pub(super) fn refused(candidate: &TuneCandidate, refusal: CandidateRefusal) -> Self {
        let mut refused = Self::late(candidate);
        refused.refuse(refusal);
        refused
    }

    /// One for which there is no time so far.
    pub(super) fn late(candidate: &TuneCandidate) -> Self {
        Self { ready: None, samples: CandidateSamples::of(candidate), expected_us: f64::INFINITY }
    }

    /// Its turn has come.
    pub(super) fn admit(&mut self, admitted: Result<ReadyCandidate<'a>, CandidateRefusal>) {
        self.samples.refusal = admitted.as_ref().err().cloned();
        self.ready = admitted.ok();
    }

    /// One that does the same as another.
    pub(super) fn same(candidate: &TuneCandidate, other: &str) -> Self {
        let mut same = Self::late(candidate);
        same.samples.same_as = Some(other.to_owned());
        same
    }

    /// Whether it takes part.
    #[cfg(test)]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    fn refuse(&mut self, refusal: CandidateRefusal) {
        self.samples.refusal = Some(refusal);
        (self.ready, self.expected_us) = (None, f64::INFINITY);
    }
}

impl Contender<'_> {
    /// A function may do something else after many calls, so it has to be right again and again. So may a kernel whose ranks meet in
    /// memory.
    pub(super) fn check_function(&mut self, bench: &mut CellBench<'_>) -> CommResult<()> {
        let is_checked = |ready: &&ReadyCandidate<'_>| ready.candidate.is_function() || ready.candidate.is_kernel();
        let Some(ready) = self.ready.as_ref().filter(is_checked) else { return Ok(()) };
        if let Some(refusal) = bench.check(ready)? {
            self.refuse(refusal);
        }
        Ok(())
    }
}

impl Contest<'_> {
    /// Measures all in turns, until it is clear who is the best, or it is late.
    pub(super) fn compete(
        &mut self,
        bench: &mut CellBench<'_>,
        options: &TuneOptions,
        time: CellTime,
    ) -> CommResult<()> {
        // Screenings tell who has no chance; a plan that takes long must not use up the time of the others.
        self.screen(bench)?;
        let mut live = self.affordable(bench, time)?;
        for round in 0.. {
            // Each round begins with another candidate.
            let turns: Vec<usize> = (0..live.len()).map(|turn| live[(turn + round) % live.len()]).collect();
            if !self.round(bench, &turns, round)? {
                // Who had no chance beside a candidate that was wrong may have one now. All ranks know that.
                live = self.affordable(bench, time)?;
                continue;
            }
            live = self.ready(live);
            let terms = (round, time.left(1.0, bench.wasted()).is_zero(), options.least_samples);
            if self.agree(bench.control, &mut live, terms)? == RoundOutcome::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Those that were not refused.
    fn ready(&self, mut places: Vec<usize>) -> Vec<usize> {
        places.retain(|&place| self.0[place].ready.is_some());
        places
    }

    /// About how long each candidate takes.
    fn screen(&mut self, bench: &mut CellBench<'_>) -> CommResult<()> {
        let mut slow: Vec<usize> = (0..self.0.len()).collect();
        for _ in 0..1 + MORE_SCREENINGS {
            for &place in &slow {
                let contender = &mut self.0[place];
                let Some(ready) = &contender.ready else { continue };
                let mut times = bench.time_loop(ready, 1)?;
                // All ranks have the same number.
                if times.as_ref().is_ok_and(|times| times.slowest_us < BLOCK_US) {
                    times = bench.time_loop(ready, SCREENING)?;
                }
                match times {
                    Ok(times) => contender.expected_us = contender.expected_us.min(times.slowest_us),
                    Err(refusal) => contender.refuse(refusal),
                }
                contender.check_function(bench)?;
            }
            slow = self.ready((0..self.0.len()).collect());
            slow.retain(|place| !self.may_win(*place) && self.0[*place].expected_us <= LONG_SCREENING_US);
        }
        for contender in &mut self.0 {
            contender.samples.screening_us = Some(contender.expected_us).filter(|time| time.is_finite());
        }
        Ok(())
    }

    /// Stock, and those that may be the best, as far as there is time to compare them: the fastest so far, at least one. Rank 0 tells
    /// the others.
    fn affordable(&self, bench: &CellBench<'_>, time: CellTime) -> CommResult<Vec<usize>> {
        let mut live = self.live();
        let mut stays = vec![0_i64; self.0.len()];
        if bench.control.rank() == 0 {
            let left = time.left(1.0, bench.wasted());
            self.within(&live, left).into_iter().for_each(|place| stays[place] = 1);
        }
        bench.control.broadcast(&mut stays, 0)?;
        live.retain(|&place| stays[place] == 1);
        Ok(live)
    }

    /// Those of them that can be compared within a time.
    fn within(&self, live: &[usize], left: Duration) -> Vec<usize> {
        let expected = |place: &usize| self.0[*place].expected_us;
        let mut fastest: Vec<usize> = live.to_vec();
        // Stock first, whatever it takes.
        fastest.sort_by(|one, other| (*one > 0).cmp(&(*other > 0)).then(expected(one).total_cmp(&expected(other))));
        let mut cost = Duration::ZERO;
        let is_affordable = |(index, place): &(usize, usize)| {
            let calls: usize = block(expected(place)).iter().sum();
            let block = expected(place) * calls as f64;
            cost += Duration::try_from_secs_f64(LEAST_ROUNDS as f64 * block / 1e6).unwrap_or(Duration::MAX / 64);
            *index < LEAST_COMPARED || cost <= left
        };
        let mut stay: Vec<usize> =
            fastest.into_iter().enumerate().take_while(is_affordable).map(|(_, place)| place).collect();
        stay.sort_unstable();
        stay
    }

    /// Who may be the best, and stock.
    fn live(&self) -> Vec<usize> {
        let mut live = self.ready((0..self.0.len()).collect());
        live.retain(|place| *place == 0 || self.may_win(*place));
        live
    }

    /// Whether the screenings leave a candidate a chance.
    fn may_win(&self, place: usize) -> bool {
        let best = self.0.iter().map(|contender| contender.expected_us).fold(f64::INFINITY, f64::min);
        self.0[place].expected_us <= NO_CHANCE * best
    }

    /// A block of every candidate. Whether it says who is the best: not if one was refused.
    fn round(&mut self, bench: &mut CellBench<'_>, turns: &[usize], round: usize) -> CommResult<bool> {
        let competing = self.ready(turns.to_vec()).len();
        for &place in turns {
            let contender = &mut self.0[place];
            let Some(ready) = &contender.ready else { continue };
            let expected = contender.expected_us;
            match bench.block(ready, block(expected), expected)? {
                Ok(times) => {
                    // All ranks have the same number.
                    contender.expected_us = times.in_loop.slowest_us;
                    let samples = &mut contender.samples;
                    samples.add_calls(&times.calls);
                    samples.loops_us.push(times.in_loop.slowest_us);
                    samples.own_us.push(times.in_loop.own_us);
                    samples.invalid += times.invalid;
                }
                Err(refusal) => contender.refuse(refusal),
            }
            if expected < LONG_CHECK_US || round.is_multiple_of(LONG_CHECKS) {
                contender.check_function(bench)?;
            }
        }
        Ok(self.ready(turns.to_vec()).len() == competing)
    }

    /// What rank 0 decides after a round, on all ranks: whether to go on, and with whom. Each candidate is measured `least` times, or
    /// as often as a decision needs.
    fn agree(
        &self,
        control: &Communicator,
        live: &mut Vec<usize>,
        (round, is_late, least): (usize, bool, usize),
    ) -> CommResult<RoundOutcome> {
        let mut said = vec![0_i64; self.0.len() + 1];
        if control.rank() == 0 {
            let (outcome, stay) = match least {
                0 => self.judge(live, round, is_late),
                least => (self.complete(live, round, least), live.clone()),
            };
            said[0] = i64::from(outcome == RoundOutcome::Continue);
            stay.into_iter().for_each(|index| said[index + 1] = 1);
        }
        control.broadcast(&mut said, 0)?;
        if said[0] == 0 {
            return Ok(RoundOutcome::Stop);
        }
        live.retain(|&index| said[index + 1] == 1);
        Ok(RoundOutcome::Continue)
    }

    /// Whether all have been measured so often.
    fn complete(&self, live: &[usize], round: usize, least: usize) -> RoundOutcome {
        let by_span = spans_count(self.0.iter().map(|contender| &contender.samples));
        let samples = |place: &usize| self.0[*place].samples.summary(by_span).map_or(0, |summary| summary.samples);
        match live.iter().all(|place| samples(place) >= least) || round >= MOST_ROUNDS * least {
            true => RoundOutcome::Stop,
            false => RoundOutcome::Continue,
        }
    }

    /// Whether to go on, and with whom.
    fn judge(&self, live: &[usize], round: usize, is_late: bool) -> (RoundOutcome, Vec<usize>) {
        let by_span = spans_count(self.0.iter().map(|contender| &contender.samples));
        let times = |(index, contender): (usize, &Contender<'_>)| {
            live.contains(&index).then(|| contender.samples.times(by_span)).flatten()
        };
        let all: Vec<Option<CandidateTimes>> = self.0.iter().enumerate().map(times).collect();
        let stay = remaining(&all);
        let least = all.iter().flatten().map(|times| times.first.samples).min().unwrap_or(0);
        let is_decided = stay.len() < 2 || stay.len() == 2 && winner(&all).is_some();
        let may_decide = round + 1 >= DECIDING_ROUNDS || all.iter().flatten().all(CandidateTimes::has_intervals);
        let is_enough = may_decide && (is_decided || least >= MOST_SAMPLES);
        match round + 1 >= LEAST_ROUNDS {
            false => (RoundOutcome::Continue, live.to_vec()),
            true if is_enough || is_late => (RoundOutcome::Stop, stay),
            true => (RoundOutcome::Continue, stay),
        }
    }
}

/// How many calls a block has: those whose starts are announced, and those in a loop.
fn block(expected_us: f64) -> [usize; 2] {
    let of = |time_us: f64, most| ((time_us / expected_us.max(1e-3)) as usize).clamp(2, most);
    let calls = of(BLOCK_US, MOST_CALLS);
    [calls, calls.max(of(LOOP_US, MOST_IN_LOOP))]
}

/// Whether spans count: unless ranks were late at most calls of a candidate, as they are where they share cores. Then loops do.
pub(super) fn spans_count<'a>(samples: impl IntoIterator<Item = &'a CandidateSamples>) -> bool {
    let mut competing = samples.into_iter().filter(|samples| samples.refusal.is_none());
    competing.all(|samples| samples.spans_us.len() >= samples.invalid)
}

impl CandidateSamples {
    fn add_calls(&mut self, calls: &[CallTimes]) {
        for CallTimes { span, after_last_begin, skew } in calls {
            self.spans_us.push(*span);
            self.after_last_begin_us.push(*after_last_begin);
            self.skews_us.push(*skew);
        }
    }

    /// Nothing yet, of a candidate.
    fn of(candidate: &TuneCandidate) -> Self {
        Self { name: candidate.name.clone(), is_function: candidate.is_no_plan(), ..Self::default() }
    }

    /// The times that count.
    pub fn summary(&self, by_span: bool) -> Option<Summary> {
        if self.refusal.is_some() {
            return None;
        }
        summarize(if by_span { &self.spans_us } else { &self.loops_us })
    }

    /// The same, with the times in loops where spans count.
    pub(super) fn times(&self, by_span: bool) -> Option<CandidateTimes> {
        let second = if by_span { self.summary(false) } else { None };
        self.summary(by_span).map(|first| CandidateTimes { first, second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_are_compared_for_whom_there_is_time_stock_in_any_case() {
        let stock = TuneCandidate::stock();
        let within = |expected_us: &[f64], live: &[usize], left_ms: u64| {
            let contender = |time: &f64| Contender { expected_us: *time, ..Contender::late(&stock) };
            Contest(expected_us.iter().map(contender).collect()).within(live, Duration::from_millis(left_ms))
        };
        // Three rounds of two calls and two in a loop: 1.2 s for stock, then 0.6, 0.72 and 0.84 s.
        let times = [100_000.0, 70_000.0, 60_000.0, 50_000.0];
        let all = [0, 1, 2, 3];
        assert_eq!(within(&times, &all, 10_000), all);
        assert_eq!(within(&times, &all, 2600), [0, 2, 3]);
        assert_eq!(within(&times, &all, 2000), [0, 3]);
        // However little time there is.
        assert_eq!(within(&times, &all, 0), [0, 3]);
        assert_eq!(within(&times, &[0, 1], 0), [0, 1]);
        // One that was refused takes for ever, and of short calls all are compared.
        assert_eq!(within(&[10.0, f64::INFINITY, 20.0], &[0, 2], 1000), [0, 2]);
        assert_eq!(within(&[1e300, 1e300, 1e300], &[0, 1, 2], 1000), [0, 1]);
    }
}
