//! The safe wrapper over HiGHS's C API.
//!
//! The principal function is [`solve`]. It owns one [`Handle`] for the length of one solve. HiGHS copies everything
//! that it is passed, so no borrowed pointer outlives the call that passes it. The only exception is the
//! [`SolverWatch`]: HiGHS hands its address to [`on_callback`] while `Highs_run` is on the stack. A panic in the
//! callback is caught, stops the solver, and is resumed outside of the C code.

#![allow(unsafe_code)]

use super::{Column, Controls, Ending, Model, ModelIncumbent, Solution, SolverOutcome};
use crate::problem::SynthError;
use highs_sys as sys;
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{NonNull, null_mut};

/// Minimises `model`, from the partial solution `start` if one is given; HiGHS completes the columns that it leaves
/// out.
///
/// `on_incumbent` is called, on this thread, for every better solution.
///
/// # Errors
/// [`SynthError::Solver`] if HiGHS reports a failure instead of a result.
pub(crate) fn solve(
    model: &Model,
    start: &[(Column, f64)],
    controls: &Controls<'_>,
    on_incumbent: &mut dyn FnMut(ModelIncumbent),
) -> Result<SolverOutcome, SynthError> {
    if controls.deadline.has_passed() {
        let ending = Ending::Limit { incumbent: None, bound: f64::NEG_INFINITY };
        return Ok(SolverOutcome { ending, iterations: 0, nodes: 0 });
    }
    let mut highs = Handle::new()?;
    highs.configure(controls)?;
    highs.pass(model)?;
    highs.warm_start(start)?;
    let ending = highs.run_to_end(model, controls, on_incumbent)?;
    Ok(SolverOutcome { ending, iterations: highs.iterations(), nodes: highs.nodes() })
}

/// Multipliers of the rows of `model` that show that its relaxation has no solution. `None` if the relaxation has one,
/// or a limit was reached first. The multipliers are rounded, so that they are not yet a proof.
///
/// # Errors
/// [`SynthError::Solver`] if HiGHS reports a failure instead of a result.
pub(crate) fn ray(model: &Model, controls: &Controls<'_>) -> Result<Option<Vec<f64>>, SynthError> {
    if controls.deadline.has_passed() {
        return Ok(None);
    }
    let mut highs = Handle::new()?;
    highs.configure(controls)?;
    highs.option(c"presolve", OptionValue::Text(c"off"))?;
    highs.option(c"solver", OptionValue::Text(c"simplex"))?;
    let relaxed = model.clone().relaxed();
    highs.pass(&relaxed)?;
    if highs.run_to_end(&relaxed, controls, &mut |_| {})? != Ending::Infeasible {
        return Ok(None);
    }
    Ok(highs.dual_ray(model.rows()))
}

/// The optimum of the relaxation of `model`, and the price of each row: by how much the objective would fall if the row's bound were
/// one less. `None` if there is no optimum, or a limit was reached first.
///
/// # Errors
/// [`SynthError::Solver`] if HiGHS reports a failure instead of a result.
pub(crate) fn prices(model: &Model, controls: &Controls<'_>) -> Result<Option<(Solution, Vec<f64>)>, SynthError> {
    if controls.deadline.has_passed() {
        return Ok(None);
    }
    let mut highs = Handle::new()?;
    highs.configure(controls)?;
    let relaxed = model.clone().relaxed();
    highs.pass(&relaxed)?;
    match highs.run_to_end(&relaxed, controls, &mut |_| {})? {
        Ending::Optimal(solution) => Ok(highs.row_duals(&relaxed).map(|duals| (solution, duals))),
        _ => Ok(None),
    }
}

/// An instance of HiGHS, freed on drop.
struct Handle(NonNull<c_void>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Highs_create and is destroyed only here.
        unsafe { sys::Highs_destroy(self.0.as_ptr()) }
    }
}

impl Handle {
    fn new() -> Result<Self, SynthError> {
        // SAFETY: takes no arguments; a null result is handled.
        let raw = unsafe { sys::Highs_create() };
        let handle = NonNull::new(raw).map(Self).ok_or_else(|| failure("could not be created"))?;
        handle.option(c"output_flag", OptionValue::Bool(false))?;
        Ok(handle)
    }

    fn configure(&mut self, controls: &Controls<'_>) -> Result<(), SynthError> {
        // Each thread has its own scheduler of solver threads; an earlier LP may have left one of another size.
        // SAFETY: no solve is running on this thread, so its scheduler is idle.
        unsafe { sys::Highs_resetGlobalScheduler(1) };
        let seed = (controls.seed % (i32::MAX as u64)) as i32;
        let nodes = i32::try_from(controls.nodes).unwrap_or(i32::MAX);
        self.option(c"threads", OptionValue::Int(1))?;
        self.option(c"parallel", OptionValue::Text(c"off"))?;
        self.option(c"random_seed", OptionValue::Int(seed))?;
        // Two heuristics solve MIPs inside the MIP, where the callback that counts work is not called.
        self.option(c"mip_heuristic_run_rens", OptionValue::Bool(controls.has_inner_models))?;
        self.option(c"mip_heuristic_run_rins", OptionValue::Bool(controls.has_inner_models))?;
        self.option(c"mip_allow_restart", OptionValue::Bool(!controls.has_inner_models))?;
        self.option(c"mip_rel_gap", OptionValue::Double(controls.relative_gap))?;
        self.option(c"mip_max_nodes", OptionValue::Int(nodes))?;
        if let Some(cutoff) = controls.cutoff {
            self.option(c"objective_bound", OptionValue::Double(cutoff))?;
        }
        if let Some(remaining) = controls.deadline.remaining() {
            self.option(c"time_limit", OptionValue::Double(remaining.as_secs_f64()))?;
        }
        Ok(())
    }

    fn option(&self, name: &CStr, value: OptionValue<'_>) -> Result<(), SynthError> {
        let highs = self.0.as_ptr();
        // SAFETY: the handle is live, names and texts are terminated strings that HiGHS copies.
        let status = unsafe {
            match value {
                OptionValue::Bool(value) => sys::Highs_setBoolOptionValue(highs, name.as_ptr(), value.into()),
                OptionValue::Int(value) => sys::Highs_setIntOptionValue(highs, name.as_ptr(), value),
                OptionValue::Double(value) => sys::Highs_setDoubleOptionValue(highs, name.as_ptr(), value),
                OptionValue::Text(value) => sys::Highs_setStringOptionValue(highs, name.as_ptr(), value.as_ptr()),
            }
        };
        check(status, || format!("refused the option {}", name.to_string_lossy()))
    }

    fn pass(&mut self, model: &Model) -> Result<(), SynthError> {
        let count = |what: usize| i32::try_from(what).map_err(|_| failure("model too large"));
        let (columns, rows, entries) = (count(model.columns())?, count(model.rows())?, count(model.entries.len())?);
        let kind = |whole: bool| if whole { sys::kHighsVarTypeInteger } else { sys::kHighsVarTypeContinuous };
        let integrality: Vec<i32> = model.whole.iter().map(|&whole| kind(whole)).collect();
        // SAFETY: every array has the length that the counts announce (columns, rows, entries; one start per row), and
        // HiGHS copies all arrays before it returns.
        let status = unsafe {
            sys::Highs_passMip(
                self.0.as_ptr(),
                columns,
                rows,
                entries,
                sys::kHighsMatrixFormatRowwise,
                sys::kHighsObjSenseMinimize,
                0.0,
                model.cost.as_ptr(),
                model.lower.as_ptr(),
                model.upper.as_ptr(),
                model.row_lower.as_ptr(),
                model.row_upper.as_ptr(),
                model.row_start.as_ptr(),
                model.entries.as_ptr(),
                model.values.as_ptr(),
                integrality.as_ptr(),
            )
        };
        check(status, || "refused the model".to_owned())
    }

    fn warm_start(&mut self, start: &[(Column, f64)]) -> Result<(), SynthError> {
        if start.is_empty() {
            return Ok(());
        }
        let columns: Vec<i32> = start.iter().map(|(column, _)| column.0 as i32).collect();
        let values: Vec<f64> = start.iter().map(|&(_, value)| value).collect();
        // SAFETY: both arrays have `columns.len()` entries and are copied.
        let status = unsafe {
            let count = columns.len() as i32;
            sys::Highs_setSparseSolution(self.0.as_ptr(), count, columns.as_ptr(), values.as_ptr())
        };
        check(status, || "refused the warm start".to_owned())
    }

    /// Solves `model`, which was passed before.
    fn run_to_end(
        &mut self,
        model: &Model,
        controls: &Controls<'_>,
        on_incumbent: &mut dyn FnMut(ModelIncumbent),
    ) -> Result<Ending, SynthError> {
        let mut watch = SolverWatch { controls, on_incumbent, stopped: false, panic: None };
        let status = self.run(&mut watch);
        if let Some(panic) = watch.panic {
            resume_unwind(panic);
        }
        let stopped = watch.stopped;
        self.ending(model, status, stopped)
    }

    /// Runs HiGHS with callbacks into `watch`; returns its status.
    fn run(&mut self, watch: &mut SolverWatch<'_>) -> c_int {
        let highs = self.0.as_ptr();
        let data: *mut SolverWatch<'_> = watch;
        // SAFETY: `watch` outlives the run, nothing else uses it during the run, and the callback is unset before this
        // function returns. The callback casts the pointer back to the type from which it was made.
        unsafe {
            sys::Highs_setCallback(highs, Some(on_callback), data.cast());
            for kind in [
                sys::kHighsCallbackMipInterrupt,
                sys::kHighsCallbackSimplexInterrupt,
                sys::kHighsCallbackMipImprovingSolution,
            ] {
                sys::Highs_startCallback(highs, kind);
            }
            let status = sys::Highs_run(highs);
            sys::Highs_setCallback(highs, None, null_mut());
            status
        }
    }

    fn ending(&self, model: &Model, status: c_int, stopped: bool) -> Result<Ending, SynthError> {
        // SAFETY: the handle is live.
        let outcome = unsafe { sys::Highs_getModelStatus(self.0.as_ptr()) };
        match outcome {
            sys::kHighsModelStatusOptimal | sys::kHighsModelStatusModelEmpty => {
                let solution = self.solution(model).ok_or_else(|| failure("optimal without a solution"))?;
                Ok(Ending::Optimal(solution))
            }
            // With a cutoff, HiGHS reports either the objective bound or infeasibility.
            sys::kHighsModelStatusInfeasible | sys::kHighsModelStatusObjectiveBound => Ok(Ending::Infeasible),
            // The columns are bounded, so the ambiguous outcome of presolve means infeasible.
            sys::kHighsModelStatusUnboundedOrInfeasible => Ok(Ending::Infeasible),
            sys::kHighsModelStatusUnbounded => Ok(Ending::Unbounded),
            sys::kHighsModelStatusTimeLimit
            | sys::kHighsModelStatusIterationLimit
            | sys::kHighsModelStatusSolutionLimit
            | sys::kHighsModelStatusObjectiveTarget
            | sys::kHighsModelStatusInterrupt => Ok(self.limit(model)),
            _ if stopped => Ok(self.limit(model)),
            _ => Err(failure(&format!("ended with model status {outcome}, call status {status}"))),
        }
    }

    fn limit(&self, model: &Model) -> Ending {
        let bound = self.number(c"mip_dual_bound").unwrap_or(f64::NEG_INFINITY);
        Ending::Limit { incumbent: self.solution(model), bound }
    }

    /// The best solution, if HiGHS has a feasible one.
    fn solution(&self, model: &Model) -> Option<Solution> {
        let mut feasibility = 0;
        let mut values = vec![0.0; model.columns()];
        // SAFETY: the name is terminated, the number has the type of that info item, and `values` has one entry per
        // column. Null means that duals and rows are not wanted.
        let status = unsafe {
            let highs = self.0.as_ptr();
            sys::Highs_getIntInfoValue(highs, c"primal_solution_status".as_ptr(), &raw mut feasibility);
            sys::Highs_getSolution(highs, values.as_mut_ptr(), null_mut(), null_mut(), null_mut())
        };
        let feasible = feasibility == sys::SOLUTION_STATUS_FEASIBLE || model.columns() == 0;
        if status == sys::kHighsStatusError || !feasible {
            return None;
        }
        let objective = model.cost.iter().zip(&values).map(|(cost, value)| cost * value).sum();
        Some(Solution { values, objective })
    }

    /// The duals of the rows, if HiGHS has them.
    fn row_duals(&self, model: &Model) -> Option<Vec<f64>> {
        let mut duals = vec![0.0; model.rows()];
        // SAFETY: the handle is live and `duals` has one entry per row. Null means that nothing else is wanted.
        let status = unsafe {
            let highs = self.0.as_ptr();
            sys::Highs_getSolution(highs, null_mut(), null_mut(), null_mut(), duals.as_mut_ptr())
        };
        (status != sys::kHighsStatusError).then_some(duals)
    }

    /// The ray with which the dual simplex method proved infeasibility.
    fn dual_ray(&self, rows: usize) -> Option<Vec<f64>> {
        let mut known: c_int = 0;
        let mut ray = vec![0.0; rows];
        // SAFETY: the handle is live and `ray` has one entry per row.
        let status = unsafe { sys::Highs_getDualRay(self.0.as_ptr(), &raw mut known, ray.as_mut_ptr()) };
        (status != sys::kHighsStatusError && known != 0).then_some(ray)
    }

    /// Nodes of the search tree; zero if no search was needed.
    fn nodes(&self) -> u64 {
        let mut value: i64 = 0;
        // SAFETY: the name is terminated and names an info item of this type.
        unsafe {
            sys::Highs_getInt64InfoValue(self.0.as_ptr(), c"mip_node_count".as_ptr(), &raw mut value);
        }
        u64::try_from(value).unwrap_or(0)
    }

    /// Simplex iterations of the whole run; zero if presolve solved the model.
    fn iterations(&self) -> u64 {
        let mut value = 0;
        // SAFETY: the name is terminated and names an info item of type int.
        unsafe {
            sys::Highs_getIntInfoValue(self.0.as_ptr(), c"simplex_iteration_count".as_ptr(), &raw mut value);
        }
        u64::try_from(value).unwrap_or(0)
    }

    fn number(&self, name: &CStr) -> Option<f64> {
        let mut value = 0.0;
        // SAFETY: the name is terminated and names an info item of type double.
        let status = unsafe { sys::Highs_getDoubleInfoValue(self.0.as_ptr(), name.as_ptr(), &raw mut value) };
        (status == sys::kHighsStatusOk).then_some(value)
    }
}

enum OptionValue<'a> {
    Bool(bool),
    Int(c_int),
    Double(f64),
    Text(&'a CStr),
}

fn failure(what: &str) -> SynthError {
    SynthError::Solver(what.to_owned())
}

fn check(status: c_int, what: impl FnOnce() -> String) -> Result<(), SynthError> {
    if status == sys::kHighsStatusError { Err(SynthError::Solver(what())) } else { Ok(()) }
}

/// The state of the callback during one run.
struct SolverWatch<'a> {
    controls: &'a Controls<'a>,
    on_incumbent: &'a mut dyn FnMut(ModelIncumbent),
    stopped: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl SolverWatch<'_> {
    /// Handles one callback; true asks HiGHS to stop.
    fn hear(&mut self, kind: c_int, news: &sys::HighsCallbackDataOut) -> bool {
        if kind == sys::kHighsCallbackMipImprovingSolution {
            (self.on_incumbent)(ModelIncumbent {
                objective: news.objective_function_value,
                bound: news.mip_dual_bound,
            });
            return false;
        }
        // HiGHS leaves a counter negative in the callbacks that do not report it.
        let iterations = match kind {
            sys::kHighsCallbackSimplexInterrupt => i64::from(news.simplex_iteration_count),
            _ => news.mip_total_lp_iterations,
        };
        let spent = u64::try_from(iterations).is_ok_and(|spent| spent >= self.controls.iterations);
        spent || self.controls.deadline.has_passed()
    }
}

/// The callback that HiGHS calls while it runs.
unsafe extern "C" fn on_callback(
    kind: c_int,
    _message: *const c_char,
    news: *const sys::HighsCallbackDataOut,
    answer: *mut sys::HighsCallbackDataIn,
    data: *mut c_void,
) {
    // SAFETY: `data` is the `SolverWatch` that `run` registered. `run` does not use it while HiGHS runs, and HiGHS
    // calls back from the one thread that it was given.
    let watch = unsafe { &mut *data.cast::<SolverWatch<'_>>() };
    // SAFETY: HiGHS passes either null or a structure that is valid during this call.
    let (news, answer) = unsafe { (news.as_ref(), answer.as_mut()) };
    let Some(news) = news else { return };
    if watch.panic.is_none() {
        match catch_unwind(AssertUnwindSafe(|| watch.hear(kind, news))) {
            Ok(stop) => watch.stopped |= stop,
            Err(panic) => watch.panic = Some(panic),
        }
    }
    // Only these two kinds of callback can stop the solver; a decision of the incumbent's callback takes effect at the
    // next of them.
    let may_stop = kind == sys::kHighsCallbackMipInterrupt || kind == sys::kHighsCallbackSimplexInterrupt;
    if let Some(answer) = answer.filter(|_| may_stop) {
        answer.user_interrupt = c_int::from(watch.stopped || watch.panic.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Cancel, Deadline};
    use std::time::{Duration, Instant};

    fn run(model: &Model, controls: &Controls<'_>) -> Ending {
        solve(model, &[], controls, &mut |_| {}).unwrap().ending
    }

    /// A knapsack on which the greedy choice fails: items 1 and 2 are optimal (value 9).
    fn knapsack() -> (Model, [Column; 3]) {
        let mut model = Model::default();
        let items = [(6.0, 7.0), (5.0, 5.0), (4.0, 4.0)].map(|(value, weight)| {
            let item = model.binary();
            model.set_cost(item, -value);
            (item, weight)
        });
        model.at_most(items, 9.0);
        (model, items.map(|(item, _)| item))
    }

    /// Pigeons in holes that cannot take them all: infeasible, and hard without symmetry handling or cuts.
    fn assignment(pigeons: usize, holes: usize, jitter: u64) -> Model {
        let mut model = Model::default();
        let at: Vec<Vec<Column>> = (0..pigeons).map(|_| (0..holes).map(|_| model.binary()).collect()).collect();
        for (pigeon, row) in at.iter().enumerate() {
            for (hole, &column) in row.iter().enumerate() {
                let cost = ((pigeon as u64 * 7919 + hole as u64 * 104_729 + jitter) % 101) as f64;
                model.set_cost(column, cost);
            }
            model.equal(row.iter().map(|&column| (column, 1.0)), 1.0);
        }
        for hole in 0..holes {
            let weights = at.iter().enumerate().map(|(pigeon, row)| (row[hole], 3.0 + (pigeon % 5) as f64));
            model.at_most(weights.collect::<Vec<_>>(), 6.5);
        }
        model
    }

    #[test]
    fn finds_the_optimum_and_tells_of_it() {
        let (model, items) = knapsack();
        let deadline = Deadline::default();
        let mut heard = Vec::new();
        let ending =
            solve(&model, &[], &Controls::unlimited(&deadline), &mut |incumbent| heard.push(incumbent.objective))
                .unwrap()
                .ending;
        let Ending::Optimal(solution) = ending else { panic!("{ending:?}") };
        assert_eq!(items.map(|item| solution.is_set(item)), [false, true, true]);
        assert!((solution.objective + 9.0).abs() < 1e-6);
        assert!(heard.iter().all(|&objective| objective >= -9.0 - 1e-6));
    }

    #[test]
    fn rows_add_up_repeated_columns() {
        let mut model = Model::default();
        let x = model.continuous(0.0, 10.0);
        model.set_cost(x, -1.0);
        model.at_most([(x, 1.0), (x, 1.0)], 6.0);
        let deadline = Deadline::default();
        let Ending::Optimal(solution) = run(&model, &Controls::unlimited(&deadline)) else { panic!() };
        assert!((solution.value(x) - 3.0).abs() < 1e-6);
    }

    #[test]
    fn endings_are_typed() {
        let deadline = Deadline::default();
        let (mut model, items) = knapsack();
        model.row(20.0, items.map(|item| (item, 1.0)), 30.0);
        assert_eq!(run(&model, &Controls::unlimited(&deadline)), Ending::Infeasible);

        let mut model = Model::default();
        let x = model.continuous(0.0, f64::INFINITY);
        model.set_cost(x, -1.0);
        assert_eq!(run(&model, &Controls::unlimited(&deadline)), Ending::Unbounded);

        assert!(matches!(run(&Model::default(), &Controls::unlimited(&deadline)), Ending::Optimal(_)));

        let (model, _) = knapsack();
        let cutoff = Controls { cutoff: Some(-9.5), ..Controls::unlimited(&deadline) };
        assert_eq!(run(&model, &cutoff), Ending::Infeasible, "nothing is below the cutoff");
    }

    #[test]
    fn a_limit_keeps_the_warm_start() {
        let (model, items) = knapsack();
        let deadline = Deadline::default();
        let start = [(items[0], 1.0), (items[1], 0.0), (items[2], 0.0)];
        let stop_at_once = Controls { iterations: 0, ..Controls::unlimited(&deadline) };
        let model = {
            let mut model = model;
            // More columns, so that presolve does not solve the model.
            let more: Vec<Column> = (0..30).map(|_| model.binary()).collect();
            model.at_most(more.iter().enumerate().map(|(i, &column)| (column, 3.0 + (i % 7) as f64)), 31.5);
            more.iter().enumerate().for_each(|(i, &column)| model.set_cost(column, -1.0 - (i % 11) as f64 / 7.0));
            model
        };
        let full: Vec<(Column, f64)> =
            (0..model.columns()).map(|i| (Column(i as u32), start.get(i).map_or(0.0, |&(_, value)| value))).collect();
        match solve(&model, &full, &stop_at_once, &mut |_| {}).unwrap().ending {
            Ending::Limit { incumbent: Some(solution), .. } | Ending::Optimal(solution) => {
                assert!(solution.objective <= -6.0 + 1e-6, "{}", solution.objective);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_partial_warm_start_is_completed() {
        let (model, items) = knapsack();
        let deadline = Deadline::default();
        let ending = solve(&model, &[(items[0], 1.0)], &Controls::unlimited(&deadline), &mut |_| {}).unwrap().ending;
        assert!(matches!(ending, Ending::Optimal(solution) if (solution.objective + 9.0).abs() < 1e-6));
    }

    /// Market split: a few equalities over many items, where deviations cost. The empty choice is feasible; the optimum
    /// takes hours.
    fn market(items: usize) -> Model {
        let mut model = Model::default();
        let all: Vec<Column> = (0..items).map(|_| model.binary()).collect();
        for row in 0..4_u64 {
            let weight =
                |item: usize| ((item as u64 * 7919 + row * 104_729 + item as u64 * item as u64 * 31) % 97) as f64;
            let half = ((0..items).map(weight).sum::<f64>() / 2.0).floor();
            let (over, under) = (model.continuous(0.0, f64::INFINITY), model.continuous(0.0, f64::INFINITY));
            model.set_cost(over, 1.0);
            model.set_cost(under, 1.0);
            let terms = all.iter().enumerate().map(|(item, &column)| (column, weight(item)));
            model.equal(terms.chain([(over, -1.0), (under, 1.0)]), half);
        }
        model
    }

    #[test]
    fn cancellation_is_seen_during_a_solve() {
        let cancel = Cancel::default();
        let deadline = Deadline::after(None, cancel.clone());
        let model = market(40);
        let limits = Controls { iterations: 100_000, ..Controls::unlimited(&deadline) };
        let outcome = solve(&model, &[], &limits, &mut |_| cancel.cancel()).unwrap();
        assert!(matches!(outcome.ending, Ending::Limit { incumbent: Some(_), .. }), "{outcome:?}");
        assert!(outcome.iterations < limits.iterations / 10, "{} iterations", outcome.iterations);
    }

    #[test]
    fn cancellation_is_seen_before_a_solve() {
        let cancel = Cancel::default();
        let deadline = Deadline::after(None, cancel.clone());
        let model = assignment(16, 10, 5);
        cancel.cancel();
        let started = Instant::now();
        assert!(matches!(run(&model, &Controls::unlimited(&deadline)), Ending::Limit { incumbent: None, .. }));
        assert!(started.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn equal_runs_give_equal_answers() {
        let deadline = Deadline::default();
        let model = assignment(12, 8, 3);
        let limits = Controls { iterations: 2000, seed: 7, ..Controls::unlimited(&deadline) };
        assert_eq!(run(&model, &limits), run(&model, &limits));
    }

    #[test]
    fn a_panic_in_a_callback_comes_back_as_a_panic() {
        let (model, items) = knapsack();
        let deadline = Deadline::default();
        let start = items.map(|item| (item, 0.0));
        let caught = catch_unwind(AssertUnwindSafe(|| {
            solve(&model, &start, &Controls::unlimited(&deadline), &mut |_| panic!("heard enough")).map(drop)
        }));
        let text = caught.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(*text, "heard enough");
    }

    #[test]
    fn solves_run_side_by_side() {
        let expected = {
            let deadline = Deadline::default();
            run(&knapsack().0, &Controls::unlimited(&deadline))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let deadline = Deadline::default();
                        run(&knapsack().0, &Controls::unlimited(&deadline))
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), expected));
        });
    }
}
