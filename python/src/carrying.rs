//! Which threads carry calls on.

use std::cell::Cell;

thread_local! {
    static CARRIES: Cell<bool> = const { Cell::new(false) };
}

/// This thread carries calls on from now on.
pub(crate) fn begin() {
    CARRIES.with(|carries| carries.set(true));
}

/// Whether this thread carries calls on.
pub(crate) fn is_here() -> bool {
    CARRIES.with(Cell::get)
}
