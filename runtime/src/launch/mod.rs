//! Ranks as processes, and the one who coordinates them.
//!
//! The principal type is [`Job`]. Every rank has a worker, a process with one end of a socket pair as its standard input:
//! commands and answers travel there, never on the data path. On one computer the launcher starts all of them and is the
//! coordinator; nothing listens. Where another launcher starts a process per rank, perhaps on many machines, rank 0's is
//! the coordinator, and every other one an agent: it starts its rank's worker, and carries messages over a connection
//! on which both ends have proved that they know the job's secret. Data moves through shared memory on one machine and
//! over connections of its own between machines.
//!
//! The coordinator alone decides: when a rank dies, stops, or lags, it pronounces one verdict that every wait of every
//! rank sees within milliseconds, collects what the live ranks say, and has all workers ended. An epoch ends with its
//! first verdict; [`Job::rebuild`] begins the next with new workers, and nothing of the old one is heard any more.
//! What each party decides is in `judge`, `agent_state` and `worker_state`, which know no sockets, threads or clocks.
//!
//! ```text
//! coordinator                       agent (between machines)            worker
//!                    ◀─────────────  claim, proof                       rendezvous
//!   SetUp            ─────────────▶  makes or finds the segment
//!   memory, Welcome  ──────────────  secret derived ──────────────────▶
//!                    ◀────────────────────────────────────────────────  Hello         protocol compared
//!   Prepare(plan)    ─────────────────────────────────────────────────▶               loads, allocates
//!                    ◀────────────────────────────────────────────────  Ready(hash)   the vote: hashes compared
//!   Run(number)      ─────────────────────────────────────────────────▶               the commit: all repetitions
//!                    ◀────────────────────────────────────────────────  Done(report)
//! ```

pub(crate) mod agent;
mod connect;
pub(crate) mod epoch_setup;
pub(crate) mod files;
pub(crate) mod launcher;
pub(crate) mod machine;
pub(crate) mod member;
mod membership;
mod parent;
pub(crate) mod probe;
pub(crate) mod rendezvous;
#[cfg(test)]
mod simulation;
pub(crate) mod spawner;
pub(crate) mod threads;
pub(crate) mod verdicts;
pub(crate) mod watch;
pub(crate) mod worker;
