//! How the ranks of a job connect.
//!
//! The principal type is [`Meeting`]. Every rank listens while a program is prepared, and learns the others' addresses
//! from the coordinator. It connects to the ranks that it sends to, and accepts the ranks that it receives from. Both
//! ends prove that they belong to the job (see `handshake`). Then the listeners are closed. A rank listens on each of
//! its interfaces. A connection to it has one socket, a stripe, for each interface that answers. The sender connects
//! the first stripe last, and lists all stripes in its claim.

use super::handshake::{Claim, Gate, introduce, is_full};
use super::secret::{BYTES, Secret};
use super::{Sockets, Streams};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::transport::interfaces::MOST_WAYS;
use program::{Connection, ConnectionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use topology::Rank;

/// Changes whenever the format of the claim, or of the data after it, changes.
const PROTOCOL: u32 = 0x6a70_0007;
/// How many connections a rank forms at the same time.
const AT_ONCE: usize = 16;
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;
/// How long an address may take to answer if peers can do without it.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long a refused connection is tried again at an address where a rank should listen.
const REFUSALS: Duration = Duration::from_secs(2);
/// How long to wait before the second attempt, and at most before a later one.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(320)];

/// The errors of a connector that was cut off before its proof was read.
const CUT: [ErrorKind; 4] =
    [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted, ErrorKind::BrokenPipe];

/// The addresses at which a rank listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ListenAddresses {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether peers do without an address, other than the first, that does not answer.
    pub(crate) spare: bool,
}

/// Addresses at which no rank of this job answered.
pub(crate) type UnreachableAddresses = Mutex<BTreeSet<IpAddr>>;

/// Opens a listener on each interface. The meeting closes them.
///
/// # Errors
/// If the process cannot listen at an address that peers cannot do without.
pub(crate) fn listen(interfaces: &[IpAddr], spare: bool) -> io::Result<(Vec<TcpListener>, ListenAddresses)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for &interface in interfaces.iter().take(MOST_WAYS) {
        let listener = match TcpListener::bind((interface, 0)) {
            Err(_) if spare && !listeners.is_empty() => continue,
            listener => listener?,
        };
        // All peers connect at the same time.
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        addresses.push(listener.local_addr()?);
        listeners.push(listener);
    }
    Ok((listeners, ListenAddresses { addresses, spare }))
}

/// One rank's part in connecting all ranks.
pub(crate) struct Meeting<'a> {
    pub(crate) rank: Rank,
    /// The connections of all programs.
    pub(crate) connections: &'a [Connection],
    /// Whether a connection needs a socket.
    pub(crate) remote: &'a (dyn Fn(&Connection) -> bool + Sync),
    pub(crate) secret: &'a Secret,
    /// The number of the task. It is part of every claim, so that connections of another task are refused.
    pub(crate) task: u64,
    pub(crate) deadline: Moment,
    /// Fails when the job is over.
    pub(crate) check: &'a (dyn Fn() -> RunResult<()> + Sync),
    /// Addresses that did not answer, in this meeting or in earlier ones.
    pub(crate) closed: &'a UnreachableAddresses,
}

/// The content of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    task: u64,
    connection: u32,
    from: Rank,
    to: Rank,
    /// The stripe: the index of the receiver's interface.
    stripe: u16,
    /// The stripes of this connection, one bit each. Sent only with the first stripe, which is connected last.
    all: u16,
}

impl Header {
    fn bytes(self) -> Claim {
        let mut bytes = [0; BYTES];
        let Self { task, connection, from, to, stripe, all } = self;
        let ways = u32::from(stripe) << 16 | u32::from(all);
        bytes[..8].copy_from_slice(&task.to_le_bytes());
        for (place, word) in bytes[8..].chunks_mut(4).zip([PROTOCOL, connection, from.0, to.0, ways]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl Header {
    /// The content of a claim; `None` if its protocol is another one.
    fn of(claim: &Claim) -> Option<Self> {
        let (task, words) = claim.split_first_chunk::<8>()?;
        let (words, _) = words.as_chunks::<4>();
        let &[protocol, connection, from, to, ways, _] = words else { return None };
        let [protocol, connection, from, to, ways] = [protocol, connection, from, to, ways].map(u32::from_le_bytes);
        let (from, to, stripe, all) = (Rank(from), Rank(to), (ways >> 16) as u16, ways as u16);
        (protocol == PROTOCOL).then_some(Self { task: u64::from_le_bytes(*task), connection, from, to, stripe, all })
    }
}

/// A connection that this rank forms.
struct OutgoingConnection<'a> {
    id: ConnectionId,
    connection: Connection,
    listening: &'a ListenAddresses,
    /// By interface of the receiver.
    sockets: Mutex<BTreeMap<usize, TcpStream>>,
}

/// A connection that this rank awaits.
#[derive(Default)]
struct Awaited {
    /// By interface of this rank.
    sockets: BTreeMap<usize, TcpStream>,
    /// All stripes, one bit each, once the sender has listed them.
    all: Option<u16>,
}

impl Awaited {
    fn is_complete(&self) -> bool {
        let has = self.sockets.keys().fold(0_u16, |has, stripe| has | 1 << stripe);
        self.all == Some(has)
    }
}

impl Meeting<'_> {
    /// Connects this rank with its peers; rank r listens at `listening[r]`.
    ///
    /// # Errors
    /// [`RunError::Lane`] with the first peer that cannot be reached or did not connect before the deadline, the error
    /// of `check`, or the error of the operating system.
    pub(crate) fn hold(&self, listeners: Vec<TcpListener>, listening: &[ListenAddresses]) -> RunResult<Streams> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Every rank accepts while it connects, so that ranks do not wait for each other in a cycle.
            let accept = scope.spawn(|| {
                let incoming = self.accept(listeners, &over);
                if incoming.is_err() {
                    over.store(true, Ordering::Relaxed);
                }
                incoming
            });
            let outgoing = self.connect(listening, &over);
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

    fn lost(&self, peer: Rank) -> impl FnOnce(io::Error) -> RunError {
        RunError::lane(self.rank, peer)
    }

    /// Whether to go on: `false` once another thread has failed, an error when the job is over.
    fn go_on(&self, over: &AtomicBool) -> RunResult<bool> {
        (self.check)()?;
        Ok(!over.load(Ordering::Relaxed))
    }

    fn connect(&self, listening: &[ListenAddresses], over: &AtomicBool) -> RunResult<Sockets> {
        let mut outgoing = Vec::new();
        for (id, connection) in self.own(|connection| connection.from) {
            let theirs = listening.get(connection.to.index()).filter(|listening| !listening.addresses.is_empty());
            let unknown = || self.lost(connection.to)(io::Error::other("nobody knows where it listens"));
            let listening = theirs.ok_or_else(unknown)?;
            outgoing.push(OutgoingConnection { id, connection, listening, sockets: Mutex::default() });
        }
        // An address that this rank has too, such as the one of a container bridge, does not lead to another machine.
        let mine = listening.get(self.rank.index()).map_or(&[][..], |listening| &listening.addresses);
        let is_mine = |address: &SocketAddr| mine.iter().any(|mine| mine.ip() == address.ip());
        let mut others = Vec::new();
        for of in &outgoing {
            let addresses = of.listening.addresses.iter().enumerate().skip(1);
            let leading = addresses.filter(|(_, address)| !(of.listening.spare && is_mine(address)));
            others.extend(leading.map(|(stripe, _)| (of, stripe)));
        }
        // The first address of each connection comes last, because its claim lists all stripes.
        self.at_once(&others, over, |&(of, stripe)| self.connect_stripe(of, stripe, over))?;
        self.at_once(&outgoing, over, |of| self.connect_stripe(of, 0, over))?;
        let sockets = |of: OutgoingConnection<'_>| {
            let sockets = of.sockets.into_inner().unwrap_or_else(PoisonError::into_inner);
            (of.id, sockets.into_values().collect())
        };
        Ok(outgoing.into_iter().map(sockets).collect())
    }

    /// Runs `work` for all `items`, several at a time, until one fails or `over` is set.
    fn at_once<T: Sync>(
        &self,
        items: &[T],
        over: &AtomicBool,
        work: impl Fn(&T) -> RunResult<()> + Sync,
    ) -> RunResult<()> {
        let next = AtomicUsize::new(0);
        let run = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                && self.go_on(over)?
            {
                work(item).inspect_err(|_| over.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..AT_ONCE.min(items.len())).map(|_| scope.spawn(run)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, RunResult<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).fold(run(), Result::and)
        })
    }

    /// Connects with one of the receiver's interfaces.
    fn connect_stripe(&self, of: &OutgoingConnection<'_>, stripe: usize, over: &AtomicBool) -> RunResult<()> {
        let Connection { from, to, .. } = of.connection;
        let locked = || of.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let others = locked().keys().fold(1_u16, |all, stripe| all | 1 << stripe);
        let (task, connection, all) = (self.task, of.id.0, if stripe == 0 { others } else { 0 });
        let claim = Header { task, connection, from, to, stripe: stripe as u16, all }.bytes();
        let address = of.listening.addresses[stripe];
        let is_spare = stripe > 0 && of.listening.spare;
        let closed = || self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_spare && closed().contains(&address.ip()) {
            return Ok(());
        }
        let until = if is_spare { Moment::now().after(ATTEMPT).min(self.deadline) } else { self.deadline };
        let patience = if is_spare { Duration::ZERO } else { REFUSALS };
        let refusals = until.min(Moment::now().after(patience));
        match self.enter(address, claim, [until, refusals], over)? {
            Ok(socket) => drop(locked().insert(stripe, socket)),
            Err(error) if is_full(&error) => return Err(self.lost(to)(error)),
            // Another thread returns the reason.
            Err(_) if over.load(Ordering::Relaxed) => {}
            Err(error) if is_spare => {
                if closed().insert(address.ip()) {
                    tracing::warn!(
                        "nobody of the job answers at {address} of rank {to}, which is done without: {error}"
                    );
                }
            }
            Err(error) => return Err(self.lost(to)(io::Error::new(error.kind(), format!("{error}, at {address}")))),
        }
        Ok(())
    }

    /// Connects to one address and proves the claim. If the gate cuts the connection without an answer, because it
    /// serves many others, this tries again until `until`. If no process listens there, it tries again until
    /// `refusals`.
    fn enter(
        &self,
        address: SocketAddr,
        claim: Claim,
        [until, refusals]: [Moment; 2],
        over: &AtomicBool,
    ) -> RunResult<io::Result<TcpStream>> {
        let mut pause = PAUSES[0];
        // For the case that this process has no free descriptor: meanwhile its gate closes unauthenticated connections.
        let crowded = until.min(Moment::now().after(REFUSALS));
        loop {
            let go_on = || matches!(self.go_on(over), Ok(true));
            let entered = introduce(address, claim, self.secret, until, &go_on).and_then(|proven| ready(proven.stream));
            if entered.is_err() && !self.go_on(over)? {
                return Ok(entered);
            }
            let again = match &entered {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => refusals,
                Err(error) if CUT.contains(&error.kind()) => until,
                Err(error) if is_full(error) => crowded,
                _ => return Ok(entered),
            };
            if Moment::now().after(pause) >= again || !self.go_on(over)? {
                return Ok(entered);
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSES[1]);
        }
    }

    fn accept(&self, listeners: Vec<TcpListener>, over: &AtomicBool) -> RunResult<Sockets> {
        let listening = listeners.len();
        let own = self.own(|connection| connection.to);
        let mut awaited: BTreeMap<ConnectionId, (Rank, Awaited)> =
            own.map(|(id, connection)| (id, (connection.from, Awaited::default()))).collect();
        let mut missing = awaited.len();
        let mut gate = Gate::new(listeners, self.secret);
        while missing > 0 && self.go_on(over)? {
            if Moment::now() > self.deadline {
                let absent = awaited.values().find(|(_, awaited)| !awaited.is_complete()).map_or(self.rank, |of| of.0);
                let why = gate.full().map(|error| format!("; others could not be heard: {error}")).unwrap_or_default();
                let what = format!("it did not connect in time{why}");
                return Err(self.lost(absent)(io::Error::new(ErrorKind::TimedOut, what)));
            }
            let expected = |claim: &Claim, _| {
                let header = Header::of(claim).filter(|header| header.task == self.task && header.to == self.rank)?;
                let (from, awaited) = awaited.get(&ConnectionId(header.connection))?;
                let is_new = !awaited.sockets.contains_key(&header.stripe.into());
                (*from == header.from && is_new && usize::from(header.stripe) < listening).then_some(header)
            };
            for (header, proven) in gate.admit(expected).map_err(RunError::system("waiting for connections"))? {
                let Some((from, of)) = awaited.get_mut(&ConnectionId(header.connection)) else { continue };
                // Only one call of `admit` can return two connections with the same claim. The first one counts.
                if of.sockets.contains_key(&header.stripe.into()) {
                    continue;
                }
                of.sockets.insert(header.stripe.into(), ready(proven.stream).map_err(self.lost(*from))?);
                of.all = of.all.or((header.stripe == 0).then_some(header.all));
                missing -= usize::from(of.is_complete());
            }
        }
        Ok(awaited.into_iter().map(|(id, (_, awaited))| (id, awaited.sockets.into_values().collect())).collect())
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
    use super::super::handshake::tests::{alone, limit_descriptors};
    use super::*;
    use rustix::process::{Resource, setrlimit};
    use std::io::{Read, Write};
    use std::time::Duration;
    use topology::LinkId;

    /// Two connections each way between ranks 0 and 1, and one within rank 1's computer, which needs no socket.
    fn connections() -> [Connection; 5] {
        let connection = |(from, to, channel)| Connection { from: Rank(from), to: Rank(to), channel, link: LinkId(0) };
        [(0, 1, 0), (1, 0, 0), (1, 2, 0), (0, 1, 1), (1, 0, 1)].map(connection)
    }

    fn remote(connection: &Connection) -> bool {
        connection.to != Rank(2)
    }

    fn meeting<'a>(
        connections: &'a [Connection],
        secret: &'a Secret,
        rank: u32,
        limit: Duration,
        closed: &'a UnreachableAddresses,
    ) -> Meeting<'a> {
        let deadline = Moment::now().after(limit);
        Meeting { rank: Rank(rank), connections, remote: &remote, secret, task: 7, deadline, check: &|| Ok(()), closed }
    }

    /// Connects ranks 0 and 1. Before that, `disturb` gets the address of rank 0.
    fn meet(
        interfaces: &[&str],
        secrets: [&Secret; 2],
        limit: Duration,
        disturb: impl FnOnce(SocketAddr),
    ) -> [RunResult<Streams>; 2] {
        let connections = connections();
        let interfaces: Vec<IpAddr> = interfaces.iter().map(|interface| interface.parse().unwrap()).collect();
        let [(zero, first), (one, second)] = [(); 2].map(|()| listen(&interfaces, false).unwrap());
        let listening = [first, second];
        disturb(listening[0].addresses[0]);
        let closed = UnreachableAddresses::default();
        std::thread::scope(|scope| {
            let zero = scope.spawn(|| meeting(&connections, secrets[0], 0, limit, &closed).hold(zero, &listening));
            let one = scope.spawn(|| meeting(&connections, secrets[1], 1, limit, &closed).hold(one, &listening));
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

    /// One address leads to another job, and one is free. Peers that can do without them leave both out; else the
    /// meeting fails.
    #[test]
    fn an_address_that_does_not_answer_is_done_without() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let connections = connections();
        let elsewhere = TcpListener::bind("127.0.0.3:0").unwrap();
        for spare in [true, false] {
            let interfaces = [["127.0.0.1", "127.0.0.5"], ["127.0.0.1", "127.0.0.2"]];
            let [(zero, first), (one, mut second)] =
                interfaces.map(|own| listen(&own.map(|address| address.parse().unwrap()), spare).unwrap());
            second.addresses.insert(1, elsewhere.local_addr().unwrap());
            second.addresses.push("127.0.0.4:1".parse().unwrap());
            let listening = [first, second];
            let (closed, limit) =
                (UnreachableAddresses::default(), if spare { LONG } else { Duration::from_millis(500) });
            // The process at this address does not belong to the job.
            let stop = AtomicBool::new(false);
            let [zero, one] = std::thread::scope(|scope| {
                let mut gate = Gate::new(vec![elsewhere.try_clone().unwrap()], &other);
                elsewhere.set_nonblocking(true).unwrap();
                scope.spawn({
                    let stop = &stop;
                    move || {
                        while !stop.load(Ordering::Relaxed) {
                            drop(gate.admit(|_, _| Some(())).unwrap());
                        }
                    }
                });
                let zero = scope.spawn(|| meeting(&connections, &secret, 0, limit, &closed).hold(zero, &listening));
                // Rank 1's second listener belongs to its third published address, so `held` takes the second place.
                let mut listeners = one;
                let held = TcpListener::bind("127.0.0.1:0").unwrap();
                held.set_nonblocking(true).unwrap();
                listeners.insert(1, held);
                let one = scope.spawn(|| meeting(&connections, &secret, 1, limit, &closed).hold(listeners, &listening));
                let met = [zero.join().unwrap(), one.join().unwrap()];
                stop.store(true, Ordering::Relaxed);
                met
            });
            if !spare {
                assert!(matches!(zero, Err(RunError::Lane { peer: Rank(1), .. })));
                continue;
            }
            for (sent, received) in zero.unwrap().outgoing.values().zip(one.unwrap().incoming.values()) {
                assert_eq!((sent.len(), received.len()), (2, 2));
                for (sent, received) in sent.iter().zip(received) {
                    assert_eq!(sent.peer_addr().unwrap(), received.local_addr().unwrap());
                }
            }
            let closed: Vec<String> = closed.into_inner().unwrap().iter().map(IpAddr::to_string).collect();
            assert_eq!(closed, ["127.0.0.3", "127.0.0.4"]);
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
                    // Answers a nonce that was never sent, with the right secret and with another one.
                    _ => {
                        let header = Header { task: 7, connection: 1, from: Rank(1), to: Rank(0), stripe: 0, all: 1 }.bytes();
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

    /// What a connector does that must not be accepted.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Attack {
        /// Sends nothing and keeps its connection.
        Hold,
        /// Sends a byte from time to time.
        Dribble,
        /// Answers the nonce with another secret.
        Guess,
        /// Sends an honest rank's proof for another nonce.
        Repeat,
        /// Sends many more bytes than a proof has.
        Flood,
        /// Resets the connection at once.
        Reset,
        /// Knows the secret, but claims something unexpected.
        Claim,
    }

    const ATTACKS: [Attack; 7] =
        [Attack::Hold, Attack::Dribble, Attack::Guess, Attack::Repeat, Attack::Flood, Attack::Reset, Attack::Claim];

    /// Attacks until `over` is set, and counts the attempts. Keeps several connections open.
    fn attack(attack: Attack, address: SocketAddr, secret: &Secret, over: &AtomicBool, attempts: &AtomicUsize) {
        let other = Secret::from_text(b"a guess");
        let honest = Header { task: 7, connection: 1, from: Rank(1), to: Rank(0), stripe: 0, all: 1 };
        let odd = [
            Header { task: 8, ..honest },
            Header { connection: 2, ..honest },
            Header { connection: u32::MAX, ..honest },
            Header { from: Rank(2), ..honest },
            Header { to: Rank(1), ..honest },
            Header { stripe: 1, ..honest },
            Header { stripe: u16::MAX, all: 0, ..honest },
        ];
        let mut kept: Vec<TcpStream> = Vec::new();
        for attempt in 0.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            attempts.fetch_add(1, Ordering::Relaxed);
            if attack == Attack::Claim {
                let soon = Moment::now().after(Duration::from_secs(1));
                let claim = odd[attempt % odd.len()].bytes();
                let met = introduce(address, claim, secret, soon, &|| !over.load(Ordering::Relaxed));
                assert!(met.is_err(), "{claim:?} was let in");
                continue;
            }
            let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else { continue };
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let proof = |secret: &Secret, nonce: &[u8]| {
                let tag = secret.tag(&[b"connect", nonce, &[1; BYTES], &honest.bytes()]);
                [[1; BYTES], honest.bytes(), tag].concat()
            };
            let mut nonce = [0; BYTES];
            // An attacker that is cut off in between has failed too.
            match attack {
                Attack::Hold => kept.push(stream),
                Attack::Dribble => {
                    kept.push(stream);
                    kept.retain(|mut stream| stream.write_all(&[0]).is_ok());
                }
                Attack::Guess if stream.read_exact(&mut nonce).is_ok() => {
                    let _ = stream.write_all(&proof(&other, &nonce));
                    let mut answer = [0; BYTES];
                    assert!(stream.read_exact(&mut answer).is_err() || answer == [0; BYTES], "a guess was answered");
                }
                Attack::Repeat => drop(stream.write_all(&proof(secret, &[9; BYTES]))),
                Attack::Flood => drop(stream.write_all(&[255; 100 * BYTES])),
                Attack::Reset => drop(rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))),
                Attack::Guess | Attack::Claim => {}
            }
            if kept.len() > 200 {
                kept.drain(..100);
            }
        }
    }

    #[test]
    fn attackers_of_all_kinds_at_once_hold_up_nobody_and_none_is_let_in() {
        crate::transport::tcp::raise_open_files();
        let (secret, over) = (Secret::random().unwrap(), AtomicBool::new(false));
        let attempts = ATTACKS.map(|_| AtomicUsize::new(0));
        let (secret, over, attempts) = (&secret, &over, &attempts);
        std::thread::scope(|scope| {
            let met = meet(&["127.0.0.1"], [secret; 2], LONG, |address| {
                for (index, kind) in ATTACKS.into_iter().enumerate() {
                    scope.spawn(move || attack(kind, address, secret, over, &attempts[index]));
                }
                // All attackers have begun before the ranks connect.
                while attempts.iter().any(|attempts| attempts.load(Ordering::Relaxed) == 0) {
                    std::thread::yield_now();
                }
            });
            over.store(true, Ordering::Relaxed);
            let incoming = met.map(|streams| {
                streams.map(|streams| streams.incoming.len()).unwrap_or_else(|error| panic!("{}", error.chain()))
            });
            assert_eq!(incoming, [2, 2]);
        });
    }

    /// For a while there is no descriptor for one more connection.
    #[test]
    fn who_has_no_descriptor_for_a_connection_tries_again() {
        if !alone("who_has_no_descriptor_for_a_connection_tries_again") {
            return;
        }
        let (secret, connections, closed) = (Secret::random().unwrap(), connections(), UnreachableAddresses::default());
        let [(zero, first), (one, second)] = [(); 2].map(|()| listen(&["127.0.0.1".parse().unwrap()], false).unwrap());
        let (listening, asked) = ([first, second], AtomicUsize::new(0));
        let enough = limit_descriptors(0);
        let check = || {
            if asked.fetch_add(1, Ordering::Relaxed) == 20 {
                setrlimit(Resource::Nofile, enough).unwrap();
            }
            Ok(())
        };
        let meeting = |rank| Meeting { check: &check, ..meeting(&connections, &secret, rank, LONG, &closed) };
        let met = std::thread::scope(|scope| {
            let zero = scope.spawn(|| meeting(0).hold(zero, &listening));
            let one = scope.spawn(|| meeting(1).hold(one, &listening));
            [zero.join().unwrap(), one.join().unwrap()]
        });
        for streams in met {
            assert_eq!(streams.unwrap_or_else(|error| panic!("{}", error.chain())).incoming.len(), 2);
        }
    }

    /// A verdict comes while a rank waits for a listener that never answers.
    #[test]
    fn who_waits_at_a_silent_door_hears_the_verdict() {
        let (secret, connections, closed) = (Secret::random().unwrap(), connections(), UnreachableAddresses::default());
        let [(zero, first), (_silent, second)] =
            [(); 2].map(|()| listen(&["127.0.0.1".parse().unwrap()], false).unwrap());
        let (asked, begin) = (AtomicUsize::new(0), Moment::now());
        let check = || match asked.fetch_add(1, Ordering::Relaxed) {
            ..50 => Ok(()),
            _ => Err(RunError::Mismatch { what: "the verdict".to_owned() }),
        };
        let meeting = Meeting { check: &check, ..meeting(&connections, &secret, 0, LONG, &closed) };
        let error = meeting.hold(zero, &[first, second]).err().unwrap();
        assert!(error.to_string().contains("the verdict"), "{error}");
        assert!(Moment::now().since(begin) < LONG / 2);
    }

    /// Before rank 1 serves its listener, the first connections are accepted and closed without an answer.
    #[test]
    fn who_is_sent_away_unheard_comes_again() {
        let (secret, connections, closed) = (Secret::random().unwrap(), connections(), UnreachableAddresses::default());
        let [(zero, first), (one, second)] = [(); 2].map(|()| listen(&["127.0.0.1".parse().unwrap()], false).unwrap());
        let listening = [first, second];
        std::thread::scope(|scope| {
            let zero = scope.spawn(|| meeting(&connections, &secret, 0, LONG, &closed).hold(zero, &listening));
            let (mut away, deadline) = (0, Moment::now().after(LONG));
            while away < 6 {
                assert!(Moment::now() < deadline, "only {away} came");
                match one[0].accept() {
                    Ok(_) => away += 1,
                    Err(_) => std::thread::yield_now(),
                }
            }
            let one = scope.spawn(|| meeting(&connections, &secret, 1, LONG, &closed).hold(one, &listening));
            assert!(zero.join().unwrap().is_ok() && one.join().unwrap().is_ok());
        });
    }

    #[test]
    fn a_door_that_nobody_opens_is_named() {
        let (secret, connections, closed) = (Secret::random().unwrap(), connections(), UnreachableAddresses::default());
        let [(zero, first), (one, second)] = [(); 2].map(|()| listen(&["127.0.0.1".parse().unwrap()], false).unwrap());
        drop(one);
        let address = second.addresses[0];
        let error = meeting(&connections, &secret, 0, LONG, &closed).hold(zero, &[first, second]).err().unwrap();
        assert!(matches!(error, RunError::Lane { peer: Rank(1), .. }), "{error}");
        assert!(error.chain().contains(&format!("refused (os error 111), at {address}")), "{}", error.chain());
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
