//! When two times are equal.

use topology::Micros;

/// Times that differ by at most this part of the larger are equal, because they may have been printed, read and added
/// up. All code that compares stated times must use the same tolerance: lowering must see the order of arrivals and
/// departures that the verifier accepted.
pub const TIME_TOLERANCE: f64 = 1e-7;

/// Whether `a` is earlier than `b` by more than the tolerance.
pub fn clearly_before(a: Micros, b: Micros) -> bool {
    a.0 < b.0 - TIME_TOLERANCE * a.0.abs().max(b.0.abs())
}

/// Whether two times (or sizes, or ratios of them) differ by more than the tolerance.
pub(crate) fn differs(a: Micros, b: Micros) -> bool {
    clearly_before(a, b) || clearly_before(b, a)
}
