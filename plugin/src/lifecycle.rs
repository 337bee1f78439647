//! Communicators: how they are made, asked, and freed.
#![allow(non_camel_case_types, reason = "these are the names of the C interface")]

use crate::handles::{antiphon_comm, antiphon_comm_t, communicator};
use crate::status::{CallRefusal, antiphon_result_t, check, guarded, number_of, text};
use comm::{Communicator, Config};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// # Safety
/// `out` can be written.
unsafe fn give(communicator: Communicator, out: *mut antiphon_comm_t) {
    let handle = Box::new(antiphon_comm::new(communicator));
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(handle)) };
}

/// # Safety
/// The text is null, or ends with a zero byte.
pub(crate) unsafe fn string(of: *const c_char, what: &str) -> Result<Option<String>, CallRefusal> {
    if of.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(of) }.to_str();
    text.map(|text| Some(text.to_owned())).map_err(|_| CallRefusal::argument(format!("{what} is not UTF-8")))
}

/// The communicator of all processes that a launcher has started: torchrun, mpirun, srun, or whoever has set `ANTIPHON_RANK`,
/// `ANTIPHON_SIZE` and `ANTIPHON_MASTER`. Without any, this process is the only rank.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_from_env(out: *mut antiphon_comm_t) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        let made = Communicator::from_env()?;
        // SAFETY: the caller's promise.
        unsafe { give(made, out) };
        Ok(())
    })
}

/// The communicator of `size` processes that find each other at `master`, `HOST:PORT`, where rank 0 listens; or at one of several
/// such addresses, with commas between them, which the others try in turn. All have the same `secret` of at least 16 bytes. NULL stands
/// for `ANTIPHON_SECRET`, or a file of the user.
///
/// # Safety
/// The texts are null or end with a zero byte; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_connect(
    rank: c_int,
    size: c_int,
    master: *const c_char,
    secret: *const c_char,
    out: *mut antiphon_comm_t,
) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        let rank = number_of(rank)?;
        let size = usize::try_from(size).map_err(|_| CallRefusal::argument(format!("{size} ranks are none")))?;
        // SAFETY: the caller's promise.
        let (master, secret) = unsafe { (string(master, "the master")?, string(secret, "the secret")?) };
        let master = match master {
            None if size > 1 => return Err(CallRefusal::argument("the master is NULL")),
            master => master.unwrap_or_default(),
        };
        let masters = master.split(',').map(|one| one.trim().to_owned()).collect();
        let mut config = Config { secret, masters, ..Config::new(rank, size, String::new()) };
        config.read_env()?;
        let made = Communicator::connect(&config)?;
        // SAFETY: the caller's promise.
        unsafe { give(made, out) };
        Ok(())
    })
}

/// Makes communicators of the ranks that name the same color, in the order of their keys, then of their ranks. All ranks of the
/// communicator call it. A rank with a negative color gets NULL.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_split(
    comm: antiphon_comm_t,
    color: c_int,
    key: c_int,
    out: *mut antiphon_comm_t,
) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        let made = unsafe { communicator(comm)? }.communicator.split(u32::try_from(color).ok(), i64::from(key))?;
        // SAFETY: the same.
        unsafe {
            match made {
                Some(made) => give(made, out),
                None => out.write(std::ptr::null_mut()),
            }
        }
        Ok(())
    })
}

/// This process's rank in a communicator.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_rank(comm: antiphon_comm_t, out: *mut c_int) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        unsafe { out.write(communicator(comm)?.communicator.rank() as c_int) };
        Ok(())
    })
}

/// How many ranks a communicator has.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_size(comm: antiphon_comm_t, out: *mut c_int) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        unsafe { out.write(communicator(comm)?.communicator.size() as c_int) };
        Ok(())
    })
}

/// Whether a table is in use for these ranks (1), which says which plan serves a call, or that stock does; or none (0). All ranks get
/// the same answer.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_has_table(comm: antiphon_comm_t, out: *mut c_int) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        unsafe { out.write(c_int::from(communicator(comm)?.communicator.has_table())) };
        Ok(())
    })
}

/// Ends all calls of all ranks of this communicator, under way or to come, with `ANTIPHON_ABORTED`. Communicators that it was
/// split from, or that were split from it, go on. Another thread may wait in a call meanwhile.
///
/// # Safety
/// The handle is a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_abort(comm: antiphon_comm_t) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { communicator(comm)? }.communicator.abort();
        Ok(())
    })
}

/// What is left of a communicator after a failure: a new communicator of the ranks that call this function, in the same order. All
/// that are left must call it. They wait for each other 5 seconds longer than a call may go without progress; a rank that is dead
/// or does not come is left behind. If fewer than `least` ranks are left, or the others have given this rank up, the result is
/// `ANTIPHON_INVALID_ARGUMENT`; after other errors the call can be repeated. The old communicator makes no calls any more, and is
/// to be freed.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_rebuild(
    comm: antiphon_comm_t,
    least: c_int,
    out: *mut antiphon_comm_t,
) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        let rebuilt = unsafe { communicator(comm)? }.communicator.rebuild(usize::try_from(least).unwrap_or(0))?;
        // SAFETY: the same.
        unsafe { give(rebuilt, out) };
        Ok(())
    })
}

/// Sets how many seconds a call of this process may go without any progress before it fails: 30 unless `ANTIPHON_TIMEOUT` says
/// otherwise. Communicators that are made of this one from now on have the same limit.
///
/// # Safety
/// The handle is a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_set_timeout(comm: antiphon_comm_t, seconds: f64) -> antiphon_result_t {
    guarded(|| {
        let limit = match seconds > 0.0 {
            true => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            false => return Err(CallRefusal::argument(format!("{seconds} is no number of seconds"))),
        };
        // SAFETY: the caller's promise.
        unsafe { communicator(comm)? }.communicator.set_time_limit(limit);
        Ok(())
    })
}

/// What a program does while it waits.
pub type antiphon_idle_t = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// The context of a function that threads call while they wait.
struct IdleContext(*mut c_void);

// SAFETY: the caller promises that any thread may use it.
unsafe impl Send for IdleContext {}
// SAFETY: the same.
unsafe impl Sync for IdleContext {}

impl IdleContext {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// A thread that waits for a call calls this function again and again, and does not sleep: for something else that has to go on
/// meanwhile, such as MPI. It holds for all communicators of the job, and can be set once. The function must not call this
/// library, nor wait.
///
/// # Safety
/// The handle is a communicator that was not freed. The function can be called by any thread that makes calls of the job's
/// communicators, with this context, as long as there are any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_set_idle(
    comm: antiphon_comm_t,
    idle: antiphon_idle_t,
    context: *mut c_void,
) -> antiphon_result_t {
    guarded(|| {
        let idle = idle.ok_or_else(|| CallRefusal::argument("the function is NULL".to_owned()))?;
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        let context = IdleContext(context);
        // SAFETY: the same.
        let is_set = communicator.set_idle_work(Arc::new(move || unsafe { idle(context.get()) }));
        match is_set {
            true => Ok(()),
            false => Err(CallRefusal::argument("the job has such a function already".to_owned())),
        }
    })
}

/// Frees a communicator, and sets it to NULL. No call of it may be under way.
///
/// # Safety
/// `comm` points to NULL or to a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_comm_free(comm: *mut antiphon_comm_t) -> antiphon_result_t {
    guarded(|| {
        check(comm)?;
        // SAFETY: the caller's promise; the handle came from a box (`give`).
        unsafe {
            let handle = comm.replace(std::ptr::null_mut());
            if !handle.is_null() {
                drop(Box::from_raw(handle));
            }
        }
        Ok(())
    })
}

/// What the last call of a communicator ran, and why, on one line. Valid until the next call of this function with this
/// communicator. NULL if the handle is NULL.
///
/// # Safety
/// The handle is NULL or a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_plan(comm: antiphon_comm_t) -> *const c_char {
    let mut found = std::ptr::null();
    guarded(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        let mut plan = handle.plan.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *plan = text(&handle.communicator.last_plan());
        found = plan.as_ptr();
        Ok(())
    });
    found
}
