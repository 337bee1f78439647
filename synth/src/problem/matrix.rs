//! Demands from files: the byte matrix of an alltoallv (CSV) and the chunks of a custom collective (YAML).
//!
//! ```yaml
//! chunks:
//!   - {from: [0], to: [1, 2], bytes: 4096}
//!   - {from: [1, 2], to: [0], reduce: true}
//! ```

use schedule::{Chunk, RankSet};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use topology::document::{Document, PathSegment, TextError};
use topology::quantity::{RankSpan, listed};
use topology::{Bytes, Rank};

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunksFile {
    chunks: Vec<ChunkLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkLine {
    #[serde(deserialize_with = "ranks")]
    from: Vec<Rank>,
    #[serde(deserialize_with = "ranks")]
    to: Vec<Rank>,
    bytes: Option<u64>,
    #[serde(default)]
    reduce: bool,
}

/// Ranks and ranges of them: `[0-3, 6]`.
fn ranks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rank>, D::Error> {
    let ranks = listed(Vec::<RankSpan>::deserialize(deserializer)?).map_err(D::Error::custom)?;
    Ok(ranks.into_iter().map(Rank).collect())
}

/// Parses the chunks of a custom collective.
///
/// # Errors
/// [`TextError`] with the position of an unknown key or a wrong type, and of ranks that are listed twice.
pub fn parse_chunks(text: &str, origin: &str) -> Result<Vec<Chunk>, TextError> {
    let document = Document::yaml(origin, text);
    let file: ChunksFile = document.parse()?;
    let mut chunks = Vec::with_capacity(file.chunks.len());
    for (index, ChunkLine { from, to, bytes, reduce }) in file.chunks.into_iter().enumerate() {
        let set = |ranks: Vec<Rank>, key: &str| {
            let (listed, set) = (ranks.len(), ranks.into_iter().collect::<RankSet>());
            let path = [PathSegment::Key("chunks"), PathSegment::Index(index), PathSegment::Key(key)];
            if set.len() == listed { Ok(set) } else { Err(document.fault(&path, "a rank is listed twice")) }
        };
        let (holders, wanted_by) = (set(from, "from")?, set(to, "to")?);
        chunks.push(Chunk { holders, wanted_by, combine: reduce, bytes: bytes.map(|bytes| Bytes(bytes as f64)) });
    }
    Ok(chunks)
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
        let chunks = parse_chunks("chunks:\n  - {from: [0], to: [1-2], bytes: 4}\n", "d.yaml").unwrap();
        assert_eq!(chunks[0].wanted_by[..], [Rank(1), Rank(2)]);
        let error = parse_chunks("chunks:\n  - {from: [0], too: [1]}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:"), "{error}");
        let error = parse_chunks("chunks:\n  - {from: [0, 1, 0], to: [1]}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:") && error.contains("listed twice"), "{error}");
    }
}
