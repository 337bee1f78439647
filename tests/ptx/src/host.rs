//! What the host does with the memory of a [`Machine`] while no kernel runs.

use crate::machine::Machine;
use crate::memory::{OutsideMemory, Regions};
use crate::report::Fault;
use std::sync::Arc;

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A machine without memory.
    pub fn new() -> Self {
        Self { memory: Regions::new() }
    }

    /// A machine whose memory begins at an address.
    pub fn beginning_at(first: u64) -> Self {
        Self { memory: Regions::beginning_at(first) }
    }

    /// Frees what [`Self::allocate`] gave; false if there is no such memory.
    pub fn release(&mut self, address: u64) -> bool {
        self.memory.release(address)
    }

    /// How many allocations there are.
    pub fn allocations(&self) -> usize {
        self.memory.count()
    }

    /// Zeroed memory. The address is a multiple of `align`, a power of two, and not of twice as much.
    pub fn allocate(&mut self, bytes: usize, align: u64) -> u64 {
        self.memory.allocate(bytes as u64, align)
    }

    /// Puts memory of others at an address; false if there is some already. [`Self::release`] takes it away.
    pub fn put(&mut self, address: u64, memory: Arc<dyn OutsideMemory>) -> bool {
        self.memory.put(address, memory)
    }

    /// Whether there are so many bytes at an address.
    pub fn holds(&self, address: u64, bytes: usize) -> bool {
        self.memory.find(address, bytes as u64).is_some()
    }

    /// Writes as the host does while no kernel runs.
    ///
    /// # Errors
    /// [`Fault::Launch`] if there is no such memory.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let place = self.memory.find(address, bytes.len() as u64).ok_or_else(|| no_memory(address, bytes.len()))?;
        self.memory.write(place, bytes);
        Ok(())
    }

    /// Reads as the host does while no kernel runs.
    ///
    /// # Errors
    /// [`Fault::Launch`] if there is no such memory.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, Fault> {
        let place = self.memory.find(address, bytes as u64).ok_or_else(|| no_memory(address, bytes))?;
        Ok(self.memory.read(place, bytes))
    }
}

fn no_memory(address: u64, bytes: usize) -> Fault {
    Fault::Launch(format!("no memory of {bytes} bytes at {address:#x}"))
}
