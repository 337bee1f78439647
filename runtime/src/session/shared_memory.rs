//! Memory that the ranks of a machine read in each other without a copy.
//!
//! The principal types are [`SharedMemory`], which a session gives, and [`RegisteredMemory`], memory of the caller that is turned
//! into such memory while it lies where it is.

use super::{Session, forked};
use crate::error::{RunError, RunResult};
use crate::memory::heap::{Area, Heap};
use crate::memory::shared_pages::SharedPages;
use crate::transport::shared::port::segments::Published;
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// Zeroes at first, and all pages are there. It outlives its session, but is then ordinary memory.
pub struct SharedMemory {
    // Before the memory is unmapped, nobody may find it.
    _published: Published,
    area: Area,
}

impl Deref for SharedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.area
    }
}

impl DerefMut for SharedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.area
    }
}

/// Pages of the caller that others can map, until this is dropped.
pub struct RegisteredMemory {
    // In this order.
    _published: Option<Published>,
    _pages: Option<SharedPages>,
}

/// A borrowed buffer that others read where it lies, until this is dropped.
pub struct RegisteredBuffer<'a> {
    // Before the borrow ends.
    _memory: RegisteredMemory,
    buffer: &'a mut [u8],
}

impl Deref for RegisteredBuffer<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer
    }
}

impl DerefMut for RegisteredBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer
    }
}

impl Session {
    /// Memory that begins at a page and that the other ranks of this machine read where it lies: long messages in it are not
    /// copied by the kernel. It has large pages where the system gives them.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn allocate(&self, bytes: usize) -> RunResult<SharedMemory> {
        if self.is_in_fork() {
            return Err(forked());
        }
        let none = |error| RunError::system("allocating shared memory")(error);
        let (heap, areas) = Heap::new(&[[bytes]]).map_err(none)?;
        heap.provide();
        let area = areas.into_iter().flatten().next().ok_or_else(|| none(io::ErrorKind::OutOfMemory.into()))?;
        let place = heap.place().map_err(none)?;
        let published = self.shared.segments.publish(addresses(area.as_ptr(), bytes), place).map_err(none)?;
        Ok(SharedMemory { _published: published, area })
    }

    /// Lets the other ranks of this machine read a borrowed buffer where it lies. See [`Self::register_raw`].
    ///
    /// # Errors
    /// As [`Self::register_raw`].
    #[expect(unsafe_code, reason = "the borrow keeps the promise")]
    pub fn register<'a>(&self, buffer: &'a mut [u8]) -> RunResult<RegisteredBuffer<'a>> {
        // SAFETY: the borrow is exclusive. If the result is never dropped, the pages stay valid as they are.
        let memory = unsafe { self.register_raw(buffer.as_mut_ptr(), buffer.len()) }?;
        Ok(RegisteredBuffer { _memory: memory, buffer })
    }

    /// Lets the other ranks of this machine read memory of the caller where it lies. Whole pages of it become pages of a file
    /// that others can map, and its contents stay. It should begin at a page: what lies in pages that are only partly in it is
    /// copied by the kernel as before. A process that is forked meanwhile shares these pages, instead of having copies of them.
    ///
    /// # Errors
    /// If the memory is not private memory of this process that can be written, as that of `malloc` is; if a part of it is
    /// registered already; or if there is no memory.
    ///
    /// # Safety
    /// Nobody uses the memory while this is called, or while the result is dropped. The memory is not unmapped before.
    #[expect(unsafe_code, reason = "replaces the pages of the caller's memory")]
    pub unsafe fn register_raw(&self, start: *mut u8, bytes: usize) -> RunResult<RegisteredMemory> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => RunError::Mismatch { what: format!("memory cannot be registered: {error}") },
            _ => RunError::system("registering memory")(error),
        };
        if self.is_in_fork() {
            return Err(forked());
        }
        if !self.shared.directory.has_processes() {
            // Threads of this process read all memory.
            SharedPages::check(start, bytes).map_err(failed)?;
            return Ok(RegisteredMemory { _published: None, _pages: None });
        }
        // SAFETY: the caller's promise.
        let Some(pages) = (unsafe { SharedPages::replace(start, bytes) }).map_err(failed)? else {
            return Ok(RegisteredMemory { _published: None, _pages: None });
        };
        let place = pages.place().map_err(failed)?;
        let published = self.shared.segments.publish(pages.addresses(), place).map_err(failed)?;
        Ok(RegisteredMemory { _published: Some(published), _pages: Some(pages) })
    }
}

fn addresses(start: *const u8, bytes: usize) -> Range<usize> {
    start.addr()..start.addr() + bytes
}
