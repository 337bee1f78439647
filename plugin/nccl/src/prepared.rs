//! The plans of a communicator that are on its GPU, and why calls have none.
//!
//! The principal type is [`PreparedPlans`].

use runtime::{DType, NcclError, NcclRounds, RoundPlan};
use schedule::{Collective, ReduceOp};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use topology::Rank;

/// The most threads of a block of the kernel.
pub(crate) const THREADS: u32 = 256;

/// Why no plan serves a call, apart from what the tables choose.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PlanRefusal {
    /// The communicator is not known here.
    Unseen,
    /// The communicator runs no plans at all.
    Never(String),
    /// Nothing moves.
    Empty,
    Collective,
    Type,
    Reduction,
    /// No plan is for this root and these machines.
    NotChosen,
    /// It was measured with other GPUs, or with another NCCL.
    OtherHardware,
    /// The plan cannot serve it.
    Unfit(String),
}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => f.write_str("its communicator was not seen being made"),
            Self::Never(why) => write!(f, "its communicator runs no plans: {why}"),
            Self::Empty => f.write_str("nothing moves"),
            Self::Collective => f.write_str("plans do not serve this collective"),
            Self::Type => f.write_str("plans do not have its type of elements"),
            Self::Reduction => f.write_str("plans do not have its reduction"),
            Self::NotChosen => f.write_str("it is for another root, or for other machines"),
            Self::OtherHardware => f.write_str("it was measured with other GPUs, or with another version of NCCL"),
            Self::Unfit(why) => write!(f, "the plan cannot serve it: {why}"),
        }
    }
}

/// The type by which the kernel handles elements of a type of NCCL's. Where nothing is reduced, only their size
/// matters.
pub(crate) fn dtype_of(number: c_int, op: Option<ReduceOp>) -> Result<DType, PlanRefusal> {
    let is_plain = op.is_none_or(ReduceOp::ignores_signs);
    match number {
        1 => Ok(DType::U8),
        2 => Ok(DType::I32),
        4 => Ok(DType::I64),
        6 => Ok(DType::F16),
        7 => Ok(DType::F32),
        8 => Ok(DType::F64),
        9 => Ok(DType::Bf16),
        0 if is_plain => Ok(DType::U8),
        3 if is_plain => Ok(DType::I32),
        5 if is_plain => Ok(DType::I64),
        10 | 11 if op.is_none() => Ok(DType::U8),
        _ => Err(PlanRefusal::Type),
    }
}

/// What a plan is prepared for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PreparedKey {
    pub(crate) collective: Collective,
    pub(crate) root: Option<Rank>,
    pub(crate) op: Option<ReduceOp>,
    /// NCCL's number of the type.
    pub(crate) dtype: c_int,
    /// Elements of one block.
    pub(crate) count: usize,
}

/// A plan for some calls.
pub(crate) struct PreparedPlan {
    pub(crate) name: Arc<str>,
    pub(crate) plan: RoundPlan,
    /// Its memory on the GPU, from the first call on.
    pub(crate) rounds: Option<NcclRounds>,
}

impl PreparedPlan {
    /// The plan with its memory, which `make` makes at the first call.
    ///
    /// # Errors
    /// If the GPU has no room. Other ranks may have room, so this is no reason to leave the call to NCCL.
    pub(crate) fn rounds(
        &mut self,
        make: impl FnOnce(RoundPlan) -> Result<NcclRounds, NcclError>,
    ) -> Result<&mut NcclRounds, NcclError> {
        let rounds = match self.rounds.take() {
            Some(rounds) => rounds,
            None => make(self.plan.clone())?,
        };
        Ok(self.rounds.insert(rounds))
    }
}

/// The plans of a communicator.
#[derive(Default)]
pub(crate) struct PreparedPlans {
    /// For the calls so far; for some it has none, and why.
    pub(crate) plans: BTreeMap<PreparedKey, Result<PreparedPlan, PlanRefusal>>,
    /// Those that graphs have recorded, by the addresses of the caller's buffers. They stay until the communicator ends, because nobody
    /// says when a graph does.
    pub(crate) recorded: BTreeMap<(PreparedKey, [u64; 2]), NcclRounds>,
}
