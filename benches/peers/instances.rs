//! Twenty small machines that no SPEC names, with a collective and a size for each: what `milp` alone is compared on with all
//! other strategies.

use super::irregular::{groups, random_graph, unequal, without_cables};
use serde_json::Value;

/// A machine, and what is asked of it.
pub(crate) struct IrregularInstance {
    pub(crate) name: String,
    pub(crate) machine: Value,
    pub(crate) collective: &'static str,
    pub(crate) size: &'static str,
}

const COLLECTIVES: [&str; 5] = ["allgather", "alltoall", "allreduce", "broadcast", "reducescatter"];
const SIZES: [&str; 4] = ["256KB", "1MB", "64KB", "4MB"];

/// Random graphs of 5 to 14 ranks, machines of unequal sizes, grids without some cables, and groups. Collectives and sizes take turns.
pub(crate) fn irregular_instances() -> Vec<IrregularInstance> {
    let mut machines: Vec<(String, Value)> = Vec::new();
    for ranks in 5..=14 {
        machines.push((format!("random, {ranks} ranks"), random_graph(ranks, 100 + ranks as u64)));
    }
    for sizes in [&[2, 3][..], &[3, 4], &[2, 3, 4], &[5, 2, 3]] {
        let words: Vec<String> = sizes.iter().map(usize::to_string).collect();
        machines.push((format!("machines of {} ranks", words.join(", ")), unequal(sizes)));
    }
    for (spec, cables) in [("mesh2d:3x3", 2), ("mesh2d:3x4", 2), ("mesh2d:4x4", 3), ("torus2d:3x5", 4)] {
        let whole = topology::resolve(spec).expect("a SPEC");
        machines.push((format!("`{spec}` without {cables} cables"), without_cables(&whole, cables, 7)));
    }
    for (count, size) in [(3, 4), (4, 3)] {
        machines.push((format!("{count} groups of {size} ranks"), groups(count, size)));
    }
    let asked = |(number, (name, machine)): (usize, (String, Value))| {
        let (collective, size) = (COLLECTIVES[number % COLLECTIVES.len()], SIZES[number % SIZES.len()]);
        IrregularInstance { name, machine, collective, size }
    };
    machines.into_iter().enumerate().map(asked).collect()
}
