//! The identity of a plan, for ranks that must execute the same one.

use schedule::program::Program;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{self, Write};

/// SHA-256 of everything that a program is, in hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanHash(String);

impl PlanHash {
    /// The hash of `program`.
    pub fn of(program: &Program) -> Self {
        let Program { demand, op, in_place, parts, connections, ranks } = program;
        let request = demand.request();
        let asked = (request.collective, request.root, request.ranks, &request.members, request.chunks_per_rank);
        let mut hash = Hashing(Sha256::new());
        serde_json::to_writer(&mut hash, &(asked, op, in_place, parts, connections, ranks))
            .expect("plain data serialises, and hashing never fails");
        Self(hash.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The first eight bytes: what a message has room for.
    pub(crate) fn word(&self) -> u64 {
        u64::from_str_radix(self.0.get(..16).unwrap_or_default(), 16).unwrap_or_default()
    }
}

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Hashes what is written, so that the text of a large program is never in memory.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
