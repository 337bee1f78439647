//! Demands from files: the byte matrix of an alltoallv (CSV) and the chunks of a custom collective (YAML).
//!
//! ```yaml
//! chunks:
//!   - {from: [0], to: [1, 2], bytes: 4096}
//!   - {from: [1, 2], to: [0], reduce: true}
//! ```

use schedule::Chunk;
use serde::Deserialize;
use topology::{Bytes, Rank};

/// Why a demand file was refused: `file:line:column: what`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: {message}")]
pub struct DemandFileError {
    origin: String,
    line: u64,
    column: u64,
    message: String,
}

/// The largest alltoallv matrix read, in rows; a matrix of this size is a hundred megabytes of text.
const MOST_ROWS: usize = 4096;

/// Parses a CSV of byte counts, one row per sending member, one column per receiving member.
///
/// # Errors
/// [`DemandFileError`] with the position of the first field that is no byte count.
pub fn parse(text: &str, origin: &str) -> Result<Vec<Vec<u64>>, DemandFileError> {
    let fail = |line: usize, column: usize, message: String| DemandFileError {
        origin: origin.to_owned(),
        line: line as u64 + 1,
        column: column as u64 + 1,
        message,
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
    from: Vec<Rank>,
    to: Vec<Rank>,
    bytes: Option<u64>,
    #[serde(default)]
    reduce: bool,
}

/// Parses the chunks of a custom collective.
///
/// # Errors
/// [`DemandFileError`] with the position of an unknown key or a wrong type.
pub fn parse_chunks(text: &str, origin: &str) -> Result<Vec<Chunk>, DemandFileError> {
    let file: ChunksFile = serde_saphyr::from_str(text).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
        DemandFileError { origin: origin.to_owned(), line, column, message: error.without_snippet().to_string() }
    })?;
    let chunk = |line: ChunkLine| Chunk {
        holders: line.from.into_iter().collect(),
        wanted_by: line.to.into_iter().collect(),
        combine: line.reduce,
        bytes: line.bytes.map(|bytes| Bytes(bytes as f64)),
    };
    Ok(file.chunks.into_iter().map(chunk).collect())
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
        let chunks = parse_chunks("chunks:\n  - {from: [0], to: [1, 2], bytes: 4}\n", "d.yaml").unwrap();
        assert_eq!(chunks[0].wanted_by[..], [Rank(1), Rank(2)]);
        let error = parse_chunks("chunks:\n  - {from: [0], too: [1]}\n", "d.yaml").unwrap_err().to_string();
        assert!(error.starts_with("d.yaml:2:"), "{error}");
    }
}
