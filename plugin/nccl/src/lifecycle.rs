//! NCCL's functions that make and end communicators, and its groups: each goes on to NCCL's own, and this library takes note.

use crate::collectives::{NcclComm, inside, is_inside};
use crate::groups;
use crate::members::{made, refuse, take};
use crate::names::NcclName;
use crate::real::address;
use runtime::NcclId;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

const INTERNAL_ERROR: c_int = 3;

thread_local! {
    /// Where the communicators will be that are made in the group of this thread.
    static PENDING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A defect of this library is no reason to end the job.
fn guarded(result: c_int, note: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(note)).unwrap_or(result)
}

/// A communicator was made, or will be when the group ends.
fn note(result: c_int, comm: *mut NcclComm) -> c_int {
    if is_inside() || comm.is_null() {
        return result;
    }
    guarded(result, || {
        if groups::is_inside() {
            if result == 0 {
                PENDING.with_borrow_mut(|pending| pending.push(comm as usize));
            }
            return result;
        }
        // SAFETY: NCCL has written it there, or nothing, if it has failed.
        made(if result == 0 || result == 7 { unsafe { comm.read() } } else { std::ptr::null_mut() }, result)
    })
}

/// The communicators of a group exist now. Their ranks may be in one thread, so all compare at the same time.
fn note_group(result: c_int) -> c_int {
    let pending = PENDING.with_borrow_mut(std::mem::take);
    let note_one = |place: usize| {
        if result != 0 && result != 7 {
            return result;
        }
        // SAFETY: where the caller wanted its communicator; NCCL has written it there.
        made(unsafe { (place as *const NcclComm).read() }, result)
    };
    if let [one] = pending[..] {
        return note_one(one);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = pending.iter().map(|&place| scope.spawn(move || note_one(place))).collect();
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
    ($($name:ident($($argument:ident: $type:ty),+) makes $comm:ident;)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            note(go_on!($name($($argument: $type),+)), $comm)
        }
    )+ };
}

makers! {
    ncclCommInitRank(comm: *mut NcclComm, ranks: c_int, id: NcclId, rank: c_int) makes comm;
    ncclCommInitRankConfig(comm: *mut NcclComm, ranks: c_int, id: NcclId, rank: c_int, config: *mut c_void) makes comm;
    ncclCommInitRankScalable(
        comm: *mut NcclComm, ranks: c_int, rank: c_int, ids: c_int, id: *mut c_void, config: *mut c_void)
        makes comm;
    ncclCommSplit(parent: NcclComm, colour: c_int, key: c_int, comm: *mut NcclComm, config: *mut c_void) makes comm;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitAll(comms: *mut NcclComm, devices: c_int, list: *const c_int) -> c_int {
    let result = go_on!(ncclCommInitAll(comms: *mut NcclComm, devices: c_int, list: *const c_int));
    if devices == 1 {
        return note(result, comms);
    }
    guarded(result, || {
        for at in 0..usize::try_from(devices).unwrap_or(0) {
            if result == 0 && !comms.is_null() {
                // SAFETY: NCCL has written as many communicators as there are devices.
                refuse(unsafe { comms.add(at).read() }, "one thread has several of its ranks");
            }
        }
        result
    })
}

macro_rules! enders {
    ($($name:ident)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(comm: NcclComm) -> c_int {
            let gone = if is_inside() { None } else { catch_unwind(|| take(comm)).unwrap_or(None) };
            let result = go_on!($name(comm: NcclComm));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(gone)));
            result
        }
    )+ };
}
enders!(ncclCommFinalize ncclCommDestroy ncclCommAbort);

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
        drop(groups::leave());
    }
    go_on!(ncclGroupSimulateEnd(info: *mut c_void))
}
