//! One size of one collective, with its memory, on which candidates run.
//!
//! The principal type is [`CellBench`].

use super::candidate::{CandidateWork, MadeProgram, TuneCandidate};
use super::clock::CommonClock;
use super::watch::{TrialMark, TrialWatch};
use super::{CandidateRefusal, TrialPhase};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::functions::composed;
use crate::operation::CollectiveCall;
use crate::stock::CallKind;
use runtime::{Call, Prepared, Reference, SequencedProgram};
use schedule::{Demand, Request};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// How much later than the announced start a rank may begin, in nanoseconds; or a tenth of the call's time: where ranks share cores,
/// some begin when others sleep.
const LATE: i64 = 20_000;
/// Between the starts of two calls lies this much more than a call is expected to take, in nanoseconds.
const PAUSE: i64 = 30_000;
/// Calls that take longer, in nanoseconds, begin when all ranks have ended the call before and rank 0 says so. Between shorter ones
/// this would take longer than they do, and their moments are fixed for a whole block.
const LONG_CALL: i64 = 1_000_000;

/// A candidate that is ready for this size.
pub(super) struct ReadyCandidate<'a> {
    pub(super) candidate: &'a TuneCandidate,
    /// Of a plan.
    prepared: Option<Prepared>,
    /// Of one that needs a table.
    tuned: Option<Communicator>,
}

impl ReadyCandidate<'_> {
    /// The communicator that it uses.
    fn lane<'s>(&'s self, common: &'s Communicator) -> &'s Communicator {
        self.tuned.as_ref().unwrap_or(common)
    }
}

/// Times of one block of calls, in microseconds, as rank 0 knows them.
#[derive(Default)]
pub(super) struct BlockTimes {
    /// From the first rank's begin to the last one's end, for each call at which all ranks were there in time.
    pub(super) spans: Vec<f64>,
    /// Calls at which a rank was late.
    pub(super) invalid: usize,
    /// Of one call of a loop without pauses.
    pub(super) in_loop: LoopTime,
}

/// The time of one call of a loop without pauses, in microseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct LoopTime {
    /// On the slowest rank; the same number on all ranks.
    pub(super) slowest_us: f64,
    /// On this rank.
    pub(super) own_us: f64,
}

/// One size of one collective.
pub(super) struct CellBench<'a> {
    control: &'a Communicator,
    /// On which the candidates run. After a failure it is another one.
    lane: Communicator,
    call: CollectiveCall,
    kind: CallKind,
    demand: Demand,
    seed: u64,
    clock: CommonClock,
    input: Vec<u8>,
    output: Vec<u8>,
    /// When a call failed here the last time.
    failed_at: i64,
    watch: &'a TrialWatch,
}

impl<'a> CellBench<'a> {
    pub(super) fn new(
        (control, watch): (&'a Communicator, &'a TrialWatch),
        kind: CallKind,
        (count, dtype): (usize, runtime::DType),
        seed: u64,
        limit: Duration,
    ) -> CommResult<Self> {
        let mut request = Request::new(kind.collective, control.size(), 0);
        (request.root, request.op) = (kind.root, kind.op);
        let demand = Demand::new(request).map_err(|error| CommError::NoPlan(error.to_string()))?;
        let call = CollectiveCall {
            collective: kind.collective,
            root: kind.root.map(Rank::index),
            op: kind.op,
            count,
            dtype,
            in_place: kind.in_place,
        };
        let places = Reference::new(&demand, kind.op, count, dtype, seed).places(Rank::from_index(control.rank()));
        let [input, output] = match kind.in_place {
            true => [0, places.input.max(places.output)],
            false => [places.input, places.output],
        }
        .map(|elements| vec![0x5a; elements * dtype.size()]);
        let (lane, clock) = (control.duplicate()?, CommonClock::measure(control)?);
        lane.set_time_limit(limit);
        Ok(Self { control, lane, call, kind, demand, seed, clock, input, output, failed_at: 0, watch })
    }

    fn reference(&self) -> Reference<'_> {
        Reference::new(&self.demand, self.kind.op, self.call.count, self.call.dtype, self.seed)
    }

    /// Writes this rank's part of the problem.
    fn fill(&mut self) {
        let rank = Rank::from_index(self.control.rank());
        let (mut input, mut output) = (std::mem::take(&mut self.input), std::mem::take(&mut self.output));
        output.fill(0x5a);
        let places = self.reference().places(rank);
        match self.kind.in_place {
            true => self.reference().fill(rank, &mut output, places.input_at),
            false => self.reference().fill(rank, &mut input, 0),
        }
        (self.input, self.output) = (input, output);
    }

    /// How many elements of this rank's result are wrong.
    fn wrong(&self) -> u64 {
        let rank = Rank::from_index(self.control.rank());
        let reference = self.reference();
        let at = if self.kind.in_place { reference.places(rank).output_at } else { 0 };
        reference.wrong(rank, &self.output, at)
    }

    /// Makes one call. If it fails, the others learn that at once.
    fn run(&mut self, ready: &ReadyCandidate<'_>) -> Result<(), String> {
        let ended = self.try_run(ready);
        if ended.is_err() {
            self.failed_at = self.clock.now();
            ready.lane(&self.lane).abort();
        }
        ended
    }

    /// It is the turn of a candidate.
    fn enter(&self, candidate: &TuneCandidate, phase: TrialPhase) {
        self.watch.enter(|| TrialMark {
            collective: self.kind.collective,
            bytes: self.kind.size(self.control.size(), (self.call.count * self.call.dtype.size()) as u64),
            candidate: candidate.name.clone(),
            is_function: candidate.is_function(),
            phase,
        });
    }

    fn try_run(&mut self, ready: &ReadyCandidate<'_>) -> Result<(), String> {
        let Self { lane, call, kind, input, output, watch, .. } = self;
        let memory = match kind.in_place {
            true => Call::InPlace(output),
            false => Call::OutOfPlace { input, output },
        };
        let told = |error: CommError| error.to_string();
        match (&ready.candidate.work, &ready.prepared) {
            (CandidateWork::Plan(..), Some(prepared)) => lane.run_prepared(prepared, memory).map_err(told),
            (CandidateWork::Function(_, function), _) => {
                let ended = watch.call(|| catch_unwind(AssertUnwindSafe(|| function(lane, call, memory))));
                ended.unwrap_or_else(|_| Err("it panicked".to_owned()))
            }
            (CandidateWork::Composed(of, _), _) => composed(ready.lane(lane), *of, call, memory).map_err(told),
            _ => lane.collective(*kind, call.count, call.dtype, memory).map_err(told),
        }
    }

    /// Prepares a candidate, and runs it once on numbers that no two ranks have in common. All ranks learn whether all of them
    /// got the right result; if not, why.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn admit<'c>(
        &mut self,
        candidate: &'c TuneCandidate,
        program: Option<MadeProgram>,
    ) -> CommResult<Result<ReadyCandidate<'c>, CandidateRefusal>> {
        self.enter(candidate, TrialPhase::Check);
        let tuned = match &candidate.work {
            CandidateWork::Composed(_, Some(table)) => Some(self.control.uncounted(Some(table.clone()))?),
            _ => None,
        };
        tuned.iter().for_each(|lane| lane.set_time_limit(self.lane.limit()));
        let made = program.transpose().and_then(|program| {
            let prepare =
                |program: Arc<SequencedProgram>| self.lane.prepare(&program, self.call.count, self.call.dtype);
            program.map(prepare).transpose().map_err(|error| error.to_string())
        });
        // Nobody begins a call that another rank cannot make.
        let (prepared, why) = match made {
            Ok(prepared) => (prepared, None),
            Err(why) => (None, Some(why)),
        };
        if let Some((rank, _)) = self.worst(i64::from(why.is_some()))? {
            let why = why.unwrap_or_else(|| format!("rank {rank} cannot prepare it"));
            return Ok(Err(CandidateRefusal { rank, phase: TrialPhase::Prepare, why }));
        }
        let ready = ReadyCandidate { candidate, prepared, tuned };
        Ok(self.check(&ready)?.map_or(Ok(ready), Err))
    }

    /// Runs a candidate once on numbers that no two ranks have in common. All ranks learn why it is refused, if the result is not
    /// right on all of them.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn check(&mut self, ready: &ReadyCandidate<'_>) -> CommResult<Option<CandidateRefusal>> {
        self.enter(ready.candidate, TrialPhase::Check);
        self.fill();
        let ended = self.run(ready);
        let wrong = if ended.is_ok() { self.wrong() as i64 } else { -self.failed_at };
        Ok(match self.worst(wrong)? {
            None => None,
            Some((rank, wrong)) => {
                let why = match ended.err() {
                    _ if wrong > 0 => format!("{wrong} elements of rank {rank} are wrong"),
                    Some(own) => own,
                    None => format!("it failed on rank {rank}"),
                };
                if wrong < 0 {
                    self.renew()?;
                }
                Some(CandidateRefusal { rank, phase: TrialPhase::Check, why })
            }
        })
    }

    /// Of all ranks that report anything but 0, the one that failed first, and what it reports: one that is less than 0 is the
    /// moment of a failure, after which the others could not go on either. If no rank failed, the first of them.
    fn worst(&self, own: i64) -> CommResult<Option<(usize, i64)>> {
        let mut all = vec![0; self.control.size()];
        self.control.all_gather(&[own], &mut all)?;
        let failed =
            all.iter().enumerate().filter(|(_, reported)| **reported < 0).max_by_key(|(_, reported)| **reported);
        let first = || all.iter().enumerate().find(|(_, reported)| **reported != 0);
        Ok(failed.or_else(first).map(|(rank, reported)| (rank, *reported)))
    }

    /// After a failure the candidates get another communicator: what is under way in the old one is of no interest.
    fn renew(&mut self) -> CommResult<()> {
        let limit = self.lane.limit();
        self.lane = self.control.duplicate()?;
        self.lane.set_time_limit(limit);
        Ok(())
    }

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
        let ended = (0..calls).try_for_each(|_| self.run(ready));
        let own_us = (self.clock.now() - begin) as f64 / 1e3 / calls.max(1) as f64;
        if let Some(refusal) = self.failure(ended)? {
            return Ok(Err(refusal));
        }
        let mut slowest = [own_us];
        self.control.all_reduce(&mut slowest, schedule::ReduceOp::Max)?;
        Ok(Ok(LoopTime { slowest_us: slowest[0], own_us }))
    }

    /// Why a block of calls failed, if it did.
    fn failure(&mut self, ended: Result<(), String>) -> CommResult<Option<CandidateRefusal>> {
        let Some((rank, _)) = self.worst(if ended.is_err() { -self.failed_at } else { 0 })? else {
            return Ok(None);
        };
        self.renew()?;
        let why = ended.err().unwrap_or_else(|| format!("it failed on rank {rank}"));
        Ok(Some(CandidateRefusal { rank, phase: TrialPhase::Time, why }))
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
        if let Some(refusal) = self.failure(ended)? {
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
            let (first, last) = (of(0).fold(f64::INFINITY, f64::min), of(0).fold(0.0, f64::max));
            match last - first.min(0.0) <= latest {
                true => times.spans.push((of(1).fold(0.0, f64::max) - first) / 1e3),
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
