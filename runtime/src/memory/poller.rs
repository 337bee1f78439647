//! How a rank sleeps that waits for sockets.
//!
//! The principal type is [`Poller`]. A futex and a socket cannot be waited for together, so a rank with sockets has a
//! [`Pipe`] instead, which ranks of its computer write to where they would wake the futex. They find it under `/proc`,
//! which only processes of the same user may do; a rank that is not woken looks around soon by itself.
//!
//! Events are edge-triggered: a rank polls all lanes that it waits for before it sleeps, so what matters is only what
//! changed since.

use crate::memory::region::Place;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The writing end of a rank's pipe, for other processes of this user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pipe(pub(crate) Place);

impl Pipe {
    /// Wakes the owner.
    ///
    /// # Errors
    /// If it cannot be reached: it is gone, or looks around by itself.
    pub(crate) fn ring(self) -> io::Result<()> {
        let end = self.0.open(OFlags::WRONLY | OFlags::NONBLOCK)?;
        // A full pipe wakes its owner as well as one more byte would.
        rustix::io::write(end, &[1])?;
        Ok(())
    }
}

/// What one rank sleeps on.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
    /// Kept open for those who ring.
    _ringer: OwnedFd,
    pipe: Pipe,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = create(CreateFlags::CLOEXEC)?;
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        add(&epoll, &bell, EventData::new_u64(1), EventFlags::IN)?;
        let pipe = Pipe(Place::of(ringer.as_fd())?);
        Ok(Self { epoll, bell, _ringer: ringer, pipe })
    }

    /// Wakes up whenever something changes at this socket.
    pub(crate) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        add(&self.epoll, socket, EventData::new_u64(0), flags)?;
        Ok(())
    }

    pub(crate) fn pipe(&self) -> Pipe {
        self.pipe
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
        let pipe = poller.pipe();
        let later = Pipe(Place { inode: pipe.0.inode + 1, ..pipe.0 });
        assert!(later.ring().is_err());
        drop(poller);
        assert!(pipe.ring().is_err());
    }
}
