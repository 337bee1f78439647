//! Memory that the ranks of a tuning have mapped, for kernels that are measured beside plans and NCCL.
//!
//! The principal type is [`TuningMemory`].

use super::{GpuRank, RankFault, said_or_why};
use crate::communicator::Communicator;
use crate::error::CommResult;
use runtime::{NcclTrials, StagedAllReduce, StagedTerms};

/// Whether kernels can be measured that work on memory of all ranks.
#[derive(Debug, Default)]
pub(super) enum TuningMemory {
    /// Nobody has asked for it.
    #[default]
    Unasked,
    /// All ranks have it.
    Shared(StagedTerms, StagedAllReduce),
    /// No rank has it, and why.
    Refused(StagedTerms, String),
}

impl GpuRank {
    /// Shares memory among all ranks. All of them make this call, with the same terms, and come to the same: all have it, or none.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn map_memory(&mut self, comm: &Communicator, terms: StagedTerms) -> CommResult<()> {
        // The memory of before goes first: two together may be too much.
        self.mapped = TuningMemory::Unasked;
        let shared = self.trials.share_memory(&terms);
        let own = shared.as_ref().map(|_| String::new()).map_err(RankFault::of);
        let outcome = said_or_why(comm, own)?;
        self.mapped = match (outcome, shared) {
            (Ok(_), Ok(staged)) => TuningMemory::Shared(terms, staged),
            // What ranks find together they say together, and it has the names of ranks itself.
            (Err((_, why)), _) => TuningMemory::Refused(terms, why),
            (Ok(_), Err(why)) => TuningMemory::Refused(terms, why.to_string()),
        };
        Ok(())
    }

    /// Shares it anew, if the ranks have tried to: after an error they do not agree any more about how many calls there were.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn map_again(&mut self, comm: &Communicator) -> CommResult<()> {
        match std::mem::take(&mut self.mapped) {
            TuningMemory::Unasked => Ok(()),
            TuningMemory::Shared(terms, staged) => {
                drop(staged);
                self.map_memory(comm, terms)
            }
            TuningMemory::Refused(terms, why) => {
                self.mapped = TuningMemory::Refused(terms, why);
                Ok(())
            }
        }
    }

    /// Whether inputs of so many bytes fit into the memory that all ranks have mapped.
    pub(crate) fn maps(&self, bytes: u64) -> bool {
        matches!(&self.mapped, TuningMemory::Shared(terms, _) if bytes <= terms.bytes as u64)
    }

    /// Why no rank maps memory of others, if they have tried to.
    pub fn why_unmapped(&self) -> Option<&str> {
        match &self.mapped {
            TuningMemory::Refused(_, why) => Some(why),
            TuningMemory::Unasked | TuningMemory::Shared(..) => None,
        }
    }

    /// What is timed, and the memory of all ranks if it is mapped.
    pub(crate) fn trials_and_memory(&mut self) -> (&mut NcclTrials, Option<&mut StagedAllReduce>) {
        let staged = match &mut self.mapped {
            TuningMemory::Shared(_, staged) => Some(staged),
            TuningMemory::Unasked | TuningMemory::Refused(..) => None,
        };
        (&mut self.trials, staged)
    }
}
