//! The keys of a sketch: what may be written, and the types that it is read into.
//!
//! The principal type is [`Body`]. Every value keeps its position, so that an error can point to it. Nothing is
//! interpreted here.

use super::shapes::present;
use crate::problem::{ConnectionPolicy, Objective};
use serde::{Deserialize, Serialize};
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// Every key of a sketch. Absent keys leave all freedom; a key without a value is an error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    #[serde(default, deserialize_with = "present")]
    pub(super) name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    pub(super) why: Option<String>,
    #[serde(default, deserialize_with = "present")]
    pub(super) topology: Option<Spanned<TopologyShape>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) links: Option<Links>,
    #[serde(default, deserialize_with = "present")]
    pub(super) relays: Option<Spanned<Relays>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) senders: Option<Spanned<RankMap>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) own_chunks_first: Option<Spanned<bool>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) max_machine_hops: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) symmetry: Option<Spanned<SymmetryWish>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) stages: Option<Spanned<Vec<Spanned<LinkRule>>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) placement: Option<Spanned<PlacementWish>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) connections: Option<Spanned<ConnectionsAsWritten>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) objective: Option<Objective>,
    #[serde(default, deserialize_with = "present")]
    pub(super) chunks_per_rank: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) sizes: Option<Spanned<SizesAsWritten>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) strategy: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) time_limit: Option<Spanned<String>>,
}

/// The shape of the topologies that a sketch is for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopologyShape {
    #[serde(default, deserialize_with = "present")]
    pub(super) machines: Option<usize>,
    #[serde(default, deserialize_with = "present")]
    pub(super) ranks_per_machine: Option<usize>,
    /// A SPEC of this shape, for hints and for the test that resolves every shipped sketch.
    #[serde(default, deserialize_with = "present")]
    pub(super) such_as: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Links {
    #[serde(default, deserialize_with = "present")]
    pub(super) forbid: Option<Spanned<Vec<Spanned<LinkRule>>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) allow_only: Option<Spanned<Vec<Spanned<LinkRule>>>>,
}

/// A set of links: `between_machines`, `[0, 3]`, or `{from: 0, to: [1, 2], both_ways: true}`.
#[derive(Clone, Debug)]
pub(super) enum LinkRule {
    Class(LinkClass),
    Pair { from: Spanned<u64>, to: Spanned<u64> },
    Pattern(LinkPattern),
}

/// Links by their ends. With a class, `from` and `to` are local ranks of every machine; without, they are global ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkPattern {
    #[serde(default, deserialize_with = "present")]
    pub(super) class: Option<LinkClass>,
    #[serde(default, deserialize_with = "present")]
    pub(super) from: Option<LocatedRanks>,
    #[serde(default, deserialize_with = "present")]
    pub(super) to: Option<LocatedRanks>,
    #[serde(default)]
    pub(super) both_ways: bool,
}

/// Whether a link stays inside a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LinkClass {
    #[serde(alias = "inside")]
    InsideMachine,
    #[serde(alias = "between")]
    BetweenMachines,
}

/// One rank or a list of ranks, with its position in the file.
#[derive(Clone, Debug)]
pub(super) struct LocatedRanks {
    pub(super) at: Location,
    pub(super) list: Vec<Spanned<u64>>,
}

/// Local ranks, each with a list of local ranks.
#[derive(Clone, Debug)]
pub(super) struct RankMap(pub(super) Vec<(Spanned<u64>, LocatedRanks)>);

/// Which ranks may send to which ranks of another machine.
#[derive(Clone, Debug)]
pub(super) enum Relays {
    /// Any rank to any rank.
    All,
    /// Local rank i to local rank i.
    Direct,
    /// Each of these local ranks to the local ranks listed for it.
    Map(RankMap),
}

#[derive(Clone, Debug)]
pub(super) enum SymmetryWish {
    Auto,
    None,
    List(Vec<Spanned<SymmetryRule>>),
}

/// `{rotate: 2, within: 16}`, `{permutation: [1, 0, …]}`, `{cycles: [[0, 3], [1, 2]]}` or `{map: {0: 3, 3: 0}}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SymmetryRule {
    #[serde(default, deserialize_with = "present")]
    pub(super) rotate: Option<Spanned<u64>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) within: Option<Spanned<u64>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) permutation: Option<Spanned<Vec<Spanned<u64>>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) cycles: Option<Spanned<Vec<Cycle>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) map: Option<Spanned<RankImages>>,
}

/// A cycle of ranks: each becomes the next, and the last becomes the first.
pub(super) type Cycle = Spanned<Vec<Spanned<u64>>>;

/// Ranks, each with its image.
#[derive(Clone, Debug)]
pub(super) struct RankImages(pub(super) Vec<(Spanned<u64>, Spanned<u64>)>);

/// Which physical rank each rank of the sketch is.
#[derive(Clone, Debug)]
pub(super) enum PlacementWish {
    /// The placement that puts the relays beside the NICs.
    Auto,
    /// Each rank of the sketch is the physical rank of the same number.
    None,
    /// The physical rank of every local rank, or of every rank.
    List(Vec<Spanned<u64>>),
}

/// `few`, `many`, or a list of switches, each with one of the two.
#[derive(Clone, Debug)]
pub(super) enum ConnectionsAsWritten {
    /// Every machine counts as one switch.
    Everywhere(ConnectionPolicy),
    /// These groups of local ranks are switches.
    PerSwitch(Vec<Spanned<SwitchWish>>),
}

/// `{among: [0, 1, 2, 3], wish: few}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchWish {
    pub(super) among: LocatedRanks,
    pub(super) wish: ConnectionPolicy,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SizesAsWritten {
    #[serde(default, deserialize_with = "present")]
    pub(super) from: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) to: Option<Spanned<String>>,
}

/// The buffer sizes that a sketch is meant for, in bytes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SizeRange {
    /// The smallest.
    pub from: u64,
    /// The largest.
    pub to: u64,
}

impl SizeRange {
    /// Every size.
    pub const ANY: Self = Self { from: 0, to: u64::MAX };

    /// Whether a size is in the range.
    pub fn contains(&self, bytes: u64) -> bool {
        (self.from..=self.to).contains(&bytes)
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |bytes: u64| topology::quantity::show_bytes(topology::Bytes(bytes as f64));
        match (self.from, self.to) {
            (from, u64::MAX) => write!(f, "from {}", show(from)),
            (0, to) => write!(f, "up to {}", show(to)),
            (from, to) => write!(f, "{} to {}", show(from), show(to)),
        }
    }
}
