//! What is known of ranks that nobody has profiled: which of them share a machine, and so its way to the others.
//!
//! The principal function is [`machines`]. How fast all that is nobody knows; the rates are of the usual order, and high
//! enough that the runtime does not hold anybody to them.

use crate::failure::Outcome;
use topology::{Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

/// A message in a machine, and between two.
const ALPHA: [Micros; 2] = [Micros(1.0), Micros(30.0)];
/// 10 GB/s in a machine, 3 GB/s between two.
const BETA: [MicrosPerByte; 2] = [MicrosPerByte(1e-4), MicrosPerByte(1.0 / 3e3)];

/// Machines of these ranks, each with one interface that all its ranks share.
pub(crate) fn machines(machines: &[Vec<Rank>]) -> Outcome<Topology> {
    let ranks: usize = machines.iter().map(Vec::len).sum();
    let mut home = vec![0; ranks];
    for (machine, members) in machines.iter().enumerate() {
        members.iter().for_each(|rank| home[rank.index()] = machine);
    }
    let interface =
        |machine: usize| ["out", "in"].map(|way| Resource { name: format!("machine{machine}.{way}"), beta: BETA[1] });
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let link = |(from, to): (usize, usize)| {
        let apart = usize::from(home[from] != home[to]);
        let ways = [2 * home[from], 2 * home[to] + 1].map(ResourceId::from_index);
        Link {
            from: Rank::from_index(from),
            to: Rank::from_index(to),
            alpha: ALPHA[apart],
            beta: BETA[apart],
            latency: Latency::Occupies,
            resources: ways.into_iter().filter(|_| apart == 1).collect(),
        }
    };
    Ok(Topology::new(TopologyParts {
        name: format!("{} machines", machines.len()),
        ranks,
        machines: machines.to_vec(),
        links: pairs.map(link).collect(),
        resources: (0..machines.len()).flat_map(interface).collect(),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_share_its_interface() {
        let topology = machines(&[vec![Rank(0), Rank(2)], vec![Rank(1)]]).unwrap();
        let shares = |from, to| {
            let link = topology.link(topology.between(Rank(from), Rank(to)).next().unwrap());
            link.resources.iter().map(|&id| topology.resource(id).name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(shares(0, 1), ["machine0.out", "machine1.in"]);
        assert_eq!(shares(1, 2), ["machine1.out", "machine0.in"]);
        assert!(shares(0, 2).is_empty());
    }
}
