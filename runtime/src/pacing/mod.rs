//! When a message may begin: at the time of an emulated machine, or in the plan's order between computers.
//!
//! The principal types are [`Pacer`](pace::Pacer) and [`Sequencer`](sequencer::Sequencer).

mod gate;
pub(crate) mod messages;
pub(crate) mod order;
pub(crate) mod pace;
mod rates;
pub(crate) mod sequencer;
