//! Plans that are measured on GPUs, with their memory.
//!
//! The principal type is [`CellRounds`]. Plans whose messages the kernel moves take places in mapped memory. When there is no room left,
//! all of them give theirs back, and take new ones when it is their turn: so it does not depend on their order which of them are measured.

use crate::gpu::{GpuRank, RankFault};
use runtime::{DType, DomainRegion, MappedNeeds, NcclError, NcclRounds, NcclTrials, RoundPlan, SequencedProgram};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// Blocks of the kernel work on so many bytes, and have so many threads, as where plans serve NCCL's calls.
const BLOCK_BYTES: u64 = 128 << 10;
pub(super) const THREADS: u32 = 256;

/// A plan, with its memory while it has some.
pub(super) struct TrialRounds {
    plan: RoundPlan,
    pub(super) rounds: Option<NcclRounds>,
}

/// All plans of a cell. All ranks have the same ones, and use them in the same order.
#[derive(Default)]
pub(super) struct CellRounds {
    all: Vec<Weak<RefCell<TrialRounds>>>,
}

impl CellRounds {
    /// A plan, ready for calls of so many elements. If its messages need more than all mapped memory, NCCL moves them, as where plans serve
    /// NCCL's calls.
    ///
    /// # Errors
    /// Why it cannot make such calls.
    pub(super) fn add(
        &mut self,
        gpu: &mut GpuRank,
        (program, rank): (&SequencedProgram, Rank),
        (count, dtype): (u64, DType),
        limit: Duration,
    ) -> Result<Rc<RefCell<TrialRounds>>, RankFault> {
        let program = program.program();
        let unfit = |error: runtime::RunError| RankFault::from(&error.to_string());
        let apart = || RoundPlan::new(program, rank, count, dtype, BLOCK_BYTES).map_err(unfit);
        let (_, memory) = gpu.trials_and_domains();
        let plan = match memory {
            None => apart()?,
            Some(memory) => {
                let plan = RoundPlan::within(memory.domains(), program, rank, (count, dtype), BLOCK_BYTES);
                let plan = plan.map_err(unfit)?;
                if plan.mapped_needs().is_none_or(|needs| memory.has_room_for(&needs)) { plan } else { apart()? }
            }
        };
        let of = Rc::new(RefCell::new(TrialRounds { plan, rounds: None }));
        self.make_ready(gpu, &of, limit)?;
        self.all.push(Rc::downgrade(&of));
        Ok(of)
    }

    /// Gives a plan the memory that it needs. Whether it had none.
    ///
    /// # Errors
    /// Why it cannot have it.
    pub(super) fn make_ready(
        &self,
        gpu: &mut GpuRank,
        of: &RefCell<TrialRounds>,
        limit: Duration,
    ) -> Result<bool, RankFault> {
        if of.borrow().rounds.is_some() {
            return Ok(false);
        }
        let plan = of.borrow().plan.clone();
        let region = plan.mapped_needs().map(|needs| self.region(gpu, &needs, limit)).transpose()?;
        let rounds = NcclRounds::new(gpu.trials().gpu(), plan, THREADS, region).map_err(|why| RankFault::of(&why))?;
        of.borrow_mut().rounds = Some(rounds);
        Ok(true)
    }

    fn region(&self, gpu: &mut GpuRank, needs: &MappedNeeds, limit: Duration) -> Result<Arc<DomainRegion>, RankFault> {
        let (trials, memory) = gpu.trials_and_domains();
        let memory = memory.ok_or("no memory is mapped any more")?;
        let told = |why: NcclError| RankFault::of(&why);
        let place = match memory.place(needs) {
            Some(place) => place,
            None => {
                self.give_back();
                trials.clear_domains(memory, limit).map_err(told)?;
                memory.place(needs).ok_or("its messages need more than all mapped memory")?
            }
        };
        memory.region(trials.gpu(), place).map_err(told)
    }

    /// Nobody uses mapped memory any more.
    pub(super) fn give_back(&self) {
        for of in self.all.iter().filter_map(Weak::upgrade) {
            if let Ok(mut of) = of.try_borrow_mut()
                && of.plan.mapped_needs().is_some()
            {
                of.rounds = None;
            }
        }
    }
}

impl TrialRounds {
    /// Whether a call is too long to stand behind a gate.
    pub(super) fn is_too_long_to_hold(&self) -> bool {
        NcclTrials::is_too_long_to_hold(&self.plan)
    }
}
