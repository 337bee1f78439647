//! The functions that make communicators of others: with some of the ranks, or with more.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "NCCL's documentation describes its functions")]

use crate::api::{Config, UniqueId, added, code_of, comm_of, give, init, ncclCommInitRankConfig, ncclGetUniqueId};
use crate::comm::Comm;
use crate::wire::{Code, INVALID_ARGUMENT, INVALID_USAGE, Kind, SUCCESS, Terms};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A part of a communicator, as its hub tells: port, number, how many ranks, and which one this is; none if it tells nothing.
fn part(parent: &Comm, told: &[u8]) -> Result<usize, Code> {
    let word =
        |at: usize| told.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    if told.is_empty() {
        return Ok(0);
    }
    let child = Comm::new(word(2) as usize, word(3) as usize, parent.is_blocking);
    child.join(word(0) as u16, word(1));
    if child.code() != SUCCESS {
        return Err(child.code());
    }
    Ok(added(child))
}

/// A communicator that was not finalized.
fn usable(comm: usize) -> Result<Arc<Comm>, Code> {
    comm_of(comm).and_then(|comm| if comm.is_finalized.load(Ordering::Acquire) { Err(INVALID_USAGE) } else { Ok(comm) })
}

fn terms_of(kind: Kind) -> Terms {
    Terms { kind, count: 0, dtype: 0, op: 0, peer: 0 }
}

/// The configuration is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: usize,
    colour: c_int,
    key: c_int,
    out: *mut usize,
    _: *const Config,
) -> Code {
    let data = [colour, key].map(i32::to_le_bytes).concat();
    let split = usable(comm).and_then(|parent| part(&parent, &parent.ask(terms_of(Kind::Split), data)?));
    // SAFETY: as the caller of NCCL promises.
    code_of(split.and_then(|handle| unsafe { give(out, handle) }))
}

/// The configuration is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: usize,
    excluded: *const c_int,
    count: c_int,
    out: *mut usize,
    _: *const Config,
    flags: c_int,
) -> Code {
    let shrunk = || {
        let parent = usable(comm)?;
        if excluded.is_null() || count < 1 || !(0..=1).contains(&flags) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as the caller of NCCL promises: so many ranks.
        let excluded = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
        if excluded.contains(&(parent.rank as c_int)) {
            return Err(INVALID_USAGE);
        }
        if flags == 1 {
            parent.revoke();
        }
        let data = excluded.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        let told = parent.ask_anyway(terms_of(Kind::Shrink), data)?;
        // SAFETY: as above.
        part(&parent, &told).and_then(|handle| unsafe { give(out, handle) })
    };
    code_of(shrunk())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: usize, flags: c_int) -> Code {
    let is_known = if flags == 0 { comm_of(comm) } else { Err(INVALID_ARGUMENT) };
    code_of(is_known.map(|comm| comm.revoke()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetUniqueId(comm: usize, id: *mut UniqueId) -> Code {
    // SAFETY: as the caller of NCCL promises.
    comm_of(comm).map_or_else(|code| code, |_| unsafe { ncclGetUniqueId(id) })
}

/// A communicator with more ranks. Those of `comm` keep their numbers; only the root of them has the id. New ranks have no `comm`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: usize,
    ranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    out: *mut usize,
    config: *const Config,
) -> Code {
    // SAFETY: as the caller of NCCL promises: null, or an id.
    let id = unsafe { id.as_ref() };
    let grown = || {
        let parent = usable(comm)?;
        let told = parent.ask(terms_of(Kind::Grow), id.map_or_else(Vec::new, |id| id.0.to_vec()))?;
        let id = UniqueId(told.try_into().map_err(|_| INVALID_USAGE)?);
        if rank != -1 || ranks as usize <= parent.ranks {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as above.
        Ok(unsafe { init(out, ranks, id, parent.rank as c_int, parent.is_blocking) })
    };
    match (comm, id) {
        (0, None) => INVALID_ARGUMENT,
        // SAFETY: as above.
        (0, Some(id)) => unsafe { ncclCommInitRankConfig(out, ranks, *id, rank, config) },
        _ => grown().unwrap_or_else(|code| code),
    }
}
