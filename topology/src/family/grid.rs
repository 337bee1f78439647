//! Everything whose ranks have coordinates: rings, lines, meshes, tori, hypercubes.
//!
//! One builder makes all of them. Ranks are numbered row-major (the last dimension varies fastest). A dimension of size
//! 2 that wraps has one link between its two ranks, not two; a dimension of size 1 has no links.

use super::{COST_KEYS, Family, check_counts, link};
use crate::spec::{LinkCost, Spec, bad_part};
use crate::{Link, TopologyParts, TopologyResult};

pub(super) const RING: Family = Family {
    name: "ring",
    params: "N",
    about: "each rank sends to the next, the last to the first (direction=both: and back)",
    details: None,
    keys: &["alpha=0.5us", "bandwidth=50GBps", "latency=occupies|pipelines", "direction=one|both"],
    build: |spec| {
        let shape = spec.choice("direction", &[("one", GridShape::OneWay), ("both", GridShape::Torus)])?;
        grid(spec, &spec.sizes(1)?, shape)
    },
};

pub(super) const LINE: Family = Family {
    name: "line",
    params: "N",
    about: "a row of ranks, each linked both ways with its neighbours",
    details: None,
    keys: COST_KEYS,
    build: |spec| grid(spec, &spec.sizes(1)?, GridShape::Mesh),
};

pub(super) const MESH2D: Family = Family {
    name: "mesh2d",
    params: "AxB",
    about: "A rows of B ranks, linked both ways with their neighbours",
    details: LISTS,
    keys: COST_KEYS,
    build: |spec| grid(spec, &spec.sizes(2)?, GridShape::Mesh),
};

pub(super) const TORUS2D: Family = Family {
    name: "torus2d",
    params: "AxB",
    about: "a mesh2d whose rows and columns close to rings",
    details: LISTS,
    keys: COST_KEYS,
    build: |spec| grid(spec, &spec.sizes(2)?, GridShape::Torus),
};

pub(super) const MESH3D: Family = Family {
    name: "mesh3d",
    params: "AxBxC",
    about: "a block of A x B x C ranks, linked both ways with their neighbours",
    details: LISTS,
    keys: COST_KEYS,
    build: |spec| grid(spec, &spec.sizes(3)?, GridShape::Mesh),
};

pub(super) const TORUS3D: Family = Family {
    name: "torus3d",
    params: "AxBxC",
    about: "a mesh3d whose lines close to rings",
    details: LISTS,
    keys: COST_KEYS,
    build: |spec| grid(spec, &spec.sizes(3)?, GridShape::Torus),
};

pub(super) const HYPERCUBE: Family = Family {
    name: "hypercube",
    params: "D",
    about: "2^D ranks, linked where their numbers differ in one bit",
    details: None,
    keys: COST_KEYS,
    build: |spec| {
        let dimensions = spec.count()?;
        // 2^64 ranks do not fit the number in the error message.
        if dimensions >= 64 {
            return Err(bad_part(format!("`hypercube:{dimensions}`"), "a hypercube has fewer than 64 dimensions"));
        }
        grid(spec, &vec![2; dimensions as usize], GridShape::Mesh)
    },
};

/// What a list of values means where there are several dimensions.
const LISTS: Option<&str> = Some("lists have a value for each dimension, as the sizes: bandwidth=50GBps/75GBps");

/// What happens at the ends of each dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GridShape {
    /// The ends stay open.
    Mesh,
    /// The ends are neighbours.
    Torus,
    /// The ends are neighbours, and links lead upward only.
    OneWay,
}

fn grid(spec: &Spec<'_>, sizes: &[u64], shape: GridShape) -> TopologyResult<TopologyParts> {
    let count = sizes.iter().fold(1u128, |count, size| count.saturating_mul(u128::from(*size)));
    let ranks = check_counts(spec, count, count.saturating_mul(2 * sizes.len() as u128))?;
    let costs = spec.costs(sizes.len())?;
    let mut links: Vec<Link> = Vec::new();
    let mut neighbours: Vec<(usize, LinkCost)> = Vec::new();
    for rank in 0..ranks {
        neighbours.clear();
        let mut stride = 1;
        for (&size, &cost) in sizes.iter().zip(&costs).rev() {
            let size = size as usize;
            let position = rank / stride % size;
            let start = rank - position * stride;
            neighbours.extend(steps(position, size, shape).map(|next| (start + next * stride, cost)));
            stride *= size;
        }
        neighbours.sort_by_key(|(to, _)| *to);
        links.extend(neighbours.iter().map(|(to, cost)| link(rank, *to, *cost, &[])));
    }
    Ok(TopologyParts { ranks, links, ..TopologyParts::default() })
}

/// The positions one step away along a dimension.
fn steps(position: usize, size: usize, shape: GridShape) -> impl Iterator<Item = usize> {
    let wraps = shape != GridShape::Mesh;
    let up = if position + 1 < size { Some(position + 1) } else { wraps.then_some(0) };
    let down = if position > 0 { Some(position - 1) } else { wraps.then_some(size - 1) };
    let down = down.filter(|down| shape != GridShape::OneWay && up != Some(*down));
    up.into_iter().chain(down).filter(move |next| *next != position)
}
