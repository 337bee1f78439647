//! Tuning from C: a program's own candidates, and the measuring.
//!
//! The principal functions are [`antiphon_tune_candidate_when`] and [`antiphon_tune`].

#![allow(non_camel_case_types, reason = "these are the names of the C interface")]

use crate::handles::{antiphon_comm, antiphon_comm_t, antiphon_dtype_t, antiphon_op_t};
use crate::handles::{c_dtype, c_op, communicator, dtype, op};
use crate::lifecycle::string;
use crate::status::{CallRefusal, antiphon_result_t, guarded};
use comm::{CandidateFunction, CandidateMemory, Collective, CollectiveCall, Communicator, TuneCandidate, TuneOptions};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Collectives that candidates may be for.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum antiphon_collective {
    /// `antiphon_all_reduce`, in place.
    ANTIPHON_ALL_REDUCE,
    /// `antiphon_all_gather`.
    ANTIPHON_ALL_GATHER,
    /// `antiphon_reduce_scatter`.
    ANTIPHON_REDUCE_SCATTER,
    /// `antiphon_all_to_all`.
    ANTIPHON_ALL_TO_ALL,
    /// `antiphon_broadcast`, which is in place.
    ANTIPHON_BROADCAST,
    /// `antiphon_reduce`.
    ANTIPHON_REDUCE,
    /// `antiphon_gather`.
    ANTIPHON_GATHER,
    /// `antiphon_scatter`.
    ANTIPHON_SCATTER,
}

/// A call that a candidate has to do, with the meaning that the function of the same name gives to its arguments.
#[repr(C)]
pub struct antiphon_call {
    /// One of `enum antiphon_collective`.
    pub collective: c_int,
    /// The type of elements.
    pub dtype: antiphon_dtype_t,
    /// How they are reduced; 0 where nothing is.
    pub op: antiphon_op_t,
    /// The root; 0 where there is none.
    pub root: c_int,
    /// Elements, as the function of the same name counts them.
    pub count: usize,
    /// What this rank gives; equal to `recv` in place.
    pub send: *const c_void,
    /// What it gets.
    pub recv: *mut c_void,
}

/// A way to do a collective: all ranks call it at the same time, with a communicator of their own for it. It returns 0 if it has
/// done its work, and anything else if it could not. `user` is what was registered with it.
pub type antiphon_candidate_t =
    Option<unsafe extern "C" fn(comm: antiphon_comm_t, call: *const antiphon_call, user: *mut c_void) -> c_int>;

/// Whether a candidate can do a call: 0 if not. The buffers of the call are NULL. All ranks ask, about the same calls, and must get the
/// same answer, so it looks at nothing but the call and what was registered with it.
pub type antiphon_predicate_t = Option<unsafe extern "C" fn(call: *const antiphon_call, user: *mut c_void) -> c_int>;

/// What to measure. Zeros mean the defaults of `antiphon tune`.
#[repr(C)]
pub struct antiphon_tune_options {
    /// Collectives of `enum antiphon_collective`; NULL for all_reduce, all_gather, reduce_scatter, broadcast and all_to_all.
    pub collectives: *const c_int,
    /// How many.
    pub collective_count: usize,
    /// Sizes in bytes, of all blocks together; NULL for 1 KiB, 4 KiB, … 16 MiB.
    pub sizes: *const usize,
    /// How many.
    pub size_count: usize,
    /// With elements of this type.
    pub dtype: antiphon_dtype_t,
    /// The reduction, for collectives that reduce.
    pub op: antiphon_op_t,
    /// How many seconds all measuring may take, about; 0 for 60.
    pub budget: f64,
    /// How many seconds a call may go without progress; 0 for 10.
    pub timeout: f64,
}

/// A function of the program's, and what it wants to be told.
#[derive(Clone, Copy)]
struct CFunction {
    run: unsafe extern "C" fn(antiphon_comm_t, *const antiphon_call, *mut c_void) -> c_int,
    predicate: antiphon_predicate_t,
    user: *mut c_void,
}

// SAFETY: whoever registers a candidate promises that it may be called from the thread that tunes.
unsafe impl Send for CFunction {}
// SAFETY: the same.
unsafe impl Sync for CFunction {}

const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
];

fn collective(of: c_int) -> Result<Collective, CallRefusal> {
    let found = usize::try_from(of).ok().and_then(|index| COLLECTIVES.get(index));
    found.copied().ok_or_else(|| CallRefusal::argument(format!("there is no collective {of}")))
}

fn c_call(call: &CollectiveCall, send: *const c_void, recv: *mut c_void) -> antiphon_call {
    let at = COLLECTIVES.iter().position(|of| *of == call.collective).unwrap_or_default();
    antiphon_call {
        collective: at as c_int,
        dtype: c_dtype(call.dtype),
        op: call.op.map(c_op).unwrap_or_default(),
        root: call.root.unwrap_or_default() as c_int,
        count: call.count,
        send,
        recv,
    }
}

impl CFunction {
    fn can_do(&self, call: &CollectiveCall) -> bool {
        let told = c_call(call, std::ptr::null(), std::ptr::null_mut());
        // SAFETY: the call lives until it returns; `user` is what it was registered with.
        self.predicate.is_none_or(|predicate| unsafe { predicate(&raw const told, self.user) } != 0)
    }

    fn call(&self, comm: &Communicator, call: &CollectiveCall, memory: CandidateMemory<'_>) -> Result<(), String> {
        let (send, recv) = match memory {
            CandidateMemory::InPlace(bytes) => (bytes.as_ptr().cast(), bytes.as_mut_ptr().cast()),
            CandidateMemory::OutOfPlace { input, output } => (input.as_ptr().cast(), output.as_mut_ptr().cast()),
        };
        let told = c_call(call, send, recv);
        let mut handle = antiphon_comm::new(comm.clone());
        // SAFETY: the handle, the call and the buffers live until it returns; `user` is what it was registered with.
        match unsafe { (self.run)(&raw mut handle, &raw const told, self.user) } {
            0 => Ok(()),
            other => Err(format!("it returned {other}")),
        }
    }
}

/// Registers a function of the program as a candidate for `antiphon_tune`. All ranks register the same names in the same order.
/// No two candidates of one collective have the same name. Nothing is called yet. A function may be called by any thread that
/// tunes, until the communicator is freed.
///
/// # Safety
/// The handle is a communicator that was not freed; the name ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_tune_candidate(
    comm: antiphon_comm_t,
    name: *const c_char,
    collective: c_int,
    run: antiphon_candidate_t,
    user: *mut c_void,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { antiphon_tune_candidate_when(comm, name, collective, run, None, user) }
}

/// The same for a function that can only do some calls of the collective: those of which `predicate` says so. Others are not measured.
/// After the tuning it is asked again, before each call that the table leaves to the function; where it says no, the best of the rest
/// serves. Where a rank's predicate says something else than that of rank 0 when it is to be measured, the candidate is refused. With
/// NULL it is `antiphon_tune_candidate`.
///
/// # Safety
/// The handle is a communicator that was not freed; the name ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_tune_candidate_when(
    comm: antiphon_comm_t,
    name: *const c_char,
    collective: c_int,
    run: antiphon_candidate_t,
    predicate: antiphon_predicate_t,
    user: *mut c_void,
) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        // SAFETY: the same.
        let name = unsafe { string(name, "the name")? }.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| CallRefusal::argument("the candidate has no name"))?;
        let run = run.ok_or_else(|| CallRefusal::argument(format!("the candidate `{name}` is NULL")))?;
        let of = CFunction { run, predicate, user };
        let function: Arc<CandidateFunction> = Arc::new(move |comm, call, memory| of.call(comm, call, memory));
        let mut candidate = TuneCandidate::function(name, vec![self::collective(collective)?], function);
        if predicate.is_some() {
            candidate = candidate.when(Arc::new(move |call| of.can_do(call)));
        }
        locked(&handle.candidates).push(candidate);
        Ok(())
    })
}

/// Measures stock, textbook algorithms and the registered candidates on all ranks, which all call this with the same options, and
/// uses what is faster than stock from the next call of this communicator on. A candidate has to be right again and again, for
/// smaller counts too; it writes only what it has to, and ends all its calls. One that is wrong or fails is refused, and the others
/// are measured. Rank 0 writes the table to the file `table`, unless that is
/// NULL. A table holds the names of functions, not the functions: see `antiphon_use_candidates`.
///
/// In a program that `antiphon tune -- PROGRAM` has started, the command says what is measured, and makes the table. There, a
/// candidate that hangs or crashes is refused too.
///
/// # Safety
/// The handle is a communicator that was not freed. `options` is NULL, or its pointers are NULL or point to as many numbers as it
/// says. `table` is NULL or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_tune(
    comm: antiphon_comm_t,
    options: *const antiphon_tune_options,
    table: *const c_char,
) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        // SAFETY: the same.
        let options = unsafe { options_of(options)? };
        // SAFETY: the same.
        let table = unsafe { string(table, "the name of the table")? };
        let given = locked(&handle.candidates).clone();
        let made = handle.communicator.tune(&options, given)?;
        if let (Some(made), Some(path), 0) = (made, table, handle.communicator.rank()) {
            let written = made.table.write(Path::new(&path));
            written.map_err(|error| CallRefusal::system(error.to_string()))?;
        }
        Ok(())
    })
}

/// From the next call on, this communicator uses a table of `antiphon tune` or `antiphon_tune`, instead of `ANTIPHON_TABLE`. All ranks
/// make this call, and each reads the file. Either all of them use it, or it is an error on all of them.
///
/// # Safety
/// The handle is a communicator that was not freed; the name of the file ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_use_table(comm: antiphon_comm_t, file: *const c_char) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        // SAFETY: the same.
        let file = unsafe { string(file, "the name of the table")? };
        let file = file.ok_or_else(|| CallRefusal::argument("the name of the table is NULL"))?;
        Ok(handle.communicator.use_table_of(Path::new(&file))?)
    })
}

/// From the next blocking call on, registered candidates serve the calls of this communicator for which its table names
/// them: those of the type of elements and the reduction that were measured, an all_reduce or broadcast in place, others not; and of
/// a candidate with a predicate, only those for which it says yes.
/// All ranks make this call. Where a rank has not registered a candidate of that name, the best of the rest serves on all of them, and
/// rank 0 says so on standard error. After `antiphon_tune` this is so already.
///
/// # Safety
/// The handle is a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_use_candidates(comm: antiphon_comm_t) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        let given = locked(&handle.candidates).clone();
        handle.communicator.use_candidates(&given)?;
        Ok(())
    })
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// As `antiphon_tune`.
unsafe fn options_of(given: *const antiphon_tune_options) -> Result<TuneOptions, CallRefusal> {
    let mut options = TuneOptions::default();
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { given.as_ref() }) else { return Ok(options) };
    if !given.collectives.is_null() {
        // SAFETY: the same.
        let list = unsafe { std::slice::from_raw_parts(given.collectives, given.collective_count) };
        options.collectives = list.iter().map(|&of| collective(of)).collect::<Result<_, _>>()?;
    }
    if !given.sizes.is_null() {
        // SAFETY: the same.
        let list = unsafe { std::slice::from_raw_parts(given.sizes, given.size_count) };
        options.sizes = list.iter().map(|&size| size as u64).collect();
    }
    (options.dtype, options.op) = (dtype(given.dtype)?, op(given.op)?);
    for (what, seconds, place) in
        [("budget", given.budget, &mut options.budget), ("timeout", given.timeout, &mut options.limit)]
    {
        let senseless = || CallRefusal::argument(format!("the {what}, {seconds}, is no number of seconds"));
        if seconds != 0.0 {
            *place = Duration::try_from_secs_f64(seconds).map_err(|_| senseless())?;
        }
    }
    Ok(options)
}
