//! `libantiphon_nccl.so`: stands in front of NCCL, and tells it which of its own algorithms to run.
//!
//! **In front of NCCL.** The library has all names of NCCL's functions. A program that preloads it, or loads it instead of NCCL,
//! calls it; it looks for the real NCCL and goes on there (`real`, `trampolines`). The collectives are looked at on the
//! way (`collectives`): where a table has a plan for them, and all ranks of the communicator have the same table (`members`), the plan
//! runs in rounds over NCCL's sends and receives (`plans`), or one kernel over memory that the ranks have mapped (`peers`). What served a call, and why, is counted and said if the environment asks
//! for it. Without NCCL every call fails and says why.
//!
//! **As a tuner.** NCCL loads the library where `NCCL_TUNER_PLUGIN` names it, and asks it before every collective. The answers come
//! from the table that `ANTIPHON_TABLE` names: a tuning table of Antiphon, or a file of rules ([`tune::NcclRule`]); without it
//! from the file that `NCCL_TUNER_CONFIG_FILE` names, as for NVIDIA's example plugin. Where the library has no opinion, NCCL decides
//! as if it was not there: without a file, with one that is wrong, for calls without a rule, and for calls that NCCL
//! cannot run in the way that a rule wants.
//!
//! It never unwinds into its caller, and does nothing before its first call.

#![expect(unsafe_code, reason = "NCCL and its callers give addresses")]

mod abi;
mod background;
mod choices;
mod collectives;
mod counters;
mod domains;
mod groups;
mod lifecycle;
mod members;
mod names;
mod peers;
mod places;
mod plans;
mod prepared;
mod real;
mod rules;
mod seen;
mod settings;
mod trampolines;
mod tuner;

pub use abi::{Logger, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6};
pub use tuner::{ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v4, ncclTunerPlugin_v5, ncclTunerPlugin_v6};

/// The version of this library, as a text. NCCL has no such function, so the library knows itself and its copies by it.
#[unsafe(no_mangle)]
pub extern "C" fn antiphon_nccl_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
