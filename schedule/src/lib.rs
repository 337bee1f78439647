//! Demands and schedules: the one interface between planning and execution.
//!
//! A [`Demand`] says what must move. A [`Schedule`] says when each [`Transfer`] moves which chunks over which link. All
//! planning code produces a `Schedule`, and all later stages take a verified one.
//!
//! This crate does no IO beyond text, and knows no solver and no device.

mod chunk;
mod collective;
mod compressed;
mod demand;
mod error;
pub mod explain;
pub mod file;
mod findings;
mod order;
mod rank_set;
mod replay;
mod request;
mod reverse;
mod simulate;
#[cfg(any(test, feature = "testing"))]
#[expect(missing_docs, clippy::expect_used, reason = "only tests see it")]
pub mod testing;
mod threads;
mod timeline;
mod tolerance;
mod transfer;
mod usage;
mod verify;

pub use chunk::{Chunk, ChunkId, MAX_CHUNKS, MAX_RELEASE, MAX_SIZE};
pub use collective::{Collective, ReduceOp};
pub use compressed::{
    CompressedSchedule, Generator, MOST_PLAIN_TRANSFERS, OrbitOrder, TooManyTransfers, Unfolding, VerifiedCompressed,
};
pub use demand::Demand;
pub use error::{DemandError, ReplayError};
pub use findings::Findings;
pub use order::{CausalOrder, Delivery, DeliveryId, Effect, Origin};
pub use rank_set::RankSet;
pub use replay::{Message, replay, replay_exchanging, replay_rounds};
pub use request::{GroupRequest, Request};
pub use reverse::{reduce_of_gather, turned_around};
pub use simulate::{Simulation, simulate};
pub use threads::are_many;
pub use timeline::{Cargo, TimedMessage, Timeline};
pub use tolerance::{TIME_TOLERANCE, clearly_before};
pub use transfer::{
    CandidateOutcome, ChunkList, LowerBound, Provenance, Schedule, TopologyRef, Transfer, TransferKind, makespan,
};
pub use usage::{Usage, busiest};
pub use verify::{Rejection, VerifiedSchedule, Violation, check_asked, verify, verify_compressed};
