//! The end of the replay: stuck threadblocks, counters that are left over, and conflicts with the next call.

use super::super::memory::{Access, VectorClock, join};
use super::super::resolve::{Counter, OperationEffect};
use super::super::violation::{PlanFault, PlanLocation, PlanViolation};
use super::{Give, PlanReplay, RelaxedOrdering, ReplayVerdict, ReplayedOperation};

impl PlanReplay<'_> {
    pub(super) fn finish(mut self) -> ReplayVerdict {
        let stuck = self.stuck();
        if self.violations.is_empty() && !stuck.is_empty() {
            self.violations = stuck;
        } else if self.violations.is_empty() && self.relaxed == RelaxedOrdering::Orders {
            self.doubts();
            self.leftovers();
            let ends = self.ends();
            self.after_end(&ends);
            self.next_call(&ends);
            self.violations.sort_by_key(|violation| violation.at);
        }
        let ends = self.ends();
        let unflushed = self
            .remote
            .own_ports
            .iter()
            .filter(|((rank, component), access)| ends[*rank as usize][*component as usize] <= access.epoch);
        let unflushed = unflushed.map(|(_, access)| self.log[access.op as usize]).collect();
        self.violations.dedup();
        ReplayVerdict { violations: self.violations, unflushed, order: self.order }
    }

    /// Violations for the threadblocks that did not finish.
    pub(super) fn stuck(&self) -> Vec<PlanViolation> {
        let waiting = self.blocks.iter().filter_map(|block| block.items.get(block.next));
        let violation = |item: &ReplayedOperation<'_>| {
            let what = match item.action {
                OperationEffect::Take { counters, .. } => {
                    let empty = counters.iter().find(|id| {
                        let state = &self.counters[id.0 as usize];
                        state.initial + state.gives.len() as i64 <= state.taken
                    });
                    empty
                        .or(counters.first())
                        .map_or(String::new(), |id| self.script.counters[id.0 as usize].to_string())
                }
                OperationEffect::Barrier { id, .. } => format!("the other threadblocks at barrier {id}"),
                _ => "packets that nobody writes before".into(),
            };
            PlanViolation { at: PlanLocation::Op(item.at), fault: PlanFault::Deadlock { what } }
        };
        waiting.map(violation).collect()
    }

    /// A wait that was certain of a signal must be certain of it even with the signals that came later: each signal
    /// that could replace it must come after that signal or after the wait.
    pub(super) fn doubts(&mut self) {
        for (counter, state) in self.script.counters.iter().zip(&self.counters) {
            for take in &state.doubtful {
                let free = |give: &&Give| !take.is_before(give);
                let other_give = |&number: &usize| {
                    let others = state.gives.iter().filter(free).filter(|other| !state.gives[number].is_before(other));
                    others.clone().nth(take.needed.saturating_sub(1)).map(|give| give.op)
                };
                if let Some(op) = take.certain.iter().find_map(other_give) {
                    let other = self.log[op as usize];
                    let fault = PlanFault::Ambiguous { what: counter.to_string(), which: "signal", other };
                    self.violations.push(PlanViolation { at: PlanLocation::Op(self.log[take.op as usize]), fault });
                }
            }
        }
    }

    /// Counters are kept from call to call, so each must end with its initial value.
    pub(super) fn leftovers(&mut self) {
        for (counter, state) in self.script.counters.iter().zip(&self.counters) {
            let left = state.gives.len() as i64 - state.taken;
            if left != 0 {
                let at = match counter {
                    Counter::Signals { to, .. } => PlanLocation::Gpu(*to),
                    Counter::Semaphore { rank, .. } => PlanLocation::Gpu(*rank),
                };
                let fault = PlanFault::Leftover { what: counter.to_string(), left };
                self.violations.push(PlanViolation { at, fault });
            }
        }
    }

    /// For each rank, the operations that are over when its call ends.
    pub(super) fn ends(&self) -> Vec<VectorClock> {
        let components = self.blocks.len() + self.ports.len();
        let end = |blocks: &std::ops::Range<usize>| {
            let mut clock = vec![0; components];
            for block in blocks.clone() {
                join(&mut clock, &self.blocks[block].all());
                clock[block] = self.blocks[block].base[block] + 1;
            }
            clock
        };
        self.of_rank.iter().map(end).collect()
    }

    /// No access to a rank's memory may happen after its call may have ended.
    pub(super) fn after_end(&mut self, ends: &[VectorClock]) {
        let verb = |writes| if writes { "writes" } else { "reads" };
        for (&(owner, component), &(access, cell, writes)) in &self.remote.last {
            if ends[owner as usize][component as usize] <= access.epoch {
                let fault = PlanFault::AfterEnd { access: verb(writes), chunk: self.cells.name(cell, false) };
                let at = PlanLocation::Op(self.log[access.op as usize]);
                self.violations.push(PlanViolation { at, fault });
            }
        }
        let unread: Vec<(u32, Access)> = self.memory.unread_packets().collect();
        for (cell, access) in unread {
            let writer = self.log[access.op as usize];
            if writer.rank != self.cells.rank_of(cell) {
                let fault = PlanFault::AfterEnd { access: "writes", chunk: self.cells.name(cell, true) };
                self.violations.push(PlanViolation { at: PlanLocation::Op(writer), fault });
            }
        }
    }

    /// Checks scratch that is written before its rank is known to have begun: the rank must be done with what the
    /// previous call left there. If calls use two halves in turn, this is the call before the previous one.
    pub(super) fn next_call(&mut self, ends: &[VectorClock]) {
        for &(cell, writer) in &self.remote.unannounced {
            let (owner, end) = (self.cells.rank_of(cell), &ends[writer as usize]);
            let last = self.memory.last(cell).find(|access| match self.plan.use_double_scratch_buffer {
                true => !self.of_rank[owner as usize].clone().any(|block| end[block] > 0),
                false => {
                    let over = end[access.component as usize] > access.epoch
                        || self.packets.heard[writer as usize].contains(&(access.op, access.piece(cell)));
                    self.log[access.op as usize].rank != writer && !over
                }
            });
            if let Some(access) = last {
                let other = self.log[access.op as usize];
                let writes = self.memory.last(cell).find(|access| self.log[access.op as usize].rank == writer);
                let at =
                    writes.map_or(PlanLocation::Gpu(writer), |access| PlanLocation::Op(self.log[access.op as usize]));
                let fault = PlanFault::NextCall { chunk: self.cells.name(cell, false), other };
                self.violations.push(PlanViolation { at, fault });
            }
        }
    }
}
