//! What `antiphon tune` takes.

use super::values::{TunedCollectives, duration, op, tuned_collectives};
use super::{DeviceChoice, LaunchArgs, SizeList, examples};
use clap::{Args, Subcommand, ValueEnum};
use schedule::{Collective, ReduceOp};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `antiphon tune`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TuneArgs {
    /// What to do with tables.
    #[command(subcommand)]
    pub command: Option<TuneCommand>,
    /// What to measure.
    #[command(flatten)]
    pub measure: TuneMeasureArgs,
}

/// What is measured.
#[derive(Args, Debug)]
pub(crate) struct TuneMeasureArgs {
    /// Who starts the ranks: `--ranks`, or a launcher.
    #[command(flatten, next_help_heading = "Who starts the ranks")]
    pub launch: LaunchArgs,
    /// Where buffers are. On GPUs stock is NCCL's own collectives, and plans run in rounds over NCCL, as libantiphon_nccl.so runs them.
    #[arg(long, default_value = "host")]
    pub device: DeviceChoice,
    /// Operations, separated by commas; `all` for all that can be tuned.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = tuned_collectives(),
        default_value = "allreduce,allgather,reducescatter,broadcast,alltoall"
    )]
    pub collective: Vec<TunedCollectives>,
    /// Sizes, such as 1KB,64KB,1MB or 1KB..64MB (each twice the one before) or 1KB..64MB:4 (four times).
    #[arg(long, value_name = "A..B[:F]|LIST", default_value = "8,64B..16MiB:4")]
    pub sizes: SizeList,
    /// How long all measuring may take, about.
    #[arg(long, value_name = "T", value_parser = duration, default_value = "60s")]
    pub budget: Duration,
    /// Plans that compete: files, the folder of `synth --sizes`, or folders of plans.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub plans: Vec<PathBuf>,
    /// A plan that competes under a name of its own; may be given several times.
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub candidate: Vec<(String, PathBuf)>,
    /// Plan for this topology, and let the plans compete.
    #[arg(long, value_name = "SPEC")]
    pub topology: Option<String>,
    /// The element type.
    #[arg(long, default_value = "f32", value_name = "f32|f64|i32|i64|u8|f16|bf16")]
    pub dtype: runtime::DType,
    /// The reduction of reducing collectives.
    #[arg(long, default_value = "sum", value_parser = op())]
    pub op: ReduceOp,
    /// Start the ranks so many times: the first time measures all, the others confirm. Ranks of another launcher join so often.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub launches: u32,
    /// Give up a call that makes no progress for this long.
    #[arg(long, value_name = "T", value_parser = duration, default_value = "10s")]
    pub timeout: Duration,
    /// Seed of the input data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Measure every candidate so many times, unless it takes more than four times as long as the best one, whatever the budget: to
    /// compare a table with.
    #[arg(long, default_value_t = 0, value_name = "N", hide_default_value = true)]
    pub least_samples: usize,
    /// All samples, a line of JSON for each candidate of each cell of each launch.
    #[arg(long, value_name = "F.jsonl")]
    pub samples: Option<PathBuf>,
    /// What every rank has seen, a file each (rank-N.jsonl), and report.json with the ranks and candidates that failed.
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
    /// Measure once more while every rank computes, and show both rankings. The table is that of the ranks alone.
    #[arg(long)]
    pub load_aware: bool,
    /// The table.
    #[arg(short, long, value_name = "F.json", required = true)]
    pub output: Option<PathBuf>,
    /// The ranks are this program, which calls `tune` of the library with candidates of its own. One that hangs or crashes is
    /// refused, and measuring goes on with the others.
    #[arg(last = true, value_name = "PROGRAM", requires = "ranks", conflicts_with = "load_aware")]
    pub program: Vec<OsString>,
}

impl TuneMeasureArgs {
    /// The operations, each once.
    pub(crate) fn collectives(&self) -> Vec<Collective> {
        TunedCollectives::of_list(&self.collective)
    }
}

/// `NAME=FILE`.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), PathBuf::from(file))),
        _ => Err("it is not NAME=FILE".to_owned()),
    }
}

/// `antiphon tune …`
#[derive(Subcommand, Debug)]
pub(crate) enum TuneCommand {
    /// Prints the choices of a table, and how much faster than stock they are.
    #[command(after_help = examples::TUNE_SHOW)]
    Show {
        /// The table.
        #[arg(value_name = "F.json")]
        table: PathBuf,
        /// Draw them: the fastest at each size, how much faster than stock it is, and how sure that is.
        #[arg(long, value_name = "F.svg")]
        svg: Option<PathBuf>,
    },
    /// Checks a table and all its plans.
    #[command(after_help = examples::TUNE_VERIFY)]
    Verify {
        /// The table.
        #[arg(value_name = "F.json")]
        table: PathBuf,
    },
    /// Prints where two tables differ.
    #[command(after_help = examples::TUNE_DIFF)]
    Diff {
        /// The first table.
        #[arg(value_name = "F.json")]
        first: PathBuf,
        /// The second table.
        #[arg(value_name = "G.json")]
        second: PathBuf,
    },
    /// Makes one table of several for the same ranks. Where they disagree, their evidence decides.
    #[command(after_help = examples::TUNE_MERGE)]
    Merge {
        /// The tables.
        #[arg(value_name = "F.json", num_args = 2.., required = true)]
        tables: Vec<PathBuf>,
        /// The merged table.
        #[arg(short, long, value_name = "G.json")]
        output: PathBuf,
    },
    /// Writes the choices for another library, as far as it knows the algorithms.
    #[command(after_help = examples::TUNE_EXPORT)]
    Export {
        /// The table.
        #[arg(value_name = "F.json")]
        table: PathBuf,
        /// The format.
        #[arg(long)]
        format: TableFormat,
        /// Where to write it (default: stdout).
        #[arg(short, long, value_name = "OUT")]
        output: Option<PathBuf>,
    },
}

/// For whom `tune export` writes.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TableFormat {
    /// The file of NCCL's example tuner plugin (NCCL_TUNER_CONFIG_FILE).
    NcclCsv,
    /// The rules of Open MPI (--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename OUT).
    OmpiRules,
    /// The value of UCC_TL_UCP_TUNE.
    Ucc,
}
