//! The replay: which operation is next, and the knowledge that signals and waits carry.

use super::super::memory::{VectorClock, join};
use super::super::resolve::{CounterId, OperationEffect};
use super::super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};
use super::{Give, PlanReplay, RelaxedOrdering, Take};
use std::rc::Rc;

impl<'s> PlanReplay<'s> {
    /// Continues until no operation is possible. Waits whose signals come from several threadblocks come last, after
    /// all other operations that could signal.
    pub(super) fn run(&mut self) {
        if !self.violations.is_empty() {
            return;
        }
        loop {
            let mut moved = false;
            for block in 0..self.blocks.len() {
                while self.step(block, false) {
                    moved = true;
                }
            }
            if !moved && !(0..self.blocks.len()).any(|block| self.step(block, true)) {
                return;
            }
        }
    }

    /// Replays the next operation of a threadblock, if it is possible now.
    pub(super) fn step(&mut self, block: usize, doubtful: bool) -> bool {
        let Some(&item) = self.blocks[block].items.get(self.blocks[block].next) else { return false };
        let done = match item.action {
            OperationEffect::Sync => {
                self.meet(&[block]);
                true
            }
            OperationEffect::Barrier { id, .. } => return self.barrier(self.blocks[block].rank, *id),
            OperationEffect::Give { counters, relaxed } => {
                self.log.push(item.at);
                for (lane, &(counter, port)) in (0..).zip(counters) {
                    self.give(block, lane, counter, port, *relaxed);
                }
                true
            }
            OperationEffect::Take { counters, relaxed } => self.take(block, item.at, counters, *relaxed, doubtful),
            OperationEffect::Flush { channels } => {
                for (lane, &channel) in (0..).zip(channels) {
                    self.flush(block, lane, channel);
                }
                true
            }
            OperationEffect::Transfer { transfers, share, .. } => self.transfers(block, item, transfers, *share),
            OperationEffect::Loop { .. } => true,
        };
        if done {
            self.blocks[block].next += 1;
        }
        done
    }

    /// Synchronizes all threads of the given threadblocks.
    pub(super) fn meet(&mut self, members: &[usize]) {
        let mut clock = self.blocks[members[0]].all();
        members[1..].iter().for_each(|&member| join(&mut clock, &self.blocks[member].all()));
        members.iter().for_each(|&member| clock[member] = self.blocks[member].base[member] + 1);
        let clock = Rc::new(clock);
        for &member in members {
            let block = &mut self.blocks[member];
            block.base = clock.clone();
            block.lanes.clear();
            block.data = None;
        }
    }

    /// Passes a barrier if all its threadblocks have arrived.
    pub(super) fn barrier(&mut self, rank: u32, id: u32) -> bool {
        let Some((members, _)) = self.barriers.get(&(rank, id)) else { return false };
        let members: Vec<usize> = members.iter().copied().collect();
        let here = |&member: &usize| {
            let block = &self.blocks[member];
            let item = block.items.get(block.next);
            item.is_some_and(|item| matches!(item.action, OperationEffect::Barrier { id: other, .. } if *other == id))
        };
        if !members.iter().all(here) {
            return false;
        }
        self.meet(&members);
        members.iter().for_each(|&member| self.blocks[member].next += 1);
        true
    }

    pub(super) fn give(&mut self, block: usize, lane: u32, counter: CounterId, port: Option<u32>, relaxed: bool) {
        let clock = match port {
            None => self.blocks[block]
                .lanes
                .get(&lane)
                .map_or_else(|| self.blocks[block].base.clone(), |lane| Rc::new(lane.clone())),
            Some(channel) => Rc::new(self.told(block, lane, channel)),
        };
        let tells = !(relaxed && self.relaxed == RelaxedOrdering::Memoryless);
        let epoch = self.blocks[block].base[block];
        let op = self.log.len() as u32 - 1;
        let state = &mut self.counters[counter.0 as usize];
        state.gives.push(Give { block: block as u32, epoch, op, clock: tells.then_some(clock) });
    }

    /// Gives a port the knowledge of a lane; returns the clock at which it has executed all its tasks.
    pub(super) fn told(&mut self, block: usize, lane: u32, channel: u32) -> VectorClock {
        let Some(port) = self.ports.get_mut(&(block, channel)) else {
            return VectorClock::clone(self.blocks[block].lane(lane));
        };
        join(&mut port.clock, self.blocks[block].lane(lane));
        port.clock[port.component as usize] += 1;
        port.clock.clone()
    }

    pub(super) fn flush(&mut self, block: usize, lane: u32, channel: u32) {
        let mut clock = self.told(block, lane, channel);
        join(&mut clock, self.blocks[block].lane(lane));
        self.blocks[block].lanes.insert(lane, clock);
    }

    pub(super) fn take(
        &mut self,
        block: usize,
        at: OpAt,
        counters: &[CounterId],
        relaxed: bool,
        doubtful: bool,
    ) -> bool {
        for id in counters {
            let state = &self.counters[id.0 as usize];
            let several = state.givers > 1;
            if state.initial + state.gives.len() as i64 <= state.taken || (several && !doubtful) {
                return false;
            }
        }
        self.log.push(at);
        for (lane, &id) in (0..).zip(counters) {
            let learned = self.taken(block, at, id, lane);
            if relaxed && self.relaxed == RelaxedOrdering::Memoryless {
                continue;
            }
            let mut clock = self.blocks[block].lane(lane).clone();
            learned.iter().for_each(|other| join(&mut clock, other));
            self.blocks[block].lanes.insert(lane, clock);
        }
        true
    }

    /// Takes one from a counter, and returns the knowledge that it carries.
    pub(super) fn taken(&mut self, block: usize, at: OpAt, id: CounterId, lane: u32) -> Vec<Rc<VectorClock>> {
        let epoch = self.blocks[block].base[block];
        let op = self.log.len() as u32 - 1;
        let state = &mut self.counters[id.0 as usize];
        state.taken += 1;
        let needed = usize::try_from(state.taken - state.initial).unwrap_or(0);
        if let Some(last) = &state.last
            && last.block as usize != block
            && self.blocks[block].lanes.get(&lane).unwrap_or(&self.blocks[block].base)[last.block as usize]
                <= last.epoch
        {
            let what = self.script.counters[id.0 as usize].to_string();
            let fault = PlanFault::Ambiguous { what, which: "wait", other: self.log[last.op as usize] };
            self.violations.push(PlanViolation { at: PlanLocation::Op(at), fault });
        }
        let take = |certain| Take { block: block as u32, epoch, op, needed, certain };
        state.last = Some(take(Vec::new()));
        if needed == 0 {
            return Vec::new();
        }
        if state.givers <= 1 {
            // Signals are taken one after the other, and each taker has the knowledge of the takers before it.
            return state.gives[needed - 1].clock.take().into_iter().collect();
        }
        // Would there be enough signals without this one and those after it?
        let gives = &state.gives;
        let certain = |&number: &usize| gives.iter().filter(|other| !gives[number].is_before(other)).count() < needed;
        let certain: Vec<usize> = (0..gives.len()).filter(certain).collect();
        let clocks = certain.iter().filter_map(|&number| gives[number].clock.clone()).collect();
        let known = self.blocks[block].lane(lane);
        let news = |&number: &usize| known[gives[number].block as usize] <= gives[number].epoch;
        state.doubtful.push(take(certain.into_iter().filter(news).collect()));
        clocks
    }
}

impl Give {
    /// Whether the other must come after this one; this holds for itself, too.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        let later = self.block == other.block && other.op >= self.op;
        later || other.clock.as_ref().is_some_and(|clock| clock[self.block as usize] > self.epoch)
    }
}

impl Take {
    /// Whether a signal must come after this take.
    pub(super) fn is_before(&self, give: &Give) -> bool {
        let later = self.block == give.block && give.op > self.op;
        later || give.clock.as_ref().is_some_and(|clock| clock[self.block as usize] > self.epoch)
    }
}
