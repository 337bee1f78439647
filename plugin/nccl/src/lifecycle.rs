//! NCCL's functions that make and end communicators, and its groups: each goes on to NCCL's own, and this library takes note.

use crate::background::IN_PROGRESS;
use crate::collectives::NcclComm;
use crate::groups;
use crate::members::{Making, asked, find, give_back, made, refuse, take};
use crate::names::NcclName;
use crate::real::{address, inside, is_inside, is_missing};
use crate::seen::SeenCommunicator;
use runtime::NcclId;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

const INTERNAL_ERROR: c_int = 3;
/// The flag with which `ncclCommShrink` ends what its parent does.
const SHRINK_ABORT: c_int = 1;

thread_local! {
    /// Where the communicators will be that are made in the group of this thread.
    static PENDING: RefCell<Vec<(usize, Making)>> = const { RefCell::new(Vec::new()) };
}

/// A defect of this library is no reason to end the job.
fn guarded(result: c_int, note: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(note)).unwrap_or(result)
}

/// The beginning of an `ncclConfig_t`.
#[repr(C)]
struct ConfigHead {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// How a communicator with a configuration is made; without one, or without a word about it, as `otherwise`.
///
/// # Safety
/// The configuration is null or one.
unsafe fn making(config: *const c_void, otherwise: Making) -> Making {
    // SAFETY: the caller promises it; all versions of it have these fields.
    match unsafe { config.cast::<ConfigHead>().as_ref() }.map(|head| head.blocking) {
        Some(0) => Making::NonBlocking,
        Some(1) => Making::Blocking,
        _ => otherwise,
    }
}

/// How a communicator is made that has the configuration of another one; new ranks have no other one.
fn as_parent(parent: NcclComm) -> Making {
    if find(parent).is_none_or(|seen| seen.is_blocking) { Making::Blocking } else { Making::NonBlocking }
}

/// A part of a communicator is made as that was, or as its configuration says.
///
/// # Safety
/// The configuration is null or one.
unsafe fn making_of_part(parent: NcclComm, config: *const c_void) -> Making {
    // SAFETY: the caller promises it.
    match unsafe { making(config, as_parent(parent)) } {
        Making::Blocking | Making::Split => Making::Split,
        Making::NonBlocking | Making::NonBlockingSplit => Making::NonBlockingSplit,
    }
}

/// A communicator was made, or will be when the group ends.
fn note(result: c_int, comm: *mut NcclComm, making: Making) -> c_int {
    if is_inside() || comm.is_null() {
        return result;
    }
    guarded(result, || {
        if groups::is_inside() {
            if result == 0 || result == IN_PROGRESS {
                PENDING.with_borrow_mut(|pending| pending.push((comm as usize, making)));
            }
            return result;
        }
        let is_there = result == 0 || result == IN_PROGRESS;
        // SAFETY: NCCL has written it there.
        let comm = if is_there { unsafe { comm.read() } } else { std::ptr::null_mut() };
        made(comm, result, making)
    })
}

/// The communicators of a group exist now. Their ranks may be in one thread, so all compare at the same time.
fn note_group(result: c_int) -> c_int {
    let pending = PENDING.with_borrow_mut(std::mem::take);
    let note_one = |(place, making): (usize, Making)| {
        if result != 0 && result != IN_PROGRESS {
            return result;
        }
        // SAFETY: where the caller wanted its communicator; NCCL has written it there.
        made(unsafe { (place as *const NcclComm).read() }, result, making)
    };
    if let [one] = pending[..] {
        return note_one(one);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = pending.iter().map(|&one| scope.spawn(move || note_one(one))).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or(result));
        results.fold(result, |first, found| if first == 0 { found } else { first })
    })
}

/// Calls NCCL's function of a name.
macro_rules! go_on {
    ($name:ident($($argument:ident: $type:ty),*)) => {
        // SAFETY: it is NCCL's function of this name, and the caller has given its arguments.
        inside(|| unsafe {
            let function: unsafe extern "C" fn($($type),*) -> c_int = std::mem::transmute(address(NcclName::$name));
            function($($argument),*)
        })
    };
}

macro_rules! makers {
    ($($name:ident($($argument:ident: $type:ty),+) makes $comm:ident $making:expr;)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            // SAFETY: the caller gives NCCL a configuration, or null.
            let making = catch_unwind(AssertUnwindSafe(|| unsafe { $making })).unwrap_or(Making::Blocking);
            note(go_on!($name($($argument: $type),+)), $comm, making)
        }
    )+ };
}

makers! {
    ncclCommInitRank(comm: *mut NcclComm, ranks: c_int, id: NcclId, rank: c_int)
        makes comm making(std::ptr::null(), Making::Blocking);
    ncclCommInitRankConfig(comm: *mut NcclComm, ranks: c_int, id: NcclId, rank: c_int, config: *mut c_void)
        makes comm making(config, Making::Blocking);
    ncclCommInitRankScalable(
        comm: *mut NcclComm, ranks: c_int, rank: c_int, ids: c_int, id: *mut c_void, config: *mut c_void)
        makes comm making(config, Making::Blocking);
    ncclCommSplit(parent: NcclComm, colour: c_int, key: c_int, comm: *mut NcclComm, config: *mut c_void)
        makes comm making_of_part(parent, config);
    // Where it will be is known at once, other than for a split.
    ncclCommGrow(
        parent: NcclComm, ranks: c_int, id: *const c_void, rank: c_int, comm: *mut NcclComm, config: *mut c_void)
        makes comm making(config, as_parent(parent));
}

/// A communicator without some of the ranks, which may be gone already. If what the parent does is to end, it ends here first.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommShrink(
    parent: NcclComm,
    excluded: *mut c_int,
    count: c_int,
    comm: *mut NcclComm,
    config: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller gives NCCL a configuration, or null.
    let making = catch_unwind(|| unsafe { making_of_part(parent, config) }).unwrap_or(Making::Blocking);
    let leaves_out = |rank: usize| {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller gives NCCL so many ranks.
        count == 0 || excluded.is_null() || (0..count).any(|at| unsafe { excluded.add(at).read() } == rank as c_int)
    };
    // Where NCCL refuses, it leaves the parent as it is.
    let is_refused =
        || is_missing(NcclName::ncclCommShrink) || asked(NcclName::ncclCommUserRank, parent).is_none_or(leaves_out);
    if flags == SHRINK_ABORT && !is_inside() && !is_refused() && !has_ended(parent, SeenCommunicator::retire) {
        return INTERNAL_ERROR;
    }
    let result = go_on!(ncclCommShrink(
        parent: NcclComm,
        excluded: *mut c_int,
        count: c_int,
        comm: *mut NcclComm,
        config: *mut c_void,
        flags: c_int
    ));
    note(result, comm, making)
}

/// Ends what the communicator does, as an abort, but it stays until it is destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommRevoke(comm: NcclComm, flags: c_int) -> c_int {
    let is_refused = || flags != 0 || is_missing(NcclName::ncclCommRevoke);
    if !is_inside() && !is_refused() && !has_ended(comm, SeenCommunicator::retire) {
        return INTERNAL_ERROR;
    }
    go_on!(ncclCommRevoke(comm: NcclComm, flags: c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitAll(comms: *mut NcclComm, devices: c_int, list: *const c_int) -> c_int {
    let result = go_on!(ncclCommInitAll(comms: *mut NcclComm, devices: c_int, list: *const c_int));
    if devices == 1 {
        return note(result, comms, Making::Blocking);
    }
    guarded(result, || {
        for at in 0..usize::try_from(devices).unwrap_or(0) {
            if result == 0 && !comms.is_null() {
                // SAFETY: NCCL has written as many communicators as there are devices.
                refuse(unsafe { comms.add(at).read() }, "one thread has several of its ranks", true);
            }
        }
        result
    })
}

/// Ends a communicator by NCCL's function. If NCCL refuses, it lives on as before, with its plans.
fn ended(comm: NcclComm, end: impl FnOnce() -> c_int) -> c_int {
    let gone = if is_inside() { None } else { catch_unwind(|| take(comm)).unwrap_or(None) };
    let result = end();
    let after = || match gone {
        Some(seen) if result != 0 && result != IN_PROGRESS => give_back(comm, seen),
        gone => drop(gone),
    };
    guarded(result, || {
        after();
        result
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: NcclComm) -> c_int {
    // As NCCL gives it where it has not done what it was asked for before.
    match groups::refused_as_busy(comm) {
        Some(refused) => refused,
        None => ended(comm, || go_on!(ncclCommDestroy(comm: NcclComm))),
    }
}

/// The communicator is known until it is destroyed: an abort ends what waits in it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(comm: NcclComm) -> c_int {
    if let Some(refused) = groups::refused_as_busy(comm) {
        return refused;
    }
    let result = go_on!(ncclCommFinalize(comm: NcclComm));
    if is_inside() || result != 0 && result != IN_PROGRESS {
        return result;
    }
    guarded(result, || find(comm).map_or(result, |seen| seen.finalized(result)))
}

/// Ends what this library does for a communicator, by `end`. False: it does not end, so NCCL must not end the rest.
fn has_ended(comm: NcclComm, end: fn(&SeenCommunicator) -> bool) -> bool {
    let has_ended = catch_unwind(|| find(comm).is_none_or(|seen| end(&seen))).unwrap_or(true);
    if !has_ended {
        crate::settings::say("an abort: a thread that works for the communicator does not end");
    }
    has_ended
}

/// Ends what this library does for the communicator first.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: NcclComm) -> c_int {
    if !is_inside() && !has_ended(comm, SeenCommunicator::abort) {
        return INTERNAL_ERROR;
    }
    ended(comm, || go_on!(ncclCommAbort(comm: NcclComm)))
}

/// As long as this library works for a communicator in the background, it is in progress.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(comm: NcclComm, error: *mut c_int) -> c_int {
    if !is_inside() && !error.is_null() {
        let state = catch_unwind(|| find(comm).and_then(|seen| seen.state())).unwrap_or(None);
        if let Some(code) = state {
            // SAFETY: NCCL's caller wants it there.
            unsafe { error.write(code) };
            return 0;
        }
    }
    go_on!(ncclCommGetAsyncError(comm: NcclComm, error: *mut c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGroupStart() -> c_int {
    let result = go_on!(ncclGroupStart());
    if result == 0 && !is_inside() {
        groups::enter();
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGroupEnd() -> c_int {
    if is_inside() {
        return go_on!(ncclGroupEnd());
    }
    let Some(kept) = groups::leave() else { return go_on!(ncclGroupEnd()) };
    let end = || {
        let result = go_on!(ncclGroupEnd());
        guarded(result, || note_group(result))
    };
    // A defect of this library may leave a group without its end, but is no reason to end the job.
    catch_unwind(AssertUnwindSafe(|| kept.end(end))).unwrap_or(INTERNAL_ERROR)
}

/// Ends a group that does nothing but say how long it would take.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGroupSimulateEnd(info: *mut c_void) -> c_int {
    if !is_inside() {
        // Its communicators are made by no group, either.
        let _ = catch_unwind(|| drop((groups::leave(), PENDING.with_borrow_mut(std::mem::take))));
    }
    go_on!(ncclGroupSimulateEnd(info: *mut c_void))
}
