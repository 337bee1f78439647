//! When a message may begin: as an imitated machine would let it, or in the plan's order between computers.
//!
//! The principal types are [`Pacer`](pace::Pacer) and [`Keeper`](turns::Keeper).

pub(crate) mod order;
pub(crate) mod pace;
pub(crate) mod turns;
