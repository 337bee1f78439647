//! All textbook algorithms of a request, for callers that choose by another measure than the makespan.
//!
//! The principal functions are [`textbook`] and, for those who are in a hurry, [`textbook_at_once`] and [`textbook_sums`].

use crate::problem::{Deadline, Problem, SearchOptions, SynthError};
use crate::strategies::classic::Classic;
use crate::strategies::reversal::propose;
use crate::strategies::{Attempt, Context, Joining, Strategy};
use crate::symmetry::Symmetries;
use schedule::Schedule;

/// Every textbook algorithm that applies, as a schedule that is not yet verified. For machines of a few hundred ranks at most: none is
/// left out because another one is faster.
///
/// # Errors
/// [`SynthError`] if none can apply.
pub fn textbook(problem: &Problem) -> Result<Vec<Schedule>, SynthError> {
    schedules(Joining::Ordered, |context| propose(problem, context, &Classic))
}

/// The same without looking for the best order of the messages of sums: some times faster, and on machines whose links are all
/// alike the schedules are as good.
///
/// # Errors
/// As [`textbook`].
pub fn textbook_at_once(problem: &Problem) -> Result<Vec<Schedule>, SynthError> {
    schedules(Joining::AsTheyAre, |context| propose(problem, context, &Classic))
}

/// Those in which all chunks of a sum travel together, as [`textbook`]: few messages, however many chunks there are. None for other
/// collectives than AllReduce.
///
/// # Errors
/// As [`textbook`].
pub fn textbook_sums(problem: &Problem) -> Result<Vec<Schedule>, SynthError> {
    schedules(Joining::AsTheyAre, |context| Classic.propose_directly(problem, context))
}

fn schedules(
    joining: Joining,
    propose: impl FnOnce(&Context<'_>) -> Result<Vec<Attempt>, SynthError>,
) -> Result<Vec<Schedule>, SynthError> {
    let (options, deadline, symmetries) = (SearchOptions::default(), Deadline::default(), Symmetries::default());
    let context = Context { joining, ..Context::alone(&options, &deadline, &symmetries, &|_| {}) };
    let attempts = propose(&context)?;
    Ok(attempts.into_iter().filter_map(|attempt| attempt.schedule).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request, verify};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    #[test]
    fn all_algorithms_are_there_and_right() {
        let topology = Arc::new(topology::resolve("clique:5").unwrap());
        for (collective, least) in [
            (Collective::AllReduce, 6),
            (Collective::AllGather, 5),
            (Collective::Broadcast, 3),
            (Collective::Reduce, 3),
        ] {
            let request = Request::new(collective, 5, 5000);
            let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
            let found = textbook(&problem).unwrap();
            let names: BTreeSet<String> = found.iter().map(|schedule| schedule.produced_by.strategy.clone()).collect();
            assert!(names.len() >= least && names.len() == found.len(), "{collective}: {names:?}");
            for schedule in found {
                verify(schedule, &topology).unwrap();
            }
        }
    }
}
