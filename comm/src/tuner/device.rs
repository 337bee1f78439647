//! Candidates on GPUs: plans in rounds over NCCL, whose messages within a machine the kernel moves if it can, kernels over memory that all ranks have mapped, and NCCL's own collectives as stock.
//!
//! The principal type is [`GpuBench`]. The numbers of a problem are made and judged on the host, as without GPUs, and copied to the GPU
//! and back with their guards. Times are those of events on the GPU.

use super::memory::{GUARD, TrialMemory};
use super::trial_rounds::{CellRounds, THREADS, TrialRounds};
use super::{StockPlan, TuneOptions};
use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::gpu::{GpuRank, RankFault, mapped_bytes, said_or_why};
use crate::operation::CollectiveCall;
use runtime::{
    DOMAIN_BYTES, DomainTerms, GpuMemory, MOST_STAGED_BYTES, NcclStockCall, NcclTrials, NcclWork, PeerAlgorithm,
    SequencedProgram, StagedCall, StagedTerms,
};
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use topology::{Micros, Rank};

/// Where buffers are, and what carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TuneDevice {
    /// Memory of the host; the library's own transports.
    #[default]
    Host,
    /// Memory of GPUs, one for each rank; NCCL.
    Gpu,
}

impl TuneDevice {
    /// Whether the collective can be measured there.
    pub(super) fn does(self, collective: Collective) -> bool {
        match collective {
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => true,
            Collective::Broadcast | Collective::AllToAll | Collective::Reduce => true,
            Collective::Gather | Collective::Scatter => self == Self::Host,
            Collective::AllToAllV | Collective::SendRecv | Collective::Custom => false,
        }
    }
}

/// A rank's memory on its GPU for the calls of one size, and how they run.
pub(super) struct GpuBench<'a> {
    gpu: &'a mut GpuRank,
    /// Of input and output; in place there is no input.
    memory: [Option<GpuMemory>; 2],
    limit: Duration,
    /// In which communicator stock has run.
    stock_epoch: Cell<u64>,
    plans: CellRounds,
    /// Calls of every plan of this cell fit behind a gate. All candidates are timed by the same rule.
    is_held: bool,
}

/// What is ready for calls, apart from stock.
pub(super) struct ReadyGpuWork {
    way: ReadyWay,
    /// In which communicator it has run.
    epoch: Cell<u64>,
}

/// How it does its work.
enum ReadyWay {
    /// A plan.
    Rounds(Rc<RefCell<TrialRounds>>),
    /// A kernel over mapped memory.
    Kernel(PeerAlgorithm),
}

impl From<ReadyWay> for ReadyGpuWork {
    fn from(way: ReadyWay) -> Self {
        Self { way, epoch: Cell::new(0) }
    }
}

/// What the messages of plans within a machine need.
pub(super) fn terms_of_domains(options: &TuneOptions, machine: u32, limit: Duration) -> DomainTerms {
    // A text that is no number was refused when the GPU was opened.
    let bytes = mapped_bytes().unwrap_or(DOMAIN_BYTES);
    DomainTerms { bytes, machine, dtypes: vec![options.dtype], threads: THREADS, limit }
}

/// What kernels over mapped memory need to be measured; `None` if none are.
pub(super) fn terms_of_kernels(options: &TuneOptions, ranks: usize, limit: Duration) -> Option<StagedTerms> {
    let sizes = options.grid(ranks).into_iter().filter(|cell| cell.collective == Collective::AllReduce);
    let bytes = sizes.map(|cell| cell.bytes as usize).filter(|bytes| *bytes <= MOST_STAGED_BYTES).max();
    let bytes = bytes.filter(|_| options.device == TuneDevice::Gpu)?;
    Some(StagedTerms { bytes, dtypes: vec![options.dtype], limit })
}

impl<'a> GpuBench<'a> {
    /// All ranks make this call. If a rank has no room for the buffers: which one, and what it says.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn new(
        comm: &Communicator,
        gpu: &'a mut GpuRank,
        memory: &TrialMemory,
        limit: Duration,
    ) -> CommResult<Result<Self, (usize, String)>> {
        // Nothing of the cell before is used any more.
        gpu.clear_domains(comm)?;
        let in_place = memory.call().in_place;
        let [input, output] = memory.lengths();
        let device = gpu.trials().gpu();
        let made = |bytes| GpuMemory::guarded(device, bytes, GUARD).map_err(|error| error.to_string());
        let own = || Ok([if in_place { None } else { Some(made(input)?) }, Some(made(output)?)]);
        let own: Result<_, String> = own();
        let own_word = own.as_ref().map(|_| String::new()).map_err(RankFault::from);
        Ok(match (said_or_why(comm, own_word)?, own) {
            (Ok(_), Ok(memory)) => {
                Ok(Self { gpu, memory, limit, stock_epoch: Cell::new(0), plans: CellRounds::default(), is_held: true })
            }
            (Err(refused), _) => Err(refused),
            (Ok(_), Err(why)) => Err((comm.rank(), why)),
        })
    }

    /// Makes another communicator after an error, and shares memory anew. All ranks make this call.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn renew(&mut self, comm: &Communicator) -> CommResult<()> {
        self.gpu.renew(comm)?;
        // The memory of before goes first: two together may be too much.
        self.plans.give_back();
        self.gpu.map_again(comm)
    }

    /// What serves stock's calls.
    pub(super) fn stock_plan(&mut self, collective: Collective) -> StockPlan {
        let version = self.gpu.nccl_version();
        let function = self.gpu.trials().stock_name(collective).unwrap_or("nothing");
        StockPlan { name: format!("{function} of NCCL {version}"), traffic: String::new() }
    }

    /// A plan, ready for calls of this size.
    ///
    /// # Errors
    /// Why it cannot make such calls.
    pub(super) fn prepared(
        &mut self,
        program: &SequencedProgram,
        rank: usize,
        call: &CollectiveCall,
    ) -> Result<ReadyGpuWork, RankFault> {
        let size = (call.count as u64, call.dtype);
        let plan = self.plans.add(self.gpu, (program, Rank::from_index(rank)), size, self.limit)?;
        self.is_held &= !plan.borrow().is_too_long_to_hold();
        Ok(ReadyWay::Rounds(plan).into())
    }

    /// Whether the communicator is of no use any more on this rank.
    pub(super) fn has_failed(&mut self) -> bool {
        self.gpu.trials().has_failed()
    }

    /// A kernel, ready for calls of all sizes for which memory is mapped.
    pub(super) fn kernel(algorithm: PeerAlgorithm) -> ReadyGpuWork {
        ReadyWay::Kernel(algorithm).into()
    }

    /// Runs one call on the numbers of a problem, and gets the results.
    pub(super) fn run(&mut self, ready: Option<&ReadyGpuWork>, problem: &mut TrialMemory) -> Result<(), RankFault> {
        let told = |error: runtime::GpuError| RankFault::from(&error.to_string());
        for (memory, bytes) in self.memory.iter_mut().zip(problem.whole()) {
            memory.as_mut().map_or(Ok(()), |memory| memory.write(bytes)).map_err(told)?;
        }
        let call = *problem.call();
        self.with_work(ready, &call, |trials, work, buffers, limit| trials.run(work, buffers, limit))?;
        for (memory, bytes) in self.memory.iter().zip(problem.whole()) {
            memory.as_ref().map_or(Ok(()), |memory| memory.read(bytes)).map_err(told)?;
        }
        Ok(())
    }

    /// Times calls: each time so many in a row. What has not run in this communicator runs once before, because the first call makes
    /// connections.
    pub(super) fn time(
        &mut self,
        ready: Option<&ReadyGpuWork>,
        call: &CollectiveCall,
        (repetitions, calls): (usize, usize),
    ) -> Result<Vec<Micros>, RankFault> {
        let epoch = self.gpu.trials().epoch();
        let is_new = match ready.map(|ready| &ready.way) {
            Some(ReadyWay::Rounds(plan)) => self.plans.make_ready(self.gpu, plan, self.limit)?,
            _ => false,
        };
        // All ranks come to the same.
        if is_new || ready.map_or(&self.stock_epoch, |ready| &ready.epoch).get() != epoch {
            self.with_work(ready, call, |trials, work, buffers, limit| trials.run(work, buffers, limit))?;
        }
        let calls = (repetitions, calls, self.is_held);
        self.with_work(ready, call, |trials, work, buffers, limit| trials.time(work, buffers, calls, limit))
    }

    fn with_work<T>(
        &mut self,
        ready: Option<&ReadyGpuWork>,
        call: &CollectiveCall,
        run: impl FnOnce(
            &mut NcclTrials,
            &mut NcclWork<'_>,
            [Option<&GpuMemory>; 2],
            Duration,
        ) -> Result<T, runtime::NcclError>,
    ) -> Result<T, RankFault> {
        let (limit, buffers) = (self.limit, self.memory.each_ref().map(Option::as_ref));
        ready.map_or(&self.stock_epoch, |ready| &ready.epoch).set(self.gpu.trials().epoch());
        let ended = match ready.map(|ready| &ready.way) {
            Some(ReadyWay::Rounds(plan)) => {
                self.plans.make_ready(self.gpu, plan, limit)?;
                let mut plan = plan.borrow_mut();
                let rounds = plan.rounds.as_mut().ok_or("the plan has no memory")?;
                run(self.gpu.trials(), &mut NcclWork::Plan(rounds), buffers, limit)
            }
            Some(ReadyWay::Kernel(algorithm)) => {
                let (trials, mapped) = self.gpu.trials_and_memory();
                let mapped = mapped.ok_or("no memory is mapped any more")?;
                let CollectiveCall { op, count, dtype, .. } = *call;
                let op = op.unwrap_or(ReduceOp::Sum);
                let call = StagedCall { algorithm: *algorithm, count: count as u64, dtype, op };
                run(trials, &mut NcclWork::Kernel(mapped, call), buffers, limit)
            }
            None => run(self.gpu.trials(), &mut NcclWork::Stock(stock_call(call)), buffers, limit),
        };
        ended.map_err(|error| RankFault::of(&error))
    }
}

/// NCCL's call of a collective.
fn stock_call(call: &CollectiveCall) -> NcclStockCall {
    let CollectiveCall { collective, root, op, count, dtype, .. } = *call;
    NcclStockCall { collective, root: root.map(Rank::from_index), op, count, dtype }
}
