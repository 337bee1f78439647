//! Memory for buffers that the other ranks of the machine read where it lies.
//!
//! The principal types are [`SharedVector`], which a communicator gives, and [`RegisteredVector`], a borrowed buffer. A long
//! message from other memory is copied by the kernel between processes, which takes longer.

use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use runtime::{Element, RegisteredBuffer, SharedMemory};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A vector of zeroes at first, in shared memory.
pub struct SharedVector<T> {
    memory: SharedMemory,
    elements: PhantomData<T>,
}

impl<T: Element> Deref for SharedVector<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory)
    }
}

impl<T: Element> DerefMut for SharedVector<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

/// A borrowed vector that others read where it lies, until this is dropped.
pub struct RegisteredVector<'a, T> {
    buffer: RegisteredBuffer<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Element> Deref for RegisteredVector<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.buffer)
    }
}

impl<T: Element> DerefMut for RegisteredVector<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.buffer)
    }
}

impl Communicator {
    /// A vector for calls of any communicator of the job. It begins at a page, and all its pages are there.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn allocate<T: Element>(&self, count: usize) -> CommResult<SharedVector<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let too_many = || CommError::Argument(format!("{count} elements are more than can be addressed"));
        let memory = self.shared.session.allocate(bytes.ok_or_else(too_many)?)?;
        Ok(SharedVector { memory, elements: PhantomData })
    }

    /// Lets others read a vector where it lies. Its whole pages become shared pages, and its contents stay, so it should begin
    /// at a page. Who forks the process meanwhile shares them with the fork. Where all ranks are threads of one process, nothing
    /// has to be done.
    ///
    /// # Errors
    /// If it is not private memory of this process, or a part of it is registered already.
    pub fn register<'a, T: Element>(&self, vector: &'a mut [T]) -> CommResult<RegisteredVector<'a, T>> {
        let buffer = self.shared.session.register(bytemuck::cast_slice_mut(vector))?;
        Ok(RegisteredVector { buffer, elements: PhantomData })
    }

    /// The session, for memory that is given by its address.
    pub fn session(&self) -> &runtime::Session {
        &self.shared.session
    }
}
