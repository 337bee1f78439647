//! The rules that an MSCCL file can break, with the place.

use super::Dialect;
use super::document::{ClaimedCollective, Protocol, StepType, TextPosition};
use program::ProgramViolation;
use std::fmt;

/// A rule that a file breaks, and the element that breaks it.
#[derive(Clone, PartialEq, Debug)]
pub struct FileViolation {
    /// The element.
    pub at: TextPosition,
    /// Other elements that contribute to it.
    pub with: Vec<TextPosition>,
    /// The rule.
    pub rule: Rule,
}

impl FileViolation {
    pub(super) fn new(at: TextPosition, rule: Rule) -> Self {
        Self { at, with: Vec::new(), rule }
    }

    /// The rule's name, for programs.
    pub fn kind(&self) -> &'static str {
        self.rule.kind()
    }

    /// The rank it is about, if it is about one rank.
    pub fn rank(&self) -> Option<u32> {
        match &self.rule {
            Rule::BlockIds { rank, .. }
            | Rule::SameBlock { rank, .. }
            | Rule::Peer { rank, .. }
            | Rule::SharedEnd { rank, .. }
            | Rule::WaitCycle { rank, .. } => Some(*rank),
            Rule::Program { violation, .. } => violation.rank().map(|rank| rank.0),
            _ => None,
        }
    }
}

impl fmt::Display for FileViolation {
    /// `line:column: rule (with line:column, …)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        write!(f, "{}: {}", self.at, self.rule)?;
        for (index, place) in self.with.iter().take(SHOWN).enumerate() {
            write!(f, "{}{place}", if index == 0 { " (with " } else { ", " })?;
        }
        if self.with.is_empty() { Ok(()) } else { write!(f, ")") }
    }
}

/// The rules. Rules about limits of the runtimes name the limit.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// An attribute without which the dialect's runtime ignores the file.
    #[error("`{name}` is missing, and without it {dialect} ignores the file")]
    Missing {
        /// The attribute.
        name: &'static str,
        /// The dialect.
        dialect: Dialect,
    },
    /// An operation that the dialect's runtime does not know.
    #[error("{dialect} knows no collective `{operation}`{}", .instead.map(|w| format!("; it says `{w}`")).unwrap_or_default())]
    UnknownOperation {
        /// The operation.
        operation: ClaimedCollective,
        /// The dialect.
        dialect: Dialect,
        /// How the dialect spells it, if it has it.
        instead: Option<ClaimedCollective>,
    },
    /// An operation whose result does not follow from the file.
    #[error("what `{operation}` must achieve does not follow from the file, so nothing can be proved")]
    NoDemand {
        /// The operation.
        operation: ClaimedCollective,
    },
    /// This file never serves a call.
    #[error("no call is served by this file: {reason}")]
    NeverSelected {
        /// Why.
        reason: &'static str,
    },
    /// A number above a limit of the runtimes.
    #[error("{what} is {given}, more than the {limit} that {dialect} has room for")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// What the file has.
        given: u64,
        /// The most.
        limit: u64,
        /// The dialect with this limit.
        dialect: Dialect,
    },
    /// `nthreads` is no whole number of warps.
    #[error("`nthreads` is {given}, which is no multiple of 32")]
    Threads {
        /// The number.
        given: u32,
    },
    /// Ranks that are missing, repeated or too many.
    #[error("the file has {found} <gpu> elements for `ngpus` {expected}, or their ids are not 0 to {}", .expected.saturating_sub(1))]
    Ranks {
        /// How many there are.
        found: usize,
        /// What the header says.
        expected: u32,
    },
    /// A buffer's size does not follow from the header.
    #[error("`{buffer}` is {given}, but {operation} with nchunksperloop {chunks} needs {expected}")]
    BufferSize {
        /// `i_chunks` or `o_chunks`.
        buffer: &'static str,
        /// What the file says.
        given: u32,
        /// The header's number.
        chunks: u32,
        /// What follows from the header.
        expected: String,
        /// The operation.
        operation: ClaimedCollective,
    },
    /// Threadblocks whose ids are not 0, 1, 2, …
    #[error("the threadblocks of rank {rank} have no id {missing}, though they have ids beyond")]
    BlockIds {
        /// The rank.
        rank: u32,
        /// The first that is missing.
        missing: u32,
    },
    /// Two threadblocks with one id.
    #[error("threadblock {id} of rank {rank} stands twice")]
    SameBlock {
        /// The rank.
        rank: u32,
        /// The id.
        id: u32,
    },
    /// A peer that does not exist or is the rank itself.
    #[error("rank {rank} cannot have rank {peer} as a peer; there are {ranks} ranks")]
    Peer {
        /// The rank.
        rank: u32,
        /// The peer.
        peer: u32,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A channel that does not exist.
    #[error("channel {} is not one of the `nchannels` {channels}", .channel.map_or("-1".to_owned(), |c| c.to_string()))]
    Channel {
        /// The channel.
        channel: Option<u32>,
        /// How many there are.
        channels: u32,
    },
    /// Two threadblocks of a rank with the same peer on the same channel.
    #[error("another threadblock of rank {rank} {} rank {peer} on channel {channel} as well; the runtimes lose count of the messages", if *.send { "sends to" } else { "receives from" })]
    SharedEnd {
        /// The rank.
        rank: u32,
        /// The peer.
        peer: u32,
        /// The channel.
        channel: u32,
        /// Whether they send to the peer; otherwise they receive.
        send: bool,
    },
    /// Steps of one rank that wait for each other.
    #[error("deadlock: {steps} steps of rank {rank} wait for each other in a cycle")]
    WaitCycle {
        /// The rank.
        rank: u32,
        /// The number of steps; the violation is at the first, and the others are listed with it.
        steps: usize,
    },
    /// Steps that are not numbered 0, 1, 2, … in the order of the file.
    #[error("this step has number {given}, but is the {expected}th from 0")]
    StepNumber {
        /// Its number.
        given: u32,
        /// Its place.
        expected: usize,
    },
    /// A step that needs a peer the threadblock does not have.
    #[error("a step of type {kind} needs a peer to {}, but its threadblock has none", if *.send { "send to" } else { "receive from" })]
    NoPeer {
        /// The step's type.
        kind: StepType,
        /// Whether it is a peer to send to; otherwise, one to receive from.
        send: bool,
    },
    /// A count outside 1 to 71.
    #[error("`cnt` is {given}; a step moves 1 to 71 chunks")]
    Count {
        /// The count.
        given: u32,
    },
    /// A slice that is not inside its buffer.
    #[error("{what} is {slice} with {count} chunks, but the buffer has {chunks}")]
    Bounds {
        /// Source or destination.
        what: &'static str,
        /// Where it starts.
        slice: String,
        /// Its length.
        count: u32,
        /// What the file says the buffer has.
        chunks: u32,
    },
    /// A dependency on a step that does not exist, that comes later in the same threadblock, or that does nothing.
    #[error("this step waits for step {step} of threadblock {block}, {reason}")]
    Dependency {
        /// The threadblock.
        block: u32,
        /// The step.
        step: u32,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A dependency on a step without `hasdep`.
    #[error("this step waits for step {step} of threadblock {block}, whose `hasdep` is 0: nobody is told when it ends")]
    Silent {
        /// The threadblock.
        block: u32,
        /// The step.
        step: u32,
    },
    /// A `nop` without a dependency: after it, the runtimes miscount steps.
    #[error("a nop must carry a dependency; the runtimes count the steps after this one wrongly")]
    IdleNop,
    /// A step after `nop`s that has no dependency of its own.
    #[error("the step after a nop must have a dependency itself; the runtimes refuse the file or drop the nop's")]
    BrokenChain,
    /// Reductions that the runtimes fuse although their counts differ.
    #[error("the runtimes fuse this reduction with the one before, and then use the last `cnt` for both")]
    FusedCounts,
    /// More reductions are fused into one than the runtimes allow.
    #[error("the runtimes fuse {count} reductions here and have room for 16")]
    FusedTooMany {
        /// How many.
        count: u32,
    },
    /// The demand that follows from the header is too large to be checked.
    #[error("the file cannot be checked: {reason}")]
    TooLarge {
        /// Why.
        reason: String,
    },
    /// Senders run further ahead of their receivers than a connection has room for, so the runtimes would deadlock.
    #[error(
        "{}deadlock: senders run {needed} messages ahead of their receivers, and {protocol} has room for {room}",
        if *.in_place { "in place: " } else { "" }
    )]
    Room {
        /// How many messages.
        needed: u32,
        /// The protocol.
        protocol: Protocol,
        /// How many it has room for.
        room: u32,
        /// The kind of call.
        in_place: bool,
    },
    /// The steps give a wrong result, or are not ordered.
    #[error("{}{violation}", if *.in_place { "in place: " } else { "" })]
    Program {
        /// What is wrong; threadblocks and steps are numbered as in the file.
        violation: ProgramViolation,
        /// The kind of call.
        in_place: bool,
    },
}

impl Rule {
    /// A name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing_attribute",
            Self::UnknownOperation { .. } => "unknown_collective",
            Self::NoDemand { .. } => "no_demand",
            Self::NeverSelected { .. } => "never_selected",
            Self::Limit { .. } => "limit",
            Self::Threads { .. } => "threads",
            Self::Ranks { .. } => "ranks",
            Self::BufferSize { .. } => "buffer_size",
            Self::BlockIds { .. } | Self::SameBlock { .. } => "threadblock_ids",
            Self::Peer { .. } => "peer",
            Self::Channel { .. } => "channel",
            Self::SharedEnd { .. } => "shared_connection",
            Self::WaitCycle { .. } => "deadlock",
            Self::StepNumber { .. } => "step_number",
            Self::NoPeer { .. } => "no_peer",
            Self::Count { .. } => "count",
            Self::Bounds { .. } => "bounds",
            Self::Dependency { .. } => "dependency",
            Self::Silent { .. } => "silent_dependency",
            Self::IdleNop | Self::BrokenChain => "nop",
            Self::FusedCounts | Self::FusedTooMany { .. } => "fused_reductions",
            Self::Room { .. } => "room",
            Self::TooLarge { .. } => "too_large",
            Self::Program { violation, .. } => violation.kind(),
        }
    }

    /// Whether this violation makes the steps meaningless.
    pub(super) fn blocks(&self) -> bool {
        match self {
            Self::NoDemand { .. }
            | Self::Ranks { .. }
            | Self::BlockIds { .. }
            | Self::SameBlock { .. }
            | Self::Peer { .. }
            | Self::StepNumber { .. }
            | Self::NoPeer { .. }
            | Self::Count { .. }
            | Self::Bounds { .. }
            | Self::Dependency { .. }
            | Self::SharedEnd { .. }
            | Self::WaitCycle { .. }
            | Self::TooLarge { .. } => true,
            Self::Missing { name, .. } => *name == "coll",
            Self::Limit { what, .. } => *what == limits::CHUNKS,
            _ => false,
        }
    }
}

use super::limits;
