//! How processes form a session.
//!
//! The principal function is [`Session::connect`].

use crate::clock::Moment;
use crate::control::frame::{Inbox, sealed};
use crate::error::{RunError, RunResult};
use crate::launch::membership::{FromMember, Line, MemberPlace, Membership, READING, ToMember};
use crate::launch::rendezvous::Rendezvous;
use crate::memory::doorbell::Patience;
use crate::session::Session;
use crate::session::fate::Fate;
use crate::session::places::{Directory, ProcessPlace, RankMemory, Whereabouts};
use crate::session::process_memory::ProbedWord;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use topology::Rank;

/// Up to so many ranks of a machine map each other's memory at once. Of more, each maps what it uses.
const MOST_MAPPED: usize = 64;
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
        let memory = RankMemory::new(at.ranks).map_err(RunError::system("making shared memory"))?;
        let nonce = crate::transport::tcp::nonce().map_err(RunError::system("asking for random bytes"))?;
        let word = ProbedWord::new(u64::from_ne_bytes(std::array::from_fn(|index| nonce[index])));
        let place = memory.place().map_err(RunError::system("publishing shared memory"))?;
        let process = ProcessPlace { memory: place, probe: word.probe() };
        let own = MemberPlace { machine: at.machine.clone(), process };
        let (lines, places) = if at.rank == Rank(0) { gather(at, own, deadline)? } else { join(at, own, deadline)? };
        let local = places.iter().filter(|place| place.machine == at.machine).count();
        let directory = Arc::new(directory(at, &memory, places)?);
        let lines = begin(at, lines, &directory, local, deadline)?;
        let fate = Arc::new(Fate::new(vec![memory.clone()]));
        let silence = (patience / 2).clamp(SILENCE[0], SILENCE[1]);
        let watch = Membership::watch(at.rank, lines, &fate, silence)
            .map_err(RunError::system("starting the thread that watches the other ranks"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let kept = Box::new((watch, word));
        Ok(Self::assemble(at.rank, memory, directory, Patience::of(local, cores), fate, Some(kept)))
    }
}

fn broken(rank: Rank, peer: Rank) -> impl FnOnce(io::Error) -> RunError {
    RunError::lane(rank, peer)
}

/// The next message of a process.
fn hear<T: DeserializeOwned>(inbox: &mut Inbox<TcpStream>, deadline: Moment) -> io::Result<T> {
    let left = deadline.since(Moment::now()).max(Duration::from_millis(1));
    inbox.stream().set_read_timeout(Some(left))?;
    inbox.receive()?.ok_or_else(|| io::Error::new(ErrorKind::TimedOut, "it says nothing"))
}

fn unexpected() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it says something else than a rank that joins a session")
}

/// Rank 0 hears where all are, and tells all.
fn gather(at: &Rendezvous, own: MemberPlace, deadline: Moment) -> RunResult<(Vec<Line>, Vec<MemberPlace>)> {
    let arrivals = at.receive(deadline.since(Moment::now()))?;
    let mut lines = Vec::with_capacity(arrivals.len());
    let mut places = vec![own; at.ranks];
    for arrival in arrivals {
        let rank = arrival.rank;
        let hello = || -> io::Result<(Line, MemberPlace)> {
            let (post, mut inbox) = sealed(arrival.proven, true, Duration::from_secs(5))?;
            match hear(&mut inbox, deadline)? {
                FromMember::Hello(place) => Ok((Line { rank, post: Arc::new(post), inbox }, place)),
                _ => Err(unexpected()),
            }
        };
        let (line, place) = hello().map_err(broken(at.rank, rank))?;
        places[rank.index()] = place;
        lines.push(line);
    }
    for line in &lines {
        line.post.send(&ToMember::Directory(places.clone())).map_err(broken(at.rank, line.rank))?;
    }
    Ok((lines, places))
}

/// Another rank says where it is, and hears where all are.
fn join(at: &Rendezvous, own: MemberPlace, deadline: Moment) -> RunResult<(Vec<Line>, Vec<MemberPlace>)> {
    let proven = at.reach(deadline.since(Moment::now()))?;
    let hub = Rank(0);
    let (post, mut inbox) = sealed(proven, false, Duration::from_secs(5)).map_err(broken(at.rank, hub))?;
    post.send(&FromMember::Hello(own)).map_err(broken(at.rank, hub))?;
    match hear(&mut inbox, deadline).map_err(broken(at.rank, hub))? {
        ToMember::Directory(places) if places.len() == at.ranks => {
            Ok((vec![Line { rank: hub, post: Arc::new(post), inbox }], places))
        }
        ToMember::Refused { reason } => Err(RunError::Refused { rank: at.rank, reason }),
        _ => Err(broken(at.rank, hub)(unexpected())),
    }
}

/// Where the others are, as this rank sees it.
fn directory(at: &Rendezvous, memory: &RankMemory, places: Vec<MemberPlace>) -> RunResult<Directory> {
    let mut ranks = Vec::with_capacity(places.len());
    for (rank, place) in (0..).map(Rank).zip(places) {
        ranks.push(match place {
            _ if rank == at.rank => Whereabouts::Thread(memory.clone()),
            MemberPlace { machine, process } if machine == at.machine => Whereabouts::Process(process, OnceLock::new()),
            MemberPlace { machine, .. } => {
                let what = format!(
                    "rank {rank} is on machine {}, rank {} on {}: sessions between machines are not supported yet",
                    machine.name(),
                    at.rank,
                    at.machine.name()
                );
                return Err(RunError::Mismatch { what });
            }
        });
    }
    Ok(Directory::new(ranks))
}

/// Maps the memory of the others, and waits until all have done so: from then on a rank may leave at any time.
fn begin(
    at: &Rendezvous,
    mut lines: Vec<Line>,
    directory: &Directory,
    local: usize,
    deadline: Moment,
) -> RunResult<Vec<Line>> {
    if local <= MOST_MAPPED {
        for rank in (0..at.ranks).map(Rank::from_index) {
            directory.memory(rank).map_err(broken(at.rank, rank))?;
        }
    }
    let is_hub = at.rank == Rank(0);
    for line in &mut lines {
        let met = match is_hub {
            true => hear(&mut line.inbox, deadline).and_then(|said| match said {
                FromMember::Ready => Ok(()),
                _ => Err(unexpected()),
            }),
            false => {
                line.post.send(&FromMember::Ready).and_then(|()| hear(&mut line.inbox, deadline)).and_then(|said| {
                    match said {
                        ToMember::Go => Ok(()),
                        _ => Err(unexpected()),
                    }
                })
            }
        };
        met.map_err(broken(at.rank, line.rank))?;
    }
    for line in &lines {
        if is_hub {
            line.post.send(&ToMember::Go).map_err(broken(at.rank, line.rank))?;
        }
        let quick = line.inbox.stream().set_read_timeout(Some(READING));
        quick.map_err(broken(at.rank, line.rank))?;
    }
    Ok(lines)
}
