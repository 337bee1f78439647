//! Memory that the ranks of a tuning have mapped: for messages of plans within machines, and for kernels that are measured beside plans
//! and NCCL.
//!
//! The principal type is [`TuningMemory`].

use super::{GpuRank, RankFault, said_or_why};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use runtime::{DOMAIN_BYTES, DomainMemory, DomainTerms, NcclError, NcclTrials, StagedAllReduce, StagedTerms};

/// The variable that says how many bytes each rank maps for messages of plans, such as `128MiB`.
const MAPPED_BYTES: &str = "ANTIPHON_MAPPED_BYTES";

/// How many bytes each rank of a communicator maps for messages of plans: what `ANTIPHON_MAPPED_BYTES` says, or 64 MiB.
///
/// # Errors
/// What it should say.
pub fn mapped_bytes() -> Result<usize, String> {
    let Some(text) = std::env::var_os(MAPPED_BYTES).filter(|text| !text.is_empty()) else { return Ok(DOMAIN_BYTES) };
    let text = text.to_string_lossy();
    let bytes = topology::quantity::parse_bytes(&text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        let text = topology::shorten_to(&text, 100);
        format!("{MAPPED_BYTES} is {text:?}, and not a size such as 64MiB")
    })
}

/// Memory that is shared on some terms.
#[derive(Debug, Default)]
enum SharedOn<T, M> {
    /// Nobody has asked for it.
    #[default]
    Unasked,
    /// All ranks have it.
    Shared(T, M),
    /// No rank has it, and why.
    Refused(T, String),
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct TuningMemory {
    kernels: SharedOn<StagedTerms, StagedAllReduce>,
    domains: SharedOn<DomainTerms, DomainMemory>,
}

impl<T, M> SharedOn<T, M> {
    /// Shares memory among all ranks. All of them make this call, with the same terms, and come to the same: all have it, or none.
    fn new(
        comm: &Communicator,
        trials: &mut NcclTrials,
        terms: T,
        share: impl FnOnce(&mut NcclTrials, &T) -> Result<M, NcclError>,
    ) -> CommResult<Self> {
        let shared = share(trials, &terms);
        let own = shared.as_ref().map(|_| String::new()).map_err(RankFault::of);
        let outcome = said_or_why(comm, own)?;
        Ok(match (outcome, shared) {
            (Ok(_), Ok(memory)) => Self::Shared(terms, memory),
            // What ranks find together they say together, and it has the names of ranks itself.
            (Err((_, why)), _) => Self::Refused(terms, why),
            (Ok(_), Err(why)) => Self::Refused(terms, why.to_string()),
        })
    }

    /// The terms of memory that was shared, which is given back.
    fn take_shared(&mut self) -> Option<T> {
        match std::mem::take(self) {
            Self::Shared(terms, memory) => {
                drop(memory);
                Some(terms)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    fn memory(&mut self) -> Option<&mut M> {
        match self {
            Self::Shared(_, memory) => Some(memory),
            Self::Unasked | Self::Refused(..) => None,
        }
    }

    fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused(_, why) => Some(why),
            Self::Unasked | Self::Shared(..) => None,
        }
    }
}

impl GpuRank {
    /// Shares memory among all ranks, for kernels. All of them make this call, with the same terms.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn map_memory(&mut self, comm: &Communicator, terms: StagedTerms) -> CommResult<()> {
        // The memory of before goes first: two together may be too much.
        self.mapped.kernels = SharedOn::Unasked;
        self.mapped.kernels = SharedOn::new(comm, &mut self.trials, terms, NcclTrials::share_memory)?;
        Ok(())
    }

    /// The same within machines, for messages of plans; the terms may differ by the machine.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn map_domains(&mut self, comm: &Communicator, terms: DomainTerms) -> CommResult<()> {
        self.mapped.domains = SharedOn::Unasked;
        self.mapped.domains = SharedOn::new(comm, &mut self.trials, terms, NcclTrials::share_domains)?;
        Ok(())
    }

    /// Shares anew what the ranks have shared: after an error they do not agree any more about how many calls there were.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn map_again(&mut self, comm: &Communicator) -> CommResult<()> {
        let (domains, kernels) = (self.mapped.domains.take_shared(), self.mapped.kernels.take_shared());
        domains.map_or(Ok(()), |terms| self.map_domains(comm, terms))?;
        kernels.map_or(Ok(()), |terms| self.map_memory(comm, terms))
    }

    /// Gives the places of all plans back, which nobody uses any more. All ranks make this call.
    ///
    /// # Errors
    /// [`CommError::Gpu`] on all ranks if one has failed; as any call.
    pub(crate) fn clear_domains(&mut self, comm: &Communicator) -> CommResult<()> {
        let limit = self.limit;
        let Some(memory) = self.mapped.domains.memory() else { return Ok(()) };
        let cleared = self.trials.clear_domains(memory, limit);
        let own = cleared.map(|()| String::new()).map_err(|error| RankFault::of(&error));
        said_or_why(comm, own)?.map(drop).map_err(|(rank, why)| CommError::Gpu(format!("rank {rank}: {why}")))
    }

    /// Whether the kernel moves the messages of plans between ranks of one machine.
    pub(crate) fn has_domains(&self) -> bool {
        matches!(self.mapped.domains, SharedOn::Shared(..))
    }

    /// Whether inputs of so many bytes fit into the memory that all ranks have mapped.
    pub(crate) fn maps(&self, bytes: u64) -> bool {
        matches!(&self.mapped.kernels, SharedOn::Shared(terms, _) if bytes <= terms.bytes as u64)
    }

    /// What is not measured because ranks map no memory of others, though they have tried to, and why.
    pub fn unmapped(&self) -> Option<String> {
        let of_domains = self.mapped.domains.refusal();
        let of_domains = of_domains
            .map(|why| format!("ranks map no memory of each other, so NCCL moves all messages of plans: {why}"));
        let of_kernels = self.mapped.kernels.refusal();
        of_domains
            .or_else(|| of_kernels.map(|why| format!("kernels over memory of all ranks were not measured: {why}")))
    }

    /// What is timed, and the memory of all ranks if it is mapped.
    pub(crate) fn trials_and_memory(&mut self) -> (&mut NcclTrials, Option<&mut StagedAllReduce>) {
        (&mut self.trials, self.mapped.kernels.memory())
    }

    /// What is timed, and the memory of domains if there are any.
    pub(crate) fn trials_and_domains(&mut self) -> (&mut NcclTrials, Option<&mut DomainMemory>) {
        (&mut self.trials, self.mapped.domains.memory())
    }
}
