//! The interpreter kernel, as NVRTC compiles it, on the PTX machine: every rank is a device of its own.

mod arithmetic;
mod domains;
pub(super) mod job;
mod mutants;
mod nvrtc;
mod peer_mutants;
mod peers;
mod programs;
