//! When several threads are worth waking up.

/// From so many messages, deliveries or steps on, several threads check them faster than one.
const MANY: usize = 1 << 13;

/// Whether several threads work on so many messages, deliveries or steps. A library checks small plans in the middle of a call: it
/// should start no thread there, and one that has to be woken up first takes longer than the check.
pub fn are_many(items: usize) -> bool {
    items >= MANY
}
