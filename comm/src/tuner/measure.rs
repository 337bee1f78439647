//! Which candidate is measured when, and when that is enough.
//!
//! The principal function is [`measure_cells`]. Rank 0 alone decides, by its clock and its numbers, and tells the others after
//! every round; so all ranks do the same, and no rank derives a count from its own clock. Candidates take turns in blocks, so
//! that a drift of the machine affects all alike.

use super::bench::{CellBench, ReadyCandidate};
use super::candidate::{CandidatePrograms, TuneCandidate};
use super::watch::TrialWatch;
use super::{CandidateRefusal, CandidateSamples, CellSamples, CellWork, TuneOptions};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::stock::measured_kind;
use runtime::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tune::{Summary, remaining, summarize, winner};

/// Calls in a block, at most.
const MOST_CALLS: usize = 16;
/// Rounds before a decision, at least.
const LEAST_ROUNDS: usize = 3;
/// Rounds in which every candidate has so many times that they can decide, also where a round gives one time.
const DECIDING_ROUNDS: usize = 6;
/// Samples after which nothing new is expected.
const MOST_SAMPLES: usize = 64;
/// About how long a block may take, in microseconds.
const BLOCK_US: f64 = 20_000.0;
/// The share of a cell's time in which candidates are admitted; after it, no more are.
const ADMISSION: f64 = 0.5;
/// Calls of a screening: the first times of a candidate, before the comparison.
const SCREENING: usize = 3;
/// Screenings of who seems to have no chance, after the first one: the processor may have done something else meanwhile.
const MORE_SCREENINGS: usize = 2;
/// A screening that takes longer, in microseconds, is not repeated: what the processor does else is short beside it.
const LONG_SCREENING_US: f64 = 100_000.0;
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

/// Measures all cells of a list, of which every rank has the same. The samples are known to rank 0 only.
///
/// # Errors
/// If a rank is lost.
pub(super) fn measure_cells(
    (control, watch): (&Communicator, &TrialWatch),
    work: &[CellWork],
    candidates: &[TuneCandidate],
    options: &TuneOptions,
    mut progress: impl FnMut(&CellSamples),
) -> CommResult<Vec<CellSamples>> {
    let begin = Moment::now();
    let mut measured = Vec::with_capacity(work.len());
    let mut programs = CandidatePrograms::default();
    let (mut distrusted, mut wasted) = (BTreeMap::new(), Duration::ZERO);
    for (index, cell) in work.iter().enumerate() {
        // What earlier cells did not use is for the later ones.
        let left = (options.budget + wasted).saturating_sub(Moment::now().since(begin));
        let share = left / (work.len() - index).max(1) as u32;
        let mut is_late = [i64::from(left.is_zero())];
        if cell.is_of_stock_alone() {
            control.broadcast(&mut is_late, 0)?;
        }
        let samples = match cell.is_of_stock_alone() && is_late != [0] {
            true => cell.unmeasured(control.size(), options),
            false => {
                let candidates = (candidates, &mut programs, &distrusted);
                let (samples, time) = measure_cell((control, watch), cell, candidates, options, share)?;
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

/// A candidate in the competition of one cell.
struct Contender<'a> {
    /// `None` once it was refused.
    ready: Option<ReadyCandidate<'a>>,
    samples: CandidateSamples,
    /// About how long a call takes, in microseconds; the same on all ranks.
    expected_us: f64,
}

/// The competition of one cell. The first contender is stock.
struct Contest<'a>(Vec<Contender<'a>>);

/// Measures a cell for about as long as its share of the time. With the samples comes how long the turns have taken in which
/// candidates were refused.
fn measure_cell(
    (control, watch): (&Communicator, &TrialWatch),
    cell: &CellWork,
    (candidates, programs, distrusted): (&[TuneCandidate], &mut CandidatePrograms, &DistrustedCandidates),
    options: &TuneOptions,
    share: Duration,
) -> CommResult<(CellSamples, Duration)> {
    let begin = Moment::now();
    let kind = measured_kind(cell.collective, options.op);
    let count = cell.count(control.size(), options.dtype.size());
    let bytes = kind.size(control.size(), (count * options.dtype.size()) as u64);
    let serving = candidates.iter().enumerate().filter(|(index, candidate)| {
        (*index == 0 || cell.asks_for(candidate)) && candidate.serves(control.size(), kind, count, bytes)
    });
    let mut bench = CellBench::new((control, watch), kind, (count, options.dtype), options.seed, options.limit)?;
    let mut contest = Contest(Vec::new());
    // Plans that do the same are measured once.
    let mut known: BTreeSet<u32> = [control.stock_digest(kind, count, options.dtype)?].into();
    for (index, candidate) in serving {
        // What was wrong once is not called again. All ranks know that.
        if let Some(refusal) = distrusted.get(&(cell.collective, candidate.name.clone())) {
            contest.0.push(Contender::new(candidate, Err(refusal.clone())));
            continue;
        }
        let program = programs.of(index, candidate, kind);
        if let Some(Ok(program)) = &program
            && !known.insert(program.digest())
        {
            continue;
        }
        // Where calls take long, the first screening of all candidates alone would use up the time.
        let has_time =
            options.least_samples > 0 || Moment::now().since(begin) < share.mul_f64(ADMISSION) + bench.wasted();
        let mut is_late = [i64::from(index > 0 && !has_time)];
        control.broadcast(&mut is_late, 0)?;
        contest.0.push(match is_late {
            [0] => Contender::new(candidate, bench.admit(candidate, program)?),
            _ => Contender::late(candidate),
        });
    }
    contest.compete(&mut bench, options, |wasted| Moment::now().since(begin) >= share + wasted)?;
    for contender in &mut contest.0 {
        contender.check_function(&mut bench)?;
    }
    let candidates = contest.0.into_iter().map(|contender| contender.samples).collect();
    Ok((CellSamples { collective: cell.collective, bytes, op: kind.op, candidates }, bench.wasted()))
}

impl<'a> Contender<'a> {
    fn new(candidate: &TuneCandidate, admitted: Result<ReadyCandidate<'a>, CandidateRefusal>) -> Self {
        let samples = CandidateSamples { refusal: admitted.as_ref().err().cloned(), ..CandidateSamples::of(candidate) };
        Self { ready: admitted.ok(), samples, expected_us: f64::INFINITY }
    }

    /// One for which there is no time.
    fn late(candidate: &TuneCandidate) -> Self {
        Self { ready: None, samples: CandidateSamples::of(candidate), expected_us: f64::INFINITY }
    }

    fn refuse(&mut self, refusal: CandidateRefusal) {
        self.samples.refusal = Some(refusal);
        (self.ready, self.expected_us) = (None, f64::INFINITY);
    }
}

impl Contender<'_> {
    /// A function may do something else after many calls, so it has to be right again and again.
    fn check_function(&mut self, bench: &mut CellBench<'_>) -> CommResult<()> {
        let Some(ready) = self.ready.as_ref().filter(|ready| ready.candidate.is_function()) else { return Ok(()) };
        if let Some(refusal) = bench.check(ready)? {
            self.refuse(refusal);
        }
        Ok(())
    }
}

impl Contest<'_> {
    /// Measures all in turns, until it is clear who is the best, or it is late.
    fn compete(
        &mut self,
        bench: &mut CellBench<'_>,
        options: &TuneOptions,
        is_late: impl Fn(Duration) -> bool,
    ) -> CommResult<()> {
        // Screenings tell who has no chance; a plan that takes long must not use up the time of the others.
        let mut live = self.screen(bench)?;
        for round in 0.. {
            // Each round begins with another candidate.
            let turns: Vec<usize> = (0..live.len()).map(|turn| live[(turn + round) % live.len()]).collect();
            let is_fair = self.round(bench, &turns, round)?;
            live = match is_fair {
                true => self.ready(live),
                // Who had no chance beside a candidate that was wrong may have one now.
                false => self.live(),
            };
            let mut said = vec![0_i64; self.0.len() + 1];
            if bench.control.rank() == 0 {
                let (outcome, stay) = match options.least_samples {
                    _ if !is_fair => (RoundOutcome::Continue, live.clone()),
                    0 => self.judge(&live, round, is_late(bench.wasted())),
                    least => (self.complete(&live, round, least), live.clone()),
                };
                said[0] = i64::from(outcome == RoundOutcome::Continue);
                stay.into_iter().for_each(|index| said[index + 1] = 1);
            }
            bench.control.broadcast(&mut said, 0)?;
            if said[0] == 0 {
                break;
            }
            live.retain(|&index| said[index + 1] == 1);
        }
        Ok(())
    }

    /// Those that were not refused.
    fn ready(&self, mut places: Vec<usize>) -> Vec<usize> {
        places.retain(|&place| self.0[place].ready.is_some());
        places
    }

    /// About how long each candidate takes; those that may be the best, and stock.
    fn screen(&mut self, bench: &mut CellBench<'_>) -> CommResult<Vec<usize>> {
        let mut slow: Vec<usize> = (0..self.0.len()).collect();
        for _ in 0..1 + MORE_SCREENINGS {
            for &place in &slow {
                let contender = &mut self.0[place];
                let Some(ready) = &contender.ready else { continue };
                match bench.time_loop(ready, SCREENING)? {
                    // All ranks have the same number.
                    Ok(times) => contender.expected_us = contender.expected_us.min(times.slowest_us),
                    Err(refusal) => contender.refuse(refusal),
                }
                contender.check_function(bench)?;
            }
            slow = self.ready((0..self.0.len()).collect());
            slow.retain(|place| {
                let screening_us = SCREENING as f64 * self.0[*place].expected_us;
                !self.may_win(*place) && screening_us <= LONG_SCREENING_US
            });
        }
        for contender in &mut self.0 {
            contender.samples.screening_us = Some(contender.expected_us).filter(|time| time.is_finite());
        }
        Ok(self.live())
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
            let calls = ((BLOCK_US / expected.max(1e-3)) as usize).clamp(2, MOST_CALLS);
            match bench.block(ready, calls, expected)? {
                Ok(times) => {
                    // All ranks have the same number.
                    contender.expected_us = times.in_loop.slowest_us;
                    let samples = &mut contender.samples;
                    samples.spans_us.extend(times.spans);
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
            live.contains(&index).then(|| contender.samples.summary(by_span)).flatten()
        };
        let summaries: Vec<Option<Summary>> = self.0.iter().enumerate().map(times).collect();
        let stay = remaining(&summaries);
        let least = summaries.iter().flatten().map(|summary| summary.samples).min().unwrap_or(0);
        let is_decided = stay.len() < 2 || stay.len() == 2 && winner(&summaries).is_some();
        let may_decide = round + 1 >= DECIDING_ROUNDS || summaries.iter().flatten().all(Summary::has_interval);
        let is_enough = may_decide && (is_decided || least >= MOST_SAMPLES);
        match round + 1 >= LEAST_ROUNDS {
            false => (RoundOutcome::Continue, live.to_vec()),
            true if is_enough || is_late => (RoundOutcome::Stop, stay),
            true => (RoundOutcome::Continue, stay),
        }
    }
}

/// Whether spans count: unless ranks were late at most calls of a candidate, as they are where they share cores. Then loops do.
pub(super) fn spans_count<'a>(samples: impl IntoIterator<Item = &'a CandidateSamples>) -> bool {
    let mut competing = samples.into_iter().filter(|samples| samples.refusal.is_none());
    competing.all(|samples| samples.spans_us.len() >= samples.invalid)
}

impl CandidateSamples {
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
        CellSamples { collective: self.collective, bytes, op: kind.op, candidates: Vec::new() }
    }

    /// Elements as MPI counts them, for about the size of the cell.
    pub(super) fn count(&self, ranks: usize, element: usize) -> usize {
        let parts = measured_kind(self.collective, schedule::ReduceOp::Sum).size(ranks, 1).max(1);
        (self.bytes / parts / element as u64) as usize
    }
}

/// The smallest difference of two sizes of a collective among so many ranks, in bytes as the collective counts them.
pub(super) fn step_of(collective: schedule::Collective, ranks: usize, dtype: runtime::DType) -> u64 {
    measured_kind(collective, schedule::ReduceOp::Sum).size(ranks, dtype.size() as u64)
}

/// # Errors
/// If the options make no sense.
pub(super) fn check(options: &TuneOptions) -> CommResult<()> {
    match options.collectives.iter().find(|of| !of.takes_vectors()) {
        Some(of) => Err(CommError::Argument(format!("{of} has no vectors of one length, and is not tuned"))),
        None => Ok(()),
    }
}
