//! What goes wrong with kernels because a test wants it.
//!
//! `FAKE_CUDA_FAULT=GPU:KERNEL:NUMBER:KIND` is about the launch of this number, from 1, of kernels whose names begin so, in the process that
//! has opened the GPU of this number: its process ends (`exit`), or the kernel begins so many milliseconds later (`late-MS`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// How a process ends that was told to.
const EXIT: i32 = 86;

/// The number of the GPU that was opened last.
static OPENED: AtomicI32 = AtomicI32::new(-1);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

struct LaunchFault {
    gpu: i32,
    kernel: String,
    number: u64,
    kind: String,
}

fn wanted() -> Option<&'static LaunchFault> {
    static WANTED: OnceLock<Option<LaunchFault>> = OnceLock::new();
    let read = || {
        let text = std::env::var("FAKE_CUDA_FAULT").ok()?;
        let [gpu, kernel, number, kind] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let (gpu, number) = (gpu.parse().ok()?, number.parse().ok()?);
        Some(LaunchFault { gpu, kernel: kernel.to_owned(), number, kind: kind.to_owned() })
    };
    WANTED.get_or_init(read).as_ref()
}

/// A GPU was opened.
pub(crate) fn opened(gpu: i32) {
    OPENED.store(gpu, Ordering::Release);
}

/// A kernel is about to begin.
pub(crate) fn launch(kernel: &str) {
    let Some(fault) = wanted().filter(|fault| kernel.starts_with(fault.kernel.as_str())) else { return };
    let is_it = LAUNCHES.fetch_add(1, Ordering::AcqRel) + 1 == fault.number;
    if !is_it || OPENED.load(Ordering::Acquire) != fault.gpu {
        return;
    }
    match fault.kind.strip_prefix("late-").and_then(|time| time.parse().ok()) {
        Some(time) => std::thread::sleep(Duration::from_millis(time)),
        // SAFETY: it takes any number. Nothing of this process is to be tidied up.
        None => unsafe { libc::_exit(EXIT) },
    }
}
