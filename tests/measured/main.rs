//! End-to-end tests that measure times: one at a time, and in a binary of their own, because tests that run beside them would take
//! their cores.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../binary.rs"]
#[allow(dead_code, reason = "the other tests need more of it")]
mod binary;
mod ranking;
mod tuning_regret;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this binary measures, until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
