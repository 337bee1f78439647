//! A clock that is counted and not read: what happens in a stream takes as long as somebody says, however busy the computer is.
//!
//! Each stream has a thread, and each thread its clock, in nanoseconds from 0. Launches of kernels and the fake NCCL put it forward;
//! who waits for an event is not before it. With `FAKE_CUDA_CLOCK=counted` the times of events are those of these clocks.
#![allow(missing_docs, reason = "these are functions for the fake NCCL")]

use std::cell::Cell;
use std::sync::OnceLock;

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(0) };
}

/// What this thread's clock says.
pub(crate) fn now() -> u64 {
    CLOCK.get()
}

/// It is not before this moment.
pub(crate) fn advance(to: u64) {
    CLOCK.set(CLOCK.get().max(to));
}

fn number(variable: &str) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A kernel takes `FAKE_CUDA_LAUNCH_NS` (0). Those whose names begin with `NAME` take longer by `NS`, where `FAKE_CUDA_KERNEL_NS` is
/// `NAME=NS,NAME=NS`; the first one that fits counts.
pub(crate) fn launch(kernel: &str) {
    static TIMES: OnceLock<(u64, Vec<(String, u64)>)> = OnceLock::new();
    let (all, some) = TIMES.get_or_init(|| {
        let named = std::env::var("FAKE_CUDA_KERNEL_NS").unwrap_or_default();
        let times = named.split(',').filter_map(|one| one.split_once('='));
        let some = times.filter_map(|(name, time)| Some((name.to_owned(), time.parse().ok()?)));
        (number("FAKE_CUDA_LAUNCH_NS"), some.collect())
    });
    let more = some.iter().find(|(name, _)| kernel.starts_with(name.as_str())).map_or(0, |(_, time)| *time);
    advance(now() + all + more);
}

/// A copy on the device takes `FAKE_CUDA_COPY_NS` (0) for each byte.
pub(crate) fn copy(bytes: usize) {
    static TIME: OnceLock<u64> = OnceLock::new();
    advance(now() + bytes as u64 * TIME.get_or_init(|| number("FAKE_CUDA_COPY_NS")));
}

/// Whether events have the times of these clocks.
pub(crate) fn counts() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| std::env::var("FAKE_CUDA_CLOCK").is_ok_and(|text| text == "counted"))
}

/// Not a function of CUDA: the clock of the stream whose work calls this.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaClock() -> u64 {
    now()
}

/// Not a function of CUDA: the work that calls this ends then, or later.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaAdvance(to: u64) {
    advance(to);
}
