//! What leaves a problem as it is: symmetries of a machine, a sketch and a demand, found or checked.
//!
//! The principal function is [`shared_symmetries`]; [`Mirror`] is what a search makes of them.

mod detect;
mod mirror;
mod pairs;

pub use detect::NotASymmetry;
pub(crate) use detect::{Kinds, detect, rotation, symmetry_of};
pub(crate) use mirror::Mirror;
pub(crate) use pairs::PairOrbits;

use crate::problem::{Constraints, Deadline, Problem};
use schedule::ChunkId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use topology::Topology;
use topology::symmetry::Automorphism;

/// A symmetry of topology, demand and sketch, and what it does to chunks.
pub(crate) struct Shared {
    /// What it does to ranks and links.
    pub(crate) symmetry: Automorphism,
    /// What it does to chunks.
    pub(crate) chunks: Vec<ChunkId>,
}

/// The symmetries of `problem` that are found before `deadline`, or those that its sketch names.
pub(crate) fn shared_symmetries(problem: &Problem, deadline: &Deadline) -> Vec<Shared> {
    let found = match problem.constraints.symmetry.is_empty() {
        true => detected(problem, deadline),
        false => problem.constraints.symmetry.clone(),
    };
    if found.is_empty() {
        return Vec::new();
    }
    let kinds = Kinds::new(&problem.demand);
    let shared = |symmetry: Automorphism| Some(Shared { chunks: kinds.images(&symmetry)?, symmetry });
    found.into_iter().filter_map(shared).collect()
}

/// How many machines under sketches [`detected`] remembers.
const REMEMBERED: usize = 4;

/// The symmetries of a machine under a sketch. Each chunk count and several strategies ask for those of the same one, and on unequal
/// machines it takes longest to find that there are none.
fn detected(problem: &Problem, deadline: &Deadline) -> Vec<Automorphism> {
    /// Where time was limited there may be more, and whoever has more of it looks again.
    type Known = (Weak<Topology>, Weak<Constraints>, bool, Vec<Automorphism>);
    static KNOWN: Mutex<VecDeque<Known>> = Mutex::new(VecDeque::new());
    let Problem { topology, constraints, .. } = problem;
    // While a weak reference is held, nobody else gets its address.
    let is_same = |(machine, sketch, limited, _): &&Known| {
        machine.as_ptr() == Arc::as_ptr(topology)
            && sketch.as_ptr() == Arc::as_ptr(constraints)
            && *limited == deadline.is_limited()
    };
    let remember = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, _, symmetries)) = remember().iter().find(is_same) {
        return symmetries.clone();
    }
    let symmetries = detect(topology, constraints, deadline);
    let mut known = remember();
    known.truncate(REMEMBERED - 1);
    known.push_front((
        Arc::downgrade(topology),
        Arc::downgrade(constraints),
        deadline.is_limited(),
        symmetries.clone(),
    ));
    symmetries
}
