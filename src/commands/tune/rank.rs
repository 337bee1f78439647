//! One rank of a launch: it joins the others, measures with them, and rank 0 tells what came out.

use crate::cli::TuneRankArgs;
use crate::failure::{Failure, Outcome, read_text};
use comm::{CellSamples, CellWork, Communicator, Config, PlanTable, TuneCandidate, TuneOptions};
use runtime::DType;
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tune::TableKey;

/// What the ranks of a launch measure.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct TuneJob {
    pub(super) collectives: Vec<Collective>,
    pub(super) sizes: Vec<u64>,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) budget: Duration,
    pub(super) limit: Duration,
    pub(super) seed: u64,
    /// Plans, and tables of plans.
    pub(super) plans: Vec<PathBuf>,
    /// The cells; `None` for all sizes of all collectives.
    pub(super) work: Option<Vec<CellWork>>,
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
    let (_, end) = measure(&comm, &job, |cell| {
        if comm.rank() == 0 {
            drop(say(&RankWord::Cell(cell.clone())));
        }
    })?;
    if comm.rank() == 0 { say(&RankWord::End(end)) } else { Ok(()) }
}

/// Measures as one of the ranks.
pub(super) fn measure(
    comm: &Communicator,
    job: &TuneJob,
    progress: impl FnMut(&CellSamples),
) -> Outcome<(Vec<CellSamples>, LaunchEnd)> {
    let options = TuneOptions {
        collectives: job.collectives.clone(),
        sizes: job.sizes.clone(),
        dtype: job.dtype,
        op: job.op,
        budget: job.budget,
        limit: job.limit,
        seed: job.seed,
    };
    let mut given = Vec::new();
    for path in &job.plans {
        given.extend(TuneCandidate::of_table(&Arc::new(PlanTable::read(path).map_err(Failure::bad_input)?)));
    }
    let candidates = comm.candidates(&options, given).map_err(Failure::no)?;
    let work = job.work.clone().unwrap_or_else(|| options.grid());
    let samples = comm.measure(&work, &candidates, &options, progress).map_err(Failure::no)?;
    let texts = Communicator::plan_texts(&candidates).map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
    Ok((samples, LaunchEnd { key: comm.table_key(None), texts }))
}
