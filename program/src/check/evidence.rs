//! The facts of a violation: its name, and the steps it is about.
//!
//! An importer uses this to say where in its file a violation is.

use super::{ProgramViolation, StepAt};
use topology::Rank;

impl ProgramViolation {
    /// The rule's name, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoLayout(_) => "no_layout",
            Self::Header { .. } => "header",
            Self::Shape => "shape",
            Self::Operation => "operation",
            Self::BufferSlots { .. } => "buffer_slots",
            Self::SlotPart { .. } => "slot_part",
            Self::NoOperator { .. } => "no_operator",
            Self::ScratchPart { .. } => "scratch_part",
            Self::TooMany { .. } => "too_many",
            Self::OrbitForm { .. } => "orbit_form",
            Self::Endpoints { .. } => "endpoints",
            Self::SameLane { .. } => "same_lane",
            Self::ForeignConnection { .. } => "foreign_connection",
            Self::SharedConnection { .. } => "shared_connection",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Shapes { .. } => "shapes",
            Self::Overlap { .. } => "overlap",
            Self::WritesInput { .. } => "writes_input",
            Self::BadDependency { .. } => "bad_dependency",
            Self::Unmatched { .. } => "unmatched",
            Self::MessageShape { .. } => "message_shape",
            Self::Deadlock { .. } => "deadlock",
            Self::Race { .. } => "race",
            Self::Uninitialised { .. } => "uninitialised",
            Self::MixedReduce { .. } => "mixed_reduce",
            Self::DoubleReduce { .. } => "double_reduce",
            Self::WrongResult { .. } => "wrong_result",
        }
    }

    /// The steps it is about; the step at fault comes first.
    pub fn steps(&self) -> Vec<StepAt> {
        let mut steps = Vec::new();
        let _ = self.clone().renumbered(&mut |at| {
            steps.push(at);
            at
        });
        steps
    }

    /// The rank it is about.
    pub fn rank(&self) -> Option<Rank> {
        match *self {
            Self::BufferSlots { rank, .. }
            | Self::SlotPart { rank, .. }
            | Self::ScratchPart { rank, .. }
            | Self::OrbitForm { rank, .. }
            | Self::Race { rank, .. }
            | Self::WrongResult { rank, .. } => Some(rank),
            _ => self.steps().first().map(|at| at.rank),
        }
    }

    /// The same violation of a program whose steps have other places.
    #[must_use]
    pub fn renumbered(mut self, place: &mut dyn FnMut(StepAt) -> StepAt) -> Self {
        match &mut self {
            Self::NoLayout(_)
            | Self::Header { .. }
            | Self::Shape
            | Self::Operation
            | Self::BufferSlots { .. }
            | Self::SlotPart { .. }
            | Self::ScratchPart { .. }
            | Self::TooMany { .. }
            | Self::OrbitForm { .. }
            | Self::Endpoints { .. }
            | Self::SameLane { .. }
            | Self::WrongResult { .. } => {}
            Self::NoOperator { at }
            | Self::ForeignConnection { at, .. }
            | Self::OutOfBounds { at, .. }
            | Self::Shapes { at }
            | Self::Overlap { at }
            | Self::WritesInput { at, .. }
            | Self::BadDependency { at, .. }
            | Self::Unmatched { at, .. }
            | Self::Uninitialised { at, .. }
            | Self::MixedReduce { at, .. }
            | Self::DoubleReduce { at, .. } => *at = place(*at),
            Self::SharedConnection { at: first, other: second, .. }
            | Self::MessageShape { send: first, receive: second }
            | Self::Race { first, second, .. } => {
                *first = place(*first);
                *second = place(*second);
            }
            Self::Deadlock { cycle } => cycle.iter_mut().for_each(|at| *at = place(*at)),
        }
        self
    }
}
