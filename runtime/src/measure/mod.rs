//! Timed and judged runs: trials of programs, and exchanges between pairs of ranks.
//!
//! The principal types are [`Trial`](trial::Trial), [`Reference`](reference::Reference) and
//! [`ThreadProbe`](probe::ThreadProbe).

pub(crate) mod listed;
pub(crate) mod probe;
pub(crate) mod reference;
pub(crate) mod trial;
