//! The functions for graphs, by their names and arguments in CUDA. A graph here has launches, copies on the device, functions of the
//! host, and nodes for events outside of it.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{CAPTURE_UNSUPPORTED, Code, ILLEGAL_STATE, INVALID_VALUE};
use crate::driver::{STREAMS, current, find, give, initialized, insert, remove};
use crate::recordings::RecordedGraph;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

type Graph = Arc<RecordedGraph>;

static GRAPHS: Mutex<BTreeMap<usize, Graph>> = Mutex::new(BTreeMap::new());
static EXECUTABLES: Mutex<BTreeMap<usize, Graph>> = Mutex::new(BTreeMap::new());

/// How many graphs of both kinds there are.
pub(crate) fn held() -> usize {
    [&GRAPHS, &EXECUTABLES].map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).len()).iter().sum()
}

/// The streams that record, how strictly, and for which thread.
static RECORDING: Mutex<BTreeMap<usize, (c_int, ThreadId)>> = Mutex::new(BTreeMap::new());

/// How strict a thread or a recording is: about all threads, about its own, or about none.
const GLOBAL: c_int = 0;
const OF_THREAD: c_int = 1;
const RELAXED: c_int = 2;

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Whether this thread may do what waits or allocates. Recordings that forbid it are spoilt if it may not.
pub(crate) fn check_unsafe() -> Result<(), Code> {
    let recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    let mine = std::thread::current().id();
    let forbids = |(mode, thread): (c_int, ThreadId)| match (MODE.get(), mode) {
        (RELAXED, _) | (_, RELAXED) => false,
        (GLOBAL, GLOBAL) => true,
        _ => thread == mine,
    };
    let forbidding: Vec<_> = recording.iter().filter(|(_, by)| forbids(**by)).map(|(stream, _)| *stream).collect();
    forbidding.iter().filter_map(|stream| find(&STREAMS, *stream).ok()).for_each(|stream| stream.spoil());
    if forbidding.is_empty() { Ok(()) } else { Err(CAPTURE_UNSUPPORTED) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Code {
    current(|_| {
        // SAFETY: as the caller of the driver promises: null, or a mode.
        let wanted = unsafe { mode.as_ref() }.copied().filter(|mode| [GLOBAL, OF_THREAD, RELAXED].contains(mode));
        let before = MODE.replace(wanted.ok_or(INVALID_VALUE)?);
        // SAFETY: as above.
        unsafe { give(mode, before) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) -> Code {
    current(|_| {
        if ![GLOBAL, OF_THREAD, RELAXED].contains(&mode) {
            return Err(INVALID_VALUE);
        }
        if !find(&STREAMS, stream)?.begin_recording() {
            return Err(ILLEGAL_STATE);
        }
        let by = (mode, std::thread::current().id());
        RECORDING.lock().unwrap_or_else(PoisonError::into_inner).insert(stream, by);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Code {
    current(|_| {
        let recorded = find(&STREAMS, stream)?.end_recording();
        RECORDING.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(graph, insert(&GRAPHS, Arc::new(recorded?))) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_int) -> Code {
    current(|_| {
        let is_captured = find(&STREAMS, stream)?.is_recording();
        // SAFETY: as the caller of the driver promises.
        unsafe { give(status, c_int::from(is_captured)) }
    })
}

/// Only the status and the number are told: 1 while the stream records, 2 once the recording was spoilt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: usize,
    status: *mut c_int,
    number: *mut c_ulonglong,
    graph: *mut usize,
    nodes: *mut *const usize,
    count: *mut usize,
) -> Code {
    current(|_| {
        let recording = find(&STREAMS, stream)?.recorded_place().map(|place| place.recording);
        if !(graph.is_null() && nodes.is_null() && count.is_null()) {
            return Err(INVALID_VALUE);
        }
        let (said, of_recording) = match recording {
            None => (0, 0),
            Some(recording) if recording.is_open() => (1, recording.number),
            Some(_) => (2, 0),
        };
        // SAFETY: as the caller of the driver promises: the number may be null.
        unsafe {
            give(status, said)?;
            number.as_mut().into_iter().for_each(|to| *to = of_recording);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(made: *mut usize, graph: usize, flags: c_ulonglong) -> Code {
    current(|_| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller of the driver promises.
        unsafe { give(made, insert(&EXECUTABLES, find(&GRAPHS, graph)?)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> Code {
    current(|device| {
        let (graph, stream) = (find(&EXECUTABLES, executable)?, find(&STREAMS, stream)?);
        match graph.row() {
            Some(row) => row.for_each(|work| stream.push_repeatable(work.clone())),
            None => {
                let seed = device.next_seed();
                let graph = graph.clone();
                stream.push_repeatable(Arc::new(move || graph.run(seed)));
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: usize) -> Code {
    initialized(|| remove(&EXECUTABLES, executable).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: usize) -> Code {
    initialized(|| remove(&GRAPHS, graph).map(drop))
}
