//! The time-expanded 0/1 formulation, for sketches, irregular machines, and small to medium sizes.
//!
//! The principal function is [`attempt`]. Time is cut into epochs ([`grid`]). For a fixed horizon, a feasibility model
//! decides which chunk departs on which link in which epoch ([`model`]); HiGHS solves it. The horizon is searched,
//! coarse grids first, and models with merged symmetries before whole ones ([`search`]). Then fine grids search near
//! the best schedule ([`refine`]). `schedule::replay` times every solution exactly ([`crate::epochs::timing`]).
//!
//! The best schedule so far is the warm start in three ways. Its makespan limits every horizon. Models near it keep its
//! routes and times except for the part that they free. These models contain it, so that HiGHS starts from it
//! ([`model`]).

mod grid;
mod model;
mod refine;
mod search;

use crate::problem::{Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context};
use search::HorizonSearch;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-expanded";

/// The best schedule of this formulation within the limits.
///
/// # Errors
/// Failures of the solver, or of the model.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let mut search = HorizonSearch::new(problem, context);
    search.run()?;
    let stop = match () {
        () if search.is_good_enough() => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Done,
    };
    let note = (!search.findings.is_empty()).then(|| search.findings.join("; "));
    Ok(Attempt { name: NAME.to_owned(), schedule: search.found, stop, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Cancel, Constraints, Deadline, Limits, SearchOptions};
    use crate::strategies::Strategy;
    use crate::strategies::milp::Milp;
    use schedule::{Collective, Demand, Request, Schedule, verify};
    use std::sync::Arc;
    use topology::{Micros, Rank, Topology, TopologyParts, resolve};

    fn problem(topology: Topology, collective: Collective, size: u64, chunks: u32) -> Problem {
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(chunks);
        Problem::new(Arc::new(topology), Arc::new(Demand::new(request).unwrap()))
    }

    /// Limits that are low enough for a test.
    fn quick() -> SearchOptions {
        let limits = Limits { solver_iterations: 4_000, solver_calls: 8, ..Limits::default() };
        SearchOptions { limits, ..SearchOptions::default() }
    }

    fn attempt(problem: &Problem, options: &SearchOptions, incumbent: Option<&Schedule>) -> Attempt {
        attempt_from(problem, options, incumbent, bounds(problem, &Deadline::default()).best().value)
    }

    fn attempt_from(
        problem: &Problem,
        options: &SearchOptions,
        incumbent: Option<&Schedule>,
        bound: Micros,
    ) -> Attempt {
        let deadline = Deadline::after(None, options.cancel.clone());
        super::attempt(problem, &Context { incumbent, ..Context::of_test(options, &deadline, bound) }).unwrap()
    }

    /// The verified makespan of a plan without an incumbent.
    fn makespan(problem: &Problem, options: &SearchOptions) -> f64 {
        let schedule = attempt(problem, options, None).schedule.unwrap();
        verify(schedule, &problem.topology).unwrap().schedule().makespan().0
    }

    #[test]
    fn published_optima_are_reached() {
        for (spec, size, chunks, optimum) in [
            ("dgx1", 1_000_000_000, 1, 7502.1),
            ("dgx1", 1_000_000_000, 2, 6253.5),
            ("dgx1", 1_000_000_000, 4, 6257.0),
            ("torus2d:4x4,alpha=0.5us,bandwidth=50GiBps", 16 << 20, 1, 4.0 * 20.03125),
            ("ndv2x1,costs=taccl-1mb", 8_000_000, 1, 69.0),
            ("ndv2x1,costs=taccl-32kb", 256_000, 1, 3.0),
            ("ndv2x1,costs=taccl-1kb", 8_000, 1, 0.68),
        ] {
            let problem = problem(resolve(spec).unwrap(), Collective::AllGather, size, chunks);
            let found = makespan(&problem, &SearchOptions::default());
            assert!(found <= optimum + 1e-6 * optimum, "{spec} with {chunks} chunks: {found} > {optimum}");
        }
    }

    /// Five ranks with links of mixed cost; one link has no opposite.
    fn lopsided() -> Topology {
        let template = resolve("clique:5").unwrap();
        let mut links = template.links().to_vec();
        links.retain(|link| (link.from, link.to) != (Rank(0), Rank(4)) && link.from.0.abs_diff(link.to.0) != 2);
        for (index, link) in links.iter_mut().enumerate() {
            link.beta = link.beta * (1.0 + (index % 3) as f64 * 0.7);
            link.alpha = link.alpha * (index % 4) as f64;
        }
        Topology::new(TopologyParts { name: "lopsided".into(), ranks: 5, links, ..TopologyParts::default() }).unwrap()
    }

    #[test]
    fn every_copying_collective_is_planned_on_a_lopsided_machine() {
        let copying = Collective::ALL.iter().filter(|it| !it.combines());
        for &collective in copying.filter(|it| !matches!(it, Collective::AllToAllV | Collective::Custom)) {
            for size in [10, 1_000_000] {
                let found = makespan(&problem(lopsided(), collective, size, 1), &quick());
                assert!(found > 0.0, "{collective} of {size} bytes");
            }
        }
    }

    #[test]
    fn sums_are_left_to_the_reversal() {
        let problem = problem(lopsided(), Collective::AllReduce, 100, 1);
        let (options, deadline) = (quick(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        assert!(matches!(Milp.propose(&problem, &context), Err(SynthError::NotApplicable { .. })));
    }

    #[test]
    fn an_incumbent_is_beaten_or_kept() {
        let problem = problem(resolve("dgx1").unwrap(), Collective::AllGather, 1_000_000_000, 1);
        let best = attempt(&problem, &quick(), None).schedule.unwrap();
        let again = attempt(&problem, &quick(), Some(&best));
        // No schedule is faster, and the bound says so.
        assert_eq!((again.schedule, again.stop), (None, StopReason::Optimal));
        let unproven = attempt_from(&problem, &quick(), Some(&best), Micros(7000.0));
        assert!(unproven.schedule.is_none_or(|schedule| schedule.makespan() < best.makespan()));
        let mut worse = best.clone();
        worse.transfers.iter_mut().for_each(|transfer| transfer.end += Micros(5000.0));
        assert!(attempt(&problem, &quick(), Some(&worse)).schedule.unwrap().makespan() <= best.makespan());
    }

    #[test]
    fn an_incumbent_at_the_bound_is_not_searched_around() {
        let problem = problem(resolve("clique:5").unwrap(), Collective::AllGather, 5_000_000, 1);
        let best = attempt(&problem, &quick(), None);
        assert_eq!(best.stop, StopReason::Optimal);
        let again = attempt(&problem, &quick(), best.schedule.as_ref());
        assert_eq!((again.schedule, again.stop), (None, StopReason::Optimal));
    }

    #[test]
    fn what_was_refuted_up_to_the_incumbent_is_told() {
        let problem = problem(resolve("dgx1").unwrap(), Collective::AllGather, 1_000_000_000, 1);
        let best = attempt(&problem, &quick(), None).schedule.unwrap();
        // With half of the true bound, every horizon below the optimum is tried, and none has a schedule.
        let kept = attempt_from(&problem, &quick(), Some(&best), Micros(3751.0));
        assert_eq!(kept.schedule, None);
        assert!(kept.note.as_deref().is_some_and(|note| note.contains("no schedule in")), "{:?}", kept.note);
    }

    #[test]
    fn models_beyond_the_share_of_a_brief_search_are_not_tried() {
        let problem = problem(resolve("dgx2x2").unwrap(), Collective::AllGather, 64_000_000, 4);
        let options = SearchOptions { limits: Limits::default().brief(), ..SearchOptions::default() };
        let calls = std::sync::atomic::AtomicU32::new(0);
        let count = |_| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let deadline = Deadline::default();
        let context = Context { progress: &count, ..Context::among_others(&options, &deadline, Micros(500.0)) };
        assert_eq!(super::attempt(&problem, &context).unwrap().schedule, None);
        assert_eq!(calls.into_inner(), 0, "models announced");
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        let problem = problem(lopsided(), Collective::AllGather, 1_000_000, 2);
        let plan = || attempt(&problem, &quick(), None).schedule.unwrap();
        assert_eq!(plan(), plan());
    }

    #[test]
    fn forbidden_links_stay_empty() {
        let mut problem = problem(resolve("dgx1").unwrap(), Collective::AllGather, 1_000_000, 1);
        let forbidden = (0..problem.topology.links().len()).map(|link| (link % 5 == 0).then_some(3)).collect();
        problem.constraints = Arc::new(Constraints { forbidden, ..Constraints::none() });
        let schedule = attempt(&problem, &quick(), None).schedule.unwrap();
        assert!(schedule.transfers.iter().all(|transfer| transfer.link.0 % 5 != 0));
        assert!(verify(schedule, &problem.topology).is_ok());
    }

    #[test]
    fn an_interrupt_ends_the_search_with_what_there_is() {
        let cancel = Cancel::default();
        cancel.cancel();
        let options = SearchOptions { cancel, ..quick() };
        let problem = problem(lopsided(), Collective::AllGather, 1_000_000, 2);
        let attempt = attempt(&problem, &options, None);
        assert_eq!((attempt.schedule, attempt.stop), (None, StopReason::TimeLimit));
    }

    #[test]
    fn nothing_to_move_and_free_links_are_no_trouble() {
        let alone = problem(resolve("clique:1").unwrap(), Collective::AllGather, 100, 1);
        assert!(attempt(&alone, &quick(), None).schedule.is_none_or(|schedule| schedule.transfers.is_empty()));
        let empty = problem(resolve("clique:4,alpha=0us").unwrap(), Collective::AllGather, 0, 1);
        attempt(&empty, &quick(), None);
    }
}
