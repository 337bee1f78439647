//! The last accesses to each cell, and whether all conflicting accesses are ordered.
//!
//! The principal type is [`PlanMemory`]: for every cell its last write and the reads since, as epochs of clock
//! components, as in FastTrack (Flanagan and Freund, PLDI 2009). The judge in [`super::order`] replays the plan in one
//! order and asks here before every access. The happens-before relation does not depend on that order, so the answer
//! does not depend on it either.

use super::geometry::{CellSpan, Cells};
use super::violation::PlanFault;

/// A vector clock: for each component, its first epoch that is not certainly over.
pub(super) type VectorClock = Vec<u32>;

/// Joins another clock: takes the maximum of each component.
pub(super) fn join(clock: &mut VectorClock, other: &VectorClock) {
    for (own, &other) in clock.iter_mut().zip(other) {
        *own = (*own).max(other);
    }
}

/// One access: its threads and its time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Access {
    /// The clock component of its threads.
    pub(super) component: u32,
    pub(super) epoch: u32,
    /// The transfer, as the judge counts them.
    pub(super) op: u32,
    /// The span, and whether its transfer moves packet by packet. If these are equal, the same thread accesses each
    /// piece.
    pub(super) pattern: (CellSpan, bool),
    /// The iteration, inside pipelines.
    pub(super) iteration: Option<u32>,
}

#[derive(Clone, Default, Debug)]
struct CellState {
    write: Option<Access>,
    reads: Vec<Access>,
    /// Whether it holds a packet of this call.
    packet: bool,
    /// Whether a thread has waited for that packet's flag.
    awaited: bool,
}

impl Access {
    /// The number of a cell's piece in its span.
    pub(super) fn piece(&self, cell: u32) -> u32 {
        let span = self.pattern.0;
        cell.saturating_sub(span.first) / if span.packet { 2 } else { 1 }
    }
}

/// For each piece of a transfer, the pieces of transfers that are over when it is done, itself included. Packets are
/// passed on piece by piece, and a thread that has a packet knows that the data it was made of has been read.
pub(super) type Pieces = Vec<Vec<(u32, u32)>>;

/// The knowledge of the threads of an access: what is certainly over.
#[derive(Clone, Copy)]
pub(super) struct Known<'k> {
    pub(super) clock: &'k VectorClock,
    /// Empty if there are no packets.
    pub(super) pieces: &'k Pieces,
}

/// All cells.
pub(super) struct PlanMemory<'c> {
    cells: &'c Cells,
    state: Vec<CellState>,
}

/// A conflict that was found; the judge converts it to a violation.
pub(super) struct Conflict {
    pub(super) cell: u32,
    pub(super) other: Access,
    pub(super) other_writes: bool,
    pub(super) kind: ConflictKind,
}

/// The broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConflictKind {
    /// The two accesses are not ordered.
    Unordered,
    /// Both accesses are by the threadblock itself, without a synchronization of its threads between them.
    Unsynced,
    /// Packets are read as data, or data as packets.
    Mixed,
    /// A packet is written a second time.
    Twice,
    /// A value of another iteration is read.
    Stale,
}

impl<'c> PlanMemory<'c> {
    pub(super) fn new(cells: &'c Cells) -> Self {
        Self { cells, state: vec![CellState::default(); cells.total as usize] }
    }

    /// Whether all packets of a span have been written in this call.
    pub(super) fn arrived(&self, span: CellSpan) -> bool {
        span.cells().all(|cell| self.state[cell as usize].packet)
    }

    /// The writer of each packet of a span, and the number of its piece.
    pub(super) fn writers(&self, span: CellSpan) -> impl Iterator<Item = (u32, u32)> + '_ {
        let firsts = span.cells().step_by(2);
        firsts.filter_map(|cell| self.state[cell as usize].write.map(|write| (write.op, write.piece(cell))))
    }

    /// Reads a span with the knowledge `known`; reports the first conflict.
    pub(super) fn read(&mut self, span: CellSpan, access: Access, known: Known<'_>) -> Option<Conflict> {
        let mut found = None;
        for cell in span.cells() {
            let state = &mut self.state[cell as usize];
            state.awaited |= span.awaited;
            let conflict = |other, kind| Conflict { cell, other, other_writes: true, kind };
            if let Some(write) = state.write {
                if state.packet != span.packet {
                    found = found.or(Some(conflict(write, ConflictKind::Mixed)));
                } else if !span.awaited {
                    found = found.or_else(|| ordered(write, access, cell, known).map(|kind| conflict(write, kind)));
                }
                if write.iteration.is_some() && access.iteration.is_some() && write.iteration != access.iteration {
                    found = found.or(Some(conflict(write, ConflictKind::Stale)));
                }
            }
            state.reads.retain(|read| {
                read.component != access.component || read.epoch >= access.epoch && read.pattern != access.pattern
            });
            state.reads.push(access);
        }
        found
    }

    /// Writes a span with the knowledge `known`; reports the first conflict.
    pub(super) fn write(&mut self, span: CellSpan, access: Access, known: Known<'_>) -> Option<Conflict> {
        let mut found = None;
        for cell in span.cells() {
            let state = &mut self.state[cell as usize];
            let conflict = |other, other_writes, kind| Conflict { cell, other, other_writes, kind };
            for &read in &state.reads {
                found = found.or_else(|| ordered(read, access, cell, known).map(|kind| conflict(read, false, kind)));
            }
            if let Some(write) = state.write {
                if state.packet && span.packet {
                    found = found.or(Some(conflict(write, true, ConflictKind::Twice)));
                }
                found = found.or_else(|| ordered(write, access, cell, known).map(|kind| conflict(write, true, kind)));
            }
            state.reads.clear();
            state.write = Some(access);
            state.packet = span.packet;
            state.awaited = false;
        }
        found
    }

    /// Cells of packets for whose flags no thread waited, with their writers.
    pub(super) fn unread_packets(&self) -> impl Iterator<Item = (u32, Access)> + '_ {
        let cells = (0u32..).zip(&self.state);
        cells.filter(|(_, state)| state.packet && !state.awaited).filter_map(|(cell, state)| Some((cell, state.write?)))
    }

    /// All accesses to a cell after which this call does not write it again.
    pub(super) fn last(&self, cell: u32) -> impl Iterator<Item = Access> + '_ {
        let state = &self.state[cell as usize];
        state.write.into_iter().chain(state.reads.iter().copied())
    }

    pub(super) fn cells(&self) -> &'c Cells {
        self.cells
    }
}

/// `None` if the earlier access is over before the later one begins.
fn ordered(earlier: Access, later: Access, cell: u32, known: Known<'_>) -> Option<ConflictKind> {
    if known.clock[earlier.component as usize] > earlier.epoch {
        return None;
    }
    let over = (earlier.op, earlier.piece(cell));
    if known.pieces.get(later.piece(cell) as usize).is_some_and(|pieces| pieces.binary_search(&over).is_ok()) {
        return None;
    }
    if earlier.component != later.component {
        return Some(ConflictKind::Unordered);
    }
    // The same threads without a synchronization in between: correct only if one thread accesses each piece in both.
    let same = earlier.op == later.op || earlier.pattern == later.pattern;
    (!same).then_some(ConflictKind::Unsynced)
}

impl Conflict {
    /// The violation for a conflict that `access` (`reads` or `writes`) found.
    pub(super) fn fault(
        &self,
        memory: &PlanMemory<'_>,
        writes: bool,
        packet: bool,
        other: super::violation::OpAt,
    ) -> PlanFault {
        let verb = |writes| if writes { "writes" } else { "reads" };
        let chunk = memory.cells().name(self.cell, packet);
        let name = |packet| if packet { "packets" } else { "data" };
        match self.kind {
            ConflictKind::Unordered | ConflictKind::Unsynced => PlanFault::Race {
                access: verb(writes),
                chunk,
                other,
                other_access: verb(self.other_writes),
                hint: if self.kind == ConflictKind::Unsynced { " (a `nop` between them would)" } else { "" },
            },
            ConflictKind::Mixed => {
                PlanFault::Mixed { access: verb(writes), chunk, found: name(packet), held: name(!packet), other }
            }
            ConflictKind::Twice => PlanFault::PacketTwice { chunk, other },
            ConflictKind::Stale => PlanFault::Stale { chunk, other },
        }
    }
}
