//! Improvements of a schedule that is fast enough already: slack for its transfers, and the wishes of the sketch.
//!
//! The principal functions are [`ease::eased`] and [`prefer::prefer`]. Neither makes a schedule longer.

pub(crate) mod ease;
pub(crate) mod prefer;
