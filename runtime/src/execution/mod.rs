//! One rank's part of the programs that run at the same time, and the loop that runs them.
//!
//! The principal type is [`Executor`](executor::Executor).

pub(crate) mod concurrent;
pub(crate) mod executor;
pub(crate) mod flows;
pub(crate) mod local_rank;
pub(crate) mod options;
pub(crate) mod watch;
