//! Runs programs: one [`Program`](program::Program) runs over every transport.
//!
//! The interpreter executes a rank's part of a program; it is a state machine in one thread. Ranks are threads
//! ([`try_threads`]) or processes. A [`Job`] starts the processes on this computer, or gathers processes that another
//! launcher started on several computers ([`Job::form`], [`attend`]). Bytes move through rings in shared memory, or
//! over TCP between machines. A run can also emulate the timing of another machine ([`Emulation`]).
//!
//! This crate knows no solver and reads no topology files. Every failure is a [`RunError`] that names the rank and the
//! phase. Every wait has a deadline.
//!
//! # Rooms
//! A room uses only rooms above it in this list. The project's house test checks this rule.
//!
//! ```text
//! clock, reduction, dtype, element, verdict, numbers, error, group    values that every room uses
//! background     threads of the library in the process of somebody else
//! memory         memory that the ranks of one computer share, and how they wake each other
//! transport      what carries bytes and messages between two ranks: a folder for each transport
//! plan           what one rank executes of a program, and where it lies in its buffers
//! pacing         when a message may begin
//! interpreter    one rank's part of one program
//! execution      one rank's part of the programs that run at the same time
//! device         GPUs: CUDA's driver, programs as tables for the interpreter kernel, and NCCL's library
//! session        ranks that have met once, and call collectives as often as they like
//! measure        timed runs of collectives, whose answers are checked
//! control        what the parties of a job say to each other, and what each decides
//! launch         ranks as threads, as processes, or started by another launcher
//! ```

#[expect(unsafe_code, reason = "changes which signals a thread hears")]
mod background;
mod clock;
mod control;
mod device;
mod dtype;
mod element;
mod error;
mod execution;
mod group;
mod interpreter;
mod launch;
mod measure;
mod memory;
mod numbers;
mod pacing;
mod plan;
mod reduction;
mod session;
mod transport;
mod verdict;

pub use clock::Moment;
pub use device::cuda::{
    CurrentGpu, GpuAllReduce, GpuBuffer, GpuDevice, GpuError, GpuLaunch, GpuMemory, GpuRankBuffers, GpuRanks,
};
pub use device::kernel_plan::{KernelAddresses, KernelNeeds, KernelPlan, KernelTables};
pub use device::nccl::{
    DOMAIN_BYTES, DomainMemory, DomainPlace, DomainRegion, DomainTerms, MOST_STAGED_BYTES, NcclCommunicator, NcclError,
    NcclGather, NcclId, NcclLibrary, NcclLibraryError, NcclRounds, NcclSearch, NcclStockCall, NcclTrials, NcclVersion,
    NcclWork, RoundFailure, StagedAllReduce, StagedCall, StagedTerms,
};
pub use device::nvml::{NvLinkEnd, NvLinks, NvmlError, NvmlLibrary};
pub use device::peer_memory::{
    GpuRankAllReduce, PeerFault, PeerGather, PeerMemory, PeerMemoryError, PeerTerms, PeerWay,
};
pub use device::peers::{
    PeerAddresses, PeerAlgorithm, PeerAllReduce, PeerCall, PeerCallError, PeerWait, allreduce_kernel_name,
};
pub use device::rounds::plan::{RankMessage, RoundPlan};
pub use device::rounds::tables::{MappedAddresses, MappedNeeds, RoundLaunch};
pub use device::{ALLREDUCE_PTX, KERNEL_PTX, kernel_name};
pub use dtype::DType;
pub use element::Element;
pub use error::{Breach, RunError, RunErrorKind, RunResult, Stamp, chain};
pub use execution::concurrent::Loaded;
pub use execution::executor::RepetitionSample;
pub use execution::options::ExecutionOptions;
pub use group::{Group, NamedTwice, SplitChoice};
pub use interpreter::buffers::Call;
pub use interpreter::recorder::StepTime;
pub use launch::agent::attend;
pub use launch::files::SharedFile;
pub use launch::launcher::{Job, JobSpec, ProgramSource};
pub use launch::machine::Machine;
pub use launch::probe::ThreadProbe;
pub use launch::rendezvous::{Rendezvous, is_for_one_link};
pub use launch::threads::{run_threads, try_threads, try_together};
pub use launch::watch::JobWatch;
pub use launch::worker::{Loader, control_from_stdin, serve};
pub use measure::assignment::Assignment;
pub use measure::reference::{BufferPlaces, Reference};
pub use measure::trial::{Check, RankReport, Trial, TrialReport};
pub use numbers::CallNumber;
pub use pacing::pace::Emulation;
#[cfg(feature = "model")]
pub use session::models;
pub use session::{
    CallPlace, IdleWork, LongMessages, Prepared, RawCall, RebuildTerms, Rebuilt, RegisteredBuffer, RegisteredMemory,
    SequencedProgram, Session, SharedMemory, Started, Ticket,
};
pub use transport::hosts::Hosts;
pub use transport::interfaces::Interface;
pub use transport::tcp::Secret;
pub use verdict::{Cause, Phase, Verdict};
