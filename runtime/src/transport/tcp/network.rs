//! TCP as a way between machines.
//!
//! The principal type is [`TcpNetwork`].

use super::port::SocketPort;
use super::transport::TcpTransport;
use super::{ListenAddresses, Meeting, Secret, UnreachableAddresses, listen, suit_session};
use crate::error::{RunError, RunResult};
use crate::memory::poller::Poller;
use crate::transport::network::{
    JoinedNetwork, Network, NetworkEndpoint, NetworkSession, NetworkTask, RemotePorts, TransportAddress,
};
use crate::transport::port::MessagePort;
use program::Connection;
use std::io;
use std::net::{IpAddr, TcpListener};
use topology::{LinkId, Rank};

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
        let streams = meeting.hold(self.listeners, &listening(addresses)?)?;
        let kept = streams.handles(connections).map_err(RunError::system("keeping connections open"))?;
        let transport =
            TcpTransport::new(hosts.clone(), streams).map_err(RunError::system("preparing to wait for sockets"))?;
        Ok(JoinedNetwork { transport: Box::new(transport), kept: Box::new(kept) })
    }

    /// One connection for each pair of ranks, which carries messages both ways.
    fn join_session(
        self: Box<Self>,
        session: &NetworkSession<'_>,
        addresses: &[TransportAddress],
    ) -> RunResult<RemotePorts> {
        let NetworkSession { rank, hosts, deadline } = *session;
        let all = || (0..addresses.len()).map(Rank::from_index);
        let pairs = all().flat_map(|from| all().filter(move |to| from < *to).map(move |to| (from, to)));
        let connections: Vec<Connection> = pairs
            .filter(|&(from, to)| hosts.apart(from, to))
            .map(|(from, to)| Connection { from, to, channel: 0, link: LinkId(0) })
            .collect();
        let meeting = Meeting {
            rank,
            connections: &connections,
            remote: &|_| true,
            secret: &self.network.secret,
            task: 0,
            deadline,
            check: &|| Ok(()),
            closed: &self.network.unreachable,
        };
        let streams = meeting.hold(self.listeners, &listening(addresses)?)?.into_sockets(&connections);
        let failed = || RunError::system("preparing to wait for sockets");
        let poller = Poller::new().map_err(failed())?;
        let port = |(peer, stream)| -> io::Result<(Rank, Box<dyn MessagePort>)> {
            suit_session(&stream)?;
            Ok((peer, Box::new(SocketPort::new(poller.watch(stream)?))))
        };
        let ports = streams.into_iter().map(port).collect::<io::Result<Vec<_>>>().map_err(failed())?;
        Ok(RemotePorts { poller, ports })
    }
}

/// Where the ranks listen.
fn listening(addresses: &[TransportAddress]) -> RunResult<Vec<ListenAddresses>> {
    let read = addresses.iter().map(TransportAddress::read).collect::<io::Result<Vec<_>>>();
    read.map_err(RunError::system("reading where other ranks listen"))
}
