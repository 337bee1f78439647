//! When each step of a run began and ended, by the clock of the rank.
//!
//! The principal type is [`Recorder`]. It costs two looks at the clock for each step and tile, so it works only where it is
//! asked for.

use crate::clock::Moment;
use program::{Instruction, RankProgram};
use serde::{Deserialize, Serialize};

/// When a rank sent or received a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepTime {
    /// The transfer of the schedule.
    pub transfer: u32,
    /// Whether the rank sent it.
    pub sends: bool,
    /// When the step could begin: what it waits for was there. Of a step that runs once per tile, for the first one.
    pub begin: Moment,
    /// When the step ended. Of a step that runs once per tile, for the last one.
    pub end: Moment,
}

/// The times of a rank's steps: begin and end, by threadblock and step.
pub(crate) struct Recorder(Vec<Vec<[Moment; 2]>>);

impl Recorder {
    pub(crate) fn new(own: &RankProgram) -> Self {
        Self(own.threadblocks.iter().map(|block| vec![[Moment::default(); 2]; block.steps.len()]).collect())
    }

    /// A step begins, or its message goes out before its turn. What is earlier counts.
    pub(crate) fn begins(&mut self, block: usize, step: usize, tile: usize) {
        let begin = &mut self.0[block][step][0];
        if tile == 0 && *begin == Moment::default() {
            *begin = Moment::now();
        }
    }

    /// A step ends.
    pub(crate) fn ends(&mut self, block: usize, step: usize) {
        self.0[block][step][1] = Moment::now();
    }

    /// The steps that carry messages. A fused step carries two.
    pub(crate) fn times(self, own: &RankProgram) -> Vec<StepTime> {
        let steps = own.threadblocks.iter().flat_map(|block| &block.steps);
        let timed = steps.zip(self.0.into_iter().flatten());
        let of = |(step, [begin, end]): (&program::Step, [Moment; 2])| {
            let sends = matches!(step.instruction, Instruction::Send { .. });
            let time = |transfer, sends| StepTime { transfer, sends, begin, end };
            let own = step.transfer.map(|transfer| time(transfer, sends));
            [own, step.forwards.map(|transfer| time(transfer, true))].into_iter().flatten()
        };
        timed.flat_map(of).collect()
    }
}
