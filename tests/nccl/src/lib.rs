//! A fake NCCL: processes without GPUs call its functions, and what they send really arrives.
//!
//! It is for memory of the fake CUDA driver in `tests/cuda`, and refuses any other. The process that makes a unique id is the hub of the
//! communicator: all ranks connect to it, by TCP, and it matches what they ask for. Work waits in streams; nothing has happened
//! when a function returns. It is stricter than NCCL, which hangs or gives garbage where this one gives an error: ranks whose
//! calls differ in collective, count, type, operation or root, messages whose ends differ, work on two streams in one group,
//! numbers that are out of range, memory that is none, and whoever waits for longer than `FAKE_NCCL_LIMIT_MS` (20 s).
//! `FAKE_NCCL_FAULT=RANK:NUMBER:KIND` makes a rank fail in its operation of that number: `error`, `stall` until it is aborted, or
//! `exit` of the process.
//!
//! It has no channels, no algorithms and no registered memory. `FAKE_NCCL_MACHINE` names a file that says how long messages and
//! collectives take by the clock that the fake driver counts (`FAKE_CUDA_CLOCK=counted`); it says nothing about real times.

#![expect(unsafe_code, reason = "its callers give addresses, as to NCCL")]

mod api;
mod comm;
mod cuda;
mod group;
mod hub;
mod machine;
mod parts;
mod reduce;
mod wire;

pub use api::*;
pub use parts::*;
