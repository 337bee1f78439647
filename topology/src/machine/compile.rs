//! From a physical description to links and resources.
//!
//! The principal function is [`compile`]. A path through ports becomes one link. Its α is the sum along the path and
//! its β is the slowest on the path. The ports become resources, so that no schedule uses a port for two messages at a
//! time. A port exists only in the directions that some pair uses. Everything is counted before it is built.

use super::file::{
    CostOverrides, Leg, MachineFile, OrderedEntries, PairDirection, PairsAsWritten, Part, PartCost, Ports,
    RanksAsWritten,
};
use crate::document::Document;
use crate::document::PathSegment::Key;
use crate::spec::{LATENCIES, Spec, unknown_word};
use crate::{Latency, Link, MAX_LINKS, MAX_RANKS, Micros, MicrosPerByte, Rank, Resource, ResourceId};
use crate::{TopologyError, TopologyParts, TopologyResult};

/// Builds `machines` machines with the costs that `spec` chooses. The file has been checked.
pub(super) fn compile(
    file: &MachineFile,
    document: &Document<'_>,
    machines: u64,
    spec: &Spec<'_>,
) -> TopologyResult<TopologyParts> {
    let limit = file.most_machines.unwrap_or(u64::MAX);
    refuse_beyond("ranks", u128::from(file.ranks) * u128::from(machines), MAX_RANKS as u64)?;
    refuse_beyond("machines", u128::from(machines), limit)?;
    let (latency, costs) = choose(file, document, spec)?;
    let carriers: Vec<Carrier<'_>> = file
        .parts
        .0
        .iter()
        .zip(costs)
        .filter(|((_, part), _)| part.exists_among(machines))
        .filter_map(|((name, part), path)| Some(Carrier { name, part, path: path? }))
        .collect();
    let links = carriers.iter().map(|carrier| carrier.link_count(file.ranks, machines)).sum();
    refuse_beyond("links", links, spec.most_links as u64)?;
    let layout = MachineLayout { ranks: file.ranks as usize, machines: machines as usize, latency };
    Ok(layout.build(&carriers))
}

fn refuse_beyond(what: &'static str, count: u128, limit: u64) -> TopologyResult<()> {
    if count <= u128::from(limit) {
        return Ok(());
    }
    Err(TopologyError::TooMany { what, count: u64::try_from(count).unwrap_or(u64::MAX), limit })
}

/// The cost of a message over a part, and the β of its ports.
#[derive(Clone, Copy)]
struct PathCost {
    alpha: Micros,
    beta: MicrosPerByte,
    send: MicrosPerByte,
    deliver: MicrosPerByte,
    /// The α and β of one up-link.
    uplink: (Micros, MicrosPerByte),
}

/// The cost of each part (`None`: the part is absent) under the values that `spec` gives to the keys.
fn choose(
    file: &MachineFile,
    document: &Document<'_>,
    spec: &Spec<'_>,
) -> TopologyResult<(Latency, Vec<Option<PathCost>>)> {
    let mut latency = LATENCIES[0].1;
    let mut costs: Vec<Option<PartCost>> = vec![None; file.parts.0.len()];
    for (index, (key, values)) in file.keys.0.iter().enumerate() {
        let (value, choice) = chosen(key, values, spec)?;
        latency = choice.latency.unwrap_or(latency);
        for ((name, _), cost) in file.parts.0.iter().zip(&mut costs) {
            let Some(later) = choice.parts.get(name) else { continue };
            if index > 0 && cost.is_none() {
                let reason = format!("it is about `{name}`, which the other choices leave out");
                return Err(TopologyError::BadPart { part: format!("`{key}={value}`"), reason });
            }
            *cost = Some(later.over(cost.unwrap_or_default()));
        }
    }
    let paths = file.parts.0.iter().zip(costs).map(|((name, part), cost)| {
        let path = cost.map(|cost| path(part, cost)).transpose();
        path.map_err(|reason| document.fault(&[Key("parts"), Key(name)], format!("`{name}` {reason}")).into())
    });
    Ok((latency, paths.collect::<TopologyResult<_>>()?))
}

/// The value of a key: the one that the SPEC names, or the first.
fn chosen<'f>(
    key: &str,
    values: &'f OrderedEntries<CostOverrides>,
    spec: &Spec<'_>,
) -> TopologyResult<(&'f str, &'f CostOverrides)> {
    let wanted = spec.get(key);
    let mut all = values.0.iter();
    match all.find(|(name, _)| wanted.is_none_or(|wanted| wanted == name)) {
        Some((name, choice)) => Ok((name, choice)),
        None => Err(unknown_word(&format!("value of `{key}`"), wanted.unwrap_or_default(), values.names())),
    }
}

fn path(part: &Part, cost: PartCost) -> Result<PathCost, &'static str> {
    let uplink = match (part.uplinks.is_empty(), cost.uplink) {
        (true, None) => (Micros::ZERO, MicrosPerByte::ZERO),
        (true, Some(_)) => return Err("has no `uplinks`, so they cost nothing"),
        (false, Some(Leg { alpha, beta: Some(beta) })) => (alpha.unwrap_or(Micros::ZERO), beta),
        (false, _) => return Err("has `uplinks`, so its cost needs `uplink: {bandwidth: …}`"),
    };
    match (cost.alpha, cost.beta, cost.send, cost.deliver) {
        (Some(alpha), Some(beta), None, None) => Ok(PathCost { alpha, beta, send: beta, deliver: beta, uplink }),
        (None, None, Some(send), Some(deliver)) => {
            if matches!(part.ports, Ports::None) {
                return Err("has no ports, so its path has no legs; give `alpha` and `beta` or `bandwidth`");
            }
            match (send.alpha, send.beta, deliver.alpha, deliver.beta) {
                (Some(first), Some(tx), Some(second), Some(rx)) => {
                    Ok(PathCost { alpha: first + second, beta: tx.max(rx), send: tx, deliver: rx, uplink })
                }
                _ => Err("needs `alpha` and `beta` or `bandwidth` on both legs"),
            }
        }
        _ => Err("needs `alpha` and `beta` or `bandwidth`, either of the whole path or of `send` and `deliver`"),
    }
}

impl Part {
    fn exists_among(&self, machines: u64) -> bool {
        let reaches_any = self.inside.is_some() || machines > 1;
        reaches_any
            && self.least_machines.is_none_or(|least| machines >= least)
            && self.most_machines.is_none_or(|most| machines <= most)
    }
}

/// A part that is present, with its costs.
struct Carrier<'f> {
    name: &'f str,
    part: &'f Part,
    path: PathCost,
}

/// Which group of a list each local rank is in.
fn group_of(groups: &[RanksAsWritten], ranks: usize) -> Vec<Option<usize>> {
    let mut group_of = vec![None; ranks];
    for (index, group) in groups.iter().enumerate() {
        group.iter().for_each(|rank| group_of[rank as usize] = Some(index));
    }
    group_of
}

/// How the ranks of one machine share a part: its ports, or its up-links.
struct Shares {
    group_of: Vec<Option<usize>>,
    /// Where the `[tx, rx]` of each group stand in one machine's block of resources, if anybody uses them.
    slots: Vec<[Option<usize>; 2]>,
}

impl Shares {
    fn slot(&self, rank: usize, side: usize) -> Option<usize> {
        self.group_of[rank].and_then(|group| self.slots[group][side])
    }

    /// Appends the resources that `pairs` use to a machine's block.
    fn new(
        group_of: Vec<Option<usize>>,
        pairs: impl Iterator<Item = (usize, usize)>,
        name: &str,
        betas: [MicrosPerByte; 2],
        block: &mut Vec<(String, MicrosPerByte)>,
    ) -> Self {
        let groups = group_of.iter().flatten().max().map_or(0, |group| group + 1);
        let mut used = vec![[false; 2]; groups];
        for (from, to) in pairs {
            for (rank, side) in [(from, 0), (to, 1)] {
                if let Some(group) = group_of[rank] {
                    used[group][side] = true;
                }
            }
        }
        let mut slots = vec![[None; 2]; groups];
        for (group, used) in used.iter().enumerate() {
            for (side, suffix) in ["tx", "rx"].into_iter().enumerate() {
                if used[side] {
                    slots[group][side] = Some(block.len());
                    block.push((format!("{name}{group}.{suffix}"), betas[side]));
                }
            }
        }
        Self { group_of, slots }
    }
}

impl Carrier<'_> {
    /// The pairs it joins; a checked part has exactly one kind.
    fn pairs(&self) -> Option<&PairsAsWritten> {
        self.part.inside.as_ref().or(self.part.between.as_ref())
    }

    /// The number of links: exact without `among`, otherwise never too small.
    fn link_count(&self, ranks: u32, machines: u64) -> u128 {
        let total = |groups: &[RanksAsWritten]| groups.iter().map(RanksAsWritten::count).sum::<u128>();
        let members = match &self.part.ports {
            Ports::None | Ports::Each => u128::from(ranks),
            Ports::Groups(groups) => total(groups),
        };
        let inside = self.part.inside.is_some();
        let pairs = match (self.pairs(), &self.part.among) {
            (None, _) => 0,
            (Some(PairsAsWritten::All), Some(among)) => among.iter().map(|group| group.count().pow(2)).sum(),
            (Some(PairsAsWritten::All), None) => members * (members - u128::from(inside && members > 0)),
            (Some(PairsAsWritten::Same), _) => members,
            (Some(PairsAsWritten::These(pairs)), _) => {
                pairs.iter().map(|pair| 1 + u128::from(pair.way == PairDirection::Both)).sum()
            }
        };
        let machines = u128::from(machines);
        pairs * machines * if inside { 1 } else { machines - 1 }
    }

    /// The ordered pairs of local ranks.
    fn local_pairs(&self, ranks: usize, port_of: &[Option<usize>]) -> Vec<(usize, usize)> {
        let ported = |rank: &usize| matches!(self.part.ports, Ports::None) || port_of[*rank].is_some();
        let inside = self.part.inside.is_some();
        let members = || (0..ranks).filter(ported);
        match self.pairs() {
            None => Vec::new(),
            Some(PairsAsWritten::All) => {
                let groups: Vec<Vec<usize>> = match &self.part.among {
                    None => vec![members().collect()],
                    Some(among) => {
                        let group_of = group_of(among, ranks);
                        let group = |index| members().filter(|&rank| group_of[rank] == Some(index)).collect();
                        (0..among.len()).map(group).collect()
                    }
                };
                let pairs_of = |group: &Vec<usize>| {
                    let all = group.iter().flat_map(|from| group.iter().map(move |to| (*from, *to)));
                    all.filter(|(from, to)| !inside || from != to).collect::<Vec<_>>()
                };
                groups.iter().flat_map(pairs_of).collect()
            }
            Some(PairsAsWritten::Same) => members().map(|rank| (rank, rank)).collect(),
            Some(PairsAsWritten::These(pairs)) => pairs
                .iter()
                .flat_map(|pair| {
                    let (from, to) = (pair.from as usize, pair.to as usize);
                    let back = (pair.way == PairDirection::Both && from != to).then_some((to, from));
                    std::iter::once((from, to)).chain(back)
                })
                .collect(),
        }
    }

    fn port_of(&self, ranks: usize) -> Vec<Option<usize>> {
        match &self.part.ports {
            Ports::None => vec![None; ranks],
            Ports::Each => (0..ranks).map(Some).collect(),
            Ports::Groups(groups) => group_of(groups, ranks),
        }
    }

    /// The part's pairs with their resources, which are appended to one machine's block.
    fn wires(&self, ranks: usize, block: &mut Vec<(String, MicrosPerByte)>) -> SwitchWires {
        let ports = self.port_of(ranks);
        let pairs = self.local_pairs(ranks, &ports);
        let PathCost { send, deliver, uplink: (_, uplink), .. } = self.path;
        let ports = Shares::new(ports, pairs.iter().copied(), self.name, [send, deliver], block);
        let leaves = group_of(&self.part.uplinks, ranks);
        let inside = self.part.inside.is_some();
        let climbs = |&(from, to): &(usize, usize)| !inside || leaves[from].is_none() || leaves[from] != leaves[to];
        let climbing: Vec<(usize, usize)> = pairs.iter().copied().filter(climbs).collect();
        let name = format!("{}.uplink", self.name);
        let uplinks = Shares::new(leaves, climbing.into_iter(), &name, [uplink; 2], block);
        SwitchWires { pairs, ports, uplinks }
    }
}

/// A part within one machine, or between any two.
struct SwitchWires {
    pairs: Vec<(usize, usize)>,
    ports: Shares,
    uplinks: Shares,
}

impl SwitchWires {
    /// The up-links on the path of a pair, as slots of the sender's and the receiver's machine.
    fn uplinks(&self, from: usize, to: usize, inside: bool) -> [Option<usize>; 2] {
        let group = |rank: usize| self.uplinks.group_of[rank];
        if inside && group(from).is_some() && group(from) == group(to) {
            return [None; 2];
        }
        [self.uplinks.slot(from, 0), self.uplinks.slot(to, 1)]
    }
}

/// The numbers of ranks and machines, and the one latency of all links.
struct MachineLayout {
    ranks: usize,
    machines: usize,
    latency: Latency,
}

impl MachineLayout {
    fn build(&self, carriers: &[Carrier<'_>]) -> TopologyParts {
        let mut block: Vec<(String, MicrosPerByte)> = Vec::new();
        let wired: Vec<_> = carriers.iter().map(|carrier| (carrier, carrier.wires(self.ranks, &mut block))).collect();
        let wired: Vec<_> = wired
            .iter()
            .map(|(carrier, wires)| {
                let mut pairs = wires.pairs.clone();
                pairs.sort_by_key(|&(from, _)| from);
                (carrier, wires, pairs)
            })
            .collect();
        let count: u128 = carriers.iter().map(|it| it.link_count(self.ranks as u32, self.machines as u64)).sum();
        let mut links = Vec::with_capacity(count.min(MAX_LINKS as u128) as usize);
        // Machine by machine, so that each has its links sorted by itself: there may be millions in all.
        for sender in 0..self.machines {
            let first = links.len();
            for (carrier, wires, pairs) in &wired {
                for pairs in pairs.chunk_by(|one, other| one.0 == other.0) {
                    for receiver in self.receivers(carrier, sender) {
                        let link = |&pair| self.link(carrier, wires, [sender, receiver], pair, block.len());
                        links.extend(pairs.iter().map(link));
                    }
                }
            }
            links[first..].sort_by_key(|link: &Link| (link.from, link.to));
        }
        let resource = |machine: usize| {
            block.iter().map(move |(name, beta)| Resource::new(format!("machine{machine}.{name}"), *beta))
        };
        let ranks_of = |machine: usize| (0..self.ranks).map(move |rank| Rank::from_index(machine * self.ranks + rank));
        TopologyParts {
            name: String::new(),
            ranks: self.ranks * self.machines,
            machines: (0..self.machines).map(|machine| ranks_of(machine).collect()).collect(),
            links,
            resources: (0..self.machines).flat_map(resource).collect(),
        }
    }

    /// One path as a link; `block` is how many resources a machine has.
    fn link(
        &self,
        carrier: &Carrier<'_>,
        wires: &SwitchWires,
        [sender, receiver]: [usize; 2],
        (from, to): (usize, usize),
        block: usize,
    ) -> Link {
        let [up, down] = wires.uplinks(from, to, carrier.part.inside.is_some());
        let tx = [wires.ports.slot(from, 0), up].into_iter().flatten().map(|slot| sender * block + slot);
        let rx = [down, wires.ports.slot(to, 1)].into_iter().flatten().map(|slot| receiver * block + slot);
        let PathCost { mut alpha, mut beta, uplink, .. } = carrier.path;
        for _ in [up, down].into_iter().flatten() {
            alpha += uplink.0;
            beta = beta.max(uplink.1);
        }
        Link {
            from: Rank::from_index(sender * self.ranks + from),
            to: Rank::from_index(receiver * self.ranks + to),
            alpha,
            beta,
            latency: self.latency,
            resources: tx.chain(rx).map(ResourceId::from_index).collect(),
        }
    }

    /// The machines at the other end of a part's links.
    fn receivers(&self, carrier: &Carrier<'_>, sender: usize) -> impl Iterator<Item = usize> {
        let is_inside = carrier.part.inside.is_some();
        let range = if is_inside { sender..sender + 1 } else { 0..self.machines };
        range.filter(move |&receiver| is_inside || receiver != sender)
    }
}
