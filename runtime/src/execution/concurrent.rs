//! The programs that are executed at the same time, their sizes, and their ranks.
//!
//! The principal types are [`Work`], a program in a group of ranks, and [`Concurrent`], works that are executed at the
//! same time. Launcher and workers each derive from it everything that both must agree on: the number of tiles, the
//! bytes that a lane must hold, and the numbers of the lanes. No two works share a lane, so no work can block another.

use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::options::ExecutionOptions;
use crate::group::Group;
use crate::memory::segment::Segment;
use crate::pacing::order::transfer_count;
use crate::plan::geometry::{Geometry, tiles_of};
use crate::transport::shared::arena::Arena;
use crate::transport::shared::ring;
use program::{Connection, Excerpt, Program, VerifiedProgram, digest};
use topology::Rank;

/// The most works at the same time. The stamp of a message has 16 bits for the number of the work.
const MOST_WORKS: usize = 1 << 16;

/// What a rank of a job has loaded for execution.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// A program that the rank has verified.
    Whole(VerifiedProgram),
    /// The rank's excerpt of a program, for ranks that share memory. The rank computes a digest from the excerpt and
    /// votes with it. It runs only if the coordinator computes the same digest from a program that it has verified.
    Excerpt(Excerpt),
}

/// A program at one element count, for a group of ranks.
#[derive(Clone)]
pub(crate) struct Work<'a> {
    pub(crate) program: &'a Program,
    /// How many messages a sender may have to be ahead of its receiver.
    pub(crate) window: u32,
    /// The digest of an excerpt's program, which the excerpt contains; `None` if it is computed from `program`.
    pub(crate) digest: Option<&'a str>,
    pub(crate) count: u64,
    pub(crate) dtype: DType,
    pub(crate) group: Group,
}

impl<'a> Work<'a> {
    /// A work among all ranks.
    pub(crate) fn new(program: &'a VerifiedProgram, count: u64, dtype: DType) -> Self {
        let group = Group::all(program.program().ranks.len());
        Self { program: program.program(), window: program.window(), digest: None, count, dtype, group }
    }

    /// The work of a rank that has loaded `loaded`.
    pub(crate) fn loaded(loaded: &'a Loaded, group: Group, count: u64, dtype: DType) -> Self {
        match loaded {
            Loaded::Whole(program) => Self { group, ..Self::new(program, count, dtype) },
            Loaded::Excerpt(excerpt) => {
                let (program, digest) = (excerpt.program(), Some(excerpt.digest()));
                Self { program, window: 0, digest, count, dtype, group }
            }
        }
    }

    /// Its connections, between ranks of the job.
    pub(crate) fn connections(&self) -> impl Iterator<Item = Connection> {
        let ranks = self.group.ranks();
        let of_job =
            |lane: &Connection| Connection { from: ranks[lane.from.index()], to: ranks[lane.to.index()], ..*lane };
        self.program.connections.iter().map(of_job)
    }

    /// The number of tiles that slots are cut into.
    pub(crate) fn tiles(&self, options: &ExecutionOptions) -> u32 {
        let bytes = match (options.tile_bytes, &options.emulation) {
            (Some(bytes), _) => bytes,
            // An emulated machine stores and forwards whole chunks, as its schedule assumes.
            (None, Some(_)) => return 1,
            (None, None) if options.hosts.any_apart(self.group.ranks()) => ExecutionOptions::REMOTE_TILE_BYTES,
            (None, None) => ExecutionOptions::TILE_BYTES,
        };
        // A lane must hold `window` messages, each of several slots. Without a window the sends are not searched: every
        // rank calls this, and a program of many ranks has many sends.
        let ahead = match self.window {
            0 => 0,
            window => window as usize * self.sends().map(|(_, slice)| slice.count).max().unwrap_or(1) as usize,
        };
        let limit = options.ring_bytes.checked_div(ahead).unwrap_or(bytes);
        tiles_of(self.program, self.count, self.dtype, bytes.min(limit).max(64))
    }

    /// How many bytes a lane must accept even if its receiver takes none.
    ///
    /// # Errors
    /// Those of [`Geometry::new`].
    pub(crate) fn backlog(&self, tiles: u32) -> RunResult<usize> {
        if self.window == 0 {
            return Ok(0);
        }
        let mut largest = 0;
        for index in 0..self.program.ranks.len() {
            let rank = Rank::from_index(index);
            let geometry = Geometry::new(self.program, rank, self.count, self.dtype, tiles)?;
            let own = self.sends().filter(|(from, _)| *from == rank);
            let bytes = own.flat_map(|(_, slice)| {
                let tiles = [0, tiles as usize / 2, tiles as usize - 1];
                tiles.map(|tile| geometry.slice_bytes(slice, tile))
            });
            largest = largest.max(bytes.max().unwrap_or(0));
        }
        // Tiles of a slot differ by at most one element, so tiles of a slice by at most one per slot.
        let spare = 8 * self.sends().map(|(_, slice)| slice.count as usize).max().unwrap_or(0);
        Ok(self.window as usize * (largest + spare))
    }

    fn sends(&self) -> impl Iterator<Item = (Rank, program::Slice)> + use<'a> {
        let ranks = self.program.ranks.iter().enumerate();
        ranks.flat_map(|(index, own)| {
            let steps = own.threadblocks.iter().flat_map(|block| &block.steps);
            let sends = steps.filter(|step| step.instruction.sends_to().is_some());
            sends.map(move |step| (Rank::from_index(index), step.instruction.shape()))
        })
    }
}

/// Works that are executed at the same time.
pub(crate) struct Concurrent<'a> {
    works: Vec<Work<'a>>,
    /// The connections of all works between ranks of the job, one work after the other.
    connections: Vec<Connection>,
    /// The hashes of the works' programs.
    digests: Vec<String>,
}

impl<'a> Concurrent<'a> {
    /// Works of a job with `ranks` ranks.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if a program does not fit its group, a group the job, or if there are too many works.
    pub(crate) fn new(works: Vec<Work<'a>>, ranks: usize) -> RunResult<Self> {
        let refuse = |what| Err(RunError::Mismatch { what });
        if works.len() > MOST_WORKS {
            return refuse(format!("{} plans at the same time are more than {MOST_WORKS}", works.len()));
        }
        for work in &works {
            let (needed, has) = (work.program.ranks.len(), work.group.ranks().len());
            if needed != has {
                return refuse(format!("the plan is for {needed} ranks, its group has {has}"));
            }
            if let Some(rank) = work.group.ranks().iter().find(|rank| rank.index() >= ranks) {
                return refuse(format!("the plan is for rank {rank} as well, the job has {ranks} ranks"));
            }
        }
        let connections = works.iter().flat_map(Work::connections).collect();
        let digest = |work: &Work<'_>| work.digest.map_or_else(|| digest(work.program), str::to_owned);
        let digests = works.iter().map(digest).collect();
        Ok(Self { works, connections, digests })
    }

    pub(crate) fn works(&self) -> &[Work<'a>] {
        &self.works
    }

    pub(crate) fn connections(&self) -> &[Connection] {
        &self.connections
    }

    pub(crate) fn digests(&self) -> &[String] {
        &self.digests
    }

    /// The value that ranks compare before they move bytes. It is equal for equal programs in the same order.
    pub(crate) fn digest(&self) -> String {
        self.digests.join("+")
    }

    /// The works in which a rank of the job takes part: the index of the work, and the rank's number in it.
    pub(crate) fn local_ranks(&self, rank: Rank) -> impl Iterator<Item = (usize, Rank)> {
        let works = self.works.iter().enumerate();
        works.filter_map(move |(index, work)| Some((index, work.group.number(rank)?)))
    }

    /// The layout of the shared memory, for each work and for all works. Only connections within a machine get rings.
    ///
    /// # Errors
    /// [`RunError::TooManyConnections`] if the shared memory is too small; those of [`Geometry::new`].
    pub(crate) fn arenas(&self, segment: &Segment, options: &ExecutionOptions) -> RunResult<(Vec<Arena>, Arena)> {
        // With the lanes of all machines: in a local launch, ranks with different `hosts` share one memory.
        let is_ring = |lane: &Connection| !options.hosts.apart(lane.from, lane.to);
        let rings: Vec<bool> = self.connections.iter().map(is_ring).collect();
        let flags = |work: &Work<'_>| if options.emulation.is_some() { transfer_count(work.program) } else { 0 };
        let mut least = 0;
        for work in &self.works {
            // Adds room for the words before messages.
            least = match work.backlog(work.tiles(options))? {
                0 => least,
                backlog => least.max(backlog + 4096),
            };
        }
        // Senders that may wait for their receivers offer large messages, so short rings are enough.
        let offers = options.emulation.is_none() && least == 0;
        let most = if offers { options.ring_bytes.min(ring::SHORT) } else { options.ring_bytes.max(least) };
        let arena = Arena::lay_out(segment.room(), &rings, [least, most], self.works.iter().map(flags).sum())?;
        let (mut lane, mut flag) = (0, 0);
        let share = |work: &Work<'_>| {
            let (lanes, own) = (work.program.connections.len(), flags(work));
            let share = arena.share(lane..lane + lanes, flag..flag + own);
            (lane, flag) = (lane + lanes, flag + own);
            share
        };
        Ok((self.works.iter().map(share).collect(), arena))
    }
}
