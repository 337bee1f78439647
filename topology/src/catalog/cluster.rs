//! `antiphon-cluster/1`: machines of any kinds and sizes, and the networks that join them.
//!
//! The principal function is [`read`]. Each machine is a SPEC. A network is a switch with ports. Some ranks of one
//! machine share a port, and every rank with a port reaches every rank with a port on other machines. Each port has its
//! own bandwidth. A port may be behind a leaf switch; all ports of a leaf share its up-links on the way to other
//! switches. Cables join two ranks directly.
//!
//! ```yaml
//! format: antiphon-cluster/1
//! name: lab
//! machines:
//! - {spec: dgx1}
//! - {spec: "switch:4,bandwidth=100GBps", count: 2}
//! networks:
//!   ethernet:
//!     leaves: {rack: {bandwidth: 20GBps, alpha: 0.5us}}
//!     ports:
//!     - {machines: [0], ranks: [0-7], alpha: 3us, bandwidth: 12.5GBps}
//!     - {machines: [1-2], ranks: [0], alpha: 3us, bandwidth: 25GBps, leaf: rack}
//! cables:
//! - {from: [0, 7], to: [1, 3], both: true, alpha: 2us, bandwidth: 25GBps}
//! ```

use crate::document::PathSegment::{Index, Key};
use crate::document::{Document, PathSegment, TextError};
use crate::machine::file::{self, Leg, OrderedEntries, RanksAsWritten};
use crate::spelling::shorten;
use crate::{Latency, Link, MAX_LISTED_LINKS, MAX_RANKS, Micros, MicrosPerByte, Rank, Resource, ResourceId};
use crate::{Topology, TopologyParts, TopologyResult, resolve};
use serde::Deserialize;

/// The value of `format`.
pub(crate) const FORMAT: &str = "antiphon-cluster/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    format: String,
    name: String,
    #[serde(default, rename = "about")]
    _about: String,
    #[serde(default, rename = "source")]
    _source: String,
    machines: Vec<MachineEntry>,
    /// The latency of networks and cables.
    #[serde(default = "occupies")]
    latency: Latency,
    #[serde(default)]
    networks: OrderedEntries<ClusterNetwork>,
    #[serde(default)]
    cables: Vec<Cable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineEntry {
    /// A name, not a path.
    spec: String,
    #[serde(default = "one")]
    count: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterNetwork {
    #[serde(default)]
    leaves: OrderedEntries<Leg>,
    ports: Vec<ClusterPort>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterPort {
    /// Each of these machines has such a port.
    machines: RanksAsWritten,
    /// Local ranks.
    ranks: RanksAsWritten,
    /// From the rank to the switch, which is half of the way to another port.
    #[serde(default, deserialize_with = "file::alpha")]
    alpha: Option<Micros>,
    #[serde(default, alias = "bandwidth", deserialize_with = "file::beta")]
    beta: Option<MicrosPerByte>,
    #[serde(default)]
    leaf: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cable {
    from: [u32; 2],
    to: [u32; 2],
    #[serde(default)]
    both: bool,
    #[serde(default, deserialize_with = "file::alpha")]
    alpha: Option<Micros>,
    #[serde(default, alias = "bandwidth", deserialize_with = "file::beta")]
    beta: Option<MicrosPerByte>,
}

fn occupies() -> Latency {
    Latency::Occupies
}

fn one() -> u32 {
    1
}

/// Reads a cluster.
pub(crate) fn read(document: &Document<'_>) -> TopologyResult<Topology> {
    let file: ClusterFile = document.parse()?;
    if file.format != FORMAT {
        let reason = format!("`format` is `{}`, expected `{FORMAT}`", shorten(&file.format));
        return Err(document.fault(&[Key("format")], reason).into());
    }
    let mut cluster = Cluster { document, latency: file.latency, parts: TopologyParts::default() };
    cluster.parts.name = file.name.clone();
    cluster.machines(&file)?;
    for (name, network) in &file.networks.0 {
        cluster.network(name, network)?;
    }
    for (index, cable) in file.cables.iter().enumerate() {
        cluster.cable(index, cable)?;
    }
    let mut parts = cluster.parts;
    parts.links.sort_by_key(|link| (link.from, link.to));
    Topology::new(parts)
}

/// A cluster while it is put together.
struct Cluster<'d> {
    document: &'d Document<'d>,
    latency: Latency,
    parts: TopologyParts,
}

/// How one rank enters a network.
struct NetworkEntry<'f> {
    machine: usize,
    rank: Rank,
    alpha: Micros,
    beta: MicrosPerByte,
    /// Transmit and receive.
    port: [ResourceId; 2],
    leaf: Option<&'f str>,
}

/// A leaf switch: the α and β of its up-links, and both directions of them.
struct Leaf<'f> {
    name: &'f str,
    alpha: Micros,
    beta: MicrosPerByte,
    uplinks: [ResourceId; 2],
}

impl Cluster<'_> {
    fn fault(&self, path: &[PathSegment<'_>], reason: impl Into<String>) -> TextError {
        self.document.fault(path, reason)
    }

    fn machines(&mut self, file: &ClusterFile) -> TopologyResult<()> {
        for (index, entry) in file.machines.iter().enumerate() {
            let path = [Key("machines"), Index(index)];
            let at = |reason: String| self.document.fault(&[Key("machines"), Index(index), Key("spec")], reason);
            let machine = resolve(&entry.spec).map_err(|error| at(error.to_string()))?;
            let count = u128::from(entry.count);
            for (what, have, more, limit) in [
                ("ranks", self.parts.ranks, machine.rank_count(), MAX_RANKS),
                ("links", self.parts.links.len(), machine.links().len(), MAX_LISTED_LINKS),
                ("resources", self.parts.resources.len(), machine.resources().len(), MAX_LISTED_LINKS),
            ] {
                let total = have as u128 + more as u128 * count;
                if total > limit as u128 {
                    let reason = format!("{what}: {total} is more than the {limit} that are supported");
                    return Err(self.fault(&path, reason).into());
                }
            }
            for _ in 0..entry.count {
                self.machine(&machine);
            }
        }
        if self.parts.ranks == 0 {
            return Err(self.fault(&[Key("machines")], "a cluster needs at least one machine").into());
        }
        Ok(())
    }

    fn machine(&mut self, machine: &Topology) {
        let (first, offset, home) = (self.parts.ranks, self.parts.resources.len(), self.parts.machines.len());
        let moved = |rank: Rank| Rank::from_index(first + rank.index());
        for (index, ranks) in machine.machines().iter().enumerate() {
            debug_assert_eq!(self.parts.machines.len(), home + index);
            self.parts.machines.push(ranks.iter().map(|&rank| moved(rank)).collect());
        }
        self.parts.links.extend(machine.links().iter().map(|link| Link {
            from: moved(link.from),
            to: moved(link.to),
            resources: link.resources.iter().map(|id| ResourceId::from_index(offset + id.index())).collect(),
            ..link.clone()
        }));
        self.parts.resources.extend(machine.resources().iter().map(|shared| {
            // The resources of a built-in machine begin with the number of their machine; those of families have no number.
            let own = shared.name.strip_prefix("machine").and_then(|rest| rest.split_once('.'));
            let numbered = own.and_then(|(number, name)| Some((number.parse::<usize>().ok()?, name)));
            let (number, name) = numbered.unwrap_or((0, &shared.name));
            Resource { name: format!("machine{}.{name}", home + number), ..shared.clone() }
        }));
        self.parts.ranks += machine.rank_count();
    }

    /// Rank `local` of a machine.
    fn rank(&self, path: &[PathSegment<'_>], machine: u32, local: u32) -> Result<Rank, TextError> {
        let Some(ranks) = self.parts.machines.get(machine as usize) else {
            let reason = format!("there is no machine {machine}; they are 0-{}", self.parts.machines.len() - 1);
            return Err(self.fault(path, reason));
        };
        ranks.get(local as usize).copied().ok_or_else(|| {
            let reason =
                format!("there is no rank {local} in machine {machine}, whose ranks are 0-{}", ranks.len() - 1);
            self.fault(path, reason)
        })
    }

    fn costs(&self, path: &[PathSegment<'_>], leg: Leg) -> Result<(Micros, MicrosPerByte), TextError> {
        match leg {
            Leg { alpha: Some(alpha), beta: Some(beta) } => Ok((alpha, beta)),
            _ => Err(self.fault(path, "it needs `alpha` and `beta` or `bandwidth`")),
        }
    }

    fn share_both(&mut self, name: &str, sides: [&str; 2], beta: MicrosPerByte) -> [ResourceId; 2] {
        sides.map(|side| {
            self.parts.resources.push(Resource::new(format!("{name}.{side}"), beta));
            ResourceId::from_index(self.parts.resources.len() - 1)
        })
    }

    fn network(&mut self, name: &str, network: &ClusterNetwork) -> Result<(), TextError> {
        let mut leaves: Vec<Leaf<'_>> = Vec::new();
        for (leaf, leg) in &network.leaves.0 {
            let path = [Key("networks"), Key(name), Key("leaves"), Key(leaf)];
            let (alpha, beta) = self.costs(&path, *leg)?;
            let uplinks = self.share_both(&format!("{name}.{leaf}"), ["up", "down"], beta);
            leaves.push(Leaf { name: leaf, alpha, beta, uplinks });
        }
        let mut ways: Vec<NetworkEntry<'_>> = Vec::new();
        let mut taken = vec![false; self.parts.ranks];
        for (index, port) in network.ports.iter().enumerate() {
            self.port(name, index, port, &leaves, &mut taken, &mut ways)?;
        }
        let links = self.parts.links.len() as u128 + (ways.len() as u128).pow(2);
        if links > MAX_LISTED_LINKS as u128 {
            let reason = format!("links: {links} is more than the {MAX_LISTED_LINKS} that are supported");
            return Err(self.fault(&[Key("networks"), Key(name)], reason));
        }
        for from in &ways {
            for to in ways.iter().filter(|to| to.machine != from.machine) {
                let climbs = from.leaf.is_none() || from.leaf != to.leaf;
                let leaf = |way: &NetworkEntry<'_>| leaves.iter().find(|leaf| climbs && way.leaf == Some(leaf.name));
                let (out, back) = (leaf(from), leaf(to));
                let (mut alpha, mut beta) = (from.alpha + to.alpha, from.beta.max(to.beta));
                for leaf in out.into_iter().chain(back) {
                    alpha += leaf.alpha;
                    beta = beta.max(leaf.beta);
                }
                let resources = [Some(from.port[0]), out.map(|leaf| leaf.uplinks[0])];
                let resources = resources.into_iter().chain([back.map(|leaf| leaf.uplinks[1]), Some(to.port[1])]);
                self.parts.links.push(Link {
                    from: from.rank,
                    to: to.rank,
                    alpha,
                    beta,
                    latency: self.latency,
                    resources: resources.flatten().collect(),
                });
            }
        }
        Ok(())
    }

    /// Adds one entry for each rank that has this port.
    fn port<'f>(
        &mut self,
        network: &str,
        index: usize,
        port: &'f ClusterPort,
        leaves: &[Leaf<'_>],
        taken: &mut [bool],
        ways: &mut Vec<NetworkEntry<'f>>,
    ) -> Result<(), TextError> {
        let path = [Key("networks"), Key(network), Key("ports"), Index(index)];
        let (alpha, beta) = self.costs(&path, Leg { alpha: port.alpha, beta: port.beta })?;
        if let Some(leaf) = port.leaf.as_deref().filter(|leaf| leaves.iter().all(|known| known.name != *leaf)) {
            return Err(self.fault(&path, format!("there is no leaf `{}` in `leaves`", shorten(leaf))));
        }
        for machine in port.machines.iter() {
            // An unknown machine or a repeated rank ends this loop early, before a long list is built.
            self.rank(&path, machine, 0)?;
            let name = format!("machine{machine}.{network}{index}");
            let pair = self.share_both(&name, ["tx", "rx"], beta);
            for local in port.ranks.iter() {
                let rank = self.rank(&path, machine, local)?;
                if std::mem::replace(&mut taken[rank.index()], true) {
                    let reason = format!("rank {local} of machine {machine} has two ports in `{network}`");
                    return Err(self.fault(&path, reason));
                }
                ways.push(NetworkEntry {
                    machine: machine as usize,
                    rank,
                    alpha,
                    beta,
                    port: pair,
                    leaf: port.leaf.as_deref(),
                });
            }
        }
        Ok(())
    }

    fn cable(&mut self, index: usize, cable: &Cable) -> Result<(), TextError> {
        let path = [Key("cables"), Index(index)];
        let (alpha, beta) = self.costs(&path, Leg { alpha: cable.alpha, beta: cable.beta })?;
        let from = self.rank(&path, cable.from[0], cable.from[1])?;
        let to = self.rank(&path, cable.to[0], cable.to[1])?;
        if from == to {
            return Err(self.fault(&path, "a rank needs no cable to itself"));
        }
        let link =
            |from, to| Link { from, to, alpha, beta, latency: self.latency, resources: crate::ResourceIds::default() };
        let back = cable.both.then(|| link(to, from));
        let links = std::iter::once(link(from, to)).chain(back).collect::<Vec<_>>();
        self.parts.links.extend(links);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TopologyError;

    const LAB: &str = "format: antiphon-cluster/1
name: lab
about: eight, four and two ranks
machines:
- {spec: dgx1}
- {spec: \"switch:4,bandwidth=100GBps\"}
- {spec: \"line:2\"}
latency: pipelines
networks:
  ethernet:
    leaves: {rack: {alpha: 0.5us, bandwidth: 10GBps}}
    ports:
    - {machines: [0], ranks: [0-3], alpha: 3us, bandwidth: 12.5GBps}
    - {machines: [1], ranks: [0, 2-3], alpha: 2us, bandwidth: 25GBps, leaf: rack}
    - {machines: [2], ranks: [0], alpha: 2us, bandwidth: 20GBps, leaf: rack}
cables:
- {from: [0, 7], to: [1, 1], both: true, alpha: 1us, bandwidth: 50GBps}
";

    fn lab(from: &str, to: &str) -> Result<Topology, TopologyError> {
        assert!(LAB.contains(from), "{from}");
        read(&Document::yaml("lab.yaml", &LAB.replacen(from, to, 1)))
    }

    fn between(topology: &Topology, from: u32, to: u32) -> (f64, f64, Vec<&str>) {
        let link = topology.link(topology.between(Rank(from), Rank(to)).next().expect("a link"));
        let names = link.resources.iter().map(|id| topology.resource(*id).name.as_str()).collect();
        (link.alpha.0, (link.beta.gbps() * 1e6).round() / 1e6, names)
    }

    #[test]
    fn machines_of_eight_four_and_two_ranks_are_one_topology() {
        let topology = lab("lab", "lab").unwrap();
        assert_eq!(topology.machines().iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2]);
        assert_eq!(topology.islands().len(), 1);
        let ports = 2 * (4 * 3 + 4 + 3);
        assert_eq!(topology.links().len(), 32 + 12 + 2 + ports + 2);
        assert_eq!(between(&topology, 0, 1), (0.7, 50.0, vec![]));
        assert_eq!(between(&topology, 9, 11), (0.5, 100.0, vec!["machine1.rank1.tx", "machine1.rank3.rx"]));
        assert_eq!(between(&topology, 7, 9), (1.0, 50.0, vec![]));
        let far = ["machine0.ethernet0.tx", "ethernet.rack.down", "machine1.ethernet1.rx"];
        assert_eq!(between(&topology, 3, 8), (5.5, 10.0, far.to_vec()));
        assert_eq!(between(&topology, 12, 10), (4.0, 20.0, vec!["machine2.ethernet2.tx", "machine1.ethernet1.rx"]));
        assert!(topology.between(Rank(4), Rank(8)).next().is_none());
        assert_eq!(topology.link(topology.between(Rank(3), Rank(8)).next().unwrap()).latency, Latency::Pipelines);
    }

    /// A range includes its end, unless it has the old form `0..4`.
    #[test]
    fn ranges_of_ranks_have_both_their_ends() {
        let listed = lab("[0-3]", "[0, 1, 2, 3]").unwrap();
        for (range, is_same) in [("[0-3]", true), ("[0..4]", true), ("[0..3]", false), ("[0-2]", false)] {
            assert_eq!(lab("[0-3]", range).unwrap().digest() == listed.digest(), is_same, "{range}");
        }
    }

    #[test]
    fn faults_in_clusters_have_a_place() {
        for (from, to, place, fragment) in [
            ("cluster/1", "cluster/2", "lab.yaml:1:", "expected `antiphon-cluster/1`"),
            ("spec: dgx1", "spec: dgx9", "lab.yaml:5:", "did you mean `dgx1`?"),
            ("spec: dgx1", "spec: ./dgx1.yaml", "lab.yaml:5:", "unknown topology"),
            ("spec: dgx1", "spec: dgx1, count: 4000000000", "lab.yaml:5:", "ranks: 32000000000 is more than"),
            ("spec: dgx1", "spec: \"clique:2000\", count: 4000000000", "lab.yaml:5:", "is more than"),
            ("machines: [1]", "machines: [3]", "lab.yaml:14:", "there is no machine 3; they are 0-2"),
            (
                "machines: [1]",
                "machines: [1-4000000000]",
                "lab.yaml:14:",
                "no rank 2 in machine 2, whose ranks are 0-1",
            ),
            ("[0, 2-3]", "[0, 2-4]", "lab.yaml:14:", "there is no rank 4 in machine 1, whose ranks are 0-3"),
            ("[0, 2-3]", "[0, 0]", "lab.yaml:14:", "rank 0 of machine 1 has two ports"),
            ("leaf: rack", "leaf: rock", "lab.yaml:14:", "there is no leaf `rock`"),
            ("alpha: 2us, ", "", "lab.yaml:14:", "it needs `alpha`"),
            ("[1, 1]", "[0, 7]", "lab.yaml:17:", "no cable to itself"),
            ("both: true", "twice: true", "lab.yaml:17:", "twice"),
            ("latency", "latncy", "lab.yaml:8:", "latncy"),
        ] {
            let error = lab(from, to).expect_err(to).to_string();
            assert!(error.starts_with(place) && error.contains(fragment), "{to}: {error}");
        }
    }
}
