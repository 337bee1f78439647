//! Cell after cell: which candidates compete there, and how much of the time each cell gets.
//!
//! The principal function is [`measure_cells`]. Rank 0 alone decides, by its clock, and tells the others; so all ranks do the same,
//! and no rank derives a count from its own clock.

use super::admission::{Admission, PendingCandidate};
use super::bench::CellBench;
use super::candidate::{CandidatePrograms, TuneCandidate};
use super::contest::{Contender, Contest};
use super::predict::Predictions;
use super::shares::{CellTime, weights};
use super::watch::TrialWatch;
use super::{CandidateRefusal, CandidateSamples, CellSamples, CellWork, StockPlan, TuneOptions};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::gpu::GpuRank;
use crate::stock::{CallKind, measured_kind};
use runtime::{DType, Moment};
use std::collections::BTreeMap;
use std::time::Duration;

/// Measures all cells of a list, of which every rank has the same. The samples are known to rank 0 only.
///
/// # Errors
/// If a rank is lost.
pub(super) fn measure_cells(
    (control, watch): (&Communicator, &TrialWatch),
    mut gpu: Option<&mut GpuRank>,
    work: &[CellWork],
    candidates: &[TuneCandidate],
    options: &TuneOptions,
    mut progress: impl FnMut(&CellSamples),
) -> CommResult<Vec<CellSamples>> {
    let begin = Moment::now();
    let mut measured = Vec::with_capacity(work.len());
    let (mut programs, mut predictions) = (CandidatePrograms::default(), Predictions::new(control, options));
    let (mut distrusted, mut wasted) = (BTreeMap::new(), Duration::ZERO);
    let weights = weights(predictions.model(), control.size(), work, options);
    for (index, cell) in work.iter().enumerate() {
        // What earlier cells did not use is for the later ones.
        let left = (options.budget + wasted).saturating_sub(Moment::now().since(begin));
        let part = weights[index] / weights[index..].iter().sum::<f64>();
        let share = Duration::try_from_secs_f64(left.as_secs_f64() * part).unwrap_or(left);
        let may_skip = cell.is_of_stock_alone() || cell.candidates.is_some() && options.least_samples == 0;
        let mut is_late = [i64::from(left.is_zero())];
        if may_skip {
            control.broadcast(&mut is_late, 0)?;
        }
        let samples = match may_skip && is_late != [0] {
            true => cell.unmeasured(control.size(), options),
            false => {
                let candidates = (candidates, &distrusted);
                let plans = (&mut programs, &mut predictions);
                let place = ((control, watch), gpu.as_deref_mut());
                let (samples, time) = measure_cell(place, cell, candidates, plans, (options, share))?;
                wasted += time;
                samples
            }
        };
        for CandidateSamples { name, refusal, .. } in &samples.candidates {
            let refusal = refusal.clone().filter(|refusal| refusal.is_wrong && name != tune::STOCK);
            distrusted.extend(refusal.map(|refusal| ((cell.collective, name.clone()), refusal)));
        }
        progress(&samples);
        measured.push(samples);
    }
    Ok(measured)
}

/// Candidates that were wrong, and why, by collective: functions for several of them may have one name.
type DistrustedCandidates = BTreeMap<(schedule::Collective, String), CandidateRefusal>;

/// Measures a cell for about as long as its share of the time. With the samples comes how long the turns have taken in which
/// candidates were refused.
fn measure_cell(
    ((control, watch), gpu): ((&Communicator, &TrialWatch), Option<&mut GpuRank>),
    cell: &CellWork,
    (candidates, distrusted): (&[TuneCandidate], &DistrustedCandidates),
    (programs, predictions): (&mut CandidatePrograms, &mut Predictions),
    (options, share): (&TuneOptions, Duration),
) -> CommResult<(CellSamples, Duration)> {
    let (begin, kind) = (Moment::now(), measured_kind(cell.collective, options.op));
    let count = cell.count(control.size(), options.dtype.size());
    let bytes = cell.unmeasured(control.size(), options).bytes;
    let may_map = gpu.as_ref().is_some_and(|gpu| gpu.maps(bytes));
    let serving = candidates.iter().enumerate().filter(|(index, candidate)| {
        let is_asked = *index == 0 || cell.asks_for(candidate);
        is_asked && candidate.serves(control.size(), kind, count, bytes) && (may_map || !candidate.is_kernel())
    });
    let (size, on) = ((count, options.dtype), ((control, watch), gpu));
    let mut bench = match CellBench::new(on, kind, size, options.seed, options.limit)? {
        Ok(bench) => bench,
        Err(refusal) => return Ok((cell.without_room(control.size(), options, refusal), Duration::ZERO)),
    };
    let (mut contest, mut pending) = (Contest(Vec::new()), Vec::new());
    // Plans that do the same are measured once.
    let (stock_plan, digest) = stock_of(&mut bench, kind, size)?;
    let mut known: BTreeMap<u32, &str> = digest.map(|digest| (digest, tune::STOCK)).into_iter().collect();
    let mut stock_us = None;
    for (index, candidate) in serving {
        // What was wrong once is not called again. All ranks know that.
        if let Some(refusal) = distrusted.get(&(cell.collective, candidate.name.clone())) {
            contest.0.push(Contender::refused(candidate, refusal.clone()));
            continue;
        }
        let program = programs.of(index, candidate, kind);
        let predicted_us = predictions.of((index, candidate), program.as_ref(), kind, bytes);
        if let Some(Ok(program)) = &program {
            if let Some(same) = known.get(&program.digest()) {
                stock_us = stock_us.or(predicted_us.filter(|_| *same == tune::STOCK));
                contest.0.push(Contender::same(candidate, same));
                continue;
            }
            known.insert(program.digest(), &candidate.name);
        }
        let counts = match bench.counts_for(candidate)? {
            Ok(counts) => counts,
            Err(refusal) => {
                contest.0.extend(refusal.map(|refusal| Contender::refused(candidate, refusal)));
                continue;
            }
        };
        pending.push(PendingCandidate { place: contest.0.len(), candidate, program, counts, predicted_us });
        contest.0.push(Contender::late(candidate));
    }
    pending.iter_mut().take(1).for_each(|stock: &mut PendingCandidate<'_>| stock.predicted_us = stock_us);
    let time = CellTime { begin, share, is_unlimited: options.least_samples > 0 };
    Admission::run(pending, &mut contest.0, &mut bench, time)?;
    contest.compete(&mut bench, options, time)?;
    contest.0.iter_mut().try_for_each(|contender| contender.check_function(&mut bench))?;
    let mut measured = CellSamples { stock_plan: Some(stock_plan), ..cell.unmeasured(control.size(), options) };
    measured.candidates.extend(contest.0.into_iter().map(|contender| contender.samples));
    Ok((measured, bench.wasted()))
}

/// What serves stock's calls, and the digest of its program if it has one.
fn stock_of(
    bench: &mut CellBench<'_>,
    kind: CallKind,
    (count, dtype): (usize, DType),
) -> CommResult<(StockPlan, Option<u32>)> {
    if let Some(plan) = bench.gpu_stock() {
        return Ok((plan, None));
    }
    let stock = bench.control.stock_plan(kind, count, dtype)?;
    let traffic = program::traffic_digest(stock.program.program().program());
    Ok((StockPlan { name: stock.name.to_string(), traffic }, Some(stock.program.digest())))
}

impl CellWork {
    /// Whether nothing competes with stock: only a guideline asks for its time.
    fn is_of_stock_alone(&self) -> bool {
        self.candidates.as_ref().is_some_and(Vec::is_empty)
    }

    /// No samples.
    fn unmeasured(&self, ranks: usize, options: &TuneOptions) -> CellSamples {
        let kind = measured_kind(self.collective, options.op);
        let bytes = kind.size(ranks, (self.count(ranks, options.dtype.size()) * options.dtype.size()) as u64);
        CellSamples { collective: self.collective, bytes, op: kind.op, stock_plan: None, candidates: Vec::new() }
    }

    /// No samples, as there is no room for buffers.
    fn without_room(&self, ranks: usize, options: &TuneOptions, refusal: CandidateRefusal) -> CellSamples {
        let candidates = vec![Contender::refused(&TuneCandidate::stock(), refusal).samples];
        CellSamples { candidates, ..self.unmeasured(ranks, options) }
    }

    /// Elements as MPI counts them, for about the size of the cell; at least one.
    pub(super) fn count(&self, ranks: usize, element: usize) -> usize {
        let parts = measured_kind(self.collective, schedule::ReduceOp::Sum).size(ranks, 1).max(1);
        (self.bytes / parts / element as u64).max(1) as usize
    }
}

/// The smallest difference of two sizes of a collective among so many ranks, in bytes as the collective counts them.
pub(super) fn step_of(collective: schedule::Collective, ranks: usize, dtype: runtime::DType) -> u64 {
    measured_kind(collective, schedule::ReduceOp::Sum).size(ranks, dtype.size() as u64)
}

/// # Errors
/// If the options make no sense.
pub(super) fn check(options: &TuneOptions) -> CommResult<()> {
    if let Some(of) = options.collectives.iter().find(|of| !of.takes_vectors()) {
        return Err(CommError::Argument(format!("{of} has no vectors of one length, and is not tuned")));
    }
    match options.collectives.iter().find(|of| !options.device.does(**of)) {
        Some(of) => {
            Err(CommError::Argument(format!("no plan serves {of} in NCCL's place, so it is not tuned on GPUs")))
        }
        None => Ok(()),
    }
}
