//! Random orders.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// Brings items into a random order [Fisher and Yates]. Not `shuffle` of the crate `rand`, because a seed must give the
/// same plan with every version of the crates, and `rand` does not promise the same order.
pub(super) fn shuffle<T>(items: &mut [T], random: &mut Pcg64Mcg) {
    for last in (1..items.len()).rev() {
        items.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}
