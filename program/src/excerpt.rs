//! One rank's excerpt of a program: what it needs to carry the program out, and to find out by itself which program that is.
//!
//! The principal type is [`Excerpt`]. The [`digest`](super::digest()) of a program is a hash over what all ranks share and over
//! hashes of what each rank does. So who has its own steps and the hashes of the others' comes to the digest of the whole
//! from what it will do, and from nothing that is said about it: with other steps it would come to another one. Ranks that run
//! only what a coordinator, which verified the whole, names by its digest run nothing unverified, though none of them
//! has read the plan.
//!
//! All excerpts of a program are in one text ([`write_excerpts`]): a line for all ranks, and a line for each. It is no format to keep.

use super::digest::{digest_of, rank_hash};
use super::{Connection, Program, RankProgram, Shape, Tempo, VerifiedProgram};
use schedule::{Demand, ReduceOp, Request};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, ErrorKind, Seek, Write};
use std::sync::Arc;
use topology::Rank;

/// One rank's excerpt of a program that was verified as a whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Excerpt {
    /// The other ranks do nothing in it.
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
    shape: Shape,
    uniform: bool,
    connections: Vec<Connection>,
    /// Of each rank's line: the hash of what it says, and its length in bytes.
    ranks: Vec<(String, u64)>,
}

/// Whether a program has excerpts. It has none where sends need room, which follows from all steps, or where chunks are listed,
/// which no request says. The times of its schedule are in none, so ranks that keep those need the whole.
pub fn has_excerpts(program: &VerifiedProgram) -> bool {
    let demand = &program.program().demand;
    program.window() == 0 && Demand::new(demand.request().clone()).is_ok_and(|same| same == **demand)
}

/// Writes the excerpts of all ranks of a program that [has excerpts](has_excerpts); its digest, which takes the same hashes.
///
/// # Errors
/// What the writer says.
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
    /// Reads the excerpt of a rank, or of none: what all share.
    ///
    /// # Errors
    /// What the reader says; `InvalidData` if these are not excerpts of the program with this digest, which this finds out.
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

    /// The program, in which only the rank that the excerpt is for does anything.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The digest of the whole program, as it follows from this excerpt.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}
