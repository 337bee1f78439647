//! Dragonflies: groups of routers, with a cable between any two routers of a group and between any two groups.
//!
//! `dragonfly:AxBxC` has A groups of B routers with C ranks each (Kim and others, ISCA 2008), numbered row-major. The
//! cable from a group to the d-th group after it starts at router d / ⌈(A−1)/B⌉. Every rank has one link to every other
//! rank, along the one shortest path: port, at most one cable inside each group, at most one cable between groups,
//! port. Ports and both directions of every cable are resources. `alpha` and `bandwidth` take one value, or
//! `port/inside/between`; the α of a link is the sum along its path.

use super::{COST_KEYS, Family, check_counts, link, ordered_pairs};
use crate::spec::{LinkCost, Spec};
use crate::{Resource, TopologyParts, TopologyResult};

pub(super) const DRAGONFLY: Family = Family {
    name: "dragonfly",
    params: "AxBxC",
    about: "A groups of B routers of C ranks; cables between all routers of a group and all groups",
    details: Some(
        "lists are port/inside/between: the ports of a rank, cables between routers of a group, cables between groups",
    ),
    keys: COST_KEYS,
    build,
};

/// Sizes, and where each kind of resource begins.
struct DragonflyShape {
    groups: usize,
    routers: usize,
    ranks: usize,
    inside: usize,
    between: usize,
}

impl DragonflyShape {
    /// The router of `group` at which its cable to `other` starts.
    fn gateway(&self, group: usize, other: usize) -> usize {
        let after = (other + self.groups - group - 1) % self.groups;
        after / (self.groups - 1).div_ceil(self.routers)
    }

    /// The cable from one router of a group to another; none to itself.
    fn inside(&self, group: usize, from: usize, to: usize) -> Option<usize> {
        let others = self.routers - 1;
        (from != to).then(|| self.inside + (group * self.routers + from) * others + to - usize::from(to > from))
    }

    fn between(&self, from: usize, to: usize) -> usize {
        self.between + from * (self.groups - 1) + to - usize::from(to > from)
    }

    /// The cables on the way, and which of the three costs each has.
    fn path(&self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let place = |rank: usize| (rank / self.ranks / self.routers, rank / self.ranks % self.routers);
        let ((group, router), (far_group, far_router)) = (place(from), place(to));
        let mut path = vec![(2 * from, 0)];
        if group == far_group {
            path.extend(self.inside(group, router, far_router).map(|cable| (cable, 1)));
        } else {
            let (exit, entry) = (self.gateway(group, far_group), self.gateway(far_group, group));
            path.extend(self.inside(group, router, exit).map(|cable| (cable, 1)));
            path.push((self.between(group, far_group), 2));
            path.extend(self.inside(far_group, entry, far_router).map(|cable| (cable, 1)));
        }
        path.push((2 * to + 1, 0));
        path
    }
}

fn build(spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
    let sizes = spec.sizes(3)?;
    let count = sizes.iter().fold(1u128, |count, size| count.saturating_mul(u128::from(*size)));
    let ranks = check_counts(spec, count, count.saturating_mul(count - 1))?;
    let costs = spec.costs(3)?;
    let (port, inside, between) = (costs[0], costs[1], costs[2]);
    let (groups, routers) = (sizes[0] as usize, sizes[1] as usize);
    let first_between = 2 * ranks + groups * routers * (routers - 1);
    let plan = DragonflyShape { groups, routers, ranks: sizes[2] as usize, inside: 2 * ranks, between: first_between };
    let mut resources: Vec<Resource> = (0..ranks)
        .flat_map(|rank| ["tx", "rx"].map(|side| Resource::new(format!("rank{rank}.{side}"), port.beta)))
        .collect();
    for group in 0..groups {
        let cables = ordered_pairs(routers).map(|(from, to)| format!("group{group}.router{from}-{to}"));
        resources.extend(cables.map(|name| Resource::new(name, inside.beta)));
    }
    let cables = ordered_pairs(groups).map(|(from, to)| format!("group{from}-{to}"));
    resources.extend(cables.map(|name| Resource::new(name, between.beta)));
    let links =
        ordered_pairs(ranks).map(|(from, to)| {
            let path = plan.path(from, to);
            // The two ports of a path cost one α together, as on a switch.
            let cost = path[1..].iter().fold(LinkCost { alpha: crate::Micros::ZERO, ..port }, |sum, (_, kind)| {
                LinkCost { alpha: sum.alpha + costs[*kind].alpha, beta: sum.beta.max(costs[*kind].beta), ..sum }
            });
            let cables: Vec<usize> = path.iter().map(|(cable, _)| *cable).collect();
            link(from, to, cost, &cables)
        });
    Ok(TopologyParts { ranks, links: links.collect(), resources, ..TopologyParts::default() })
}
