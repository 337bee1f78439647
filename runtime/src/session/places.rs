//! Where each rank of a session is, and the memory in which others leave messages for it.
//!
//! The principal types are [`RankMemory`], which one rank owns and all ranks of its machine write to, and [`Directory`], which
//! tells a rank how it reaches the others. The memory of another process is mapped when it is first used.
//!
//! ```text
//! rank memory:   | bell | notices | segments | a lane for each rank of the session, for its messages to this one |
//!                  64 B   192 B     1536 B     LANE_BYTES each; only what is used costs memory
//! ```

use super::notice::{BOARD_BYTES, NoticeBoard};
use super::process_memory::WordProbe;
use super::segments::{SEGMENT_BOARD_BYTES, SegmentBoard};
use crate::memory::cores::cores_of;
use crate::memory::doorbell::{BELL_BYTES, Doorbell};
use crate::memory::region::{OpenFilePlace, Region};
use crate::session::lane_place::LANE_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use topology::Rank;

const SEGMENTS_AT: usize = BELL_BYTES + BOARD_BYTES;
const LANES_AT: usize = SEGMENTS_AT + SEGMENT_BOARD_BYTES;

/// The memory of one rank.
#[derive(Clone)]
pub(crate) struct RankMemory {
    region: Arc<Region>,
    offset: usize,
    ranks: usize,
}

impl RankMemory {
    fn bytes(ranks: usize) -> io::Result<usize> {
        let bytes = ranks.checked_mul(LANE_BYTES).and_then(|lanes| lanes.checked_add(LANES_AT));
        bytes.ok_or_else(|| io::Error::other("too many ranks for one machine"))
    }

    /// Memory for one rank of so many.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub(crate) fn new(ranks: usize) -> io::Result<Self> {
        Ok(Self { region: Arc::new(Region::create(Self::bytes(ranks)?)?), offset: 0, ranks })
    }

    /// Memory for each of so many ranks of one process, by rank.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub(crate) fn of_threads(ranks: usize) -> io::Result<Vec<Self>> {
        let each = Self::bytes(ranks)?;
        let all = each.checked_mul(ranks).ok_or_else(|| io::Error::other("too many ranks for one machine"))?;
        let region = Arc::new(Region::create(all)?);
        Ok((0..ranks).map(|rank| Self { region: region.clone(), offset: rank * each, ranks }).collect())
    }

    /// Where another process finds it.
    ///
    /// # Errors
    /// If the system gives no path.
    pub(crate) fn place(&self) -> io::Result<OpenFilePlace> {
        OpenFilePlace::of(self.region.descriptor())
    }

    /// The memory of a rank in another process of this machine.
    fn open(place: OpenFilePlace, ranks: usize) -> io::Result<Self> {
        let region = Region::open(OwnedFd::from(place.open(OFlags::RDWR)?))?;
        if region.len() != Self::bytes(ranks)? {
            return Err(io::Error::other("the shared memory of a peer has another size"));
        }
        Ok(Self { region: Arc::new(region), offset: 0, ranks })
    }

    /// Wakes the owner.
    pub(crate) fn bell(&self) -> Doorbell {
        Doorbell::new(self.region.clone(), self.offset)
    }

    /// The owner's notices about broken communicators.
    pub(crate) fn notices(&self) -> NoticeBoard {
        NoticeBoard::new(self.region.clone(), self.offset + BELL_BYTES)
    }

    /// Which memory of the owner others can map.
    pub(crate) fn segments(&self) -> SegmentBoard {
        SegmentBoard::new(self.region.clone(), self.offset + SEGMENTS_AT)
    }

    /// The lane for messages from a rank to the owner.
    pub(crate) fn lane(&self, from: Rank) -> (Arc<Region>, usize) {
        assert!(from.index() < self.ranks, "the session has this rank");
        (self.region.clone(), self.offset + LANES_AT + from.index() * LANE_BYTES)
    }
}

/// How a process tells the others where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessPlace {
    /// Its rank memory.
    pub(crate) memory: OpenFilePlace,
    /// How a peer finds out whether it can read the process's memory.
    pub(crate) probe: WordProbe,
}

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
    /// How many cores the ranks of this machine have together.
    cores: usize,
}

impl Directory {
    /// Ranks that are all on one machine.
    pub(crate) fn of_one_machine(ranks: Vec<RankLocation>) -> Self {
        let machines = vec![0; ranks.len()];
        Self::new(ranks, machines)
    }

    pub(crate) fn new(ranks: Vec<RankLocation>, machines: Vec<u32>) -> Self {
        let processes = ranks.iter().filter_map(|location| match location {
            RankLocation::Process(place, _) => Some(place.memory.process),
            RankLocation::Thread(_) | RankLocation::Elsewhere => None,
        });
        let cores = cores_of(processes);
        Self { ranks, machines, cores }
    }

    /// How many cores the ranks of this machine have together.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// The machine of each rank, counted in the order of their first ranks.
    pub(crate) fn machines(&self) -> &[u32] {
        &self.machines
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks of this machine.
    pub(crate) fn of_this_machine(&self) -> impl Iterator<Item = Rank> {
        let is_here = |location: &RankLocation| !matches!(location, RankLocation::Elsewhere);
        (0..).map(Rank).zip(&self.ranks).filter(move |(_, of)| is_here(of)).map(|(rank, _)| rank)
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
