//! Which element types there are, and which of them can be reduced.
//!
//! The principal type is [`ElementKind`]. Elements of any fixed size can be moved; what can be reduced is what the library
//! reduces, or what has the same bits: sums of unsigned integers are those of signed ones.

use comm::{DType, Op};
use std::fmt;

/// The type of an element, as Python's buffers describe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ElementKind {
    Float(usize),
    /// The upper half of a 32-bit number, which Python's buffers have no word for.
    BrainFloat,
    Signed(usize),
    Unsigned(usize),
    Bool,
    /// Two floats; this is the size of both.
    Complex(usize),
    /// Something else of this many bytes.
    Opaque(usize),
}

use ElementKind::{Bool, BrainFloat, Complex, Float, Opaque, Signed, Unsigned};

impl ElementKind {
    /// The type of a name, as NumPy, PyTorch or this library write it.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("torch.").unwrap_or(name) {
            "f16" | "float16" | "half" => Float(2),
            "bf16" | "bfloat16" => BrainFloat,
            "f32" | "float32" | "float" => Float(4),
            "f64" | "float64" | "double" => Float(8),
            "i8" | "int8" => Signed(1),
            "i16" | "int16" | "short" => Signed(2),
            "i32" | "int32" | "int" => Signed(4),
            "i64" | "int64" | "long" => Signed(8),
            "u8" | "uint8" => Unsigned(1),
            "u16" | "uint16" => Unsigned(2),
            "u32" | "uint32" => Unsigned(4),
            "u64" | "uint64" => Unsigned(8),
            "bool" => Bool,
            "complex64" => Complex(8),
            "complex128" => Complex(16),
            _ => return None,
        })
    }

    /// The type of a buffer with a format as in Python's module `struct`.
    ///
    /// # Errors
    /// If the bytes of an element are in the other order than this computer's.
    pub(crate) fn of_format(format: &str, size: usize) -> Result<Self, String> {
        let is_foreign = match format.as_bytes().first() {
            Some(b'>' | b'!') => cfg!(target_endian = "little"),
            Some(b'<') => cfg!(target_endian = "big"),
            _ => false,
        };
        if is_foreign && size > 1 {
            return Err(format!("its elements (`{format}`) have another byte order than this computer"));
        }
        Ok(match format.trim_start_matches(['@', '=', '<', '>', '!']) {
            "e" | "f" | "d" => Float(size),
            "b" | "h" | "i" | "l" | "q" | "n" => Signed(size),
            "B" | "H" | "I" | "L" | "Q" | "N" | "c" => Unsigned(size),
            "?" => Bool,
            "Zf" | "Zd" => Complex(size),
            _ => Opaque(size),
        })
    }

    /// The size of one element, in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Float(size) | Signed(size) | Unsigned(size) | Complex(size) | Opaque(size) => size,
            BrainFloat => 2,
            Bool => 1,
        }
    }

    /// As what elements are moved that are not reduced.
    pub(crate) fn moved(self) -> DType {
        self.reduced(Op::Sum).filter(|dtype| dtype.size() == self.size()).unwrap_or(DType::U8)
    }

    /// As what elements are reduced: one each, or two for a complex number.
    pub(crate) fn reduced(self, op: Op) -> Option<DType> {
        let is_modular = op.ignores_signs();
        Some(match self {
            Float(2) => DType::F16,
            BrainFloat => DType::Bf16,
            Float(4) => DType::F32,
            Float(8) => DType::F64,
            Signed(4) => DType::I32,
            Signed(8) => DType::I64,
            Unsigned(1) => DType::U8,
            Unsigned(4) if is_modular => DType::I32,
            Unsigned(8) if is_modular => DType::I64,
            Signed(1) if is_modular => DType::U8,
            // `or` and `and`.
            Bool if matches!(op, Op::Max | Op::Min) => DType::U8,
            Complex(8) if matches!(op, Op::Sum | Op::Avg) => DType::F32,
            Complex(16) if matches!(op, Op::Sum | Op::Avg) => DType::F64,
            _ => return None,
        })
    }
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Float(size) => write!(f, "float{}", size * 8),
            BrainFloat => f.write_str("bfloat16"),
            Signed(size) => write!(f, "int{}", size * 8),
            Unsigned(size) => write!(f, "uint{}", size * 8),
            Bool => f.write_str("bool"),
            Complex(size) => write!(f, "complex{}", size * 8),
            Opaque(size) => write!(f, "elements of {size} bytes"),
        }
    }
}

/// The reduction of a name.
pub(crate) fn op_of_name(name: &str) -> Option<Op> {
    Some(match name {
        "sum" => Op::Sum,
        "prod" => Op::Prod,
        "min" => Op::Min,
        "max" => Op::Max,
        "avg" => Op::Avg,
        _ => return None,
    })
}
