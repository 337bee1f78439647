//! Fat trees: ranks on leaf switches, and switches above them, in up to three levels. A switch may have fewer up-links
//! than ports.
//!
//! `fat-tree:AxB` has A leaves of B ranks, `fat-tree:AxBxC` has A pods of B leaves of C ranks, and `AxBxCxD` has one
//! level more. Ranks are numbered row-major. Every rank has one link to every other rank; its path climbs to the lowest
//! switch above both ranks. It uses the port of each rank, and the up-links of every switch on the way up and down. All
//! up-links of one switch are one resource, because adaptive routing uses them as one.
//!
//! `bandwidth=port/leaf/pod` gives the bandwidth of a port and of all up-links of a switch together. With one value,
//! the up-links follow from `oversubscription`: the bandwidth that enters a switch from below over the bandwidth of its
//! up-links, one value for all levels or `leaf/pod`. `alpha` is added once for each level that a path climbs.

use super::{Family, check_counts, link, ordered_pairs};
use crate::spec::{LinkCost, Spec, bad_part, per_slash};
use crate::{Micros, MicrosPerByte, Resource, TopologyParts, TopologyResult};

pub(super) const FAT_TREE: Family = Family {
    name: "fat-tree",
    params: "AxBxC",
    about: "A pods of B leaf switches of C ranks (or AxB: A leaves of B); shared up-links",
    details: Some(
        "lists go from a port upwards: bandwidth=port/leaf/pod, each the up-links of one switch together (with \
         one value they follow from oversubscription=leaf/pod, what comes into a switch over what leaves it); alpha is \
         added once for each level climbed",
    ),
    keys: &["alpha=0.5us", "bandwidth=50GBps", "oversubscription=1|2", "latency=occupies|pipelines"],
    build,
};

/// One level of switches: how many ranks are below each, and what its up-links cost together.
struct Level {
    ranks: usize,
    uplinks: LinkCost,
    /// The first of its resources: up and down for each switch.
    first: usize,
}

fn build(spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
    let dimensions = spec.params.map_or(2, |params| params.matches('x').count() + 1).clamp(2, 4);
    let sizes = spec.sizes(dimensions)?;
    let count = sizes.iter().fold(1u128, |count, size| count.saturating_mul(u128::from(*size)));
    let ranks = check_counts(spec, count, count.saturating_mul(count - 1))?;
    let costs = spec.costs(dimensions)?;
    let ratios = spec.ratios("oversubscription", dimensions - 1, 1.0)?;
    let each_level = spec.get("bandwidth").is_some_and(|text| per_slash(text).len() > 1);
    if each_level && spec.get("oversubscription").is_some() {
        let reason = "`bandwidth` gives the up-links already; give one value, or leave this out";
        return Err(bad_part("`oversubscription`".to_owned(), reason));
    }
    let port = costs[0];
    let name = |level: usize| if level == 0 { "leaf".to_owned() } else { format!("level{}.switch", level + 1) };
    let mut resources: Vec<Resource> = (0..ranks)
        .flat_map(|rank| ["tx", "rx"].map(|side| Resource::new(format!("rank{rank}.{side}"), port.beta)))
        .collect();
    let mut levels: Vec<Level> = Vec::new();
    let (mut below, mut into) = (1, port.beta);
    for (level, size) in sizes[1..].iter().rev().enumerate() {
        below *= *size as usize;
        let beta = match each_level {
            true => costs[level + 1].beta,
            false => MicrosPerByte(into.0 * ratios[level] / *size as f64),
        };
        let first = resources.len();
        for switch in 0..ranks / below {
            let name = |side| format!("{}{switch}.{side}", name(level));
            resources.extend(["up", "down"].map(|side| Resource::new(name(side), beta)));
        }
        levels.push(Level { ranks: below, uplinks: LinkCost { beta, ..costs[level + 1] }, first });
        into = beta;
    }
    let links = ordered_pairs(ranks).map(|(from, to)| {
        let climbed = || levels.iter().take_while(|level| from / level.ranks != to / level.ranks);
        let up = climbed().map(|level| level.first + 2 * (from / level.ranks));
        let down: Vec<usize> = climbed().map(|level| level.first + 2 * (to / level.ranks) + 1).collect();
        let path: Vec<usize> =
            std::iter::once(2 * from).chain(up).chain(down.into_iter().rev()).chain([2 * to + 1]).collect();
        let beta = climbed().map(|level| level.uplinks.beta).fold(port.beta, MicrosPerByte::max);
        let alpha = climbed().map(|level| level.uplinks.alpha).fold(port.alpha, |sum: Micros, alpha| sum + alpha);
        link(from, to, LinkCost { alpha, beta, latency: port.latency }, &path)
    });
    Ok(TopologyParts { ranks, links: links.collect(), resources, ..TopologyParts::default() })
}
