//! Reading the memory of another process.
//!
//! The principal type is [`ProcessReader`]. The system call `process_vm_readv` copies from the memory of another process of
//! the same user, without its help. Containers and hardened systems may forbid it, so a reader first reads a word that it
//! knows ([`WordProbe`]). If that fails, long messages come in fragments instead.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A word in the memory of a process: where it is, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WordProbe {
    process: u32,
    address: u64,
    value: u64,
}

/// The words of this process: their addresses and values.
static OWN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

fn own() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WordProbe {
    /// Whether the word is in this process: its threads can read it through a pointer. Two ranks of one process say so
    /// of each other, and no others do, because no system call is asked, which may be forbidden to one thread only. (A
    /// number of a process alone means little: containers count theirs anew. A fork has the words, but another number.)
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id() && own().contains(&(self.address, self.value))
    }
}

/// A word that other processes read to find out whether they can.
pub(crate) struct ProbedWord(Box<u64>);

impl Drop for ProbedWord {
    fn drop(&mut self) {
        let WordProbe { address, value, .. } = self.probe();
        own().remove(&(address, value));
    }
}

impl ProbedWord {
    /// A word with this value, which should be a random number.
    pub(crate) fn new(value: u64) -> Self {
        let word = Self(Box::new(value));
        own().insert((word.probe().address, value));
        word
    }

    /// Where others find it. It must not be moved out of its box.
    pub(crate) fn probe(&self) -> WordProbe {
        let address = std::ptr::from_ref::<u64>(&self.0).expose_provenance() as u64;
        WordProbe { process: std::process::id(), address, value: *self.0 }
    }
}

/// Reads the memory of one other process.
#[derive(Clone, Copy)]
pub(crate) struct ProcessReader {
    process: libc::pid_t,
}

impl ProcessReader {
    /// A reader of the process that has said so.
    ///
    /// # Errors
    /// If its memory cannot be read, or is not what it says.
    pub(crate) fn new(probe: WordProbe) -> io::Result<Self> {
        let process = libc::pid_t::try_from(probe.process).map_err(io::Error::other)?;
        let reader = Self { process };
        let mut word = [0; 8];
        reader.read(probe.address, &mut word)?;
        match u64::from_ne_bytes(word) == probe.value {
            true => Ok(reader),
            false => Err(io::Error::other("another process has its number")),
        }
    }

    /// Fills `into` with what lies at an address.
    ///
    /// # Errors
    /// If the process is gone, or does not have so much memory there.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let remote = libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut((address as usize).wrapping_add(done)),
                iov_len: rest.len(),
            };
            // SAFETY: the kernel writes only to `rest`, which is borrowed for writing, and checks the other process's address.
            let copied = unsafe { libc::process_vm_readv(self.process, &local, 1, &remote, 1, 0) };
            match copied {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                1.. => done += copied as usize,
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process can always read itself.
    #[test]
    fn a_word_is_found_where_it_is() {
        let word = ProbedWord::new(0x0123_4567_89ab_cdef);
        let probe = word.probe();
        let reader = ProcessReader::new(probe).unwrap();
        let data: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let mut copy = vec![0; data.len()];
        reader.read(data.as_ptr().expose_provenance() as u64, &mut copy).unwrap();
        assert_eq!(copy, data);
        assert!(probe.is_of_this_process());
        let others = [
            WordProbe { value: 1, ..probe },
            WordProbe { address: 8, ..probe },
            WordProbe { process: probe.process + 1, ..probe },
        ];
        assert!(others.iter().all(|other| !other.is_of_this_process()));
        assert!(ProcessReader::new(WordProbe { value: 1, ..probe }).is_err());
        assert!(ProcessReader::new(WordProbe { address: 8, ..probe }).is_err());
        assert!(ProcessReader::new(WordProbe { process: u32::MAX, ..probe }).is_err());
        drop(word);
        assert!(!probe.is_of_this_process());
    }
}
