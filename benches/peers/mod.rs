//! What the planner is compared with: another algorithm, written from its description, and machines that no SPEC names.

pub(crate) mod instances;
pub(crate) mod irregular;
pub(crate) mod tacos;

use crate::random::Random;

/// Puts the items in a random order.
fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    (1..items.len()).rev().for_each(|last| items.swap(last, random.below(last as u64 + 1) as usize));
}
