//! Types of elements.

use crate::dtype::DType;
use half::{bf16, f16};

/// A type whose vectors collectives take.
pub trait Element: bytemuck::Pod {
    /// Its name.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! { f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8, f16 => F16, bf16 => Bf16 }
