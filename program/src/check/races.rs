//! Checks that any two accesses to a slot, at least one of them a write, are ordered in every interleaving.
//!
//! The happens-before relation follows from three facts: the order within a threadblock, `after`, and that a message is
//! received after it was sent. (That a send waits for its receive is *not* used, because transports have buffers.) A
//! receive *ends* after its send ends. A receive *begins* only after its send begins; and if that send is the second
//! half of a fused step, after the first half begins, because the fused step may send bytes on while others are still
//! to come.
//!
//! Almost every pair is ordered by steps of one rank alone; clocks per threadblock decide this in constant time. For
//! other pairs, a backward search follows the messages. In a program of the first ranks of orbits, the search records which image
//! it has reached, and succeeds only at the rank itself.

use super::images::Images;
use super::messages::MatchedMessages;
use super::{ProgramViolation, StepId, Steps};
use crate::{Buffer, Program, Slice, Slot};
use rayon::prelude::*;
use schedule::Findings;
use std::collections::BTreeSet;
use topology::Rank;

/// The most words that the clocks of one rank may take; for a larger rank, every pair is searched.
const MOST_WORDS: usize = 1 << 25;

pub(super) fn check(
    program: &Program,
    steps: &Steps<'_>,
    messages: &MatchedMessages,
    images: &Images<'_>,
    sequence: &[StepId],
) -> Findings<ProgramViolation> {
    let order = StepOrder::new(program, steps, messages, images, sequence);
    let races = |(rank, own): (usize, &Vec<StepId>)| {
        let mut detector = RaceDetector::new(&order, Rank::from_index(rank), own);
        detector.run(own)
    };
    let both = |mut earlier: Findings<ProgramViolation>, later| {
        earlier.append(later);
        earlier
    };
    match schedule::are_many(sequence.len()) {
        true => order.of_rank.par_iter().enumerate().map(races).reduce(Findings::default, both),
        false => order.of_rank.iter().enumerate().map(races).fold(Findings::default(), both),
    }
}

/// One possible order of all steps.
struct StepOrder<'a> {
    program: &'a Program,
    steps: &'a Steps<'a>,
    messages: &'a MatchedMessages,
    images: &'a Images<'a>,
    /// For each step its place in the order.
    place: Vec<u32>,
    /// For each rank its steps in that order.
    of_rank: Vec<Vec<StepId>>,
}

impl<'a> StepOrder<'a> {
    fn new(
        program: &'a Program,
        steps: &'a Steps<'a>,
        messages: &'a MatchedMessages,
        images: &'a Images<'a>,
        sequence: &[StepId],
    ) -> Self {
        let of_rank = vec![Vec::new(); program.ranks.len()];
        let mut order = Self { program, steps, messages, images, place: vec![0; steps.at.len()], of_rank };
        for (place, &id) in (0..).zip(sequence) {
            order.place[id as usize] = place;
            order.of_rank[steps.at(id).rank.index()].push(id);
        }
        order
    }
}

/// The accesses to a slot so far.
#[derive(Clone, Default)]
struct AccessHistory {
    write: Option<StepId>,
    /// The reads since the last write.
    reads: Vec<StepId>,
}

/// Checks the accesses of one rank.
struct RaceDetector<'a> {
    order: &'a StepOrder<'a>,
    rank: Rank,
    clocks: Option<Clocks>,
    histories: [Vec<AccessHistory>; 3],
    /// For each step, the last search that visited it; empty until a search is needed.
    visited: Vec<u32>,
    searches: u32,
    /// The steps of images that this search has visited.
    elsewhere: BTreeSet<StepBoundary>,
}

impl<'a> RaceDetector<'a> {
    fn new(order: &'a StepOrder<'a>, rank: Rank, own: &[StepId]) -> Self {
        let content = &order.program.ranks[rank.index()];
        let histories = [Buffer::Input, Buffer::Output, Buffer::Scratch];
        let histories = histories.map(|buffer| vec![AccessHistory::default(); content.parts(buffer).len()]);
        let clocks = Clocks::new(order, rank, own);
        Self { order, rank, clocks, histories, visited: Vec::new(), searches: 0, elsewhere: BTreeSet::new() }
    }

    fn run(&mut self, own: &[StepId]) -> Findings<ProgramViolation> {
        let mut violations = Findings::default();
        for &id in own {
            let instruction = self.order.steps.instruction(id);
            // No `flat_map`: its optimized code looks at memory that it does not use, and valgrind complains of that.
            if let Some(source) = instruction.source() {
                slots_of(source).for_each(|slot| self.read(id, slot, &mut violations));
            }
            if let Some(destination) = instruction.destination() {
                slots_of(destination).for_each(|slot| self.write(id, slot, &mut violations));
            }
        }
        violations
    }

    fn history(&mut self, slot: Slot) -> &mut AccessHistory {
        &mut self.histories[buffer_index(slot.buffer)][slot.index as usize]
    }

    fn read(&mut self, id: StepId, slot: Slot, violations: &mut Findings<ProgramViolation>) {
        if let Some(write) = self.history(slot).write {
            self.require_order(write, id, slot, violations);
        }
        self.history(slot).reads.push(id);
    }

    fn write(&mut self, id: StepId, slot: Slot, violations: &mut Findings<ProgramViolation>) {
        let reads = std::mem::take(&mut self.history(slot).reads);
        for read in reads.into_iter().filter(|&read| read != id) {
            self.require_order(read, id, slot, violations);
        }
        if let Some(write) = self.history(slot).write.replace(id) {
            self.require_order(write, id, slot, violations);
        }
    }

    fn require_order(
        &mut self,
        earlier: StepId,
        later: StepId,
        slot: Slot,
        violations: &mut Findings<ProgramViolation>,
    ) {
        let local = self.clocks.as_ref().is_some_and(|clocks| clocks.ordered(self.order.steps, earlier, later));
        if !local && !self.reaches(earlier, later) {
            let (first, second) = (self.order.steps.at(earlier), self.order.steps.at(later));
            violations.push(ProgramViolation::Race { rank: self.rank, slot, first, second });
        }
    }

    /// Searches backwards from the begin of `later` for the end of `earlier`.
    fn reaches(&mut self, earlier: StepId, later: StepId) -> bool {
        let StepOrder { program, steps, messages, images, .. } = *self.order;
        self.visited.resize(2 * steps.at.len(), 0);
        self.searches += 1;
        self.elsewhere.clear();
        let mut stack = vec![StepBoundary { element: 0, step: later, ended: false }];
        while let Some(StepBoundary { element, step, ended }) = stack.pop() {
            // The two halves of a fused step begin together.
            let begun_with = steps.previous(step).filter(|_| !ended && steps.is_second_half(step));
            let ended_before = steps.before(step).filter(|&before| Some(before) != begun_with);
            let ended_before = ended_before.map(|step| StepBoundary { element, step, ended: true });
            let sent = messages.sender(step).zip(steps.instruction(step).receives_from()).map(|(send, connection)| {
                let element = images.product(element, images.inverse(images.across(program, connection)));
                StepBoundary { element, step: send, ended }
            });
            let begun_with = begun_with.map(|step| StepBoundary { element, step, ended: false });
            for before in ended_before.chain(sent).chain(begun_with) {
                if before == (StepBoundary { element: 0, step: earlier, ended: true }) {
                    return true;
                }
                self.visit(before, earlier, &mut stack);
            }
        }
        false
    }

    fn visit(&mut self, boundary: StepBoundary, earlier: StepId, stack: &mut Vec<StepBoundary>) {
        let seen = if boundary.element == 0 {
            let last = &mut self.visited[2 * boundary.step as usize + usize::from(boundary.ended)];
            std::mem::replace(last, self.searches) == self.searches
        } else {
            !self.elsewhere.insert(boundary)
        };
        // A step before `earlier` in one possible order cannot come after it in all orders.
        let place = &self.order.place;
        if !seen && place[boundary.step as usize] > place[earlier as usize] {
            stack.push(boundary);
        }
    }
}

/// The beginning or the end of a step, of the rank itself (element 0) or of an image of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StepBoundary {
    element: u32,
    step: StepId,
    ended: bool,
}

/// For each step of a rank and each of its threadblocks: how many steps of that threadblock surely ended before the
/// step began, by the dependencies within the rank. (The second half of a fused step begins with the first; this
/// matters only to other ranks.)
struct Clocks {
    width: usize,
    of: Vec<Vec<u32>>,
}

impl Clocks {
    fn new(order: &StepOrder, rank: Rank, own: &[StepId]) -> Option<Self> {
        let steps = order.steps;
        let first = &steps.first[rank.index()];
        let width = first.len() - 1;
        if width.saturating_mul(own.len()) > MOST_WORDS {
            return None;
        }
        let lengths = first.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
        let mut of: Vec<Vec<u32>> = lengths.map(|length| vec![0; length * width]).collect();
        let mut now = vec![0; width];
        for &id in own {
            now.fill(0);
            for before in steps.before(id) {
                let (threadblock, place) = (steps.at(before).threadblock as usize, steps.place(before));
                let ended = &of[threadblock][place * width..][..width];
                now.iter_mut().zip(ended).for_each(|(now, &ended)| *now = (*now).max(ended));
                now[threadblock] = now[threadblock].max(place as u32 + 1);
            }
            of[steps.at(id).threadblock as usize][steps.place(id) * width..][..width].copy_from_slice(&now);
        }
        Some(Self { width, of })
    }

    /// Whether `first` surely ended before `second` began.
    fn ordered(&self, steps: &Steps<'_>, first: StepId, second: StepId) -> bool {
        let clock = &self.of[steps.at(second).threadblock as usize][steps.place(second) * self.width..];
        clock[steps.at(first).threadblock as usize] as usize > steps.place(first)
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
