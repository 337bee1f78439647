//! From a physical description to links and resources.
//!
//! The principal function is [`compile`]. A path through ports becomes one link, whose α is the sum along the way
//! and whose β is the slowest on the way; the ports become resources, so that no schedule can use one twice at a
//! time. A port exists only in the directions that some pair uses. Everything is counted before it is built.

use super::file::{Choice, Cost, Entries, MachineFile, Pairs, Part, Ports, Way};
use crate::document::Document;
use crate::document::Step::Key;
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
    refuse_beyond("links", links, MAX_LINKS as u64)?;
    let layout = Layout { ranks: file.ranks as usize, machines: machines as usize, latency };
    Ok(layout.build(&carriers))
}

fn refuse_beyond(what: &'static str, count: u128, limit: u64) -> TopologyResult<()> {
    if count <= u128::from(limit) {
        return Ok(());
    }
    Err(TopologyError::TooMany { what, count: u64::try_from(count).unwrap_or(u64::MAX), limit })
}

/// What a message over a part costs, and what its ports allow.
#[derive(Clone, Copy)]
struct Path {
    alpha: Micros,
    beta: MicrosPerByte,
    send: MicrosPerByte,
    deliver: MicrosPerByte,
}

/// The cost of each part (`None`: the part is absent) under the values that `spec` gives to the keys.
fn choose(
    file: &MachineFile,
    document: &Document<'_>,
    spec: &Spec<'_>,
) -> TopologyResult<(Latency, Vec<Option<Path>>)> {
    let mut latency = LATENCIES[0].1;
    let mut costs: Vec<Option<Cost>> = vec![None; file.parts.0.len()];
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
fn chosen<'f>(key: &str, values: &'f Entries<Choice>, spec: &Spec<'_>) -> TopologyResult<(&'f str, &'f Choice)> {
    let wanted = spec.get(key);
    let mut all = values.0.iter();
    match all.find(|(name, _)| wanted.is_none_or(|wanted| wanted == name)) {
        Some((name, choice)) => Ok((name, choice)),
        None => Err(unknown_word(&format!("value of `{key}`"), wanted.unwrap_or_default(), values.names())),
    }
}

fn path(part: &Part, cost: Cost) -> Result<Path, &'static str> {
    match (cost.alpha, cost.beta, cost.send, cost.deliver) {
        (Some(alpha), Some(beta), None, None) => Ok(Path { alpha, beta, send: beta, deliver: beta }),
        (None, None, Some(send), Some(deliver)) => {
            if matches!(part.ports, Ports::None) {
                return Err("has no ports, so its path has no legs; give `alpha` and `beta` or `bandwidth`");
            }
            match (send.alpha, send.beta, deliver.alpha, deliver.beta) {
                (Some(first), Some(tx), Some(second), Some(rx)) => {
                    Ok(Path { alpha: first + second, beta: tx.max(rx), send: tx, deliver: rx })
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
    path: Path,
}

/// The resources of a part's ports within one machine's block: `[tx, rx]` for each port.
type Slots = Vec<[Option<usize>; 2]>;

impl Carrier<'_> {
    /// The pairs it joins; a checked part has exactly one kind.
    fn pairs(&self) -> Option<&Pairs> {
        self.part.inside.as_ref().or(self.part.between.as_ref())
    }

    fn link_count(&self, ranks: u32, machines: u64) -> u128 {
        let members = match &self.part.ports {
            Ports::None | Ports::Each => u128::from(ranks),
            Ports::Groups(groups) => groups.iter().map(|group| group.len() as u128).sum(),
        };
        let inside = self.part.inside.is_some();
        let pairs = match self.pairs() {
            None => 0,
            Some(Pairs::All) if inside => members * members.saturating_sub(1),
            Some(Pairs::All) => members * members,
            Some(Pairs::These(pairs)) => pairs.iter().map(|pair| 1 + u128::from(pair.way == Way::Both)).sum(),
        };
        let machines = u128::from(machines);
        pairs * machines * if inside { 1 } else { machines - 1 }
    }

    /// The ordered pairs of local ranks.
    fn local_pairs(&self, ranks: usize, port_of: &[Option<usize>]) -> Vec<(usize, usize)> {
        let ported = |rank: &usize| matches!(self.part.ports, Ports::None) || port_of[*rank].is_some();
        let inside = self.part.inside.is_some();
        match self.pairs() {
            None => Vec::new(),
            Some(Pairs::All) => {
                let members: Vec<usize> = (0..ranks).filter(ported).collect();
                let all = members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to)));
                all.filter(|(from, to)| !inside || from != to).collect()
            }
            Some(Pairs::These(pairs)) => pairs
                .iter()
                .flat_map(|pair| {
                    let (from, to) = (pair.from as usize, pair.to as usize);
                    let back = (pair.way == Way::Both && from != to).then_some((to, from));
                    std::iter::once((from, to)).chain(back)
                })
                .collect(),
        }
    }

    fn port_of(&self, ranks: usize) -> Vec<Option<usize>> {
        match &self.part.ports {
            Ports::None => vec![None; ranks],
            Ports::Each => (0..ranks).map(Some).collect(),
            Ports::Groups(groups) => {
                let mut port_of = vec![None; ranks];
                for (port, group) in groups.iter().enumerate() {
                    group.iter().for_each(|rank| port_of[*rank as usize] = Some(port));
                }
                port_of
            }
        }
    }
}

/// How many of what, and the one latency of all links.
struct Layout {
    ranks: usize,
    machines: usize,
    latency: Latency,
}

impl Layout {
    fn build(&self, carriers: &[Carrier<'_>]) -> TopologyParts {
        let mut links = Vec::new();
        let mut block: Vec<(String, MicrosPerByte)> = Vec::new();
        let mut shares = Vec::new();
        for carrier in carriers {
            let port_of = carrier.port_of(self.ranks);
            let pairs = carrier.local_pairs(self.ranks, &port_of);
            let slots = self.ports(carrier, &pairs, &port_of, &mut block);
            shares.push((carrier, port_of, pairs, slots));
        }
        for (carrier, port_of, pairs, slots) in &shares {
            let slot = |rank: usize, side: usize| port_of[rank].and_then(|port| slots[port][side]);
            for (sender, receiver) in self.machine_pairs(carrier) {
                for &(from, to) in pairs {
                    let tx = slot(from, 0).map(|slot| sender * block.len() + slot);
                    let rx = slot(to, 1).map(|slot| receiver * block.len() + slot);
                    links.push(Link {
                        from: Rank::from_index(sender * self.ranks + from),
                        to: Rank::from_index(receiver * self.ranks + to),
                        alpha: carrier.path.alpha,
                        beta: carrier.path.beta,
                        latency: self.latency,
                        resources: tx.into_iter().chain(rx).map(ResourceId::from_index).collect(),
                    });
                }
            }
        }
        links.sort_by_key(|link| (link.from, link.to));
        let resource = |machine: usize| {
            block.iter().map(move |(name, beta)| Resource { name: format!("machine{machine}.{name}"), beta: *beta })
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

    /// Appends the used ports of a part to one machine's block of resources.
    fn ports(
        &self,
        carrier: &Carrier<'_>,
        pairs: &[(usize, usize)],
        port_of: &[Option<usize>],
        block: &mut Vec<(String, MicrosPerByte)>,
    ) -> Slots {
        let ports = port_of.iter().flatten().max().map_or(0, |port| port + 1);
        let mut used = vec![[false; 2]; ports];
        for (from, to) in pairs {
            for (rank, side) in [(from, 0), (to, 1)] {
                if let Some(port) = port_of[*rank] {
                    used[port][side] = true;
                }
            }
        }
        let mut slots = vec![[None; 2]; ports];
        for (port, used) in used.iter().enumerate() {
            for (side, (suffix, beta)) in
                [("tx", carrier.path.send), ("rx", carrier.path.deliver)].into_iter().enumerate()
            {
                if used[side] {
                    slots[port][side] = Some(block.len());
                    block.push((format!("{}{port}.{suffix}", carrier.name), beta));
                }
            }
        }
        slots
    }

    /// The (sending, receiving) machines of a part's links.
    fn machine_pairs(&self, carrier: &Carrier<'_>) -> Vec<(usize, usize)> {
        if carrier.part.inside.is_some() {
            return (0..self.machines).map(|machine| (machine, machine)).collect();
        }
        let others = |from: usize| (0..self.machines).filter(move |to| *to != from).map(move |to| (from, to));
        (0..self.machines).flat_map(others).collect()
    }
}
