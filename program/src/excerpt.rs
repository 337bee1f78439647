//! One rank's excerpt of a program: what it needs to run its part, and to compute the digest of the whole program.
//!
//! The principal type is [`Excerpt`]. The [`digest`](super::digest()) of a program is a hash over what all ranks share
//! and over the hashes of all parts. A rank computes it from the steps that it will execute and from the hashes of the
//! other parts. With other steps it would get another digest. So a rank that compares this digest with that of a
//! program which the coordinator has verified runs only verified steps, although it has never read the whole plan.
//!
//! All excerpts of a program are in one text ([`write_excerpts`]): a line for all ranks, and a line for each rank. It
//! is a temporary format.

use super::digest::{digest_of, rank_hash};
use super::{Connection, PartShape, Program, RankProgram, Tempo, VerifiedProgram};
use schedule::{Demand, ReduceOp, Request};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, ErrorKind, Seek, Write};
use std::sync::Arc;
use topology::Rank;

/// One rank's excerpt of a program that was verified as a whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Excerpt {
    /// In this program the other ranks do nothing.
    program: Program,
    digest: String,
}

/// What all ranks share.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    request: Request,
    op: Option<ReduceOp>,
    in_place: bool,
    shape: PartShape,
    uniform: bool,
    connections: Vec<Connection>,
    /// For each rank: the hash of its part, and the length of its line in bytes.
    ranks: Vec<(String, u64)>,
}

/// Whether a program has excerpts. It has none where sends need room, because the room follows from all steps, and none
/// where chunks are listed, because the request does not contain them. Excerpts do not contain the times of the
/// schedule, so ranks that use those need the whole program.
pub fn has_excerpts(program: &VerifiedProgram) -> bool {
    let demand = &program.program().demand;
    program.window() == 0 && Demand::new(demand.request().clone()).is_ok_and(|same| same == **demand)
}

/// Writes the excerpts of all ranks of a program that [has excerpts](has_excerpts), and returns its digest.
///
/// # Errors
/// Errors of the writer.
pub fn write_excerpts(program: &VerifiedProgram, out: &mut dyn Write) -> io::Result<String> {
    let program = program.program();
    let (mut lines, mut lengths) = (Vec::new(), Vec::with_capacity(program.ranks.len()));
    for rank in &program.ranks {
        let begin = lines.len();
        serde_json::to_writer(&mut lines, rank)?;
        lines.push(b'\n');
        lengths.push((lines.len() - begin) as u64);
    }
    let hashes: Vec<String> = program.ranks.iter().map(rank_hash).collect();
    let digest = digest_of(program, &hashes);
    let head = Head {
        request: program.demand.request().clone(),
        op: program.op,
        in_place: program.in_place,
        shape: program.shape.clone(),
        uniform: program.uniform,
        connections: program.connections.clone(),
        ranks: hashes.into_iter().zip(lengths).collect(),
    };
    serde_json::to_writer(&mut *out, &head)?;
    out.write_all(b"\n")?;
    out.write_all(&lines)?;
    Ok(digest)
}

impl Excerpt {
    /// Reads the excerpt of a rank; with `None`, only what all ranks share.
    ///
    /// # Errors
    /// Errors of the reader; `InvalidData` if these are not excerpts of the program with this digest.
    pub fn read(from: &mut (impl BufRead + Seek), rank: Option<Rank>, digest: &str) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(ErrorKind::InvalidData, format!("the excerpts of a program {what}"));
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        let Head { request, op, in_place, shape, uniform, connections, ranks } = serde_json::from_slice(&line)?;
        let demand = Demand::new(request).map_err(|error| invalid(&format!("have no demand: {error}")))?;
        let count = demand.request().ranks;
        let is_rank = |rank: Rank| rank.index() < count;
        if ranks.len() != count || !connections.iter().all(|lane| is_rank(lane.from) && is_rank(lane.to)) {
            return Err(invalid("are not those of its ranks"));
        }
        let (mut own, (mut hashes, lengths)) =
            (vec![RankProgram::default(); count], ranks.into_iter().unzip::<_, _, Vec<_>, Vec<u64>>());
        if let Some(rank) = rank {
            let place = own.get_mut(rank.index()).ok_or_else(|| invalid("lack a rank"))?;
            let before = lengths[..rank.index()].iter().sum::<u64>();
            from.seek_relative(i64::try_from(before).map_err(|_| invalid("are too long"))?)?;
            line.clear();
            from.read_until(b'\n', &mut line)?;
            *place = serde_json::from_slice(&line)?;
            hashes[rank.index()] = rank_hash(place);
        }
        let (demand, ranks, tempo) = (Arc::new(demand), own, Tempo::default());
        let program = Program { demand, op, in_place, shape, uniform, connections, ranks, tempo };
        match digest_of(&program, &hashes) {
            found if found == digest => Ok(Self { program, digest: found }),
            found => Err(invalid(&format!("have the digest {found}, and not {digest}"))),
        }
    }

    /// The program, in which only the rank of the excerpt has steps.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The digest of the whole program, as it follows from this excerpt.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
