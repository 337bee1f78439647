//! Who takes part in the competition of one cell: candidates are prepared and checked in batches. However many there are in one, a
//! single round says who could not be prepared, and another one whose results were wrong.
//!
//! The principal type is [`Admission`]. Rank 0 decides who is in the next batch, by its clock, and tells the others. Where calls
//! take long, the checks of all candidates alone would use up the time; so each batch takes about half of what is left.

use super::bench::{CallEnd, CellBench, ReadyCandidate};
use super::candidate::{CandidateWork, MadeProgram, TuneCandidate};
use super::compare::told_by;
use super::contest::Contender;
use super::device::GpuBench;
use super::predict::{CandidateTurn, in_order};
use super::shares::CellTime;
use super::{CandidateRefusal, TrialPhase};
use crate::error::CommResult;
use crate::gpu::RankFault;
use runtime::Moment;
use std::time::Duration;

/// The share of a cell's time in which candidates are admitted; after it, no more are.
const ADMISSION: f64 = 0.5;
/// The same for those that are predicted to have no chance, with the calls that confirm it.
const OF_HOPELESS: f64 = 0.2;
/// About how many calls, the check among them, tell that a candidate has no chance.
const UNTIL_SEEN: f64 = 4.0;
/// The most candidates in a batch.
const MOST: usize = 64;
/// Within this part of the limit of a call, a batch should be through: whoever has less to do in a call waits for the others.
const OF_LIMIT: f64 = 0.5;

/// A candidate that waits for its turn.
#[derive(Clone)]
pub(super) struct PendingCandidate<'a> {
    /// Its place among the contenders.
    pub(super) place: usize,
    pub(super) candidate: &'a TuneCandidate,
    /// Of a plan.
    pub(super) program: Option<MadeProgram>,
    /// For which numbers of elements it has to be right.
    pub(super) counts: Vec<usize>,
    /// What is predicted of a call, in microseconds; known to rank 0 only.
    pub(super) predicted_us: Option<f64>,
}

/// Why a rank cannot prepare a candidate: what has gone wrong there, or elsewhere.
const OWN: i64 = 1;
const OF_OTHERS: i64 = 2;
/// How one rank's checked call of a candidate in a batch has ended.
const GOOD: i64 = 0;
const WRONG: i64 = 1;
/// It failed, or one before it did.
const FAILED: i64 = 2;

/// Those that wait for their turn in one cell.
pub(super) struct Admission<'a> {
    pending: Vec<Option<PendingCandidate<'a>>>,
    /// The order, known to rank 0 only; the next one last.
    turns: Vec<CandidateTurn>,
    /// About how long it takes to prepare and check a candidate that is as fast as stock.
    unit: Duration,
}

impl<'a> Admission<'a> {
    /// Lets candidates take part as long as there is time; the first one, which is stock, in any case.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn run(
        mut pending: Vec<PendingCandidate<'a>>,
        contenders: &mut [Contender<'a>],
        bench: &mut CellBench<'_>,
        time: CellTime,
    ) -> CommResult<()> {
        pending.iter().for_each(|of| contenders[of.place].samples.predicted_us = of.predicted_us);
        let rest = pending.split_off(pending.len().min(1));
        let stock_us = pending.first().and_then(|stock| stock.predicted_us);
        let begin = Moment::now();
        admit(pending, contenders, bench)?;
        let turns = if bench.control.rank() == 0 { in_order(&rest, stock_us) } else { Vec::new() };
        let turns = turns.into_iter().rev().collect();
        let pending = rest.into_iter().map(Some).collect();
        let mut admission = Self { pending, turns, unit: Moment::now().since(begin) };
        loop {
            let batch = admission.next(bench, time)?;
            if batch.is_empty() {
                return Ok(());
            }
            admit(batch, contenders, bench)?;
        }
    }

    /// The next batch, the same on all ranks; empty if nobody is left, or no time.
    fn next(&mut self, bench: &CellBench<'_>, time: CellTime) -> CommResult<Vec<PendingCandidate<'a>>> {
        if self.pending.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let mut said = vec![-1_i64; self.pending.len()];
        if bench.control.rank() == 0 {
            let batch = self.choose(bench, time);
            said.iter_mut().zip(batch).for_each(|(said, index)| *said = index as i64);
        }
        bench.control.broadcast(&mut said, 0)?;
        let chosen = said.into_iter().filter_map(|index| usize::try_from(index).ok());
        Ok(chosen.filter_map(|index| self.pending.get_mut(index)?.take()).collect())
    }

    /// Who is next, by rank 0's clock.
    fn choose(&mut self, bench: &CellBench<'_>, time: CellTime) -> Vec<usize> {
        let left = |part| time.left(part, bench.wasted());
        let mut batch = Vec::new();
        let (mut cost, room) = (Duration::ZERO, (left(ADMISSION) / 2).min(bench.limit().mul_f64(OF_LIMIT)));
        while let Some(&CandidateTurn { index, weight, is_hopeless }) = self.turns.last() {
            let own = self.unit.mul_f64(weight);
            if is_hopeless && cost + own.mul_f64(UNTIL_SEEN) > left(OF_HOPELESS) {
                // One behind it may take less time.
                self.turns.pop();
                continue;
            }
            let has_time = is_hopeless || !left(ADMISSION).is_zero();
            if !has_time || !batch.is_empty() && cost + own > room || batch.len() >= MOST {
                break;
            }
            cost += own;
            self.turns.pop();
            batch.push(index);
        }
        batch
    }
}

/// Prepares and checks candidates, and lets them take part or refuses them.
fn admit<'a>(
    batch: Vec<PendingCandidate<'a>>,
    contenders: &mut [Contender<'a>],
    bench: &mut CellBench<'_>,
) -> CommResult<()> {
    let places: Vec<usize> = batch.iter().map(|of| of.place).collect();
    for (place, admitted) in places.into_iter().zip(bench.admit(batch)?) {
        contenders[place].admit(admitted);
    }
    Ok(())
}

/// A candidate under way to take part.
type AdmittedCandidate<'c> = Result<ReadyCandidate<'c>, CandidateRefusal>;

impl CellBench<'_> {
    /// Prepares candidates, and runs each on numbers that no two ranks have in common. All ranks learn whether all of them got the
    /// right result; if not, why.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn admit<'c>(&mut self, batch: Vec<PendingCandidate<'c>>) -> CommResult<Vec<AdmittedCandidate<'c>>> {
        let (candidates, counts): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|of| ((of.candidate, of.program), of.counts)).unzip();
        let mut all = self.prepare_all(candidates)?;
        self.check_together(&mut all)?;
        for (place, counts) in all.iter_mut().zip(counts) {
            let Ok(ready) = place else { continue };
            // What has a communicator of its own may do anything in it, so it is looked at alone. A table names kernels for a range of
            // sizes, so they have to be right for several.
            if ready.own.is_none() && !ready.candidate.is_kernel() {
                continue;
            }
            for count in counts {
                if let Some(refusal) = self.check_at(ready, count)? {
                    *place = Err(refusal);
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Prepares candidates; all ranks learn in one round which of them some rank cannot prepare.
    fn prepare_all<'c>(
        &mut self,
        candidates: Vec<(&'c TuneCandidate, Option<MadeProgram>)>,
    ) -> CommResult<Vec<AdmittedCandidate<'c>>> {
        let has_plans = candidates.iter().any(|(_, program)| program.is_some());
        let made: CommResult<Vec<_>> = candidates.into_iter().map(|(of, program)| self.prepare(of, program)).collect();
        let made = made?;
        // Only a plan can be impossible to prepare. Nobody begins a call that another rank cannot make.
        if !has_plans {
            return Ok(made.into_iter().map(|(ready, _)| Ok(ready)).collect());
        }
        let kind = |fault: &RankFault| if fault.is_of_others() { OF_OTHERS } else { OWN };
        let mut own: Vec<i64> = made.iter().map(|(_, fault)| fault.as_ref().map_or(0, kind)).collect();
        own.push(i64::from(self.has_failed()));
        let all = self.all_say(&own)?;
        let mut admitted = Vec::with_capacity(made.len());
        for (index, (ready, fault)) in made.into_iter().enumerate() {
            let first = |kind: i64| all.chunks_exact(own.len()).position(|said| said[index] == kind);
            admitted.push(match first(OWN).or_else(|| first(OF_OTHERS)) {
                None => Ok(ready),
                Some(rank) => {
                    let why = fault.map(RankFault::into_why).unwrap_or_default();
                    let why = told_by(self.control, rank, &why)?;
                    Err(CandidateRefusal { rank, phase: TrialPhase::Prepare, why, is_wrong: false })
                }
            });
        }
        if all.chunks_exact(own.len()).any(|said| said.last() != Some(&0)) {
            self.renew()?;
        }
        Ok(admitted)
    }

    /// Prepares a candidate; with it, why this rank cannot.
    fn prepare<'c>(
        &mut self,
        candidate: &'c TuneCandidate,
        program: Option<MadeProgram>,
    ) -> CommResult<(ReadyCandidate<'c>, Option<RankFault>)> {
        self.enter(candidate, TrialPhase::Prepare);
        let own = match &candidate.work {
            CandidateWork::Composed(_, Some(table)) => Some(self.control.uncounted(Some(table.clone()))?),
            CandidateWork::Function(..) => Some(self.control.duplicate()?),
            _ => None,
        };
        own.iter().for_each(|lane| lane.set_time_limit(self.limit()));
        let made = program.transpose().map_err(|why| RankFault::from(&why)).and_then(|program| {
            let Some(program) = program else { return Ok((None, None)) };
            match self.rounds(&program) {
                Some(rounds) => Ok((None, Some(rounds?))),
                None => {
                    let prepared = self.prepared(&program).map_err(|error| RankFault::from(&error.to_string()))?;
                    Ok((Some(prepared), None))
                }
            }
        });
        let ((prepared, mut on_gpu), why) = match made {
            Ok(made) => (made, None),
            Err(why) => ((None, None), Some(why)),
        };
        if let CandidateWork::Kernel(algorithm) = candidate.work {
            on_gpu = Some(GpuBench::kernel(algorithm));
        }
        Ok((ReadyCandidate { candidate, prepared, on_gpu, own }, why))
    }

    /// Checks those without a communicator of their own, one call of each after the other, and tells all ranks in one round how they
    /// have ended. From the first one on that has failed on some rank, they are checked once more one by one: whoever was under way
    /// then is disturbed on other ranks, and its communicator is left.
    fn check_together(&mut self, all: &mut [AdmittedCandidate<'_>]) -> CommResult<()> {
        let is_plain = |of: &&mut AdmittedCandidate<'_>| matches!(of, Ok(ready) if ready.own.is_none());
        let mut plain: Vec<&mut AdmittedCandidate<'_>> = all.iter_mut().filter(is_plain).collect();
        if plain.len() < 2 {
            return plain.into_iter().try_for_each(|of| self.check_alone(of));
        }
        let (mut own, mut whys, mut begins) = (Vec::new(), Vec::new(), Vec::new());
        for ready in plain.iter().filter_map(|of| of.as_ref().ok()) {
            begins.push(Moment::now());
            let end = match own.last() {
                Some(&FAILED) => {
                    // All ranks set up equally many problems.
                    self.refill();
                    CallEnd::Failed(String::new())
                }
                _ => self.try_check(ready, self.count()),
            };
            let (end, why) = match end {
                CallEnd::Good => (GOOD, String::new()),
                CallEnd::Wrong(why) => (WRONG, why),
                CallEnd::Failed(why) => (FAILED, why),
            };
            own.push(end);
            whys.push(why);
        }
        begins.push(Moment::now());
        let said = self.all_say(&own)?;
        let by_rank = |index: usize| said.chunks_exact(own.len()).map(move |said| said[index]);
        let whole = (0..own.len()).position(|index| by_rank(index).any(|end| end == FAILED));
        let whole = whole.unwrap_or(own.len());
        for (index, of) in plain.iter_mut().enumerate().take(whole) {
            let Some(rank) = by_rank(index).position(|end| end == WRONG) else { continue };
            let why = told_by(self.control, rank, &whys[index])?;
            self.waste(begins[index + 1].since(begins[index]));
            **of = Err(CandidateRefusal { rank, phase: TrialPhase::Check, why, is_wrong: true });
        }
        if whole < own.len() {
            self.renew()?;
            self.waste(Moment::now().since(begins[whole]));
        }
        plain.into_iter().skip(whole).try_for_each(|of| self.check_alone(of))
    }

    /// Checks one.
    fn check_alone(&mut self, of: &mut AdmittedCandidate<'_>) -> CommResult<()> {
        let refusal = match of {
            Ok(ready) => self.check(ready)?,
            Err(_) => None,
        };
        if let Some(refusal) = refusal {
            *of = Err(refusal);
        }
        Ok(())
    }

    /// What all ranks say, rank by rank.
    fn all_say(&self, own: &[i64]) -> CommResult<Vec<i64>> {
        let mut all = vec![0; own.len() * self.control.size()];
        self.control.all_gather(own, &mut all)?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidate::CandidatePrograms;
    use super::super::watch::TrialWatch;
    use super::*;
    use crate::communicator::Communicator;
    use crate::operation::CollectiveCall;
    use crate::stock::{CallKind, measured_kind};
    use runtime::{Call, DType};
    use schedule::{Collective, ReduceOp};
    use std::sync::Arc;

    const COUNT: usize = 64;

    fn kind() -> CallKind {
        measured_kind(Collective::AllReduce, ReduceOp::Sum)
    }

    /// What ranks have to say that have all done the same with a bench and the communicator of control.
    fn on_ranks<T: Send>(
        ranks: usize,
        work: impl Sync + Fn(&mut CellBench<'_>, &Communicator) -> CommResult<T>,
    ) -> Vec<T> {
        let one = |comm: &Communicator| {
            let (control, watch) = (comm.without_table()?, TrialWatch::default());
            let limit = Duration::from_secs(20);
            let mut bench = CellBench::new(((&control, &watch), None), kind(), (COUNT, DType::F32), 3, limit)?.unwrap();
            work(&mut bench, &control)
        };
        let communicators = Communicator::local(ranks).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| one(comm).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn pending(place: usize, candidate: &TuneCandidate, predicted: fn(usize) -> f64) -> PendingCandidate<'_> {
        let program = CandidatePrograms::default().of(place, candidate, kind());
        let predicted_us = program.as_ref().map(|_| predicted(place));
        PendingCandidate { place, candidate, program, counts: vec![COUNT], predicted_us }
    }

    /// Medians of how long it takes to admit plans one by one, after rank 0 has said of each whether there is time, and together.
    fn times(bench: &mut CellBench<'_>, all: &[PendingCandidate<'_>]) -> CommResult<[Duration; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..21 {
            let begin = Moment::now();
            for one in all {
                bench.control.broadcast(&mut [0_i64], 0)?;
                bench.admit(vec![one.clone()])?;
            }
            times[0].push(Moment::now().since(begin));
            let begin = Moment::now();
            bench.control.broadcast(&mut vec![0_i64; all.len()], 0)?;
            bench.admit(all.to_vec())?;
            times[1].push(Moment::now().since(begin));
        }
        times.iter_mut().for_each(|times| times.sort());
        Ok([0, 1].map(|which| times[which][times[which].len() / 2]))
    }

    #[test]
    fn a_batch_takes_as_many_rounds_as_one_candidate() {
        for ranks in [2, 8] {
            let rounds = on_ranks(ranks, |bench, control| {
                let plans = TuneCandidate::of_table(&Arc::new(control.textbook(&[kind()])?));
                let all: Vec<_> = plans.iter().enumerate().map(|(place, plan)| pending(place, plan, |_| 1.0)).collect();
                let begin = control.calls();
                for one in &all {
                    assert!(bench.admit(vec![one.clone()])?[0].is_ok(), "{}", one.candidate.name());
                }
                let alone = control.calls() - begin;
                let together = bench.admit(all.clone())?;
                assert!(together.iter().all(Result::is_ok));
                let rounds = [all.len() as u32, alone, control.calls() - begin - alone];
                let times = times(bench, &all)?;
                if control.rank() == 0 {
                    println!("{ranks} ranks, {} plans: one by one {:?}, together {:?}", all.len(), times[0], times[1]);
                }
                Ok(rounds)
            });
            let [plans, alone, together] = rounds[0];
            assert!(plans > 2 && rounds.iter().all(|of| *of == rounds[0]), "{rounds:?}");
            assert_eq!([alone, together], [2 * plans, 2]);
        }
    }

    /// A candidate that uses the communicator of plans.
    fn plain(name: &str, end: fn(&Communicator, Call<'_>, &CollectiveCall) -> Result<(), String>) -> TuneCandidate {
        let work = move |lane: &Communicator, call: &CollectiveCall, memory: Call<'_>| end(lane, memory, call);
        TuneCandidate::function(name, vec![Collective::AllReduce], Arc::new(work))
    }

    fn right(lane: &Communicator, memory: Call<'_>, call: &CollectiveCall) -> Result<(), String> {
        lane.collective(kind(), call.count, call.dtype, memory).map_err(|error| error.to_string())
    }

    fn fails(lane: &Communicator, memory: Call<'_>, call: &CollectiveCall) -> Result<(), String> {
        if lane.rank() == 1 { Err("no".to_owned()) } else { right(lane, memory, call) }
    }

    fn is_wrong(lane: &Communicator, mut memory: Call<'_>, call: &CollectiveCall) -> Result<(), String> {
        if let (2, Call::InPlace(bytes)) = (lane.rank(), &mut memory) {
            bytes[3] ^= 0x80;
        }
        right(lane, memory, call)
    }

    #[test]
    fn one_that_fails_in_a_batch_is_blamed_alone() {
        let all = [
            plain("first", right),
            plain("wrong before", is_wrong),
            plain("failing", fails),
            plain("wrong behind", is_wrong),
            plain("last", right),
        ];
        let ended = on_ranks(3, |bench, _| {
            let ready = |candidate| Ok(ReadyCandidate { candidate, prepared: None, on_gpu: None, own: None });
            let mut admitted: Vec<_> = all.iter().map(ready).collect();
            bench.check_together(&mut admitted)?;
            let told = |of: AdmittedCandidate<'_>| of.err().map(|why| (why.rank, why.is_wrong, why.why));
            Ok(admitted.into_iter().map(told).collect::<Vec<_>>())
        });
        assert!(ended.iter().all(|of| *of == ended[0]), "{ended:?}");
        let [None, Some((0, true, _)), Some((1, false, why)), Some((0, true, _)), None] = &ended[0][..] else {
            panic!("{ended:?}");
        };
        assert_eq!(why, "no");
    }

    #[test]
    fn who_is_late_is_not_called() {
        let late = on_ranks(2, |bench, control| {
            let plans = TuneCandidate::of_table(&Arc::new(control.textbook(&[kind()])?));
            let stock = TuneCandidate::stock();
            let all = || std::iter::once(&stock).chain(&plans).enumerate();
            let waiting = |predicted: fn(usize) -> f64| {
                all().map(|(place, candidate)| pending(place, candidate, predicted)).collect::<Vec<_>>()
            };
            let mut admitted = |share: u64, predicted| {
                let mut contenders: Vec<_> = all().map(|(_, candidate)| Contender::late(candidate)).collect();
                let share = Duration::from_secs(share);
                let time = CellTime { begin: Moment::now(), share, is_unlimited: false };
                Admission::run(waiting(predicted), &mut contenders, bench, time)?;
                let is_ready = contenders.iter().map(Contender::is_ready);
                CommResult::Ok(is_ready.collect::<Vec<_>>())
            };
            let one_is_hopeless = |place: usize| if place == 1 { 1e9 } else { 1.0 };
            Ok([admitted(0, |_| 1.0)?, admitted(3600, |_| 1.0)?, admitted(10, one_is_hopeless)?])
        });
        for [no_time, enough, hopeless] in late {
            // Stock always takes part.
            assert!(no_time[0] && no_time[1..].iter().all(|is_ready| !is_ready), "{no_time:?}");
            assert!(enough.iter().all(|is_ready| *is_ready), "{enough:?}");
            assert!(!hopeless[1] && hopeless[2..].iter().all(|is_ready| *is_ready), "{hopeless:?}");
        }
    }
}
