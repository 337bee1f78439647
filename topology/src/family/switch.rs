//! All ranks on one switch: any rank reaches any other, limited by the two ports on the way.
//!
//! The switch does not copy or reorder messages. Its paths share ports: one to send and one to receive for each rank.
//! `alpha` is that of the whole path from rank to rank.

use super::{COST_KEYS, Family, check_counts, link, ordered_pairs};
use crate::spec::Spec;
use crate::{Resource, TopologyParts, TopologyResult};

pub(super) const SWITCH: Family = Family {
    name: "switch",
    params: "N",
    about: "all ranks on one switch, one port each; the ports are the limit",
    details: None,
    keys: COST_KEYS,
    build,
};

fn build(spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
    let count = u128::from(spec.count()?);
    let ranks = check_counts(spec, count, count * (count - 1))?;
    let cost = spec.costs(1)?[0];
    // Rank r sends through resource 2r and receives through 2r + 1.
    let links = ordered_pairs(ranks).map(|(from, to)| link(from, to, cost, &[2 * from, 2 * to + 1])).collect();
    let resources = (0..ranks)
        .flat_map(|rank| ["tx", "rx"].map(|side| Resource::new(format!("rank{rank}.{side}"), cost.beta)))
        .collect();
    Ok(TopologyParts { ranks, links, resources, ..TopologyParts::default() })
}
