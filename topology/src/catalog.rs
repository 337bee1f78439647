//! From a SPEC to a topology.
//!
//! The principal function is [`resolve`], which touches no file; [`load`] adds paths and is the only place of
//! this crate that reads one.

use crate::family::FAMILIES;
use crate::spec::{Spec, shorten};
use crate::spelling::closest;
use crate::{Topology, TopologyError, TopologyResult};

/// The topology that a SPEC names: a family or a known machine. No file is read.
///
/// # Errors
/// [`TopologyError::InSpec`] with what is wrong, where, and what would be accepted.
pub fn resolve(spec: &str) -> TopologyResult<Topology> {
    let cause = |cause| TopologyError::InSpec { spec: shorten(spec), cause: Box::new(cause) };
    Spec::parse(spec, None).and_then(|parsed| named(&parsed)).map_err(cause)
}

fn named(spec: &Spec<'_>) -> TopologyResult<Topology> {
    let Some(family) = FAMILIES.iter().find(|family| family.name == spec.name) else {
        let known = || FAMILIES.iter().map(|family| family.name);
        return Err(TopologyError::UnknownName {
            name: shorten(spec.name),
            known: known().map(str::to_owned).collect(),
            suggestion: closest(spec.name, known()).map(str::to_owned),
        });
    };
    let mut parts = family.build(spec)?;
    parts.name = spec.text.to_owned();
    Topology::new(parts)
}
