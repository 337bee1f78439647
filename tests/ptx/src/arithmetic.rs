//! Instructions that only compute.
//!
//! A register holds the bits of its value; those above its type are zero.

use crate::code::{Comparison, Instruction, Kind, Operation, Type};
use half::f16;

fn mask(bytes: u32) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

/// The number that an integer register stands for.
fn integer(value: u64, ty: Type) -> i128 {
    let value = value & mask(ty.bytes);
    if ty.kind == Kind::Signed {
        let unused = 64 - 8 * ty.bytes;
        return i128::from((value << unused) as i64 >> unused);
    }
    i128::from(value)
}

/// A float of four or eight bytes, computed on as a float of its own type.
fn float(value: u64, bytes: u32, apply: impl FnOnce(FloatPair) -> FloatPair, other: u64) -> u64 {
    let result = match bytes {
        4 => apply(FloatPair::Single(f32::from_bits(value as u32), f32::from_bits(other as u32))),
        _ => apply(FloatPair::Double(f64::from_bits(value), f64::from_bits(other))),
    };
    match result {
        FloatPair::Single(value, _) => u64::from(value.to_bits()),
        FloatPair::Double(value, _) => value.to_bits(),
    }
}

/// Two floats of one type; of a result only the first counts.
#[derive(Clone, Copy)]
enum FloatPair {
    Single(f32, f32),
    Double(f64, f64),
}

fn float_result(operation: Operation, pair: FloatPair) -> FloatPair {
    macro_rules! apply {
        ($x:expr, $y:expr) => {
            match operation {
                Operation::Add => $x + $y,
                Operation::Subtract => $x - $y,
                Operation::Multiply => $x * $y,
                _ => $x / $y,
            }
        };
    }
    match pair {
        FloatPair::Single(x, y) => FloatPair::Single(apply!(x, y), y),
        FloatPair::Double(x, y) => FloatPair::Double(apply!(x, y), y),
    }
}

/// A float register as a double, which holds every float exactly.
fn real(value: u64, bytes: u32) -> f64 {
    match bytes {
        2 => f16::from_bits(value as u16).to_f64(),
        4 => f64::from(f32::from_bits(value as u32)),
        _ => f64::from_bits(value),
    }
}

fn convert(value: u64, from: Type, to: Type) -> u64 {
    let result = match (from.kind == Kind::Float, to.kind == Kind::Float) {
        (false, false) => integer(value, from) as u64,
        (true, true) => bits_of(real(value, from.bytes), to.bytes),
        (false, true) => match to.bytes {
            4 => u64::from((integer(value, from) as f32).to_bits()),
            _ => (integer(value, from) as f64).to_bits(),
        },
        // The parser refuses it.
        (true, false) => 0,
    };
    result & mask(to.bytes)
}

/// To the nearest, ties to even.
fn bits_of(value: f64, bytes: u32) -> u64 {
    match bytes {
        2 => u64::from(f16::from_f64(value).to_bits()),
        4 => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    }
}

fn compare(comparison: Comparison, or_nan: bool, ty: Type, x: u64, y: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match ty.kind {
        Kind::Float => real(x, ty.bytes).partial_cmp(&real(y, ty.bytes)),
        _ => Some(integer(x, ty).cmp(&integer(y, ty))),
    };
    match (comparison, order) {
        (Comparison::IsNan, order) => order.is_none(),
        (Comparison::IsNumber, order) => order.is_some(),
        (_, None) => or_nan,
        (Comparison::Equal, order) => order == Some(Equal),
        (Comparison::NotEqual, order) => order != Some(Equal),
        (Comparison::Less, order) => order == Some(Less),
        (Comparison::LessOrEqual, order) => order != Some(Greater),
        (Comparison::Greater, order) => order == Some(Greater),
        (Comparison::GreaterOrEqual, order) => order != Some(Less),
    }
}

/// The bytes that `selector` chooses, four bits for each; the highest of the four repeats the sign of the byte.
fn permute(x: u64, y: u64, selector: u64) -> u64 {
    let all = (x & 0xffff_ffff | y << 32).to_le_bytes();
    let byte = |at: u64| {
        let choice = selector >> (4 * at) & 15;
        let byte = all[(choice & 7) as usize];
        if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    (0..4).map(|at| u64::from(byte(at)) << (8 * at)).sum()
}

/// The result of an instruction with one result. `None`: a division by zero.
pub(crate) fn result(instruction: &Instruction, values: [u64; 5]) -> Option<u64> {
    let (ty, [x, y, z, w, _]) = (instruction.ty, values);
    if ty.kind == Kind::Float && ty.bytes < 4 && !matches!(instruction.operation, Operation::Convert(_)) {
        return None;
    }
    let of = |value: i128| value as u64;
    let (first, second) = (integer(x, ty), integer(y, ty));
    use Operation::{Add, Divide, Multiply, Subtract};
    let result = match instruction.operation {
        operation @ (Add | Subtract | Multiply | Divide) if ty.kind == Kind::Float => {
            float(x, ty.bytes, |pair| float_result(operation, pair), y)
        }
        Operation::Move => x,
        Add => of(first.wrapping_add(second)),
        Subtract => of(first.wrapping_sub(second)),
        Multiply => of(first.wrapping_mul(second)),
        Operation::MultiplyWide => return Some(of(first.wrapping_mul(second)) & mask(2 * ty.bytes)),
        Divide => of(first.checked_div(second)?),
        Operation::Remainder => of(first.checked_rem(second)?),
        Operation::Least => of(first.min(second)),
        Operation::Greatest => of(first.max(second)),
        Operation::And => x & y,
        Operation::Or => x | y,
        Operation::Xor => x ^ y,
        Operation::Not if ty.kind == Kind::Predicate => x ^ 1,
        Operation::Not => !x,
        Operation::ShiftLeft => of(first << (y & 0xffff_ffff).min(64)),
        Operation::ShiftRight => of(first >> (y & 0xffff_ffff).min(64)),
        // The type of the instruction is the one that it converts from.
        Operation::Convert(to) => return Some(convert(x, ty, to)),
        Operation::Compare(comparison, or_nan) => return Some(u64::from(compare(comparison, or_nan, ty, x, y))),
        Operation::Select => {
            if z & 1 == 1 {
                x
            } else {
                y
            }
        }
        Operation::Insert => {
            let (start, length) = ((z & 255).min(64) as u32, (w & 255).min(64) as u32);
            let field = 1u64.checked_shl(length).unwrap_or(0).wrapping_sub(1).checked_shl(start).unwrap_or(0);
            y & !field | x.checked_shl(start).unwrap_or(0) & field
        }
        Operation::Permute => permute(x, y, z),
        _ => return None,
    };
    Some(if ty.kind == Kind::Predicate { result & 1 } else { result & mask(ty.bytes) })
}
