//! The control protocol: the messages between coordinator, agents and workers of a job, and the decisions of each.
//!
//! The principal types are [`Judge`](judge::Judge), [`AgentState`](agent_state::AgentState) and
//! [`WorkerState`](worker_state::WorkerState). They know no sockets, threads or clocks. Each has a function `step`: an
//! event and its moment go in, and actions come out. A real job and the simulation call the same functions.

pub(crate) mod agent_state;
pub(crate) mod clocks;
pub(crate) mod frame;
pub(crate) mod judge;
pub(crate) mod messages;
pub(crate) mod plane;
pub(crate) mod question;
pub(crate) mod transcript;
pub(crate) mod worker_state;
