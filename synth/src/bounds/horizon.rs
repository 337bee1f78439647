//! The certificate of a horizon: a model without a solution, and the proof.
//!
//! The principal type is [`Proof`]. The model asks for a schedule that ends before T, in periods of length τ. Let b be
//! the bytes of a chunk, D(c,r) the α–β distance of rank r from the holders of chunk c, and R(c,r) the distance from r
//! to the nearest rank that wants c and lacks it. The variables and rows are:
//!
//! * x\[c,l,t\] ∈ \[0,1\]: c departs on link l in period t. It exists where ⌊D(c,from(l))/τ⌋ ≤ t and t·τ < T − α(l) −
//!   β(l)·b − R(c,to(l)), and not for links into a holder of c.
//! * have\[c,r,t\] ∈ \[0,1\]: rank r, not a holder of c, has c when period t begins. It exists up to the last period
//!   that begins before T. In that period it is 1 where r wants c; it is 0 before anything can arrive.
//! * `arrive` c, r, t: have\[c,r,t\] − have\[c,r,t−1\] − Σ over links l into r of x\[c,l,t − latency(l)\] = 0.
//! * `once` c, r: Σ over links l into r and all t of x\[c,l,t\] is 1 if r wants c, else at most 1.
//! * `hold` c, l, t: x\[c,l,t\] − have\[c,from(l),t\] ≤ 0, for links from ranks that are not holders.
//! * `window` on a link or a resource: Σ of all x on it in periods `first` to `last` ≤ `at_most`; `windows` gives this
//!   limit for a number of consecutive periods.
//!
//! Multipliers prove that the model has not even a fractional solution. The rows are summed, each times its multiplier;
//! a multiplier above zero uses the row's lower limit, one below zero its upper limit. No point in the unit box obeys
//! the sum. For sums that one rank each wants, it is the model of the machine with every link turned around.

use schedule::ChunkId;
use serde::Serialize;
use topology::{LinkId, Rank};

/// Why the model has no solution.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "proof")]
pub enum Proof {
    /// Some chunk has farther to go than the time allows.
    Distance,
    /// The model has not even a fractional solution.
    Linear {
        /// The multipliers of the rows; all others are zero.
        multipliers: Vec<Multiplier>,
    },
    /// The solver's search in floating point ended without a solution. Only another search can check this.
    Search {
        /// The number of nodes of the search.
        nodes: u64,
    },
}

/// A row and its multiplier.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Multiplier {
    /// The row.
    #[serde(flatten)]
    pub row: ModelRow,
    /// The multiplier. Above zero it uses the row's lower limit, below zero its upper limit.
    pub times: i64,
}

/// A row of the model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "row")]
pub enum ModelRow {
    /// What a rank has in a period is what it had before, plus what arrives.
    Arrive {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
        /// The period.
        period: u32,
    },
    /// A chunk arrives at a rank once.
    Once {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
    },
    /// A rank sends only what it has.
    Hold {
        /// The chunk.
        chunk: ChunkId,
        /// The link.
        link: LinkId,
        /// The period.
        period: u32,
    },
    /// A link or a resource takes a limited number of departures.
    Window {
        /// The link, if the row is about a link.
        #[serde(skip_serializing_if = "Option::is_none")]
        link: Option<LinkId>,
        /// The resource, if the row is about a resource.
        #[serde(skip_serializing_if = "Option::is_none")]
        resource: Option<topology::ResourceId>,
        /// The first period.
        first: u32,
        /// The last period.
        last: u32,
        /// The most departures in these periods.
        at_most: u32,
    },
}

/// A link in periods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkPeriods {
    /// Periods from departure to arrival.
    pub latency: u32,
    /// At most `[1]` departures in any `[0]` consecutive periods.
    pub windows: Vec<[u32; 2]>,
}

/// A resource in periods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ResourcePeriods {
    /// The links whose departures count.
    pub links: Vec<LinkId>,
    /// At most `[1]` departures in any `[0]` consecutive periods.
    pub windows: Vec<[u32; 2]>,
}
