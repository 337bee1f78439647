//! A tuning from beginning to end: in a running program, or as one of the launches of `antiphon tune`.
//!
//! The principal functions are [`Communicator::tune`], which a program calls with its own candidates, and [`TuneJob::run`], what
//! a rank of a launch does. A program that `antiphon tune -- PROGRAM` has started calls `tune` as well, and then does what the
//! launch is for.

use super::watch::{TrialWatch, TuneWord};
use super::{
    CellSamples, CellWork, MeasuredTable, NextWork, TuneCandidate, TuneDevice, TuneOptions, final_table, measure,
    next_work, pieces,
};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::gpu::GpuRank;
use crate::table::PlanTable;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tune::{MachineLinks, RankTransport, TableKey, TuningTable};

/// The share of the budget for the grid; the rest is for the edges between choices.
const GRID: f64 = 0.7;
/// How long ranks may take to join, unless it is said.
const JOINING: Duration = Duration::from_secs(60);

/// A launch of `antiphon tune`, as all its ranks read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TuneJob {
    /// What is measured.
    pub options: TuneOptions,
    /// Plans, and tables of plans, that compete.
    pub plans: Vec<PathBuf>,
    /// Plans that compete under names of their own.
    pub named: BTreeMap<String, PathBuf>,
    /// The cells; `None` for all sizes of all collectives.
    pub work: Option<Vec<CellWork>>,
    /// The table of the launches before, which serves the halves of collectives.
    #[serde(default)]
    pub chosen: Option<TuningTable>,
    /// Variants of plans that cells may name ([`NextWork::variants`]).
    #[serde(default)]
    pub variants: BTreeMap<String, String>,
    /// The number of the launch, from 1.
    pub launch: u32,
    /// Candidates that do not compete any more.
    pub quarantine: BTreeSet<String>,
    /// The folder in which every rank says what it does ([`TuneJob::report_of`]).
    pub reports: PathBuf,
    /// Whether every rank computes meanwhile.
    pub loaded: bool,
    /// How long the ranks may take to join.
    pub joining: Duration,
}

/// What a table needs besides the cells of a launch, as rank 0 knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchEnd {
    /// For whom the table is.
    pub key: TableKey,
    /// The plans among the candidates, by their names.
    pub texts: BTreeMap<String, String>,
    /// Functions among the candidates.
    pub functions: BTreeSet<String>,
    /// What messages between machines cost.
    #[serde(default)]
    pub links: Option<MachineLinks>,
    /// What was not measured because ranks map no memory of each other, if they have tried to ([`GpuRank::unmapped`]).
    #[serde(default)]
    pub without_kernels: Option<String>,
}

impl LaunchEnd {
    /// The same with what these GPUs say.
    pub fn on(self, gpu: Option<&GpuRank>) -> Self {
        Self { without_kernels: gpu.and_then(GpuRank::unmapped), ..self }
    }
}

/// Candidates whose halves a table serves.
fn chosen_halves(table: &TuningTable) -> CommResult<Vec<TuneCandidate>> {
    TuneCandidate::chosen(table).map_err(|fault| CommError::NoPlan(fault.to_string()))
}

/// Candidates of variants.
fn variants(known: &[TuneCandidate], texts: &BTreeMap<String, String>) -> CommResult<Vec<TuneCandidate>> {
    pieces::variants(known, texts).map_err(|fault| CommError::NoPlan(fault.to_string()))
}

impl TuneJob {
    /// The variable that names the file of a launch.
    pub const VARIABLE: &str = "ANTIPHON_TUNE_JOB";

    /// The first launch: all sizes of all collectives, with nothing but what the library knows.
    pub fn new(options: TuneOptions) -> Self {
        Self {
            options,
            plans: Vec::new(),
            named: BTreeMap::new(),
            work: None,
            chosen: None,
            variants: BTreeMap::new(),
            launch: 1,
            quarantine: BTreeSet::new(),
            reports: PathBuf::new(),
            loaded: false,
            joining: JOINING,
        }
    }

    /// The launch that this process is a rank of, if it is one.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the file of the launch is none.
    pub fn of_environment() -> CommResult<Option<Self>> {
        let Some(path) = std::env::var_os(Self::VARIABLE) else { return Ok(None) };
        let wrong = |why: String| CommError::Argument(format!("{}: {}: {why}", Self::VARIABLE, path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        serde_json::from_str(&text).map(Some).map_err(|error| wrong(error.to_string()))
    }

    /// Where a rank says what it does, as lines of [`TuneWord`].
    pub fn report_of(&self, rank: usize) -> PathBuf {
        self.reports.join(format!("{rank}.jsonl"))
    }

    /// What competes, with what the caller gives besides; the same on all ranks.
    ///
    /// # Errors
    /// [`CommError::Argument`] if a file is no plan, or two candidates have one name.
    pub fn candidates(&self, comm: &Communicator, given: Vec<TuneCandidate>) -> CommResult<Vec<TuneCandidate>> {
        let mut all = given;
        let read = |path| PlanTable::read(path).map(Arc::new).map_err(|fault| CommError::Argument(fault.to_string()));
        for (name, path) in &self.named {
            let plans = TuneCandidate::of_table(&read(path)?);
            let is_one = plans.len() == 1;
            all.extend(
                plans.into_iter().enumerate().map(|(index, plan)| {
                    plan.named(if is_one { name.clone() } else { format!("{name} {}", index + 1) })
                }),
            );
        }
        let tables = self.plans.iter().map(|path| read(path)).collect::<CommResult<Vec<_>>>()?;
        all.extend(tables.iter().flat_map(TuneCandidate::of_table));
        // Times are compared with stock's, so it is the same plan in all launches; and the one of a table that competes. Nobody has
        // compared the files of the ranks yet.
        let links = match &self.chosen {
            Some(table) => table.links.clone(),
            None => {
                let hardware = comm.hardware_of_all()?;
                comm.shared_value(|| Ok(comm.links_of(&tables, &hardware)))?
            }
        };
        links.iter().for_each(|links| comm.use_links(links));
        let mut all = comm.candidates(&self.options, all)?;
        if let Some(table) = self.chosen.as_ref().filter(|_| self.options.device == TuneDevice::Host) {
            all.extend(chosen_halves(table)?);
        }
        all.extend(variants(&all, &self.variants)?);
        all.retain(|candidate| !self.quarantine.contains(candidate.name()));
        Ok(all)
    }

    /// Measures as one of the ranks of the launch, and says so in the rank's file.
    ///
    /// # Errors
    /// As [`Communicator::measure`].
    pub fn run(&self, comm: &Communicator, given: Vec<TuneCandidate>) -> CommResult<()> {
        let path = self.report_of(comm.rank());
        let watch = TrialWatch::open(&path);
        let watch = watch.map_err(|error| CommError::Argument(format!("{}: {error}", path.display())))?;
        let ended = self.run_watched(comm, given, &watch);
        if let Err(error) = &ended {
            watch.say(&TuneWord::Failed(runtime::chain(error)));
        }
        ended
    }

    fn run_watched(&self, comm: &Communicator, given: Vec<TuneCandidate>, watch: &TrialWatch) -> CommResult<()> {
        let candidates = self.candidates(comm, given)?;
        let work = self.work.clone().unwrap_or_else(|| self.options.grid(comm.size()));
        let mut gpu = comm.open_device(&self.options)?;
        let key = comm.table_key_of(gpu.as_ref())?;
        if comm.rank() == 0 {
            watch.say(&TuneWord::Begin(comm.launch_end(&candidates, key)?.on(gpu.as_ref())));
        }
        let tell = |cell: &CellSamples| watch.say(&TuneWord::Cell(cell.clone()));
        comm.measure_watched((watch, gpu.as_mut()), &work, &candidates, &self.options, tell)?;
        watch.say(&TuneWord::End);
        Ok(())
    }
}

impl Communicator {
    /// What a table needs besides the samples; the key is that of [`Self::table_key`].
    ///
    /// # Errors
    /// [`CommError::NoPlan`] if a plan is not valid.
    pub fn launch_end(&self, candidates: &[TuneCandidate], key: TableKey) -> CommResult<LaunchEnd> {
        let texts = Self::plan_texts(candidates).map_err(CommError::NoPlan)?;
        let functions = candidates.iter().filter(|of| of.is_function()).map(|of| of.name().to_owned()).collect();
        // What was measured between hosts says nothing about GPUs.
        let is_of_gpus = key.transport.is_some_and(RankTransport::is_of_gpus);
        let links = if is_of_gpus { None } else { self.kept_links() };
        Ok(LaunchEnd { key, texts, functions, links, without_kernels: None })
    }

    /// Tunes in a running program: measures the program's own candidates, textbook algorithms and stock on these ranks, and uses
    /// what is faster than stock from the next call of this communicator on. All ranks make this call, with the same arguments
    /// and candidates of the same names, and get the same table. It is one launch; `antiphon tune` makes several. A table of
    /// [`TuneDevice::Gpu`] serves no call here: it is for `libantiphon_nccl.so`.
    ///
    /// If `antiphon tune -- PROGRAM` has started this program, the command says what is measured, and there is no table: `None`.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn tune(&self, options: &TuneOptions, given: Vec<TuneCandidate>) -> CommResult<Option<MeasuredTable>> {
        if let Some(job) = TuneJob::of_environment()? {
            return job.run(self, given).map(|()| None);
        }
        let mut candidates = self.candidates(options, given)?;
        let mut gpu = self.open_device(options)?;
        let part = |share: f64| TuneOptions { budget: options.budget.mul_f64(share), ..options.clone() };
        let step = |collective| measure::step_of(collective, self.size(), options.dtype);
        let dtype = options.dtype.to_string();
        let grid = self.measure_on(gpu.as_mut(), &options.grid(self.size()), &candidates, &part(GRID), |_| {})?;
        // Rank 0 says what decides the edges, and what comes out.
        let key = self.table_key_of(gpu.as_ref())?;
        let next = || {
            let end = self.launch_end(&candidates, key.clone())?;
            next_work(std::slice::from_ref(&grid), &end, &dtype, step).map_err(CommError::NoPlan)
        };
        let NextWork { cells, chosen, variants: cut } = self.shared_value(next)?;
        if options.device == TuneDevice::Host {
            candidates.extend(chosen_halves(&chosen)?);
        }
        candidates.extend(variants(&candidates, &cut)?);
        let edges = self.measure_on(gpu.as_mut(), &cells, &candidates, &part(1.0 - GRID), |_| {})?;
        let made = self.shared_value(|| {
            let (mut launches, end) = ([grid, edges], self.launch_end(&candidates, key)?.on(gpu.as_ref()));
            final_table(&mut launches, &[None, Some(chosen)], end, &dtype, step).map_err(CommError::NoPlan)
        })?;
        // What is best on GPUs serves no call of this communicator, whose buffers are on hosts.
        if options.device == TuneDevice::Host {
            self.use_table(&made.table)?;
            self.use_candidates(&candidates)?;
        }
        Ok(Some(made))
    }

    /// From the next blocking call on, functions among these candidates serve the calls for which the table of this communicator
    /// names them: the table of [`Self::use_table`], or the one that it was connected with (`ANTIPHON_TABLE`). All ranks make
    /// this call. Where a rank has not got a function of that name, the best of the rest serves on all of them, and one line says
    /// so. Returns the names of those that serve.
    ///
    /// A function serves calls of the kind that was measured: its type of elements, its reduction, in place or not. Only this
    /// communicator calls it, not the groups that are made of it; a call that is begun and not waited for is served by a plan.
    ///
    /// # Errors
    /// As any call.
    pub fn use_candidates(&self, given: &[TuneCandidate]) -> CommResult<Vec<String>> {
        let function = |of: &'_ TuneCandidate| Some((of.name().to_owned(), of.as_function()?.clone()));
        self.use_functions(&given.iter().filter_map(function).collect::<Vec<_>>())
    }

    /// From the next call on, this communicator uses a table. All ranks make this call, with the same table. They ask each other
    /// whether they have, so either all of them use it, or none.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the table of a rank is for other ranks, not valid, or not the same as that of rank 0; as any call.
    pub fn use_table(&self, table: &TuningTable) -> CommResult<()> {
        self.use_table_or_fail(Ok(table))
    }

    /// The same for a file, which each rank reads.
    ///
    /// # Errors
    /// [`CommError::Argument`] also if a rank cannot read it.
    pub fn use_table_of(&self, path: &Path) -> CommResult<()> {
        let read = TuningTable::read(path).map_err(|error| error.to_string());
        self.use_table_or_fail(read.as_ref().map_err(Clone::clone))
    }

    fn use_table_or_fail(&self, table: Result<&TuningTable, String>) -> CommResult<()> {
        let hardware = self.hardware_of_all()?;
        let mut plans = PlanTable::default();
        let added = table.and_then(|table| match table.key.difference(&self.key_on(&hardware)) {
            None => plans.add_tuned(table, "tuned table").map_err(|fault| fault.to_string()),
            Some(why) => Err(format!("the table is not for these ranks: it was measured with {why}")),
        });
        let mut all = vec![0_i64; 2 * self.size()];
        self.all_gather(&[i64::from(added.is_ok()), plans.digest() as i64], &mut all)?;
        let refuse = |why: String| Err(CommError::Argument(why));
        if let Err(why) = added {
            return refuse(format!("rank {}: {why}", self.rank()));
        }
        for (rank, said) in all.chunks_exact(2).enumerate() {
            match said {
                [1, digest] if *digest == all[1] => {}
                [1, _] => return refuse(format!("rank {rank} has another table than rank 0; nobody uses its own")),
                _ => return refuse(format!("rank {rank} cannot use its table; nobody uses its own")),
            }
        }
        self.replace_table(plans, Some(hardware.into()));
        self.use_own_functions()
    }

    /// What rank 0 makes, on all ranks. They all make this call.
    ///
    /// # Errors
    /// What kept rank 0 from making it, there; [`CommError::NoPlan`] on the others; as any call.
    pub fn shared_value<T: Serialize + for<'de> Deserialize<'de>>(
        &self,
        make: impl FnOnce() -> CommResult<T>,
    ) -> CommResult<T> {
        let odd = |error: serde_json::Error| CommError::NoPlan(error.to_string());
        let made = if self.rank() == 0 {
            make().and_then(|made| serde_json::to_vec(&made).map_err(odd))
        } else {
            Ok(Vec::new())
        };
        let (mut text, error) = match made {
            Ok(text) => (text, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut length = [text.len() as i64];
        self.broadcast(&mut length, 0)?;
        if let Some(error) = error {
            return Err(error);
        }
        if length[0] == 0 {
            return Err(CommError::NoPlan("rank 0 cannot make the table".to_owned()));
        }
        text.resize(usize::try_from(length[0]).unwrap_or_default(), 0);
        self.broadcast(&mut text, 0)?;
        serde_json::from_slice(&text).map_err(odd)
    }
}
