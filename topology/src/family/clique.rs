//! A clique: every rank has its own link to every other rank.

use super::{COST_KEYS, Family, check_counts, link, ordered_pairs};
use crate::spec::Spec;
use crate::{TopologyParts, TopologyResult};

pub(super) const CLIQUE: Family = Family {
    name: "clique",
    params: "N",
    about: "a link of its own from every rank to every other",
    details: None,
    keys: COST_KEYS,
    build,
};

fn build(spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
    let count = u128::from(spec.count()?);
    let ranks = check_counts(spec, count, count * (count - 1))?;
    let cost = spec.costs(1)?[0];
    let links = ordered_pairs(ranks).map(|(from, to)| link(from, to, cost, &[])).collect();
    Ok(TopologyParts { ranks, links, ..TopologyParts::default() })
}
