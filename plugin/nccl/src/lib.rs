//! `libantiphon_nccl.so`: tells NCCL which of its own algorithms to run, by NCCL's tuner interface.
//!
//! NCCL loads the library where `NCCL_TUNER_PLUGIN` names it, and asks it before every collective. The answers come from
//! the table that `ANTIPHON_TABLE` names: a tuning table of Antiphon, or a file of rules ([`tune::NcclRule`]); without it from
//! the file that `NCCL_TUNER_CONFIG_FILE` names, as for NVIDIA's example plugin. Where the library has no opinion, NCCL decides
//! as if it was not there: without a file, with one that is wrong, for calls without a rule, and for calls that NCCL
//! cannot run in the way that a rule wants.
//!
//! It exports versions 2 to 6 of the interface and nothing else. It never unwinds into NCCL, and never gives it an error.

#![expect(unsafe_code, reason = "NCCL calls it with addresses")]

mod abi;
mod rules;
mod tuner;

pub use abi::{Logger, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6};
pub use tuner::{ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v4, ncclTunerPlugin_v5, ncclTunerPlugin_v6};
