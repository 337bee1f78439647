//! How programs are executed, as opposed to which.

use crate::pacing::pace::Emulation;
use crate::transport::hosts::Hosts;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The knobs of an execution; the defaults suit local ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The most bytes of a ring between two ranks; fewer are enough where large messages are read where they lie.
    pub ring_bytes: usize,
    /// Shared memory for all rings together; only what is used costs anything.
    pub arena_bytes: usize,
    /// About how many bytes of a slot a tile has. `None`: 256 KiB, 1 MiB where ranks are on different
    /// computers, and whole slots in an emulated cluster.
    pub tile_bytes: Option<usize>,
    /// How long all ranks together may take to get ready.
    pub ready_limit: Duration,
    /// The longest time without any progress of any rank while a trial runs. Must exceed the time of the longest
    /// single message, which matters on slow emulated links.
    pub work_limit: Duration,
    /// The machine to imitate, if any. Each process resolves it by itself, so it does not travel.
    #[serde(skip)]
    pub emulation: Option<Emulation>,
    /// Which ranks share memory. Only processes are ever apart: threads always share it.
    pub hosts: Hosts,
    /// The addresses at which a rank waits for ranks of other computers, while a job connects; data to it takes turns
    /// over all of them.
    pub interfaces: Vec<IpAddr>,
    /// Whether ranks do without an address, other than the first, that does not answer.
    pub spare_interfaces: bool,
}

impl Options {
    /// Tiles of this size pipeline well and still amortise a step's overhead.
    pub(crate) const TILE_BYTES: usize = 256 << 10;
    /// The same where each piece costs a call of the kernel at either end.
    pub(crate) const REMOTE_TILE_BYTES: usize = 1 << 20;
}

impl Default for Options {
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
