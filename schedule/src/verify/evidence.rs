//! The facts of a violation, for code that lists or counts violations: its kind, and the chunk, rank, link and time
//! concerned.

use super::Violation;
use crate::ChunkId;
use topology::{LinkId, Micros, Rank};

impl Violation {
    /// The rule, as `verify --json` spells it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MissingChunk { .. } | Self::ExtraChunk { .. } => "wrong_demand",
            Self::WrongChunkBytes { .. } => "wrong_chunk_bytes",
            Self::WrongSize { .. } => "wrong_size",
            Self::NotAsked { .. } => "wrong_demand",
            Self::WrongMakespan { .. } => "wrong_makespan",
            Self::WrongGap { .. } => "wrong_gap",
            Self::WrongTopology { .. } => "wrong_topology",
            Self::WrongRankCount { .. } => "wrong_rank_count",
            Self::EmptyMessage { .. } => "empty_message",
            Self::RepeatedChunk { .. } => "repeated_chunk",
            Self::UnknownChunk { .. } => "unknown_chunk",
            Self::UnknownLink { .. } => "unknown_link",
            Self::WrongEnds { .. } => "wrong_ends",
            Self::ReduceOfPlainChunk { .. } => "reduce_of_plain_chunk",
            Self::BadTime { .. } => "bad_time",
            Self::WrongDuration { .. } => "wrong_duration",
            Self::NoSymmetry { .. } => "no_symmetry",
            Self::NotSorted { .. } => "not_sorted",
            Self::SentBeforeHeld { .. } => "sent_before_held",
            Self::DoubleReduce { .. } => "double_reduce",
            Self::CollidingCopy { .. } => "colliding_copy",
            Self::NotDelivered { .. } => "not_delivered",
            Self::MissingContribution { .. } => "missing_contribution",
            Self::LinkOverlap { .. } => "link_overlap",
            Self::ResourceOverlap { .. } => "resource_overlap",
            Self::BoundAboveMakespan { .. } => "bound_above_makespan",
        }
    }

    /// The chunk concerned, if there is one.
    pub fn chunk(&self) -> Option<ChunkId> {
        match self {
            Self::MissingChunk { chunk, .. }
            | Self::RepeatedChunk { chunk, .. }
            | Self::UnknownChunk { chunk, .. }
            | Self::ReduceOfPlainChunk { chunk, .. }
            | Self::SentBeforeHeld { chunk, .. }
            | Self::DoubleReduce { chunk, .. }
            | Self::CollidingCopy { chunk, .. }
            | Self::NotDelivered { chunk, .. }
            | Self::MissingContribution { chunk, .. } => Some(*chunk),
            _ => None,
        }
    }

    /// The rank concerned, if there is one.
    pub fn rank(&self) -> Option<Rank> {
        match self {
            Self::WrongEnds { from: rank, .. }
            | Self::SentBeforeHeld { rank, .. }
            | Self::DoubleReduce { rank, .. }
            | Self::CollidingCopy { rank, .. }
            | Self::NotDelivered { rank, .. }
            | Self::MissingContribution { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// The link concerned, if there is one.
    pub fn link(&self) -> Option<LinkId> {
        match self {
            Self::EmptyMessage { link, .. }
            | Self::RepeatedChunk { link, .. }
            | Self::UnknownLink { link, .. }
            | Self::WrongEnds { link, .. }
            | Self::ReduceOfPlainChunk { link, .. }
            | Self::BadTime { link, .. }
            | Self::WrongDuration { link, .. }
            | Self::SentBeforeHeld { link, .. }
            | Self::DoubleReduce { link, .. }
            | Self::CollidingCopy { link, .. }
            | Self::LinkOverlap { link, .. }
            | Self::ResourceOverlap { link, .. } => Some(*link),
            _ => None,
        }
    }

    /// The time of the violation, if it has one.
    pub fn time(&self) -> Option<Micros> {
        match self {
            Self::BadTime { start: time, .. }
            | Self::WrongDuration { end: time, .. }
            | Self::NotSorted { start: time, .. }
            | Self::SentBeforeHeld { start: time, .. }
            | Self::DoubleReduce { time, .. }
            | Self::CollidingCopy { time, .. }
            | Self::LinkOverlap { start: time, .. }
            | Self::ResourceOverlap { start: time, .. } => Some(*time),
            _ => None,
        }
    }
}
