//! What `antiphon run` takes.

use super::ranks::Split;
use super::values::{collective, duration, op, slowdown};
use super::{LaunchArgs, LoweringArgs, RankList, SizeList};
use clap::{Args, ValueEnum};
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// `antiphon run`
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Plan files: schedule JSON, MSCCL XML or MSCCL++ JSON (default: the best classic algorithm). Several run at the
    /// same time, each with connections of its own.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The operation (default: the schedule's).
    #[arg(long, value_parser = collective(), required_unless_present = "files")]
    pub collective: Option<Collective>,
    /// Sizes, such as 1KiB or 1KB,1MB or 1KB..1GB (each twice the one before) or 1KB..1GB:4 (default: the schedule's,
    /// or the size of the matrix). Listed chunks are scaled to them.
    #[arg(long, value_name = "A..B[:F]|LIST", required_unless_present_any = ["files", "matrix", "demand"])]
    pub size: Option<SizeList>,
    /// Who starts the ranks (default: as many local processes as the schedule has ranks).
    #[command(flatten, next_help_heading = "Who starts the ranks")]
    pub launch: LaunchArgs,
    /// The topology of the schedule (default: the one that the file describes or names).
    #[arg(long, value_name = "SPEC")]
    pub topology: Option<String>,
    /// At each size, run what this table (or folder of plans) chooses, as programs that use the library do by
    /// ANTIPHON_TABLE; the best classic algorithm where it chooses none.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["files", "members", "split", "matrix", "demand", "topology"])]
    pub table: Option<PathBuf>,
    /// The element type.
    #[arg(long, default_value = "f32", value_name = "f32|f64|i32|i64|u8|f16|bf16")]
    pub dtype: runtime::DType,
    /// The reduction of a reducing collective (default: sum, or the schedule's).
    #[arg(long, value_parser = op())]
    pub op: Option<ReduceOp>,
    /// The root of a rooted collective.
    #[arg(long)]
    pub root: Option<u32>,
    /// The ranks that take part, such as 0-3,6 (default: all); the others may relay.
    #[arg(long, value_name = "RANKS", conflicts_with = "files")]
    pub members: Option<RankList>,
    /// Run in each of these groups of ranks at the same time: 0,2,4/1,3,5, or 0-3/4-7, or size=4 (neighbours). Plan and
    /// root count the ranks of each group from zero. Ranks in no group do nothing. With several plan files, one file
    /// for each group.
    #[arg(long, value_name = "GROUPS", conflicts_with = "members")]
    pub split: Option<Split>,
    /// Byte counts of an alltoallv: one CSV row per sending member. A plan file is checked against them.
    #[arg(long, value_name = "F.csv")]
    pub matrix: Option<PathBuf>,
    /// The chunks of a custom collective. A plan file is checked against them.
    #[arg(long, value_name = "F.yaml")]
    pub demand: Option<PathBuf>,
    /// Measured repetitions.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Repetitions before measuring.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warmups: u32,
    /// Make the local ranks behave like this topology: paced links and resources.
    #[arg(long, value_name = "SPEC")]
    pub emulate: Option<String>,
    /// Slow the emulated links down by this factor.
    #[arg(long, default_value_t = 1.0, requires = "emulate", value_name = "K", value_parser = slowdown)]
    pub slowdown: f64,
    /// Make calls of the library back to back, as the OSU benchmarks and nccl-tests do: each iteration is a block of calls, and its
    /// time is that of one call on the slowest rank. One plan (schedule JSON) may be given; the library lowers it as it
    /// does for programs.
    #[arg(long = "loop", conflicts_with_all = [
        "members", "split", "matrix", "demand", "topology", "emulate", "seed", "channels", "instances", "fuse",
        "max_threadblocks",
    ])]
    pub is_loop: bool,
    /// With --loop: whose memory the calls read and write.
    #[arg(long, default_value = "caller", requires = "is_loop", value_name = "WHOSE")]
    pub buffers: BufferOwner,
    /// Print CSV, with the names of the columns in the first line.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// How the plan becomes a program.
    #[command(flatten, next_help_heading = "How the plan becomes a program")]
    pub lowering: LoweringArgs,
    /// How local ranks exchange data.
    #[arg(long, default_value = "auto", env = "ANTIPHON_TRANSPORT", hide_env_values = true)]
    pub transport: TransportChoice,
    /// Give up when no rank makes progress for this long (default: 10 s, and more if the predicted time is long; with
    /// --loop ANTIPHON_TIMEOUT, or 30 s).
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Seed of the input data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Whose memory buffers are.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum BufferOwner {
    /// The program's: the kernel copies long messages between processes.
    Caller,
    /// The library's: other processes read it where it lies.
    Ours,
}

/// `antiphon loop-rank`
#[derive(Args, Debug)]
pub(crate) struct LoopRankArgs {
    /// What to measure, as `antiphon run --loop` has written it.
    pub job: PathBuf,
}

/// How local ranks exchange data.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransportChoice {
    /// The fastest way for each pair of ranks: shared memory on one computer, TCP between computers.
    Auto,
    /// One process per rank, shared memory between them.
    Shm,
    /// One process per rank, TCP between them.
    Tcp,
    /// One thread per rank, shared memory between them.
    Threads,
}
