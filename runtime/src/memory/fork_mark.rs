//! Whether this process is the one that made something, or a fork of it.
//!
//! The principal type is [`ForkMark`]. A fork has copies of all memory, but none of the threads, and it shares lanes with
//! its parent. So it must not use what its parent has made. The kernel empties a marked page in every fork, so looking
//! takes no system call.

use memmap2::{MmapMut, MmapOptions};
use rustix::mm::{Advice, madvise};
use std::io;

/// A page that is empty in every fork.
pub(crate) struct ForkMark(Option<MmapMut>);

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let mut page = MmapOptions::new().len(4096).map_anon()?;
        // Kernels before 4.14 cannot; then forks are not recognized.
        // SAFETY: the page is this value's own, and stays mapped while it lives.
        if unsafe { madvise(page.as_mut_ptr().cast(), page.len(), Advice::LinuxWipeOnFork) }.is_err() {
            return Ok(Self(None));
        }
        page[0] = 1;
        Ok(Self(Some(page)))
    }

    /// Whether this is the process that was marked.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.as_ref().is_none_or(|page| std::hint::black_box(page[0]) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_recognizes_itself() {
        assert!(ForkMark::new().unwrap().is_here());
    }
}
