//! The keys of the file, as written; nothing is resolved here.

use super::FORMAT;
use crate::{ChunkId, Collective, Provenance, ReduceOp, TransferKind};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::fmt;
use topology::{Bytes, Embedded, LinkId, Micros, Rank};

/// The whole file. Keys that describe the answer may be null or absent where the answer is unknown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(rename = "format")]
    pub(super) _format: Format,
    pub(super) topology: TopologyEntry,
    pub(super) collective: Collective,
    #[serde(default)]
    pub(super) op: Option<ReduceOp>,
    #[serde(default)]
    pub(super) root: Option<Rank>,
    pub(super) ranks: usize,
    /// Absent means all.
    #[serde(default)]
    pub(super) members: Option<Vec<Rank>>,
    pub(super) size_bytes: u64,
    pub(super) chunks_per_rank: u32,
    pub(super) chunk_bytes: Bytes,
    /// May be absent where `symmetry` is there and the collective is a standard one.
    #[serde(default, deserialize_with = "chunks_with_unique_ids")]
    pub(super) chunks: Option<Vec<ChunkEntry>>,
    #[serde(default)]
    pub(super) symmetry: Option<SymmetryEntry>,
    pub(super) transfers: Vec<TransferEntry>,
    pub(super) makespan_us: Micros,
    #[serde(default)]
    pub(super) lower_bound_us: Option<Micros>,
    #[serde(default)]
    pub(super) bound: Option<String>,
    #[serde(default)]
    pub(super) gap: Option<f64>,
    #[serde(default)]
    pub(super) produced_by: Provenance,
}

/// The machine: its name, and a full description where the name is not a SPEC of the same machine.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopologyEntry {
    pub(super) name: String,
    #[serde(default)]
    pub(super) digest: Option<String>,
    #[serde(default)]
    pub(super) embedded: Option<Embedded>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChunkEntry {
    pub(super) id: u64,
    #[serde(deserialize_with = "each_once")]
    pub(super) holders: Vec<Rank>,
    #[serde(deserialize_with = "each_once")]
    pub(super) wanted_by: Vec<Rank>,
    pub(super) combine: bool,
    #[serde(default)]
    pub(super) bytes: Option<Bytes>,
    #[serde(default)]
    pub(super) release_us: Option<Micros>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TransferEntry {
    pub(super) chunks: SmallVec<[u64; 2]>,
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) link: LinkId,
    pub(super) kind: TransferKind,
    pub(super) start_us: Micros,
    pub(super) end_us: Micros,
}

/// The generators that repeat the transfers of a compressed schedule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SymmetryEntry {
    pub(super) generators: Vec<GeneratorEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GeneratorEntry {
    pub(super) ranks: Vec<Rank>,
    pub(super) links: Vec<LinkId>,
    pub(super) chunks: Vec<ChunkId>,
}

/// The value of `format`; another value is refused at its place in the text.
pub(super) struct Format;

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = String::deserialize(deserializer)?;
        if given != FORMAT {
            return Err(D::Error::custom(format_args!(
                "unknown format `{}`, expected `{FORMAT}`",
                topology::shorten(&given)
            )));
        }
        Ok(Self)
    }
}

/// Ranks in any order. Repetitions are found while reading, because their position is known only then.
fn each_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rank>, D::Error> {
    let mut ranks = Vec::<Rank>::deserialize(deserializer)?;
    ranks.sort_unstable();
    match ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(D::Error::custom(format_args!("rank {} is listed twice", pair[0]))),
        None => Ok(ranks),
    }
}

/// Checked while reading, as in [`each_once`].
fn chunks_with_unique_ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ChunkEntry>>, D::Error> {
    struct ChunksVisitor;
    impl<'de> Visitor<'de> for ChunksVisitor {
        type Value = Vec<ChunkEntry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of chunks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let (mut chunks, mut ids) = (Vec::new(), BTreeSet::new());
            while let Some(chunk) = entries.next_element::<ChunkEntry>()? {
                if !ids.insert(chunk.id) {
                    return Err(A::Error::custom(format_args!("chunk id {} is used twice", chunk.id)));
                }
                chunks.push(chunk);
            }
            Ok(chunks)
        }
    }
    deserializer.deserialize_seq(ChunksVisitor).map(Some)
}
