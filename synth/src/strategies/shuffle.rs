//! Random orders.

/// Brings items into a random order [Fisher and Yates]; `draw(n)` is a random number below n. Not `shuffle` of the crate `rand`,
/// because a seed must give the same plan with every version of the crates, and `rand` does not promise the same order.
pub(super) fn shuffle<T>(items: &mut [T], mut draw: impl FnMut(usize) -> usize) {
    for last in (1..items.len()).rev() {
        items.swap(last, draw(last + 1));
    }
}
