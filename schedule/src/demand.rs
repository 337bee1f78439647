//! What must move: a request and the chunks that follow from it.
//!
//! The principal type is [`Demand`]. For every standard collective the chunks are a function of the
//! [`Request`] alone, in a fixed order, so a schedule read from a file is always re-expressed over the demand
//! derived here; a file cannot redefine what its collective means.
//!
//! | collective | chunk ids (k members, C per rank, m = index of a member, c < C) |
//! |---|---|
//! | allgather, gather | `m·C + c`, held by member m |
//! | reducescatter | `m·C + c`, wanted by member m |
//! | scatter | `m·C + c`, wanted by member m, held by the root |
//! | allreduce | `0 .. k·C` |
//! | alltoall | pairs (source, destination) ascending without the self pairs, C each |
//! | broadcast, reduce | `0 .. C` |
//! | sendrecv | `m·C + c`, from member m to the next |

use crate::{Collective, DemandError, ReduceOp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use topology::{Bytes, Rank};

/// The largest buffer, in bytes (one PiB): sizes stay exact as `f64`.
pub const MAX_SIZE: u64 = 1 << 50;
/// The most chunks a demand may have.
pub const MAX_CHUNKS: usize = 1 << 24;

/// The id of a chunk: its position in [`Demand::chunks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// The id as an index into a dense table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An ascending set of ranks, cheap to clone (a thousand chunks wanted by everybody share one).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankSet(Arc<[Rank]>);

impl RankSet {
    /// The ranks `0..ranks`.
    pub fn all(ranks: usize) -> Self {
        (0..ranks).map(Rank::from_index).collect()
    }

    /// Just one rank.
    pub fn one(rank: Rank) -> Self {
        Self(Arc::new([rank]))
    }
}

impl FromIterator<Rank> for RankSet {
    /// Sorts and removes repetitions.
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks.into())
    }
}

impl RankSet {
    /// Whether `rank` is in the set (binary search).
    pub fn has(&self, rank: Rank) -> bool {
        self.0.binary_search(&rank).is_ok()
    }
}

impl fmt::Display for RankSet {
    /// Runs as ranges: `0-3,6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.0.chunk_by(|a, b| a.0 + 1 == b.0).enumerate() {
            let (first, last) = (run[0], run[run.len() - 1]);
            let comma = if index > 0 { "," } else { "" };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl Deref for RankSet {
    type Target = [Rank];
    fn deref(&self) -> &[Rank] {
        &self.0
    }
}

/// What a user asks for. [`Demand::new`] checks it and derives the chunks.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// The operation.
    pub collective: Collective,
    /// How values combine; `None` where nothing is reduced.
    pub op: Option<ReduceOp>,
    /// The special member of rooted collectives, else `None`.
    pub root: Option<Rank>,
    /// How many ranks the topology has.
    pub ranks: usize,
    /// Who takes part.
    pub members: RankSet,
    /// The size in nccl-tests' sense (design page 2), in bytes.
    pub size_bytes: u64,
    /// C: chunks per rank (per ordered pair for alltoall).
    pub chunks_per_rank: u32,
}

impl Request {
    /// A request over all ranks, with root 0 and sum where the collective needs them.
    pub fn new(collective: Collective, ranks: usize, size_bytes: u64) -> Self {
        Self {
            collective,
            op: collective.combines().then_some(ReduceOp::Sum),
            root: collective.is_rooted().then_some(Rank(0)),
            ranks,
            members: RankSet::all(ranks.min(topology::MAX_RANKS)),
            size_bytes,
            chunks_per_rank: 1,
        }
    }

    /// The same request cut into `chunks` per rank.
    #[must_use]
    pub fn with_chunks(mut self, chunks: u32) -> Self {
        self.chunks_per_rank = chunks;
        self
    }

    /// Into how many equal parts the size is cut; a chunk is one part.
    pub fn parts(&self) -> u64 {
        let per_rank = u64::from(self.chunks_per_rank);
        match self.collective {
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv | Collective::Custom => per_rank,
            _ => per_rank * self.members.len() as u64,
        }
    }

    /// How many chunks a standard collective has; nothing is allocated to find out.
    pub fn chunk_count(&self) -> u64 {
        let k = self.members.len() as u64;
        let blocks = match self.collective {
            Collective::Broadcast | Collective::Reduce => 1,
            Collective::AllToAll => k * k.saturating_sub(1),
            _ => k,
        };
        blocks.saturating_mul(u64::from(self.chunks_per_rank))
    }

    /// The bytes of one chunk; fractional where the size does not divide.
    pub fn chunk_bytes(&self) -> Bytes {
        Bytes(self.size_bytes as f64 / self.parts().max(1) as f64)
    }
}

/// A piece of data that moves as one.
#[derive(Clone, PartialEq, Debug)]
pub struct Chunk {
    /// Who starts with it; for a combining chunk, who contributes a partial value.
    pub holders: RankSet,
    /// Who must end with it, those that start with it included.
    pub wanted_by: RankSet,
    /// Whether the holders' values are reduced into one.
    pub combine: bool,
    /// Its size where that differs from the demand's `chunk_bytes` (alltoallv, custom).
    pub bytes: Option<Bytes>,
}

/// What must move.
#[derive(Clone, PartialEq, Debug)]
pub struct Demand {
    request: Request,
    chunk_bytes: Bytes,
    chunks: Vec<Chunk>,
}

impl Demand {
    /// Checks a request for a standard collective and derives its chunks.
    ///
    /// # Errors
    /// Any [`DemandError`]; `NeedsChunks` for `alltoallv` and `custom`, which [`Self::from_chunks`] takes.
    pub fn new(request: Request) -> Result<Self, DemandError> {
        check(&request)?;
        let chunks = standard_chunks(&request)?;
        Ok(Self { chunk_bytes: request.chunk_bytes(), request, chunks })
    }

    /// A demand whose chunks are listed one by one (`alltoallv`, `custom`).
    ///
    /// # Errors
    /// Any [`DemandError`] about the request, or about a chunk without holders or with unknown ranks.
    pub fn from_chunks(request: Request, chunks: Vec<Chunk>) -> Result<Self, DemandError> {
        check(&request)?;
        check_count(chunks.len() as u64)?;
        for (index, chunk) in chunks.iter().enumerate() {
            let unknown = chunk.holders.iter().chain(chunk.wanted_by.iter()).find(|r| r.index() >= request.ranks);
            if let Some(&rank) = unknown {
                return Err(DemandError::UnknownRank { rank, ranks: request.ranks });
            }
            if chunk.holders.is_empty() {
                return Err(DemandError::NoHolder { chunk: index });
            }
            if let Some(bytes) = chunk.bytes.filter(|bytes| !(0.0..=MAX_SIZE as f64).contains(&bytes.0)) {
                return Err(DemandError::ChunkSize { chunk: index, bytes });
            }
        }
        Ok(Self { chunk_bytes: request.chunk_bytes(), request, chunks })
    }

    /// A demand for `alltoallv`: `matrix[i][j]` bytes from member i to member j, cut into C chunks each.
    ///
    /// # Errors
    /// Any [`DemandError`]; `BadMatrix` unless the matrix is square over the members.
    pub fn from_matrix(request: Request, matrix: &[Vec<u64>]) -> Result<Self, DemandError> {
        let members = request.members.clone();
        if matrix.len() != members.len() || matrix.iter().any(|row| row.len() != members.len()) {
            return Err(DemandError::BadMatrix { members: members.len() });
        }
        check(&request)?;
        let per_pair = request.chunks_per_rank;
        check_count((members.len() as u64).pow(2).saturating_mul(u64::from(per_pair)))?;
        let mut chunks = Vec::new();
        for (&from, row) in members.iter().zip(matrix) {
            for (&to, &bytes) in members.iter().zip(row) {
                if from == to || bytes == 0 {
                    continue;
                }
                let bytes = Some(Bytes(bytes as f64 / f64::from(per_pair)));
                let (holders, wanted_by) = (RankSet::one(from), RankSet::one(to));
                let chunk = Chunk { holders, wanted_by, combine: false, bytes };
                chunks.extend(std::iter::repeat_n(chunk, per_pair as usize));
            }
        }
        Self::from_chunks(request, chunks)
    }

    /// What was asked.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The chunks; a chunk's id is its position.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// All chunk ids, ascending.
    pub fn chunk_ids(&self) -> impl DoubleEndedIterator<Item = ChunkId> + ExactSizeIterator + use<> {
        (0..self.chunks.len() as u32).map(ChunkId)
    }

    /// One chunk.
    pub fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.index()]
    }

    /// The size of chunks that do not say otherwise.
    pub fn chunk_bytes(&self) -> Bytes {
        self.chunk_bytes
    }

    /// The same demand with chunks rounded up to `bytes` (a file may round up to the next whole byte).
    ///
    /// # Errors
    /// `ChunkBytes` unless `bytes` is in `[quotient, quotient + 1]`.
    pub fn with_chunk_bytes(mut self, bytes: Bytes) -> Result<Self, DemandError> {
        let quotient = self.request.chunk_bytes();
        let tolerance = 1e-7 * quotient.0.max(1.0);
        if !(bytes.0 >= quotient.0 - tolerance && bytes.0 <= quotient.0 + 1.0 + tolerance) {
            return Err(DemandError::ChunkBytes { given: bytes, quotient });
        }
        self.chunk_bytes = bytes;
        Ok(self)
    }

    /// The size of one chunk.
    pub fn bytes_of(&self, id: ChunkId) -> Bytes {
        self.chunk(id).bytes.unwrap_or(self.chunk_bytes)
    }

    /// The size of a message that carries `chunks`.
    pub fn message_bytes(&self, chunks: &[ChunkId]) -> Bytes {
        chunks.iter().map(|&id| self.bytes_of(id)).sum()
    }
}

fn check_count(count: u64) -> Result<(), DemandError> {
    if count > MAX_CHUNKS as u64 {
        return Err(DemandError::TooManyChunks { count, limit: MAX_CHUNKS as u64 });
    }
    Ok(())
}

fn check(request: &Request) -> Result<(), DemandError> {
    let Request { collective, op, root, ranks, members, size_bytes, chunks_per_rank } = request;
    if *ranks > topology::MAX_RANKS {
        return Err(DemandError::TooManyRanks { ranks: *ranks, limit: topology::MAX_RANKS });
    }
    if let Some(&rank) = members.iter().find(|rank| rank.index() >= *ranks) {
        return Err(DemandError::UnknownRank { rank, ranks: *ranks });
    }
    if members.is_empty() {
        return Err(DemandError::NoMembers);
    }
    match (collective.is_rooted(), root) {
        (true, None) => return Err(DemandError::Root { collective: *collective, needed: true }),
        (false, Some(_)) => return Err(DemandError::Root { collective: *collective, needed: false }),
        (true, Some(root)) if !members.has(*root) => return Err(DemandError::RootNotAMember { root: *root }),
        _ => {}
    }
    if *collective != Collective::Custom && collective.combines() != op.is_some() {
        return Err(DemandError::Op { collective: *collective, needed: collective.combines() });
    }
    if *size_bytes > MAX_SIZE {
        return Err(DemandError::TooLarge { size_bytes: *size_bytes, limit: MAX_SIZE });
    }
    if *chunks_per_rank == 0 {
        return Err(DemandError::NoChunks);
    }
    Ok(())
}

fn standard_chunks(request: &Request) -> Result<Vec<Chunk>, DemandError> {
    let members = &request.members;
    let (k, per_rank) = (members.len(), request.chunks_per_rank as usize);
    check_count(request.chunk_count())?;
    let root = || RankSet::one(request.root.unwrap_or(members[0]));
    let each = |make: &dyn Fn(usize) -> (RankSet, RankSet)| {
        (0..k).map(make).map(|(holders, wanted_by)| block(holders, wanted_by, request)).collect::<Vec<_>>()
    };
    let one = |m: usize| RankSet::one(members[m]);
    let blocks = match request.collective {
        Collective::AllGather => each(&|m| (one(m), members.clone())),
        Collective::Gather => each(&|m| (one(m), root())),
        Collective::Scatter => each(&|m| (root(), one(m))),
        Collective::ReduceScatter => each(&|m| (members.clone(), one(m))),
        Collective::AllReduce => each(&|_| (members.clone(), members.clone())),
        Collective::SendRecv => each(&|m| (one(m), one((m + 1) % k))),
        Collective::Broadcast => vec![block(root(), members.clone(), request)],
        Collective::Reduce => vec![block(members.clone(), root(), request)],
        Collective::AllToAll => {
            let pairs = (0..k).flat_map(|from| (0..k).filter(move |&to| to != from).map(move |to| (from, to)));
            pairs.map(|(from, to)| block(one(from), one(to), request)).collect()
        }
        Collective::AllToAllV | Collective::Custom => {
            return Err(DemandError::NeedsChunks { collective: request.collective });
        }
    };
    Ok(blocks.into_iter().flat_map(|chunk| std::iter::repeat_n(chunk, per_rank)).collect())
}

fn block(holders: RankSet, wanted_by: RankSet, request: &Request) -> Chunk {
    Chunk { holders, wanted_by, combine: request.collective.combines(), bytes: None }
}
