//! Whose turn it is among links that share ports.

use std::collections::BTreeMap;
use topology::{LinkId, ResourceId, Topology};

/// A link that could send now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ready {
    pub(super) turn: (u32, u32),
    pub(super) lot: u32,
    pub(super) link: LinkId,
}

/// Reorders links so that few ports stay idle: the port with the fewest ready links left comes first, and of its
/// links the one whose other ports have the fewest (Karp and Sipser's rule for large matchings).
pub(super) fn ports_first(topology: &Topology, ready: &mut Vec<Ready>) {
    let resources = |position: usize| topology.link(ready[position].link).resources.iter().copied();
    let mut users: BTreeMap<ResourceId, Vec<usize>> = BTreeMap::new();
    for position in 0..ready.len() {
        resources(position).for_each(|port| users.entry(port).or_default().push(position));
    }
    let mut left: BTreeMap<ResourceId, usize> = users.iter().map(|(&port, users)| (port, users.len())).collect();
    let mut placed = vec![false; ready.len()];
    let mut is_first = vec![false; ready.len()];
    let mut ordered = Vec::with_capacity(ready.len());
    loop {
        let open = left.iter().filter(|(_, left)| **left > 0);
        let Some((port, _)) = open.min_by_key(|(port, left)| (**left, ready[users[*port][0]].lot)) else { break };
        let crowd = |position: &usize| resources(*position).map(|port| left[&port]).sum::<usize>();
        let open = users[port].iter().copied().filter(|&position| !placed[position]);
        let Some(chosen) = open.min_by_key(|position| (crowd(position), ready[*position].lot)) else { break };
        ordered.push(ready[chosen]);
        is_first[chosen] = true;
        // Its ports are taken: the others of their links come last, in case it finds its candidates gone.
        for other in resources(chosen).flat_map(|port| &users[&port]) {
            if !std::mem::replace(&mut placed[*other], true) {
                resources(*other).for_each(|port| *left.entry(port).or_default() -= 1);
            }
        }
    }
    ordered.extend(ready.iter().zip(&is_first).filter(|(_, first)| !**first).map(|(one, _)| *one));
    *ready = ordered;
}
