//! The certificate of a horizon: the model that has no solution, and why it has none.
//!
//! The principal type is [`Proof`]. The model of the end T, in periods of τ, is this. With D(c,r) the α–β distance of
//! rank r from the holders of chunk c, and R(c,r) that of the nearest rank that lacks and wants c from r:
//!
//! * x\[c,l,t\] ∈ \[0,1\]: c departs on link l in period t; it exists where ⌊D(c,from(l))/τ⌋ ≤ t and
//!   t·τ < T − α(l) − β(l)·b − R(c,to(l)), and not for links into a holder of c.
//! * have\[c,r,t\] ∈ \[0,1\]: rank r, not a holder of c, has c when period t begins, until the last period that begins before
//!   T; in that one it is 1 where r wants c, and it is 0 before anything can arrive.
//! * `arrive` c, r, t: have\[c,r,t\] − have\[c,r,t−1\] − Σ over links l into r of x\[c,l,t − latency(l)\] = 0.
//! * `once` c, r: Σ over links l into r and all t of x\[c,l,t\] is 1 if r wants c, else at most 1.
//! * `hold` c, l, t: x\[c,l,t\] − have\[c,from(l),t\] ≤ 0, for links from ranks that are not holders.
//! * `window` on a link or a resource: Σ of all x on it in periods `first` to `last` ≤ `at_most`; `windows` says how many
//!   that is in so many periods in a row.
//!
//! Multipliers prove that not even fractions solve it: the sum of the rows, each times its multiplier (one above zero
//! takes the row's lower limit, one below zero its upper limit), is an inequality that no point in the unit box obeys.
//! Of sums that one rank each wants it is the model of the machine with every link turned around.

use schedule::ChunkId;
use serde::Serialize;
use topology::{LinkId, Rank};

/// Why the model has no solution.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "proof")]
pub enum Proof {
    /// Some chunk has farther to go than there is time.
    Distance,
    /// Not even fractions solve it.
    Linear {
        /// What to multiply rows with.
        multipliers: Vec<Multiplier>,
    },
    /// The solver's search, in floating point, ended without a solution: its word, which only another search can check.
    Search {
        /// How many nodes it took.
        nodes: u64,
    },
}

/// A row and what to multiply it with.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Multiplier {
    /// The row.
    #[serde(flatten)]
    pub row: Row,
    /// Above zero: the lower limit of the row is meant; below zero: the upper limit.
    pub times: i64,
}

/// A row of the model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "row")]
pub enum Row {
    /// What a rank has follows from what it had and what arrives.
    Arrive {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
        /// The period.
        period: u32,
    },
    /// A chunk comes to a rank once.
    Once {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
    },
    /// Only what is held is sent.
    Hold {
        /// The chunk.
        chunk: ChunkId,
        /// The link.
        link: LinkId,
        /// The period.
        period: u32,
    },
    /// A link or a resource takes only so much.
    Window {
        /// The link, or
        #[serde(skip_serializing_if = "Option::is_none")]
        link: Option<LinkId>,
        /// the resource.
        #[serde(skip_serializing_if = "Option::is_none")]
        resource: Option<topology::ResourceId>,
        /// The first period.
        first: u32,
        /// The last period.
        last: u32,
        /// Departures in these periods.
        at_most: u32,
    },
}

/// A link in periods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkPeriods {
    /// From departure to arrival.
    pub latency: u32,
    /// At most `[1]` departures in any `[0]` periods in a row.
    pub windows: Vec<[u32; 2]>,
}

/// A resource in periods.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ResourcePeriods {
    /// The links whose departures count.
    pub links: Vec<LinkId>,
    /// At most `[1]` departures in any `[0]` periods in a row.
    pub windows: Vec<[u32; 2]>,
}
