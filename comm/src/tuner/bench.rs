//! One size of one collective, with its memory, on which candidates run.
//!
//! The principal type is [`CellBench`].

use super::candidate::{CandidateWork, TuneCandidate};
use super::clock::CommonClock;
use super::compare::told_by;
use super::device::{GpuBench, ReadyGpuWork};
use super::memory::TrialMemory;
use super::watch::{TrialMark, TrialWatch};
use super::{CandidateRefusal, StockPlan, TrialPhase};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::functions::composed;
use crate::gpu::{GpuRank, RankFault};
use crate::operation::CollectiveCall;
use crate::stock::CallKind;
use runtime::{DType, Moment, Prepared, SequencedProgram};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use topology::Micros;

/// The bytes of a rank's block, up to which a call is short enough to be checked several times.
const SHORT: usize = 1 << 20;
/// So often a function has to be right before short calls are timed.
const SHORT_CHECKS: usize = 8;

/// A candidate that is ready for this size.
pub(super) struct ReadyCandidate<'a> {
    pub(super) candidate: &'a TuneCandidate,
    /// Of a plan.
    pub(super) prepared: Option<Prepared>,
    /// Of a plan or a kernel on GPUs.
    pub(super) on_gpu: Option<ReadyGpuWork>,
    /// Of one that needs a table, and of a function: what it leaves undone disturbs no other candidate.
    pub(super) own: Option<Communicator>,
}

impl ReadyCandidate<'_> {
    /// On GPUs there are stock, plans and kernels.
    ///
    /// # Errors
    /// If it is something else.
    fn runs_on_gpus(&self) -> Result<(), RankFault> {
        match (&self.candidate.work, &self.on_gpu) {
            (CandidateWork::Stock, _) | (CandidateWork::Plan(..) | CandidateWork::Kernel(_), Some(_)) => Ok(()),
            _ => Err("it does not run on GPUs".into()),
        }
    }

    /// The communicator that it uses.
    fn lane<'s>(&'s self, common: &'s Communicator) -> &'s Communicator {
        self.own.as_ref().unwrap_or(common)
    }
}

/// How calls of a candidate have ended on this rank.
pub(super) enum CallEnd {
    /// As they should.
    Good,
    /// The candidate says that it cannot do them, or they have failed.
    Failed(String),
    /// A wrong result, or anything else that it must not do.
    Wrong(String),
}

impl CallEnd {
    /// Of calls whose results nobody looks at.
    pub(super) fn of(ended: Result<(), String>) -> Self {
        ended.map_or_else(Self::Failed, |()| Self::Good)
    }
}

/// One size of one collective.
pub(super) struct CellBench<'a> {
    pub(super) control: &'a Communicator,
    /// On which the candidates run, except functions. After a failure it is another one.
    lane: Communicator,
    /// Elements of a call, as the collective counts them.
    count: usize,
    kind: CallKind,
    pub(super) clock: CommonClock,
    memory: TrialMemory,
    /// Where calls run, if that is not the host.
    gpu: Option<GpuBench<'a>>,
    /// When a call failed here the last time, and whether this rank has only waited for others then, or heard of their end.
    failed: (i64, bool),
    /// When it became the turn of a candidate.
    entered: Moment,
    /// How long the turns have taken in which candidates were refused.
    wasted: Duration,
    watch: &'a TrialWatch,
}

impl<'a> CellBench<'a> {
    /// All ranks make this call. If there is no room for the buffers of a rank on its GPU, stock is refused.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn new(
        ((control, watch), gpu): ((&'a Communicator, &'a TrialWatch), Option<&'a mut GpuRank>),
        kind: CallKind,
        (count, dtype): (usize, DType),
        seed: u64,
        limit: Duration,
    ) -> CommResult<Result<Self, CandidateRefusal>> {
        let memory = TrialMemory::new((control.rank(), control.size()), kind, (count, dtype), seed)?;
        let (lane, clock) = (control.duplicate()?, CommonClock::measure(control)?);
        lane.set_time_limit(limit);
        let gpu = match gpu.map(|gpu| GpuBench::new(control, gpu, &memory, limit)).transpose()? {
            Some(Err((rank, why))) => {
                return Ok(Err(CandidateRefusal { rank, phase: TrialPhase::Prepare, why, is_wrong: false }));
            }
            Some(Ok(gpu)) => Some(gpu),
            None => None,
        };
        Ok(Ok(Self {
            control,
            lane,
            count,
            kind,
            clock,
            memory,
            gpu,
            failed: (0, false),
            entered: Moment::now(),
            wasted: Duration::ZERO,
            watch,
        }))
    }

    /// Makes one call. If it fails, the others learn that at once.
    pub(super) fn run(&mut self, ready: &ReadyCandidate<'_>) -> Result<(), String> {
        let ended = self.try_run(ready);
        if let Err(fault) = &ended {
            self.note_failure(fault);
            ready.lane(&self.lane).abort();
        }
        ended.map_err(RankFault::into_why)
    }

    /// A call has failed here just now.
    fn note_failure(&mut self, fault: &RankFault) {
        self.failed = (self.clock.now(), fault.is_of_others());
    }

    /// On GPUs: the times of calls that have run before, so many in a row each time, or why they failed. `None` on the host.
    pub(super) fn time_on_gpu(
        &mut self,
        ready: &ReadyCandidate<'_>,
        calls: (usize, usize),
    ) -> Option<Result<Vec<Micros>, String>> {
        let call = *self.memory.call();
        let gpu = self.gpu.as_mut()?;
        let timed = ready.runs_on_gpus().and_then(|()| gpu.time(ready.on_gpu.as_ref(), &call, calls));
        if let Err(fault) = &timed {
            self.note_failure(fault);
        }
        Some(timed.map_err(RankFault::into_why))
    }

    /// What serves stock's calls on GPUs; `None` on the host.
    pub(super) fn gpu_stock(&mut self) -> Option<StockPlan> {
        let collective = self.kind.collective;
        self.gpu.as_mut().map(|gpu| gpu.stock_plan(collective))
    }

    /// A plan, ready for calls on GPUs; `None` on the host.
    pub(super) fn rounds(&mut self, program: &SequencedProgram) -> Option<Result<ReadyGpuWork, RankFault>> {
        let (rank, call) = (self.control.rank(), *self.memory.call());
        self.gpu.as_mut().map(|gpu| gpu.prepared(program, rank, &call))
    }

    /// Whether the communicator of GPUs is of no use any more on this rank.
    pub(super) fn has_failed(&mut self) -> bool {
        self.gpu.as_mut().is_some_and(GpuBench::has_failed)
    }

    /// How long the turns have taken so far in which candidates were refused, such as the wait for a limit: the others do not pay
    /// for it.
    pub(super) fn wasted(&self) -> Duration {
        self.wasted
    }

    /// It is the turn of a candidate.
    pub(super) fn enter(&mut self, candidate: &TuneCandidate, phase: TrialPhase) {
        self.entered = Moment::now();
        self.watch.enter(|| TrialMark {
            collective: self.kind.collective,
            bytes: self.kind.size(self.control.size(), (self.count * self.memory.call().dtype.size()) as u64),
            candidate: candidate.name.clone(),
            is_function: candidate.is_function(),
            phase,
        });
    }

    fn try_run(&mut self, ready: &ReadyCandidate<'_>) -> Result<(), RankFault> {
        let Self { memory, gpu: Some(gpu), .. } = self else {
            return self.try_on_host(ready).map_err(|why| RankFault::from(&why));
        };
        ready.runs_on_gpus()?;
        gpu.run(ready.on_gpu.as_ref(), memory)
    }

    fn try_on_host(&mut self, ready: &ReadyCandidate<'_>) -> Result<(), String> {
        let Self { lane, kind, memory, watch, .. } = self;
        let call = *memory.call();
        let (lane, buffers) = (ready.lane(lane), memory.buffers());
        let told = |error: CommError| error.to_string();
        match (&ready.candidate.work, &ready.prepared) {
            (CandidateWork::Plan(..), Some(prepared)) => lane.run_prepared(prepared, buffers).map_err(told),
            (CandidateWork::Function(function), _) => {
                let ended = watch.call(|| catch_unwind(AssertUnwindSafe(|| (function.run)(lane, &call, buffers))));
                ended.unwrap_or_else(|_| Err("it panicked".to_owned()))
            }
            (CandidateWork::Composed(of, _), _) => composed(lane, *of, &call, buffers).map_err(told),
            _ => lane.collective(*kind, call.count, call.dtype, buffers).map_err(told),
        }
    }

    /// Of which candidates' calls are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How long a call may go without progress.
    pub(super) fn limit(&self) -> Duration {
        self.lane.limit()
    }

    /// A plan, ready for calls of this size.
    ///
    /// # Errors
    /// Why it cannot make such calls.
    pub(super) fn prepared(&self, program: &Arc<SequencedProgram>) -> CommResult<Prepared> {
        self.lane.prepare(program, self.count, self.memory.call().dtype)
    }

    /// Sets up the next problem, of which nothing is asked on this rank.
    pub(super) fn refill(&mut self) {
        self.memory.refill(self.count);
    }

    /// Time was spent on a candidate that is refused.
    pub(super) fn waste(&mut self, time: Duration) {
        self.wasted += time;
    }

    /// For which numbers of elements a candidate has to be right, the same on all ranks. Otherwise why it is refused; `None` if its
    /// predicate says that it cannot do calls of this cell. Every rank asks its own predicate, and learns what the others' have said.
    /// Where one has said something else than that of rank 0, the candidate is refused.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn counts_for(
        &mut self,
        candidate: &TuneCandidate,
    ) -> CommResult<Result<Vec<usize>, Option<CandidateRefusal>>> {
        let counts = || self.counts_of_functions();
        let Some(function) = candidate.as_function() else {
            return Ok(Ok(if candidate.is_kernel() { counts() } else { vec![self.count] }));
        };
        let counts = counts();
        if function.when.is_none() {
            return Ok(Ok(counts));
        }
        self.enter(candidate, TrialPhase::Prepare);
        let call = |count| CollectiveCall { count, ..*self.memory.call() };
        let says = |count: &usize| self.watch.call(|| function.can_do(&call(*count)));
        let own: Vec<i64> = counts.iter().map(|count| i64::from(says(count))).collect();
        let mut all = vec![0; own.len() * self.control.size()];
        self.control.all_gather(&own, &mut all)?;
        let differs = |(at, says): (usize, &i64)| *says != all[at % own.len()];
        if let Some(at) = all.iter().enumerate().position(differs) {
            let (rank, count) = (at / own.len(), counts[at % own.len()]);
            let [here, there] = [all[at], all[at % own.len()]].map(|says| if says == 0 { "no" } else { "yes" });
            let why = format!("its predicate says {here} on rank {rank}, and {there} on rank 0, for {count} elements");
            return Ok(Err(Some(CandidateRefusal { rank, phase: TrialPhase::Prepare, why, is_wrong: true })));
        }
        let says_yes = |at: usize| own[at] != 0;
        // The last are those of the cell.
        if !says_yes(own.len() - 1) {
            return Ok(Err(None));
        }
        Ok(Ok((0..counts.len()).filter(|at| says_yes(*at)).map(|at| counts[at]).collect()))
    }

    /// For which numbers of elements a function has to be right; the same on all ranks. A table names it for a range of sizes, so
    /// some are smaller, down to a quarter. Short calls are made several times: some may be right, and others not.
    pub(super) fn counts_of_functions(&self) -> Vec<usize> {
        let between = self.count / 4 + (self.memory.seed() >> 32) as usize % (self.count - self.count / 4).max(1);
        let mut counts = vec![between, between | 1, self.count.saturating_sub(1)];
        counts.retain(|count| (1..self.count).contains(count));
        let is_short = self.count * self.memory.call().dtype.size() <= SHORT;
        counts.extend(std::iter::repeat_n(self.count, if is_short { SHORT_CHECKS } else { 1 }));
        counts
    }

    /// Runs a candidate once on numbers that no two ranks have in common, and that no earlier call had. All ranks learn why it is
    /// refused, if the result is not right on all of them.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn check(&mut self, ready: &ReadyCandidate<'_>) -> CommResult<Option<CandidateRefusal>> {
        self.check_at(ready, self.count)
    }

    /// A checked call of a candidate, as it has ended on this rank.
    pub(super) fn try_check(&mut self, ready: &ReadyCandidate<'_>, count: usize) -> CallEnd {
        self.enter(ready.candidate, TrialPhase::Check);
        self.memory.refill(count);
        match self.run(ready) {
            Ok(()) => self.memory.fault().map_or(CallEnd::Good, CallEnd::Wrong),
            Err(why) if count != self.count => CallEnd::Failed(format!("{why}, for {count} elements")),
            Err(why) => CallEnd::Failed(why),
        }
    }

    /// The same as [`Self::check`] for so many elements.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn check_at(
        &mut self,
        ready: &ReadyCandidate<'_>,
        count: usize,
    ) -> CommResult<Option<CandidateRefusal>> {
        let ended = self.try_check(ready, count);
        let refusal = self.verdict(ready, ended, TrialPhase::Check)?;
        if count != self.count {
            // Calls that are timed are those of the cell, whatever becomes of this candidate.
            self.memory.refill(self.count);
        }
        Ok(refusal)
    }

    /// Whether a candidate is refused after its calls, and why: if some failed, by the rank that failed first of itself, after which
    /// the others could not go on either. A function must also have made equally many calls on all ranks, and have ended them.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn verdict(
        &mut self,
        ready: &ReadyCandidate<'_>,
        ended: CallEnd,
        phase: TrialPhase,
    ) -> CommResult<Option<CandidateRefusal>> {
        let (mut failed_at, mut is_wrong, mut why) = match ended {
            CallEnd::Good => (0, false, String::new()),
            CallEnd::Failed(why) => (self.failed.0.max(1), false, why),
            CallEnd::Wrong(why) => (0, true, why),
        };
        let is_of_others = failed_at > 0 && self.failed.1;
        let lane = ready.lane(&self.lane);
        if ready.candidate.is_function() {
            let left = lane.give_up_calls();
            if left > 0 && failed_at == 0 {
                lane.abort();
                (failed_at, is_wrong) = (self.clock.now().max(1), true);
                why = format!("it has returned before {left} of its calls had ended");
            }
        }
        let calls = i64::from(lane.calls());
        let own = [failed_at, i64::from(is_wrong), calls, i64::from(is_of_others)];
        let mut all = vec![0; own.len() * self.control.size()];
        self.control.all_gather(&own, &mut all)?;
        let ranks = || all.chunks_exact(own.len()).enumerate();
        // Who has only heard of another one's end may have noted it first.
        let first_failure = ranks().filter(|(_, said)| said[0] > 0).min_by_key(|(_, said)| (said[3], said[0]));
        let differs = |(_, said): &(usize, &[i64])| said[1] > 0 || said[2] != all[2];
        // Who returned too early has failed nowhere, but those who waited for it have.
        let too_early = |failed: &[i64]| ranks().find(|(_, said)| said[0] == 0 && said[2] < failed[2]);
        let blamed = first_failure.map(|(rank, said)| too_early(said).unwrap_or((rank, said)));
        let Some((rank, said)) = blamed.or_else(|| ranks().find(differs)) else { return Ok(None) };
        let counts_differ = said[0] == 0 && said[1] == 0;
        if counts_differ && rank == self.control.rank() {
            let (other, calls_there) = first_failure.map_or((0, all[2]), |(rank, said)| (rank, said[2]));
            why = format!("it has made {calls} calls on rank {rank}, and {calls_there} on rank {other}");
        }
        if first_failure.is_some() && ready.own.is_none() {
            self.renew()?;
        }
        self.wasted += Moment::now().since(self.entered);
        let is_wrong = said[1] > 0 || counts_differ;
        Ok(Some(CandidateRefusal { rank, phase, why: told_by(self.control, rank, &why)?, is_wrong }))
    }

    /// After a failure the candidates get another communicator: what is under way in the old one is of no interest.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn renew(&mut self) -> CommResult<()> {
        let limit = self.lane.limit();
        self.lane = self.control.duplicate()?;
        self.lane.set_time_limit(limit);
        self.gpu.as_mut().map_or(Ok(()), |gpu| gpu.renew(self.control))
    }
}
