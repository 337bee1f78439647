//! Timed runs of collectives, whose results are compared with the definition of the collective.
//!
//! The principal types are [`Trial`](trial::Trial) and [`Reference`](reference::Reference).

pub(crate) mod assignment;
pub(crate) mod footprint;
pub(crate) mod listed;
pub(crate) mod reference;
pub(crate) mod trial;
