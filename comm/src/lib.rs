//! Collectives that programs call.
//!
//! The principal type is [`Communicator`]: a group of ranks, and one rank's place in it. Its methods are the collectives of
//! MPI and NCCL. A communicator only looks up which plan serves a call ([`stock`]: the best textbook algorithm), and hands the call
//! to the [`runtime::Session`] of its rank, which moves the bytes.
//!
//! ```
//! use comm::{Communicator, Op};
//! let communicators = Communicator::local(3)?;
//! std::thread::scope(|scope| {
//!     for comm in &communicators {
//!         scope.spawn(|| {
//!             let mut x = [comm.rank() as f32, 1.0];
//!             comm.all_reduce(&mut x, Op::Sum).unwrap();
//!             assert_eq!(x, [3.0, 3.0]);
//!         });
//!     }
//! });
//! # Ok::<(), comm::CommError>(())
//! ```
//!
//! Counts follow MPI: per rank for `all_gather`, `gather`, `scatter` and `all_to_all`, what is received for `reduce_scatter`,
//! the length of the vector otherwise.

mod agreed;
mod bounded;
mod call_state;
mod collectives;
mod communicator;
mod confirm;
mod confirmed;
mod connect;
mod error;
mod functions;
mod gpu;
mod hardware;
pub mod launcher;
mod links;
mod log;
mod memory;
mod numbers;
mod operation;
mod plan_store;
mod plans;
mod point_to_point;
mod probe;
mod rebuild;
mod request;
mod split;
mod started;
mod statistics;
mod stock;
mod table;
mod tuner;

pub use communicator::Communicator;
pub use connect::Config;
pub use error::{CommError, CommResult, explained};
pub use functions::{CandidateFunction, CandidatePredicate};
pub use gpu::{GpuProbe, GpuRank, gpu_hardware, mapped_bytes};
pub use hardware::hardware;
pub use memory::{RegisteredVector, SharedVector};
pub use operation::CollectiveCall;
pub use request::BegunCall;
pub use runtime::{
    Call as CandidateMemory, DType, Element, IdleWork, LongMessages, RawCall, RegisteredMemory, RunError, RunErrorKind,
    Session, SharedMemory, chain,
};
pub use schedule::Collective;
pub use schedule::ReduceOp as Op;
pub use started::Pending;
pub use statistics::{ConfirmationCounts, PlanStatistics, Statistics};
pub use table::{MeasuredFunction, PlanTable, RankPlaces, TableFault};
pub use tune::RankTransport;
pub use tuner::{
    CandidateRefusal, CandidateSamples, CellSamples, CellWork, DroppedLaunch, LaunchEnd, MeasuredTable, NextWork,
    RefusedCandidate, SameCandidate, StockPlan, TrialMark, TrialPhase, TuneCandidate, TuneDevice, TuneJob, TuneOptions,
    TuneWord, edges_of, final_table, next_work, table_of,
};
