//! Where the ranks of a job run.

use super::{Cluster, Family, Guest, Spec};
use std::process::Command;

/// The place of ranks: on this computer, over its memory or over its own network; or on the hosts of a cluster, this
/// many on each. Ranks of a host follow each other.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Here(usize),
    Loopback(usize),
    Hosts(&'a Cluster, usize),
}

impl Place<'_> {
    pub(crate) fn ranks(self) -> usize {
        match self {
            Self::Here(ranks) | Self::Loopback(ranks) => ranks,
            Self::Hosts(cluster, each) => cluster.hosts() * each,
        }
    }

    /// Runs a command at the place of rank `rank`.
    pub(crate) fn spawn(self, rank: usize, command: Command) -> Guest {
        match self {
            Self::Here(_) | Self::Loopback(_) => Guest::here(command),
            Self::Hosts(cluster, each) => cluster.spawn(rank / each, command),
        }
    }

    /// An address of rank 0.
    pub(crate) fn master(self) -> String {
        match self {
            Self::Here(_) | Self::Loopback(_) => "127.0.0.1".to_owned(),
            Self::Hosts(..) => Spec::address(0, 0, Family::V4).to_string(),
        }
    }
}
