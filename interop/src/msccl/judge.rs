//! Judges a file: the limits of the runtimes that it exceeds, and whether its steps give the right result.
//!
//! The principal function is [`judge`].

use super::document::{Algorithm, Protocol};
use super::limits::{BrokenRules, check};
use super::violation::{FileViolation, Rule};
use super::{Dialect, import};
use program::{self, VerifiedProgram};
use schedule::Findings;

/// The default of `maxBytes` in microsoft/msccl, which serves only sizes below it.
pub(super) const MSCCL_MOST: u64 = 1 << 27;

/// A kind of call that a file serves, with the verified program that serves it.
#[derive(Clone, PartialEq, Debug)]
pub struct ServedCall {
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// The program.
    pub program: VerifiedProgram,
}

/// The result of judging a file.
#[derive(Clone, PartialEq, Debug)]
pub struct FileVerdict {
    /// The dialect whose rules were applied.
    pub dialect: Dialect,
    /// The rules that it breaks.
    pub violations: Findings<FileViolation>,
    /// The programs for the kinds of calls in which its steps are right.
    pub calls: Vec<ServedCall>,
}

impl Protocol {
    /// How many messages a connection holds before its receiver takes the first, in both runtimes: the slots of the
    /// buffer over the slots of one message.
    pub fn window(self) -> u32 {
        match self {
            Self::Simple => 2,
            Self::Ll | Self::Ll128 => 8,
        }
    }
}

impl Algorithm {
    /// The least and the most bytes that the file serves in a runtime; the most is `None` if there is no limit.
    pub fn window(&self, dialect: Dialect) -> (u64, Option<u64>) {
        let most = match dialect {
            Dialect::Msccl => Some(self.max_bytes.unwrap_or(MSCCL_MOST).saturating_sub(1)),
            Dialect::Executor => self.max_bytes.filter(|&most| most > 0),
        };
        (self.min_bytes.unwrap_or(0), most)
    }

    /// The kinds of calls the file says it serves, `true` for in place.
    pub fn calls(&self) -> Vec<bool> {
        let in_place = self.in_place.unwrap_or(false);
        let out_of_place = self.out_of_place.unwrap_or(!in_place);
        [(false, out_of_place), (true, in_place)]
            .into_iter()
            .filter_map(|(call, served)| served.then_some(call))
            .collect()
    }
}

/// Judges a file by the rules of `dialect`; messages are sized for a buffer of `size_bytes`.
pub fn judge(algorithm: &Algorithm, dialect: Dialect, size_bytes: u64) -> FileVerdict {
    let BrokenRules { mut violations, blocks } = check(algorithm, dialect);
    let mut calls = Vec::new();
    if blocks {
        return FileVerdict { dialect, violations, calls };
    }
    let room = algorithm.protocol.window();
    for in_place in algorithm.calls() {
        let imported = match import(algorithm, in_place, size_bytes) {
            Ok(imported) => imported,
            Err(violation) => {
                violations.push(violation);
                continue;
            }
        };
        match program::check(imported.program.clone()) {
            Ok(program) => {
                if program.window() > room {
                    let rule = Rule::Room { needed: program.window(), protocol: algorithm.protocol, room, in_place };
                    violations.push(FileViolation::new(algorithm.at, rule));
                }
                calls.push(ServedCall { in_place, program });
            }
            Err(broken) => {
                let (listed, more) = broken.into_parts();
                violations.extend(listed.into_iter().map(|broken| imported.blame(broken)));
                violations.count(more);
            }
        }
    }
    FileVerdict { dialect, violations, calls }
}
