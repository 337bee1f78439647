//! Built-in machines, and machines that users describe: always data, never code.
//!
//! The principal function is [`parse`], which reads and checks an `antiphon-machine/1` file. [`BUILT_IN`] holds the
//! files of `machines/`, which are part of the binary. A new machine is a file in `machines/`.

mod compile;
pub(crate) mod file;

use crate::document::PathSegment::{Index, Key};
use crate::document::{Document, TextError};
use crate::spec::{Spec, bad_part};
use crate::spelling::shorten;
use crate::{MAX_RANKS, TopologyParts, TopologyResult};
pub(crate) use file::FORMAT;
use file::{CostOverrides, MachineFile, OrderedEntries, PairDirection, PairsAsWritten, Part, Ports, RanksAsWritten};
use std::collections::BTreeSet;

/// The files of `machines/`: path and text, as `build.rs` found them. The file itself names its machine.
pub(crate) const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/machines.rs"));

/// The key with which a SPEC says how many machines there are.
const MACHINES: &str = "machines";

/// A checked description of one kind of machine.
pub(crate) struct MachineDescription<'a> {
    document: Document<'a>,
    file: MachineFile,
}

/// Reads and checks a physical description.
pub(crate) fn parse(document: Document<'_>) -> Result<MachineDescription<'_>, TextError> {
    let file: MachineFile = document.parse()?;
    check_file(&document, &file)?;
    Ok(MachineDescription { document, file })
}

impl MachineDescription<'_> {
    /// What SPECs call it.
    pub(crate) fn name(&self) -> &str {
        &self.file.name
    }

    /// One line for people.
    pub(crate) fn about(&self) -> &str {
        &self.file.about
    }

    /// Where its numbers come from.
    pub(crate) fn source(&self) -> &str {
        self.file.source.trim_end()
    }

    /// Whether several can be joined.
    pub(crate) fn can_be_joined(&self) -> bool {
        self.file.most_machines != Some(1)
    }

    /// For each part with lists of ports, the ranks that are in none of them, in words.
    pub(crate) fn ranks_without_ports(&self) -> Vec<String> {
        let of = |(name, part): &(String, Part)| {
            let Ports::Groups(groups) = &part.ports else { return None };
            let with: BTreeSet<u32> = groups.iter().flat_map(RanksAsWritten::iter).collect();
            let without = (0..self.file.ranks).filter(|rank| !with.contains(rank)).map(|rank| rank.to_string());
            let without = without.collect::<Vec<_>>().join(",");
            let is_partial = !with.is_empty() && !without.is_empty();
            is_partial.then(|| format!("part {}: no port at rank {}", shorten(name), shorten(&without)))
        };
        self.file.parts.0.iter().filter_map(of).collect()
    }

    /// Each key with the values it takes, the default first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.file.keys.0.iter().map(|(key, values)| (key.as_str(), values.names().collect()))
    }

    /// The parts of this many machines (`None`: as many as the SPEC says, else one).
    pub(crate) fn build(&self, machines: Option<u64>, spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
        let mut keys: Vec<&str> = self.file.keys.names().collect();
        if machines.is_none() {
            keys.push(MACHINES);
        }
        spec.accept_keys(&keys)?;
        if let Some(params) = spec.params {
            let reason = "a machine takes no parameters; how many are joined is said by `xN` after a known name, or by `machines=N`";
            return Err(bad_part(format!("`:{}`", shorten(params)), reason));
        }
        let machines = match (machines, spec.get(MACHINES)) {
            (Some(machines), _) => machines,
            (None, Some(text)) => spec.number(MACHINES, text)?,
            (None, None) => 1,
        };
        compile::compile(&self.file, &self.document, machines, spec)
    }
}

fn check_file(document: &Document<'_>, file: &MachineFile) -> Result<(), TextError> {
    if file.format != FORMAT {
        let reason = format!("`format` is `{}`, expected `{FORMAT}`", file.format);
        return Err(document.fault(&[Key("format")], reason));
    }
    if file.ranks == 0 {
        return Err(document.fault(&[Key("ranks")], "a machine has at least one rank"));
    }
    if file.ranks as usize > MAX_RANKS {
        let reason = format!("ranks: {} is more than the {MAX_RANKS} that are supported", file.ranks);
        return Err(document.fault(&[Key("ranks")], reason));
    }
    for (name, part) in &file.parts.0 {
        check_part(document, file.ranks, name, part)?;
    }
    for (key, values) in &file.keys.0 {
        if key == MACHINES || values.0.is_empty() {
            let reason = format!("`{key}` must have a value, and be another word than `{MACHINES}`");
            return Err(document.fault(&[Key("keys"), Key(key)], reason));
        }
        check_choices(document, &file.parts, key, values)?;
    }
    Ok(())
}

fn check_part(document: &Document<'_>, ranks: u32, name: &str, part: &Part) -> Result<(), TextError> {
    let (scope, pairs) = match (&part.inside, &part.between) {
        (Some(pairs), None) => ("inside", pairs),
        (None, Some(pairs)) => ("between", pairs),
        _ => {
            let reason = "a part lies either `inside` each machine or `between` machines";
            return Err(document.fault(&[Key("parts"), Key(name)], reason));
        }
    };
    let no_rank = |rank: u32| format!("there is no rank {rank}; a machine has the ranks 0..{ranks}");
    let mut has_port = None;
    if let Ports::Groups(groups) = &part.ports {
        has_port = Some(check_groups(document, ranks, name, "ports", groups)?);
    }
    check_groups(document, ranks, name, "uplinks", &part.uplinks)?;
    if let Some(among) = &part.among {
        check_groups(document, ranks, name, "among", among)?;
        if !matches!(pairs, PairsAsWritten::All) {
            let reason = format!("`among` says which of all pairs there are; it goes with `{scope}: all`");
            return Err(document.fault(&[Key("parts"), Key(name), Key("among")], reason));
        }
    }
    let pairs = match pairs {
        PairsAsWritten::These(pairs) => pairs,
        PairsAsWritten::Same if scope == "inside" => {
            let reason = "`same` joins equal ranks of different machines; inside one there are none";
            return Err(document.fault(&[Key("parts"), Key(name), Key(scope)], reason));
        }
        PairsAsWritten::All | PairsAsWritten::Same => return Ok(()),
    };
    for (index, pair) in pairs.iter().enumerate() {
        let at = |reason: String| Err(document.fault(&[Key("parts"), Key(name), Key(scope), Index(index)], reason));
        for rank in [pair.from, pair.to] {
            if rank >= ranks {
                return at(no_rank(rank));
            }
            if has_port.as_ref().is_some_and(|has_port| has_port.binary_search(&rank).is_err()) {
                return at(format!("rank {rank} has no port in `{name}`"));
            }
        }
        if pair.from == pair.to && (scope == "inside" || pair.way == PairDirection::Both) {
            return at("a rank needs no link to itself; between machines, write `0>0` for equal local ranks".to_owned());
        }
    }
    Ok(())
}

/// Refuses groups that name a rank twice, or one that does not exist; returns all their ranks, sorted.
fn check_groups(
    document: &Document<'_>,
    ranks: u32,
    part: &str,
    key: &str,
    groups: &[RanksAsWritten],
) -> Result<Vec<u32>, TextError> {
    let mut all = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let path = [Key("parts"), Key(part), Key(key), Index(index)];
        if let Some(rank) = group.iter().find(|rank| *rank >= ranks) {
            let reason = format!("there is no rank {rank}; a machine has the ranks 0..{ranks}");
            return Err(document.fault(&path, reason));
        }
        // One more rank than there are is enough to find a repetition.
        all.extend(group.iter().take(ranks as usize + 1 - all.len().min(ranks as usize)));
    }
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        let reason = match key {
            "ports" => format!("rank {} has two ports; it can have one in each part", twice[0]),
            _ => format!("rank {} is in two groups of `{key}`", twice[0]),
        };
        return Err(document.fault(&[Key("parts"), Key(part), Key(key)], reason));
    }
    Ok(all)
}

fn check_choices(
    document: &Document<'_>,
    parts: &OrderedEntries<Part>,
    key: &str,
    values: &OrderedEntries<CostOverrides>,
) -> Result<(), TextError> {
    for (value, choice) in &values.0 {
        if let Some(unknown) = choice.parts.names().find(|name| parts.get(name).is_none()) {
            let path = [Key("keys"), Key(key), Key(value), Key("parts"), Key(unknown)];
            let known: Vec<&str> = parts.names().collect();
            return Err(document.fault(&path, format!("there is no part `{unknown}`; known are {}", known.join(", "))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, Link, Topology, TopologyError, resolve};
    use Latency::{Occupies, Pipelines};
    use std::collections::BTreeMap;

    fn get(spec: &str) -> Topology {
        resolve(spec).unwrap_or_else(|error| panic!("{error}"))
    }

    fn only(topology: &Topology, from: u32, to: u32) -> Option<&Link> {
        let mut links = topology.links().iter().filter(|link| (link.from.0, link.to.0) == (from, to));
        let link = links.next();
        assert!(links.next().is_none(), "{}: several links {from}→{to}", topology.name());
        link
    }

    fn names<'t>(topology: &'t Topology, link: &Link) -> Vec<&'t str> {
        link.resources.iter().map(|id| topology.resource(*id).name.as_str()).collect()
    }

    /// What a link must be: its ends, α in µs, β in µs per byte, latency and the names of its resources.
    struct Expected {
        from: u32,
        to: u32,
        alpha: f64,
        beta: f64,
        latency: Latency,
        resources: &'static [&'static str],
    }

    const fn at(
        from: u32,
        to: u32,
        alpha: f64,
        beta: f64,
        latency: Latency,
        resources: &'static [&'static str],
    ) -> Expected {
        Expected { from, to, alpha, beta, latency, resources }
    }

    /// A published instance in numbers written independently of the machine files: how many ranks, links and
    /// resources it has, some of its links, and pairs that have none.
    struct Published {
        spec: &'static str,
        counts: [usize; 3],
        links: &'static [Expected],
        absent: &'static [(u32, u32)],
    }

    const PUBLISHED: &[Published] = &[
        Published {
            spec: "dgx1",
            counts: [8, 32, 0],
            links: &[
                at(0, 1, 0.7, 2e-5, Occupies, &[]),
                at(7, 6, 0.7, 2e-5, Occupies, &[]),
                at(5, 6, 0.7, 4e-5, Occupies, &[]),
            ],
            absent: &[(0, 5), (3, 4), (1, 6)],
        },
        Published {
            spec: "ndv2",
            counts: [8, 32, 0],
            links: &[at(0, 4, 0.7, 2e-5, Pipelines, &[]), at(2, 0, 0.7, 4e-5, Pipelines, &[])],
            absent: &[(0, 6)],
        },
        Published {
            spec: "ndv2x2",
            counts: [16, 66, 0],
            links: &[
                at(0, 9, 1.3, 8e-5, Pipelines, &[]),
                at(8, 1, 1.3, 8e-5, Pipelines, &[]),
                at(9, 11, 0.7, 2e-5, Pipelines, &[]),
            ],
            absent: &[(9, 0), (1, 8), (0, 8), (1, 9)],
        },
        Published {
            spec: "ndv2x4,costs=te-ccl",
            counts: [32, 140, 8],
            links: &[
                at(0, 9, 2.6, 8e-5, Pipelines, &["machine0.fabric0.tx", "machine1.fabric1.rx"]),
                at(24, 1, 2.6, 8e-5, Pipelines, &["machine3.fabric0.tx", "machine0.fabric1.rx"]),
            ],
            absent: &[(0, 8), (9, 0), (1, 8)],
        },
        Published {
            spec: "ndv2x3,legs=instant",
            counts: [24, 102, 6],
            links: &[at(16, 9, 1.3, 8e-5, Pipelines, &["machine2.fabric0.tx", "machine1.fabric1.rx"])],
            absent: &[(17, 8)],
        },
        Published {
            spec: "ndv2x1,costs=taccl-1mb",
            counts: [8, 32, 0],
            links: &[at(0, 1, 0.0, 23e-6, Occupies, &[]), at(0, 2, 0.0, 46e-6, Occupies, &[])],
            absent: &[],
        },
        Published {
            spec: "ndv2x2,costs=taccl-1mb",
            counts: [16, 192, 4],
            links: &[
                at(0, 1, 0.0, 23e-6, Occupies, &[]),
                at(3, 8, 2.6, 105e-6, Occupies, &["machine0.nic0.tx", "machine1.nic0.rx"]),
                at(15, 7, 2.6, 105e-6, Occupies, &["machine1.nic0.tx", "machine0.nic0.rx"]),
            ],
            absent: &[],
        },
        Published {
            spec: "ndv2x2,costs=taccl-32kb",
            counts: [16, 192, 4],
            links: &[
                at(0, 1, 0.3, 0.7 / 32_000.0, Occupies, &[]),
                at(5, 6, 0.3, 1.4 / 32_000.0, Occupies, &[]),
                at(0, 8, 2.6, 3.28 / 32_000.0, Occupies, &["machine0.nic0.tx", "machine1.nic0.rx"]),
            ],
            absent: &[],
        },
        Published {
            spec: "ndv2x4,costs=taccl-1kb",
            counts: [32, 4 * 32 + 12 * 64, 8],
            links: &[
                at(0, 1, 0.3, 0.02e-3, Occupies, &[]),
                at(5, 6, 0.3, 0.04e-3, Occupies, &[]),
                at(31, 8, 2.6, 0.1025e-3, Occupies, &["machine3.nic0.tx", "machine1.nic0.rx"]),
            ],
            absent: &[],
        },
        Published {
            spec: "dgx2x1",
            counts: [16, 240, 32],
            links: &[at(0, 15, 0.7, 8e-6, Pipelines, &["machine0.nvswitch0.tx", "machine0.nvswitch15.rx"])],
            absent: &[],
        },
        Published {
            spec: "dgx2x2",
            counts: [32, 496, 64],
            links: &[
                at(17, 30, 0.7, 8e-6, Pipelines, &["machine1.nvswitch1.tx", "machine1.nvswitch14.rx"]),
                at(1, 16, 2.6, 8e-5, Pipelines, &[]),
                at(31, 14, 2.6, 8e-5, Pipelines, &[]),
            ],
            absent: &[(0, 17), (1, 17), (1, 18)],
        },
        Published {
            spec: "dgx2x2,costs=taccl-1mb",
            counts: [32, 480 + 512, 64 + 32],
            links: &[
                at(0, 1, 0.0, 8e-6, Occupies, &["machine0.nvswitch0.tx", "machine0.nvswitch1.rx"]),
                at(3, 22, 2.6, 105e-6, Occupies, &["machine0.nic1.tx", "machine1.nic3.rx"]),
            ],
            absent: &[],
        },
        Published {
            spec: "dgx-a100x2",
            counts: [16, 2 * 56 + 2 * 2 * 16, 16 * 4],
            links: &[
                at(0, 7, 0.7, 1e-3 / 300.0, Occupies, &["machine0.nvswitch0.tx", "machine0.nvswitch7.rx"]),
                at(1, 15, 2.6, 4e-5, Occupies, &["machine0.network1.tx", "machine1.network7.rx"]),
                at(14, 0, 2.6, 4e-5, Occupies, &["machine1.network6.tx", "machine0.network0.rx"]),
            ],
            absent: &[(0, 9), (1, 8), (15, 0)],
        },
        Published {
            spec: "dgx-a100x1",
            counts: [8, 56, 16],
            links: &[at(7, 0, 0.7, 1e-3 / 300.0, Occupies, &["machine0.nvswitch7.tx", "machine0.nvswitch0.rx"])],
            absent: &[],
        },
        Published {
            spec: "dgx-h100x4",
            counts: [32, 4 * 56 + 12 * 64, 32 * 4],
            links: &[
                at(8, 9, 0.7, 1e-3 / 450.0, Occupies, &["machine1.nvswitch0.tx", "machine1.nvswitch1.rx"]),
                at(0, 31, 2.6, 2e-5, Occupies, &["machine0.network0.tx", "machine3.network7.rx"]),
            ],
            absent: &[],
        },
        Published {
            spec: "mi250x2",
            counts: [32, 2 * 2 * (8 + 4 + 16) + 2 * 256, 64],
            links: &[
                at(0, 1, 0.7, 5e-6, Occupies, &[]),
                at(27, 31, 0.7, 1e-5, Occupies, &[]),
                at(10, 2, 0.7, 2e-5, Occupies, &[]),
                at(3, 30, 2.6, 6.25e-5, Occupies, &["machine0.network3.tx", "machine1.network14.rx"]),
            ],
            absent: &[(0, 2), (0, 15), (3, 8)],
        },
        Published {
            spec: "h800x64",
            counts: [512, 64 * 56 + 64 * 63 * 8, 512 * 4],
            links: &[
                at(0, 7, 3.0, 1e-3 / 150.0, Pipelines, &["machine0.nvswitch0.tx", "machine0.nvswitch7.rx"]),
                at(3, 507, 10.0, 1e-3 / 45.5, Pipelines, &["machine0.rail3.tx", "machine63.rail3.rx"]),
            ],
            absent: &[(0, 9), (511, 0)],
        },
        Published {
            spec: "h800x2,costs=large",
            counts: [16, 2 * 56 + 16, 16 * 4],
            links: &[
                at(0, 7, 10.5, 1e-3 / 150.0, Pipelines, &["machine0.nvswitch0.tx", "machine0.nvswitch7.rx"]),
                at(3, 11, 21.5, 1e-3 / 45.5, Pipelines, &["machine0.rail3.tx", "machine1.rail3.rx"]),
            ],
            absent: &[(0, 9)],
        },
        Published {
            spec: "gb200x2",
            counts: [144, 2 * 72 * 71 + 2 * 4 * 18 * 18, 144 * 4],
            links: &[
                at(0, 71, 0.7, 1e-3 / 900.0, Occupies, &["machine0.nvswitch0.tx", "machine0.nvswitch71.rx"]),
                at(1, 72 + 69, 2.6, 2e-5, Occupies, &["machine0.rail1.tx", "machine1.rail69.rx"]),
            ],
            absent: &[(0, 73), (72, 1)],
        },
        Published {
            spec: "dgx2x3,costs=taccl-1kb",
            counts: [48, 3 * 240 + 6 * 256, 96 + 48],
            links: &[
                at(0, 1, 0.3, 0.01e-3, Occupies, &["machine0.nvswitch0.tx", "machine0.nvswitch1.rx"]),
                at(47, 0, 2.6, 0.1025e-3, Occupies, &["machine2.nic7.tx", "machine0.nic0.rx"]),
            ],
            absent: &[],
        },
    ];

    #[test]
    fn built_in_machines_are_the_published_instances() {
        for published in PUBLISHED {
            let spec = published.spec;
            let topology = get(spec);
            let counts = [topology.rank_count(), topology.links().len(), topology.resources().len()];
            assert_eq!(counts, published.counts, "{spec}");
            assert_eq!(topology.name(), spec);
            for Expected { from, to, alpha, beta, latency, resources } in published.links {
                let link = only(&topology, *from, *to).unwrap_or_else(|| panic!("{spec}: no link {from}→{to}"));
                assert_eq!((link.alpha.0, link.latency), (*alpha, *latency), "{spec} {from}→{to}");
                assert!((link.beta.0 / beta - 1.0).abs() < 1e-15, "{spec} {from}→{to}: {} not {beta}", link.beta);
                assert_eq!(names(&topology, link), *resources, "{spec} {from}→{to}");
                for id in &link.resources {
                    assert_eq!(topology.resource(*id).beta, link.beta, "{spec} {from}→{to}");
                }
            }
            for (from, to) in published.absent {
                assert!(only(&topology, *from, *to).is_none(), "{spec}: link {from}→{to}");
            }
        }
    }

    #[test]
    fn every_rank_of_the_cube_mesh_has_six_cables() {
        for spec in ["dgx1", "ndv2x1", "ndv2x1,costs=taccl-1kb"] {
            let topology = get(spec);
            let slowest = topology.links().iter().map(|link| link.beta.0).fold(0.0, f64::max);
            for rank in topology.ranks() {
                let units: f64 = topology.outgoing(rank).iter().map(|id| slowest / topology.link(*id).beta.0).sum();
                assert!((units - 6.0).abs() < 1e-9, "{spec}: rank {rank} has {units}");
                assert_eq!(topology.incoming(rank).len(), 4);
            }
        }
    }

    #[test]
    fn taccl_machines_hold_every_pair_across_machines() {
        for (spec, local) in [("ndv2x3,costs=taccl-1mb", 8), ("dgx2x2,costs=taccl-1mb", 16)] {
            let topology = get(spec);
            let mut seen: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            for link in topology.links().iter().filter(|link| topology.crosses_machines(link)) {
                *seen.entry((link.from.0, link.to.0)).or_default() += 1;
                assert_eq!(link.resources.len(), 2);
            }
            let machines = topology.machines().len();
            assert_eq!(seen.len(), machines * (machines - 1) * local * local, "{spec}");
            assert!(seen.values().all(|count| *count == 1));
        }
    }

    #[test]
    fn links_are_sorted_and_specs_agree() {
        for spec in ["ndv2x4", "dgx2x2,costs=taccl-1kb", "dgx2x3"] {
            let topology = get(spec);
            assert!(topology.links().is_sorted_by_key(|link| (link.from, link.to)), "{spec}");
        }
        for (one, other) in [
            ("ndv2", "ndv2x1"),
            ("ndv2x2", "ndv2x2,costs=te-ccl,legs=timed"),
            ("ndv2x2", "ndv2,machines=2"),
            ("ndv2x2", "ndv2x2,legs=instant"),
        ] {
            assert_eq!(get(one).digest(), get(other).digest(), "{one} {other}");
        }
    }

    #[test]
    fn refuses_what_a_machine_does_not_offer() {
        for (spec, fragment) in [
            ("dgx1x2", "machines: 2 is more than the 1"),
            ("ndv2x0", "`0` is no number from 1"),
            ("ndv2x4,costs=taccl", "accepted: te-ccl, taccl-1mb, taccl-32kb, taccl-1kb"),
            ("ndv2x4,cost=te-ccl", "did you mean `costs`?"),
            ("ndv2x4,costs=taccl-1mb,legs=instant", "which the other choices leave out"),
            ("ndv2x1000000000", "ranks: 8000000000 is more than"),
            ("ndv2x2,machines=2", "unknown key `machines`"),
            ("ndv3x2", "did you mean `ndv2xN`?"),
            ("ndv2:2", "takes no parameters"),
        ] {
            let error = resolve(spec).expect_err(spec).to_string();
            assert!(error.contains(fragment) && error.contains(spec), "{error}");
        }
    }

    const GOOD: &str = "format: antiphon-machine/1
name: box
about: three ranks
source: made up
ranks: 3
parts:
  wire: {inside: [0-1, 1>2]}
  uplink: {between: [0>0], ports: [[0], [1, 2]]}
keys:
  costs:
    plain:
      parts:
        wire: {alpha: 1us, bandwidth: 1GBps}
        uplink: {send: {alpha: 1us, bandwidth: 1GBps}, deliver: {alpha: 2us, bandwidth: 2GBps}}
";

    fn user_machine(from: &str, to: &str) -> Result<Topology, TopologyError> {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let machine = parse(Document::yaml("box.yaml", &text))?;
        Topology::new(machine.build(Some(2), &Spec::parse("box", None)?)?)
    }

    #[test]
    fn compiles_legs_into_one_link() {
        let topology = user_machine("wire", "wire").expect("it is good");
        let link = only(&topology, 0, 3).expect("an uplink");
        assert_eq!((link.alpha.0, link.beta.0), (3.0, 1e-3));
        let betas: Vec<f64> = link.resources.iter().map(|id| topology.resource(*id).beta.0).collect();
        assert_eq!(betas, [1e-3, 5e-4]);
        assert_eq!(topology.links().len(), 2 * 3 + 2);
    }

    #[test]
    fn uplinks_are_shared_by_a_group_on_its_way_out() {
        let wires = "wire: {inside: all, ports: each, uplinks: [[0, 1], [2]]}";
        let topology = {
            let text = GOOD.replace("wire: {inside: [0-1, 1>2]}", wires).replacen(
                "wire: {alpha: 1us, bandwidth: 1GBps}",
                "wire: {alpha: 1us, bandwidth: 1GBps, uplink: {alpha: 0.5us, bandwidth: 0.25GBps}}",
                1,
            );
            let machine = parse(Document::yaml("box.yaml", &text)).unwrap();
            Topology::new(machine.build(Some(1), &Spec::parse("box", None).unwrap()).unwrap()).unwrap()
        };
        let near = only(&topology, 0, 1).unwrap();
        assert_eq!((near.alpha.0, near.beta.0), (1.0, 1e-3));
        assert_eq!(names(&topology, near), ["machine0.wire0.tx", "machine0.wire1.rx"]);
        let far = only(&topology, 1, 2).unwrap();
        assert_eq!((far.alpha.0, far.beta.0), (2.0, 4e-3));
        let through =
            ["machine0.wire1.tx", "machine0.wire.uplink0.tx", "machine0.wire.uplink1.rx", "machine0.wire2.rx"];
        assert_eq!(names(&topology, far), through);
        assert!(
            topology.resources().iter().filter(|shared| shared.name.contains("uplink")).all(|up| up.beta.0 == 4e-3)
        );
    }

    #[test]
    fn faults_in_machine_files_have_a_place() {
        for (from, to, place, fragment) in [
            ("antiphon-machine/1", "antiphon-machine/2", "box.yaml:1:", "expected `antiphon-machine/1`"),
            ("ranks: 3", "ranks: 0", "box.yaml:5:", "at least one rank"),
            ("ranks: 3", "ranks: -3", "box.yaml:5:", ""),
            ("ranks: 3", "ranks: 1000000", "box.yaml:5:", "more than the 131072"),
            ("[1, 2]", "[0-4000000000]", "box.yaml:8:", "there is no rank 3"),
            ("[1, 2]", "[1, 1-2, 1-2, 1-2]", "box.yaml:8:", "rank 1 has two ports"),
            ("[1, 2]", "[2-1]", "box.yaml:8:", "`0-7` (0 to 7)"),
            ("[1, 2]", "[1-2/0]", "box.yaml:8:", "`0-7/2` (every second)"),
            ("[[0], [1, 2]]", "each, among: [[0], [1]]", "box.yaml:8:", "goes with `between: all`"),
            ("[0-1, 1>2]", "same", "box.yaml:7:", "inside one there are none"),
            ("[0-1, 1>2]", "all, among: [[0, 1], [1, 2]]", "box.yaml:7:", "rank 1 is in two groups of `among`"),
            ("[0-1, 1>2]", "all, uplinks: [[0, 1], [2]]", "box.yaml:7:", "its cost needs `uplink"),
            ("GBps}\n        up", "GBps, uplink: {bandwidth: 1GBps}}\n        up", "box.yaml:7:", "has no `uplinks`"),
            ("ranks: 3", "ranks: 3\nranks: 3", "box.yaml:6:", "duplicate"),
            ("ranks: 3", "ranks: 3\nrank: 3", "box.yaml:6:", "rank"),
            ("1>2", "1>9", "box.yaml:7:", "there is no rank 9"),
            ("1>2", "2>2", "box.yaml:7:", "no link to itself"),
            ("1>2", "1=2", "box.yaml:7:", "no pair of ranks"),
            ("[1, 2]", "[0, 2]", "box.yaml:8:", "rank 0 has two ports"),
            ("[[0], [1, 2]]", "every", "box.yaml:8:", "each"),
            ("[[0], [1, 2]]", "[[1]]", "box.yaml:8:", "rank 0 has no port"),
            ("between: [0>0], ", "", "box.yaml:8:", "inside"),
            ("bandwidth: 1GBps", "bandwidth: 1gbps", "box.yaml:13:", "did you mean `GBps` or `Gbps`?"),
            ("bandwidth: 1GBps", "bandwidth: -1GBps", "box.yaml:13:", "≥ 0"),
            ("alpha: 1us", "alpha: .nan", "box.yaml:13:", "≥ 0"),
            ("alpha: 1us, ", "", "box.yaml:7:", "needs `alpha`"),
            ("        wire:", "        wires:", "box.yaml:13:", "there is no part `wires`"),
        ] {
            let error = user_machine(from, to).expect_err(to).to_string();
            assert!(error.starts_with(place) && error.contains(fragment), "{to}: {error}");
        }
    }
}
