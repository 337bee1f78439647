//! The time-expanded 0/1 strategy: sketches, asymmetric boxes, small and medium sizes.
//!
//! The principal type is [`Milp`]. Time is cut into epochs ([`grid`]); which chunk departs on which link in which
//! epoch is a feasibility model of a fixed horizon ([`model`]), decided by HiGHS ([`solver`]); the horizon is
//! searched, coarse grids first ([`search`]); every solution is timed exactly by `schedule::replay` ([`timing`]).
//! The formulation decides: on two machines of eight ranks HiGHS answers this model in a tenth of a second where
//! the routing model with big-M times finds nothing.

mod grid;
mod model;
mod orbits;
mod refine;
mod routes;
mod search;
mod solver;
mod timing;

use crate::reach::check_reachable;
use crate::{Attempt, Context, Problem, StopReason, Strategy, SynthError};
use search::Search;
use timing::NAME;

/// More chunks × links than this are not expanded: no model of them would be small enough.
const MAX_ROUTES: usize = 400_000;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Milp;

impl Strategy for Milp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        if problem.demand.chunks().iter().any(|chunk| chunk.combine) {
            let why = "its model copies chunks; sums are planned backwards from a copy".to_owned();
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        check_reachable(problem)?;
        let routes = problem.demand.chunks().len().saturating_mul(problem.topology.links().len());
        if routes > MAX_ROUTES {
            let why =
                format!("its models start at {routes} 0/1 columns per epoch; symmetric or local methods go further");
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        let mut search = Search::new(problem, context);
        search.run()?;
        let stop = match () {
            () if search.is_optimal() => StopReason::Optimal,
            () if context.deadline.has_passed() => StopReason::TimeLimit,
            () => StopReason::Exhausted,
        };
        let note = (!search.findings.is_empty()).then(|| search.findings.join("; "));
        Ok(vec![Attempt { name: NAME.to_owned(), schedule: search.found, stop, note }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Deadline, Options};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Micros, resolve};

    fn plan(spec: &str, collective: Collective, size: u64, chunks: u32, bound: f64) -> (Micros, StopReason) {
        let topology = Arc::new(resolve(spec).unwrap());
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(chunks);
        let problem = Problem::new(topology, Arc::new(Demand::new(request).unwrap()));
        let (options, deadline) = (Options::default(), Deadline::default());
        let bound = Micros(bound);
        let context = Context { options: &options, deadline: &deadline, incumbent: None, bound, progress: &|_| {} };
        let attempt = Milp.propose(&problem, &context).unwrap().remove(0);
        let verified = verify(attempt.schedule.unwrap(), &problem.topology).unwrap();
        (verified.schedule().makespan(), attempt.stop)
    }

    #[test]
    fn the_cube_mesh_is_solved_to_its_bound() {
        for (chunks, bound) in [(1, 7502.1), (2, 6253.5)] {
            let (makespan, stop) = plan("dgx1", Collective::AllGather, 1_000_000_000, chunks, bound);
            assert!((makespan.0 - bound).abs() < 1e-3, "{makespan}");
            assert_eq!(stop, StopReason::Optimal);
        }
    }
}
