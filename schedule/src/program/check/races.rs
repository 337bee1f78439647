//! Whether any two accesses to a slot, at least one of them writing, are ordered in every interleaving.
//!
//! What must happen before what follows from three things: the order within a threadblock, `after`, and that a
//! message is received after it was sent. (That a send waits for its receive is *not* used: transports buffer.)
//! A sending step reads before its message leaves; a receiving step touches its slots after the message came.
//!
//! Almost every pair is ordered by what one rank does alone, which clocks per threadblock decide in constant
//! time. The rest is searched for backwards through the messages.

use super::messages::{Event, Messages};
use super::{ProgramViolation, StepAt, StepId, Steps};
use crate::program::{Buffer, Program, Slice, Slot};
use rayon::prelude::*;
use topology::Rank;

/// Clocks of one rank take at most this many words; a larger rank is searched instead.
const MOST_WORDS: usize = 1 << 25;

pub(super) fn check(program: &Program, steps: &Steps, messages: &Messages, order: &[Event]) -> Vec<ProgramViolation> {
    let timeline = Timeline::new(program, steps, messages, order);
    let found = timeline.of_rank.par_iter().enumerate().map(|(rank, own)| {
        let mut judge = Judge::new(&timeline, Rank::from_index(rank), own);
        judge.run(own)
    });
    found.flatten_iter().collect()
}

/// One possible order of all steps.
struct Timeline<'a> {
    program: &'a Program,
    steps: &'a Steps,
    messages: &'a Messages,
    /// For each step its place in the order.
    place: Vec<u32>,
    /// For each rank its steps in that order.
    of_rank: Vec<Vec<StepId>>,
}

impl<'a> Timeline<'a> {
    fn new(program: &'a Program, steps: &'a Steps, messages: &'a Messages, order: &[Event]) -> Self {
        let of_rank = vec![Vec::new(); program.ranks.len()];
        let mut timeline = Self { program, steps, messages, place: vec![0; steps.at.len()], of_rank };
        let mut place = 0;
        let mut end = |id: StepId| {
            timeline.place[id as usize] = place;
            timeline.of_rank[steps.at(id).rank.index()].push(id);
            place += 1;
        };
        for &event in order {
            match event {
                Event::Local(id) => end(id),
                Event::Message(number) => {
                    let message = messages.list[number as usize];
                    end(message.send);
                    end(message.receive);
                }
            }
        }
        timeline
    }
}

/// What has happened to a slot so far.
#[derive(Clone, Default)]
struct History {
    write: Option<StepId>,
    /// Reads since then.
    reads: Vec<StepId>,
}

/// Judges the accesses of one rank.
struct Judge<'a> {
    timeline: &'a Timeline<'a>,
    rank: Rank,
    clocks: Option<Clocks>,
    histories: [Vec<History>; 3],
    /// For each step, the last search that came by; empty until one is needed.
    visited: Vec<u32>,
    searches: u32,
}

impl<'a> Judge<'a> {
    fn new(timeline: &'a Timeline<'a>, rank: Rank, own: &[StepId]) -> Self {
        let content = &timeline.program.ranks[rank.index()];
        let scratch = content.scratch_parts.len();
        let histories = [content.input_slots as usize, content.output_slots as usize, scratch];
        let histories = histories.map(|slots| vec![History::default(); slots]);
        let clocks = Clocks::new(timeline, rank, own);
        Self { timeline, rank, clocks, histories, visited: Vec::new(), searches: 0 }
    }

    fn run(&mut self, own: &[StepId]) -> Vec<ProgramViolation> {
        let mut violations = Vec::new();
        for &id in own {
            let step = self.timeline.steps.step(self.timeline.program, id);
            for slot in step.instruction.source().into_iter().flat_map(slots_of) {
                self.read(id, slot, &mut violations);
            }
            for slot in step.instruction.destination().into_iter().flat_map(slots_of) {
                self.write(id, slot, &mut violations);
            }
        }
        violations
    }

    fn history(&mut self, slot: Slot) -> &mut History {
        &mut self.histories[buffer_index(slot.buffer)][slot.index as usize]
    }

    fn read(&mut self, id: StepId, slot: Slot, violations: &mut Vec<ProgramViolation>) {
        if let Some(write) = self.history(slot).write {
            self.demand_order(write, id, slot, violations);
        }
        self.history(slot).reads.push(id);
    }

    fn write(&mut self, id: StepId, slot: Slot, violations: &mut Vec<ProgramViolation>) {
        let reads = std::mem::take(&mut self.history(slot).reads);
        for read in reads.into_iter().filter(|&read| read != id) {
            self.demand_order(read, id, slot, violations);
        }
        if let Some(write) = self.history(slot).write.replace(id) {
            self.demand_order(write, id, slot, violations);
        }
    }

    fn demand_order(&mut self, earlier: StepId, later: StepId, slot: Slot, violations: &mut Vec<ProgramViolation>) {
        let (first, second) = (self.timeline.steps.at(earlier), self.timeline.steps.at(later));
        let local = self.clocks.as_ref().is_some_and(|clocks| clocks.ordered(first, second));
        if !local && !self.reaches(earlier, later) {
            violations.push(ProgramViolation::Race { rank: self.rank, slot, first, second });
        }
    }

    /// Searches backwards from `later` for `earlier`.
    fn reaches(&mut self, earlier: StepId, later: StepId) -> bool {
        let Timeline { program, steps, messages, ref place, .. } = *self.timeline;
        self.visited.resize(steps.at.len(), 0);
        self.searches += 1;
        let mut stack = vec![later];
        while let Some(id) = stack.pop() {
            let at = steps.at(id);
            let previous = (at.step > 0).then(|| id - 1);
            let first = &steps.first[at.rank.index()];
            let after = &steps.step(program, id).after;
            let local = after.iter().map(|after| first[after.threadblock as usize] + after.step).chain(previous);
            for before in local.chain(messages.sender(id)) {
                if before == earlier {
                    return true;
                }
                self.visit(before, place, earlier, &mut stack);
            }
        }
        false
    }

    fn visit(&mut self, id: StepId, place: &[u32], earlier: StepId, stack: &mut Vec<StepId>) {
        let seen = std::mem::replace(&mut self.visited[id as usize], self.searches) == self.searches;
        // Nothing that comes before `earlier` in a possible order comes after it in all of them.
        if !seen && place[id as usize] > place[earlier as usize] {
            stack.push(id);
        }
    }
}

/// For each step of a rank and each of its threadblocks, how many steps of that threadblock surely ended before
/// the step began, as far as the rank alone decides.
struct Clocks {
    width: usize,
    of: Vec<Vec<u32>>,
}

impl Clocks {
    fn new(timeline: &Timeline, rank: Rank, own: &[StepId]) -> Option<Self> {
        let threadblocks = &timeline.program.ranks[rank.index()].threadblocks;
        let width = threadblocks.len();
        if width.saturating_mul(own.len()) > MOST_WORDS {
            return None;
        }
        let mut of: Vec<Vec<u32>> = threadblocks.iter().map(|block| vec![0; block.steps.len() * width]).collect();
        let mut now = vec![0; width];
        for &id in own {
            let at = timeline.steps.at(id);
            now.fill(0);
            let after = timeline.steps.step(timeline.program, id).after.iter();
            let before = after.map(|after| (after.threadblock as usize, after.step as usize));
            let previous = at.step.checked_sub(1).map(|step| (at.threadblock as usize, step as usize));
            for (threadblock, step) in before.chain(previous) {
                let ended = &of[threadblock][step * width..][..width];
                now.iter_mut().zip(ended).for_each(|(now, &ended)| *now = (*now).max(ended));
                now[threadblock] = now[threadblock].max(step as u32 + 1);
            }
            of[at.threadblock as usize][at.step as usize * width..][..width].copy_from_slice(&now);
        }
        Some(Self { width, of })
    }

    /// Whether `first` surely ended before `second` began.
    fn ordered(&self, first: StepAt, second: StepAt) -> bool {
        let clock = &self.of[second.threadblock as usize][second.step as usize * self.width..];
        clock[first.threadblock as usize] > first.step
    }
}

/// The slots of a slice.
pub(super) fn slots_of(slice: Slice) -> impl Iterator<Item = Slot> {
    (slice.index..slice.index + slice.count).map(move |index| Slot { buffer: slice.buffer, index })
}

/// A number for each buffer.
pub(super) fn buffer_index(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
    }
}
