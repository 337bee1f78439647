//! Private pages of this process that are turned into shared ones, and back, while they lie where they are.
//!
//! The principal type is [`SharedPages`].

use crate::memory::region::OpenFilePlace;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Pages of this process that are pages of a file. They become private again when this is dropped.
pub(crate) struct SharedPages {
    addresses: Range<usize>,
    file: File,
}

impl SharedPages {
    /// The addresses of the whole pages of some memory; empty if it has none.
    ///
    /// # Errors
    /// If they cannot be replaced, because they are anything else than private memory that can be written and read.
    pub(crate) fn check(start: *const u8, bytes: usize) -> io::Result<Range<usize>> {
        let page = rustix::param::page_size();
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "it ends beyond all addresses");
        let end = start.addr().checked_add(bytes).ok_or_else(invalid)?;
        let first = start.addr().checked_next_multiple_of(page).ok_or_else(invalid)?;
        let addresses = first..(end / page * page).max(first);
        if !addresses.is_empty() {
            check_private(&std::fs::read_to_string("/proc/self/maps")?, &addresses)?;
        }
        Ok(addresses)
    }

    /// Replaces the whole pages of some memory; `None` if it has none.
    ///
    /// # Errors
    /// As [`Self::check`], or if there is not enough memory for a copy.
    ///
    /// # Safety
    /// Nobody uses the memory meanwhile, or while the result is dropped. It is not unmapped before.
    pub(crate) unsafe fn replace(start: *mut u8, bytes: usize) -> io::Result<Option<Self>> {
        let addresses = Self::check(start, bytes)?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let file = File::from(rustix::fs::memfd_create("antiphon", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        let at = start.wrapping_add(addresses.start - start.addr());
        // SAFETY: mapped and readable (`check`), and nobody writes it meanwhile: the caller's promise.
        file.write_all_at(unsafe { std::slice::from_raw_parts(at, addresses.len()) }, 0)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: these pages are the caller's, who lets nobody use them now. What is mapped has the same contents.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(at.cast(), addresses.len(), access, MapFlags::SHARED | MapFlags::FIXED, &file, 0)?;
        }
        Ok(Some(Self { addresses, file }))
    }

    pub(crate) fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    /// # Errors
    /// If the operating system does not identify the file.
    pub(crate) fn place(&self) -> io::Result<OpenFilePlace> {
        OpenFilePlace::of(self.file.as_fd())
    }

    fn restore(&self) -> io::Result<()> {
        let bytes = self.addresses.len();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, which only this function uses until they replace the others. These are the caller's, who lets
        // nobody use them now.
        unsafe {
            let copy = rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)?;
            let copied = self.file.read_exact_at(std::slice::from_raw_parts_mut(copy.cast(), bytes), 0);
            if let Err(error) = copied {
                rustix::mm::munmap(copy, bytes)?;
                return Err(error);
            }
            let place: *mut c_void = std::ptr::with_exposed_provenance_mut(self.addresses.start);
            rustix::mm::mremap_fixed(copy, bytes, bytes, MremapFlags::MAYMOVE, place)?;
        }
        Ok(())
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            // They are as usable as before, but a fork would share them.
            tracing::warn!("pages that were registered stay shared: {error}");
        }
    }
}

/// Whether all these addresses are private memory of no file, that can be read and written, in the text of `/proc/self/maps`.
fn check_private(maps: &str, addresses: &Range<usize>) -> io::Result<()> {
    let mut checked = addresses.start;
    for line in maps.lines() {
        let Some((range, flags, inode)) = mapping(line) else { continue };
        if !range.contains(&checked) {
            continue;
        }
        if !flags.starts_with("rw") || !flags.ends_with('p') || inode != "0" {
            let what = "it is not private memory that can be written, such as that of malloc";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        checked = range.end;
        if checked >= addresses.end {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "a part of it is not memory of this process"))
}

/// Addresses, flags and inode of a line such as `7f00-7fff rw-p 00000000 00:00 0  [heap]`.
fn mapping(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let flags = words.next()?;
    Some((address(start)?..address(end)?, flags, words.nth(2)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::heap::PeerHeap;

    #[test]
    fn memory_keeps_its_contents_and_peers_see_what_is_written() {
        let mut memory: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
        let before = memory.clone();
        // SAFETY: the vector lives until the pages are restored, and is not used meanwhile but for what follows.
        let pages = unsafe { SharedPages::replace(memory.as_mut_ptr(), memory.len()) }.unwrap().unwrap();
        assert_eq!(memory, before);
        let peer = PeerHeap::open(pages.place().unwrap()).unwrap();
        let first = pages.addresses().start - memory.as_ptr().addr();
        assert!(first < 4096 && pages.addresses().len() > 50_000 - 2 * 4096);
        memory[first + 5000] = 252;
        assert_eq!(peer.read(5000, 1).unwrap(), [252]);
        drop(pages);
        assert_eq!(memory[first + 5000], 252);
        // They are private again.
        memory[first + 5000] = before[first + 5000];
        assert_eq!(memory, before);
        assert_eq!(peer.read(5000, 1).unwrap(), [252]);
    }

    #[test]
    fn less_than_a_page_and_what_is_not_private_stays_as_it_is() {
        let mut few = [0_u8; 100];
        // SAFETY: nothing is replaced.
        assert!(unsafe { SharedPages::replace(few.as_mut_ptr(), few.len()) }.unwrap().is_none());
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-5000 rw-p 00000000 00:00 0 [heap]\n5000-6000 r--p 00000000 00:00 0\n\
                    6000-8000 rw-s 00000000 00:01 17 /memfd\n9000-a000 rw-p 00000000 08:01 5 /file\n";
        let check = |range: Range<usize>| check_private(maps, &range).is_ok();
        assert!(check(0x1000..0x5000) && check(0x2000..0x4000));
        for wrong in [0x4000..0x6000, 0x5000..0x6000, 0x6000..0x7000, 0x8000..0x9000, 0x9000..0xa000, 0xb000..0xc000] {
            assert!(!check(wrong.clone()), "{wrong:x?}");
        }
    }
}
