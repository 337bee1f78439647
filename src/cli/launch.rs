//! Who starts the ranks: the options that every command with ranks takes.

use super::values::duration;
use clap::{Args, FromArgMatches};
use std::path::PathBuf;
use std::time::Duration;

/// The most processes that one command starts.
pub(crate) const MOST_LOCAL_RANKS: u32 = 1024;

/// Who starts the ranks.
#[derive(Args, Clone, Debug)]
pub(crate) struct LaunchArgs {
    /// Start this many local processes, whatever launcher's variables are set.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_LOCAL_RANKS)), conflicts_with_all = ["rank", "world_size", "master", "interface", "secret_file"])]
    pub ranks: Option<u32>,
    /// The rank of this process, if somebody else starts all ranks, one process each, perhaps on several machines; rank
    /// 0 coordinates and prints. Without this option, the variables of torchrun, mpirun (Open MPI, PMI) and srun tell
    /// the rank.
    #[arg(long, value_name = "R", requires = "world_size")]
    pub rank: Option<u32>,
    /// How many ranks are started.
    #[arg(long, value_name = "N", requires = "rank", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub world_size: Option<u32>,
    /// Where rank 0 waits for the others (default: from the launcher; for torchrun MASTER_ADDR and the port after
    /// MASTER_PORT, because torchrun's own store uses that port).
    #[arg(long, value_name = "HOST:PORT")]
    pub master: Option<String>,
    /// Where other machines reach this rank: interfaces by name, address or network, such as eth0,eth1 or 10.1.0.0/16.
    /// Data is striped over all of them, and each must answer. Default: the interface that leads to rank 0, and every
    /// other interface that is up, has its own device and network, and leads to the others. ANTIPHON_INTERFACE does the
    /// same.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub interface: Vec<String>,
    /// A file with the secret of all ranks (default: ANTIPHON_SECRET, the key that mpirun gives its ranks, or a key in
    /// ~/.local/state/antiphon that the first rank makes).
    #[arg(long, value_name = "F")]
    pub secret_file: Option<PathBuf>,
    /// How long all ranks together may take to get ready (default: 30s, and as much again for every 32 ranks a core).
    #[arg(long, value_name = "T", value_parser = duration)]
    pub ready_timeout: Option<Duration>,
}

/// The time for getting ready, and for how many ranks on one core.
const READY: (Duration, usize) = (Duration::from_secs(30), 32);

impl LaunchArgs {
    /// How long this many ranks may take to get ready. It is not known yet how many of them are on this machine.
    pub(crate) fn ready_limit(&self, ranks: usize) -> Duration {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shares = ranks.div_ceil(READY.1 * cores).max(1);
        self.ready_timeout.unwrap_or(READY.0.saturating_mul(shares as u32))
    }

    /// The launch options of a command line that could not be parsed; `None` if it has none or they make no sense,
    /// either.
    pub(crate) fn guess() -> Option<Self> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let command = words.iter().find(|word| !word.starts_with('-'))?;
        if command != "run" && command != "profile" {
            return None;
        }
        let parser = Self::augment_args(clap::Command::new("ranks"));
        let known: Vec<String> =
            parser.get_arguments().filter_map(|known| Some(format!("--{}", known.get_long()?))).collect();
        let mut kept = vec![String::new()];
        for (index, word) in words.iter().enumerate() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if let (true, Some(value)) =
                (known.iter().any(|known| known == name), value.or(words.get(index + 1).map(String::as_str)))
            {
                kept.push(format!("{name}={value}"));
            }
        }
        Self::from_arg_matches(&parser.try_get_matches_from(kept).ok()?).ok()
    }
}
