//! MSCCL algorithm files (XML), in the dialects of microsoft/msccl \[1\] and of Azure's executor \[2\].
//!
//! The principal type is [`Algorithm`], the file as a typed document.
//!
//! \[1\] Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023; the reader in
//! microsoft/msccl, `src/graph/topo.cc`. \[2\] Azure/msccl-executor-nccl, `src/misc/msccl/msccl_parser.cc`.

mod document;
mod parse;
mod write;

pub use document::{Algorithm, Block, Gpu, Kind, Location, Operation, Place, Protocol, Space, Step};
pub use parse::{Parsed, parse};
pub use write::write;

#[cfg(test)]
mod tests;
