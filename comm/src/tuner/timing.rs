//! How long calls of a candidate take.
//!
//! The principal function is [`CellBench::block`].

use super::bench::{CallEnd, CellBench, ReadyCandidate};
use super::{CandidateRefusal, TrialPhase};
use crate::error::CommResult;

/// How much later than the announced start a rank may begin, in nanoseconds; or a tenth of the call's time: where ranks share cores,
/// some begin when others sleep.
const LATE: i64 = 20_000;
/// Between the starts of two calls lies this much more than a call is expected to take, in nanoseconds.
const PAUSE: i64 = 30_000;
/// Calls that take longer, in nanoseconds, begin when all ranks have ended the call before and rank 0 says so. Between shorter ones
/// this would take longer than they do, and their moments are fixed for a whole block.
const LONG_CALL: i64 = 1_000_000;

/// Times of one block of calls, in microseconds, as rank 0 knows them.
#[derive(Default)]
pub(super) struct BlockTimes {
    /// Of each call at which all ranks were there in time.
    pub(super) calls: Vec<CallTimes>,
    /// Calls at which a rank was late.
    pub(super) invalid: usize,
    /// Of one call of a loop without pauses.
    pub(super) in_loop: LoopTime,
}

/// The times of one call whose start was announced, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CallTimes {
    /// From the first rank's begin to the last one's end.
    pub(super) span: f64,
    /// From the last rank's begin to the last one's end.
    pub(super) after_last_begin: f64,
    /// From the first rank's begin to the last one's.
    pub(super) skew: f64,
}

/// The time of one call of a loop without pauses, in microseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct LoopTime {
    /// On the slowest rank; the same number on all ranks.
    pub(super) slowest_us: f64,
    /// On this rank.
    pub(super) own_us: f64,
}

impl CellBench<'_> {
    /// Makes calls without pauses; the time of one, or why it failed.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn time_loop(
        &mut self,
        ready: &ReadyCandidate<'_>,
        calls: usize,
    ) -> CommResult<Result<LoopTime, CandidateRefusal>> {
        self.enter(ready.candidate, TrialPhase::Time);
        self.control.barrier()?;
        let begin = self.clock.now();
        let on_gpu = self.time_on_gpu(ready, (1, calls));
        let ended = match &on_gpu {
            Some(timed) => timed.as_ref().map(drop).map_err(Clone::clone),
            None => (0..calls).try_for_each(|_| self.run(ready)),
        };
        let all_us = match on_gpu {
            Some(timed) => timed.unwrap_or_default().first().map_or(0.0, |time| time.0),
            None => (self.clock.now() - begin) as f64 / 1e3,
        };
        let own_us = all_us / calls.max(1) as f64;
        if let Some(refusal) = self.verdict(ready, CallEnd::of(ended), TrialPhase::Time)? {
            return Ok(Err(refusal));
        }
        let mut slowest = [own_us];
        self.control.all_reduce(&mut slowest, schedule::ReduceOp::Max)?;
        Ok(Ok(LoopTime { slowest_us: slowest[0], own_us }))
    }

    /// Makes calls whose starts are announced, and then some without pauses. `expected_us` is about the time of one. The
    /// times are known to rank 0 only.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn block(
        &mut self,
        ready: &ReadyCandidate<'_>,
        [calls, in_loop]: [usize; 2],
        expected_us: f64,
    ) -> CommResult<Result<BlockTimes, CandidateRefusal>> {
        self.enter(ready.candidate, TrialPhase::Time);
        let expected = (expected_us * 1e3) as i64;
        let (moments, ended) = self.announced_calls(ready, calls, expected)?;
        if let Some(refusal) = self.verdict(ready, CallEnd::of(ended), TrialPhase::Time)? {
            return Ok(Err(refusal));
        }
        let is_leader = self.control.rank() == 0;
        let mut all = vec![0.0; if is_leader { moments.len() * self.control.size() } else { 0 }];
        self.control.gather(&moments, &mut all, 0)?;
        let in_loop = match self.time_loop(ready, in_loop)? {
            Ok(in_loop) => in_loop,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut times = BlockTimes { in_loop, ..BlockTimes::default() };
        let latest = (LATE as f64).max(expected as f64 / 10.0);
        for index in 0..if is_leader { calls } else { 0 } {
            let of = |which: usize| all.chunks_exact(2 * calls).map(move |rank| rank[2 * index + which]);
            let (first, last) = (of(0).fold(f64::INFINITY, f64::min), of(0).fold(f64::NEG_INFINITY, f64::max));
            match last - first.min(0.0) <= latest {
                true => {
                    let end = of(1).fold(0.0, f64::max);
                    let [span, after_last_begin, skew] = [end - first, end - last, last - first].map(|time| time / 1e3);
                    times.calls.push(CallTimes { span, after_last_begin, skew });
                }
                false => times.invalid += 1,
            }
        }
        Ok(Ok(times))
    }

    /// Makes calls whose starts are announced: when this rank began and ended each of them, in nanoseconds after its start, and how
    /// they ended.
    ///
    /// # Errors
    /// If a rank is lost.
    fn announced_calls(
        &mut self,
        ready: &ReadyCandidate<'_>,
        calls: usize,
        expected: i64,
    ) -> CommResult<(Vec<f64>, Result<(), String>)> {
        let mut moments = vec![0.0; 2 * calls];
        if let Some(timed) = self.time_on_gpu(ready, (calls, 1)) {
            // All ranks have met before each call, and each has its own clock from then on.
            let ended = timed.as_ref().map(drop).map_err(Clone::clone);
            let times = timed.unwrap_or_default();
            moments.chunks_exact_mut(2).zip(times).for_each(|(moment, time)| moment[1] = time.0 * 1e3);
            return Ok((moments, ended));
        }
        let mut ended = Ok(());
        let mut due = [0];
        for (index, moment) in moments.chunks_exact_mut(2).enumerate() {
            let mut is_over = [i64::from(ended.is_err())];
            if index > 0 && expected > LONG_CALL {
                self.control.all_reduce(&mut is_over, schedule::ReduceOp::Max)?;
            }
            if is_over != [0] {
                break;
            }
            if index == 0 || expected > LONG_CALL {
                due = [self.clock.now() + self.clock.lead(self.control.size())];
                self.control.broadcast(&mut due, 0)?;
            } else {
                due[0] += expected + expected / 4 + PAUSE;
            }
            self.clock.wait(due[0]);
            let begin = self.clock.now();
            ended = self.run(ready);
            // Relative numbers are exact.
            moment.copy_from_slice(&[(begin - due[0]) as f64, (self.clock.now() - due[0]) as f64]);
        }
        Ok((moments, ended))
    }
}
