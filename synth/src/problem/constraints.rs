//! A sketch after resolution: plain tables over link and chunk ids, so that no strategy ever parses a sketch.
//!
//! The principal type is [`Constraints`]. [`Constraints::hindrance`] answers for rules that depend on the chunk alone.
//! [`Constraints::after`] answers for rules that depend on where a copy has already been: it extends a [`Way`] by one
//! link. Preferences (`connections`, `objective`) decide between schedules of equal length and forbid nothing.

use schedule::{ChunkId, Demand, RankSet};
use serde::{Deserialize, Serialize};
use topology::symmetry::Automorphism;
use topology::{LinkId, Rank, Topology};

/// Why a chunk may not use a link, with the line of the sketch that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hindrance {
    /// The link is forbidden to every chunk.
    ForbiddenLink {
        /// Line of the sketch file, from 1.
        line: u32,
    },
    /// Only chunks of other owners may use the link (a relay rule of the sketch).
    NotItsSender {
        /// Line of the sketch file, from 1.
        line: u32,
    },
    /// Every path crosses between machines more often than the sketch permits.
    TooManyMachineHops {
        /// Line of the sketch file, from 1.
        line: u32,
    },
    /// Every path uses its links in another order than the stages.
    OutOfStage {
        /// Line of the sketch file, from 1.
        line: u32,
    },
}

impl Hindrance {
    /// Line of the sketch file, from 1.
    pub fn line(self) -> u32 {
        match self {
            Self::ForbiddenLink { line }
            | Self::NotItsSender { line }
            | Self::TooManyMachineHops { line }
            | Self::OutOfStage { line } => line,
        }
    }
}

/// How many connections a switch should carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionPolicy {
    /// As few as possible (TACCL's `uc-min`): large messages.
    Few,
    /// As many as possible (TACCL's `uc-max`): small messages.
    Many,
}

/// What decides between schedules of equal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Few steps.
    Latency,
    /// Few bytes on the busiest link (TACCL's `minmax`).
    Bandwidth,
    /// Many bytes on the idlest allowed link (TACCL's `maxmin`): all links share the work.
    Balance,
}

/// A set of links, and whether few or many of them should be in use.
///
/// These are TACCL's switch-hyperedges: a switch joins every two of its ranks, and a schedule picks which of these
/// connections to open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionWish {
    /// The links of one switch (or of the inside of one machine), ascending.
    pub links: Vec<LinkId>,
    /// Whether few or many of them should be in use.
    pub wish: ConnectionPolicy,
    /// Line of the sketch file, from 1.
    pub line: u32,
}

/// In which order a chunk may use the links. Every way of a chunk goes through the stages from first to last, and uses
/// any number of links in each, including none.
///
/// The way of a sum begins at its contributors. A value that is reduced in one stage may be copied on in the same stage
/// or a later one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stages {
    /// For each link, the stages in which it may be used: bit i is stage i.
    pub of_link: Vec<u16>,
    /// How many stages there are, from 1 to [`Stages::MOST`].
    pub count: u8,
    /// Line of the sketch file, from 1.
    pub line: u32,
}

impl Stages {
    /// The most stages of a sketch: each is one bit of a `u16`.
    pub const MOST: u8 = 16;

    /// The earliest stage, not before `stage`, in which `link` may be used.
    pub fn after(&self, stage: u8, link: LinkId) -> Option<u8> {
        let left = self.of_link[link.index()] >> stage << stage;
        (left != 0).then(|| left.trailing_zeros() as u8)
    }

    /// Only stages `first..=last`, renumbered from 0; in reverse order if `backwards`.
    pub(crate) fn part(&self, first: u8, last: u8, backwards: bool) -> Self {
        let count = last - first + 1;
        let bits = |stages: u16| {
            let kept = (0..count).filter(|stage| stages >> (first + stage) & 1 == 1);
            kept.map(|stage| 1 << if backwards { count - 1 - stage } else { stage }).sum()
        };
        Self { of_link: self.of_link.iter().map(|&stages| bits(stages)).collect(), count, line: self.line }
    }
}

/// What a copy of a chunk has done so far, as far as a sketch limits its way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Way {
    /// How often it has crossed between machines; counted only under a limit.
    pub crossings: u32,
    /// The earliest stage it can be in.
    pub stage: u8,
}

/// A resolved sketch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Constraints {
    /// For each link, the sketch line that forbids it; empty when nothing is forbidden.
    pub forbidden: Vec<Option<u32>>,
    /// For each link, the only owners whose chunks may use it, and the line that says so; empty when no rule names
    /// owners.
    ///
    /// The owner of a chunk is its only holder or, for a combining chunk, the only rank that wants it.
    pub owners: Vec<Option<(RankSet, u32)>>,
    /// The most links between machines that a chunk may cross, and the line that says so.
    pub max_machine_hops: Option<(u32, u32)>,
    /// Symmetries that the schedule should have; a search may use them to merge variables.
    pub symmetry: Vec<Automorphism>,
    /// If set, the sender's own chunks leave before relayed ones on every link between machines; the line that says so.
    pub own_chunks_first: Option<u32>,
    /// In which order a chunk may use kinds of links.
    pub stages: Option<Stages>,
    /// Where few or many connections are wanted; disjoint sets of links.
    pub connections: Vec<ConnectionWish>,
    /// What matters most when schedules are equally long.
    pub objective: Option<Objective>,
    /// The physical rank of each rank number of the sketch; empty where the two numberings are the same.
    ///
    /// All other tables here are over physical links and ranks.
    pub placement: Vec<Rank>,
}

/// The kinds of rules that a schedule must obey.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleKind {
    /// Links that no chunk may use.
    ForbiddenLinks,
    /// Links that only the chunks of some owners may use.
    Owners,
    /// How often a chunk may cross between machines.
    MachineHops,
    /// In which order a chunk may use kinds of links.
    Stages,
    /// Whose chunks leave a machine first.
    OwnChunksFirst,
}

impl RuleKind {
    /// Rules about one link at a time.
    pub const OF_LINKS: [Self; 2] = [Self::ForbiddenLinks, Self::Owners];
    /// Rules about the way of a chunk.
    pub const OF_WAYS: [Self; 4] = [Self::ForbiddenLinks, Self::Owners, Self::MachineHops, Self::Stages];
    /// Rules about the way of a chunk, and about the order of messages.
    pub const OF_ORDER: [Self; 5] =
        [Self::ForbiddenLinks, Self::Owners, Self::MachineHops, Self::Stages, Self::OwnChunksFirst];
}

impl Constraints {
    /// Everything is allowed.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether there is a rule of another kind than those that a formulation has `honoured`. So a kind of rule that comes
    /// later is refused by all formulations that do not name it.
    pub fn exceeds(&self, honoured: &[RuleKind]) -> bool {
        let Self {
            forbidden,
            owners,
            max_machine_hops,
            own_chunks_first,
            stages,
            // What a schedule should be like, and how ranks are numbered, is no rule.
            symmetry: _,
            connections: _,
            objective: _,
            placement: _,
        } = self;
        let rules = [
            (RuleKind::ForbiddenLinks, !forbidden.is_empty()),
            (RuleKind::Owners, !owners.is_empty()),
            (RuleKind::MachineHops, max_machine_hops.is_some()),
            (RuleKind::Stages, stages.is_some()),
            (RuleKind::OwnChunksFirst, own_chunks_first.is_some()),
        ];
        rules.iter().any(|(kind, is_there)| *is_there && !honoured.contains(kind))
    }

    /// Whether a link may be used at all.
    pub fn allows_link(&self, link: LinkId) -> bool {
        self.forbidden.get(link.index()).is_none_or(Option::is_none)
    }

    /// Why `chunk` may not use `link`; `None` if it may.
    pub fn hindrance(&self, demand: &Demand, chunk: ChunkId, link: LinkId) -> Option<Hindrance> {
        if let Some(&Some(line)) = self.forbidden.get(link.index()) {
            return Some(Hindrance::ForbiddenLink { line });
        }
        let (owners, line) = self.owners.get(link.index())?.as_ref()?;
        let owner = owner(demand, chunk)?;
        (!owners.has(owner)).then_some(Hindrance::NotItsSender { line: *line })
    }

    /// Whether the way of a copy matters: there is a limit on machine hops, or there are stages.
    pub fn limits_ways(&self) -> bool {
        self.max_machine_hops.is_some() || self.stages.is_some()
    }

    /// The way of a copy that has come by `way` and continues over `link`; `None` if it may not.
    pub fn after(&self, topology: &Topology, way: Way, link: LinkId) -> Option<Way> {
        let stage = match &self.stages {
            Some(stages) => stages.after(way.stage, link)?,
            None => 0,
        };
        let crossings = match self.max_machine_hops {
            Some((limit, _)) => {
                let crossings = way.crossings + u32::from(topology.crosses_machines(topology.link(link)));
                (crossings <= limit).then_some(crossings)?
            }
            None => 0,
        };
        Some(Way { crossings, stage })
    }
}

/// The owner of a chunk, where there is exactly one.
pub(crate) fn owner(demand: &Demand, chunk: ChunkId) -> Option<Rank> {
    let chunk = demand.chunk(chunk);
    let candidates = if chunk.combine { &chunk.wanted_by } else { &chunk.holders };
    match candidates[..] {
        [owner] => Some(owner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On `line:4` (links 0→1, 1→0, 1→2, …): bit i of an entry permits that link in stage i.
    fn stages(of_link: [u16; 6], count: u8) -> Stages {
        Stages { of_link: of_link.to_vec(), count, line: 1 }
    }

    #[test]
    fn a_copy_is_in_the_earliest_stage_that_has_its_last_link() {
        let stages = stages([0b101, 0b010, 0, 0, 0, 0], 3);
        assert_eq!(stages.after(0, LinkId(0)), Some(0));
        assert_eq!(stages.after(0, LinkId(1)), Some(1));
        assert_eq!(stages.after(1, LinkId(0)), Some(2));
        assert_eq!(stages.after(2, LinkId(1)), None);
        assert_eq!(stages.after(0, LinkId(2)), None);
    }

    #[test]
    fn parts_of_stages_run_either_way() {
        let stages = stages([0b001, 0b010, 0b100, 0b101, 0b111, 0], 3);
        assert_eq!(stages.part(0, 2, true).of_link, [0b100, 0b010, 0b001, 0b101, 0b111, 0]);
        assert_eq!(stages.part(0, 1, true).of_link, [0b10, 0b01, 0, 0b10, 0b11, 0]);
        assert_eq!(stages.part(1, 2, false).of_link, [0, 0b01, 0b10, 0b10, 0b11, 0]);
        assert_eq!(stages.part(1, 2, false).count, 2);
    }

    #[test]
    fn ways_are_counted_only_where_they_are_limited() {
        let topology = topology::resolve("ndv2x2").unwrap();
        let crossing = topology.between(Rank(0), Rank(9)).next().unwrap();
        let free = Constraints::none();
        assert!(!free.limits_ways());
        assert_eq!(free.after(&topology, Way::default(), crossing), Some(Way::default()));
        let limited = Constraints { max_machine_hops: Some((1, 1)), ..Constraints::none() };
        let once = limited.after(&topology, Way::default(), crossing).unwrap();
        assert_eq!(once.crossings, 1);
        assert_eq!(limited.after(&topology, once, crossing), None);
    }
}
