//! The interface through which a machine is measured.
//!
//! The principal type is the trait [`Probe`]. This crate decides *which* exchanges to time and what the times mean. The
//! runtime implements the trait: it moves the bytes and reads the clock. So this crate does not depend on the runtime,
//! and its tests need no network.

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

    /// Whether there is any way from one rank to another; pairs without one are not measured.
    fn connects(&self, _from: Rank, _to: Rank) -> bool {
        true
    }

    /// Whether a rank's messages of one number end together, those that it sends and those that it receives: then a rank that sends
    /// slowly also receives late.
    fn ends_together(&self) -> bool {
        false
    }

    /// Runs all exchanges at the same time, `repetitions` times one after the other. For each repetition it returns how
    /// long each exchange took, in the order given: from the common start until its receiver has its last byte. Before
    /// the first repetition, connections are made and memory pages are touched.
    ///
    /// # Errors
    /// [`ProbeError`] when a rank could not take part.
    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError>;
}

/// A measurement that could not be made, with the reason that the probe gave.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot measure: {0}")]
pub struct ProbeError(pub String);
