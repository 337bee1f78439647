//! The cost model: links, and the resources that they share.
//!
//! The α–β model is defined only here, on [`Link`] and [`Resource`]. Other code asks them for times, and uses a β itself
//! only as a price per byte: a coefficient of a linear program or of a flow.

use crate::{Bytes, Micros, MicrosPerByte, Rank, ResourceIds};
use serde::{Deserialize, Serialize};

/// What the α of a link does to the link itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Latency {
    /// The link is busy during α as well (TACCL, TACOS, SCCL: a threadblock is busy).
    Occupies,
    /// α is a pure delay (TE-CCL): the next message may start once the bytes have left.
    Pipelines,
}

/// A directed link from one rank to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Time per message.
    pub alpha: Micros,
    /// Time per byte; never below the β of a resource in `resources`.
    pub beta: MicrosPerByte,
    /// Whether α occupies the link.
    pub latency: Latency,
    /// What a message on this link also occupies.
    pub resources: ResourceIds,
}

impl Link {
    /// The part of a message's time that its bytes take: β·b.
    #[inline]
    pub fn byte_time(&self, bytes: Bytes) -> Micros {
        self.beta * bytes
    }

    /// From the start of a message of `bytes` to its arrival: α + β·b.
    #[inline]
    pub fn transfer_time(&self, bytes: Bytes) -> Micros {
        self.alpha + self.byte_time(bytes)
    }

    /// How long a message of `bytes` keeps the link busy: β·b, and α where α occupies.
    #[inline]
    pub fn occupancy(&self, bytes: Bytes) -> Micros {
        self.busy(self.beta, bytes)
    }

    #[inline]
    fn busy(&self, beta: MicrosPerByte, bytes: Bytes) -> Micros {
        match self.latency {
            Latency::Occupies => self.alpha + beta * bytes,
            Latency::Pipelines => beta * bytes,
        }
    }
}

/// Something that links share: it serves at most one message of its links at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Resource {
    /// A name a person recognises, such as `machine0.nic0.tx`.
    pub name: String,
    /// Time per byte.
    pub beta: MicrosPerByte,
    /// Time per message that a message takes at least, also where the α of its link is a pure delay: the cores of a machine
    /// handle one message after the other, though many wait for their receivers to wake. Never above the α of a link.
    pub alpha: Micros,
}

impl Resource {
    /// A resource whose messages take the time of their bytes, and α only where it occupies.
    pub fn new(name: impl Into<String>, beta: MicrosPerByte) -> Self {
        Self { name: name.into(), beta, alpha: Micros::ZERO }
    }

    /// The part of a message's time here that its bytes take: β·b.
    #[inline]
    pub fn byte_time(&self, bytes: Bytes) -> Micros {
        self.beta * bytes
    }

    /// How long a message of `bytes` over `link` keeps this resource busy, from the message's start.
    #[inline]
    pub fn occupancy(&self, link: &Link, bytes: Bytes) -> Micros {
        link.busy(self.beta, bytes).max(self.alpha + self.beta * bytes)
    }
}
