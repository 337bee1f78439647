//! The order in which links that share ports choose.

use std::collections::BTreeSet;
use std::ops::Range;
use topology::{LinkId, ResourceId, Topology};

/// A link that could send now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ReadyLink {
    pub(super) turn: (u32, u32),
    pub(super) lot: u32,
    pub(super) link: LinkId,
}

/// A port, and the links that use it and are ready.
struct Port {
    id: ResourceId,
    /// A range of the list of uses.
    users: Range<usize>,
    /// The number of its links that are not placed yet.
    left: usize,
    lot: u32,
}

/// Reorders links so that few ports stay idle. The port with the fewest ready links left comes first, and of its links
/// the one whose other ports have the fewest (Karp and Sipser's rule for large matchings).
pub(super) fn ports_first(topology: &Topology, ready: &mut Vec<ReadyLink>) {
    let resources = |position: usize| topology.link(ready[position].link).resources.iter().copied();
    // The list of uses: which link uses which port, sorted by port.
    let mut uses: Vec<(ResourceId, usize)> =
        (0..ready.len()).flat_map(|position| resources(position).map(move |port| (port, position))).collect();
    uses.sort_unstable();
    let mut ports: Vec<Port> = Vec::new();
    for (index, &(id, position)) in uses.iter().enumerate() {
        match ports.last_mut() {
            Some(port) if port.id == id => (port.users.end, port.left) = (index + 1, port.left + 1),
            _ => ports.push(Port { id, users: index..index + 1, left: 1, lot: ready[position].lot }),
        }
    }
    let index_of = |ports: &[Port], id: ResourceId| ports.partition_point(|port| port.id < id);
    let key = |ports: &[Port], index: usize| (ports[index].left, ports[index].lot, index);
    let mut open: BTreeSet<(usize, u32, usize)> = (0..ports.len()).map(|index| key(&ports, index)).collect();
    let mut placed = vec![false; ready.len()];
    let mut is_first = vec![false; ready.len()];
    let mut ordered = Vec::with_capacity(ready.len());
    while let Some(&(_, _, port)) = open.first() {
        let crowd = |position: usize| resources(position).map(|id| ports[index_of(&ports, id)].left).sum::<usize>();
        let users = uses[ports[port].users.clone()].iter().map(|&(_, position)| position);
        let unplaced = users.filter(|&position| !placed[position]);
        let Some(chosen) = unplaced.min_by_key(|&position| (crowd(position), ready[position].lot)) else { break };
        ordered.push(ready[chosen]);
        is_first[chosen] = true;
        // Its ports are taken. Their other links come last, in case the chosen link no longer has any candidates.
        for taken in resources(chosen) {
            for at in ports[index_of(&ports, taken)].users.clone() {
                let other = uses[at].1;
                if std::mem::replace(&mut placed[other], true) {
                    continue;
                }
                for id in resources(other) {
                    let index = index_of(&ports, id);
                    open.remove(&key(&ports, index));
                    ports[index].left -= 1;
                    if ports[index].left > 0 {
                        open.insert(key(&ports, index));
                    }
                }
            }
        }
    }
    ordered.extend(ready.iter().zip(&is_first).filter(|(_, first)| !**first).map(|(one, _)| *one));
    *ready = ordered;
}
