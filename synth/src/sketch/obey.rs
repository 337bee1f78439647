//! Does a schedule obey the sketch it was made under? An independent check, used on every candidate.
//!
//! The principal function is [`obey`]. It reads the resolved tables and the transfers, and nothing that a strategy
//! computed. Whether the schedule is *right* is the verifier's business, not asked here.

use crate::problem::owner;
use crate::{Constraints, Hindrance};
use schedule::{ChunkId, Demand, Schedule, Transfer, TransferKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use topology::{LinkId, Micros, Rank, Topology};

/// A transfer that the sketch does not permit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SketchViolation {
    /// Which rule.
    pub kind: BrokenRule,
    /// Line of the sketch, from 1.
    pub line: u32,
    /// Position of the transfer in the schedule.
    pub transfer: usize,
    /// The first chunk concerned.
    pub chunk: ChunkId,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// When the transfer starts.
    pub time_us: f64,
}

/// A rule of a sketch, broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokenRule {
    /// The link is forbidden.
    ForbiddenLink,
    /// Chunks of this owner must leave (reduced ones: arrive) through another sender.
    NotItsSender,
    /// The chunk has crossed between machines too often.
    TooManyMachineHops {
        /// How often, with this transfer.
        hops: u32,
    },
    /// A relayed chunk went before the sender's own (a reduced one: after the receiver's own).
    OwnChunkAfterRelayed,
}

impl fmt::Display for SketchViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, line, transfer, chunk, from, to, time_us } = self;
        write!(f, "transfer {transfer} (chunk {chunk}, rank {from} → {to} at {time_us} µs) ")?;
        match kind {
            BrokenRule::ForbiddenLink => f.write_str("uses a forbidden link")?,
            BrokenRule::NotItsSender => f.write_str("uses a link reserved for chunks of other ranks")?,
            BrokenRule::TooManyMachineHops { hops } => write!(f, "crosses between machines for the {hops}. time")?,
            BrokenRule::OwnChunkAfterRelayed => f.write_str("breaks the order of own and relayed chunks")?,
        }
        write!(f, " (sketch line {line})")
    }
}

/// Every way in which `schedule` breaks `constraints`, in the order of its transfers within each rule.
pub fn obey(schedule: &Schedule, topology: &Topology, constraints: &Constraints) -> Vec<SketchViolation> {
    let check = Check { schedule, topology, demand: &schedule.demand };
    let mut violations = check.hindrances(constraints);
    if let Some((limit, line)) = constraints.max_machine_hops {
        violations.extend(check.machine_hops(limit, line));
    }
    if let Some(line) = constraints.own_chunks_first {
        violations.extend(check.own_chunks_first(line));
    }
    violations
}

struct Check<'a> {
    schedule: &'a Schedule,
    topology: &'a Topology,
    demand: &'a Demand,
}

impl Check<'_> {
    fn violation(&self, kind: BrokenRule, line: u32, transfer: usize, chunk: ChunkId) -> SketchViolation {
        let Transfer { from, to, start, .. } = self.schedule.transfers[transfer];
        SketchViolation { kind, line, transfer, chunk, from, to, time_us: start.0 }
    }

    fn hindrances(&self, constraints: &Constraints) -> Vec<SketchViolation> {
        let mut violations = Vec::new();
        for (index, transfer) in self.schedule.transfers.iter().enumerate() {
            let hindered = transfer.chunks.iter().find_map(|&chunk| {
                constraints.hindrance(self.demand, chunk, transfer.link).map(|hindrance| (chunk, hindrance))
            });
            if let Some((chunk, hindrance)) = hindered {
                let kind = match hindrance {
                    Hindrance::ForbiddenLink { .. } => BrokenRule::ForbiddenLink,
                    // No single link is hindered by the limit on hops; it is checked below.
                    Hindrance::NotItsSender { .. } | Hindrance::TooManyMachineHops { .. } => BrokenRule::NotItsSender,
                };
                violations.push(self.violation(kind, hindrance.line(), index, chunk));
            }
        }
        violations
    }

    fn crosses_machines(&self, transfer: &Transfer) -> bool {
        self.topology.machine_of(transfer.from) != self.topology.machine_of(transfer.to)
    }

    /// Follows every value: a copy has crossed as often as the best copy that had arrived at its sender, a partial
    /// sum as often as the most travelled part of it. An allreduced chunk may do both: sums in, copies out.
    fn machine_hops(&self, limit: u32, line: u32) -> Vec<SketchViolation> {
        let mut arrivals: BTreeMap<(ChunkId, Rank, TransferKind), Vec<(Micros, u32)>> = BTreeMap::new();
        let mut violations = Vec::new();
        for (index, transfer) in self.schedule.transfers.iter().enumerate() {
            let Transfer { from, to, kind, .. } = *transfer;
            for &chunk in &transfer.chunks {
                let described = self.demand.chunk(chunk);
                let arrived = arrivals.get(&(chunk, from, kind)).map_or(&[][..], Vec::as_slice);
                let in_time = arrived.iter().filter(|(end, _)| is_in_time(*end, transfer.start));
                let crossed = in_time.map(|(_, hops)| *hops);
                let before = match kind {
                    TransferKind::Reduce => crossed.max(),
                    TransferKind::Copy if !described.combine && described.holders.has(from) => None,
                    TransferKind::Copy => crossed.min(),
                };
                let hops = before.unwrap_or(0) + u32::from(self.crosses_machines(transfer));
                if hops > limit {
                    violations.push(self.violation(BrokenRule::TooManyMachineHops { hops }, line, index, chunk));
                }
                arrivals.entry((chunk, to, kind)).or_default().push((transfer.end, hops));
            }
        }
        violations
    }

    /// On a link between machines, no chunk of the sender's own after a relayed one. Reduced chunks run the
    /// other way round: sums for the receiver itself come after those it passes on.
    fn own_chunks_first(&self, line: u32) -> Vec<SketchViolation> {
        #[derive(Default)]
        struct Seen {
            relayed_copy: bool,
            own_sum: bool,
        }
        let mut seen: BTreeMap<LinkId, Seen> = BTreeMap::new();
        let mut violations = Vec::new();
        for (index, transfer) in self.schedule.transfers.iter().enumerate() {
            if !self.crosses_machines(transfer) {
                continue;
            }
            let before = seen.entry(transfer.link).or_default();
            let (late_own, late_relayed) = (before.relayed_copy, before.own_sum);
            let mut broken = None;
            for &chunk in &transfer.chunks {
                let Some(owner) = owner(self.demand, chunk) else { continue };
                let breaks = if self.demand.chunk(chunk).combine {
                    before.own_sum |= owner == transfer.to;
                    late_relayed && owner != transfer.to
                } else {
                    before.relayed_copy |= owner != transfer.from;
                    late_own && owner == transfer.from
                };
                broken = broken.or(breaks.then_some(chunk));
            }
            violations.extend(broken.map(|chunk| self.violation(BrokenRule::OwnChunkAfterRelayed, line, index, chunk)));
        }
        violations
    }
}

/// Arrivals at an instant come before departures at it; the tolerance is that of the file format.
fn is_in_time(end: Micros, start: Micros) -> bool {
    end.0 <= start.0 * (1.0 + 1e-7)
}
