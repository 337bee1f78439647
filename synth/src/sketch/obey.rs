//! Whether a schedule obeys its sketch: an independent check of every candidate.
//!
//! The principal function is [`obey`]. It reads the resolved tables and the transfers, and nothing that a strategy
//! computed. Whether the schedule is *valid* is checked by the verifier, not here.

use crate::problem::constraints::owner;
use crate::problem::{Constraints, Hindrance, Stages};
use schedule::{ChunkId, Demand, Schedule, Transfer, TransferKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use topology::{LinkId, Micros, Rank, Topology};

/// A transfer that the sketch does not permit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SketchViolation {
    /// The broken rule.
    #[serde(flatten)]
    pub kind: BrokenRule,
    /// Line of the sketch, from 1.
    pub line: u32,
    /// Index of the transfer in the schedule.
    pub transfer: usize,
    /// The first chunk concerned.
    pub chunk: ChunkId,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// When the transfer starts, in microseconds.
    pub time_us: f64,
}

/// A rule of a sketch that a transfer breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BrokenRule {
    /// The link is forbidden.
    ForbiddenLink,
    /// The link is reserved for chunks of other owners.
    NotItsSender,
    /// The chunk has crossed between machines too often.
    TooManyMachineHops {
        /// The number of crossings, with this transfer.
        hops: u32,
    },
    /// A chunk of the sender's own left after a relayed one. For reduced chunks: a sum that the receiver passes on left
    /// after a sum for the receiver itself.
    OwnChunkAfterRelayed,
    /// The link belongs to earlier stages only, and the chunk has reached a later stage.
    OutOfStage {
        /// The stage that the chunk has reached, from 1.
        after: u8,
    },
}

impl fmt::Display for SketchViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, line, transfer, chunk, from, to, time_us } = self;
        write!(f, "transfer {transfer} (chunk {chunk}, rank {from} → {to} at {time_us} µs) ")?;
        match kind {
            BrokenRule::ForbiddenLink => f.write_str("uses a forbidden link")?,
            BrokenRule::NotItsSender => f.write_str("uses a link reserved for chunks of other ranks")?,
            BrokenRule::TooManyMachineHops { hops } => write!(f, "is crossing {hops} between machines, one too many")?,
            BrokenRule::OwnChunkAfterRelayed => f.write_str("breaks the order of own and relayed chunks")?,
            BrokenRule::OutOfStage { after } => write!(f, "uses a link that has no stage from {after} on")?,
        }
        write!(f, " (sketch line {line})")
    }
}

/// Every violation of `constraints` in `schedule`, rule by rule, and for each rule in the order of the transfers.
pub fn obey(schedule: &Schedule, topology: &Topology, constraints: &Constraints) -> Vec<SketchViolation> {
    let check = SketchCheck { schedule, topology, demand: &schedule.demand };
    let mut violations = check.hindrances(constraints);
    if let Some((limit, line)) = constraints.max_machine_hops {
        violations.extend(check.machine_hops(limit, line));
    }
    if let Some(stages) = &constraints.stages {
        violations.extend(check.stages(stages));
    }
    if let Some(line) = constraints.own_chunks_first {
        violations.extend(check.own_chunks_first(line));
    }
    violations
}

struct SketchCheck<'a> {
    schedule: &'a Schedule,
    topology: &'a Topology,
    demand: &'a Demand,
}

impl SketchCheck<'_> {
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
                    // `hindrance` looks at single links, and never returns the two kinds that depend on the way. Those
                    // are checked below.
                    Hindrance::NotItsSender { .. }
                    | Hindrance::TooManyMachineHops { .. }
                    | Hindrance::OutOfStage { .. } => BrokenRule::NotItsSender,
                };
                violations.push(self.violation(kind, hindrance.line(), index, chunk));
            }
        }
        violations
    }

    fn crosses_machines(&self, transfer: &Transfer) -> bool {
        self.topology.machine_of(transfer.from) != self.topology.machine_of(transfer.to)
    }

    /// Counts the crossings of every value. A copy continues the best copy that had arrived at its sender; a partial
    /// sum counts as many crossings as its most travelled part. A chunk of an AllReduce is counted twice: as a sum on
    /// the way in and as a copy on the way out.
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

    /// Follows every value through the stages. A copy is in the stage of the least advanced copy that had arrived at
    /// its sender. A partial sum is in the stage of its most advanced part, and a copy of a sum in the stage of the
    /// sum.
    fn stages(&self, stages: &Stages) -> Vec<SketchViolation> {
        /// When a value arrived, how, and the stage that it had reached.
        type Arrival = (Micros, TransferKind, u8);
        let mut arrivals: BTreeMap<(ChunkId, Rank), Vec<Arrival>> = BTreeMap::new();
        let mut violations = Vec::new();
        for (index, transfer) in self.schedule.transfers.iter().enumerate() {
            let Transfer { from, to, kind, .. } = *transfer;
            for &chunk in &transfer.chunks {
                let arrived = arrivals.get_mut(&(chunk, from)).map_or(&mut [][..], Vec::as_mut_slice);
                // The order of arrivals matters for sums only: an arriving copy replaces the value that was there.
                arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
                let in_time = arrived.iter().filter(|(end, ..)| is_in_time(*end, transfer.start));
                let described = self.demand.chunk(chunk);
                let stage = match described.combine {
                    true => in_time.fold(0, |stage, &(_, kind, arrived)| match kind {
                        TransferKind::Reduce => stage.max(arrived),
                        TransferKind::Copy => arrived,
                    }),
                    false if described.holders.has(from) => 0,
                    false => in_time.map(|&(.., arrived)| arrived).min().unwrap_or(0),
                };
                let next = stages.after(stage, transfer.link);
                // A link that is in no stage is forbidden, which was reported above.
                if next.is_none() && stages.of_link[transfer.link.index()] != 0 {
                    let broken = BrokenRule::OutOfStage { after: stage + 1 };
                    violations.push(self.violation(broken, stages.line, index, chunk));
                }
                arrivals.entry((chunk, to)).or_default().push((transfer.end, kind, next.unwrap_or(stage)));
            }
        }
        violations
    }

    /// On a link between machines, no chunk of the sender's own may follow a relayed one. For reduced chunks the order
    /// is reversed: sums for the receiver itself come after the sums that it passes on.
    fn own_chunks_first(&self, line: u32) -> Vec<SketchViolation> {
        #[derive(Default)]
        struct SentKinds {
            relayed_copy: bool,
            own_sum: bool,
        }
        let mut seen: BTreeMap<LinkId, SentKinds> = BTreeMap::new();
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

/// Whether an arrival is in time for a departure; arrivals at an instant come before departures at that instant. The
/// tolerance is that of the file format.
fn is_in_time(end: Micros, start: Micros) -> bool {
    end.0 <= start.0 * (1.0 + 1e-7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::SketchFile;
    use expect_test::{Expect, expect};
    use schedule::{Collective, Request};
    use std::sync::Arc;
    use topology::resolve;

    /// Plays transfers `(chunk, from, to)` one after the other, 10 µs each, on two NDv2 machines.
    fn check(sketch: &str, collective: Collective, sent: &[(u32, u32, u32)], expected: Expect) {
        let topology = resolve("ndv2x2,costs=taccl-1mb").unwrap();
        let sketch = SketchFile::parse(sketch, "s.yaml").unwrap().resolve(&topology).unwrap();
        let demand = Arc::new(Demand::new(Request::new(collective, 16, 16_000)).unwrap());
        let last_reduce = sent.iter().rposition(|&(_, _, to)| to >= 8).unwrap_or(0);
        let transfers = sent.iter().enumerate().map(|(index, &(chunk, from, to))| {
            let (from, to) = (Rank(from), Rank(to));
            // In an AllReduce, all transfers up to the last arrival in the second machine reduce.
            let reduces = collective.combines() && (collective != Collective::AllReduce || index <= last_reduce);
            Transfer {
                chunks: [ChunkId(chunk)].into_iter().collect(),
                from,
                to,
                link: topology.between(from, to).next().unwrap(),
                kind: if reduces { TransferKind::Reduce } else { TransferKind::Copy },
                start: Micros(10.0 * index as f64),
                end: Micros(10.0 * (index + 1) as f64),
            }
        });
        let schedule = Schedule::new(&topology, demand, transfers.collect(), "by hand");
        let violations = obey(&schedule, &topology, &sketch.constraints);
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_forbidden_link_is_seen_every_time() {
        let sketch = "relays: {0: [1]}\nlinks:\n  forbid:\n    - [2, 3]\n";
        check(sketch, Collective::AllGather, &[(2, 2, 0), (2, 0, 9), (8, 8, 1)], expect![[""]]);
        check(
            sketch,
            Collective::AllGather,
            &[(2, 2, 3), (0, 0, 8), (2, 2, 3)],
            expect![[r#"
            transfer 0 (chunk 2, rank 2 → 3 at 0 µs) uses a forbidden link (sketch line 4)
            transfer 1 (chunk 0, rank 0 → 8 at 10 µs) uses a forbidden link (sketch line 1)
            transfer 2 (chunk 2, rank 2 → 3 at 20 µs) uses a forbidden link (sketch line 4)"#]],
        );
    }

    #[test]
    fn chunks_leave_through_their_sender() {
        let sketch = "relays: {0: [1], 2: [3]}\nsenders:\n  0: [0, 1, 4, 5]\n  2: [2, 3, 6, 7]\n";
        check(sketch, Collective::AllGather, &[(1, 1, 0), (1, 0, 9), (3, 3, 2), (3, 2, 11)], expect![[""]]);
        check(
            sketch,
            Collective::AllGather,
            &[(3, 3, 0), (3, 0, 9)],
            expect![
                "transfer 1 (chunk 3, rank 0 → 9 at 10 µs) uses a link reserved for chunks of other ranks (sketch line 3)"
            ],
        );
        // The owner of a sum is the rank that wants it: rank 11 is local rank 3 of the second machine.
        check(
            sketch,
            Collective::ReduceScatter,
            &[(11, 2, 11), (11, 0, 9)],
            expect![
                "transfer 1 (chunk 11, rank 0 → 9 at 10 µs) uses a link reserved for chunks of other ranks (sketch line 3)"
            ],
        );
    }

    #[test]
    fn machine_hops_are_counted_along_the_way() {
        let there_and_back = [(0, 0, 9), (0, 9, 8), (0, 8, 1)];
        check("max_machine_hops: 2", Collective::AllGather, &there_and_back, expect![[""]]);
        check(
            "max_machine_hops: 1",
            Collective::AllGather,
            &there_and_back,
            expect![
                "transfer 2 (chunk 0, rank 8 → 1 at 20 µs) is crossing 2 between machines, one too many (sketch line 1)"
            ],
        );
        // The holder's own copy has not crossed, even after a copy came back to the holder.
        let own = [(0, 0, 9), (0, 9, 0), (0, 0, 10)];
        check(
            "max_machine_hops: 1",
            Collective::AllGather,
            &own,
            expect![
                "transfer 1 (chunk 0, rank 9 → 0 at 10 µs) is crossing 2 between machines, one too many (sketch line 1)"
            ],
        );
        // A sum counts as many crossings as its most travelled part.
        check(
            "max_machine_hops: 1",
            Collective::ReduceScatter,
            &[(9, 9, 0), (9, 0, 1), (9, 1, 9)],
            expect![
                "transfer 2 (chunk 9, rank 1 → 9 at 20 µs) is crossing 2 between machines, one too many (sketch line 1)"
            ],
        );
        // Crossings of sums and of copies are counted separately.
        check("max_machine_hops: 1", Collective::AllReduce, &[(0, 1, 0), (0, 0, 9), (0, 9, 1)], expect![[""]]);
    }

    #[test]
    fn stages_are_left_behind() {
        let sketch = "stages: [between_machines, inside_machine]";
        check(sketch, Collective::AllGather, &[(0, 0, 9), (0, 9, 8), (0, 0, 1)], expect![[""]]);
        check(
            sketch,
            Collective::AllGather,
            &[(1, 1, 0), (1, 0, 9), (0, 0, 9), (0, 9, 8), (0, 8, 1), (0, 8, 2)],
            expect![[r#"
                transfer 1 (chunk 1, rank 0 → 9 at 10 µs) uses a link that has no stage from 2 on (sketch line 1)
                transfer 4 (chunk 0, rank 8 → 1 at 40 µs) uses a link that has no stage from 2 on (sketch line 1)
                transfer 5 (chunk 0, rank 8 → 2 at 50 µs) uses a link that has no stage from 2 on (sketch line 1)"#]],
        );
        // With three stages, a chunk may move inside a machine, then cross, then move inside again, but not cross back.
        let three = "stages: [inside, between, inside]";
        check(three, Collective::AllGather, &[(1, 1, 0), (1, 0, 9), (1, 9, 8)], expect![[""]]);
        check(
            three,
            Collective::AllGather,
            &[(1, 1, 0), (1, 0, 9), (1, 9, 8), (1, 8, 2)],
            expect![
                "transfer 3 (chunk 1, rank 8 → 2 at 30 µs) uses a link that has no stage from 3 on (sketch line 1)"
            ],
        );
        // The holder's own copy stays in the first stage, even if a copy comes back to the holder.
        check(sketch, Collective::AllGather, &[(0, 0, 1), (0, 0, 9)], expect![[""]]);
    }

    #[test]
    fn sums_go_through_the_stages_with_their_most_advanced_part() {
        let sketch = "stages: [inside, between, inside]";
        check(sketch, Collective::ReduceScatter, &[(9, 2, 0), (9, 0, 9)], expect![[""]]);
        check(sketch, Collective::AllReduce, &[(9, 1, 0), (9, 0, 9), (9, 9, 8)], expect![[""]]);
        check(
            sketch,
            Collective::ReduceScatter,
            &[(1, 8, 2), (1, 2, 3), (1, 3, 9), (1, 9, 1)],
            expect![[r#"
                transfer 2 (chunk 1, rank 3 → 9 at 20 µs) uses a link that has no stage from 3 on (sketch line 1)
                transfer 3 (chunk 1, rank 9 → 1 at 30 µs) uses a link that has no stage from 3 on (sketch line 1)"#]],
        );
    }

    #[test]
    fn a_violation_is_flat_json() {
        let violation = SketchViolation {
            kind: BrokenRule::TooManyMachineHops { hops: 2 },
            line: 7,
            transfer: 3,
            chunk: ChunkId(1),
            from: Rank(0),
            to: Rank(9),
            time_us: 20.5,
        };
        expect![[r#"{"kind":"too_many_machine_hops","hops":2,"line":7,"transfer":3,"chunk":1,"from":0,"to":9,"time_us":20.5}"#]].assert_eq(&serde_json::to_string(&violation).unwrap());
    }

    #[test]
    fn own_chunks_leave_first() {
        let sketch = "own_chunks_first: true";
        check(sketch, Collective::AllGather, &[(1, 1, 0), (0, 0, 9), (1, 0, 9)], expect![[""]]);
        check(
            sketch,
            Collective::AllGather,
            &[(1, 1, 0), (1, 0, 9), (0, 0, 9)],
            expect![
                "transfer 2 (chunk 0, rank 0 → 9 at 20 µs) breaks the order of own and relayed chunks (sketch line 1)"
            ],
        );
        // Inside a machine, any order is allowed.
        check(sketch, Collective::AllGather, &[(1, 1, 0), (1, 0, 2), (0, 0, 2)], expect![[""]]);
        // For sums the order is reversed: those that the receiver passes on come first.
        check(sketch, Collective::ReduceScatter, &[(10, 0, 9), (9, 0, 9)], expect![[""]]);
        check(
            sketch,
            Collective::ReduceScatter,
            &[(9, 0, 9), (10, 0, 9)],
            expect![
                "transfer 1 (chunk 10, rank 0 → 9 at 10 µs) breaks the order of own and relayed chunks (sketch line 1)"
            ],
        );
    }
}
