//! The functions for graphs, by their names and arguments in CUDA. A graph here is a row of launches.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{CAPTURE_INVALIDATED, Code, ILLEGAL_STATE, INVALID_VALUE};
use crate::driver::{STREAMS, current, find, give, initialized, insert, remove};
use crate::streams::RepeatableWork;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong};
use std::sync::{Arc, Mutex, PoisonError};

type Graph = Arc<Vec<RepeatableWork>>;

static GRAPHS: Mutex<BTreeMap<usize, Graph>> = Mutex::new(BTreeMap::new());
static EXECUTABLES: Mutex<BTreeMap<usize, Graph>> = Mutex::new(BTreeMap::new());

/// How many graphs of both kinds there are.
pub(crate) fn held() -> usize {
    [&GRAPHS, &EXECUTABLES].map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).len()).iter().sum()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: c_int) -> Code {
    current(|_| if find(&STREAMS, stream)?.begin_recording() { Ok(()) } else { Err(ILLEGAL_STATE) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Code {
    current(|_| {
        let recorded = find(&STREAMS, stream)?.end_recording().ok_or(ILLEGAL_STATE)?;
        let recorded = recorded.ok_or(CAPTURE_INVALIDATED)?;
        // SAFETY: as the caller of the driver promises.
        unsafe { give(graph, insert(&GRAPHS, Arc::new(recorded))) }
    })
}

/// With `FAKE_CUDA_CAPTURES=1` all streams say that they record a graph, and do their work all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_int) -> Code {
    let all_do = std::env::var("FAKE_CUDA_CAPTURES").is_ok_and(|value| value == "1");
    current(|_| {
        let is_captured = find(&STREAMS, stream)?.is_recording() || all_do;
        // SAFETY: as the caller of the driver promises.
        unsafe { give(status, c_int::from(is_captured)) }
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
    current(|_| {
        let (graph, stream) = (find(&EXECUTABLES, executable)?, find(&STREAMS, stream)?);
        graph.iter().for_each(|work| stream.push_repeatable(work.clone()));
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
