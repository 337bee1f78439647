//! How an answer is executed: one [`Program`](program::Program), every transport.
//!
//! A rank's part of a program runs in the interpreter, a state machine in one thread. Ranks are threads
//! ([`try_threads`]) or processes: a [`Job`] starts them on this computer, or gathers those that another launcher started
//! on many ([`Job::form`], [`attend`]). All move bytes through the same rings in shared memory, or over TCP between
//! machines, and can imitate another machine ([`Emulation`]).
//!
//! This crate knows no solver and reads no topology files. Whatever goes wrong is a [`RunError`] that names the
//! rank and the phase; no wait is without a deadline.

mod arena;
mod board;
mod clock;
mod doorbell;
mod dtype;
mod error;
mod executor;
mod footprint;
mod geometry;
mod group;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
mod heap;
mod interfaces;
mod interpreter;
mod job;
mod lanes;
mod listed;
mod memory;
mod options;
mod order;
mod pace;
mod probe;
mod reference;
#[expect(unsafe_code, reason = "maps shared memory")]
mod region;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
mod ring;
mod seat;
mod tcp;
mod threads;
mod transport;
mod trial;
mod turns;
mod watch;
mod wiring;
mod work;

pub use board::{Cause, Verdict};
pub use clock::Moment;
pub use dtype::DType;
pub use error::{Phase, RunError, RunResult, Stamp};
pub use group::{Choice, Group, NamedTwice};
pub use interfaces::Interface;
pub use job::{
    Job, JobSpec, Loader, Machine, Rendezvous, SharedFile, Source, Watch, attend, control_from_stdin, serve,
};
pub use memory::Call;
pub use options::Options;
pub use pace::Emulation;
pub use probe::ThreadProbe;
pub use tcp::Secret;
pub use threads::{run_threads, try_threads, try_together};
pub use trial::{Check, RankReport, Sample, Trial, TrialReport};
pub use wiring::Hosts;
pub use work::{Assignment, Loaded};
