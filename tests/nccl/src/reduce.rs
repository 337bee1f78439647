//! Reductions, element by element.

use half::{bf16, f16};

/// The bytes of an element of each type, by NCCL's numbers up to bf16.
pub(crate) const SIZES: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];
/// How many reductions there are: sum, product, maximum, minimum, average.
pub(crate) const OPS: i32 = 5;

/// Integers have one type here that holds all of them, and floats another.
fn reduce_integers(values: impl Iterator<Item = i128>, op: i32, ranks: i128) -> i128 {
    let reduced = values.reduce(|a, b| match op {
        1 => a.wrapping_mul(b),
        2 => a.max(b),
        3 => a.min(b),
        _ => a.wrapping_add(b),
    });
    let reduced = reduced.unwrap_or(0);
    if op == 4 { reduced / ranks } else { reduced }
}

fn reduce_floats(values: impl Iterator<Item = f64>, op: i32, ranks: f64) -> f64 {
    let reduced = values.reduce(|a, b| match op {
        1 => a * b,
        2 => a.max(b),
        3 => a.min(b),
        _ => a + b,
    });
    let reduced = reduced.unwrap_or(0.0);
    if op == 4 { reduced / ranks } else { reduced }
}

macro_rules! by_type {
    ($parts:expr, $op:expr, $out:expr, $type:ty, $wide:ty, $reduce:ident, $widen:expr, $narrow:expr) => {{
        const SIZE: usize = size_of::<$type>();
        let count = $parts.first().map_or(0, |part| part.len() / SIZE);
        for at in 0..count {
            let values = $parts.iter().map(|part| {
                let mut bytes = [0; SIZE];
                bytes.copy_from_slice(&part[at * SIZE..(at + 1) * SIZE]);
                let widen: fn($type) -> $wide = $widen;
                widen(<$type>::from_le_bytes(bytes))
            });
            let narrow: fn($wide) -> $type = $narrow;
            $out.extend(narrow($reduce(values, $op, $parts.len() as $wide)).to_le_bytes());
        }
    }};
    ($parts:expr, $op:expr, $out:expr, $type:ty) => {
        by_type!($parts, $op, $out, $type, i128, reduce_integers, |value| value.into(), |value| value as $type)
    };
}

/// Reduces parts of equal length, in the order of the ranks.
pub(crate) fn reduced(parts: &[&[u8]], dtype: i32, op: i32) -> Vec<u8> {
    let mut out = Vec::new();
    match dtype {
        0 => by_type!(parts, op, out, i8),
        1 => by_type!(parts, op, out, u8),
        2 => by_type!(parts, op, out, i32),
        3 => by_type!(parts, op, out, u32),
        4 => by_type!(parts, op, out, i64),
        5 => by_type!(parts, op, out, u64),
        6 => by_type!(parts, op, out, f16, f64, reduce_floats, f16::to_f64, f16::from_f64),
        7 => by_type!(parts, op, out, f32, f64, reduce_floats, f64::from, |value| value as f32),
        8 => by_type!(parts, op, out, f64, f64, reduce_floats, |value| value, |value| value),
        _ => by_type!(parts, op, out, bf16, f64, reduce_floats, bf16::to_f64, bf16::from_f64),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_reduced_in_its_own_range() {
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let (a, b) = (bytes(&[1, i32::MAX, -7]), bytes(&[2, 1, 5]));
        assert_eq!(reduced(&[&a, &b], 2, 0), bytes(&[3, i32::MIN, -2]));
        assert_eq!(reduced(&[&a, &b], 2, 1), bytes(&[2, i32::MAX, -35]));
        assert_eq!(reduced(&[&a, &b], 2, 2), bytes(&[2, i32::MAX, 5]));
        assert_eq!(reduced(&[&a, &b], 2, 3), bytes(&[1, 1, -7]));
        assert_eq!(reduced(&[&[200], &[100]], 1, 0), [44]);
        let halves = |value: f64| f16::from_f64(value).to_le_bytes().to_vec();
        assert_eq!(reduced(&[&halves(1.5), &halves(2.5)], 6, 4), halves(2.0));
        let brains = |value: f64| bf16::from_f64(value).to_le_bytes().to_vec();
        assert_eq!(reduced(&[&brains(1.5), &brains(2.0)], 9, 1), brains(3.0));
        assert!(reduced(&[&[], &[]], 7, 0).is_empty());
    }
}
