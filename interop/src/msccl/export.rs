//! From a verified program to a file for MSCCL's runtimes.
//!
//! The principal function is [`export`]. Decisions:
//! * Parts of the program that exceed a limit of the runtimes are first rewritten ([`super::fit`]). If it still exceeds
//!   limits, the program is refused, and the error lists all of them.
//! * The file is read back, imported and checked. It claims to serve only the kinds of calls for which this succeeds.
//! * Scratch that is not read is not written: a sum that is only sent on becomes `rrs`.

use super::document::{Algorithm, ClaimedCollective, Protocol};
use super::import::{collective, import};
use super::limits::{MAX_BLOCKS_PER_CHANNEL, MAX_STEPS, check};
use super::spell::spell;
use super::violation::{FileViolation, Rule};
use super::{Dialect, fit};
use program::rewrite::{self, Pairing};
use program::{self, Connection, LayoutError, PartShape, Program, VerifiedProgram};
use schedule::{Collective, Demand, Findings, RankSet, Request};
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::Rank;

/// The facts about a file that do not follow from its program.
#[derive(Clone, PartialEq, Debug)]
pub struct AlgorithmExportOptions {
    /// The dialect, and so the runtimes that can read the file.
    pub dialect: Dialect,
    /// How bytes cross a connection.
    pub protocol: Protocol,
    /// The algorithm's name.
    pub name: String,
    /// The least number of bytes that the file serves, as the runtimes count them.
    pub min_bytes: u64,
    /// The most bytes; 0 for no limit (executor).
    pub max_bytes: u64,
    /// If a rank has more threadblocks than this, senders and receivers share them.
    pub max_blocks: usize,
}

/// Why a program cannot be written as a file.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AlgorithmExportError {
    /// The format has no word for the collective.
    #[error("{dialect} has no {collective}")]
    NoOperation {
        /// The collective.
        collective: Collective,
        /// The dialect.
        dialect: Dialect,
    },
    /// Chunks of different sizes.
    #[error("MSCCL files have chunks of one size only")]
    UnequalChunks,
    /// A rank that takes no part in the collective has work to do.
    #[error("rank {rank} relays but is no member; MSCCL runs a file on the members only")]
    Relay {
        /// The rank.
        rank: Rank,
    },
    /// Senders would run further ahead than connections have room for.
    #[error("senders run {needed} messages ahead of their receivers, and {protocol} has room for {room}")]
    Window {
        /// How many messages.
        needed: u32,
        /// The protocol.
        protocol: Protocol,
        /// How many it has room for.
        room: u32,
    },
    /// More slots than are supported.
    #[error(transparent)]
    Slots(#[from] LayoutError),
    /// Limits of the runtime that the program exceeds.
    #[error("the program does not fit: {}", list(.violations))]
    Limits {
        /// The dialect.
        dialect: Dialect,
        /// Every exceeded limit; the places mean nothing, because there is no file.
        violations: Findings<FileViolation>,
    },
}

/// The first violation of each rule.
fn list(violations: &Findings<FileViolation>) -> String {
    let mut seen = BTreeSet::new();
    let name = |rule: &Rule| match rule {
        Rule::Limit { what, .. } => what,
        other => other.kind(),
    };
    let first = violations.iter().filter(|violation| seen.insert(name(&violation.rule)));
    let rules: Vec<String> = first.map(|violation| violation.rule.to_string()).collect();
    rules.join("; ")
}

/// Writes a program as a file of one of the dialects.
///
/// # Errors
/// [`AlgorithmExportError`] if the format or its runtimes cannot express the program.
pub fn export(program: &VerifiedProgram, options: &AlgorithmExportOptions) -> Result<Algorithm, AlgorithmExportError> {
    let room = options.protocol.window();
    let window = program.window();
    if window > room {
        return Err(AlgorithmExportError::Window { needed: window, protocol: options.protocol, room });
    }
    let operation = operation(program.program().demand.request().collective, options.dialect)?;
    let fitted = fitted(program.program().clone(), options, window)?;
    let mut algorithm = spell(&fitted, operation, options)?;
    let violations = check(&algorithm, options.dialect).violations;
    if !violations.is_empty() {
        return Err(AlgorithmExportError::Limits { dialect: options.dialect, violations });
    }
    let size = fitted.demand.request().size_bytes;
    let serves = |in_place| match import(&algorithm, in_place, size) {
        Ok(imported) => {
            let checked = program::check(imported.program.clone())
                .map_err(|broken| broken.map(|violation| imported.blame(violation.clone())));
            checked.map(drop)
        }
        Err(violation) => Err(Findings::from(vec![violation])),
    };
    if let Err(violations) = serves(fitted.in_place) {
        return Err(AlgorithmExportError::Limits { dialect: options.dialect, violations });
    }
    if options.dialect == Dialect::Executor && serves(!fitted.in_place).is_ok() {
        (algorithm.in_place, algorithm.out_of_place) = (Some(true), Some(true));
    }
    Ok(algorithm)
}

fn operation(collective_: Collective, dialect: Dialect) -> Result<ClaimedCollective, AlgorithmExportError> {
    let mut known = ClaimedCollective::ALL.iter().copied().filter(|&operation| dialect.knows(operation));
    let found = known.find(|&operation| collective(operation) == Some(collective_));
    found.ok_or(AlgorithmExportError::NoOperation { collective: collective_, dialect })
}

/// The program within the limits of the runtimes.
fn fitted(program: Program, options: &AlgorithmExportOptions, window: u32) -> Result<Program, AlgorithmExportError> {
    if !matches!(program.shape, PartShape::Equal { .. }) {
        return Err(AlgorithmExportError::UnequalChunks);
    }
    let program = members_only(program)?;
    let program = fit::cut(fit::narrow(fit::bounded(program), false));
    let pairing = Pairing {
        window,
        handing_on: false,
        most: Some(options.max_blocks),
        steps: MAX_STEPS,
        peers: MAX_BLOCKS_PER_CHANNEL,
        fuse: false,
    };
    let paired = |program| rewrite::pair(program, &pairing, |step| step.transfer);
    let mut packed = paired(program.clone());
    if !rewrite::assign(&mut packed, MAX_BLOCKS_PER_CHANNEL) {
        packed = paired(fit::narrow(program, true));
        rewrite::assign(&mut packed, MAX_BLOCKS_PER_CHANNEL);
    }
    Ok(packed)
}

/// The members as ranks 0, 1, …, because all ranks of an MSCCL communicator take part.
fn members_only(mut program: Program) -> Result<Program, AlgorithmExportError> {
    let request = program.demand.request().clone();
    if request.members.len() == request.ranks {
        return Ok(program);
    }
    let place = |rank: Rank| request.members.binary_search(&rank).ok().map(Rank::from_index);
    for lane in &mut program.connections {
        let member = |rank| place(rank).ok_or(AlgorithmExportError::Relay { rank });
        *lane = Connection { from: member(lane.from)?, to: member(lane.to)?, ..*lane };
    }
    let members = request.members.iter().map(|rank| std::mem::take(&mut program.ranks[rank.index()]));
    program.ranks = members.collect();
    let (ranks, root) = (request.members.len(), request.root.and_then(place));
    let request = Request { ranks, root, members: RankSet::all(ranks), ..request };
    let slots = request.chunk_count();
    let demand =
        Demand::new(request).map_err(|_| LayoutError::TooManySlots { slots, limit: schedule::MAX_CHUNKS as u64 })?;
    program.demand = Arc::new(demand);
    Ok(program)
}
