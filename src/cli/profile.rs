//! What `antiphon profile` takes.

use super::values::{duration, slowdown};
use super::{DeviceChoice, LaunchArgs, TransportChoice};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `antiphon profile`
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Who starts the ranks (default: 8 local ones).
    #[command(flatten, next_help_heading = "Who starts the ranks")]
    pub launch: LaunchArgs,
    /// Where to write the topology.
    #[arg(short, long, value_name = "T.yaml")]
    pub output: Option<PathBuf>,
    /// Where to draw the costs of all pairs.
    #[arg(long, value_name = "F.svg")]
    pub svg: Option<PathBuf>,
    /// What ranks exchange data between. For `gpu` the default number of ranks is that of the GPUs here.
    #[arg(long, default_value = "host")]
    pub device: DeviceChoice,
    /// What NCCL has written about this machine (NCCL_TOPO_DUMP_FILE of any program that uses it): links and switches, which
    /// cannot be measured, become notes of the profile. For `--device gpu`.
    #[arg(long, value_name = "F.xml")]
    pub nccl_dump: Option<PathBuf>,
    /// How ranks exchange data; on GPUs NCCL decides.
    #[arg(long, default_value = "auto", env = "ANTIPHON_TRANSPORT", hide_env_values = true)]
    pub transport: TransportChoice,
    /// How many held-out exchanges are predicted and then timed; 0 for none.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub check: u32,
    /// How long it may take, about. Messages become shorter and margins wider for it; the file says what that has come to.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Few repetitions and wide margins.
    #[arg(long)]
    pub quick: bool,
    /// Make the local ranks behave like this topology first.
    #[arg(long, value_name = "SPEC")]
    pub emulate: Option<String>,
    /// Slow the emulated links down by this factor; measured times are divided by it again.
    #[arg(long, default_value_t = 1.0, requires = "emulate", value_name = "K", value_parser = slowdown)]
    pub slowdown: f64,
}
