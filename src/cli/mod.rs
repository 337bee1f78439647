//! The command line, defined once: parsing, help, man page and completions all derive from these types.

mod device;
mod examples;
mod export;
mod launch;
mod lowering;
mod plan;
mod profile;
mod ranks;
mod run;
mod sizes;
mod sweep;
mod synth;
mod topology;
mod tune;
mod values;

pub(crate) use self::synth::{BoundArgs, RequestArgs, SearchArgs, SynthArgs};
pub(crate) use self::topology::{ImportArgs, SketchCommand, TopologyCommand};
pub(crate) use self::tune::{TableFormat, TuneArgs, TuneCommand, TuneMeasureArgs};
pub(crate) use device::DeviceChoice;
pub(crate) use export::{ExportArgs, ExportFormat, NcclPath, NcclProtocol};
pub(crate) use launch::{LaunchArgs, MOST_LOCAL_RANKS};
pub(crate) use lowering::LoweringArgs;
pub(crate) use plan::{ExplainArgs, PlanArgs, SimulateArgs, VerifyArgs};
pub(crate) use profile::ProfileArgs;
pub(crate) use ranks::{RankList, Split};
pub(crate) use run::{BufferOwner, LoopRankArgs, RunArgs, TransportChoice};
pub(crate) use sizes::SizeList;
pub(crate) use sweep::{SweepArgs, SweepWorkerArgs};
pub(crate) use values::{ChunkCount, PointChoice};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Synthesizes collective communication algorithms for the machine they will run on, proves them right, runs
/// them, and measures them against the stock ones.
#[derive(Parser, Debug)]
#[command(name = "antiphon", version, propagate_version = true, infer_subcommands = false, after_help = examples::ALL)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print the answer as JSON on stdout, and nothing else there; errors are JSON objects on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more on stderr: -v what is tried, step by step; -vv also what the solver found; -vvv also what
    /// the ranks of a run and their launcher tell each other.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print only errors, the answer of --json, and documents (export, man).
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Colours: `auto` where there is a terminal and NO_COLOR is not set.
    #[arg(long, global = true, default_value = "auto", value_name = "WHEN")]
    pub color: ColorChoice,
    /// Replace files that exist.
    #[arg(long, global = true)]
    pub force: bool,
}

/// When output is coloured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Also in files and pipes.
    Always,
    /// Never.
    Never,
}

/// The commands, in the order of work.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// The main job end to end on this computer: profile, plan under a sketch, verify, run, check, compare.
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),
    /// Known machines; the normalized topology of a SPEC; validation.
    #[command(subcommand, after_help = examples::TOPOLOGY)]
    Topology(TopologyCommand),
    /// Measures α and β of every pair of local ranks and writes a topology file.
    #[command(after_help = examples::PROFILE)]
    Profile(ProfileArgs),
    /// Resolves a sketch and prints what it allows and forbids.
    #[command(subcommand, after_help = examples::SKETCH)]
    Sketch(SketchCommand),
    /// All lower bounds; the strictest one, with its certificate.
    #[command(after_help = examples::BOUND)]
    Bound(BoundArgs),
    /// Plans a collective.
    #[command(after_help = examples::SYNTH)]
    Synth(SynthArgs),
    /// Checks a plan and lists every violation with evidence.
    #[command(after_help = examples::VERIFY)]
    Verify(VerifyArgs),
    /// Plays a plan: makespan, utilisation of every link and resource, traces.
    #[command(after_help = examples::SIMULATE)]
    Simulate(SimulateArgs),
    /// The critical path of a plan, and what limits every plan.
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Writes a plan in another format.
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Executes a plan (or a stock algorithm) on real buffers, checks the result, prints a table.
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Measures stock algorithms and plans on the ranks that will use them, and writes the table of what is faster than stock.
    ///
    /// Every candidate must first compute the right result. Candidates take turns; rank 0 decides how long. A candidate replaces
    /// stock where it is faster beyond the noise of both, over several launches of the ranks. Programs that use the library
    /// find the table by ANTIPHON_TABLE.
    ///
    /// With `-- PROGRAM` the ranks are a program of yours, whose own functions compete (antiphon.h, antiphon_tune_candidate).
    #[command(after_help = examples::TUNE)]
    Tune(TuneArgs),
    /// Plans many problems: every combination of topologies, collectives, sketches, chunk counts and sizes.
    ///
    /// Every combination is a cell. Time limit and strategy are those of one cell. Cells are planned by worker
    /// processes; a cell whose worker dies is tried again, three times in all. The folder holds each cell's record and
    /// plan, results.json with all of them, and for every series of sizes an index like that of `synth --sizes`. The
    /// same command continues a sweep that was interrupted or killed, and tries cells again whose workers died. A size
    /// starts from the plans of the two sizes around it, which follow from the list alone, so the answer does not
    /// depend on the number of workers. Under `mpirun` (built with the feature `mpi`) process 0 hands out the cells,
    /// and all hosts must see the folder. A worker that dies is replaced there as well. If a process of MPI or a host
    /// dies, mpirun ends all of them; the same command then continues.
    #[command(after_help = examples::SWEEP)]
    Sweep(SweepArgs),
    /// Prints shell completions.
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the man page of a command (roff), or writes those of all.
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
    /// One rank of a job; started by `run`, `profile` and `demo`.
    #[command(hide = true)]
    Worker,
    /// One rank of a profile on GPUs; started by `profile`.
    #[command(hide = true)]
    ProfileRank,
    /// One rank of a launch; started by `tune`.
    #[command(hide = true)]
    TuneRank,
    /// One rank of a loop of calls; started by `run --loop`.
    #[command(hide = true)]
    LoopRank(LoopRankArgs),
    /// One rank of the program at the end of the demo; started by `demo`.
    #[command(hide = true)]
    DemoRank,
    /// Plans cells of a sweep; started by `sweep`.
    #[command(hide = true)]
    SweepWorker(SweepWorkerArgs),
}

/// `antiphon man`
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The command, such as `run` or `topology show` (default: the program itself).
    #[arg(value_name = "COMMAND", conflicts_with = "all")]
    pub command: Vec<String>,
    /// The pages of all commands, a file each.
    #[arg(long, requires = "output")]
    pub all: bool,
    /// The folder for them.
    #[arg(short, long, requires = "all", value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// `antiphon demo`
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Where to leave topologies, schedules, traces and the table.
    #[arg(short, long, default_value = "demo-out", value_name = "DIR")]
    pub output: PathBuf,
    /// The unequal cluster to emulate.
    #[arg(long, default_value = "ndv2x1", value_name = "SPEC")]
    pub emulate: String,
    /// The sketch to plan under (default: the built-in demo sketch).
    #[arg(long, value_name = "F")]
    pub sketch: Option<PathBuf>,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}
