//! What coordinator, agents and workers of a job say to each other, and what each decides.
//!
//! The principal types are [`Judge`](judge::Judge), [`AgentState`](agent_state::AgentState) and
//! [`WorkerState`](worker_state::WorkerState), which know no sockets, threads or clocks, and the messages they decide on.
//! Each has a function `step`: what happened goes in with its moment, and what to do comes out. A real job and the
//! simulation of the protocol call the same ones.

pub(crate) mod agent_state;
pub(crate) mod clocks;
pub(crate) mod frame;
pub(crate) mod judge;
pub(crate) mod messages;
pub(crate) mod plane;
pub(crate) mod question;
pub(crate) mod worker_state;
