//! The tuner: measures what could serve a call, on the ranks that will make it, and keeps what is faster than stock.
//!
//! The principal function is [`Communicator::measure`]; [`build`] makes a table of what it has measured. It uses the same
//! communicators, plans and buffers as the application will. Rank 0 decides, all others follow ([`measure`]).
//!
//! * A candidate first has to be right on all ranks, on numbers that no two ranks have in common. One that is wrong or fails is
//!   refused with the reason, and measuring goes on with the others, with another communicator. Functions of a user's have to be
//!   right again and again, each time on other numbers and between their measured calls, for several numbers of elements; they
//!   must write only where they may, and end all their calls.
//! * Control and candidates use different communicators. If a rank is lost, every rank gets an error that names it, and stock
//!   stays the choice: nothing is measured instead.
//!
//! | file | what is in it |
//! |---|---|
//! | `candidate` | what competes |
//! | `predict` | what the cost model says about plans, and who is first because of it |
//! | `admission` | one size of one collective: who takes part |
//! | `clock` | rank 0's clock |
//! | `compare` | whether all ranks are about to measure the same |
//! | `device` | candidates on GPUs, over NCCL |
//! | `bench` | one size of one collective: candidates that are ready, and the right result |
//! | `memory` | what a rank gives and gets, with guards |
//! | `timing` | the times |
//! | `contest` | one size of one collective: whose turn it is, and when it is enough |
//! | `measure` | size after size |
//! | `shares` | how much of the time each size gets |
//! | `build` | the table |
//! | `outcome` | what there is to say at the end |
//! | `guided` | what is measured next: edges, variants, and what guidelines ask for |
//! | `pieces` | variants of plans: their messages in pieces |
//! | `watch` | what a rank is doing, for whoever has started it |
//! | `job` | a tuning from beginning to end |

mod admission;
mod bench;
mod build;
mod candidate;
mod clock;
mod compare;
mod contest;
mod device;
mod guided;
mod job;
mod measure;
mod memory;
mod outcome;
mod pieces;
mod predict;
mod shares;
mod timing;
mod trial_rounds;
mod watch;

use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::gpu::GpuRank;
use crate::stock::{CallKind, measured_kind};
use crate::table::RankPlaces;
pub use build::{edges_of, table_of};
pub use candidate::TuneCandidate;
pub use device::TuneDevice;
pub use guided::{NextWork, final_table, next_work};
pub use job::{LaunchEnd, TuneJob};
pub use outcome::{DroppedLaunch, MeasuredTable, RefusedCandidate, SameCandidate};
use runtime::DType;
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tune::{RankTransport, TableKey};
use watch::TrialWatch;
pub use watch::{TrialMark, TuneWord};

/// How much longer ranks wait for each other than for a call, at least: they prepare plans and check results.
const WAITING: Duration = Duration::from_secs(10);
/// How long ranks may take to make a communicator of NCCL.
const JOINING: Duration = Duration::from_secs(60);

/// What is measured, and how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TuneOptions {
    /// Which collectives.
    pub collectives: Vec<Collective>,
    /// At these sizes, in bytes as the collectives count them.
    pub sizes: Vec<u64>,
    /// With elements of this type.
    pub dtype: DType,
    /// Where they reduce, with this reduction.
    pub op: ReduceOp,
    /// How long all measuring may take, about.
    pub budget: Duration,
    /// How long a call may go without progress.
    pub limit: Duration,
    /// The seed of the input data.
    pub seed: u64,
    /// So many times at least every candidate is measured that takes less than four times the best one's time, however long it
    /// takes: for an oracle. 0 stands for as often as a decision needs, within the budget.
    #[serde(default)]
    pub least_samples: usize,
    /// Where buffers are. On GPUs stock is NCCL; candidates are plans, and kernels over memory that the ranks have mapped.
    #[serde(default)]
    pub device: TuneDevice,
}

/// A size of a collective that is to be measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CellWork {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes as the collective counts them; a whole number of elements of each rank is measured.
    pub bytes: u64,
    /// The names of the candidates, besides stock; `None` for all.
    pub candidates: Option<Vec<String>>,
}

impl CellWork {
    fn asks_for(&self, candidate: &TuneCandidate) -> bool {
        match &self.candidates {
            None => !candidate.is_on_request(),
            Some(names) => names.contains(&candidate.name),
        }
    }
}

/// What was measured of a candidate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CandidateSamples {
    /// Its name.
    pub name: String,
    /// Whether it is no plan, so that only a program can do it.
    #[serde(default)]
    pub is_function: bool,
    /// The time of one of a few calls before the comparison (its screening), in microseconds, on the slowest rank. Whoever takes several times as long as the best one
    /// is measured no further.
    #[serde(default, rename = "look_us")]
    pub screening_us: Option<f64>,
    /// What the cost model predicts of a call, in microseconds, of a plan. It says who is measured first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_us: Option<f64>,
    /// Times from the first rank's begin to the last one's end, in microseconds.
    pub spans_us: Vec<f64>,
    /// Of the same calls, times from the last rank's begin to the last one's end.
    #[serde(default)]
    pub after_last_begin_us: Vec<f64>,
    /// Of the same calls, times from the first rank's begin to the last one's.
    #[serde(default)]
    pub skews_us: Vec<f64>,
    /// Times of one call in loops without pauses, in microseconds, on the slowest rank.
    pub loops_us: Vec<f64>,
    /// The same on this rank alone.
    #[serde(default)]
    pub own_us: Vec<f64>,
    /// Calls at which a rank was late.
    pub invalid: usize,
    /// Why it does not compete.
    pub refusal: Option<CandidateRefusal>,
    /// The candidate that makes the same messages and was measured instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

/// When a candidate failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialPhase {
    /// It could not be prepared.
    Prepare,
    /// A call that is checked failed, or its result was wrong.
    Check,
    /// A measured call failed.
    Time,
}

/// Why a candidate does not compete, and the first rank on which it failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CandidateRefusal {
    /// The rank.
    pub rank: usize,
    /// When.
    pub phase: TrialPhase,
    /// What this rank says about it.
    pub why: String,
    /// Whether it did what no candidate may do: a wrong result, a call that others did not make, a rank that it stopped or ended.
    /// Then it is not used for this collective. One that only says that it cannot do a call is refused for this size alone.
    #[serde(default)]
    pub is_wrong: bool,
}

/// The plan that served stock's calls in a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StockPlan {
    /// Its name: the collective and the textbook algorithm.
    pub name: String,
    /// A digest of its messages, whatever their order: that follows from costs, which are measured between machines.
    pub traffic: String,
}

/// What was measured of a cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CellSamples {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as it was run.
    pub bytes: u64,
    /// The reduction, where something is reduced.
    #[serde(default)]
    pub op: Option<ReduceOp>,
    /// The plan that served stock's calls.
    #[serde(default)]
    pub stock_plan: Option<StockPlan>,
    /// Stock first.
    pub candidates: Vec<CandidateSamples>,
}

impl Default for TuneOptions {
    /// Sums of floats: the collectives of training, from 8 bytes to 16 MiB, in a minute.
    fn default() -> Self {
        Self {
            collectives: vec![
                Collective::AllReduce,
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::Broadcast,
                Collective::AllToAll,
            ],
            sizes: [8].into_iter().chain((0..10).map(|step| 64 << (2 * step))).collect(),
            dtype: DType::F32,
            op: ReduceOp::Sum,
            budget: Duration::from_secs(60),
            limit: Duration::from_secs(10),
            seed: 0,
            least_samples: 0,
            device: TuneDevice::Host,
        }
    }
}

impl TuneOptions {
    /// Every size of every collective among so many ranks, for all candidates: each once, as it is run.
    pub fn grid(&self, ranks: usize) -> Vec<CellWork> {
        let sizes = |&collective: &Collective| {
            let step = measure::step_of(collective, ranks, self.dtype).max(1);
            let run: BTreeSet<u64> = self.sizes.iter().map(|bytes| (bytes / step).max(1) * step).collect();
            run.into_iter().map(move |bytes| CellWork { collective, bytes, candidates: None })
        };
        self.collectives.iter().flat_map(sizes).collect()
    }
}

impl Communicator {
    /// What competes: stock, collectives of two halves, on GPUs kernels over mapped memory, what is given, and every textbook algorithm.
    /// All ranks have the same.
    ///
    /// # Errors
    /// [`CommError::NoPlan`]; [`CommError::Argument`] if a candidate cannot have its name.
    pub fn candidates(&self, options: &TuneOptions, given: Vec<TuneCandidate>) -> CommResult<Vec<TuneCandidate>> {
        measure::check(options)?;
        let kinds: Vec<CallKind> = options.collectives.iter().map(|of| measured_kind(*of, options.op)).collect();
        let textbook = Arc::new(self.textbook(&kinds)?);
        let textbook = TuneCandidate::of_table(&textbook);
        let mut all = vec![TuneCandidate::stock()];
        match options.device {
            TuneDevice::Host => all.extend(TuneCandidate::composed()),
            TuneDevice::Gpu => {
                if let Some(function) = given.iter().find(|of| of.is_function()) {
                    return Err(CommError::Argument(format!("`{}` is a function, and works on no GPU", function.name)));
                }
                all.extend(TuneCandidate::kernels());
            }
        }
        let known: Vec<_> = all.iter().chain(&textbook).collect();
        let given = TuneCandidate::distinct(given, &known).map_err(CommError::Argument)?;
        // What is given comes first: if the time is up, fewer textbook algorithms compete.
        all.extend(given.into_iter().chain(textbook));
        Ok(all)
    }

    /// The plans among candidates, by their names, for [`table_of`].
    ///
    /// # Errors
    /// Why a plan is not valid.
    pub fn plan_texts(candidates: &[TuneCandidate]) -> Result<BTreeMap<String, String>, String> {
        let texts = candidates.iter().filter_map(|candidate| Some((candidate.name.clone(), candidate.plan_text()?)));
        texts.map(|(name, text)| Ok((name, text?))).collect()
    }

    /// For whom a table is that these ranks measure. All ranks make this call.
    ///
    /// # Errors
    /// As any call.
    pub fn table_key(&self) -> CommResult<TableKey> {
        Ok(self.key_on(&self.hardware_of_all()?))
    }

    /// The same with the ranks' GPUs, if it is measured on these.
    ///
    /// # Errors
    /// As any call.
    pub fn table_key_of(&self, gpu: Option<&GpuRank>) -> CommResult<TableKey> {
        match gpu {
            None => self.table_key(),
            Some(gpu) => {
                let machines = self.machines();
                let transport = if gpu.has_domains() { RankTransport::NcclMapped } else { RankTransport::Nccl };
                Ok(TableKey { transport: Some(transport), ..self.key_on(&gpu.hardware(&machines)) })
            }
        }
    }

    /// What the options want calls to run on; `None` for the host. All ranks make this call. They try to map memory of each other, as
    /// `libantiphon_nccl.so` does: ranks of a machine for the messages of plans, and all of them for kernels that do an AllReduce.
    /// [`GpuRank::unmapped`] says what they have not, and why.
    ///
    /// # Errors
    /// As [`GpuRank::open`].
    pub fn open_device(&self, options: &TuneOptions) -> CommResult<Option<GpuRank>> {
        match options.device {
            TuneDevice::Host => Ok(None),
            TuneDevice::Gpu => {
                let mut gpu = GpuRank::open(self, JOINING)?;
                gpu.map_domains(self, device::terms_of_domains(options, self.machines()[self.rank()], JOINING))?;
                if let Some(terms) = device::terms_of_kernels(options, self.size(), JOINING) {
                    gpu.map_memory(self, terms)?;
                }
                Ok(Some(gpu))
            }
        }
    }

    /// The same where it is known what the machines are.
    pub(crate) fn key_on(&self, hardware: &[String]) -> TableKey {
        let (store, machines) = (self.state().plans.store(), self.machines());
        RankPlaces { hardware: Some(hardware), ..store.places(&machines) }.key()
    }

    /// Measures cells. All ranks call this with the same arguments, the candidates from [`Self::candidates`]. The samples are
    /// known to rank 0 only; `progress` is told of each cell.
    ///
    /// # Errors
    /// [`CommError::Argument`] if a collective cannot be measured, or a rank was given something else; [`CommError::Run`] if a rank
    /// is lost.
    pub fn measure(
        &self,
        work: &[CellWork],
        candidates: &[TuneCandidate],
        options: &TuneOptions,
        progress: impl FnMut(&CellSamples),
    ) -> CommResult<Vec<CellSamples>> {
        let mut gpu = self.open_device(options)?;
        self.measure_on(gpu.as_mut(), work, candidates, options, progress)
    }

    /// The same on what [`Self::open_device`] gave.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn measure_on(
        &self,
        gpu: Option<&mut GpuRank>,
        work: &[CellWork],
        candidates: &[TuneCandidate],
        options: &TuneOptions,
        progress: impl FnMut(&CellSamples),
    ) -> CommResult<Vec<CellSamples>> {
        self.measure_watched((&TrialWatch::default(), gpu), work, candidates, options, progress)
    }

    fn measure_watched(
        &self,
        (watch, gpu): (&TrialWatch, Option<&mut GpuRank>),
        work: &[CellWork],
        candidates: &[TuneCandidate],
        options: &TuneOptions,
        progress: impl FnMut(&CellSamples),
    ) -> CommResult<Vec<CellSamples>> {
        measure::check(options)?;
        let control = self.without_table()?;
        // A rank whose call has failed waits for those whose call has not failed yet.
        let waiting = if gpu.is_some() { JOINING.saturating_mul(2) } else { WAITING };
        control.set_time_limit(options.limit.saturating_mul(2).saturating_add(options.limit.max(waiting)));
        compare::compare(&control, options, work, candidates)?;
        measure::measure_cells((&control, watch), gpu, work, candidates, options, progress)
    }
}
