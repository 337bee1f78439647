//! One rank of a launch: it joins the others, measures with them, and rank 0 tells what came out.

use super::load::Burner;
use super::log::RankLog;
use crate::cli::TuneRankArgs;
use crate::failure::{Failure, Outcome, read_text};
use comm::{CellSamples, CellWork, Communicator, Config, PlanTable, TuneCandidate, TuneOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tune::TableKey;

/// What the ranks of a launch measure.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct TuneJob {
    pub(super) options: TuneOptions,
    /// Plans, and tables of plans.
    pub(super) plans: Vec<PathBuf>,
    /// The cells; `None` for all sizes of all collectives.
    pub(super) work: Option<Vec<CellWork>>,
    /// The number of the launch, from 1.
    pub(super) launch: u32,
    /// The folder in which every rank writes down what it measures.
    pub(super) log: Option<PathBuf>,
    /// Whether every rank computes meanwhile.
    pub(super) loaded: bool,
}

/// What rank 0 says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankWord {
    /// A cell is measured.
    Cell(CellSamples),
    /// All are.
    End(LaunchEnd),
}

/// What is known at the end of a launch, besides the cells.
#[derive(Serialize, Deserialize)]
pub(super) struct LaunchEnd {
    pub(super) key: TableKey,
    /// The plans among the candidates, by their names.
    pub(super) texts: BTreeMap<String, String>,
}

/// Measures as one of the ranks that [`super::launch`] has started.
pub(crate) fn run(args: &TuneRankArgs) -> Outcome {
    let job: TuneJob = serde_json::from_str(&read_text(&args.job)?).map_err(Failure::bad_input)?;
    let mut config = Config::from_env().map_err(Failure::no)?;
    config.table = None;
    let comm = Communicator::connect(&config).map_err(Failure::no)?;
    let say = |word: &RankWord| -> Outcome {
        let line = serde_json::to_string(word).map_err(Failure::no)?;
        use std::io::Write;
        writeln!(std::io::stdout().lock(), "{line}").map_err(Failure::no)
    };
    let candidates = job.candidates(&comm)?;
    let work = job.work.clone().unwrap_or_else(|| job.options.grid());
    let mut log = job.log.as_deref().map(|folder| RankLog::open(folder, job.launch, comm.rank())).transpose()?;
    let _burner = job.loaded.then(Burner::start);
    let tell = |cell: &CellSamples| {
        log.iter_mut().for_each(|log| log.add(cell));
        if comm.rank() == 0 {
            drop(say(&RankWord::Cell(cell.clone())));
        }
    };
    comm.measure(&work, &candidates, &job.options, tell).map_err(Failure::no)?;
    if comm.rank() == 0 { say(&RankWord::End(LaunchEnd::new(&comm, &candidates)?)) } else { Ok(()) }
}

impl TuneJob {
    /// What competes; the same on all ranks.
    pub(super) fn candidates(&self, comm: &Communicator) -> Outcome<Vec<TuneCandidate>> {
        let mut given = Vec::new();
        for path in &self.plans {
            given.extend(TuneCandidate::of_table(&Arc::new(PlanTable::read(path).map_err(Failure::bad_input)?)));
        }
        comm.candidates(&self.options, given).map_err(Failure::no)
    }
}

impl LaunchEnd {
    pub(super) fn new(comm: &Communicator, candidates: &[TuneCandidate]) -> Outcome<Self> {
        let texts = Communicator::plan_texts(candidates).map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
        Ok(Self { key: comm.table_key(None), texts })
    }
}
