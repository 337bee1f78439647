//! What must move: a request and the chunks that follow from it.
//!
//! The principal type is [`Demand`]. For every standard collective the chunks are a function of the [`Request`] alone,
//! in a fixed order. A schedule from a file is always expressed with the chunks derived here, so a file cannot redefine
//! its collective.
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

mod listed;

use crate::{Chunk, ChunkId, Collective, DemandError, GroupRequest, MAX_CHUNKS, RankSet, ReduceOp, Request};
use topology::{Bytes, Micros, Rank};

/// The relative error that a number of bytes in a file may have. Times have a tolerance of their own, the verifier's.
const BYTES_TOLERANCE: f64 = 1e-7;

/// The most chunks of a listed demand, each counted at every rank that holds or wants it. No plan of so many deliveries is written
/// out, and only standard collectives are compressed.
const MOST_PLACES: u64 = 1 << 27;

/// What must move.
#[derive(Clone, Debug)]
pub struct Demand {
    request: Request,
    chunk_bytes: Bytes,
    /// Whether all chunks have the common size; kept because sizes are asked for very often.
    uniform: bool,
    /// Whether the chunks follow from the request alone.
    standard: bool,
    /// Whether some chunk is released after time zero; kept for the same reason.
    starts_later: bool,
    chunks: Vec<Chunk>,
}

impl PartialEq for Demand {
    /// Wherever the chunks came from.
    fn eq(&self, other: &Self) -> bool {
        (&self.request, self.chunk_bytes, &self.chunks) == (&other.request, other.chunk_bytes, &other.chunks)
    }
}

impl Demand {
    /// Whether every chunk has at most one destination.
    pub fn is_unicast(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.lacking().nth(1).is_none())
    }

    /// Whether any chunk is a sum.
    pub fn has_sums(&self) -> bool {
        self.chunks.iter().any(Chunk::is_sum)
    }

    /// Checks a request for a standard collective and derives its chunks.
    ///
    /// # Errors
    /// Any [`DemandError`]; `NeedsChunks` for `alltoallv` and `custom`, which [`Self::listed`] takes.
    pub fn new(request: Request) -> Result<Self, DemandError> {
        request.check()?;
        let chunks = standard_chunks(&request)?;
        let chunk_bytes = request.chunk_bytes();
        Ok(Self { chunk_bytes, request, uniform: true, standard: true, starts_later: false, chunks })
    }

    /// A demand whose chunks are listed one by one (`alltoallv`, `custom`). The chunks must be allowed for the
    /// collective. Where all of them have their own sizes, the request's size follows from them.
    ///
    /// # Errors
    /// Any [`DemandError`].
    pub fn listed(request: Request, chunks: Vec<Chunk>) -> Result<Self, DemandError> {
        let count = chunks.iter().map(|chunk| (chunk.holders.len() + chunk.wanted_by.len()) as u64).sum();
        if count > MOST_PLACES {
            return Err(DemandError::TooManyPlaces { count, limit: MOST_PLACES });
        }
        let mut demand = Self::from_chunks(request, chunks)?;
        listed::check_pairs(&demand.request, &demand.chunks)?;
        if let Some(size_bytes) = listed::size(&demand.request, &demand.chunks)? {
            demand.request.size_bytes = size_bytes;
            demand.chunk_bytes = demand.request.chunk_bytes();
        }
        Ok(demand)
    }

    /// A demand derived from another one, with chunks listed one by one; its size is that of the request.
    ///
    /// # Errors
    /// Any [`DemandError`] about the request, or about a chunk that is not allowed for its collective.
    pub fn from_chunks(request: Request, chunks: Vec<Chunk>) -> Result<Self, DemandError> {
        request.check()?;
        check_count(chunks.len() as u64)?;
        listed::check(&request, &chunks)?;
        let uniform = chunks.iter().all(|chunk| chunk.bytes.is_none());
        let starts_later = chunks.iter().any(|chunk| chunk.release > Micros::ZERO);
        Ok(Self { chunk_bytes: request.chunk_bytes(), request, uniform, standard: false, starts_later, chunks })
    }

    /// A demand for `alltoallv`: `matrix[i][j]` bytes from member i to member j, cut into C chunks each. The bytes that
    /// a member keeps for itself are chunks as well; they do not move, but their memory is part of the buffers. The
    /// size of the request follows from the matrix: the most that a member sends.
    ///
    /// # Errors
    /// Any [`DemandError`]; `BadMatrix` unless the matrix is square over the members.
    pub fn from_matrix(request: Request, matrix: &[Vec<u64>]) -> Result<Self, DemandError> {
        let members = request.members.clone();
        if matrix.len() != members.len() || matrix.iter().any(|row| row.len() != members.len()) {
            return Err(DemandError::BadMatrix { members: members.len() });
        }
        request.check()?;
        let per_pair = request.chunks_per_rank;
        check_count((members.len() as u64).pow(2).saturating_mul(u64::from(per_pair)))?;
        let mut chunks = Vec::new();
        for (&from, row) in members.iter().zip(matrix) {
            for (&to, &bytes) in members.iter().zip(row) {
                if bytes == 0 {
                    continue;
                }
                let bytes = Some(Bytes(bytes as f64 / f64::from(per_pair)));
                let (holders, wanted_by) = (RankSet::one(from), RankSet::one(to));
                let chunk = Chunk { holders, wanted_by, combine: false, bytes, release: Micros::ZERO };
                chunks.extend(std::iter::repeat_n(chunk, per_pair as usize));
            }
        }
        Self::listed(request, chunks)
    }

    /// The demand of several requests on the same ranks at once: a custom collective with the chunks of all in turn, each
    /// released at the start of its group.
    ///
    /// # Errors
    /// Any [`DemandError`] about a request or a start; `NoMembers` without requests, `UnequalOps` if they reduce in
    /// different ways.
    pub fn joint(groups: &[GroupRequest]) -> Result<Self, DemandError> {
        let first = &groups.first().ok_or(DemandError::NoMembers)?.request;
        let mut ops = groups.iter().filter_map(|group| group.request.op);
        let op = ops.next();
        if let (Some(one), Some(other)) = (op, ops.find(|&other| Some(other) != op)) {
            return Err(DemandError::UnequalOps { one, other });
        }
        let mut chunks = Vec::new();
        for GroupRequest { request, start } in groups {
            let Self { chunk_bytes, chunks: own, .. } = Self::new(request.clone())?;
            let release = *start;
            chunks.extend(own.into_iter().map(|chunk| Chunk { bytes: Some(chunk_bytes), release, ..chunk }));
            check_count(chunks.len() as u64)?;
        }
        let members = groups.iter().flat_map(|group| group.request.members.iter().copied()).collect();
        Self::listed(Request { collective: Collective::Custom, op, root: None, members, ..first.clone() }, chunks)
    }

    /// The same demand with another reduction: a schedule serves every associative and commutative one.
    ///
    /// # Errors
    /// `Op` where nothing is reduced.
    pub fn with_op(mut self, op: ReduceOp) -> Result<Self, DemandError> {
        let collective = self.request.collective;
        if self.request.op.is_none() {
            return Err(DemandError::Op { collective, needed: false });
        }
        self.request.op = Some(op);
        Ok(self)
    }

    /// Whether some chunk is released after time zero.
    pub fn starts_later(&self) -> bool {
        self.starts_later
    }

    /// The same demand with all contents there from the beginning. Every schedule of the one is a schedule of the other,
    /// except for its times.
    #[must_use]
    pub fn without_starts(mut self) -> Self {
        self.chunks.iter_mut().for_each(|chunk| chunk.release = Micros::ZERO);
        self.starts_later = false;
        self
    }

    /// The earliest time at which a message with these chunks may leave, wherever it leaves from.
    pub fn release(&self, chunks: &[ChunkId]) -> Micros {
        match self.starts_later {
            true => chunks.iter().map(|&id| self.chunk(id).release).fold(Micros::ZERO, Micros::max),
            false => Micros::ZERO,
        }
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
    #[inline]
    pub fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.index()]
    }

    /// For a standard AllToAll, the image of each chunk when rank r becomes `ranks[r]`, a renumbering of all ranks: chunk
    /// c from r to q becomes chunk c from `ranks[r]` to `ranks[q]`. There may be millions, so they are computed and not
    /// looked up. `None` for other demands, and where a member becomes another rank.
    pub fn renumbered_pairs(&self, ranks: &[Rank]) -> Option<Vec<ChunkId>> {
        let Request { collective, members, chunks_per_rank, .. } = &self.request;
        if *collective != Collective::AllToAll || !self.standard {
            return None;
        }
        let mut place_of = vec![None; ranks.len()];
        members.iter().enumerate().for_each(|(place, member)| place_of[member.index()] = Some(place));
        let image = |member: &Rank| place_of[ranks[member.index()].index()];
        let places: Vec<usize> = members.iter().map(image).collect::<Option<_>>()?;
        let per_pair = *chunks_per_rank as usize;
        let mut images = Vec::with_capacity(self.chunks.len());
        for (member, &from) in places.iter().enumerate() {
            for &to in places[..member].iter().chain(&places[member + 1..]) {
                // A member has no chunks for itself.
                let first = (from * (members.len() - 1) + to - usize::from(to > from)) * per_pair;
                images.extend((first..first + per_pair).map(|chunk| ChunkId(chunk as u32)));
            }
        }
        Some(images)
    }

    /// The size of chunks that have no size of their own.
    pub fn chunk_bytes(&self) -> Bytes {
        self.chunk_bytes
    }

    /// The same demand with chunks rounded up to `bytes` (a file may round up to the next whole byte).
    ///
    /// # Errors
    /// `ChunkBytes` unless `bytes` is in `[quotient, quotient + 1]`.
    pub fn with_chunk_bytes(mut self, bytes: Bytes) -> Result<Self, DemandError> {
        let quotient = self.request.chunk_bytes();
        let tolerance = BYTES_TOLERANCE * quotient.0.max(1.0);
        if !(bytes.0 >= quotient.0 - tolerance && bytes.0 <= quotient.0 + 1.0 + tolerance) {
            return Err(DemandError::ChunkBytes { given: bytes, quotient });
        }
        self.chunk_bytes = bytes;
        Ok(self)
    }

    /// The size of one chunk.
    #[inline]
    pub fn bytes_of(&self, id: ChunkId) -> Bytes {
        if self.uniform { self.chunk_bytes } else { self.chunk(id).bytes.unwrap_or(self.chunk_bytes) }
    }

    /// The size of a message that carries `chunks`.
    #[inline]
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
            // Millions of chunks share the sets of some thousand ranks.
            let sets: Vec<RankSet> = (0..k).map(one).collect();
            let pairs = (0..k).flat_map(|from| (0..k).filter(move |&to| to != from).map(move |to| (from, to)));
            pairs.map(|(from, to)| block(sets[from].clone(), sets[to].clone(), request)).collect()
        }
        Collective::AllToAllV | Collective::Custom => {
            return Err(DemandError::NeedsChunks { collective: request.collective });
        }
    };
    if per_rank == 1 {
        return Ok(blocks);
    }
    Ok(blocks.into_iter().flat_map(|chunk| std::iter::repeat_n(chunk, per_rank)).collect())
}

fn block(holders: RankSet, wanted_by: RankSet, request: &Request) -> Chunk {
    Chunk { holders, wanted_by, combine: request.collective.combines(), bytes: None, release: Micros::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_range() {
        let shown = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<RankSet>().to_string();
        assert_eq!(shown(&[]), "");
        assert_eq!(shown(&[4]), "4");
        assert_eq!(shown(&[8, 0, 1, 2, 5, 7]), "0-2,5,7-8");
    }
    use expect_test::{Expect, expect};

    fn request(collective: Collective, members: &[u32], chunks: u32) -> Request {
        let members: RankSet = members.iter().copied().map(Rank).collect();
        let root = collective.is_rooted().then_some(members[1]);
        Request { members, root, ..Request::new(collective, 6, 600).with_chunks(chunks) }
    }

    /// One line per chunk: holders, who wants it, bytes.
    fn check(demand: &Demand, expected: Expect) {
        let line = |id| {
            let Chunk { holders, wanted_by, combine, .. } = demand.chunk(id);
            let arrow = if *combine { "+>" } else { "->" };
            format!("{id}: {holders} {arrow} {wanted_by}, {}\n", demand.bytes_of(id))
        };
        expected.assert_eq(&demand.chunk_ids().map(line).collect::<String>());
    }

    #[test]
    fn pairs_move_as_their_ranks_do() {
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let exchange = |members: &[u32], chunks| Demand::new(request(Collective::AllToAll, members, chunks)).unwrap();
        for (members, renumbered) in
            [(&[0, 1, 2, 3, 4, 5][..], ranks(&[2, 3, 4, 5, 0, 1])), (&[1, 3, 4], ranks(&[0, 4, 2, 1, 3, 5]))]
        {
            let demand = exchange(members, 2);
            let images = demand.renumbered_pairs(&renumbered).unwrap();
            let place = |id: usize| (demand.chunks()[id].holders[0], demand.chunks()[id].wanted_by[0]);
            for (id, image) in images.iter().enumerate() {
                let (from, to) = place(id);
                assert_eq!(place(image.index()), (renumbered[from.index()], renumbered[to.index()]));
                assert_eq!(image.index() % 2, id % 2);
            }
        }
        let swapped = ranks(&[1, 0, 2, 3, 4, 5]);
        assert_eq!(exchange(&[1, 3, 4], 1).renumbered_pairs(&swapped), None, "a member becomes another rank");
        let gather = Demand::new(request(Collective::AllGather, &[0, 1], 1)).unwrap();
        assert_eq!(gather.renumbered_pairs(&swapped), None);
    }

    #[test]
    fn chunks_follow_from_the_request() {
        let standard = |collective, chunks| Demand::new(request(collective, &[1, 3, 4], chunks)).unwrap();
        check(
            &standard(Collective::AllGather, 2),
            expect![[r#"
            0: 1 -> 1,3-4, 100 B
            1: 1 -> 1,3-4, 100 B
            2: 3 -> 1,3-4, 100 B
            3: 3 -> 1,3-4, 100 B
            4: 4 -> 1,3-4, 100 B
            5: 4 -> 1,3-4, 100 B
        "#]],
        );
        check(
            &standard(Collective::Gather, 1),
            expect![[r#"
            0: 1 -> 3, 200 B
            1: 3 -> 3, 200 B
            2: 4 -> 3, 200 B
        "#]],
        );
        check(
            &standard(Collective::Scatter, 1),
            expect![[r#"
            0: 3 -> 1, 200 B
            1: 3 -> 3, 200 B
            2: 3 -> 4, 200 B
        "#]],
        );
        check(
            &standard(Collective::ReduceScatter, 1),
            expect![[r#"
            0: 1,3-4 +> 1, 200 B
            1: 1,3-4 +> 3, 200 B
            2: 1,3-4 +> 4, 200 B
        "#]],
        );
        check(
            &standard(Collective::AllReduce, 1),
            expect![[r#"
            0: 1,3-4 +> 1,3-4, 200 B
            1: 1,3-4 +> 1,3-4, 200 B
            2: 1,3-4 +> 1,3-4, 200 B
        "#]],
        );
        check(
            &standard(Collective::AllToAll, 1),
            expect![[r#"
            0: 1 -> 3, 200 B
            1: 1 -> 4, 200 B
            2: 3 -> 1, 200 B
            3: 3 -> 4, 200 B
            4: 4 -> 1, 200 B
            5: 4 -> 3, 200 B
        "#]],
        );
        check(
            &standard(Collective::Broadcast, 2),
            expect![[r#"
            0: 3 -> 1,3-4, 300 B
            1: 3 -> 1,3-4, 300 B
        "#]],
        );
        check(
            &standard(Collective::Reduce, 2),
            expect![[r#"
            0: 1,3-4 +> 3, 300 B
            1: 1,3-4 +> 3, 300 B
        "#]],
        );
        check(
            &standard(Collective::SendRecv, 1),
            expect![[r#"
            0: 1 -> 3, 600 B
            1: 3 -> 4, 600 B
            2: 4 -> 1, 600 B
        "#]],
        );
    }

    #[test]
    fn the_count_is_known_before_the_chunks() {
        for &collective in Collective::ALL {
            for members in [&[2][..], &[0, 5], &[1, 3, 4], &[0, 1, 2, 3, 4, 5]] {
                for chunks in [1, 3] {
                    let mut request = request(collective, &[0, 1], chunks);
                    request.members = members.iter().copied().map(Rank).collect();
                    request.root = request.root.map(|_| request.members[0]);
                    let expected = request.chunk_count();
                    if let Ok(demand) = Demand::new(request) {
                        assert_eq!(demand.chunks().len() as u64, expected, "{collective}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_matrix_gives_a_chunk_to_every_pair_that_sends() {
        let matrix = [vec![7, 10, 0], vec![0, 0, 3], vec![8, 0, 0]];
        check(
            &Demand::from_matrix(request(Collective::AllToAllV, &[1, 3, 4], 2), &matrix).unwrap(),
            expect![[r#"
            0: 1 -> 1, 3.5 B
            1: 1 -> 1, 3.5 B
            2: 1 -> 3, 5 B
            3: 1 -> 3, 5 B
            4: 3 -> 4, 1.5 B
            5: 3 -> 4, 1.5 B
            6: 4 -> 1, 4 B
            7: 4 -> 1, 4 B
        "#]],
        );
    }

    #[test]
    fn a_file_may_round_a_chunk_up_to_the_next_byte() {
        let demand = || Demand::new(request(Collective::AllGather, &[0, 1, 2, 3], 1).with_chunks(7)).unwrap();
        assert_eq!(demand().with_chunk_bytes(Bytes(22.0)).unwrap().chunk_bytes(), Bytes(22.0));
        for wrong in [21.0, 23.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(demand().with_chunk_bytes(Bytes(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_that_no_collective_answers() {
        let good = || request(Collective::AllGather, &[0, 1], 1);
        let check = |request: Request, expected: Expect| {
            expected.assert_eq(&Demand::new(request).unwrap_err().to_string());
        };
        check(
            Request { ranks: 1_000_000_000, ..good() },
            expect!["1000000000 ranks are more than the 131072 that are supported"],
        );
        check(
            Request { members: [Rank(9)].into_iter().collect(), ..good() },
            expect!["rank 9 does not exist; ranks are 0-5"],
        );
        check(
            Request { members: [].into_iter().collect(), ..good() },
            expect!["a collective needs at least one member"],
        );
        check(
            Request { size_bytes: 1_000_000_000_000_000_000, ..good() },
            expect!["1000000000000000000 bytes are more than the 1125899906842624 that are supported"],
        );
        check(Request { chunks_per_rank: 0, ..good() }, expect!["a rank's data is cut into at least one chunk"]);
        check(
            Request { chunks_per_rank: u32::MAX, ..good() },
            expect!["the request has 8589934590 chunks, more than the 16777216 that are supported"],
        );
        check(Request { op: Some(ReduceOp::Sum), ..good() }, expect!["allgather reduces nothing, so it takes no op"]);
        check(
            Request { op: None, ..request(Collective::AllReduce, &[0, 1], 1) },
            expect!["allreduce needs a reduction (op)"],
        );
        check(Request { root: Some(Rank(0)), ..good() }, expect!["allgather has no root"]);
        check(Request { root: None, ..request(Collective::Reduce, &[0, 1], 1) }, expect!["reduce needs a root"]);
        check(
            Request { root: Some(Rank(2)), ..request(Collective::Reduce, &[0, 1], 1) },
            expect!["root 2 is not among the members, which are 0-1"],
        );
        check(
            request(Collective::Custom, &[0, 1], 1),
            expect!["custom needs its chunks listed (a byte matrix or a demand file)"],
        );
        check(
            Request::new(Collective::AllToAll, 100_000, 1),
            expect!["the request has 9999900000 chunks, more than the 16777216 that are supported"],
        );
    }

    #[test]
    fn groups_of_more_deliveries_than_a_plan_may_have_are_refused() {
        let group = Request::new(Collective::AllGather, 4096, 4096);
        let refused = Demand::joint(&vec![group.into(); 9]).unwrap_err();
        assert!(matches!(refused, DemandError::TooManyPlaces { count: 151_031_808, .. }), "{refused}");
    }

    #[test]
    fn listed_chunks_are_checked() {
        let check = |chunk: Chunk, expected: Expect| {
            let request = request(Collective::Custom, &[0, 1], 1);
            expected.assert_eq(&Demand::from_chunks(request, vec![chunk]).unwrap_err().to_string());
        };
        let good = || Chunk {
            holders: RankSet::one(Rank(0)),
            wanted_by: RankSet::all(2),
            combine: false,
            bytes: Some(Bytes(1.0)),
            release: Micros::ZERO,
        };
        check(Chunk { holders: RankSet::all(0), ..good() }, expect!["chunk 0 has no holder"]);
        check(Chunk { wanted_by: RankSet::all(7), ..good() }, expect!["rank 6 does not exist; ranks are 0-5"]);
        check(
            Chunk { bytes: Some(Bytes(-1.0)), ..good() },
            expect!["chunk 0 has -1 B; a size is between 0 and 1125899906842624 bytes"],
        );
        check(
            Chunk { bytes: Some(Bytes(f64::NAN)), ..good() },
            expect!["chunk 0 has NaN B; a size is between 0 and 1125899906842624 bytes"],
        );
        for release in [-1.0, 1e10, f64::NAN, f64::INFINITY] {
            let request = request(Collective::Custom, &[0, 1], 1);
            let late = Chunk { release: Micros(release), wanted_by: RankSet::all(2), ..good() };
            let refused = Demand::from_chunks(request, vec![late]).unwrap_err();
            assert!(matches!(refused, DemandError::Release { chunk: 0, .. }), "{refused}");
        }
        let late = Chunk { release: Micros(1.0), wanted_by: RankSet::one(Rank(1)), ..good() };
        let refused = Demand::from_chunks(request(Collective::AllToAllV, &[0, 1], 1), vec![late]).unwrap_err();
        assert!(matches!(refused, DemandError::Release { .. }), "only custom collectives have starts: {refused}");
        let request = request(Collective::AllToAllV, &[0, 1], 1);
        expect!["the byte matrix must have one row and one column for each of the 2 members"]
            .assert_eq(&Demand::from_matrix(request, &[vec![1, 2]]).unwrap_err().to_string());
    }

    #[test]
    fn a_joint_demand_has_the_chunks_of_all_and_one_reduction() {
        let first = request(Collective::AllGather, &[0, 2], 2);
        let second = Request { size_bytes: 10, ..request(Collective::AllReduce, &[2, 3, 4], 1) };
        let later = GroupRequest { request: second.clone(), start: Micros(20.0) };
        let joint = Demand::joint(&[first.clone().into(), later]).unwrap();
        assert!(joint.starts_later() && !joint.clone().without_starts().starts_later());
        assert_eq!(joint.release(&[ChunkId(0)]), Micros::ZERO);
        assert_eq!(joint.release(&[ChunkId(0), ChunkId(4)]), Micros(20.0));
        assert_eq!(joint.clone().without_starts(), {
            Demand::joint(&[first.clone().into(), second.clone().into()]).unwrap()
        });
        let joint = joint.without_starts();
        let alone = [&first, &second].map(|request| Demand::new(request.clone()).unwrap());
        assert_eq!(joint.chunks().len(), alone[0].chunks().len() + alone[1].chunks().len());
        for (id, (demand, chunk)) in alone.iter().flat_map(|it| it.chunks().iter().map(move |c| (it, c))).enumerate() {
            let (id, asked) = (ChunkId(id as u32), Chunk { bytes: Some(demand.chunk_bytes()), ..chunk.clone() });
            assert_eq!((joint.chunk(id), joint.bytes_of(id)), (&asked, demand.chunk_bytes()));
        }
        assert_eq!((joint.request().op, &joint.request().members[..]), (second.op, &[0, 2, 3, 4].map(Rank)[..]));
        let largest = Request { op: Some(ReduceOp::Max), ..second.clone() };
        assert_eq!(
            Demand::joint(&[second.into(), largest.into()]).unwrap_err(),
            DemandError::UnequalOps { one: ReduceOp::Sum, other: ReduceOp::Max }
        );
        assert_eq!(Demand::joint(&[]).unwrap_err(), DemandError::NoMembers);
    }
}
