//! How a rank meets peers of other machines: it tells where it is, learns where they are, and forms its transport with them.
//!
//! The principal traits are [`Network`], a way between machines, and [`NetworkEndpoint`], a rank that waits there for its peers
//! of one task, or of a session. What a rank tells is a [`TransportAddress`]. The control plane carries it, and does not look into it.

use crate::clock::Moment;
use crate::error::RunResult;
use crate::memory::poller::Poller;
use crate::transport::Transport;
use crate::transport::hosts::Hosts;
use crate::transport::port::MessagePort;
use program::Connection;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use topology::Rank;

/// Where peers find a rank. Only the network that made it understands it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TransportAddress(serde_json::Value);

impl TransportAddress {
    /// The form in which an address travels.
    ///
    /// # Errors
    /// If the address has no JSON form.
    pub(crate) fn of(address: &impl Serialize) -> io::Result<Self> {
        Ok(Self(serde_json::to_value(address)?))
    }

    /// The address that a network of this kind has made.
    ///
    /// # Errors
    /// If another kind of network has made it.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(T::deserialize(&self.0)?)
    }
}

/// A way between machines, for one rank of a job.
pub(crate) trait Network {
    /// Begins to wait for peers, until the endpoint is dropped.
    ///
    /// # Errors
    /// If the operating system does not allow it.
    fn listen(&self) -> RunResult<Box<dyn NetworkEndpoint + '_>>;
}

/// A rank that waits for its peers of one task, or of a session.
pub(crate) trait NetworkEndpoint {
    /// Where the peers find it.
    ///
    /// # Errors
    /// As [`TransportAddress::of`].
    fn address(&self) -> RunResult<TransportAddress>;

    /// Connects with all peers. Rank r is at `addresses[r]`.
    ///
    /// # Errors
    /// [`RunError::Lane`](crate::RunError::Lane) with the first peer that cannot be reached or did not connect before the
    /// deadline, the error of the task's `check`, or the error of the operating system.
    fn join(self: Box<Self>, task: &NetworkTask<'_>, addresses: &[TransportAddress]) -> RunResult<JoinedNetwork>;

    /// Connects with all ranks of a session that are on other machines. Rank r is at `addresses[r]`.
    ///
    /// # Errors
    /// As [`Self::join`].
    fn join_session(
        self: Box<Self>,
        session: &NetworkSession<'_>,
        addresses: &[TransportAddress],
    ) -> RunResult<RemotePorts>;
}

/// For what a rank connects.
pub(crate) struct NetworkTask<'a> {
    pub(crate) rank: Rank,
    /// Which ranks are on one machine. Their connections need no network.
    pub(crate) hosts: &'a Hosts,
    /// The connections of all programs.
    pub(crate) connections: &'a [Connection],
    /// The number of the task: connections of another task are refused.
    pub(crate) task: u64,
    pub(crate) deadline: Moment,
    /// Fails when the job is over.
    pub(crate) check: &'a (dyn Fn() -> RunResult<()> + Sync),
}

/// What comes of an endpoint.
pub(crate) struct JoinedNetwork {
    pub(crate) transport: Box<dyn Transport>,
    /// Keeps the connections open also after the transport was dropped.
    pub(crate) kept: Box<dyn KeptConnections>,
}

/// For what a rank of a session connects.
pub(crate) struct NetworkSession<'a> {
    pub(crate) rank: Rank,
    /// Which of the ranks are on one machine.
    pub(crate) hosts: &'a Hosts,
    pub(crate) deadline: Moment,
}

/// A rank's ports to the ranks of other machines.
pub(crate) struct RemotePorts {
    /// Tells that one of them is ready.
    pub(crate) poller: Poller,
    pub(crate) ports: Vec<(Rank, Box<dyn MessagePort>)>,
}

/// Connections that stay open for as long as this is kept. Peers see no connection end before it is dropped.
pub(crate) trait KeptConnections {
    /// The ranks at the other ends of connections that have ended.
    fn ended(&self) -> BTreeSet<Rank>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::ListenAddresses;

    #[test]
    fn an_address_travels_as_it_is_and_that_of_another_network_is_refused() {
        let own = ListenAddresses { addresses: vec!["[::1]:7".parse().unwrap()], spare: true };
        let text = serde_json::to_string(&TransportAddress::of(&own).unwrap()).unwrap();
        let heard: TransportAddress = serde_json::from_str(&text).unwrap();
        assert_eq!(heard.read::<ListenAddresses>().unwrap(), own);
        let other = TransportAddress::of(&"gid 5, queue pair 3").unwrap();
        assert!(other.read::<ListenAddresses>().is_err());
    }
}
