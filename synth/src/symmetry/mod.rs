//! Symmetries of a machine, a sketch and a demand, found or checked.
//!
//! The principal types are [`Symmetries`], which finds the symmetries once per synthesis and shares them, and
//! [`Mirror`], which applies them to messages.

mod detect;
mod mirror;
mod pairs;

pub use detect::SymmetryRejection;
pub(crate) use detect::{chunk_images, detect, rotation, symmetry_of};
pub(crate) use mirror::Mirror;
pub(crate) use pairs::PairOrbits;

use crate::problem::{Constraints, Deadline, Problem};
use schedule::{ChunkId, Demand};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use topology::Topology;
use topology::symmetry::Automorphism;

/// A symmetry of topology, demand and sketch, and what it does to chunks.
pub(crate) struct SharedSymmetry {
    /// What it does to ranks and links.
    pub(crate) symmetry: Arc<Automorphism>,
    /// What it does to chunks.
    pub(crate) chunks: Vec<ChunkId>,
}

/// Finding symmetries may take one part in this many of the time left.
const DETECTION_PART: u32 = 2;
/// A search that was cut short is repeated if the time is now more than this many times what it was.
const WORTH_ANOTHER: u32 = 2;

/// The symmetries of the machines of one synthesis, under their sketches. Every chunk count and several strategies need
/// those of the same machine (and, for sums, of the reversed one). On an irregular machine it takes longest to find
/// that there are none. So each machine is searched once, at the first request.
#[derive(Debug, Default)]
pub(crate) struct Symmetries(Mutex<Vec<KnownMachine>>);

/// What was found on one machine.
#[derive(Debug)]
struct KnownMachine {
    topology: Arc<Topology>,
    constraints: Arc<Constraints>,
    symmetries: Arc<Vec<Arc<Automorphism>>>,
    /// The time that the search had, if it was cut short.
    cut_at: Option<Duration>,
}

impl Symmetries {
    /// The symmetries of `problem` that are found in a part of the time left, or those that its sketch names.
    pub(crate) fn shared(&self, problem: &Problem, deadline: &Deadline) -> Vec<SharedSymmetry> {
        self.of_demand(problem, &problem.demand, deadline)
    }

    /// The same for another `demand` on the machine of `problem`, or on that machine with every link turned around.
    pub(crate) fn of_demand(&self, problem: &Problem, demand: &Demand, deadline: &Deadline) -> Vec<SharedSymmetry> {
        let found = match problem.constraints.symmetry.is_empty() {
            true => self.detected(problem, deadline),
            false => Arc::new(problem.constraints.symmetry.iter().cloned().map(Arc::new).collect()),
        };
        if found.is_empty() {
            return Vec::new();
        }
        let images = chunk_images(demand);
        let shared = |symmetry: &Arc<Automorphism>| {
            Some(SharedSymmetry { chunks: images(symmetry)?, symmetry: symmetry.clone() })
        };
        found.iter().filter_map(shared).collect()
    }

    /// The symmetries of the machine. The lock is held during the search, so that other callers wait for its result.
    fn detected(&self, problem: &Problem, deadline: &Deadline) -> Arc<Vec<Arc<Automorphism>>> {
        let Problem { topology, constraints, .. } = problem;
        let deadline = deadline.part(DETECTION_PART);
        let time = deadline.remaining().unwrap_or(Duration::MAX);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.iter().position(|it| it.is_of(topology, constraints));
        if let Some(known) = before.map(|at| &known[at])
            && known.cut_at.is_none_or(|had| time <= had.saturating_mul(WORTH_ANOTHER))
        {
            return known.symmetries.clone();
        }
        let detected = detect(topology, constraints, &deadline);
        let symmetries = Arc::new(detected.symmetries.into_iter().map(Arc::new).collect::<Vec<_>>());
        before.map(|at| known.swap_remove(at));
        known.push(KnownMachine {
            topology: topology.clone(),
            constraints: constraints.clone(),
            symmetries: symmetries.clone(),
            cut_at: detected.is_cut_short.then_some(time),
        });
        symmetries
    }
}

impl KnownMachine {
    fn is_of(&self, topology: &Arc<Topology>, constraints: &Arc<Constraints>) -> bool {
        // Every strategy builds its own reversed machine, so that comparing pointers is not enough.
        let is_same_machine = Arc::ptr_eq(&self.topology, topology) || self.topology == *topology;
        is_same_machine && (Arc::ptr_eq(&self.constraints, constraints) || self.constraints == *constraints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Cancel;
    use schedule::{Collective, Request};

    fn problem(spec: &str, chunks: u32) -> Problem {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllGather, topology.rank_count(), 1 << 20).with_chunks(chunks);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn a_search_that_was_cut_short_is_repeated_by_whoever_has_more_time() {
        // No rotation is a symmetry of this machine, and without time no other search runs.
        let problem = problem("mesh2d:4x4", 1);
        let symmetries = Symmetries::default();
        let late = Deadline::after(Some(Duration::ZERO), Cancel::default());
        let before = symmetries.shared(&problem, &late).len();
        assert_eq!(symmetries.shared(&problem, &late).len(), before);
        let all = symmetries.shared(&problem, &Deadline::default()).len();
        assert!(all > before, "{all} after {before}");
        assert_eq!(symmetries.shared(&problem, &late).len(), all, "what is complete is kept");
    }

    #[test]
    fn equal_machines_are_searched_once() {
        let symmetries = Symmetries::default();
        for chunks in [1, 2] {
            symmetries.shared(&problem("dgx1", chunks), &Deadline::default());
        }
        assert_eq!(symmetries.0.lock().expect("nobody panicked").len(), 1);
        symmetries.shared(&problem("dgx2x2", 1), &Deadline::default());
        assert_eq!(symmetries.0.lock().expect("nobody panicked").len(), 2);
    }
}
