//! The options of `run` and `export` about how schedules become programs.

use clap::Args;
use program::{LowerOptions, Threadblocks};
use serde::{Deserialize, Serialize};

/// How schedules become programs.
#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct LoweringArgs {
    /// Connections per link; messages of the link use them in turn (schedules).
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub channels: u32,
    /// Copies of the program, each for its share of every block, with their own connections.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub instances: u32,
    /// One threadblock receives and sends, and sends received data on in one step (schedules).
    #[arg(long)]
    pub fuse: bool,
    /// If a rank has more threadblocks than this, receivers and senders share them (schedules; MSCCL: all plans,
    /// default 108).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_threadblocks: Option<u32>,
}

impl Default for LoweringArgs {
    fn default() -> Self {
        Self { channels: 1, instances: 1, fuse: false, max_threadblocks: None }
    }
}

impl LoweringArgs {
    /// The same for [`program::lower`].
    pub(crate) fn options(&self, in_place: bool) -> LowerOptions {
        let paired = self.fuse || self.max_threadblocks.is_some();
        LowerOptions {
            in_place,
            threadblocks: if paired { Threadblocks::Paired } else { Threadblocks::PerConnection },
            fuse: self.fuse,
            max_threadblocks: self.max_threadblocks,
            channels: self.channels,
            instances: self.instances,
            ..LowerOptions::default()
        }
    }
}
