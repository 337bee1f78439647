//! Memory that several processes may map.
//!
//! The principal type is [`SharedMemory`].

use ptx::OutsideMemory;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// By this name a file is known as memory of a fake device.
const NAME: &std::ffi::CStr = c"fake-cuda";

/// A file in memory, mapped. All processes that have the file have the same bytes.
pub(crate) struct SharedMemory {
    file: OwnedFd,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping lives as long as the value, and is accessed by atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory. What lies in it is anybody's guess.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // SAFETY: the name ends with a zero.
        let file = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: it was opened just now, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let file = std::fs::File::from(file);
        file.set_len(bytes as u64).ok()?;
        let made = Self::map(file.into(), bytes)?;
        // SAFETY: nobody else has the memory yet.
        unsafe { made.at.write_bytes(0xA5, bytes) };
        Some(made)
    }

    /// The memory of a file that is one of ours.
    pub(crate) fn of_file(file: BorrowedFd<'_>) -> Option<Self> {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        if !name.to_string_lossy().starts_with("/memfd:fake-cuda") {
            return None;
        }
        let file = std::fs::File::from(file.try_clone_to_owned().ok()?);
        let bytes = file.metadata().ok()?.len();
        Self::map(file.into(), usize::try_from(bytes).ok()?)
    }

    fn map(file: OwnedFd, bytes: usize) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the address, and the file is open.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        (at != libc::MAP_FAILED).then(|| Self { file, at: at.cast(), bytes })
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Says to all who have opened the file that this process uses it. It ends when the file is closed, or the process ends.
    pub(crate) fn lock(&self, how: c_int) -> bool {
        // SAFETY: the file is open.
        unsafe { libc::flock(self.file.as_raw_fd(), how | libc::LOCK_NB) == 0 }
    }

    /// The place of a value, which is inside of the memory and aligned.
    fn place(&self, at: usize, size: usize) -> *mut u8 {
        assert!(at + size <= self.bytes && at.is_multiple_of(size), "the machine checks addresses");
        self.at.wrapping_add(at)
    }
}

impl OutsideMemory for SharedMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn load(&self, at: usize, size: usize) -> u64 {
        let place = self.place(at, size);
        // SAFETY: it is inside of the mapping and aligned, and all accesses are atomic.
        unsafe {
            match size {
                1 => AtomicU8::from_ptr(place).load(Ordering::SeqCst).into(),
                2 => AtomicU16::from_ptr(place.cast()).load(Ordering::SeqCst).into(),
                4 => AtomicU32::from_ptr(place.cast()).load(Ordering::SeqCst).into(),
                _ => AtomicU64::from_ptr(place.cast()).load(Ordering::SeqCst),
            }
        }
    }

    fn store(&self, at: usize, size: usize, value: u64) {
        let place = self.place(at, size);
        // SAFETY: as above.
        unsafe {
            match size {
                1 => AtomicU8::from_ptr(place).store(value as u8, Ordering::SeqCst),
                2 => AtomicU16::from_ptr(place.cast()).store(value as u16, Ordering::SeqCst),
                4 => AtomicU32::from_ptr(place.cast()).store(value as u32, Ordering::SeqCst),
                _ => AtomicU64::from_ptr(place.cast()).store(value, Ordering::SeqCst),
            }
        }
    }

    fn store_words(&self, at: usize, words: &[u8]) {
        assert!(at.is_multiple_of(8) && at + words.len() <= self.bytes, "the machine checks addresses");
        for (index, word) in words.chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(std::array::from_fn(|byte| word[byte]));
            // SAFETY: as above. Many stores of the strongest order would take long; the fence orders all of them.
            unsafe { AtomicU64::from_ptr(self.at.wrapping_add(at + 8 * index).cast()).store(value, Ordering::Relaxed) };
        }
        fence(Ordering::SeqCst);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has an address of it.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}
