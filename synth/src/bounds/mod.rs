//! Lower bounds: what no schedule can beat, each with a certificate that another program can check.
//!
//! The principal function is [`bounds`]. Bounds allow merged messages (n chunks on a link take α + n·β·b), so no
//! valid schedule lies below them; the one that forbids merging is reported under a scope of its own and never
//! becomes the bound of a schedule. Links that the sketch forbids do not count. Two bounds are never added.
//!
//! Sums that one rank wants are bounded as spreading on the reversed topology, as they are planned. For other
//! sums (AllReduce) each argument is made directly: twice the bound of an AllGather would be wrong.

mod capacity;
mod cut;
mod degree;
mod flow;
mod latency;
mod wire;

use crate::Problem;
use crate::reversal::reversed_spreading;
use degree::{Side, degree};
use schedule::LowerBound;
use serde::Serialize;
use topology::{LinkId, Micros, MicrosPerByte, Rank, Topology};

/// Which schedules a bound speaks about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// However the data is cut.
    AnyChunking,
    /// With the chunks of this demand, in messages of any number of them.
    ThisChunking,
    /// With the chunks of this demand, each in a message of its own.
    OneChunkPerMessage,
}

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
    },
    /// What all deliveries together put on the links has to share all of them.
    Volume {
        /// The bytes of all deliveries that no schedule can do without.
        bytes: f64,
        /// The inverse throughput of all links together, under the resources they share.
        #[serde(rename = "capacity_us_per_byte")]
        capacity: MicrosPerByte,
    },
    /// A shortest path that some chunk must travel.
    Path {
        /// The links, first link first.
        links: Vec<LinkId>,
    },
}

impl Certificate {
    /// A cut whose links carry `capacity` bytes per µs.
    fn cut(ranks: Vec<Rank>, capacity: f64) -> Self {
        Self::Cut { ranks, capacity: MicrosPerByte(1.0 / capacity) }
    }
}

/// A proven lower bound on the makespan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bound {
    /// The argument: `latency`, `ingress`, `egress`, `cut`, `cut_tail`, `wire`.
    pub name: &'static str,
    /// Which schedules it speaks about.
    pub scope: Scope,
    /// No such schedule is faster.
    #[serde(rename = "value_us")]
    pub value: Micros,
    /// The evidence.
    pub certificate: Certificate,
}

/// All bounds of one problem.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Bounds {
    /// In the order in which they were computed.
    pub list: Vec<Bound>,
}

impl Bounds {
    /// The bound that binds: the largest that holds for every schedule of this demand, merged messages included.
    pub fn binding(&self) -> Option<&Bound> {
        let valid = self.list.iter().filter(|bound| bound.scope != Scope::OneChunkPerMessage);
        valid.fold(None, |best: Option<&Bound>, bound| match best {
            Some(best) if best.value >= bound.value => Some(best),
            _ => Some(bound),
        })
    }

    /// [`Self::binding`] as schedules carry it; zero where nothing has to move.
    pub fn best(&self) -> LowerBound {
        match self.binding() {
            Some(bound) => LowerBound { value: bound.value, name: bound.name.to_owned() },
            None => LowerBound { value: Micros::ZERO, name: "latency".to_owned() },
        }
    }
}

/// Every lower bound that applies to `problem`.
pub fn bounds(problem: &Problem) -> Bounds {
    if let Some(spreading) = reversed_spreading(problem) {
        let Bounds { mut list } = direct(&spreading);
        list.iter_mut().for_each(|bound| turn_around(bound, &problem.topology));
        return Bounds { list };
    }
    direct(problem)
}

fn direct(problem: &Problem) -> Bounds {
    let mut list = latency::latency(problem);
    list.extend(degree(problem, Side::Ingress));
    list.extend(degree(problem, Side::Egress));
    list.extend(cut::cut(problem));
    list.extend(wire::wire(problem));
    Bounds { list }
}

/// Rewrites a bound on the reversed topology in terms of the topology itself.
fn turn_around(bound: &mut Bound, topology: &Topology) {
    bound.name = match bound.name {
        "ingress" => "egress",
        "egress" => "ingress",
        name => name,
    };
    match &mut bound.certificate {
        Certificate::Cut { ranks, .. } => {
            let outside = topology.ranks().filter(|rank| ranks.binary_search(rank).is_err());
            *ranks = outside.collect();
        }
        Certificate::Path { links } => links.reverse(),
        Certificate::Volume { .. } => {}
    }
}
