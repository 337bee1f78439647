//! How the ranks of a job connect.
//!
//! The principal type is [`Meeting`]. Every rank listens while a program is prepared, learns the others' addresses from
//! the coordinator, connects where it sends and accepts where it receives. Both ends prove that they belong to the job
//! (see `handshake`). Then the listeners are closed. A rank listens on each of its interfaces, and every connection to it
//! has a socket, a stripe, to each.

use super::handshake::{Claim, Gate, introduce};
use super::secret::{BYTES, Secret};
use super::{Sockets, Streams};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use schedule::program::{Connection, ConnectionId};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use topology::Rank;

/// Changes whenever the claim or what follows it changes its meaning.
const PROTOCOL: u64 = 0x616e_7469_7068_0003;

/// Opens listeners for the others; they are closed by the meeting.
///
/// # Errors
/// If an address cannot be had.
pub(crate) fn listen(interfaces: &[IpAddr]) -> io::Result<Vec<TcpListener>> {
    let listen = |&interface: &IpAddr| {
        let listener = TcpListener::bind((interface, 0))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    interfaces.iter().map(listen).collect()
}

/// One rank's part in connecting the ranks for programs.
pub(crate) struct Meeting<'a> {
    pub(crate) rank: Rank,
    /// The lanes of all programs, by connection.
    pub(crate) connections: &'a [Connection],
    /// Which connections are sockets.
    pub(crate) remote: &'a (dyn Fn(&Connection) -> bool + Sync),
    pub(crate) secret: &'a Secret,
    /// Tells the tasks of a job apart.
    pub(crate) task: u64,
    pub(crate) deadline: Moment,
    /// Fails when the job is over.
    pub(crate) check: &'a (dyn Fn() -> RunResult<()> + Sync),
}

/// What a connector claims, once it is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    task: u64,
    connection: u32,
    from: Rank,
    to: Rank,
    /// Which of the receiver's interfaces it goes to.
    stripe: u32,
}

impl Header {
    fn bytes(self) -> Claim {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.task.to_le_bytes());
        for (place, word) in bytes[16..].chunks_mut(4).zip([self.connection, self.from.0, self.to.0, self.stripe]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl Meeting<'_> {
    /// Connects this rank with its peers; rank r listens at all of `addresses[r]`.
    ///
    /// # Errors
    /// [`RunError::Lane`] with the first peer that cannot be reached or did not come before the deadline, what
    /// `check` says, or the error of the operating system.
    pub(crate) fn hold(&self, listeners: Vec<TcpListener>, addresses: &[Vec<SocketAddr>]) -> RunResult<Streams> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Everybody accepts while everybody connects: nobody waits for a peer that waits.
            let accept = scope.spawn(|| {
                let incoming = self.accept(listeners, &over);
                if incoming.is_err() {
                    over.store(true, Ordering::Relaxed);
                }
                incoming
            });
            let outgoing = self.connect(addresses, &over);
            if outgoing.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            let incoming = accept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(Streams { outgoing: outgoing?, incoming: incoming? })
        })
    }

    fn own(&self, mine: impl Fn(&Connection) -> Rank) -> impl Iterator<Item = (ConnectionId, Connection)> {
        let all = (0..).map(ConnectionId).zip(self.connections.iter().copied());
        all.filter(move |(_, connection)| mine(connection) == self.rank && (self.remote)(connection))
    }

    fn claim(&self, id: ConnectionId, connection: &Connection, stripe: usize) -> Claim {
        let &Connection { from, to, .. } = connection;
        Header { task: self.task, connection: id.0, from, to, stripe: stripe as u32 }.bytes()
    }

    fn lost(&self, peer: Rank) -> impl FnOnce(io::Error) -> RunError {
        RunError::lane(self.rank, peer)
    }

    /// Whether to go on.
    fn go_on(&self, over: &AtomicBool) -> RunResult<bool> {
        (self.check)()?;
        Ok(!over.load(Ordering::Relaxed))
    }

    fn connect(&self, addresses: &[Vec<SocketAddr>], over: &AtomicBool) -> RunResult<Sockets> {
        let mut streams = Sockets::new();
        for (id, connection) in self.own(|connection| connection.from) {
            let peer = connection.to;
            let unknown = || self.lost(peer)(io::Error::other("nobody knows where it listens"));
            let theirs = addresses.get(peer.index()).filter(|theirs| !theirs.is_empty()).ok_or_else(unknown)?;
            for (stripe, &address) in theirs.iter().enumerate() {
                if !self.go_on(over)? {
                    return Ok(streams);
                }
                let claim = self.claim(id, &connection, stripe);
                let connected = introduce(address, claim, self.secret, self.deadline);
                let stream = connected.and_then(|proven| ready(proven.stream)).map_err(self.lost(peer))?;
                streams.entry(id).or_default().push(stream);
            }
        }
        Ok(streams)
    }

    fn accept(&self, listeners: Vec<TcpListener>, over: &AtomicBool) -> RunResult<Sockets> {
        let stripes = listeners.len();
        let all = self.own(|connection| connection.to).flat_map(|(id, connection)| {
            let claim = move |stripe| (self.claim(id, &connection, stripe), (id, stripe, connection.from));
            (0..stripes).map(claim)
        });
        let mut missing: BTreeMap<Claim, (ConnectionId, usize, Rank)> = all.collect();
        let (mut streams, mut gate) = (BTreeMap::new(), Gate::new(listeners, self.secret));
        while let Some(&(_, _, absent)) = missing.values().next() {
            if !self.go_on(over)? {
                break;
            }
            if Moment::now() > self.deadline {
                return Err(self.lost(absent)(io::Error::new(ErrorKind::TimedOut, "it did not connect in time")));
            }
            let expected = |claim: &Claim, _| missing.contains_key(claim).then_some(*claim);
            for (claim, proven) in gate.admit(expected).map_err(RunError::system("waiting for connections"))? {
                // Of two that claim the same, which takes a replay within one glance, the first stands.
                if let Some((id, stripe, from)) = missing.remove(&claim) {
                    streams.insert((id, stripe), ready(proven.stream).map_err(self.lost(from))?);
                }
            }
        }
        // Sorted by stripe within each connection.
        let mut sorted = Sockets::new();
        streams.into_iter().for_each(|((id, _), stream)| sorted.entry(id).or_default().push(stream));
        Ok(sorted)
    }
}

/// Prepares a proven socket for the data path.
fn ready(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;
    use topology::LinkId;

    /// Two connections each way between ranks 0 and 1, and one within rank 1's computer that is no socket.
    fn connections() -> [Connection; 5] {
        let connection = |(from, to, channel)| Connection { from: Rank(from), to: Rank(to), channel, link: LinkId(0) };
        [(0, 1, 0), (1, 0, 0), (1, 2, 0), (0, 1, 1), (1, 0, 1)].map(connection)
    }

    fn remote(connection: &Connection) -> bool {
        connection.to != Rank(2)
    }

    fn meeting<'a>(connections: &'a [Connection], secret: &'a Secret, rank: u32, limit: Duration) -> Meeting<'a> {
        let deadline = Moment::now().after(limit);
        Meeting { rank: Rank(rank), connections, remote: &remote, secret, task: 7, deadline, check: &|| Ok(()) }
    }

    /// Ranks 0 and 1 meet; `disturb` knows where rank 0 listens.
    fn meet(
        interfaces: &[&str],
        secrets: [&Secret; 2],
        limit: Duration,
        disturb: impl FnOnce(SocketAddr),
    ) -> [RunResult<Streams>; 2] {
        let connections = connections();
        let interfaces: Vec<IpAddr> = interfaces.iter().map(|interface| interface.parse().unwrap()).collect();
        let listeners = [(); 2].map(|()| listen(&interfaces).unwrap());
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let addresses = [0, 1].map(|rank: usize| listeners[rank].iter().map(address).collect::<Vec<_>>());
        disturb(addresses[0][0]);
        let [zero, one] = listeners;
        std::thread::scope(|scope| {
            let zero = scope.spawn(|| meeting(&connections, secrets[0], 0, limit).hold(zero, &addresses));
            let one = scope.spawn(|| meeting(&connections, secrets[1], 1, limit).hold(one, &addresses));
            [zero.join().unwrap(), one.join().unwrap()]
        })
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn every_connection_leads_where_the_program_says() {
        for interfaces in [&["127.0.0.1"][..], &["::1"], &["127.0.0.1", "::1", "127.0.0.2"]] {
            let secret = Secret::random().unwrap();
            let [zero, one] = meet(interfaces, [&secret; 2], LONG, |_| {}).map(Result::unwrap);
            let ids = |streams: &Sockets| streams.keys().map(|id| id.0).collect::<Vec<_>>();
            assert_eq!((ids(&zero.outgoing), ids(&zero.incoming)), (vec![0, 3], vec![1, 4]), "{interfaces:?}");
            for (id, senders) in zero.outgoing {
                let receivers = &one.incoming[&id];
                assert_eq!((senders.len(), receivers.len()), (interfaces.len(), interfaces.len()));
                for ((sender, receiver), interface) in senders.iter().zip(receivers).zip(interfaces) {
                    assert_eq!(sender.peer_addr().unwrap(), receiver.local_addr().unwrap());
                    assert_eq!(sender.local_addr().unwrap(), receiver.peer_addr().unwrap());
                    assert_eq!(receiver.local_addr().unwrap().ip().to_string(), *interface);
                }
            }
        }
    }

    #[test]
    fn strangers_who_lie_or_are_silent_hold_up_nobody() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let mut strangers = Vec::new();
        let met = meet(&["127.0.0.1"], [&secret; 2], LONG, |address| {
            for kind in 0..6 {
                let mut stranger = TcpStream::connect(address).unwrap();
                let said: &[u8] = match kind {
                    0 => &[],
                    1 => &[0; 10],
                    2 => &[255; 3 * BYTES],
                    3 => b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: */*\r\nUser-Agent: something with a long name, indeed\r\n\r\n",
                    // Answers a nonce that nobody gave, with the right secret and with another.
                    _ => {
                        let header = Header { task: 7, connection: 1, from: Rank(1), to: Rank(0), stripe: 0 }.bytes();
                        let secret = if kind == 4 { &secret } else { &other };
                        let tag = secret.tag(&[b"connect", &[0; 32], &[1; 32], &header]);
                        &[[1; 32], header, tag].concat()
                    }
                };
                stranger.write_all(said).unwrap();
                strangers.push(stranger);
            }
        });
        for streams in met {
            assert_eq!(streams.unwrap().incoming.len(), 2);
        }
    }

    #[test]
    fn a_rank_without_the_secret_is_not_let_in_and_does_not_believe_others() {
        let secrets = [Secret::random().unwrap(), Secret::random().unwrap()];
        let results = meet(&["127.0.0.1"], [&secrets[0], &secrets[1]], Duration::from_millis(300), |_| {});
        for (rank, result) in results.into_iter().enumerate() {
            let Err(RunError::Lane { rank: at, peer, .. }) = result else { panic!("rank {rank} was let in") };
            assert_eq!((at.index(), peer.index()), (rank, 1 - rank));
        }
    }

    #[test]
    fn nobody_listens_after_the_meeting() {
        let secret = Secret::random().unwrap();
        let mut address = None;
        let met = meet(&["127.0.0.1"], [&secret; 2], LONG, |at| address = Some(at));
        assert!(met.iter().all(Result::is_ok));
        assert!(TcpStream::connect(address.unwrap()).is_err());
    }
}
