//! Demands from files: the byte matrix of an alltoallv (CSV), and the chunks of a custom collective or the collectives
//! that it consists of (YAML).
//!
//! ```yaml
//! chunks:
//!   - {from: [0], to: [1, 2], bytes: 4096}
//!   - {from: [1, 2], to: [0], reduce: true}
//! ```
//! ```yaml
//! groups:
//!   - {members: [0-3], collective: allgather, size: 4MB}
//!   - {members: [4-7], collective: broadcast, size: 1MB, root: 5, start: 20us}
//! ```

use schedule::{Chunk, Collective, GroupRequest, MAX_RELEASE, RankSet, ReduceOp, Request};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;
use topology::document::{Document, PathSegment, TextError};
use topology::quantity::{RankSpan, listed};
use topology::{Bytes, Micros, Rank};

/// The largest alltoallv matrix read, in rows; a matrix of this size is a hundred megabytes of text.
const MOST_ROWS: usize = 4096;

/// Parses a CSV of byte counts, one row per sending member, one column per receiving member.
///
/// # Errors
/// [`TextError`] with the position of the first field that is no byte count.
pub fn parse(text: &str, origin: &str) -> Result<Vec<Vec<u64>>, TextError> {
    let fail = |line: usize, column: usize, reason: String| TextError {
        origin: origin.to_owned(),
        line: line + 1,
        column: column + 1,
        reason,
    };
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if rows.len() == MOST_ROWS {
            return Err(fail(number, 0, format!("more than {MOST_ROWS} rows")));
        }
        let mut column = 0;
        let mut row = Vec::new();
        for field in line.split(',') {
            let bytes = topology::quantity::parse_bytes(field.trim());
            row.push(bytes.map_err(|error| fail(number, column, error.to_string()))?);
            column += field.chars().count() + 1;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// What a demand file lists.
#[derive(Clone, PartialEq, Debug)]
pub enum DemandLines {
    /// Chunks.
    Chunks(Vec<Chunk>),
    /// Collectives at the same time, on a machine whose number of ranks is not known here: it is 0.
    Groups(Vec<GroupRequest>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DemandFile {
    #[serde(default)]
    chunks: Vec<ChunkLine>,
    #[serde(default)]
    groups: Vec<GroupLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupLine {
    members: Vec<RankSpan>,
    collective: Collective,
    size: ByteCount,
    root: Option<u32>,
    op: Option<ReduceOp>,
    #[serde(default)]
    start: StartTime,
}

/// A time with a unit, or the number 0.
#[derive(Default)]
struct StartTime(Micros);

impl<'de> Deserialize<'de> for StartTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenTime;
        impl Visitor<'_> for WrittenTime {
            type Value = StartTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 20us or 1ms")
            }
            fn visit_u64<E: de::Error>(self, time: u64) -> Result<StartTime, E> {
                match time {
                    0 => Ok(StartTime(Micros::ZERO)),
                    _ => Err(E::custom("a time needs a unit, such as 20us or 1ms")),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<StartTime, E> {
                topology::quantity::parse_duration(text).map(StartTime).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(WrittenTime)
    }
}

/// Bytes, as a number or with a unit.
struct ByteCount(u64);

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenEntry;
        impl Visitor<'_> for WrittenEntry {
            type Value = ByteCount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 4096 or 1KB")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteCount, E> {
                Ok(ByteCount(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteCount, E> {
                topology::quantity::parse_bytes(text).map(ByteCount).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(WrittenEntry)
    }
}

impl GroupLine {
    fn request(self, all: &mut ListedRanks) -> Result<GroupRequest, String> {
        let Self { members, collective, size, root, op, start: StartTime(start) } = self;
        let members = all.set(members)?;
        if collective.is_listed() {
            return Err(format!("the chunks of {collective} do not follow from its size; `chunks` lists them"));
        }
        if !(Micros::ZERO..=MAX_RELEASE).contains(&start) {
            return Err(format!("a group starts between 0 and {MAX_RELEASE}, not at {start}"));
        }
        let standard = Request::new(collective, 0, size.0);
        let first = standard.root.and(members.first().copied());
        let request = Request { root: root.map(Rank).or(first), op: op.or(standard.op), members, ..standard };
        Ok(GroupRequest { request, start })
    }
}

/// How many ranks the lists of a file may still have. A list takes little text, such as `[0-131071]`, and much memory.
struct ListedRanks {
    left: usize,
}

/// As many ranks as 4096 chunks for 8192 ranks each.
const MOST_LISTED: usize = 1 << 25;

impl ListedRanks {
    /// The ranks of a list with ranges: `[0-3, 6]`.
    fn set(&mut self, spans: Vec<RankSpan>) -> Result<RankSet, String> {
        let ranks = listed(spans)?;
        self.left = self
            .left
            .checked_sub(ranks.len())
            .ok_or_else(|| format!("the lists up to here have more than {MOST_LISTED} ranks in all"))?;
        let (count, set) = (ranks.len(), ranks.into_iter().map(Rank).collect::<RankSet>());
        if set.len() == count { Ok(set) } else { Err("a rank is listed twice".to_owned()) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkLine {
    from: Vec<RankSpan>,
    to: Vec<RankSpan>,
    bytes: Option<ByteCount>,
    #[serde(default)]
    reduce: bool,
}

/// Parses the chunks of a custom collective, or the collectives that it consists of.
///
/// # Errors
/// [`TextError`] with the position of an unknown key or a wrong type, and of ranks that are listed twice.
pub fn parse_demand(text: &str, origin: &str) -> Result<DemandLines, TextError> {
    let document = Document::yaml(origin, text);
    let file: DemandFile = document.parse()?;
    let mut all = ListedRanks { left: MOST_LISTED };
    if !file.groups.is_empty() {
        if !file.chunks.is_empty() {
            return Err(document.fault(&[PathSegment::Key("chunks")], "a demand lists `chunks` or `groups`, not both"));
        }
        let request = |(index, line): (usize, GroupLine)| {
            let path = [PathSegment::Key("groups"), PathSegment::Index(index)];
            line.request(&mut all).map_err(|reason| document.fault(&path, &reason))
        };
        return file.groups.into_iter().enumerate().map(request).collect::<Result<_, _>>().map(DemandLines::Groups);
    }
    let mut chunks = Vec::with_capacity(file.chunks.len());
    for (index, ChunkLine { from, to, bytes, reduce }) in file.chunks.into_iter().enumerate() {
        let mut set = |spans: Vec<RankSpan>, key: &str| {
            let path = [PathSegment::Key("chunks"), PathSegment::Index(index), PathSegment::Key(key)];
            all.set(spans).map_err(|reason| document.fault(&path, &reason))
        };
        let (holders, wanted_by) = (set(from, "from")?, set(to, "to")?);
        chunks.push(Chunk {
            holders,
            wanted_by,
            combine: reduce,
            bytes: bytes.map(|ByteCount(bytes)| Bytes(bytes as f64)),
            release: Micros::ZERO,
        });
    }
    Ok(DemandLines::Chunks(chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_reads_row_by_row_and_says_where_it_is_wrong() {
        assert_eq!(parse("0,1KB\n2,0\n", "m.csv").unwrap(), [[0, 1000], [2, 0]]);
        let error = parse("0,1\n2,x7\n", "m.csv").unwrap_err().to_string();
        assert!(error.starts_with("m.csv:2:3: "), "{error}");
    }

    #[test]
    fn chunks_read_and_unknown_keys_have_a_position() {
        let parsed = parse_demand("chunks:\n  - {from: [0], to: [1-2], bytes: 4}\n", "d.yaml").unwrap();
        let DemandLines::Chunks(chunks) = parsed else { panic!("it lists chunks") };
        assert_eq!(parse_demand("chunks:\n  - {from: [0], to: [1-2], bytes: 4KB}\n", "d.yaml"), {
            let bytes = Some(Bytes(4000.0));
            Ok(DemandLines::Chunks(vec![Chunk { bytes, ..chunks[0].clone() }]))
        });
        let error = parse_demand("chunks:\n  - {from: [0], to: [1], bytes: 1.5}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:") && error.contains("a size such as 4096 or 1KB"), "{error}");
        assert_eq!(chunks[0].wanted_by[..], [Rank(1), Rank(2)]);
        let error = parse_demand("chunks:\n  - {from: [0], too: [1]}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:"), "{error}");
        let error = parse_demand("chunks:\n  - {from: [0, 1, 0], to: [1]}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:") && error.contains("listed twice"), "{error}");
    }

    #[test]
    fn short_texts_list_no_more_ranks_than_fit_into_memory() {
        let chunk = "  - {from: [0], to: [1-131071]}\n";
        let error = parse_demand(&format!("chunks:\n{}", chunk.repeat(400)), "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:258:") && error.contains("more than 33554432 ranks"), "{error}");
        let group = "  - {members: [0-131071], collective: allgather, size: 8}\n";
        let error = parse_demand(&format!("groups:\n{}", group.repeat(400)), "g.yaml").unwrap_err().to_string();
        assert!(error.contains("more than 33554432 ranks"), "{error}");
    }

    #[test]
    fn groups_read_with_their_defaults_and_mistakes_have_a_position() {
        let text = "groups:\n  - {members: [0-2], collective: broadcast, size: 1KB}\n\
                    \x20 - {members: [5, 3], collective: allreduce, size: 8, op: max, start: 2ms}\n";
        let DemandLines::Groups(groups) = parse_demand(text, "g.yaml").unwrap() else { panic!("it lists groups") };
        let [first, second] = &groups[..] else { panic!("two groups") };
        assert_eq!([first.start, second.start], [Micros::ZERO, Micros(2000.0)]);
        let [first, second] = [&first.request, &second.request];
        assert_eq!((first.size_bytes, first.root, first.op), (1000, Some(Rank(0)), None));
        assert_eq!((&second.members[..], second.op), (&[Rank(3), Rank(5)][..], Some(ReduceOp::Max)));
        for (line, reason) in [
            ("{members: [0, 0], collective: allgather, size: 8}", "listed twice"),
            ("{members: [0, 1], collective: alltoallv, size: 8}", "`chunks` lists them"),
            ("{members: [0, 1], collective: allgather, size: many}", "many"),
            ("{members: [0, 1], collective: allgather}", "size"),
            ("{members: [0, 1], collective: allgather, size: 8, start: 20}", "20us"),
            ("{members: [0, 1], collective: allgather, size: 8, start: soon}", "soon"),
            ("{members: [0, 1], collective: allgather, size: 8, start: -3us}", "-3"),
            ("{members: [0, 1], collective: allgather, size: 8, start: 1001s}", "starts between 0 and"),
        ] {
            let error = parse_demand(&format!("groups:\n  - {line}\n"), "g.yaml").unwrap_err().to_string();
            assert!(error.starts_with("g.yaml:2:") && error.contains(reason), "{error}");
        }
        let both = "chunks:\n  - {from: [0], to: [1]}\ngroups:\n  - {members: [0], collective: allgather, size: 8}\n";
        assert!(parse_demand(both, "g.yaml").unwrap_err().to_string().contains("not both"));
    }
}
