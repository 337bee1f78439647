//! Memory that ranks share.
//!
//! The principal type is [`Region`]: a mapped memfd. Ranks that are threads use it too, so threads and processes have
//! one code path. A page costs nothing before its first use, and the file vanishes with its last descriptor.
//!
//! All access is through atomic words, or through raw pointers that only `ring` and `heap` turn into slices. Sizes are
//! sealed, so that no process can cause a fault in another by shrinking the file.

use crate::memory::atomics::{AtomicU32, AtomicU64};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The place of an open file, for other processes of the same user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct OpenFilePlace {
    pub(crate) process: u32,
    pub(crate) descriptor: u32,
    /// Identifies the file. Process and descriptor numbers may be reused later.
    pub(crate) inode: u64,
}

impl OpenFilePlace {
    /// The place of a file that this process keeps open.
    ///
    /// # Errors
    /// If the operating system does not identify the file.
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let inode = rustix::fs::fstat(descriptor)?.st_ino;
        Ok(Self { process: std::process::id(), descriptor: descriptor.as_raw_fd() as u32, inode })
    }

    /// Opens the file at this place.
    ///
    /// # Errors
    /// If it cannot be opened, or is not the file that its owner made.
    pub(crate) fn open(self, access: OFlags) -> io::Result<File> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = File::from(rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?);
        if rustix::fs::fstat(&file)?.st_ino != self.inode {
            return Err(io::Error::other("the descriptor is no longer the file that it was"));
        }
        Ok(file)
    }
}

/// A shared mapping of fixed size.
pub(crate) struct Region {
    map: MmapRaw,
    file: File,
    #[cfg(feature = "model")]
    words: crate::memory::atomics::ModelWords,
}

impl Region {
    fn of(map: MmapRaw, file: File) -> Self {
        Self {
            #[cfg(feature = "model")]
            words: crate::memory::atomics::ModelWords::new(map.len()),
            map,
            file,
        }
    }

    /// A new region of `bytes` zeroes. Miri has no files in memory, and sees only this process.
    #[cfg(miri)]
    pub(crate) fn create(bytes: usize) -> io::Result<Self> {
        Ok(Self::of(MmapOptions::new().len(bytes).map_anon()?.into(), File::open("/dev/null")?))
    }

    /// A new region of `bytes` zeroes.
    #[cfg(not(miri))]
    pub(crate) fn create(bytes: usize) -> io::Result<Self> {
        let descriptor = rustix::fs::memfd_create("antiphon", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(descriptor);
        file.set_len(bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Self::of(map, file))
    }

    /// The region of a descriptor that [`Self::descriptor`] returned, perhaps in another process.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let file = File::from(descriptor);
        let sealed = rustix::fs::fcntl_get_seals(&file)?;
        if !sealed.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the shared region may shrink; its size is not sealed"));
        }
        let map = MmapOptions::new().map_raw(&file)?;
        Ok(Self::of(map, file))
    }

    /// Maps the region of another process, read-only.
    pub(crate) fn open_to_read(file: File) -> io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the memory of a peer may shrink; its size is not sealed"));
        }
        let map = MmapOptions::new().map_raw_read_only(&file)?;
        Ok(Self::of(map, file))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Asks the kernel to provide the pages of these bytes now, not at their first use.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) {
        // Kernels before 5.14 refuse; then the pages come at their first use.
        let _ = self.map.advise_range(Advice::PopulateWrite, offset, bytes);
    }

    /// Asks for large pages, and for all pages now, not at their first use.
    pub(crate) fn provide(&self) {
        // Only a wish: systems may not have large pages for shared memory.
        let _ = self.map.advise(Advice::HugePage);
        self.populate(0, self.len());
    }

    /// The 32-bit word at a byte offset.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        let pointer = self.pointer(offset, 4).cast::<u32>();
        assert!(pointer.is_aligned(), "words are aligned");
        #[cfg(feature = "model")]
        return self.words.word32(offset);
        // SAFETY: in bounds and aligned (just checked), mapped for the life of `self`. Every access to a word of a
        // region is atomic, in every process.
        #[cfg(not(feature = "model"))]
        unsafe {
            AtomicU32::from_ptr(pointer)
        }
    }

    /// The 64-bit word at a byte offset.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        let pointer = self.pointer(offset, 8).cast::<u64>();
        assert!(pointer.is_aligned(), "words are aligned");
        #[cfg(feature = "model")]
        return self.words.word64(offset);
        // SAFETY: as for `word32`.
        #[cfg(not(feature = "model"))]
        unsafe {
            AtomicU64::from_ptr(pointer)
        }
    }

    /// Says that a line of plain memory is read or written, for the model checker.
    #[inline]
    pub(crate) fn touch(&self, offset: usize, writes: bool) {
        #[cfg(feature = "model")]
        self.words.touch(offset, writes);
        #[cfg(not(feature = "model"))]
        let _ = (offset, writes);
    }

    /// The address of `bytes` bytes at an offset.
    ///
    /// # Panics
    /// If the bytes are not all inside the region.
    pub(crate) fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.map.len()), "{offset}+{bytes} is outside the region");
        // SAFETY: the offset is inside the mapping, just checked.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_reopened_region_is_the_same_memory() {
        let region = Region::create(8192).unwrap();
        let again = Region::open(region.descriptor().try_clone_to_owned().unwrap()).unwrap();
        region.word64(4096).store(7, Ordering::Release);
        assert_eq!((again.word64(4096).load(Ordering::Acquire), again.len()), (7, 8192));
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        let descriptor = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Region::open(descriptor).is_err());
    }
}
