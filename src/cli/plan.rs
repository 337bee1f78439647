//! The arguments of the commands that read a plan: `antiphon verify`, `simulate` and `explain`.

use super::TransportChoice;
use super::values::{size, slowdown};
use clap::Args;
use std::path::PathBuf;

/// `antiphon verify`
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The plan file: schedule JSON, MSCCL XML (either dialect) or MSCCL++ JSON.
    pub file: PathBuf,
    /// The topology (default: the one that a schedule describes or names; plans of other tools need one only to check
    /// links).
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
    /// Also lower the schedule to the program of every rank, and check that: no deadlock, no race, the right result under every
    /// interleaving.
    #[arg(long)]
    pub program: bool,
    /// Write an orbit-compressed schedule with every transfer (at most 5 million).
    #[arg(long, value_name = "OUT.json")]
    pub expand: Option<PathBuf>,
}

/// A plan file (schedule JSON, MSCCL XML or MSCCL++ JSON) and its topology.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// The plan file: schedule JSON, MSCCL XML or MSCCL++ JSON.
    pub file: PathBuf,
    /// The topology (default: the one that the file describes or names).
    #[arg(long, value_name = "SPEC")]
    pub topology: Option<String>,
    /// The size of the call, for plans of other tools, which do not state one (default: a size that the plan serves).
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
    /// Run the plan on local ranks and compare the time of every message with what the model predicts.
    #[arg(long)]
    pub analyze: bool,
    /// Make the local ranks behave like this topology: paced links and resources.
    #[arg(long, value_name = "SPEC", requires = "analyze")]
    pub emulate: Option<String>,
    /// Slow the emulated links down by this factor.
    #[arg(long, default_value_t = 1.0, requires = "emulate", value_name = "K", value_parser = slowdown)]
    pub slowdown: f64,
    /// How local ranks exchange data.
    #[arg(long, default_value = "auto", requires = "analyze")]
    pub transport: TransportChoice,
    /// Measured repetitions.
    #[arg(long, default_value_t = 9, requires = "analyze", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// Also measure smaller sizes, fit what messages take beyond the model, and write the topology with it: plans for that
    /// topology are plans for what these ranks take.
    #[arg(long, value_name = "F.yaml", requires = "analyze")]
    pub corrected: Option<PathBuf>,
}
