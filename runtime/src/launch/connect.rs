//! How processes form a session.
//!
//! The principal function is [`Session::connect`].

use crate::clock::Moment;
use crate::control::frame::{Inbox, sealed};
use crate::error::{RunError, RunResult};
use crate::launch::machine::Machine;
use crate::launch::membership::{
    FromMember, MemberAddresses, MemberConnection, MemberPlace, MemberWatch, READING, ToMember,
};
use crate::launch::rebuild::ProcessMeeting;
use crate::launch::rendezvous::Rendezvous;
use crate::memory::doorbell::Patience;
use crate::session::places::{Directory, RankLocation};
use crate::session::status::SessionStatus;
use crate::session::{Session, SessionSetup};
use crate::transport;
use crate::transport::hosts::Hosts;
use crate::transport::network::{Network, NetworkEndpoint, NetworkSession, RemotePorts, TransportAddress};
use crate::transport::shared::port::process_memory::ProbedWord;
use crate::transport::shared::port::rank_memory::{ProcessPlace, RankMemory};
use crate::transport::tcp::{self, Proven};
use serde::de::DeserializeOwned;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use topology::Rank;

/// Up to so many ranks of a machine map each other's memory at once. Of more, each maps what it uses.
const MOST_MAPPED: usize = 64;
/// How long a short message to another process may wait for room.
const SENDING: Duration = Duration::from_secs(5);
/// How long a process may be silent before it is taken for stopped: half of the time that a call may go without progress,
/// within these limits.
const SILENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

impl Session {
    /// The session of this process with those that the same launcher has started, one for each rank. All must come within
    /// `limit`. A process that does not run for half of `patience` is taken for stopped.
    ///
    /// # Errors
    /// [`RunError::Absent`], [`RunError::Unreachable`] or [`RunError::Mismatch`] if the processes do not find each other;
    /// what the operating system says otherwise.
    pub fn connect(at: &Rendezvous, limit: Duration, patience: Duration) -> RunResult<Self> {
        let deadline = Moment::now().after(limit);
        let lines = if at.rank == Rank(0) { receive(at, limit)? } else { vec![reach(at, limit)?] };
        Self::form(at, lines, deadline, patience)
    }

    /// The session of ranks that have found each other: rank 0 has a connection with each other rank, which has one with rank 0.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) fn form(
        at: &Rendezvous,
        mut lines: Vec<MemberConnection>,
        deadline: Moment,
        patience: Duration,
    ) -> RunResult<Self> {
        let met = meet(at, &mut lines, deadline).inspect_err(|error| call_off(at, &lines, error))?;
        let MetSession { memory, word, survivors, remote, directory, local } = met;
        let status = Arc::new(SessionStatus::new(vec![memory.clone()]));
        let silence = (patience / 2).clamp(SILENCE[0], SILENCE[1]);
        let watch = MemberWatch::new(at.rank, lines, (&status, directory.clone()), silence)
            .map_err(RunError::system("starting the thread that watches the other ranks"))?;
        Self::assemble(SessionSetup {
            rank: at.rank,
            memory,
            patience: Patience::of(local, directory.cores()),
            directory,
            status,
            remote,
            watch: Some(Box::new((watch, word))),
            survivors: Arc::new(survivors),
        })
    }
}

/// What a session is made of when all ranks have met.
struct MetSession {
    memory: RankMemory,
    /// What others read to find out whether they can.
    word: ProbedWord,
    survivors: ProcessMeeting,
    remote: Option<RemotePorts>,
    directory: Arc<Directory>,
    /// How many ranks are on this machine.
    local: usize,
}

/// Meets the other ranks, and waits until the lanes of all are formed.
fn meet(at: &Rendezvous, lines: &mut [MemberConnection], deadline: Moment) -> RunResult<MetSession> {
    let memory = RankMemory::new(at.ranks).map_err(RunError::system("making shared memory"))?;
    let nonce = tcp::nonce().map_err(RunError::system("asking for random bytes"))?;
    let word = ProbedWord::new(u64::from_ne_bytes(std::array::from_fn(|index| nonce[index])));
    let place = memory.place().map_err(RunError::system("publishing shared memory"))?;
    let process = ProcessPlace { memory: place, probe: word.probe() };
    let exchange = if at.rank == Rank(0) { gather } else { join };
    let network = OnceCell::new();
    let listen = |own, hub| listen(at, &network, (own, hub));
    let MetMembers { places, listening } = exchange((at, &listen), lines, process, deadline)?;
    let survivors = ProcessMeeting::new(at, listening.listeners, &places);
    let machines = machines(&places);
    let remote = join_machines(at, (&places, &machines), listening.endpoint, deadline)?;
    let local = places.iter().filter(|place| place.machine == at.machine).count();
    let directory = Arc::new(directory(at, &memory, places, machines));
    begin(at, lines, &directory, local, deadline)?;
    Ok(MetSession { memory, word, survivors, remote, directory, local })
}

/// Says to those at the other ends why the session does not come about, so that all name the rank that is the cause.
fn call_off(at: &Rendezvous, lines: &[MemberConnection], error: &RunError) {
    for line in lines {
        let reason = error.chain();
        // One of them may be the rank that is gone.
        let _ = match at.rank {
            Rank(0) => line.post.send(&ToMember::Refused { reason }),
            _ => line.post.send(&FromMember::Failed { reason }),
        };
    }
}

/// What is known when all have said where they are.
struct MetMembers<'a> {
    /// By rank.
    places: Vec<MemberPlace>,
    listening: MemberListening<'a>,
}

/// How ranks of other machines find this one.
struct MemberListening<'a> {
    /// While the session is formed.
    endpoint: Box<dyn NetworkEndpoint + 'a>,
    /// After a failure.
    listeners: Vec<TcpListener>,
}

/// Listens: how others find this rank, and the addresses to tell them. Takes the address of this rank's end of a control
/// connection, and that of rank 0.
type Listen<'a, 'n> = dyn Fn(Option<IpAddr>, Option<IpAddr>) -> RunResult<(MemberListening<'n>, MemberAddresses)> + 'a;

/// The next message of a process.
pub(super) fn hear<T: DeserializeOwned>(inbox: &mut Inbox<TcpStream>, deadline: Moment) -> io::Result<T> {
    let left = deadline.since(Moment::now()).max(Duration::from_millis(1));
    inbox.stream().set_read_timeout(Some(left))?;
    inbox.receive()?.ok_or_else(|| io::Error::new(ErrorKind::TimedOut, "it says nothing"))
}

pub(super) fn unexpected() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it says something else than a rank that joins a session")
}

/// The connection with a process that has proved who it is.
pub(super) fn line(own: Rank, rank: Rank, proven: Proven) -> RunResult<MemberConnection> {
    let (post, inbox) = sealed(proven, own < rank, SENDING).map_err(RunError::lane(own, rank))?;
    Ok(MemberConnection { rank, post: Arc::new(post), inbox })
}

/// Rank 0 waits for all others.
fn receive(at: &Rendezvous, limit: Duration) -> RunResult<Vec<MemberConnection>> {
    at.receive(limit)?.into_iter().map(|arrival| line(at.rank, arrival.rank, arrival.proven)).collect()
}

/// Another rank finds rank 0.
fn reach(at: &Rendezvous, limit: Duration) -> RunResult<MemberConnection> {
    line(at.rank, Rank(0), at.reach(limit)?)
}

/// Listens for ranks of other machines.
fn listen<'a>(
    at: &Rendezvous,
    network: &'a OnceCell<Box<dyn Network>>,
    (own, hub): (Option<IpAddr>, Option<IpAddr>),
) -> RunResult<(MemberListening<'a>, MemberAddresses)> {
    let (mut ways, _) = at.ways(own, hub)?;
    ways.truncate(1);
    let (listeners, survivors) = tcp::listen(&ways, false).map_err(RunError::system("listening for other ranks"))?;
    let secret = at.secret.derive(&[b"session"]);
    let endpoint = network.get_or_init(|| transport::network(ways, false, secret)).listen()?;
    let addresses = MemberAddresses { session: endpoint.address()?, survivors };
    Ok((MemberListening { endpoint, listeners }, addresses))
}

/// Rank 0 hears what another rank says.
fn hear_member(at: &Rendezvous, line: &mut MemberConnection, deadline: Moment) -> RunResult<FromMember> {
    match hear(&mut line.inbox, deadline).map_err(RunError::lane(at.rank, line.rank))? {
        FromMember::Failed { reason } => Err(RunError::Declined { rank: line.rank, reason }),
        said => Ok(said),
    }
}

/// Tells rank 0 something, and hears what it says then.
fn ask_hub(at: &Rendezvous, line: &mut MemberConnection, word: &FromMember, deadline: Moment) -> RunResult<ToMember> {
    let sent = line.post.send(word);
    // Rank 0 may have closed the connection; what it said before is still there.
    match hear(&mut line.inbox, deadline) {
        Ok(ToMember::Refused { reason }) => Err(RunError::Refused { rank: at.rank, reason }),
        heard => sent.and(heard).map_err(RunError::lane(at.rank, line.rank)),
    }
}

/// Rank 0 hears where all are, and tells all.
fn gather<'n>(
    (at, listen): (&Rendezvous, &Listen<'_, 'n>),
    lines: &mut [MemberConnection],
    process: ProcessPlace,
    deadline: Moment,
) -> RunResult<MetMembers<'n>> {
    let mut places = BTreeMap::new();
    for line in lines.iter_mut() {
        let FromMember::Hello(place) = hear_member(at, line, deadline)? else {
            return Err(RunError::lane(at.rank, line.rank)(unexpected()));
        };
        places.insert(line.rank, place);
    }
    // Ranks of this computer may have come through the loopback, where others do not find rank 0.
    let seen_by = |line: &MemberConnection| line.post.address().ok();
    let is_afar = |line: &&MemberConnection| {
        places[&line.rank].machine != at.machine && seen_by(line).is_some_and(|address| !address.is_loopback())
    };
    let own = lines.iter().find(is_afar).or(lines.first()).and_then(seen_by);
    let (listening, addresses) = listen(own, own)?;
    places.insert(at.rank, MemberPlace { machine: at.machine.clone(), process, addresses });
    let places: Vec<MemberPlace> = places.into_values().collect();
    for line in lines {
        line.post.send(&ToMember::Directory(places.clone())).map_err(RunError::lane(at.rank, line.rank))?;
    }
    Ok(MetMembers { places, listening })
}

/// Another rank says where it is, and hears where all are.
fn join<'n>(
    (at, listen): (&Rendezvous, &Listen<'_, 'n>),
    lines: &mut [MemberConnection],
    process: ProcessPlace,
    deadline: Moment,
) -> RunResult<MetMembers<'n>> {
    let [line] = lines else {
        return Err(RunError::lane(at.rank, Rank(0))(unexpected()));
    };
    let zero = line.inbox.stream().peer_addr().ok().map(|address| address.ip().to_canonical());
    let (listening, addresses) = listen(line.post.address().ok(), zero)?;
    let own = MemberPlace { machine: at.machine.clone(), process, addresses };
    match ask_hub(at, line, &FromMember::Hello(own), deadline)? {
        ToMember::Directory(places) if places.len() == at.ranks => Ok(MetMembers { places, listening }),
        _ => Err(RunError::lane(at.rank, line.rank)(unexpected())),
    }
}

/// Connects with all ranks of other machines.
fn join_machines(
    at: &Rendezvous,
    (places, machines): (&[MemberPlace], &[u32]),
    endpoint: Box<dyn NetworkEndpoint + '_>,
    deadline: Moment,
) -> RunResult<Option<RemotePorts>> {
    if places.iter().all(|place| place.machine == at.machine) {
        return Ok(None);
    }
    let addresses: Vec<TransportAddress> = places.iter().map(|place| place.addresses.session.clone()).collect();
    let hosts = Hosts::Of(machines.to_vec());
    endpoint.join_session(&NetworkSession { rank: at.rank, hosts: &hosts, deadline }, &addresses).map(Some)
}

/// The machine of each rank, counted in the order of their first ranks.
fn machines<'p>(places: &'p [MemberPlace]) -> Vec<u32> {
    let mut known: Vec<&Machine> = Vec::new();
    let number = |place: &'p MemberPlace| {
        known.iter().position(|machine| **machine == place.machine).unwrap_or_else(|| {
            known.push(&place.machine);
            known.len() - 1
        }) as u32
    };
    places.iter().map(number).collect()
}

/// Where the others are, as this rank sees it.
fn directory(at: &Rendezvous, memory: &RankMemory, places: Vec<MemberPlace>, machines: Vec<u32>) -> Directory {
    let seen = |(rank, place): (Rank, MemberPlace)| match place {
        _ if rank == at.rank => RankLocation::Thread(memory.clone()),
        MemberPlace { machine, process, .. } if machine == at.machine => {
            RankLocation::Process(process, OnceLock::new())
        }
        MemberPlace { .. } => RankLocation::Elsewhere,
    };
    let mut names: Vec<String> = Vec::new();
    for (place, number) in places.iter().zip(&machines) {
        // They are counted in the order of their first ranks.
        if *number as usize == names.len() {
            names.push(place.machine.name().to_owned());
        }
    }
    Directory::new((0..).map(Rank).zip(places).map(seen).collect(), machines, names)
}

/// Maps the memory of the others, and waits until all have done so: from then on a rank may leave at any time.
fn begin(
    at: &Rendezvous,
    lines: &mut [MemberConnection],
    directory: &Directory,
    local: usize,
    deadline: Moment,
) -> RunResult<()> {
    if local <= MOST_MAPPED {
        for rank in directory.of_this_machine() {
            directory.memory(rank).map_err(RunError::lane(at.rank, rank))?;
        }
    }
    let is_hub = at.rank == Rank(0);
    for line in &mut *lines {
        let is_expected = match is_hub {
            true => matches!(hear_member(at, line, deadline)?, FromMember::Ready),
            false => matches!(ask_hub(at, line, &FromMember::Ready, deadline)?, ToMember::Go),
        };
        if !is_expected {
            return Err(RunError::lane(at.rank, line.rank)(unexpected()));
        }
    }
    for line in lines {
        if is_hub {
            // Others may have begun. If this rank is gone, those who watch find that out, and all hear of it.
            let _ = line.post.send(&ToMember::Go);
        }
        let quick = line.inbox.stream().set_read_timeout(Some(READING));
        quick.map_err(RunError::lane(at.rank, line.rank))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    const LIMIT: Duration = Duration::from_secs(20);

    fn rendezvous(at: &str, rank: u32) -> Rendezvous {
        Rendezvous {
            rank: Rank(rank),
            ranks: 3,
            masters: vec![at.to_owned()],
            secret: tcp::Secret::from_text(b"a secret of this test"),
            machine: Machine::named("test"),
            interfaces: Vec::new(),
            found: Vec::new(),
        }
    }

    /// How far a rank comes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum LastStage {
        Reached,
        Joined,
        /// It says that it has failed.
        Failed,
    }

    /// Joins, and goes no further than a stage. Its memory stays, so others miss only what it says.
    fn stop_at(stage: LastStage, at: &Rendezvous) -> Option<RankMemory> {
        let mut lines = [reach(at, LIMIT).unwrap()];
        match stage {
            LastStage::Reached => None,
            LastStage::Joined => {
                let memory = RankMemory::new(at.ranks).unwrap();
                let word = ProbedWord::new(1);
                let process = ProcessPlace { memory: memory.place().unwrap(), probe: word.probe() };
                let network = OnceCell::new();
                let listen = |own, hub| listen(at, &network, (own, hub));
                join((at, &listen), &mut lines, process, Moment::now().after(LIMIT)).unwrap();
                Some(memory)
            }
            LastStage::Failed => {
                let error = RunError::Mismatch { what: "rank 2 has no memory".to_owned() };
                call_off(at, &lines, &error);
                None
            }
        }
    }

    #[test]
    fn all_name_the_rank_that_dies_while_ranks_join() {
        for stage in [LastStage::Reached, LastStage::Joined, LastStage::Failed] {
            let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
            scope(|scope| {
                let others = [0, 1].map(|rank| {
                    let at = rendezvous(&at, rank);
                    scope.spawn(move || Session::connect(&at, LIMIT, LIMIT).map(drop).unwrap_err())
                });
                let memory = stop_at(stage, &rendezvous(&at, 2));
                let told = others.map(|other| other.join().unwrap().chain());
                for (rank, told) in told.iter().enumerate() {
                    assert!(told.contains("rank 2"), "rank {rank}, {stage:?}: {told}");
                }
                assert!(told[1].starts_with("rank 1 was turned away: "), "{stage:?}: {}", told[1]);
                drop(memory);
            });
        }
    }
}
