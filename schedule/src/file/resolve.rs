//! From the text of a file to a schedule with the chunks of its collective.
//!
//! The chunk ids of a file are arbitrary. A chunk of the file is matched with one of the demand that has the same
//! holders, receivers and `combine`. Chunks in which these are equal are interchangeable; they are matched in order of
//! their ids.

use super::layout::{ChunkEntry, File, GeneratorEntry, SymmetryEntry, TransferEntry};
use super::{AnyScheduleFile, CompressedFile, ScheduleFile};
use crate::TopologyRef;
use crate::Violation;
use crate::tolerance::differs;
use crate::{
    Chunk, ChunkId, Demand, DemandError, Findings, Generator, LowerBound, RankSet, Request, Schedule, Transfer,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use topology::{Bytes, Embedded, Micros, Rank};

/// A request that is not valid for its collective.
pub(super) struct RequestFault {
    /// The key that is wrong.
    pub(super) key: &'static str,
    pub(super) reason: String,
}

impl From<DemandError> for RequestFault {
    fn from(error: DemandError) -> Self {
        let key = match error {
            DemandError::TooManyRanks { .. } => "ranks",
            DemandError::UnknownRank { .. } | DemandError::NoMembers => "members",
            DemandError::Root { .. } | DemandError::RootNotAMember { .. } => "root",
            DemandError::Op { .. } | DemandError::UnequalOps { .. } => "op",
            DemandError::TooLarge { .. } => "size_bytes",
            DemandError::NoChunks | DemandError::TooManyChunks { .. } | DemandError::TooManyPlaces { .. } => {
                "chunks_per_rank"
            }
            DemandError::NoHolder { .. }
            | DemandError::ChunkSize { .. }
            | DemandError::Release { .. }
            | DemandError::NotAMember { .. }
            | DemandError::NotOnePair { .. }
            | DemandError::PairChunks { .. }
            | DemandError::UnequalPair { .. } => "chunks",
            DemandError::ChunkBytes { .. } => "chunk_bytes",
            DemandError::NeedsChunks { .. } | DemandError::BadMatrix { .. } => "collective",
        };
        Self { key, reason: error.to_string() }
    }
}

pub(super) fn resolve(file: File) -> Result<AnyScheduleFile, RequestFault> {
    check_stated(&file)?;
    let request = request(&file)?;
    let File { topology, chunk_bytes, chunks, symmetry, transfers, makespan_us, gap, produced_by, .. } = file;
    let bound = file.lower_bound_us.map(|value| LowerBound { value, name: file.bound.unwrap_or_default() });
    let mut mismatches = Findings::default();
    let (demand, names) = match (chunks, &symmetry) {
        (Some(chunks), _) => stated(request, chunks, chunk_bytes, &mut mismatches)?,
        (None, Some(symmetry)) => (implied(request, symmetry, chunk_bytes, &mut mismatches)?, None),
        (None, None) => {
            return Err(RequestFault { key: "format", reason: "missing field `chunks`".to_owned() });
        }
    };
    let count = demand.chunks().len();
    let transfers = transfers.into_iter().map(|entry| transfer(entry, names.as_ref(), count)).collect();
    let own = topology.embedded.map(|Embedded(topology)| Arc::new(topology));
    let topology = TopologyRef { name: topology.name, digest: topology.digest };
    let schedule = Schedule { topology, demand: Arc::new(demand), transfers, bound, produced_by };
    check_answer(&schedule, makespan_us, gap, &mut mismatches);
    let plain = ScheduleFile { schedule, topology: own, mismatches };
    Ok(match symmetry {
        None => AnyScheduleFile::Plain(plain),
        Some(symmetry) => {
            let generators = generators(symmetry, names.as_ref(), count);
            AnyScheduleFile::Compressed(CompressedFile { base: plain, generators })
        }
    })
}

/// The demand of a file that lists its chunks, and the file's ids of these chunks.
fn stated(
    request: Request,
    mut chunks: Vec<ChunkEntry>,
    chunk_bytes: Bytes,
    mismatches: &mut Findings<Violation>,
) -> Result<(Demand, Option<Names>), RequestFault> {
    chunks.sort_unstable_by_key(|chunk| chunk.id);
    let (demand, names) = match request.collective {
        collective if collective.is_listed() => listed(request, chunks, chunk_bytes, mismatches)?,
        _ => {
            check_length(&request, chunks.len())?;
            check_releases(&chunks)?;
            let demand = sized(Demand::new(request)?, chunk_bytes, mismatches);
            let names = matched(&demand, &chunks, mismatches);
            (demand, names)
        }
    };
    Ok((demand, Some(names)))
}

/// The demand of a compressed file of a standard collective, whose chunk ids are those of the demand.
fn implied(
    request: Request,
    symmetry: &SymmetryEntry,
    chunk_bytes: Bytes,
    mismatches: &mut Findings<Violation>,
) -> Result<Demand, RequestFault> {
    // A short file must not cause millions of chunks: each generator lists the image of every chunk.
    let expected = request.chunk_count();
    let listed = symmetry.generators.first().map_or(0, |it| it.chunks.len());
    if expected != listed as u64 {
        let reason = format!("a generator has images of {listed} chunks, but the collective has {expected}");
        return Err(RequestFault { key: "symmetry", reason });
    }
    Ok(sized(Demand::new(request)?, chunk_bytes, mismatches))
}

/// Generators over the demand's chunks. A file that lists its chunks uses its own ids here as well.
fn generators(symmetry: SymmetryEntry, names: Option<&Names>, chunks: usize) -> Vec<Generator> {
    let generator = |GeneratorEntry { ranks, links, chunks: images }| {
        let Some(names) = names else { return Generator { ranks, links, chunks: images } };
        let renamed = |id: u64| name(Some(names), id, chunks);
        // The image at a position is that of the file's chunk with this position, so it moves to that chunk's position
        // in the demand.
        let mut own = vec![ChunkId(u32::MAX); chunks];
        for ((_, chunk), image) in names.iter().zip(&images) {
            own[chunk.index()] = renamed(u64::from(image.0));
        }
        own.truncate(if images.len() == names.len() { chunks } else { 0 });
        Generator { ranks, links, chunks: own }
    };
    symmetry.generators.into_iter().map(generator).collect()
}

fn request(file: &File) -> Result<Request, DemandError> {
    // Checked here, because the list of all members may be needed.
    if file.ranks > topology::MAX_RANKS {
        return Err(DemandError::TooManyRanks { ranks: file.ranks, limit: topology::MAX_RANKS });
    }
    Ok(Request {
        collective: file.collective,
        op: file.op,
        root: file.root,
        ranks: file.ranks,
        members: match &file.members {
            Some(members) => members.iter().copied().collect(),
            None => RankSet::all(file.ranks),
        },
        size_bytes: file.size_bytes,
        chunks_per_rank: file.chunks_per_rank,
    })
}

/// Checks single values of the file against the format.
fn check_stated(file: &File) -> Result<(), RequestFault> {
    let ascending = |members: &Vec<topology::Rank>| members.windows(2).all(|pair| pair[0] < pair[1]);
    if !file.members.as_ref().is_none_or(ascending) {
        return Err(RequestFault { key: "members", reason: "members ascend, each once".to_owned() });
    }
    match file.lower_bound_us {
        Some(bound) if bound < Micros::ZERO => {
            Err(RequestFault { key: "lower_bound_us", reason: format!("a bound is a time ≥ 0, not {bound}") })
        }
        _ => Ok(()),
    }
}

/// The contents of a standard collective are there from the beginning.
fn check_releases(chunks: &[ChunkEntry]) -> Result<(), RequestFault> {
    match chunks.iter().find(|chunk| chunk.release_us.is_some_and(|release| release != Micros::ZERO)) {
        Some(ChunkEntry { id, .. }) => {
            let reason = format!("chunk {id} has a release_us, which only chunks of a custom collective have");
            Err(RequestFault { key: "chunks", reason })
        }
        None => Ok(()),
    }
}

/// A file that lists few chunks must not cause millions of them: it would list them all if they were meant.
fn check_length(request: &Request, listed: usize) -> Result<(), RequestFault> {
    const UNLISTED: u64 = 1 << 16;
    let expected = request.chunk_count();
    if expected > 4 * listed as u64 + UNLISTED {
        let reason = format!("the file lists {listed} chunks, but with this many per rank there are {expected}");
        return Err(RequestFault { key: "chunks_per_rank", reason });
    }
    Ok(())
}

/// The demand with the file's size of a chunk, where that is an acceptable rounding.
fn sized(demand: Demand, stated: Bytes, mismatches: &mut Findings<Violation>) -> Demand {
    let expected = demand.chunk_bytes();
    demand.clone().with_chunk_bytes(stated).unwrap_or_else(|_| {
        mismatches.push(Violation::WrongChunkBytes { id: None, stated, expected });
        demand
    })
}

/// The demand's chunk for each id of the file.
type Names = BTreeMap<u64, ChunkId>;

/// The demand of a file whose chunks define it (`alltoallv`, `custom`), if its collective allows them.
fn listed(
    request: Request,
    chunks: Vec<ChunkEntry>,
    chunk_bytes: Bytes,
    mismatches: &mut Findings<Violation>,
) -> Result<(Demand, Names), DemandError> {
    let names = chunks.iter().zip(0..).map(|(chunk, position)| (chunk.id, ChunkId(position))).collect();
    let stated = request.size_bytes;
    // Where the size follows from the chunks, the sizes of chunks cannot follow from it.
    let common = request.collective.lists_pairs().then_some(chunk_bytes);
    let chunks = chunks.into_iter().map(|entry| {
        let ChunkEntry { holders, wanted_by, combine, bytes, release_us, .. } = entry;
        let (holders, wanted_by) = (holders.into_iter().collect(), wanted_by.into_iter().collect());
        Chunk { holders, wanted_by, combine, bytes: bytes.or(common), release: release_us.unwrap_or(Micros::ZERO) }
    });
    let demand = Demand::listed(request, chunks.collect())?;
    let expected = demand.request().size_bytes;
    if stated != expected {
        mismatches.push(Violation::WrongSize { stated, expected });
    }
    Ok((sized(demand, chunk_bytes, mismatches), names))
}

/// Matches the file's chunks, which ascend by id, to those of the demand.
fn matched(demand: &Demand, entries: &[ChunkEntry], mismatches: &mut Findings<Violation>) -> Names {
    let mut classes = BTreeMap::<(RankSet, RankSet, bool), VecDeque<ChunkId>>::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let class = (chunk.holders.clone(), chunk.wanted_by.clone(), chunk.combine);
        classes.entry(class).or_default().push_back(id);
    }
    let mut names = Names::new();
    let mut extra = Vec::new();
    let mut own_shares = own_shares(demand.request());
    for entry in entries {
        let ranks = |ranks: &[topology::Rank]| ranks.iter().copied().collect::<RankSet>();
        let class = (ranks(&entry.holders), ranks(&entry.wanted_by), entry.combine);
        match classes.get_mut(&class).and_then(VecDeque::pop_front) {
            Some(id) => drop(names.insert(entry.id, id)),
            None if class.0 == class.1 && takes_one(&mut own_shares, &class.0) => {}
            None => extra.push((entry.id, class)),
        }
        if let Some(stated) = entry.bytes.filter(|bytes| differs(Micros(bytes.0), Micros(demand.chunk_bytes().0))) {
            let expected = demand.chunk_bytes();
            mismatches.push(Violation::WrongChunkBytes { id: Some(entry.id), stated, expected });
        }
    }
    let more = extra.len().saturating_sub(1);
    mismatches.extend(extra.into_iter().next().map(|(id, (holders, wanted_by, _))| Violation::ExtraChunk {
        id,
        holders,
        wanted_by,
        more,
    }));
    let missing = classes.values().map(VecDeque::len).sum::<usize>();
    let first = classes.into_iter().filter_map(|(class, ids)| Some((*ids.front()?, class))).min();
    mismatches.extend(first.map(|(chunk, (holders, wanted_by, _))| Violation::MissingChunk {
        chunk,
        holders,
        wanted_by,
        more: missing - 1,
    }));
    names
}

/// How many chunks each member keeps for itself. They never move, so a file may list them or not.
fn own_shares(request: &Request) -> BTreeMap<Rank, u32> {
    match request.collective.has_own_blocks() {
        true => request.members.iter().map(|&member| (member, request.chunks_per_rank)).collect(),
        false => BTreeMap::new(),
    }
}

/// Takes one of the chunks that a rank keeps for itself, if there is one left.
fn takes_one(own_shares: &mut BTreeMap<Rank, u32>, ranks: &[Rank]) -> bool {
    let [rank] = ranks else { return false };
    own_shares.get_mut(rank).and_then(|left| left.checked_sub(1).map(|less| *left = less)).is_some()
}

/// The demand's chunk for an id of the file. An id that the file does not define gives a number at or beyond the last
/// chunk.
fn name(names: Option<&Names>, id: u64, chunks: usize) -> ChunkId {
    let as_is = u32::try_from(id).unwrap_or(u32::MAX);
    match names {
        None => ChunkId(as_is),
        Some(names) => names.get(&id).copied().unwrap_or(ChunkId(as_is.max(chunks as u32))),
    }
}

fn transfer(entry: TransferEntry, names: Option<&Names>, count: usize) -> Transfer {
    let TransferEntry { chunks, from, to, link, kind, start_us: start, end_us: end } = entry;
    let chunks = chunks.into_iter().map(|id| name(names, id, count)).collect();
    Transfer { chunks, from, to, link, kind, start, end }
}

fn check_answer(schedule: &Schedule, stated: Micros, gap: Option<f64>, mismatches: &mut Findings<Violation>) {
    let actual = schedule.makespan();
    if differs(stated, actual) {
        mismatches.push(Violation::WrongMakespan { stated, actual });
    }
    let Some(stated) = gap else { return };
    let actual = schedule.gap();
    let wrong = match actual {
        // The ratios are compared, not the gaps: one part in 10⁷ of a gap near zero is no tolerance at all.
        Some(actual) => differs(Micros(1.0 + stated), Micros(1.0 + actual)),
        // With a bound of zero, every gap is accepted.
        None => schedule.bound.is_none(),
    };
    if wrong {
        mismatches.push(Violation::WrongGap { stated, actual });
    }
}
