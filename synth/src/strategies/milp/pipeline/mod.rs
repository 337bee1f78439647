//! The second formulation, in TACCL's three stages: routing, ordering, contiguity and exact timing [1].
//!
//! The principal function is [`attempt`]. Each stage is a model without a large big M. TACCL's own models have a weak
//! relaxation: on two machines of eight ranks, HiGHS finds no solution of its routing model.
//!
//! 1. *Routing* ([`routing`] over [`labels`]): which slow link brings which chunk to which fast component, over which
//!    relays, in which message and in which turn. [`crossings`] adds plans that are always worth trying.
//! 2. *Ordering* ([`search`]): for a plan of crossings and an end, a 0/1 model in periods ([`spreading`]) decides which
//!    chunk leaves on which fast link when, or that this end is impossible. So routes inside a component and their
//!    order are one decision. Plans are tried in the order of their ends. The end is moved on as long as there is no
//!    schedule.
//! 3. *Contiguity* ([`contiguity`]): which neighbours on a link are one message. `schedule::replay` computes the final
//!    times.
//!
//! The incumbent is the horizon of the first stage and the end to beat in the second. The third stage starts from it if
//! the others find nothing better. Schedules that break a sketch are dropped.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

mod calendar;
mod candidate;
mod contiguity;
mod crossings;
mod labels;
mod occupant;
mod places;
mod plans;
mod routed;
mod routing;
mod search;
mod spreading;
mod units;

use crate::problem::{Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context};
use crossings::FastComponents;
use search::PipelineSearch;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-routing";

/// The best schedule of this formulation within the limits.
///
/// # Errors
/// Failures of the solver, or of the model.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let components = FastComponents::new(problem);
    let mut search = PipelineSearch::new(&components, context);
    search.run()?;
    let stop = match () {
        () if search.is_good_enough() => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Done,
    };
    let note = search.note();
    Ok(Attempt { name: NAME.to_owned(), schedule: search.found, stop, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Constraints, Deadline, SearchOptions};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::resolve;

    fn problem(spec: &str, collective: Collective, size: u64) -> Problem {
        let topology = Arc::new(resolve(spec).unwrap());
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(1);
        Problem::new(topology, Arc::new(Demand::new(request).unwrap()))
    }

    /// The same problem, where only 0 → 1 of the links between machines of `ranks` ranks may be used.
    fn relayed(spec: &str, ranks: u32, collective: Collective, size: u64) -> Problem {
        let mut problem = problem(spec, collective, size);
        let (topology, line) = (&problem.topology, 1);
        let forbidden = |link: &topology::Link| {
            let relay = (link.from.0 % ranks, link.to.0 % ranks) == (0, 1);
            (topology.crosses_machines(link) && !relay).then_some(line)
        };
        let forbidden = topology.links().iter().map(forbidden).collect();
        problem.constraints = Arc::new(Constraints { forbidden, ..Constraints::none() });
        problem
    }

    /// The verified makespan of a plan without an incumbent.
    fn makespan(problem: &Problem) -> f64 {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::of_test(&options, &deadline, bounds(problem, &deadline).best().value);
        let schedule = attempt(problem, &context).unwrap().schedule.expect("a schedule");
        verify(schedule, &problem.topology).unwrap().schedule().makespan().0
    }

    #[test]
    fn the_relay_between_two_boxes_waits_for_nothing_and_ends_with_little() {
        // Three messages: eight chunks of 105 µs, three α of 2.6 µs, and three hops of 23 µs after the last.
        let boxes = relayed("ndv2x2,costs=taccl-1mb", 8, Collective::AllGather, 16_000_000);
        assert!(makespan(&boxes) <= 916.8 + 1e-6);
    }

    #[test]
    fn small_messages_cross_as_one() {
        let boxes = problem("ndv2x2,costs=taccl-1kb", Collective::AllGather, 16_000);
        assert!(makespan(&boxes) <= 5.02 + 1e-6);
    }

    #[test]
    fn a_machine_of_one_kind_of_link_is_one_fast_component() {
        for (spec, optimum) in [("ring:5,alpha=0.5us,bandwidth=50GiBps,direction=both", 2.0), ("clique:5", 1.0)] {
            let problem = problem(spec, Collective::AllGather, 5 << 20);
            let step = problem.topology.links()[0].transfer_time(topology::Bytes((1 << 20) as f64)).0;
            assert!(makespan(&problem) <= optimum * step + 1e-6, "{spec}");
        }
    }
}
