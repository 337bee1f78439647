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

    /// Whether there is any way from one rank to another; what has none is not measured.
    fn connects(&self, _from: Rank, _to: Rank) -> bool {
        true
    }

    /// Runs all exchanges at the same time, `repetitions` times one after the other, and returns for each
    /// repetition how long each exchange took, in the order given: from the common start until its receiver has its
    /// last byte. Connections are made and pages touched before the first: they are warm.
    ///
    /// # Errors
    /// [`ProbeError`] when a rank could not take part.
    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError>;
}

/// A measurement that could not be made, in the words of whoever tried.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot measure: {0}")]
pub struct ProbeError(pub String);
