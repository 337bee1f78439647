//! How a machine is measured, seen from this side of the wire.
//!
//! The principal type is the trait [`Probe`]. This crate decides *which* exchanges are worth timing and what
//! the times mean; whoever owns the transports implements the trait and only moves bytes and reads a clock.
//! That way the arrow points from moving to modelling, and the fit is tested without a network.

use crate::{Micros, Rank};

/// Messages from one rank to another, sent back to back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Exchange {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Bytes in each message.
    pub bytes: u64,
    /// How many messages follow each other without a pause.
    pub messages: u32,
}

/// Something that can move bytes between ranks and time it.
pub trait Probe {
    /// How many ranks can be measured; they are numbered from 0.
    fn rank_count(&self) -> usize;

    /// Runs all exchanges at the same time and returns how long each took, in the order given: from the
    /// common start until its receiver has its last byte.
    ///
    /// # Errors
    /// [`ProbeError`] when a rank could not take part.
    fn run(&mut self, exchanges: &[Exchange]) -> Result<Vec<Micros>, ProbeError>;
}

/// A measurement that could not be made, in the words of whoever tried.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot measure: {0}")]
pub struct ProbeError(pub String);
