//! What `antiphon export` takes.

use super::values::size;
use super::{LoweringArgs, PlanArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

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
    #[command(flatten, next_help_heading = "How the plan becomes a program")]
    pub lowering: LoweringArgs,
    /// MSCCL: how bytes cross a connection.
    #[arg(long, default_value = "simple")]
    pub protocol: NcclProtocol,
    /// NCCL graph: what the links are. Only over NVLink does NCCL use its protocol LL128.
    #[arg(long, default_value = "sys", value_name = "PATH")]
    pub path: NcclPath,
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
pub(crate) enum NcclProtocol {
    /// Bulk slots: most bandwidth.
    Simple,
    /// Data and flags together: least latency.
    Ll,
    /// The same in lines of 128 bytes.
    Ll128,
}

/// What the links of a machine are for NCCL, by its own names.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NcclPath {
    /// NVLink.
    Nvl,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A host bridge.
    Phb,
    /// Between CPUs.
    Sys,
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
    /// The rings of a plan for one machine, for NCCL itself (`NCCL_GRAPH_FILE`).
    NcclGraph,
}
