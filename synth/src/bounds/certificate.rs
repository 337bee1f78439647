//! Certificates: what another program needs to prove a bound again.
//!
//! The principal type is [`Certificate`]. `tests/certificates.rs` proves the bounds of whole commands from certificates
//! alone.

use super::horizon::{LinkPeriods, Proof, ResourcePeriods};
use schedule::ChunkId;
use serde::Serialize;
use topology::{Bytes, LinkId, Micros, MicrosPerByte, Rank, ResourceId};

/// Why a bound holds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Certificate {
    /// All data that must leave these ranks shares the links that leave them.
    Cut {
        /// The set, ascending.
        ranks: Vec<Rank>,
        /// The inverse throughput of all links that leave the set, under the resources they share.
        #[serde(rename = "capacity_us_per_byte")]
        capacity: MicrosPerByte,
        /// The time after the last chunk has crossed.
        #[serde(skip_serializing_if = "Option::is_none")]
        tail: Option<Tail>,
        /// Why whole chunks take longer than their bytes alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        whole: Option<WholeChunks>,
    },
    /// What starts at some time or later takes at least as long from then on as if nothing else moved.
    Later {
        /// The time, which the value of the bound includes.
        #[serde(rename = "start_us")]
        start: Micros,
        /// Why the rest of the value holds for the chunks that are released then or later.
        of: Box<Self>,
    },
    /// All deliveries from one group of ranks to another share all links between groups.
    Volume {
        /// The bytes of all deliveries that no schedule can do without.
        bytes: f64,
        /// The inverse throughput of all links between groups together, under the resources they share.
        #[serde(rename = "capacity_us_per_byte")]
        capacity: MicrosPerByte,
        /// The groups; absent where each rank is its own group.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<Vec<Rank>>,
    },
    /// A byte that occupies a link or a resource for the time β pays β times its price. The prices add up to 1. So the
    /// sum that all bytes pay on their cheapest ways is at most the time for which each link and resource is available.
    Prices {
        /// For each link, the price of a unit of its time.
        #[serde(rename = "prices")]
        links: Vec<f64>,
        /// For each resource, the price of a unit of its time.
        #[serde(rename = "resource_prices")]
        resources: Vec<f64>,
    },
    /// Data spreads (or comes together) from group to group no faster than ports pass messages. The module of the bound
    /// has the proofs.
    Rounds {
        /// The groups; absent where each rank is its own group.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<Vec<Rank>>,
        /// The group whose data is followed or, backwards, that wants data.
        group: Vec<Rank>,
        /// Whether data is followed backwards in time, from the ranks that want it.
        backwards: bool,
        /// How many groups the data must reach, or come from, with the group itself.
        reached: usize,
        /// How many messages, one after the other, this takes.
        rounds: u32,
        /// The least α of the links between groups.
        #[serde(rename = "alpha_us")]
        alpha: Micros,
        /// So long some data of the group cannot begin to leave it; zero if that is not counted.
        #[serde(rename = "before_us")]
        before: Micros,
        /// The least α of the links inside of the group.
        #[serde(rename = "alpha_inside_us")]
        alpha_inside: Micros,
        /// The most ports by which a rank gets messages from inside of the group.
        ports_inside: usize,
        /// How many messages more, one after the other, until all ranks of a group have the data.
        rounds_behind: u32,
        /// The least α of these messages.
        #[serde(rename = "alpha_behind_us")]
        alpha_behind: Micros,
        /// The least time per byte between groups; zero if bytes do not count.
        #[serde(rename = "beta_us_per_byte")]
        beta: MicrosPerByte,
        /// The bytes that the group must get besides the most that one group has to begin with; zero if they do not
        /// count.
        gathered: f64,
    },
    /// Chunks must cross into some ranks, in messages that follow each other on links and resources. The module of the bound says how
    /// this takes time. For sums that one rank each wants, all of it holds on the machine with every link turned around.
    Crossing {
        /// The ranks that lack the chunks, ascending.
        ranks: Vec<Rank>,
        /// The rank that the chunks go to; absent where each goes to the only one of the ranks that wants it.
        #[serde(skip_serializing_if = "Option::is_none")]
        target: Option<Rank>,
        /// The chunks. Those of one class have the least heads and tails of the class.
        classes: Vec<Vec<ChunkId>>,
        /// Whether a chunk can only leave a sender when the sender can have received all chunks that have left it by then.
        gathered: bool,
        /// Whether the chunks are sums, of which parts may cross in several messages.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        in_parts: bool,
        /// Whether the chunks must leave the ranks, backwards in time: on the machine with every link turned around they must come.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        backwards: bool,
    },
    /// A shortest path that some chunk must travel.
    Path {
        /// The links, first link first.
        links: Vec<LinkId>,
    },
    /// A model over periods of time that has no solution, although every schedule that ends before some time would be
    /// one. The module of [`Proof`] defines the model.
    Horizon {
        /// The length of a period.
        #[serde(rename = "period_us")]
        period: Micros,
        /// No schedule ends before this time.
        #[serde(rename = "end_us")]
        end: Micros,
        /// The number of periods that begin before the end.
        periods: u32,
        /// Whether messages of several chunks are covered.
        merged: bool,
        /// Every link in periods.
        #[serde(rename = "periods_of_links")]
        links: Vec<LinkPeriods>,
        /// Every resource in periods.
        #[serde(rename = "periods_of_resources")]
        resources: Vec<ResourcePeriods>,
        /// Why the model has no solution.
        #[serde(flatten)]
        proof: Proof,
    },
}

/// The way that the last chunk to cross a cut still has to go. A chunk that crosses once spreads from one rank, its
/// head. A chunk that crosses twice takes the time of its bytes on the cut once more.
///
/// The tail is at least the lesser of two times. The first is the time from the best head to its farthest rank. The
/// second is the greater of the time from the nearest head to `far` and of `chunk_bytes` at the capacity of the cut.
/// For sums that one rank each wants, all of this holds on the machine with every link turned around.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tail {
    /// The size of the smallest chunk that must cross.
    pub chunk_bytes: Bytes,
    /// The least time of the tail.
    #[serde(rename = "value_us")]
    pub value: Micros,
    /// Each rank at the end of a link across the cut, and the rank farthest from it of those that wait for all chunks
    /// that cross.
    pub heads: Vec<(Rank, Rank)>,
    /// The rank farthest from all heads, of those that wait for all chunks that cross.
    pub far: Option<Rank>,
}

/// How many whole chunks of b bytes pass the links of one rank. By time T, a link passes ⌊(T − α) / (β·b)⌋ chunks where
/// messages merge, and ⌊T / (α + β·b)⌋ where each message carries one chunk and α occupies. A group passes no more than
/// its links together, and no more than its resource would with the least α of its links. Before the bound, fewer than
/// `chunks` have passed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WholeChunks {
    /// How many chunks must pass.
    pub chunks: u64,
    /// The size of each chunk.
    pub chunk_bytes: Bytes,
    /// Whether a message may carry several chunks.
    pub merged: bool,
    /// All links of the rank, each in one group.
    pub groups: Vec<LinkGroup>,
}

/// Links of one rank that share a resource, or a single link.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LinkGroup {
    /// The resource that they share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceId>,
    /// The links.
    pub links: Vec<LinkId>,
}
