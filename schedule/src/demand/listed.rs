//! Checks chunks that are listed one by one (`alltoallv`, `custom`), and computes the size that follows from them.
//!
//! The principal functions are [`check`], [`check_pairs`] and [`size`]. An alltoallv is its byte matrix: the data from
//! member i to member j is one entry, cut into C equal chunks. Its size is, as for alltoall, the data that a member
//! sends in all, its own share included: the largest row. The size of a custom collective whose chunks all have their
//! own sizes is the largest buffer that a rank starts or ends with.

use crate::{Chunk, Collective, DemandError, MAX_RELEASE, MAX_SIZE, Request};
use std::collections::BTreeMap;
use topology::{Bytes, Micros, Rank};

/// Checks that chunks have holders, valid sizes, valid releases and an operation, and name only members. Only the chunks of
/// custom collectives are released later.
pub(crate) fn check(request: &Request, chunks: &[Chunk]) -> Result<(), DemandError> {
    for (index, chunk) in chunks.iter().enumerate() {
        let sets = [&chunk.holders, &chunk.wanted_by];
        // Sets ascend, so only the end of one can be beyond the last rank.
        let is_known = |rank: &Rank| rank.index() < request.ranks;
        if let Some(&rank) = sets.iter().find_map(|ranks| ranks.get(ranks.partition_point(is_known))) {
            return Err(DemandError::UnknownRank { rank, ranks: request.ranks });
        }
        if let Some(rank) = sets.iter().find_map(|ranks| ranks.first_outside(&request.members)) {
            return Err(DemandError::NotAMember { chunk: index, rank });
        }
        if chunk.holders.is_empty() {
            return Err(DemandError::NoHolder { chunk: index });
        }
        if let Some(bytes) = chunk.bytes.filter(|bytes| !(0.0..=MAX_SIZE as f64).contains(&bytes.0)) {
            return Err(DemandError::ChunkSize { chunk: index, bytes });
        }
        let latest = if request.collective == Collective::Custom { MAX_RELEASE } else { Micros::ZERO };
        if !(Micros::ZERO..=latest).contains(&chunk.release) {
            return Err(DemandError::Release { chunk: index, release: chunk.release, latest });
        }
        if chunk.combine && request.op.is_none() {
            return Err(DemandError::Op { collective: request.collective, needed: true });
        }
    }
    Ok(())
}

/// Checks an alltoallv: every chunk goes from one member to one, and the data of each pair is cut into C equal chunks.
pub(crate) fn check_pairs(request: &Request, chunks: &[Chunk]) -> Result<(), DemandError> {
    if !request.collective.lists_pairs() {
        return Ok(());
    }
    let mut pairs: BTreeMap<(Rank, Rank), (u32, Bytes)> = BTreeMap::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let (&[from], &[to], false) = (&chunk.holders[..], &chunk.wanted_by[..], chunk.combine) else {
            return Err(DemandError::NotOnePair { chunk: index });
        };
        let bytes = chunk.bytes.unwrap_or_else(|| request.chunk_bytes());
        let (count, first) = pairs.entry((from, to)).or_insert((0, bytes));
        *count += 1;
        if (first.0 - bytes.0).abs() > 1.0 + ROUNDING {
            return Err(DemandError::UnequalPair { from, to });
        }
    }
    let expected = request.chunks_per_rank;
    match pairs.into_iter().find(|(_, (count, _))| *count != expected) {
        Some(((from, to), (count, _))) => Err(DemandError::PairChunks { from, to, count, expected }),
        None => Ok(()),
    }
}

/// The size in bytes that follows from the chunks; `None` where the sizes of chunks follow from it.
pub(crate) fn size(request: &Request, chunks: &[Chunk]) -> Result<Option<u64>, DemandError> {
    let is_own = |chunk: &Chunk| chunk.bytes.is_some();
    let of = |chunk: &Chunk| chunk.bytes.unwrap_or_else(|| request.chunk_bytes()).0;
    // For each rank, the bytes that it starts with and that it ends with.
    let mut buffers = vec![[0.0_f64; 2]; request.ranks];
    for chunk in chunks {
        chunk.holders.iter().for_each(|rank| buffers[rank.index()][0] += of(chunk));
        chunk.wanted_by.iter().for_each(|rank| buffers[rank.index()][1] += of(chunk));
    }
    let largest = match request.collective {
        Collective::AllToAllV => buffers.iter().map(|[sent, _]| *sent).fold(0.0, f64::max),
        Collective::Custom if !chunks.is_empty() && chunks.iter().all(is_own) => {
            buffers.iter().flatten().copied().fold(0.0, f64::max)
        }
        Collective::Custom | Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => {
            return Ok(None);
        }
        Collective::AllToAll | Collective::Broadcast | Collective::Reduce | Collective::Gather => return Ok(None),
        Collective::Scatter | Collective::SendRecv => return Ok(None),
    };
    // Equal parts of a whole number add up to it again, except for the rounding of doubles.
    let is_whole = (largest - largest.round()).abs() <= ROUNDING.max(largest * 1e-15);
    let size_bytes = if is_whole { largest.round() } else { largest.ceil() } as u64;
    if size_bytes > MAX_SIZE {
        return Err(DemandError::TooLarge { size_bytes, limit: MAX_SIZE });
    }
    Ok(Some(size_bytes))
}

/// The largest rounding error of such a sum, in bytes.
const ROUNDING: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use crate::{Chunk, Collective, Demand, DemandError, RankSet, ReduceOp, Request};
    use expect_test::{Expect, expect};
    use topology::{Bytes, Micros, Rank};

    fn set(ranks: &[u32]) -> RankSet {
        ranks.iter().copied().map(Rank).collect()
    }

    fn chunk(holders: &[u32], wanted_by: &[u32], bytes: f64) -> Chunk {
        let (holders, wanted_by, bytes) = (set(holders), set(wanted_by), Some(Bytes(bytes)));
        Chunk { holders, wanted_by, combine: false, bytes, release: Micros::ZERO }
    }

    fn demand(collective: Collective, members: &[u32], chunks: Vec<Chunk>) -> Result<Demand, DemandError> {
        let request = Request { members: set(members), ..Request::new(collective, 4, 999) };
        Demand::listed(request.with_chunks(2), chunks)
    }

    #[test]
    fn sizes_follow_from_the_chunks() {
        let size = |collective, chunks| demand(collective, &[0, 1, 2], chunks).unwrap().request().size_bytes;
        let twice = |chunk: Chunk| [chunk.clone(), chunk];
        // Member 1 sends 7 bytes and keeps 4.
        let matrix = [twice(chunk(&[0], &[1], 5.0)), twice(chunk(&[1], &[2], 3.5)), twice(chunk(&[1], &[1], 2.0))];
        assert_eq!(size(Collective::AllToAllV, matrix.concat()), 11);
        // Rank 2 ends with two chunks.
        let listed = vec![chunk(&[0], &[1, 2], 3.0), chunk(&[1], &[2], 2.5)];
        assert_eq!(size(Collective::Custom, listed.clone()), 6);
        // Where the size of a chunk follows from the request's size, that size stays as it was asked for.
        let some = [listed, vec![Chunk { bytes: None, ..chunk(&[1], &[2], 0.0) }]].concat();
        assert_eq!(size(Collective::Custom, some), 999);
    }

    #[test]
    fn what_an_alltoallv_cannot_list() {
        let check = |chunks: &[Chunk], expected: Expect| {
            let refused = demand(Collective::AllToAllV, &[0, 1, 2], chunks.to_vec()).unwrap_err();
            expected.assert_eq(&refused.to_string());
        };
        let good = || chunk(&[0], &[1], 4.0);
        demand(Collective::AllToAllV, &[0, 1, 2], vec![good(), good()]).unwrap();
        let one_pair = "goes from one member to one member and is not reduced";
        for wrong in [chunk(&[0, 1], &[1], 4.0), chunk(&[0], &[], 4.0), chunk(&[0], &[1, 2], 4.0)] {
            let refused = demand(Collective::AllToAllV, &[0, 1, 2], vec![wrong.clone(), wrong]).unwrap_err();
            assert!(refused.to_string().contains(one_pair), "{refused}");
        }
        check(
            &[good()],
            expect!["the chunks from rank 0 to rank 1 are 1, but the request cuts what a pair exchanges into 2"],
        );
        check(
            &[good(), good(), good()],
            expect!["the chunks from rank 0 to rank 1 are 3, but the request cuts what a pair exchanges into 2"],
        );
        check(
            &[good(), chunk(&[0], &[1], 6.0)],
            expect!["the chunks from rank 0 to rank 1 are of different sizes; each is an equal part of a matrix entry"],
        );
        check(&[good(), chunk(&[0], &[3], 4.0)], expect!["chunk 1 names rank 3, which is not a member"]);
        let summed = Chunk { combine: true, ..good() };
        let request = Request { op: Some(ReduceOp::Sum), ..Request::new(Collective::AllToAllV, 4, 999) };
        assert!(Demand::listed(request, vec![summed]).is_err());
    }

    #[test]
    fn what_a_custom_collective_cannot_list() {
        let summed = Chunk { combine: true, ..chunk(&[0, 1], &[2], 4.0) };
        let refused = demand(Collective::Custom, &[0, 1, 2], vec![summed]).unwrap_err();
        expect!["custom needs a reduction (op)"].assert_eq(&refused.to_string());
        let refused = demand(Collective::Custom, &[0, 1], vec![chunk(&[0], &[2], 4.0)]).unwrap_err();
        expect!["chunk 0 names rank 2, which is not a member"].assert_eq(&refused.to_string());
        let huge = chunk(&[0], &[1], crate::MAX_SIZE as f64);
        let refused = demand(Collective::Custom, &[0, 1], vec![huge.clone(), huge]).unwrap_err();
        assert!(matches!(refused, DemandError::TooLarge { .. }), "{refused}");
    }
}
