//! Ranks as processes, and the coordinator of a job.
//!
//! The principal type is [`Job`]. Every rank has a worker: a process whose standard input is one end of a socket pair.
//! Commands and answers use this channel, never data. On one computer the launcher starts all workers and is the
//! coordinator, and no socket listens. If another launcher starts one process per rank, perhaps on several machines,
//! the process of rank 0 is the coordinator, and every other one is an agent. An agent starts its rank's worker, and
//! passes messages over a connection on which both ends have proved that they know the job's secret. Data moves through
//! shared memory on one machine, and over connections of its own between machines.
//!
//! Only the coordinator decides. When a rank dies, stops, or is late, it pronounces one verdict, which ends every wait
//! of every rank within milliseconds. It collects the reports of the live ranks, and has all workers ended. An epoch
//! ends with its first verdict. [`Job::rebuild`] begins the next epoch with new workers, and messages of the old one
//! are ignored. The decisions of each process are in `judge`, `agent_state` and `worker_state`, without sockets,
//! threads or clocks.
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
mod identity;
pub(crate) mod launcher;
pub(crate) mod machine;
pub(crate) mod member;
mod membership;
mod parent;
pub(crate) mod probe;
pub(crate) mod rebuild;
pub(crate) mod rendezvous;
#[cfg(test)]
mod simulation;
pub(crate) mod spawner;
mod survivor_turns;
pub(crate) mod threads;
pub(crate) mod verdicts;
pub(crate) mod watch;
#[cfg(test)]
mod watch_simulation;
mod watch_state;
pub(crate) mod worker;
