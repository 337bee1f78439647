//! In which order messages leave: list scheduling, along fixed routes or of a schedule's own messages.
//!
//! The principal functions are [`queues::order`], [`interleaved`] and [`earliest_first`]; [`calendar::Calendar`] is the clock of the
//! searches.

pub(crate) mod bits;
pub(crate) mod calendar;
mod dependencies;
mod interleave;
mod list;
mod prune;
pub(crate) mod queues;

pub(crate) use interleave::{earliest_first, interleaved};
pub(crate) use prune::without_idle_copies;
