//! What the cost model predicts of plans, and in which order candidates take part because of it.
//!
//! The principal type is [`Predictions`], the principal function [`in_order`]. Only rank 0 predicts, and tells the others what
//! follows. A prediction decides who is measured first, never who wins.

use super::admission::PendingCandidate;
use super::candidate::{MadeProgram, TuneCandidate};
use super::{TuneDevice, TuneOptions};
use crate::communicator::Communicator;
use crate::stock::{self, CallKind};
use runtime::Moment;
use schedule::{Collective, Request, VerifiedSchedule};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use synth::{Constraints, SizeTask, retimed};
use topology::Topology;

/// A plan of more messages is not predicted: all other ranks wait for it.
const MOST_MESSAGES: usize = 20_000;
/// A plan that is predicted to take so many times as long as the best one is measured last.
pub(super) const HOPELESS: f64 = 8.0;
/// No prediction is taken for more than so many times the best one.
const MOST_TIMES: f64 = 1e6;
/// The share of the budget for predictions, at most.
const OF_BUDGET: f64 = 0.02;
/// About so many times as long as stock a function is checked: again and again.
const OF_FUNCTION: f64 = 8.0;

/// A plan, as far as its time depends on it.
struct PredictedPlan {
    schedule: VerifiedSchedule,
    /// How many bytes the busiest rank copies or adds, for each byte of the call.
    worked: f64,
}

/// What the cost model predicts.
pub(super) struct Predictions {
    ranks: usize,
    /// What messages cost; `None` where nothing is predicted.
    model: Option<Arc<Topology>>,
    /// By candidate and collective.
    plans: BTreeMap<(usize, Collective), Option<PredictedPlan>>,
    /// How long it may still take: the other ranks wait meanwhile.
    left: Duration,
}

impl Predictions {
    /// Of these ranks, within a small share of the budget; only rank 0 has any. What messages cost was measured between hosts, so on
    /// GPUs nothing is predicted.
    pub(super) fn new(control: &Communicator, options: &TuneOptions) -> Self {
        let is_known = control.rank() == 0 && options.device == TuneDevice::Host;
        let model = if is_known { control.cost_model().ok() } else { None };
        let (plans, left) = (BTreeMap::new(), options.budget.mul_f64(OF_BUDGET));
        Self { ranks: control.size(), model: model.map(Arc::new), plans, left }
    }

    /// What messages cost; `None` where nothing is predicted.
    pub(super) fn model(&self) -> Option<&Topology> {
        self.model.as_deref()
    }

    /// About how long a call of so many bytes takes with the `index`-th candidate, in microseconds; `None` if it is no plan, or one
    /// that cannot be played again at this size, or if there is no time.
    pub(super) fn of(
        &mut self,
        candidate: (usize, &TuneCandidate),
        program: Option<&MadeProgram>,
        kind: CallKind,
        bytes: u64,
    ) -> Option<f64> {
        let begin = Moment::now();
        let predicted = if self.left.is_zero() { None } else { self.predict(candidate, program, kind, bytes) };
        self.left = self.left.saturating_sub(Moment::now().since(begin));
        predicted
    }

    fn predict(
        &mut self,
        (index, candidate): (usize, &TuneCandidate),
        program: Option<&MadeProgram>,
        kind: CallKind,
        bytes: u64,
    ) -> Option<f64> {
        let (model, program) = (self.model.clone()?, program?.as_ref().ok()?);
        let plan = self.plans.entry((index, kind.collective)).or_insert_with(|| {
            let schedule = candidate.schedule(kind.op, MOST_MESSAGES)?;
            let size = schedule.schedule().demand.request().size_bytes.max(1);
            let worked = program.program().program().most_worked_bytes() as f64 / size as f64;
            Some(PredictedPlan { schedule, worked })
        });
        let PredictedPlan { schedule, worked } = plan.as_ref()?;
        let mut request = Request::new(kind.collective, self.ranks, bytes);
        (request.root, request.op) = (kind.root, kind.op);
        let task = SizeTask { topology: model, constraints: Arc::new(Constraints::none()), request, chunks: None };
        let messages = retimed(schedule, &task, bytes)?.makespan();
        let time = messages + stock::work(kind, self.ranks, worked * bytes as f64);
        Some(time.0).filter(|time| time.is_finite() && *time > 0.0)
    }
}

/// When a candidate takes part, beside the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CandidateTurn {
    /// Its place among those that wait.
    pub(super) index: usize,
    /// About how many times as long as stock it takes.
    pub(super) weight: f64,
    /// Whether it is predicted to have no chance.
    pub(super) is_hopeless: bool,
}

/// The order in which candidates take part: what is given before textbook algorithms, and in both the plan first that is predicted
/// to take the least time. Who has no prediction keeps its place. Those that are predicted to have no chance come last. `stock_us` is
/// what is predicted of stock.
pub(super) fn in_order(pending: &[PendingCandidate<'_>], stock_us: Option<f64>) -> Vec<CandidateTurn> {
    let predicted = |index: &usize| pending[*index].predicted_us;
    let best = pending.iter().filter_map(|of| of.predicted_us).chain(stock_us).fold(f64::INFINITY, f64::min);
    let weight = |index: &usize| match predicted(index) {
        Some(time) => (time / stock_us.unwrap_or(best)).clamp(1.0, MOST_TIMES),
        None if pending[*index].candidate.is_function() || pending[*index].candidate.is_kernel() => OF_FUNCTION,
        None => 1.0,
    };
    let mut order = Vec::with_capacity(pending.len());
    for is_textbook in [false, true] {
        let places = (0..pending.len()).filter(|&index| pending[index].candidate.is_textbook() == is_textbook);
        let places: Vec<usize> = places.collect();
        let mut sorted: Vec<usize> = places.iter().copied().filter(|index| predicted(index).is_some()).collect();
        sorted.sort_by(|one, other| weight(one).total_cmp(&weight(other)));
        let mut sorted = sorted.into_iter();
        order.extend(places.into_iter().map(|index| match predicted(&index) {
            Some(_) => sorted.next().unwrap_or(index),
            None => index,
        }));
    }
    let turn = |index: usize| {
        let weight = weight(&index);
        let is_hopeless = predicted(&index).is_some_and(|time| time > HOPELESS * best);
        CandidateTurn { index, weight, is_hopeless }
    };
    let (last, first): (Vec<_>, Vec<_>) = order.into_iter().map(turn).partition(|turn| turn.is_hopeless);
    first.into_iter().chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::measured_kind;
    use crate::table::PlanTable;
    use schedule::ReduceOp;

    fn names(candidates: &[(TuneCandidate, Option<f64>)]) -> Vec<(&str, bool)> {
        let pending = candidates.iter().map(|(candidate, predicted_us)| PendingCandidate {
            place: 0,
            candidate,
            program: None,
            counts: Vec::new(),
            predicted_us: *predicted_us,
        });
        let turns = in_order(&pending.collect::<Vec<_>>(), None);
        turns.iter().map(|turn| (candidates[turn.index].0.name(), turn.is_hopeless)).collect()
    }

    #[test]
    fn what_is_predicted_to_be_fast_is_first_and_what_has_no_chance_last() {
        let comm = Communicator::local(4).unwrap().swap_remove(0);
        let textbook = Arc::new(comm.textbook(&[measured_kind(Collective::AllReduce, ReduceOp::Sum)]).unwrap());
        let mut given = PlanTable::default();
        for (entry, name) in ["mine", "mine too"].into_iter().enumerate() {
            given.add_schedule(name, &textbook.schedule(entry, Some(ReduceOp::Sum)).unwrap());
        }
        let function = TuneCandidate::function("f", vec![Collective::AllReduce], Arc::new(|_, _, _| Ok(())));
        let plans = |table| TuneCandidate::of_table(table).into_iter();
        let [given, textbook] = [&Arc::new(given), &textbook].map(|table| plans(table).collect::<Vec<_>>());
        let [a, b, c] = [0, 1, 2].map(|index| textbook[index].clone());
        let of = |candidate: &TuneCandidate, time| (candidate.clone(), time);
        let all = [
            of(&given[0], Some(30.0)),
            of(&function, None),
            of(&given[1], Some(20.0)),
            of(&a, Some(81.0)),
            of(&b, None),
            of(&c, Some(10.0)),
        ];
        let expected = [
            ("mine too", false),
            ("f", false),
            ("mine", false),
            (c.name(), false),
            (b.name(), false),
            (a.name(), true),
        ];
        assert_eq!(names(&all), expected);
    }

    /// A ring takes many short messages, and little of each byte.
    #[test]
    fn rings_are_predicted_to_be_slow_for_short_calls_and_fast_for_long_ones() {
        let comm = Communicator::local(8).unwrap().swap_remove(0);
        let kind = measured_kind(Collective::AllReduce, ReduceOp::Sum);
        let plans = TuneCandidate::of_table(&Arc::new(comm.textbook(&[kind]).unwrap()));
        let mut predictions = Predictions::new(&comm, &TuneOptions::default());
        let mut fastest = |bytes: u64| {
            let times = plans.iter().enumerate().filter_map(|(index, plan)| {
                let program = super::super::candidate::CandidatePrograms::default().of(index, plan, kind);
                Some((predictions.of((index, plan), program.as_ref(), kind, bytes)?, plan.name()))
            });
            let begin = runtime::Moment::now();
            let times: Vec<_> = times.collect();
            println!("{} plans at {bytes} bytes predicted in {:?}", plans.len(), runtime::Moment::now().since(begin));
            assert!(times.len() + 1 >= plans.len(), "{} of {} are predicted", times.len(), plans.len());
            times.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)).unwrap().1.to_owned()
        };
        let (short, long, _) = (fastest(64), fastest(64 << 20), fastest(1 << 20));
        assert!(!short.contains("ring") && short != long, "{short}, {long}");
    }
}
