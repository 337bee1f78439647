//! How ranks that a launcher started on several machines find each other.
//!
//! The principal type is [`Rendezvous`]: what every rank knows when it starts. Rank 0 coordinates. It listens at the
//! agreed address until all other ranks have connected and proved that they know the secret. The claim in that
//! handshake names the rank. An unauthenticated connection is refused and counted. A rank of this job whose settings
//! contradict rank 0's ends the job on every rank, with the reason.

use crate::clock::Moment;
use crate::control::frame::sealed;
use crate::control::messages::{Answer, FromAgent, PROTOCOL, ToAgent};
use crate::error::{RunError, RunResult};
use crate::launch::identity::Identity;
use crate::launch::machine::Machine;
use crate::numbers::Epoch;
use crate::transport::interfaces::{self, Interface};
use crate::transport::tcp::{Claim, Gate, Proven, Secret, introduce};
use crate::verdict::Phase;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;
use topology::Rank;

/// How long one attempt to reach the coordinator may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// How many connections may wait to be accepted: thousands of ranks connect at the same time.
const BACKLOG: i32 = 4096;

/// What a rank knows before it has met the others.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// The number of this rank; rank 0 coordinates.
    pub rank: Rank,
    /// The number of ranks.
    pub ranks: usize,
    /// The addresses of rank 0, `HOST:PORT`. Other ranks try them in turn. Rank 0 listens at those that it has.
    pub masters: Vec<String>,
    /// The secret of the job.
    pub secret: Secret,
    /// The machine of this rank.
    pub machine: Machine,
    /// The addresses at which other ranks reach this rank; all are used at the same time.
    pub interfaces: Vec<IpAddr>,
    /// The interfaces of the machine, used if `interfaces` is empty. Then this rank is reached through the interface
    /// over which it reaches rank 0, and through every other one that adds bandwidth.
    pub found: Vec<Interface>,
}

/// An agent that has arrived.
pub(crate) struct Arrival {
    pub(crate) rank: Rank,
    pub(crate) machine: [u8; 16],
    pub(crate) proven: Proven,
}

impl Rendezvous {
    /// The addresses at which this rank listens for data, and whether peers do without an address that does not answer.
    /// `reached` is the local address of its control connection. `zero` is the address of rank 0 for other machines.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if other machines would get a loopback address, with which they would reach themselves.
    pub(crate) fn ways(&self, reached: Option<IpAddr>, zero: Option<IpAddr>) -> RunResult<(Vec<IpAddr>, bool)> {
        let zero = zero.filter(|zero| !zero.is_loopback());
        // A rank that reaches rank 0 over the loopback, or has its address, is on the machine of rank 0, and others
        // reach it at the same address.
        let is_local = reached.is_some_and(|reached| reached.is_loopback());
        let is_there = |zero: &IpAddr| is_local || self.found.iter().any(|own| own.address == *zero);
        let first = zero.filter(is_there).or(reached);
        match (&self.interfaces[..], first) {
            ([], Some(first)) => Ok((interfaces::ways(first, &self.found), true)),
            ([], None) => Ok((vec![Ipv4Addr::LOCALHOST.into()], false)),
            (named, _) => match named.iter().find(|named| named.is_loopback()).zip(zero) {
                Some((named, zero)) => Err(RunError::Mismatch {
                    what: format!(
                        "rank {} on {} is to be reached at {named}, which is the loopback of every machine; rank 0 is at \
                         {zero} for others",
                        self.rank,
                        self.machine.name()
                    ),
                }),
                None => Ok((named.to_vec(), false)),
            },
        }
    }

    /// Warns about interfaces that are not used although they might be useful.
    pub(crate) fn say_unused(&self, ways: &[IpAddr]) {
        if self.interfaces.is_empty() {
            interfaces::say_unused(ways, &self.found);
        }
    }

    fn at(&self) -> String {
        self.masters.join(" or ")
    }

    /// Waits for all other ranks and returns them by rank. Then no listener is left.
    ///
    /// # Errors
    /// [`RunError::Absent`] with the missing ranks; [`RunError::Mismatch`] if a rank's settings contradict rank 0's;
    /// [`RunError::Declined`] if a rank does not take part; or the error of the operating system.
    pub(crate) fn receive(&self, limit: Duration) -> RunResult<Vec<Arrival>> {
        let mut here: BTreeMap<Rank, Arrival> = BTreeMap::new();
        if self.ranks <= 1 {
            return Ok(Vec::new());
        }
        let listeners = self.listen().map_err(|source| RunError::Rendezvous { at: self.at(), source })?;
        let mut gate = Gate::new(listeners, &self.secret);
        let deadline = Moment::now().after(limit);
        while here.len() + 1 < self.ranks {
            if Moment::now() > deadline {
                let missing = (1..self.ranks).map(Rank::from_index).filter(|rank| !here.contains_key(rank)).collect();
                let absent = RunError::Absent { missing, at: self.at(), limit, refused: gate.refused() };
                turn_away(here.into_values(), &absent.to_string());
                return Err(absent);
            }
            let known = |claim: &Claim, address| Identity::of(claim).map(|identity| (identity, address));
            let mut come = gate.admit(known).map_err(RunError::system("waiting for other ranks"))?.into_iter();
            while let Some(((identity, address), proven)) = come.next() {
                let arrival = |identity: Identity, proven| {
                    let Identity { rank, machine, .. } = identity;
                    Arrival { rank, machine, proven }
                };
                let (rank, declines) = (identity.rank, identity.declines);
                let objection = self.objection(identity, address);
                let arrived = arrival(identity, proven);
                if objection.is_some() || declines {
                    let reason = objection.clone().unwrap_or_else(|| excuse(&arrived.proven));
                    let others = come.map(|((identity, _), proven)| arrival(identity, proven));
                    let all = here.into_values().chain([arrived]).chain(others).collect();
                    self.turn_all_away(gate, all, deadline, &reason);
                    return Err(match objection {
                        Some(what) => RunError::Mismatch { what },
                        None => RunError::Declined { rank, reason },
                    });
                }
                match here.get(&rank) {
                    Some(first) if !has_left(&first.proven.stream) => {
                        turn_away([arrived], &format!("rank {rank} has come already, from elsewhere"));
                    }
                    _ => drop(here.insert(rank, arrived)),
                }
            }
        }
        Ok(here.into_values().collect())
    }

    /// Tells the other ranks that this rank does not take part, and why. Takes at most `limit`.
    pub fn call_off(&self, limit: Duration, reason: &str) {
        let reason = format!("rank {} cannot take part: {reason}", self.rank);
        if self.rank == Rank(0) {
            // If rank 0 cannot listen, no rank is told; the others have a limit of their own.
            if let Ok(listeners) = self.listen() {
                let gate = Gate::new(listeners, &self.secret);
                self.turn_all_away(gate, Vec::new(), Moment::now().after(limit), &reason);
            }
        } else if let Ok(proven) = self.reach_as(limit, true)
            && let Ok((post, _)) = sealed(proven, false, ATTEMPT)
        {
            let answer = Answer::Failed { phase: Phase::Prepare, reason, peers: Vec::new() };
            // If rank 0 is gone, the others notice by themselves.
            let _ = post.send(&FromAgent::Answer { epoch: Epoch::default(), answer });
        }
    }

    /// Tells the reason to the ranks that are here, and to the others when they connect, so that none waits in vain.
    fn turn_all_away(&self, mut gate: Gate<'_>, here: Vec<Arrival>, deadline: Moment, reason: &str) {
        let mut told: BTreeSet<Rank> = here.iter().map(|arrival| arrival.rank).collect();
        turn_away(here, reason);
        while told.len() + 1 < self.ranks && Moment::now() < deadline {
            let Ok(come) = gate.admit(|claim, _| Identity::of(claim)) else { return };
            for (Identity { rank, machine, .. }, proven) in come {
                turn_away([Arrival { rank, machine, proven }], reason);
                told.insert(rank);
            }
        }
    }

    /// What contradicts rank 0's settings in the claim of a rank that knows the secret.
    fn objection(&self, identity: Identity, address: SocketAddr) -> Option<String> {
        let Identity { protocol, rank, ranks, .. } = identity;
        if protocol != PROTOCOL {
            return Some(format!("rank {rank} at {address} speaks protocol {protocol}, rank 0 speaks {PROTOCOL}"));
        }
        if ranks as usize != self.ranks {
            let mine = self.ranks;
            return Some(format!(
                "rank {rank} at {address} was started as one of {ranks} ranks, rank 0 as one of {mine}"
            ));
        }
        (rank == Rank(0) || rank.index() >= self.ranks)
            .then(|| format!("somebody at {address} was started as rank {rank} of {ranks}, which cannot be"))
    }

    /// Listens at all agreed addresses that this machine has. Launchers may name addresses of other machines, or
    /// addresses that some ranks do not reach.
    ///
    /// # Errors
    /// If it can listen at none of them, with the reason for each.
    fn listen(&self) -> io::Result<Vec<TcpListener>> {
        let (mut listeners, mut failed) = (Vec::new(), Vec::new());
        for master in &self.masters {
            match listen_at(master) {
                Ok(listener) => listeners.push(listener),
                Err(error) => failed.push((master, error)),
            }
        }
        if listeners.is_empty() {
            let kind = failed.first().map_or(ErrorKind::InvalidInput, |(_, error)| error.kind());
            let reasons: Vec<String> = failed.iter().map(|(master, error)| format!("{master}: {error}")).collect();
            return Err(io::Error::new(kind, reasons.join("; ")));
        }
        for (master, error) in failed {
            tracing::info!("rank 0 does not wait for the others at {master}: {error}");
        }
        Ok(listeners)
    }

    /// Connects with the coordinator, which may not listen yet.
    ///
    /// # Errors
    /// [`RunError::Unreachable`] with the last reason when the limit has passed, or at once if the process that listens
    /// there does not know the secret.
    pub(crate) fn reach(&self, limit: Duration) -> RunResult<Proven> {
        self.reach_as(limit, false)
    }

    /// Connects with a process that listens already; `None` if it does not any more, or does not answer before the deadline, or
    /// while `go_on` says so.
    pub(super) fn reach_listener(
        &self,
        addresses: &[SocketAddr],
        deadline: Moment,
        go_on: &dyn Fn() -> bool,
    ) -> Option<Proven> {
        let claim = self.identity(false).claim();
        while Moment::now() < deadline && go_on() {
            let mut is_there = false;
            for address in addresses {
                let until = Moment::now().after(ATTEMPT).min(deadline);
                match introduce(*address, claim, &self.secret, until, go_on) {
                    Ok(proven) => return Some(proven),
                    Err(error) => is_there |= error.kind() != ErrorKind::ConnectionRefused,
                }
            }
            if !is_there {
                return None;
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    fn identity(&self, declines: bool) -> Identity {
        let ranks = self.ranks as u32;
        let machine = self.machine.key();
        Identity { protocol: PROTOCOL, rank: self.rank, ranks, machine, declines }
    }

    fn reach_as(&self, limit: Duration, declines: bool) -> RunResult<Proven> {
        let deadline = Moment::now().after(limit);
        let identity = self.identity(declines);
        let lost = |source| RunError::Unreachable { rank: self.rank, at: self.at(), limit, source };
        loop {
            let mut reason = io::Error::new(ErrorKind::NotFound, "the name has no address");
            // At one of several addresses there may be another job, while rank 0 is not yet at its own.
            let (mut denied, mut may_come) = (None, false);
            for master in &self.masters {
                let addresses = match master.to_socket_addrs() {
                    Ok(addresses) => addresses,
                    Err(error) => {
                        reason = error;
                        continue;
                    }
                };
                for address in addresses {
                    if let Err(error) = general(address.ip()) {
                        reason = error;
                        continue;
                    }
                    let until = Moment::now().after(ATTEMPT).min(deadline);
                    match introduce(address, identity.claim(), &self.secret, until, &|| true) {
                        Ok(proven) => return Ok(proven),
                        Err(error) if error.kind() == ErrorKind::PermissionDenied => denied = Some(error),
                        Err(error) => (reason, may_come) = (error, true),
                    }
                }
            }
            match denied {
                Some(error) if may_come => reason = error,
                Some(error) => return Err(lost(error)),
                None => {}
            }
            if Moment::now().after(PAUSE) > deadline {
                return Err(lost(reason));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Listens at an address. A name may have another address on this machine than on others, so for a name it listens at
/// all addresses of the machine.
fn listen_at(master: &str) -> io::Result<TcpListener> {
    let invalid = || io::Error::new(ErrorKind::InvalidInput, "not of the form HOST:PORT");
    let listener = match master.parse::<SocketAddr>() {
        Ok(address) => {
            general(address.ip())?;
            TcpListener::bind(address)?
        }
        Err(_) => {
            let port: u16 = master.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).ok_or_else(invalid)?;
            everywhere(port).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?
        }
    };
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Listens at all IPv4 and IPv6 addresses, whatever the system's default is.
fn everywhere(port: u16) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    // As for other listeners: connections of an earlier job may still use this port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    Ok(TcpListener::from(socket))
}

/// Whether other machines cannot use an address: link-local ones need the name of a link, which differs between
/// machines.
pub fn is_for_one_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V6(address) => address.is_unicast_link_local(),
        // These never name a link.
        IpAddr::V4(_) => false,
    }
}

/// # Errors
/// If only this machine can use the address.
fn general(address: IpAddr) -> io::Result<()> {
    if !is_for_one_link(address) {
        return Ok(());
    }
    let what = format!("{address} is valid on one link only; a name or another address of rank 0 is needed");
    Err(io::Error::new(ErrorKind::InvalidInput, what))
}

/// Tells the reason to these ranks. Does not wait for ranks that do not read it.
fn turn_away(who: impl IntoIterator<Item = Arrival>, reason: &str) {
    for arrival in who {
        if let Ok((post, _)) = sealed(arrival.proven, true, PAUSE) {
            let _ = post.send(&ToAgent::Refused { reason: reason.to_owned() });
        }
    }
}

/// Why a rank does not take part, in its own words.
fn excuse(proven: &Proven) -> String {
    let hear = || {
        let proven = Proven { stream: proven.stream.try_clone()?, session: proven.session.clone() };
        let (_post, mut inbox) = sealed(proven, true, PAUSE)?;
        inbox.stream().set_read_timeout(Some(ATTEMPT))?;
        inbox.receive()
    };
    let heard: io::Result<_> = hear();
    match heard {
        Ok(Some(FromAgent::Answer { answer: Answer::Failed { reason, .. }, .. })) => reason,
        _ => "it does not say why".to_owned(),
    }
}

/// Whether the other end of a non-blocking socket is gone.
pub(super) fn has_left(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frame::Inbox;
    use std::io::Write;

    const LIMIT: Duration = Duration::from_secs(20);

    /// An address that is free at the moment.
    fn free(host: &str) -> String {
        TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
    }

    fn rendezvous(at: &str, rank: u32, ranks: usize, secret: &[u8]) -> Rendezvous {
        let secret = Secret::from_text(secret);
        Rendezvous {
            rank: Rank(rank),
            ranks,
            masters: vec![at.to_owned()],
            secret,
            machine: Machine::named("test"),
            interfaces: Vec::new(),
            found: Vec::new(),
        }
    }

    #[test]
    fn all_ranks_find_each_other_whatever_strangers_say() {
        for host in ["127.0.0.1", "::1"] {
            let at = free(host);
            std::thread::scope(|scope| {
                let coordinator = scope.spawn(|| rendezvous(&at, 0, 5, b"key").receive(LIMIT));
                let strangers = scope.spawn(|| {
                    let deadline = Moment::now().after(LIMIT);
                    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 500], &[255; 96]] {
                        while Moment::now() < deadline {
                            let Ok(mut stream) = TcpStream::connect(&at) else { continue };
                            let _ = stream.write_all(said);
                            break;
                        }
                    }
                });
                strangers.join().unwrap();
                let wrong = rendezvous(&at, 2, 5, b"another key").reach(LIMIT);
                let Err(RunError::Unreachable { source, .. }) = wrong else { panic!("it was let in") };
                assert_eq!(source.kind(), ErrorKind::PermissionDenied);
                for rank in [3, 1, 4, 2] {
                    scope.spawn({
                        let at = &at;
                        move || rendezvous(at, rank, 5, b"key").reach(LIMIT).map(drop).unwrap()
                    });
                }
                let ranks: Vec<_> = coordinator.join().unwrap().unwrap().iter().map(|arrival| arrival.rank.0).collect();
                assert_eq!(ranks, [1, 2, 3, 4], "{host}");
            });
            assert!(TcpStream::connect(&at).is_err(), "somebody still listens");
        }
    }

    /// A launcher may name addresses of rank 0 that belong to other machines, or that some ranks do not reach.
    #[test]
    fn rank_0_waits_at_every_address_that_it_has() {
        // No machine has an address of the documentation network.
        let (own, other, foreign) = (free("127.0.0.1"), free("127.0.0.2"), "192.0.2.1:29500");
        let at = |masters: &[&str], rank| {
            let masters = masters.iter().map(ToString::to_string).collect();
            Rendezvous { masters, ..rendezvous("", rank, 3, b"key") }
        };
        std::thread::scope(|scope| {
            let coordinator = scope.spawn(|| at(&[foreign, &own, &other], 0).receive(LIMIT));
            let one = scope.spawn(|| at(&[&own], 1).reach(LIMIT).map(drop));
            let two = scope.spawn(|| at(&[&other], 2).reach(LIMIT).map(drop));
            assert_eq!(coordinator.join().unwrap().unwrap().len(), 2);
            assert!(one.join().unwrap().is_ok() && two.join().unwrap().is_ok());
        });
        let taken = TcpListener::bind(&own).unwrap();
        let Err(RunError::Rendezvous { source, .. }) = at(&[foreign, &own], 0).receive(LIMIT) else { panic!() };
        assert!(source.to_string().contains(foreign) && source.to_string().contains(&own), "{source}");
        drop(taken);
    }

    #[test]
    fn a_name_is_listened_at_by_both_kinds_of_addresses() {
        let name = |host: &str| free(host).rsplit_once(':').map(|(_, port)| format!("localhost:{port}")).unwrap();
        let name = name("127.0.0.1");
        let listener = listen_at(&name).unwrap();
        assert!(!rustix::net::sockopt::ipv6_v6only(&listener).unwrap());
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            TcpStream::connect((host, port)).unwrap();
        }
    }

    #[test]
    fn an_address_of_one_link_is_refused_by_name() {
        let error = rendezvous("[fe80::1%2]:29500", 0, 2, b"key").receive(LIMIT).err().unwrap();
        assert!(error.chain().contains("fe80::1 is valid on one link only"), "{}", error.chain());
        let error = rendezvous("[fe80::1%2]:29500", 1, 2, b"key").reach(Duration::ZERO).err().unwrap();
        assert!(error.chain().contains("fe80::1 is valid on one link only"), "{}", error.chain());
    }

    #[test]
    fn no_other_machine_is_told_the_loopback() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let [local, own, zero, bridge] = ["127.0.0.1", "10.0.0.2", "10.0.0.1", "172.17.0.1"].map(address);
        let rank =
            |interfaces: &[IpAddr]| Rendezvous { interfaces: interfaces.to_vec(), ..rendezvous("", 2, 3, b"key") };
        for (reached, seen, expected) in [
            (local, Some(zero), zero),
            (own, Some(zero), own),
            // All ranks are on one machine.
            (local, Some(local), local),
            (local, None, local),
            (bridge, Some(zero), bridge),
        ] {
            assert_eq!(rank(&[]).ways(Some(reached), seen).unwrap(), (vec![expected], true));
        }
        // An address that only exists on the machine of rank 0 is of no use for other machines.
        let (name, devices) = ("eth0".to_owned(), vec!["eth0".to_owned()]);
        let eth0 = Interface { name, address: zero, prefix: 24, devices, mbits: None };
        let beside = Rendezvous { found: vec![eth0], ..rank(&[]) };
        assert_eq!(beside.ways(Some(bridge), Some(zero)).unwrap().0, [zero]);
        assert_eq!(rank(&[own]).ways(Some(local), Some(zero)).unwrap(), (vec![own], false));
        assert_eq!(rank(&[local]).ways(Some(local), Some(local)).unwrap(), (vec![local], false));
        let error = rank(&[own, local]).ways(Some(own), Some(zero)).unwrap_err().to_string();
        assert!(error.contains("rank 2 on test is to be reached at 127.0.0.1"), "{error}");
    }

    #[test]
    fn who_does_not_come_is_named_on_both_sides() {
        let at = free("127.0.0.1");
        let limit = Duration::from_millis(300);
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| refusal(rendezvous(&at, 2, 4, b"key").reach(LIMIT).unwrap()));
            let error = rendezvous(&at, 0, 4, b"key").receive(limit).err().unwrap();
            let RunError::Absent { missing, .. } = &error else { panic!("{error}") };
            assert_eq!(missing, &[Rank(1), Rank(3)]);
            assert_eq!(agent.join().unwrap(), error.to_string());
        });
        let error = rendezvous(&at, 1, 4, b"key").reach(limit).err().unwrap();
        assert!(matches!(error, RunError::Unreachable { rank: Rank(1), .. }), "{error}");
    }

    #[test]
    fn another_idea_of_the_job_ends_it_and_a_second_claimant_does_not() {
        let at = free("127.0.0.1");
        std::thread::scope(|scope| {
            let coordinator = scope.spawn(|| rendezvous(&at, 0, 3, b"key").receive(LIMIT));
            let first = rendezvous(&at, 1, 3, b"key").reach(LIMIT).unwrap();
            let second = refusal(rendezvous(&at, 1, 3, b"key").reach(LIMIT).unwrap());
            assert!(second.contains("rank 1 has come already"), "{second}");
            let odd = refusal(rendezvous(&at, 2, 7, b"key").reach(LIMIT).unwrap());
            assert!(odd.contains("one of 7 ranks, rank 0 as one of 3"), "{odd}");
            assert_eq!(refusal(first), odd);
            assert!(matches!(coordinator.join().unwrap(), Err(RunError::Mismatch { what }) if what == odd));
        });
    }

    #[test]
    fn another_protocol_ends_the_job_with_both_numbers() {
        let at = free("127.0.0.1");
        std::thread::scope(|scope| {
            let coordinator = scope.spawn(|| rendezvous(&at, 0, 2, b"key").receive(LIMIT));
            let odd = rendezvous(&at, 1, 2, b"key");
            let identity =
                Identity { protocol: PROTOCOL + 1, rank: Rank(1), ranks: 2, machine: [0; 16], declines: false };
            let deadline = Moment::now().after(LIMIT);
            let proven = loop {
                match introduce(at.parse().unwrap(), identity.claim(), &odd.secret, deadline, &|| true) {
                    Ok(proven) => break proven,
                    Err(error) => assert!(Moment::now() < deadline, "{error}"),
                }
            };
            let said = refusal(proven);
            assert!(said.contains(&format!("protocol {}, rank 0 speaks {PROTOCOL}", PROTOCOL + 1)), "{said}");
            assert!(matches!(coordinator.join().unwrap(), Err(RunError::Mismatch { what }) if what == said));
        });
    }

    #[test]
    fn a_handshake_that_is_replayed_is_refused_and_the_job_is_formed() {
        let at = free("127.0.0.1");
        std::thread::scope(|scope| {
            let coordinator = scope.spawn(|| rendezvous(&at, 0, 3, b"key").receive(LIMIT));
            // A proxy records the handshake of rank 1, and another process repeats it.
            let (proxy, said) = eavesdrop(at.parse().unwrap());
            rendezvous(&proxy.to_string(), 1, 3, b"key").reach(LIMIT).map(drop).unwrap();
            let mut replay = TcpStream::connect(&at).unwrap();
            replay.set_read_timeout(Some(LIMIT)).unwrap();
            replay.write_all(&said.join().unwrap()).unwrap();
            let mut heard = Vec::new();
            // A nonce and the refusal, which is all zeroes; then the connection is closed.
            let _ = std::io::Read::read_to_end(&mut replay, &mut heard);
            assert_eq!(heard.len(), 64, "{heard:?}");
            assert!(heard[32..].iter().all(|&byte| byte == 0), "{heard:?}");
            let again = rendezvous(&at, 1, 3, b"key").reach(LIMIT).unwrap();
            let second = rendezvous(&at, 2, 3, b"key").reach(LIMIT).unwrap();
            let ranks: Vec<_> = coordinator.join().unwrap().unwrap().iter().map(|arrival| arrival.rank.0).collect();
            assert_eq!(ranks, [1, 2]);
            drop((again, second));
        });
    }

    /// Passes one handshake on to `at`, and returns the bytes of the connector.
    fn eavesdrop(at: SocketAddr) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
        use std::io::Read;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listen = move || {
            let (mut near, _) = listener.accept().unwrap();
            let deadline = Moment::now().after(LIMIT);
            let mut far = loop {
                match TcpStream::connect(at) {
                    Ok(far) => break far,
                    Err(error) => assert!(Moment::now() < deadline, "{error}"),
                }
            };
            let pass = |from: &mut TcpStream, to: &mut TcpStream, bytes: usize| {
                let mut said = vec![0; bytes];
                from.read_exact(&mut said).unwrap();
                to.write_all(&said).unwrap();
                said
            };
            pass(&mut far, &mut near, 32);
            let said = pass(&mut near, &mut far, 96);
            pass(&mut far, &mut near, 32);
            said
        };
        (address, std::thread::spawn(listen))
    }

    #[test]
    fn who_does_not_take_part_says_why_to_all() {
        for odd in 0..3 {
            let at = free("127.0.0.1");
            std::thread::scope(|scope| {
                let spoil = scope.spawn(|| rendezvous(&at, odd, 3, b"key").call_off(LIMIT, "no plan"));
                let expected = format!("rank {odd} cannot take part: no plan");
                let others: Vec<_> = (1..3).filter(|&rank| rank != odd).collect();
                let others = others.into_iter().map(|rank| {
                    let at = &at;
                    scope.spawn(move || rendezvous(at, rank, 3, b"key").reach(LIMIT).map(refusal))
                });
                let others: Vec<_> = others.collect();
                if odd > 0 {
                    let error = rendezvous(&at, 0, 3, b"key").receive(LIMIT).err().unwrap();
                    assert!(matches!(&error, RunError::Declined { rank, .. } if rank.0 == odd), "{error}");
                    assert_eq!(error.to_string(), expected);
                }
                spoil.join().unwrap();
                for other in others {
                    match other.join().unwrap() {
                        Ok(said) => assert_eq!(said, expected),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    }

    fn refusal(proven: Proven) -> String {
        let (_post, mut inbox): (_, Inbox<TcpStream>) = sealed(proven, false, LIMIT).unwrap();
        inbox.stream().set_read_timeout(Some(LIMIT)).unwrap();
        match inbox.receive().unwrap() {
            Some(ToAgent::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }
}
