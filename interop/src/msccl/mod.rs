//! MSCCL algorithm files (XML), in the dialects of microsoft/msccl \[1\] and of Azure's executor \[2\].
//!
//! The principal type is [`Algorithm`], the file as a typed document. [`parse`] and [`write`] know its syntax, `limits`
//! the limits of the runtimes, and [`import`] the meaning of its steps. [`judge`] uses all of them, and [`export`]
//! writes a verified program as a file.
//!
//! \[1\] Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023; the reader in
//! microsoft/msccl, `src/graph/topo.cc`. \[2\] Azure/msccl-executor-nccl, `src/misc/msccl/msccl_parser.cc`.

mod attributes;
mod document;
mod export;
mod fit;
mod import;
mod judge;
mod limits;
mod parse;
mod spell;
mod violation;
mod waits;
mod write;

pub use document::{
    Algorithm, BufferOffset, ClaimedCollective, GpuElement, Protocol, Space, StepElement, StepType, TextPosition,
    ThreadblockElement,
};
pub use export::{AlgorithmExportError, AlgorithmExportOptions, export};
pub use import::{ImportedAlgorithm, import};
pub use judge::{FileVerdict, ServedCall, judge};
pub use parse::{Parsed, parse};
pub use violation::{FileViolation, Rule};
pub use write::write;

use std::fmt;

/// The reader that a file is meant for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dialect {
    /// microsoft/msccl, a fork of NCCL.
    Msccl,
    /// Azure's msccl-executor-nccl, and RCCL.
    Executor,
}

impl Dialect {
    /// The dialect of a file. It is the executor's if the file says itself whether it serves out-of-place calls, or
    /// names a collective that only the executor knows.
    pub fn of(algorithm: &Algorithm) -> Self {
        let known = |dialect: Self| algorithm.operation.is_none_or(|operation| dialect.knows(operation));
        match (algorithm.out_of_place.is_some(), known(Self::Msccl), known(Self::Executor)) {
            (_, false, true) => Self::Executor,
            (true, _, true) => Self::Executor,
            _ => Self::Msccl,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Msccl => "microsoft/msccl",
            Self::Executor => "msccl-executor-nccl",
        })
    }
}

#[cfg(test)]
mod tests;
