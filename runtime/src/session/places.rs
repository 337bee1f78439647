//! Where each rank of a session is.
//!
//! The principal type is [`Directory`], which tells a rank how it reaches the others. The memory of another process is mapped when
//! it is first used.

use super::Session;
use crate::error::RunError;
use crate::memory::cores::cores_of;
use crate::transport::shared::port::process_memory::ProcessReader;
use crate::transport::shared::port::rank_memory::{ProcessPlace, RankMemory};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use std::io;
use std::sync::OnceLock;
use topology::Rank;

/// Where one rank is, as seen by another.
pub(crate) enum RankLocation {
    /// In this process: its buffers are read through pointers.
    Thread(RankMemory),
    /// In another process of this machine.
    Process(ProcessPlace, OnceLock<RankMemory>),
    /// On another machine.
    Elsewhere,
}

/// Where all ranks of a session are, as seen by one of them.
pub(crate) struct Directory {
    ranks: Vec<RankLocation>,
    /// The machine of each rank, counted in the order of their first ranks.
    machines: Vec<u32>,
    /// The name of each machine, if there are several.
    names: Vec<String>,
    /// How many cores the ranks of this machine have together.
    cores: usize,
}

impl Directory {
    /// Ranks that are all on one machine.
    pub(crate) fn of_one_machine(ranks: Vec<RankLocation>) -> Self {
        let machines = vec![0; ranks.len()];
        Self::new(ranks, machines, Vec::new())
    }

    /// Ranks on machines with these names.
    pub(crate) fn new(ranks: Vec<RankLocation>, machines: Vec<u32>, names: Vec<String>) -> Self {
        let processes = ranks.iter().filter_map(|location| match location {
            RankLocation::Process(place, _) => Some(place.memory.process),
            RankLocation::Thread(_) | RankLocation::Elsewhere => None,
        });
        let cores = cores_of(processes);
        Self { ranks, machines, names, cores }
    }

    /// How many cores the ranks of this machine have together.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// The machine of each rank, counted in the order of their first ranks.
    pub(crate) fn machines(&self) -> &[u32] {
        &self.machines
    }

    /// The name of a rank's machine, if the ranks are on several.
    fn machine_of(&self, rank: Rank) -> Option<&str> {
        let number = *self.machines.get(rank.index())?;
        self.names.get(number as usize).filter(|_| self.names.len() > 1).map(String::as_str)
    }

    /// Why this rank cannot read the memory of the other processes of its machine, if that is so.
    fn reading_fault(&self) -> Option<io::Error> {
        let mut probes = self.ranks.iter().filter_map(|location| match location {
            RankLocation::Process(place, _) => Some(place.probe),
            RankLocation::Thread(_) | RankLocation::Elsewhere => None,
        });
        // Mostly the system allows it for all processes of the machine, or for none.
        let other = probes.find(|probe| !probe.is_of_this_process())?;
        ProcessReader::new(other).err()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks of this machine.
    pub(crate) fn of_this_machine(&self) -> impl Iterator<Item = Rank> {
        let is_here = |location: &RankLocation| !matches!(location, RankLocation::Elsewhere);
        (0..).map(Rank).zip(&self.ranks).filter(move |(_, of)| is_here(of)).map(|(rank, _)| rank)
    }

    /// Whether a rank is on another machine.
    pub(crate) fn is_elsewhere(&self, rank: Rank) -> bool {
        matches!(self.ranks.get(rank.index()), Some(RankLocation::Elsewhere))
    }

    /// Whether ranks of this machine are other processes.
    pub(crate) fn has_processes(&self) -> bool {
        self.ranks.iter().any(|location| matches!(location, RankLocation::Process(..)))
    }

    /// Where a rank is.
    pub(crate) fn of(&self, rank: Rank) -> &RankLocation {
        &self.ranks[rank.index()]
    }

    /// Whether a rank is certainly dead: a process of this machine that has ended, even if nobody has asked for its status.
    pub(crate) fn has_died(&self, rank: Rank) -> bool {
        let RankLocation::Process(place, _) = self.of(rank) else { return false };
        let Some(process) = i32::try_from(place.memory.process).ok().and_then(Pid::from_raw) else { return false };
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(process) => {
                let mut ended = [PollFd::new(&process, PollFlags::IN)];
                poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Err(error) => error == Errno::SRCH,
        }
    }

    /// The memory of a rank of this machine.
    ///
    /// # Errors
    /// If its process is gone, or its memory cannot be mapped.
    pub(crate) fn memory(&self, rank: Rank) -> io::Result<&RankMemory> {
        match self.of(rank) {
            RankLocation::Thread(memory) => Ok(memory),
            RankLocation::Elsewhere => Err(io::Error::other("it is on another machine")),
            RankLocation::Process(place, opened) => match opened.get() {
                Some(memory) => Ok(memory),
                None => {
                    let memory = RankMemory::open(place.memory, self.ranks())?;
                    Ok(opened.get_or_init(|| memory))
                }
            },
        }
    }
}

impl Session {
    /// An error with the machines of the ranks that it names, if the ranks are on several machines.
    #[must_use]
    pub fn placed(&self, error: RunError) -> RunError {
        let place = |rank: Rank| {
            let name = self.shared.directory.machine_of(rank)?;
            Some(format!("rank {rank} is on {}", topology::shorten(name)))
        };
        let places: Vec<String> = error.named().into_iter().filter_map(place).collect();
        match places.is_empty() {
            true => error,
            false => RunError::Placed { error: Box::new(error), places: places.join(", ") },
        }
    }

    /// Why long messages of other processes of this machine are copied twice, if they are: the system does not let this
    /// rank read their memory.
    pub fn reading_fault(&self) -> Option<io::Error> {
        self.shared.directory.reading_fault()
    }
}
