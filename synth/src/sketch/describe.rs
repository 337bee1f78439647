//! What a sketch means on a topology, as text and as JSON: the output of `sketch check`.
//!
//! The principal function is [`describe`]. It names for each restriction the line of the sketch that causes it.

use super::body::SizeRange;
use super::resolve::Sketch;
use crate::problem::{ConnectionPolicy, ConnectionWish, Constraints, Objective};
use schedule::RankSet;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use topology::{LinkId, Rank, Topology, counted, shorten};

/// The most links shown per line of the sketch; their number is shown as well.
const EXAMPLES: usize = 8;

/// What a sketch allows, forbids and pins on one topology.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SketchSummary {
    /// The sketch's name.
    pub sketch: String,
    /// Why the sketch exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The topology's name.
    pub topology: String,
    /// Its ranks.
    pub ranks: usize,
    /// Its machines.
    pub machines: usize,
    /// Its links.
    pub links: usize,
    /// How many of them may be used.
    pub allowed_links: usize,
    /// What each line forbids, by line.
    pub forbidden: Vec<Restriction>,
    /// What each line reserves for the chunks of some ranks, by line.
    pub reserved: Vec<Restriction>,
    /// The most links between machines that a chunk may cross.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_machine_hops: Option<u32>,
    /// Whether a sender's own chunks leave its machine before those that it relays.
    pub own_chunks_first: bool,
    /// How many symmetries were given or found.
    pub symmetries: usize,
    /// The orbits of ranks under the symmetries; empty without symmetries.
    pub orbits: Vec<Vec<Rank>>,
    /// Chunks per rank, if pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks_per_rank: Option<u32>,
    /// The sizes it is meant for, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<SizeRange>,
    /// The strategy, if pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<&'static str>,
    /// The time limit, if pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_seconds: Option<f64>,
    /// The objective, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// The preferences on switches, by line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<WishedConnections>,
    /// In which stages links may be used, first stage first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageSummary>,
    /// The physical rank of every rank of the sketch, where they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<Rank>,
}

/// What one line of a sketch wishes for connections.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WishedConnections {
    /// The line, from 1.
    pub line: u32,
    /// Few or many.
    pub wish: ConnectionPolicy,
    /// Over how many switches.
    pub switches: usize,
    /// With how many links in all.
    pub links: usize,
}

/// The links of one stage.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageSummary {
    /// How many links may be used in it.
    pub links: usize,
    /// How many of them lead to another machine.
    pub between_machines: usize,
}

/// What one line of a sketch forbids or reserves.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Restriction {
    /// The line, from 1.
    pub line: u32,
    /// The number of links.
    pub links: usize,
    /// The first few of them, as (sender, receiver).
    pub examples: Vec<(Rank, Rank)>,
    /// The ranks whose chunks may still use them; absent where no chunk may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_chunks_of: Option<RankSet>,
}

/// Describes what `sketch` means on the topology for which it was resolved.
pub fn describe(sketch: &Sketch, topology: &Topology) -> SketchSummary {
    let constraints = &sketch.constraints;
    let mut forbidden = BTreeMap::new();
    let mut reserved = BTreeMap::new();
    for id in topology.link_ids() {
        if let Some(line) = constraints.forbidden.get(id.index()).copied().flatten() {
            note(forbidden.entry(line), line, None, topology, id);
        } else if let Some(Some((owners, line))) = constraints.owners.get(id.index()) {
            // One line may hold the rules of two senders.
            let entry = reserved.entry((*line, owners.clone()));
            note(entry, *line, Some(owners.clone()), topology, id);
        }
    }
    let allowed_links = topology.link_ids().filter(|&id| constraints.allows_link(id)).count();
    let pins = &sketch.pins;
    SketchSummary {
        sketch: sketch.name.clone(),
        why: sketch.why.clone(),
        topology: topology.name().to_owned(),
        ranks: topology.rank_count(),
        machines: topology.machines().len(),
        links: topology.links().len(),
        allowed_links,
        forbidden: forbidden.into_values().collect(),
        reserved: reserved.into_values().collect(),
        max_machine_hops: constraints.max_machine_hops.map(|(hops, _)| hops),
        own_chunks_first: constraints.own_chunks_first.is_some(),
        symmetries: constraints.symmetry.len(),
        orbits: orbits(sketch, topology),
        chunks_per_rank: pins.chunks_per_rank,
        sizes: (pins.sizes != SizeRange::ANY).then_some(pins.sizes),
        strategy: pins.strategy.map(|strategy| strategy.as_str()),
        time_limit_seconds: pins.time_limit.map(|limit| limit.as_secs_f64()),
        objective: constraints.objective,
        connections: wished_connections(constraints),
        stages: stages(constraints, topology),
        placement: constraints.placement.clone(),
    }
}

/// One entry per line.
fn wished_connections(constraints: &Constraints) -> Vec<WishedConnections> {
    let by_line = constraints.connections.chunk_by(|a, b| a.line == b.line);
    let sum = |wishes: &[ConnectionWish]| WishedConnections {
        line: wishes[0].line,
        wish: wishes[0].wish,
        switches: wishes.len(),
        links: wishes.iter().map(|wish| wish.links.len()).sum(),
    };
    by_line.map(sum).collect()
}

fn stages(constraints: &Constraints, topology: &Topology) -> Vec<StageSummary> {
    let Some(stages) = &constraints.stages else { return Vec::new() };
    let stage = |stage: u8| {
        let is_usable = |id: &LinkId| stages.of_link[id.index()] >> stage & 1 == 1 && constraints.allows_link(*id);
        let usable = || topology.link_ids().filter(is_usable);
        let between_machines = usable().filter(|&id| topology.crosses_machines(topology.link(id))).count();
        StageSummary { links: usable().count(), between_machines }
    };
    (0..stages.count).map(stage).collect()
}

fn note<K: Ord>(
    entry: std::collections::btree_map::Entry<'_, K, Restriction>,
    line: u32,
    only_chunks_of: Option<RankSet>,
    topology: &Topology,
    id: LinkId,
) {
    let found = entry.or_insert_with(|| Restriction { line, links: 0, examples: Vec::new(), only_chunks_of });
    found.links += 1;
    if found.examples.len() < EXAMPLES {
        let link = topology.link(id);
        found.examples.push((link.from, link.to));
    }
}

/// The orbits of ranks under the symmetries.
fn orbits(sketch: &Sketch, topology: &Topology) -> Vec<Vec<Rank>> {
    if sketch.constraints.symmetry.is_empty() {
        return Vec::new();
    }
    let mut seen = vec![false; topology.rank_count()];
    let mut orbits = Vec::new();
    for rank in topology.ranks() {
        if std::mem::replace(&mut seen[rank.index()], true) {
            continue;
        }
        // Symmetries are permutations, so following them forward reaches the whole orbit.
        let mut orbit = vec![rank];
        let mut next = 0;
        while next < orbit.len() {
            for symmetry in &sketch.constraints.symmetry {
                let image = symmetry.ranks[orbit[next].index()];
                if !std::mem::replace(&mut seen[image.index()], true) {
                    orbit.push(image);
                }
            }
            next += 1;
        }
        orbit.sort_unstable();
        orbits.push(orbit);
    }
    orbits
}

impl fmt::Display for SketchSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sketch {} on {}", self.sketch, shorten(&self.topology))?;
        if let Some(why) = &self.why {
            writeln!(f, "  {why}")?;
        }
        writeln!(f, "  {} on {}", counted(self.ranks, "rank"), counted(self.machines, "machine"))?;
        writeln!(f, "  {} of {} links may be used", self.allowed_links, self.links)?;
        self.forbidden.iter().try_for_each(|it| writeln!(f, "  line {}: forbids {it}", it.line))?;
        self.reserved.iter().try_for_each(|it| writeln!(f, "  line {}: reserves {it}", it.line))?;
        let mut say = |what: &str, value: Option<String>| match value {
            Some(value) => writeln!(f, "  {what}: {value}"),
            None => Ok(()),
        };
        say("machine hops at most", self.max_machine_hops.map(|hops| hops.to_string()))?;
        say("order between machines", self.own_chunks_first.then(|| "own chunks before relayed ones".to_owned()))?;
        say("symmetries", (self.symmetries > 0).then(|| self.symmetry_in_words()))?;
        say("chunks per rank", self.chunks_per_rank.map(|chunks| chunks.to_string()))?;
        say("sizes", self.sizes.map(|sizes| sizes.to_string()))?;
        say("strategy", self.strategy.map(str::to_owned))?;
        say("time limit", self.time_limit_seconds.map(|seconds| format!("{seconds} s")))?;
        say("objective", self.objective.map(|objective| format!("{objective:?}").to_lowercase()))?;
        for wished in &self.connections {
            let word = format!("{:?}", wished.wish).to_lowercase();
            let of = (counted(wished.switches, "switch"), counted(wished.links, "link"));
            say("connections", Some(format!("{word} on {} with {}", of.0, of.1)))?;
        }
        for (stage, links) in (1..).zip(&self.stages) {
            let inside = links.links - links.between_machines;
            let links = format!("{} inside machines, {} between", counted(inside, "link"), links.between_machines);
            say(&format!("stage {stage}"), Some(links))?;
        }
        say("placed on", (!self.placement.is_empty()).then(|| self.placement_in_words()))
    }
}

impl SketchSummary {
    /// The ranks that are placed elsewhere, as `0→2 1→3`.
    fn placement_in_words(&self) -> String {
        let moved = (0u32..).zip(&self.placement).filter(|(logical, physical)| *logical != physical.0);
        moved.map(|(logical, physical)| format!("{logical}→{physical}")).collect::<Vec<_>>().join(" ")
    }

    fn symmetry_in_words(&self) -> String {
        let orbits: Vec<String> = self.orbits.iter().take(EXAMPLES).map(|orbit| ranks_in_words(orbit)).collect();
        let more = if self.orbits.len() > EXAMPLES { ", …" } else { "" };
        format!("{}; interchangeable ranks: {}{more}", self.symmetries, orbits.join(", "))
    }
}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&counted(self.links, "link"))?;
        if let Some(owners) = &self.only_chunks_of {
            write!(f, " for the chunks of {}", ranks_in_words(owners))?;
        }
        let examples: Vec<String> = self.examples.iter().map(|(from, to)| format!("{from}→{to}")).collect();
        let more = if self.links > self.examples.len() { " …" } else { "" };
        write!(f, " ({}{more})", examples.join(" "))
    }
}

/// `{0 1 2 …}`
fn ranks_in_words(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().take(EXAMPLES).map(ToString::to_string).collect();
    let more = if ranks.len() > EXAMPLES { " …" } else { "" };
    format!("{{{}{more}}}", names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::SketchFile;
    use expect_test::expect;

    const SKETCH: &str = "\
# Two boxes with one cable each way.
name: example
relays: {0: [1]}
senders: {0: [0, 1, 2, 3, 4, 5, 6, 7]}
links:
  forbid:
    - {class: inside_machine, from: 0, to: 1}
own_chunks_first: true
max_machine_hops: 1
symmetry: [{rotate: 8, within: 16}]
connections: few
objective: latency
chunks_per_rank: 2
sizes: {from: 1KB, to: 1MB}
strategy: milp
time_limit: 60s
";

    fn summary() -> SketchSummary {
        let topology = topology::resolve("ndv2x2,costs=taccl-1mb").unwrap();
        describe(&SketchFile::parse(SKETCH, "s.yaml").unwrap().resolve(&topology).unwrap(), &topology)
    }

    #[test]
    fn a_summary_says_what_each_line_does() {
        expect![[r#"
            sketch example on ndv2x2,costs=taccl-1mb
              Two boxes with one cable each way.
              16 ranks on 2 machines
              64 of 192 links may be used
              line 3: forbids 126 links (0→8 0→10 0→11 0→12 0→13 0→14 0→15 1→8 …)
              line 7: forbids 2 links (0→1 8→9)
              line 4: reserves 2 links for the chunks of {0 1 2 3 4 5 6 7 …} (0→9 8→1)
              machine hops at most: 1
              order between machines: own chunks before relayed ones
              symmetries: 1; interchangeable ranks: {0 8}, {1 9}, {2 10}, {3 11}, {4 12}, {5 13}, {6 14}, {7 15}
              chunks per rank: 2
              sizes: 1 KB to 1 MB
              strategy: milp
              time limit: 60 s
              objective: latency
              connections: few on 2 switches with 62 links
        "#]]
        .assert_eq(&summary().to_string());
    }

    #[test]
    fn a_summary_is_json() {
        expect![[r#"{"sketch":"example","why":"Two boxes with one cable each way.","topology":"ndv2x2,costs=taccl-1mb","ranks":16,"machines":2,"links":192,"allowed_links":64,"forbidden":[{"line":3,"links":126,"examples":[[0,8],[0,10],[0,11],[0,12],[0,13],[0,14],[0,15],[1,8]]},{"line":7,"links":2,"examples":[[0,1],[8,9]]}],"reserved":[{"line":4,"links":2,"examples":[[0,9],[8,1]],"only_chunks_of":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}],"max_machine_hops":1,"own_chunks_first":true,"symmetries":1,"orbits":[[0,8],[1,9],[2,10],[3,11],[4,12],[5,13],[6,14],[7,15]],"chunks_per_rank":2,"sizes":{"from":1000,"to":1000000},"strategy":"milp","time_limit_seconds":60.0,"objective":"latency","connections":[{"line":11,"wish":"few","switches":2,"links":62}]}"#]].assert_eq(&serde_json::to_string(&summary()).unwrap());
    }
}
