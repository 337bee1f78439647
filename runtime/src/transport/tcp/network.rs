//! TCP as a way between machines.
//!
//! The principal type is [`TcpNetwork`].

use super::transport::TcpTransport;
use super::{ListenAddresses, Meeting, Secret, UnreachableAddresses, listen};
use crate::error::{RunError, RunResult};
use crate::transport::network::{JoinedNetwork, Network, NetworkEndpoint, NetworkTask, TransportAddress};
use std::net::{IpAddr, TcpListener};

/// The sockets of one rank of a job.
pub(crate) struct TcpNetwork {
    /// The addresses at which it listens. Data is spread over all of them.
    interfaces: Vec<IpAddr>,
    /// Whether peers do without an address, other than the first, that does not answer.
    spare: bool,
    secret: Secret,
    /// Addresses of peers at which no rank of this job answered, in any task.
    unreachable: UnreachableAddresses,
}

impl TcpNetwork {
    pub(crate) fn new(interfaces: Vec<IpAddr>, spare: bool, secret: Secret) -> Self {
        Self { interfaces, spare, secret, unreachable: UnreachableAddresses::default() }
    }
}

impl Network for TcpNetwork {
    fn listen(&self) -> RunResult<Box<dyn NetworkEndpoint + '_>> {
        let listened = listen(&self.interfaces, self.spare);
        let (listeners, addresses) = listened.map_err(RunError::system("listening for other ranks"))?;
        Ok(Box::new(TcpEndpoint { network: self, listeners, addresses }))
    }
}

/// The listeners of one task.
struct TcpEndpoint<'a> {
    network: &'a TcpNetwork,
    listeners: Vec<TcpListener>,
    addresses: ListenAddresses,
}

impl NetworkEndpoint for TcpEndpoint<'_> {
    fn address(&self) -> RunResult<TransportAddress> {
        TransportAddress::of(&self.addresses).map_err(RunError::system("telling where this rank listens"))
    }

    fn join(self: Box<Self>, task: &NetworkTask<'_>, addresses: &[TransportAddress]) -> RunResult<JoinedNetwork> {
        let NetworkTask { rank, hosts, connections, task, deadline, check } = *task;
        let meeting = Meeting {
            rank,
            connections,
            remote: &|connection| hosts.apart(connection.from, connection.to),
            secret: &self.network.secret,
            task,
            deadline,
            check,
            closed: &self.network.unreachable,
        };
        let listening = addresses.iter().map(TransportAddress::read).collect::<std::io::Result<Vec<_>>>();
        let listening = listening.map_err(RunError::system("reading where other ranks listen"))?;
        let streams = meeting.hold(self.listeners, &listening)?;
        let kept = streams.handles(connections).map_err(RunError::system("keeping connections open"))?;
        let transport =
            TcpTransport::new(hosts.clone(), streams).map_err(RunError::system("preparing to wait for sockets"))?;
        Ok(JoinedNetwork { transport: Box::new(transport), kept: Box::new(kept) })
    }
}
