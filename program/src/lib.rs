//! What each rank does: the physical plan that the interpreter runs.
//!
//! The principal type is [`Program`]: for each rank, threadblocks of steps over three buffers, with explicit
//! dependencies. It is like an MSCCL program \[1\] without MSCCL's limits (no step cap, any number of dependencies).
//!
//! Decisions:
//! * Buffers are addressed in **slots** (one chunk each), never in bytes, so one program serves every count. A
//!   slot has the size of a *part*, and [`Program::shape`] says how many elements each part has for a given
//!   count, which places remainders without padding.
//! * Fused instructions stream: a piece is stored and sent on before the next arrives. They mean no more than
//!   their two halves one after the other, and [`Program::unfused`] writes them so.
//! * Large slots are cut into tiles; the whole program repeats for every tile, and a dependency means *the same
//!   tile of that step*. That pipelines every hop without a second mechanism, as MSCCL's slice loop does.
//! * In-place programs name one buffer only (the larger one), so neither verifier nor interpreter reasons
//!   about aliases.
//! * Only a [`VerifiedProgram`] is executed: [`lower`] makes a program, [`check`] proves it without its help.
//! * Every wait points at a message that arrives earlier in the schedule, so no interleaving deadlocks.
//!
//! \[1\] Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023.

mod check;
mod digest;
mod excerpt;
mod instruction;
mod layout;
mod listing;
mod lower;
mod orbits;
pub mod rewrite;
mod shape;
#[cfg(any(test, feature = "testing"))]
#[expect(missing_docs, clippy::unwrap_used, reason = "only tests see it")]
pub mod testing;
mod timing;

pub use check::{ProgramViolation, StepAt, VerifiedOrbitProgram, VerifiedProgram, check, check_orbits};
pub use digest::{digest, traffic_digest};
pub use excerpt::{Excerpt, has_excerpts, write_excerpts};
pub use instruction::{Buffer, Instruction, Slice};
pub use layout::{Layout, LayoutError, OwnBlock, Slot};
pub use lower::{LowerOptions, Threadblocks, adds_differently, lower, lower_orbits, orbits_add_differently};
pub use orbits::OrbitProgram;
pub use rewrite::replicate;
pub use shape::{PartShape, balanced};
pub use timing::{NoLink, PlayedProgram, play};

use schedule::{Demand, ReduceOp};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{LinkId, Micros, MicrosPerByte, Rank, ResourceId, Topology};

/// Index of a connection in [`Program::connections`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u32);

impl ConnectionId {
    /// The id as an index into [`Program::connections`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An ordered stream of bytes from one rank to another. The n-th receive on it takes the n-th send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Distinguishes connections between the same two ranks.
    pub channel: u32,
    /// The link of the topology that carries it (an emulated cluster paces this link).
    pub link: LinkId,
}

/// How a payload changes between buffer and wire. Today there is only the identity; compression and fused epilogues can
/// be added later without a new format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transform {
    /// The bytes as they are.
    #[default]
    Identity,
}

/// A step of a threadblock on the same rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StepRef {
    /// The threadblock.
    pub threadblock: u32,
    /// The step in it.
    pub step: u32,
}

/// An instruction and the steps that must have finished before it (for the same tile).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The instruction.
    pub instruction: Instruction,
    /// Steps of *other* threadblocks of this rank that must have finished this tile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepRef>,
    /// Payload transform.
    pub transform: Transform,
    /// Index of the schedule's transfer that this step carries out; `None` for local steps. Consecutive steps of one
    /// transfer are one message (one α). For a fused step, this is the transfer that it receives.
    pub transfer: Option<u32>,
    /// The transfer that the send of a fused step carries out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwards: Option<u32>,
}

impl Step {
    /// A step that waits for nothing and belongs to no transfer.
    pub fn new(instruction: Instruction) -> Self {
        Self { instruction, after: Vec::new(), transform: Transform::Identity, transfer: None, forwards: None }
    }
}

/// Steps that run one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Threadblock {
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The part of one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RankProgram {
    /// For each slot of the input buffer, the part p whose shape it has.
    pub input_parts: Vec<u32>,
    /// The same for the output buffer.
    pub output_parts: Vec<u32>,
    /// The same for scratch.
    pub scratch_parts: Vec<u32>,
    /// Threadblocks; they run concurrently.
    pub threadblocks: Vec<Threadblock>,
}

impl RankProgram {
    /// For each slot of a buffer, the part with its shape. Slots lie one after the other.
    pub fn parts(&self, buffer: Buffer) -> &[u32] {
        match buffer {
            Buffer::Input => &self.input_parts,
            Buffer::Output => &self.output_parts,
            Buffer::Scratch => &self.scratch_parts,
        }
    }

    /// The steps of all threadblocks, one threadblock after the other.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.threadblocks.iter().flat_map(|block| &block.steps)
    }
}

/// A lowered collective: the part of every rank, for any element count.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// The demand that it meets.
    pub demand: Arc<Demand>,
    /// The reduction, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Whether input and output are the same memory (nccl-tests' in-place convention).
    pub in_place: bool,
    /// How many elements a slot has, by its part.
    pub shape: PartShape,
    /// Whether all parts are equal, because the element count divides. Slots of different parts may then hold the same
    /// data. Programs of other tools often assume this; lowered programs do not, and serve every count.
    pub uniform: bool,
    /// The connections between ranks.
    pub connections: Vec<Connection>,
    /// One per rank of the topology; ranks without work have no threadblocks.
    pub ranks: Vec<RankProgram>,
    /// Times and rates of the messages. They do not change what a rank does, so the digest does not include them.
    pub tempo: Tempo,
}

/// Times and rates of a program's messages, as far as they are known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tempo {
    /// Start and end of each transfer in the schedule, at the size that it was made for; empty without a schedule.
    pub times: Vec<[Micros; 2]>,
    /// The β of each connection; empty where it is not known.
    pub rates: Vec<MicrosPerByte>,
    /// For each connection, the β of the slowest resource that it shares with other connections of its sender; 0 if
    /// there is none, and an empty list where it is not known.
    pub ports: Vec<MicrosPerByte>,
    /// For each connection, the resource that limits it, from the view of its sender and of its receiver: of its
    /// slowest resources the one that most of the rank's connections use. Empty where it is not known.
    pub bottlenecks: Vec<[Option<ResourceId>; 2]>,
}

/// Two resources count as equally slow if their β differ by less than this factor, because measured rates differ a
/// little.
const EQUALLY_SLOW: f64 = 1.25;

impl Program {
    /// How many bytes the busiest rank copies or adds itself, at the size of the demand: what the cost of messages does not contain.
    pub fn most_worked_bytes(&self) -> u64 {
        let bytes = |rank: &RankProgram| -> u64 {
            let steps = rank.threadblocks.iter().flat_map(|block| &block.steps);
            let slices = steps.filter(|step| step.instruction.works()).map(|step| step.instruction.shape());
            let parts = slices.flat_map(|it| &rank.parts(it.buffer)[it.index as usize..][..it.count as usize]);
            parts.map(|&part| self.shape.length(self.demand.request().size_bytes, part)).sum()
        };
        self.ranks.iter().map(bytes).max().unwrap_or_default()
    }

    /// The same program, lowered for this topology, with the rates of its links and of their resources.
    #[must_use]
    pub fn with_rates(mut self, topology: &Topology) -> Self {
        // The rate of a link is never faster than that of its resources.
        let rate = |lane: &Connection| topology.link(lane.link).beta;
        // Among the connections that a rank sends over, and among those that it receives from.
        let mut users: BTreeMap<(bool, Rank, ResourceId), usize> = BTreeMap::new();
        for lane in &self.connections {
            for &id in &topology.link(lane.link).resources {
                *users.entry((true, lane.from, id)).or_default() += 1;
                *users.entry((false, lane.to, id)).or_default() += 1;
            }
        }
        let bottlenecks = |lane: &Connection| {
            let all = &topology.link(lane.link).resources;
            let slowest = all.iter().map(|&id| topology.resource(id).beta.0).fold(0.0, f64::max);
            let of = |sends: bool, rank: Rank| {
                let slow = all.iter().filter(|&&id| topology.resource(id).beta.0 * EQUALLY_SLOW >= slowest);
                slow.copied().max_by_key(|&id| (users[&(sends, rank, id)], Reverse(id)))
            };
            [of(true, lane.from), of(false, lane.to)]
        };
        let port = |lane: &Connection| {
            let shared = topology.link(lane.link).resources.iter().filter(|&&id| users[&(true, lane.from, id)] > 1);
            shared
                .map(|&id| topology.resource(id).beta)
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap_or(MicrosPerByte(0.0))
        };
        self.tempo.rates = self.connections.iter().map(rate).collect();
        self.tempo.ports = self.connections.iter().map(port).collect();
        self.tempo.bottlenecks = self.connections.iter().map(bottlenecks).collect();
        self
    }

    /// The same program with every fused step as two steps.
    #[must_use]
    pub fn unfused(mut self) -> Self {
        for rank in &mut self.ranks {
            rank.unfuse();
        }
        self
    }
}

impl RankProgram {
    fn unfuse(&mut self) {
        if !self.threadblocks.iter().flat_map(|block| &block.steps).any(|step| step.instruction.is_fused()) {
            return;
        }
        // The new place of each step. For a fused step, the place of its send, because the step has finished only then.
        let moved: Vec<Vec<u32>> = self.threadblocks.iter().map(Threadblock::ends).collect();
        for block in &mut self.threadblocks {
            let mut steps = Vec::with_capacity(block.steps.len());
            for mut step in block.steps.drain(..) {
                step.after.iter_mut().for_each(|on| on.step = moved[on.threadblock as usize][on.step as usize]);
                let (first, second) = step.instruction.halves();
                let transfer = step.forwards.take();
                let transform = step.transform;
                steps.push(Step { instruction: first, ..step });
                steps.extend(second.map(|send| Step { transfer, transform, ..Step::new(send) }));
            }
            block.steps = steps;
        }
    }
}

impl Threadblock {
    /// For each step, the index of its last half among the halves of all steps.
    pub fn ends(&self) -> Vec<u32> {
        let halves = self.steps.iter().map(|step| 1 + u32::from(step.instruction.is_fused()));
        let ends = halves.scan(0, |end, halves| {
            *end += halves;
            Some(*end - 1)
        });
        ends.collect()
    }
}

#[cfg(test)]
mod tests;
