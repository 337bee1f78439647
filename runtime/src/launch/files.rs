//! Files that all workers read, such as plans, on all machines.
//!
//! The principal types are [`SharedFile`] and [`Library`]. The workers of this machine open a shared file in place.
//! Agents of other machines receive it as a file without a name, which their workers open in the same way.

use crate::control::messages::ToAgent;
use crate::error::{RunError, RunResult};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// About how many bytes of a file one message carries.
const PIECE: usize = 1 << 20;
/// The largest file that is sent.
pub(crate) const LARGEST: usize = 1 << 30;
/// How many files an agent stores.
const KEPT: usize = 64;

/// An open text file that workers can read.
#[derive(Debug)]
pub struct SharedFile {
    id: u64,
    file: File,
}

impl SharedFile {
    /// Shares a file. The file must not change any more, and needs no name.
    pub fn new(file: File) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), file }
    }

    /// The number of the file, unique in this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Where another process of this machine and this user finds the file.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// Sends the file, cut into messages.
    ///
    /// # Errors
    /// If it cannot be read, is not UTF-8 text, or is too large.
    pub(crate) fn send(&self, mut send: impl FnMut(&ToAgent)) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length > LARGEST as u64 {
            let what = format!("a file of {length} bytes is too large to be sent to other machines");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        let mut rest = str::from_utf8(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        loop {
            let end = (0..=PIECE.min(rest.len())).rev().find(|&end| rest.is_char_boundary(end));
            let (piece, after) = rest.split_at(end.unwrap_or_default());
            rest = after;
            let is_last = rest.is_empty();
            send(&ToAgent::Keep { file: self.id, piece: piece.to_owned(), is_last });
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Where another process of this machine and this user finds an open file of this process.
pub(crate) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// The files that agents of other machines have, and their paths there.
#[derive(Debug, Default)]
pub(crate) struct Library {
    /// Each file with its path on every machine but the first. The oldest file comes first.
    kept: VecDeque<(u64, Vec<PathBuf>)>,
}

impl Library {
    pub(crate) fn has(&self, file: &SharedFile) -> bool {
        self.kept.iter().any(|(id, _)| *id == file.id)
    }

    /// Records the paths of a file. Returns the files that need not be stored any more.
    pub(crate) fn keep(&mut self, file: &SharedFile, paths: Vec<PathBuf>) -> Vec<u64> {
        self.kept.push_back((file.id, paths));
        let too_many = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..too_many).map(|(id, _)| id).collect()
    }

    /// The paths of these files on a machine; 0 is the first machine after the coordinator's.
    pub(crate) fn paths(&self, files: &[&SharedFile], machine: usize) -> Vec<PathBuf> {
        let path = |file: &&SharedFile| {
            let (_, paths) = self.kept.iter().find(|(id, _)| *id == file.id)?;
            paths.get(machine).cloned()
        };
        files.iter().filter_map(path).collect()
    }
}

/// A file that an agent receives in pieces.
#[derive(Debug)]
pub(crate) struct Receiving {
    file: File,
    length: usize,
}

impl Receiving {
    /// A new file without a name.
    pub(crate) fn new() -> RunResult<Self> {
        use rustix::fs::{MemfdFlags, memfd_create};
        let file = memfd_create("antiphon plan", MemfdFlags::CLOEXEC).map_err(io::Error::from);
        Ok(Self { file: File::from(file.map_err(RunError::system("keeping a plan"))?), length: 0 })
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// If there is no memory for it, or if the file becomes larger than [`LARGEST`].
    pub(crate) fn add(&mut self, piece: &str) -> io::Result<()> {
        if self.length + piece.len() > LARGEST {
            return Err(io::Error::new(ErrorKind::InvalidData, "the coordinator sends a file that is too large"));
        }
        self.file.write_all_at(piece.as_bytes(), self.length as u64)?;
        self.length += piece.len();
        Ok(())
    }

    /// Where the workers of this machine find the file.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(text: &str) -> SharedFile {
        let file = Receiving::new().unwrap().file;
        file.write_all_at(text.as_bytes(), 0).unwrap();
        SharedFile::new(file)
    }

    #[test]
    fn a_file_arrives_as_it_was_whatever_its_letters_are() {
        for text in [String::new(), "{}".to_owned(), "aß→𝄞".repeat(400_000)] {
            let (mut arrived, mut done) = (Receiving::new().unwrap(), 0);
            shared(&text)
                .send(|message| {
                    let ToAgent::Keep { piece, is_last, .. } = message else { panic!("{message:?}") };
                    assert!(piece.len() <= PIECE);
                    arrived.add(piece).unwrap();
                    done += u32::from(*is_last);
                })
                .unwrap();
            assert_eq!((std::fs::read_to_string(arrived.path()).unwrap(), done), (text, 1));
        }
        let file = Receiving::new().unwrap().file;
        file.write_all_at(&[0xff, 0xfe], 0).unwrap();
        assert!(SharedFile::new(file).send(|_| {}).is_err());
    }

    #[test]
    fn the_oldest_files_are_forgotten() {
        let mut library = Library::default();
        let files: Vec<_> = (0..KEPT + 2).map(|_| shared("")).collect();
        for (index, file) in files.iter().enumerate() {
            let forgotten = library.keep(file, vec![PathBuf::from(format!("/{index}"))]);
            assert_eq!(forgotten, index.checked_sub(KEPT).map(|old| files[old].id()).into_iter().collect::<Vec<_>>());
        }
        assert!(!library.has(&files[0]) && library.has(&files[KEPT + 1]));
        assert_eq!(library.paths(&[&files[5], &files[3]], 0), [PathBuf::from("/5"), PathBuf::from("/3")]);
    }
}
