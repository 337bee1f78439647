//! The sum of one tensor, which is the usual call of PyTorch, on a straight way.
//!
//! The principal type is [`StraightSum`]. Of a short call, Python takes most of the time: each attribute that Python code reads costs
//! as much as a message through shared memory. What is not usual, the Python code does.

use crate::communicator::CoreCommunicator;
use crate::counts::{CallCounts, CountedCall};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::time::Instant;

/// Sums tensors of a group.
#[pyclass(frozen, module = "antiphon._core")]
pub(crate) struct StraightSum {
    core: Py<CoreCommunicator>,
    counts: Py<CallCounts>,
    /// The names of PyTorch's types that are added.
    added: Py<PyDict>,
    /// PyTorch's word for memory without gaps of its own, and for a sum.
    strided: Py<PyAny>,
    sum: Py<PyAny>,
}

/// A tensor's memory, and the name of its type.
struct WholeTensor<'py> {
    start: usize,
    bytes: usize,
    dtype: Bound<'py, PyString>,
}

#[pymethods]
impl StraightSum {
    #[new]
    fn new(
        core: Py<CoreCommunicator>,
        counts: Py<CallCounts>,
        added: Py<PyDict>,
        strided: Py<PyAny>,
        sum: Py<PyAny>,
    ) -> Self {
        Self { core, counts, added, strided, sum }
    }

    /// Whether the tensor was summed: not if the call is another one.
    fn __call__(&self, tensors: &Bound<'_, PyAny>, options: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tensors.py();
        // What cannot be asked here is not usual.
        let Ok(Some(WholeTensor { start, bytes, dtype })) = self.usual(tensors, options) else { return Ok(false) };
        let (core, dtype) = (self.core.get(), dtype.to_str()?);
        let since = Instant::now();
        core.sum_at(py, (start, bytes), dtype)?;
        let call = CountedCall { name: "all_reduce", bytes, dtype };
        self.counts.get().count(py, call, Some(since.elapsed()));
        Ok(true)
    }
}

impl StraightSum {
    /// The tensor of a blocking sum that needs no copy.
    fn usual<'py>(
        &self,
        tensors: &Bound<'py, PyAny>,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Option<WholeTensor<'py>>> {
        let py = tensors.py();
        let list = tensors.cast::<PyList>()?;
        let tensor = list.get_item(0)?;
        let is = |name: &Bound<'py, PyString>| tensor.getattr(name)?.is_truthy();
        let is_usual = list.len() == 1
            && !options.getattr(intern!(py, "asyncOp"))?.is_truthy()?
            && tensor.getattr(intern!(py, "layout"))?.is(&self.strided)
            && is(intern!(py, "is_cpu"))?
            && tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()?
            && options.getattr(intern!(py, "reduceOp"))?.eq(&self.sum)?;
        let Some(name) = self.added.bind(py).get_item(tensor.getattr(intern!(py, "dtype"))?)? else { return Ok(None) };
        Ok(is_usual.then_some(WholeTensor {
            start: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
            bytes: tensor.getattr(intern!(py, "nbytes"))?.extract()?,
            dtype: name.cast_into()?,
        }))
    }
}
