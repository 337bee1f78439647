//! In which order messages leave: list scheduling, along fixed routes or of a schedule's own messages.
//!
//! The principal functions are [`queues::order`] and [`interleaved`]; [`calendar::Calendar`] is the clock of the
//! searches.

pub(crate) mod bits;
pub(crate) mod calendar;
mod interleave;
mod prune;
pub(crate) mod queues;

pub(crate) use interleave::interleaved;
pub(crate) use prune::without_idle_copies;
