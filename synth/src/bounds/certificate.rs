//! Why a bound holds: what another program needs to work it out again.
//!
//! The principal type is [`Certificate`]. `tests/certificates.rs` proves the bounds of whole commands from nothing else.

use super::horizon::{LinkPeriods, Proof, ResourcePeriods};
use serde::Serialize;
use topology::{Bytes, LinkId, Micros, MicrosPerByte, Rank, ResourceId};

/// Why a bound holds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Certificate {
    /// What must leave these ranks has to share the links that do.
    Cut {
        /// The set, ascending.
        ranks: Vec<Rank>,
        /// The inverse throughput of all links that leave the set, under the resources they share.
        #[serde(rename = "capacity_us_per_byte")]
        capacity: MicrosPerByte,
        /// What comes after the last chunk has crossed.
        #[serde(skip_serializing_if = "Option::is_none")]
        tail: Option<Tail>,
        /// Why whole chunks need longer than their bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        whole: Option<WholeChunks>,
    },
    /// What all deliveries from one group of ranks to another put on the links has to share all of them.
    Volume {
        /// The bytes of all deliveries that no schedule can do without.
        bytes: f64,
        /// The inverse throughput of all links between groups together, under the resources they share.
        #[serde(rename = "capacity_us_per_byte")]
        capacity: MicrosPerByte,
        /// The groups; every rank is one where there are none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<Vec<Rank>>,
    },
    /// A byte that takes the time β of a link or a resource pays β times its price. As the prices add up to 1, all
    /// that the bytes pay on their cheapest ways is no more than the time that every seller has.
    Prices {
        /// For each link, what a unit of its time costs.
        #[serde(rename = "prices")]
        links: Vec<f64>,
        /// For each resource, what a unit of its time costs.
        #[serde(rename = "resource_prices")]
        resources: Vec<f64>,
    },
    /// A shortest path that some chunk must travel.
    Path {
        /// The links, first link first.
        links: Vec<LinkId>,
    },
    /// A model with time cut into periods, in which every schedule that ends before some time would be a solution, has
    /// none. What the model is, [`Proof`]'s module says.
    Horizon {
        /// The length of a period.
        #[serde(rename = "period_us")]
        period: Micros,
        /// The end that no schedule comes before.
        #[serde(rename = "end_us")]
        end: Micros,
        /// How many periods begin before the end.
        periods: u32,
        /// Whether messages of several chunks are covered.
        merged: bool,
        /// Every link in periods.
        #[serde(rename = "periods_of_links")]
        links: Vec<LinkPeriods>,
        /// Every resource in periods.
        #[serde(rename = "periods_of_resources")]
        resources: Vec<ResourcePeriods>,
        /// Why it has no solution.
        #[serde(flatten)]
        proof: Proof,
    },
}

/// The way that the last chunk to cross a cut still has to go. A chunk that crosses once spreads from one rank, its head; one
/// that crosses twice takes the time of its bytes once more.
///
/// It takes at least the lesser of two times: that of the best head to its farthest rank; and the greater of the time
/// from the nearest head to `far` and of `chunk_bytes` at the capacity of the cut. Of sums that one rank each wants, it is the
/// way on the machine with every link turned around.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tail {
    /// The size of the smallest chunk that must cross.
    pub chunk_bytes: Bytes,
    /// How much longer it takes at least.
    #[serde(rename = "value_us")]
    pub value: Micros,
    /// Each rank that a link across the cut leads to, and the rank farthest from it that waits for all that crosses.
    pub heads: Vec<(Rank, Rank)>,
    /// The rank farthest from all heads that waits for all that crosses.
    pub far: Option<Rank>,
}

/// How many whole chunks pass the links of one rank. By time T, with T' = T − α, a link lets ⌊T' / (β·b)⌋ chunks of b bytes pass
/// where messages merge; ⌊T / (α + β·b)⌋ where each carries one chunk and α occupies. A group lets no more pass than
/// its links together, and no more than its resource with the least α of its links. Before the bound, fewer than `chunks` have passed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WholeChunks {
    /// How many must pass.
    pub chunks: u64,
    /// The size of each.
    pub chunk_bytes: Bytes,
    /// Whether a message may carry several.
    pub merged: bool,
    /// All links of the rank, each in one group.
    pub groups: Vec<LinkGroup>,
}

/// Links of one rank that share a resource, or a link alone.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LinkGroup {
    /// What they share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceId>,
    /// The links.
    pub links: Vec<LinkId>,
}
