//! The command line, defined once: parsing, help, man page and completions all derive from these types.

mod launch;
mod lowering;
mod profile;
mod run;
mod sizes;
mod split;
mod sweep;
mod values;

pub(crate) use launch::LaunchArgs;
pub(crate) use lowering::LoweringArgs;
pub(crate) use profile::ProfileArgs;
pub(crate) use run::{RunArgs, TransportChoice};
pub(crate) use sizes::SizeList;
pub(crate) use sweep::{SweepArgs, SweepWorkerArgs};
pub(crate) use values::{Chunks, PointChoice, StrategyChoice};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use schedule::{Collective, ReduceOp};
use std::path::PathBuf;
use std::time::Duration;
use values::{collective, duration, op, size};

/// Synthesizes collective communication algorithms for the machine they will run on, proves them right, runs
/// them, and measures them against the stock ones.
#[derive(Parser, Debug)]
#[command(name = "antiphon", version, propagate_version = true, infer_subcommands = false)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to speak.
    #[command(flatten)]
    pub voice: Voice,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct Voice {
    /// Print the machine-readable result on stdout, and nothing else there.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more on stderr (repeat for still more).
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing on stderr but errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// The main job end to end on this computer: profile, plan under a sketch, verify, run, check, compare.
    Demo(DemoArgs),
    /// Known machines; the normalized topology of a SPEC; validation.
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// Measures α and β of every pair of local ranks and writes a topology file.
    Profile(ProfileArgs),
    /// Resolves a sketch and prints what it allows and forbids.
    #[command(subcommand)]
    Sketch(SketchCommand),
    /// Every lower bound, which one binds, and its certificate.
    Bound(BoundArgs),
    /// Plans a collective.
    Synth(SynthArgs),
    /// Checks a plan and lists every violation with evidence.
    Verify(VerifyArgs),
    /// Plays a plan: makespan, utilisation of every link and resource, traces.
    Simulate(SimulateArgs),
    /// The critical path of a plan, and what binds.
    Explain(ExplainArgs),
    /// Writes a plan in another format.
    Export(ExportArgs),
    /// Executes a plan (or a stock algorithm) on real buffers, checks the result, prints a table.
    Run(RunArgs),
    /// Plans many problems: every combination of topologies, collectives, sketches, chunk counts and sizes.
    ///
    /// Every combination is a cell; time limit and strategy are those of one cell. Cells are planned by worker processes;
    /// one that dies costs its cell another try, of three. The folder holds each cell's record and plan, results.json
    /// with all of them, and for every series of sizes an index as of `synth --sizes`. The same command continues a
    /// sweep that was interrupted or killed, and tries cells again whose workers died. A size starts from the plans of the
    /// two sizes that it halves the interval of, so the answer does not depend on the number of workers. Under
    /// `mpirun` (built with the feature `mpi`) process 0 hands out the cells and all hosts must see the folder; a
    /// worker that dies is replaced there as well, but if a process of MPI or a host dies, mpirun ends all of them:
    /// then the same command continues.
    Sweep(SweepArgs),
    /// Prints shell completions.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the man page (roff).
    Man,
    /// One rank of a job; started by `run`, `profile` and `demo`.
    #[command(hide = true)]
    Worker,
    /// Plans cells of a sweep; started by `sweep`.
    #[command(hide = true)]
    SweepWorker(SweepWorkerArgs),
}

/// `antiphon topology …`
#[derive(Subcommand, Debug)]
pub(crate) enum TopologyCommand {
    /// Lists the families and machines a SPEC can name.
    List,
    /// Prints the normalized topology of a SPEC.
    Show {
        /// `name[:params][,key=value]…`, or a path.
        spec: String,
        /// A picture of what every pair costs instead of a table.
        #[arg(long)]
        heat_map: bool,
        /// The same picture, as SVG.
        #[arg(long, value_name = "F.svg")]
        svg: Option<PathBuf>,
    },
    /// Validates a SPEC or a file.
    Check {
        /// `name[:params][,key=value]…`, or a path.
        spec: String,
    },
    /// Translates `nvidia-smi topo -m` text, NCCL topology XML, TACCL topology JSON or /sys into a topology file.
    Import(ImportArgs),
}

/// What `topology import` reads, and what the file does not say.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The foreign file, whose format is seen from its text; or /sys, or a copy of it.
    pub file: PathBuf,
    /// Where to write the topology (YAML, or JSON if it ends in `.json`); stdout if absent.
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// How many such machines are joined through their NICs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub machines: u64,
    /// TACCL: the size of the chunk that its costs are for, if the name does not say it.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub chunk_bytes: Option<u64>,
    /// TACCL: how many of its units of time make a microsecond.
    #[arg(long, value_name = "N", value_parser = values::slowdown)]
    pub scale: Option<f64>,
    /// TACCL: the kind of topology, if the name does not say it (DGX2, NDv2, HubAndSpoke, custom).
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Bandwidths of what the file names without a speed: `nvlink=25GBps,pcie=24GBps,smp=10GBps,nic=25GBps`.
    #[arg(long, value_name = "LIST")]
    pub assume: Option<topology::import::Assumed>,
}

/// `antiphon sketch …`
#[derive(Subcommand, Debug)]
pub(crate) enum SketchCommand {
    /// Resolves a sketch against a topology.
    Check {
        /// The sketch file.
        file: PathBuf,
        /// The topology to resolve it against.
        #[arg(long, value_name = "SPEC")]
        topology: String,
    },
    /// Translates a TACCL sketch (JSON); prints it where no output is named.
    Import {
        /// The TACCL sketch.
        file: PathBuf,
        /// Where to write the sketch; its name is the sketch's.
        #[arg(short, long, value_name = "OUT.yaml")]
        output: Option<PathBuf>,
        /// The topology it is for: says what it was translated for, and is checked against it.
        #[arg(long, value_name = "SPEC")]
        topology: Option<String>,
    },
}

/// What to plan, but for its size.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// The machine: `name[:params][,key=value]…`, or a path to a topology file.
    #[arg(long, value_name = "SPEC")]
    pub topology: String,
    /// The operation.
    #[arg(long, value_parser = collective())]
    pub collective: Collective,
    /// Chunks per rank, or `auto` to search.
    #[arg(long, default_value = "auto", value_name = "N|auto")]
    pub chunks: Chunks,
    /// Only these ranks take part, such as 0,2,4.
    #[arg(long, value_delimiter = ',', value_name = "RANKS")]
    pub members: Option<Vec<u32>>,
    /// The root of a rooted collective (default: the first member).
    #[arg(long, value_name = "R")]
    pub root: Option<u32>,
    /// The reduction of a reducing collective (default: sum).
    #[arg(long, value_parser = op())]
    pub op: Option<ReduceOp>,
    /// Byte counts of an alltoallv: one CSV row per sending member.
    #[arg(long, value_name = "F.csv")]
    pub matrix: Option<PathBuf>,
    /// Chunks of a custom collective.
    #[arg(long, value_name = "F.yaml")]
    pub demand: Option<PathBuf>,
    /// A sketch that constrains the plan.
    #[arg(long, value_name = "F")]
    pub sketch: Option<PathBuf>,
}

/// How hard to look.
#[derive(Args, Clone, Debug)]
pub(crate) struct SearchArgs {
    /// Only this strategy: orbits, classic, flow, levels, trees, symmetric, matching, improve, milp, exact; or auto.
    #[arg(long, default_value = "auto", value_name = "NAME|auto")]
    pub strategy: StrategyChoice,
    /// Stop after this time with the best so far, such as 30s; results then depend on the machine's speed.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub time_limit: Option<Duration>,
    /// Stop as soon as the makespan is this close to the bound, such as 2%.
    #[arg(long, default_value = "0%", value_name = "PERCENT", value_parser = values::percent)]
    pub gap: f64,
    /// Seed of every random choice: same seed, same bytes.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads (default: all cores); the result does not depend on them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl SearchArgs {
    /// The arguments that say the same on a command line.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let Self { strategy, time_limit, gap, seed, threads } = self;
        let strategy = strategy.0.map_or("auto", synth::StrategyKind::as_str);
        let mut words =
            vec![format!("--strategy={strategy}"), format!("--gap={}%", gap * 100.0), format!("--seed={seed}")];
        words.extend(time_limit.map(|limit| format!("--time-limit={}us", limit.as_micros())));
        words.extend(threads.map(|threads| format!("--threads={threads}")));
        words
    }
}

/// `antiphon bound`
#[derive(Args, Debug)]
pub(crate) struct BoundArgs {
    /// What to bound.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Total size as nccl-tests means it: 1KB = 1000, 1KiB = 1024, plain bytes. It follows from --matrix, and from --demand
    /// where all chunks have sizes.
    #[arg(long, value_parser = size, required_unless_present_any = ["matrix", "demand"])]
    pub size: Option<u64>,
    /// How long all bounds together may take, such as 60s. Without it, only those that take a proof by the solver are limited,
    /// to 2s.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub time_limit: Option<Duration>,
}

/// `antiphon synth`
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// What to plan.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Total size as nccl-tests means it: 1KB = 1000, 1KiB = 1024, plain bytes. It follows from --matrix, and from --demand
    /// where all chunks have sizes.
    #[arg(
        long,
        value_parser = size,
        required_unless_present_any = ["sizes", "matrix", "demand"],
        conflicts_with = "sizes",
        allow_hyphen_values = true
    )]
    pub size: Option<u64>,
    /// Many sizes, such as 1KB,64KB,1MB or 1KB..1GB (every fourfold from 1 KB, and 1 GB) or 1KB..1GB:x2: few plans,
    /// each for a window of sizes and there within 1 % of the best found. A time limit is for all of them.
    ///
    /// The index (`antiphon-sweep/1`) lists `windows`: `from_bytes`, `to_bytes` (exclusive), `file` and what the plan is; and
    /// `sizes`: `makespan_us` of the window's plan, `best_us` of all plans, `lower_bound_us`, `gap`, and whether the size
    /// was `searched` or is served by plans of others. Windows are disjoint and leave no hole.
    #[arg(long, value_name = "A..B[:xF]|LIST")]
    pub sizes: Option<SizeList>,
    /// How hard to look.
    #[command(flatten)]
    pub search: SearchArgs,
    /// With `--strategy exact`: every number of chunks, synchronous steps and rounds worth having, certified; up to
    /// `--chunks` chunks (default: 6). The fastest at this size is written.
    #[arg(long, conflicts_with = "sizes")]
    pub pareto: bool,
    /// With `--pareto`: write this point instead.
    #[arg(long, requires = "pareto", value_name = "CHUNKS,STEPS,ROUNDS")]
    pub point: Option<PointChoice>,
    /// Where to write the schedule; with --sizes the folder for `index.json` and one `plan-<i>.json` for each window.
    #[arg(short, long, value_name = "OUT.json|DIR")]
    pub output: Option<PathBuf>,
}

/// `antiphon verify`
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The plan file: schedule JSON, MSCCL XML (either dialect) or MSCCL++ JSON.
    pub file: PathBuf,
    /// The topology (default: the SPEC that a schedule names; for plans of other tools, whether it has the links).
    #[arg(long, value_name = "SPEC")]
    pub topology: Option<String>,
    /// Also check that the schedule obeys this sketch.
    #[arg(long, value_name = "F")]
    pub sketch: Option<PathBuf>,
    /// Also check that an alltoallv schedule moves these bytes: one CSV row per sending member.
    #[arg(long, value_name = "F.csv")]
    pub matrix: Option<PathBuf>,
    /// Also check that a custom schedule moves these chunks.
    #[arg(long, value_name = "F.yaml")]
    pub demand: Option<PathBuf>,
    /// Write an orbit-compressed schedule with every transfer (at most 5 million).
    #[arg(long, value_name = "OUT.json")]
    pub expand: Option<PathBuf>,
}

/// A plan file (schedule JSON, MSCCL XML or MSCCL++ JSON) and its topology.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// The plan file: schedule JSON, MSCCL XML or MSCCL++ JSON.
    pub file: PathBuf,
    /// The topology (default: the SPEC that the file names).
    #[arg(long, value_name = "SPEC")]
    pub topology: Option<String>,
    /// The size of the call, for plans of other tools, which have none (default: one that the plan serves).
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
}

/// `antiphon simulate`
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// What to replay.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Write a Perfetto/Chrome trace.
    #[arg(long, value_name = "T.json")]
    pub trace: Option<PathBuf>,
    /// Write a self-contained HTML timeline.
    #[arg(long, value_name = "R.html")]
    pub html: Option<PathBuf>,
}

/// `antiphon explain`
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// What to explain.
    #[command(flatten)]
    pub plan: PlanArgs,
}

/// `antiphon export`
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// What to export.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// The format.
    #[arg(long)]
    pub format: ExportFormat,
    /// Where to write it (default: stdout).
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// For calls whose input and output are the same memory (programs and files of other tools).
    #[arg(long)]
    pub in_place: bool,
    /// How it becomes a program (programs and files of other tools).
    #[command(flatten)]
    pub lowering: LoweringArgs,
    /// MSCCL: how bytes cross a connection.
    #[arg(long, default_value = "simple")]
    pub protocol: Protocol,
    /// MSCCL: the name of the algorithm.
    #[arg(long)]
    pub name: Option<String>,
    /// MSCCL: the least size that the file serves (default: from the plan's size).
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub min_bytes: Option<u64>,
    /// MSCCL: the largest size that the file serves; 0 for no limit (executor).
    #[arg(long, value_parser = size, value_name = "SIZE")]
    pub max_bytes: Option<u64>,
}

/// The protocols of NCCL.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// Bulk slots: most bandwidth.
    Simple,
    /// Data and flags together: least latency.
    Ll,
    /// The same in lines of 128 bytes.
    Ll128,
}

/// What `export` can write.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExportFormat {
    /// Perfetto/Chrome trace events.
    Trace,
    /// Graphviz: who sends what to whom, when.
    Dot,
    /// The lowered program of every rank, as a listing.
    Program,
    /// An MSCCL algorithm file for microsoft/msccl.
    MscclXml,
    /// An MSCCL algorithm file for Azure's msccl-executor-nccl and RCCL.
    MscclXmlExecutor,
    /// An execution plan for MSCCL++; between machines it uses port channels.
    MscclppJson,
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
