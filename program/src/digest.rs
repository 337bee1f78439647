//! The plan hash: equal digests mean equal programs. The part of each rank is hashed separately, so a rank can compute
//! the digest from its own steps and the hashes of the other ranks' parts.
//!
//! Ranks compare digests before they move a byte, so the digest covers everything that decides what they do: the
//! collective, its members, the reduction, and every step. The size that the program was planned for is not included,
//! because a program serves every element count.

use super::{Connection, Instruction, PartShape, Program, RankProgram};
use schedule::{Collective, RankSet, ReduceOp};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Write};
use topology::Rank;

/// The values that are hashed, as JSON in this order.
#[derive(Serialize)]
struct HashedFields<'a> {
    format: &'static str,
    collective: Collective,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    members: &'a RankSet,
    chunks_per_rank: u32,
    in_place: bool,
    shape: &'a PartShape,
    uniform: bool,
    connections: &'a [Connection],
    ranks: &'a [String],
}

/// SHA-256 over a program, in hexadecimal.
pub fn digest(program: &Program) -> String {
    digest_of(program, &program.ranks.iter().map(rank_hash).collect::<Vec<_>>())
}

/// Tells programs apart that do not send the same messages: from whom to whom, of how many parts, and whether they are added. Their
/// order and the places of data do not count, as they do for [`digest`]: both follow from times, which may have been measured.
pub fn traffic_digest(program: &Program) -> String {
    let mut messages: BTreeMap<(Rank, Rank, bool, u32), u32> = BTreeMap::new();
    for step in program.ranks.iter().flat_map(RankProgram::steps) {
        let Some(id) = step.instruction.receives_from() else { continue };
        let Connection { from, to, .. } = program.connections[id.index()];
        let adds =
            matches!(step.instruction, Instruction::ReceiveReduce { .. } | Instruction::ReceiveReduceSend { .. });
        *messages.entry((from, to, adds, step.instruction.shape().count)).or_default() += 1;
    }
    sha256(&messages.into_iter().collect::<Vec<_>>())
}

/// The hash of one rank's part.
pub(super) fn rank_hash(rank: &RankProgram) -> String {
    sha256(rank)
}

/// The digest of a program whose parts have these hashes; the parts in `program` are ignored.
pub(super) fn digest_of(program: &Program, ranks: &[String]) -> String {
    let request = program.demand.request();
    let identity = HashedFields {
        format: "antiphon-program/3",
        collective: request.collective,
        op: program.op,
        root: request.root,
        members: &request.members,
        chunks_per_rank: request.chunks_per_rank,
        in_place: program.in_place,
        shape: &program.shape,
        uniform: program.uniform,
        connections: &program.connections,
        ranks,
    };
    sha256(&identity)
}

fn sha256(of: &impl Serialize) -> String {
    let mut hash = Sha256::new();
    let writer = io::BufWriter::new(Hashing(&mut hash));
    serde_json::to_writer(writer, of).expect("plain data without maps is always representable");
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A writer that hashes what is written.
struct Hashing<'a>(&'a mut Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
