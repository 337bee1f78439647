//! How programs are executed.

use crate::pacing::pace::Emulation;
use crate::transport::hosts::Hosts;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The settings of an execution. The defaults suit local ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExecutionOptions {
    /// The most bytes of a ring between two ranks. Shorter rings are used if large messages are read in place.
    pub ring_bytes: usize,
    /// The bytes of shared memory for all rings. Only used pages cost memory.
    pub arena_bytes: usize,
    /// About how many bytes of a slot a tile has. `None`: 256 KiB, or 1 MiB if ranks are on different computers, or
    /// whole slots on an emulated machine.
    pub tile_bytes: Option<usize>,
    /// How long all ranks together may take to get ready.
    pub ready_limit: Duration,
    /// The longest time without progress of any rank while a trial runs. It must be longer than the longest single
    /// message, which matters on slow emulated links.
    pub work_limit: Duration,
    /// The machine to emulate, if any. It is not sent to other processes: each process resolves it by itself.
    #[serde(skip)]
    pub emulation: Option<Emulation>,
    /// Which ranks share memory. Ranks that are threads always share memory.
    pub hosts: Hosts,
    /// The addresses at which a rank listens for ranks of other computers while a job connects. Data is spread over all
    /// of them.
    pub interfaces: Vec<IpAddr>,
    /// Whether ranks do without an address, other than the first, that does not answer.
    pub spare_interfaces: bool,
}

impl ExecutionOptions {
    /// Tiles of this size make a good pipeline, and the overhead of a step stays small.
    pub(crate) const TILE_BYTES: usize = 256 << 10;
    /// The size between computers, where each piece costs a system call at both ends.
    pub(crate) const REMOTE_TILE_BYTES: usize = 1 << 20;
}

impl Default for ExecutionOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 512 << 10,
            arena_bytes: 256 << 20,
            tile_bytes: None,
            ready_limit: Duration::from_secs(30),
            work_limit: Duration::from_secs(60),
            emulation: None,
            hosts: Hosts::One,
            interfaces: vec![Ipv4Addr::LOCALHOST.into()],
            spare_interfaces: false,
        }
    }
}
