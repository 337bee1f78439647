//! What `antiphon topology` and `antiphon sketch` take.

use super::examples;
use super::values::{size, slowdown};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `antiphon topology …`
#[derive(Subcommand, Debug)]
pub(crate) enum TopologyCommand {
    /// Lists the families and machines a SPEC can name.
    #[command(after_help = examples::TOPOLOGY_LIST)]
    List,
    /// Prints the normalized topology of a SPEC.
    #[command(after_help = examples::TOPOLOGY_SHOW)]
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
    #[command(after_help = examples::TOPOLOGY_CHECK)]
    Check {
        /// `name[:params][,key=value]…`, or a path.
        spec: String,
    },
    /// Translates `nvidia-smi topo -m` text, NCCL topology XML, TACCL topology JSON or /sys into a topology file.
    #[command(after_help = examples::TOPOLOGY_IMPORT)]
    Import(ImportArgs),
}

/// The arguments of `topology import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// The file, whose text shows its format; or /sys, or a copy of it.
    pub file: PathBuf,
    /// Where to write the topology (YAML, or JSON if it ends in `.json`); stdout if absent.
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// How many such machines are joined through their NICs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub machines: u64,
    /// TACCL: the size of the chunk that its costs are for, if the name does not say it.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub chunk_bytes: Option<u64>,
    /// TACCL: how many of its units of time make a microsecond.
    #[arg(long, value_name = "N", value_parser = slowdown)]
    pub scale: Option<f64>,
    /// TACCL: the kind of topology, if the name does not say it (DGX2, NDv2, HubAndSpoke, custom).
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Bandwidths of parts that the file names without a speed: `nvlink=25GBps,pcie=24GBps,smp=10GBps,nic=25GBps`.
    #[arg(long, value_name = "LIST")]
    pub assume: Option<topology::import::Assumed>,
}

/// `antiphon sketch …`
#[derive(Subcommand, Debug)]
pub(crate) enum SketchCommand {
    /// Resolves a sketch against a topology.
    #[command(after_help = examples::SKETCH_CHECK)]
    Check {
        /// The sketch file.
        file: PathBuf,
        /// The topology to resolve it against.
        #[arg(long, value_name = "SPEC")]
        topology: String,
    },
    /// Translates a TACCL sketch (JSON); prints it if no output is named.
    #[command(after_help = examples::SKETCH_IMPORT)]
    Import {
        /// The TACCL sketch.
        file: PathBuf,
        /// Where to write the sketch; the file name is its name.
        #[arg(short, long, value_name = "OUT.yaml")]
        output: Option<PathBuf>,
        /// The topology that it is for; it is written into the sketch, and the sketch is checked against it.
        #[arg(long, value_name = "SPEC")]
        topology: Option<String>,
    },
}
