//! What coordinator, agents and workers of a job say to each other, and what each decides.
//!
//! The principal types are [`Judge`](judge::Judge), [`Charge`](charge::Charge) and [`Duty`](duty::Duty), which know no
//! sockets, threads or clocks, and the messages they decide on.

pub(crate) mod charge;
pub(crate) mod clocks;
pub(crate) mod duty;
pub(crate) mod frame;
pub(crate) mod judge;
pub(crate) mod messages;
pub(crate) mod plane;
pub(crate) mod question;
