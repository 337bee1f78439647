//! The memory of Python objects.
//!
//! The principal type is [`LentMemory`]: the bytes of a NumPy array, a `bytearray`, an `array.array`, or anything else with the
//! buffer protocol, which stay where they are. PyTorch's tensors and NumPy's arrays of types that the protocol has no word for
//! (bfloat16) are asked for their addresses.

use crate::elements::ElementKind;
use crate::errors::argument;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// The bytes of an object. While this lives, they stay where they are, and the object cannot be resized.
pub(crate) struct LentMemory {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) kind: ElementKind,
    is_writable: bool,
    _owner: Owner,
}

/// What keeps the bytes where they are.
#[expect(dead_code, reason = "it only has to live")]
enum Owner {
    Buffer(PyUntypedBuffer),
    Object(Py<PyAny>),
}

/// Which argument of a call an object is, and the type that the caller says its elements have.
#[derive(Clone, Copy)]
pub(crate) struct NamedBuffer<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Option<&'a str>,
}

impl LentMemory {
    /// The memory of an object.
    ///
    /// # Errors
    /// `ArgumentError` if it has none, or not all in one piece.
    pub(crate) fn of(object: &Bound<'_, PyAny>, named: NamedBuffer<'_>) -> PyResult<Self> {
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(buffer, named),
            Err(error) => Self::of_array(object, named, error),
        }
    }

    fn of_buffer(buffer: PyUntypedBuffer, NamedBuffer { name, dtype }: NamedBuffer<'_>) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            let (shape, strides) = (buffer.shape(), buffer.strides());
            return Err(argument(format!(
                "{name} is not contiguous (shape {shape:?}, strides {strides:?}): give numpy.ascontiguousarray({name})"
            )));
        }
        let size = buffer.item_size();
        let format = buffer.format().to_string_lossy();
        let own = ElementKind::of_format(&format, size).map_err(|fault| argument(format!("{name}: {fault}")))?;
        let kind = named(name, dtype, own, buffer.len_bytes())?;
        Ok(Self {
            start: buffer.buf_ptr().cast(),
            bytes: buffer.len_bytes(),
            kind,
            is_writable: !buffer.readonly(),
            _owner: Owner::Buffer(buffer),
        })
    }

    /// The memory of an array or tensor that does not have the buffer protocol.
    fn of_array(object: &Bound<'_, PyAny>, at: NamedBuffer<'_>, error: PyErr) -> PyResult<Self> {
        let NamedBuffer { name, dtype } = at;
        let none = || {
            let class = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            argument(format!("{name} is a {class}, which has no buffer of numbers: {error}"))
        };
        if object.getattr("shape").is_ok_and(|shape| shape.len().is_ok_and(|axes| axes == 0))
            && !object.hasattr("data_ptr")?
        {
            // Python's buffers of scalars have no axes; this is the same memory with one.
            let view = object.call_method1("reshape", (1,)).map_err(|_| none())?;
            return Self::of_buffer(PyUntypedBuffer::get(&view)?, at);
        }
        let own = object.getattr("dtype").map_err(|_| none())?.str()?.to_string();
        let own = ElementKind::of_name(&own).ok_or_else(none)?;
        if object.hasattr("data_ptr")? {
            if !object.getattr("is_cpu")?.is_truthy()? {
                return Err(argument(format!("{name} is not in this computer's memory: give {name}.cpu()")));
            }
            if !object.call_method0("is_contiguous")?.is_truthy()? {
                return Err(argument(format!("{name} is not contiguous: give {name}.contiguous()")));
            }
            let start: usize = object.call_method0("data_ptr")?.extract()?;
            let count: usize = object.call_method0("numel")?.extract()?;
            let bytes = count * own.size();
            return Ok(Self {
                start: start as *mut u8,
                bytes,
                kind: named(name, dtype, own, bytes)?,
                is_writable: true,
                _owner: Owner::Object(object.clone().unbind()),
            });
        }
        // The same bytes under a name that the buffer protocol has.
        let view = object.call_method1("view", (format!("u{}", own.size()),)).map_err(|_| none())?;
        let mut memory = Self::of_buffer(PyUntypedBuffer::get(&view)?, NamedBuffer { name, dtype: None })?;
        memory.kind = named(name, dtype, own, memory.bytes)?;
        Ok(memory)
    }

    /// # Errors
    /// `ArgumentError` if the bytes cannot be written.
    pub(crate) fn check_writable(&self, name: &str) -> PyResult<()> {
        match self.is_writable {
            true => Ok(()),
            false => Err(argument(format!("{name} is read-only, but the call writes to it"))),
        }
    }
}

/// The type that the caller says the elements have, or their own.
fn named(name: &str, dtype: Option<&str>, own: ElementKind, bytes: usize) -> PyResult<ElementKind> {
    let Some(dtype) = dtype else { return Ok(own) };
    let kind = ElementKind::of_name(dtype).ok_or_else(|| argument(format!("there is no element type `{dtype}`")))?;
    match bytes.is_multiple_of(kind.size()) {
        true => Ok(kind),
        false => Err(argument(format!("{name} has {bytes} bytes, which are no whole number of {kind}"))),
    }
}

// SAFETY: addresses, and what keeps them valid, which is Python's to look after, from any thread.
unsafe impl Send for LentMemory {}
