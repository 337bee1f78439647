//! Candidates on GPUs: plans in rounds over NCCL, whose messages within a machine the kernel moves if it can, kernels over memory that all ranks have mapped, and NCCL's own collectives as stock.
//!
//! The principal type is [`GpuBench`]. The numbers of a problem are made and judged on the host, as without GPUs, and copied to the GPU
//! and back with their guards. Times are those of events on the GPU.

use super::memory::{GUARD, TrialMemory};
use super::{StockPlan, TuneOptions};
use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::gpu::{GpuRank, RankFault, said_or_why};
use crate::operation::CollectiveCall;
use runtime::{
    DOMAIN_BYTES, DomainMemory, DomainTerms, GpuMemory, MOST_STAGED_BYTES, NcclRounds, NcclStockCall, NcclTrials,
    NcclWork, PeerAlgorithm, RoundPlan, SequencedProgram, StagedCall, StagedTerms,
};
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use topology::{Micros, Rank};

/// Blocks of the kernel work on so many bytes, and have so many threads, as where plans serve NCCL's calls.
const BLOCK_BYTES: u64 = 128 << 10;
const THREADS: u32 = 256;

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
    Rounds(Box<RefCell<ReadyRounds>>),
    /// A kernel over mapped memory.
    Kernel(PeerAlgorithm),
}

/// A plan with its memory.
struct ReadyRounds {
    rounds: NcclRounds,
    /// The communicator for which its ranks have mapped memory.
    epoch: u64,
}

impl ReadyRounds {
    /// All ranks make the same plans in the same order, so their places in mapped memory are the same.
    fn new(trials: &NcclTrials, memory: Option<&mut DomainMemory>, plan: RoundPlan) -> Result<Self, String> {
        let region = match plan.mapped_needs() {
            None => None,
            Some(needs) => {
                let memory = memory.ok_or("no memory is mapped any more")?;
                let place = memory.place(&needs).ok_or("too little mapped memory is left for its messages")?;
                Some(memory.region(trials.gpu(), place).map_err(|error| error.to_string())?)
            }
        };
        let rounds = NcclRounds::new(trials.gpu(), plan, THREADS, region).map_err(|error| error.to_string())?;
        Ok(Self { rounds, epoch: trials.epoch() })
    }

    /// Takes new memory if its own is that of a communicator that has ended. All ranks use the same plans in the same order.
    fn renew(&mut self, trials: &NcclTrials, memory: Option<&mut DomainMemory>) -> Result<(), String> {
        if self.epoch != trials.epoch() && self.rounds.plan().mapped_needs().is_some() {
            *self = Self::new(trials, memory, self.rounds.plan().clone())?;
        }
        Ok(())
    }
}

impl From<ReadyWay> for ReadyGpuWork {
    fn from(way: ReadyWay) -> Self {
        Self { way, epoch: Cell::new(0) }
    }
}

/// What the messages of plans within a machine need.
pub(super) fn terms_of_domains(options: &TuneOptions, machine: u32, limit: Duration) -> DomainTerms {
    DomainTerms { bytes: DOMAIN_BYTES, machine, dtypes: vec![options.dtype], threads: THREADS, limit }
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
            (Ok(_), Ok(memory)) => Ok(Self { gpu, memory, limit, stock_epoch: Cell::new(0), is_held: true }),
            (Err(refused), _) => Err(refused),
            (Ok(_), Err(why)) => Err((comm.rank(), why)),
        })
    }

    /// The GPU of this rank, after an error or for the next cell.
    pub(super) fn rank(&mut self) -> &mut GpuRank {
        self.gpu
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
    ) -> Result<ReadyGpuWork, String> {
        let (rank, size) = (Rank::from_index(rank), (call.count as u64, call.dtype));
        let (trials, memory) = self.gpu.trials_and_domains();
        let program = program.program();
        let plan = match &memory {
            Some(memory) => RoundPlan::within(memory.domains(), program, rank, size, BLOCK_BYTES),
            None => RoundPlan::new(program, rank, size.0, size.1, BLOCK_BYTES),
        };
        let rounds = ReadyRounds::new(trials, memory, plan.map_err(|error| error.to_string())?)?;
        self.is_held &= !NcclTrials::is_too_long_to_hold(&rounds.rounds);
        Ok(ReadyWay::Rounds(Box::new(RefCell::new(rounds))).into())
    }

    /// A kernel, ready for calls of all sizes for which memory is mapped.
    pub(super) fn kernel(algorithm: PeerAlgorithm) -> ReadyGpuWork {
        ReadyWay::Kernel(algorithm).into()
    }

    /// Runs one call on the numbers of a problem, and gets the results.
    pub(super) fn run(&mut self, ready: Option<&ReadyGpuWork>, problem: &mut TrialMemory) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        for (memory, bytes) in self.memory.iter_mut().zip(problem.whole()) {
            memory.as_mut().map_or(Ok(()), |memory| memory.write(bytes)).map_err(|error| told(&error))?;
        }
        let call = *problem.call();
        self.with_work(ready, &call, |trials, work, buffers, limit| trials.run(work, buffers, limit))?;
        for (memory, bytes) in self.memory.iter().zip(problem.whole()) {
            memory.as_ref().map_or(Ok(()), |memory| memory.read(bytes)).map_err(|error| told(&error))?;
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
    ) -> Result<Vec<Micros>, String> {
        let epoch = self.gpu.trials().epoch();
        // All ranks come to the same.
        if ready.map_or(&self.stock_epoch, |ready| &ready.epoch).get() != epoch {
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
    ) -> Result<T, String> {
        let (limit, buffers) = (self.limit, self.memory.each_ref().map(Option::as_ref));
        ready.map_or(&self.stock_epoch, |ready| &ready.epoch).set(self.gpu.trials().epoch());
        let ended = match ready.map(|ready| &ready.way) {
            Some(ReadyWay::Rounds(rounds)) => {
                let (trials, memory) = self.gpu.trials_and_domains();
                let ready = &mut *rounds.borrow_mut();
                ready.renew(trials, memory)?;
                run(trials, &mut NcclWork::Plan(&mut ready.rounds), buffers, limit)
            }
            Some(ReadyWay::Kernel(algorithm)) => {
                let (trials, mapped) = self.gpu.trials_and_memory();
                let mapped = mapped.ok_or_else(|| "no memory is mapped any more".to_owned())?;
                let CollectiveCall { op, count, dtype, .. } = *call;
                let op = op.unwrap_or(ReduceOp::Sum);
                let call = StagedCall { algorithm: *algorithm, count: count as u64, dtype, op };
                run(trials, &mut NcclWork::Kernel(mapped, call), buffers, limit)
            }
            None => run(self.gpu.trials(), &mut NcclWork::Stock(stock_call(call)), buffers, limit),
        };
        ended.map_err(|error| error.to_string())
    }
}

/// NCCL's call of a collective.
fn stock_call(call: &CollectiveCall) -> NcclStockCall {
    let CollectiveCall { collective, root, op, count, dtype, .. } = *call;
    NcclStockCall { collective, root: root.map(Rank::from_index), op, count, dtype }
}
