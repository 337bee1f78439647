//! `antiphon._core`: communicators for Python, below the package that people import.
//!
//! The principal type is [`CoreCommunicator`](communicator::CoreCommunicator). This crate turns Python's buffers into addresses,
//! releases Python's lock while a rank waits, and lets Ctrl-C through. What people call, with its documentation, is the Python
//! code in `python/antiphon`.
//!
//! | file | what is in it |
//! |---|---|
//! | `errors` | Python's exceptions |
//! | `elements` | which element types there are, and which of them reduce |
//! | `memory` | the buffers of Python objects |
//! | `arrange` | which memory a call uses, in place or not |
//! | `waiting` | waits that let Ctrl-C through |
//! | `carrying` | how threads that carry calls on reach Python |
//! | `ongoing` | a call under way |
//! | `call_thread` | the thread that carries calls on |
//! | `operation` | what a collective says, and its beginning |
//! | `exchange` | exchanges of blocks, and messages |
//! | `communicator` | the class for Python |
//! | `straight` | the usual call of PyTorch |
//! | `counts` | what calls were made |
//! | `tuning` | measuring, with functions of a program among the candidates |

#![expect(unsafe_code, reason = "hands the memory of Python objects to calls")]

mod arrange;
mod call_thread;
mod carrying;
mod communicator;
mod counts;
mod elements;
mod errors;
mod exchange;
mod memory;
mod ongoing;
mod operation;
mod straight;
mod tuning;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<communicator::CoreCommunicator>()?;
    module.add_class::<ongoing::CoreHandle>()?;
    module.add_class::<counts::CallCounts>()?;
    module.add_class::<straight::StraightSum>()?;
    module.add_function(wrap_pyfunction!(tuning::tune, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::use_candidates, module)?)?;
    let end = wrap_pyfunction!(carrying::end, module)?;
    PyModule::import(module.py(), "atexit")?.call_method1("register", (end,))?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
