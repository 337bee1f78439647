//! A topology for ranks that were not profiled: only the machines are known, and that ranks of a machine share its
//! network interface.
//!
//! The principal function is [`machines`]. Its rates are guesses of the usual order, and high enough that the runtime
//! does not slow any message down to them.
//!
//! For many ranks, each rank has links to only a few others. Links do not express that messages take the time of a core
//! and that connections take memory.

use crate::failure::Outcome;
use schedule::Collective;
use topology::{Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

/// The α of a message within a machine, and between two.
const ALPHA: [Micros; 2] = [Micros(1.0), Micros(30.0)];
/// 10 GB/s in a machine, 3 GB/s between two.
const BETA: [MicrosPerByte; 2] = [MicrosPerByte(1e-4), MicrosPerByte(1.0 / 3e3)];

/// The additional cost of a message if ranks outnumber cores: waking up the receiver, and the same for each rank that
/// waits for a core.
const TURN: Micros = Micros(5.0);
/// Up to this many ranks, any two have links.
const FEW: usize = 8;
/// The same limit where every rank has a core, or has data for every other rank.
const SOME: usize = 128;

/// A topology of these machines, each with one interface that all its ranks share, and with the links that `collective`
/// may use.
pub(crate) fn machines(machines: &[Vec<Rank>], collective: Collective) -> Outcome<Topology> {
    let ranks: usize = machines.iter().map(Vec::len).sum();
    let longest = machines.iter().map(Vec::len).max().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let has_cores = longest <= cores;
    let waiting = if has_cores { Micros::ZERO } else { TURN * (longest as f64 / cores as f64) };
    let is_dense = ranks <= FEW || ranks <= SOME && (has_cores || is_personal(collective));
    let mut home = vec![0; ranks];
    for (machine, members) in machines.iter().enumerate() {
        members.iter().for_each(|rank| home[rank.index()] = machine);
    }
    let interface = |machine: usize| ["out", "in"].map(|way| Resource::new(format!("machine{machine}.{way}"), BETA[1]));
    let is_linked = |&(from, to): &(usize, usize)| from != to && (is_dense || are_near(from, to, ranks));
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).filter(is_linked);
    let link = |(from, to): (usize, usize)| {
        let apart = usize::from(home[from] != home[to]);
        let ways = [2 * home[from], 2 * home[to] + 1].map(ResourceId::from_index);
        Link {
            from: Rank::from_index(from),
            to: Rank::from_index(to),
            alpha: ALPHA[apart] + waiting,
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

/// Whether every pair of ranks has its own data, so that paths over other ranks carry it more than once.
fn is_personal(collective: Collective) -> bool {
    match collective {
        Collective::AllToAll | Collective::AllToAllV | Collective::Gather | Collective::Scatter => true,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::Broadcast => false,
        Collective::Reduce | Collective::SendRecv | Collective::Custom => false,
    }
}

/// Whether the distance is a power of two: rings, trees, doubling and Bruck's algorithm need no other links.
fn are_near(from: usize, to: usize, ranks: usize) -> bool {
    let apart = from.abs_diff(to);
    apart.is_power_of_two() || (ranks - apart).is_power_of_two()
}

/// The machine of each rank of a topology.
pub(crate) fn machines_of(topology: &Topology) -> Vec<u32> {
    let mut machines = vec![0; topology.rank_count()];
    for (machine, members) in (0..).zip(topology.machines()) {
        members.iter().for_each(|rank| machines[rank.index()] = machine);
    }
    machines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_share_its_interface() {
        let topology = machines(&[vec![Rank(0), Rank(2)], vec![Rank(1)]], Collective::AllReduce).unwrap();
        let shares = |from, to| {
            let link = topology.link(topology.between(Rank(from), Rank(to)).next().unwrap());
            link.resources.iter().map(|&id| topology.resource(id).name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(shares(0, 1), ["machine0.out", "machine1.in"]);
        assert_eq!(shares(1, 2), ["machine1.out", "machine0.in"]);
        assert!(shares(0, 2).is_empty());
    }

    #[test]
    fn many_ranks_have_few_links_unless_all_have_something_for_each() {
        let of = |ranks: u32, collective| {
            let topology = machines(&[(0..ranks).map(Rank).collect()], collective).unwrap();
            topology.links().len()
        };
        assert_eq!(of(8, Collective::AllReduce), 8 * 7);
        assert_eq!(of(100, Collective::AllToAll), 100 * 99);
        // Distances of 1, 2, 4 … 512 in both directions; for 512 both directions are the same.
        assert_eq!(of(1024, Collective::AllReduce), 1024 * 19);
        assert_eq!(of(1024, Collective::AllToAll), 1024 * 19);
    }
}
