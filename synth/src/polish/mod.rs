//! What is done to a schedule that is fast enough already: its transfers leave with slack, and wishes are met.
//!
//! The principal functions are [`ease::eased`] and [`prefer::suit`]. Neither makes a schedule longer.

pub(crate) mod ease;
pub(crate) mod prefer;
