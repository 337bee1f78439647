//! How a rank sleeps that waits for sockets.
//!
//! The principal type is [`Poller`]. A futex and a socket cannot be waited for together, so a rank with sockets has a
//! [`Pipe`] instead, which ranks of its computer write to where they would wake the futex. They find it under `/proc`,
//! which only processes of the same user may do; a rank that is not woken looks around soon by itself.
//!
//! Events are edge-triggered: a rank polls all lanes that it waits for before it sleeps, so what matters is only what
//! changed since.

use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Where another process of this user finds the writing end of a rank's pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pipe {
    pub(crate) process: u32,
    pub(crate) descriptor: u32,
    /// Tells it from whatever has the same number in a later process of the same number.
    pub(crate) inode: u64,
}

impl Pipe {
    /// Wakes the owner.
    ///
    /// # Errors
    /// If it cannot be reached: it is gone, or looks around by itself.
    pub(crate) fn ring(self) -> io::Result<()> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let end = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&end)?.st_ino != self.inode {
            return Err(io::Error::other("the descriptor is no longer the pipe that it was"));
        }
        // A full pipe wakes its owner as well as one more byte would.
        rustix::io::write(end, &[1])?;
        Ok(())
    }
}

/// What one rank sleeps on.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
    ringer: OwnedFd,
    inode: u64,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = create(CreateFlags::CLOEXEC)?;
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        add(&epoll, &bell, EventData::new_u64(1), EventFlags::IN)?;
        let inode = rustix::fs::fstat(&ringer)?.st_ino;
        Ok(Self { epoll, bell, ringer, inode })
    }

    /// Wakes up whenever something changes at this socket.
    pub(super) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        add(&self.epoll, socket, EventData::new_u64(0), flags)?;
        Ok(())
    }

    pub(crate) fn pipe(&self) -> Pipe {
        Pipe { process: std::process::id(), descriptor: self.ringer.as_raw_fd() as u32, inode: self.inode }
    }

    /// Sleeps until something changes, or for `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut events = [MaybeUninit::<Event>::uninit(); 16];
        // Interrupted, timed out, woken: in each case the caller polls again.
        let rung = match wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok((events, _)) => events.iter().any(|event| event.data.u64() == 1),
            Err(_) => false,
        };
        if rung {
            let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_ring_ends_a_sleep_once() {
        let poller = Poller::new().unwrap();
        poller.pipe().ring().unwrap();
        poller.pipe().ring().unwrap();
        let begin = Instant::now();
        poller.sleep(Duration::from_secs(20));
        assert!(begin.elapsed() < Duration::from_secs(10));
        poller.sleep(Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_pipe_of_another_life_is_not_written_to() {
        let poller = Poller::new().unwrap();
        let later = Pipe { inode: poller.pipe().inode + 1, ..poller.pipe() };
        assert!(later.ring().is_err());
        drop(poller.ringer);
        assert!(Pipe { inode: later.inode - 1, ..later }.ring().is_err());
    }
}
