//! How a rank sleeps that waits for sockets.
//!
//! The principal type is [`Poller`]. A futex and a socket cannot be waited for together, so a rank with sockets has a
//! [`Pipe`] instead, which ranks of its computer write to where they would wake the futex. They find it under `/proc`,
//! which only processes of the same user may do, and keep it open ([`Ringer`]); a rank that is not woken looks around soon by
//! itself. An eventfd would be smaller, but has no name under which a process that another agent started could open it.
//!
//! Events are edge-triggered: a rank tries all lanes that it waits for before it sleeps, so what matters is only what
//! changed since. Where it has more than a [`FEW`] sockets, they also say which of them are worth a try ([`Socket`]).

use super::socket::{Socket, SocketState};
use crate::memory::region::Place;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// With so many sockets a rank tries them all: on few, calls that fail have cost less than the one that asks for changes.
pub(super) const FEW: usize = 32;
/// What events of the pipe bear; those of sockets bear their numbers.
const BELL: u64 = u64::MAX;

/// The writing end of a rank's pipe, for other processes of this user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pipe(pub(crate) Place);

/// Rings a rank's pipe, which it opens when it rings for the first time.
#[derive(Default)]
pub(crate) struct Ringer {
    opened: Mutex<Option<(Pipe, File)>>,
}

impl Ringer {
    /// Wakes the owner of the pipe.
    ///
    /// # Errors
    /// If it cannot be reached: it is gone, or looks around by itself.
    pub(crate) fn ring(&self, pipe: Pipe) -> io::Result<()> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let end = match &*opened {
            Some((known, end)) if *known == pipe => end,
            _ => &opened.insert((pipe, pipe.0.open(OFlags::WRONLY | OFlags::NONBLOCK)?)).1,
        };
        match rustix::io::write(end, &[1]) {
            // A full pipe wakes its owner as well as one more byte would.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => {
                *opened = None;
                Err(error.into())
            }
        }
    }
}

/// What one rank sleeps on.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
    /// Kept open for those who ring.
    _ringer: OwnedFd,
    pipe: Pipe,
    /// What is known of the sockets, by what their events bear.
    states: RefCell<Vec<Arc<SocketState>>>,
    /// Whether what has changed was heard since anybody asked.
    is_fresh: Cell<bool>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = create(CreateFlags::CLOEXEC)?;
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let pipe = Pipe(Place::of(ringer.as_fd())?);
        Ok(Self { epoll, bell, _ringer: ringer, pipe, states: RefCell::default(), is_fresh: Cell::new(false) })
    }

    /// Wakes up whenever something changes at this socket.
    pub(crate) fn watch(&self, stream: TcpStream) -> io::Result<Socket> {
        let mut states = self.states.borrow_mut();
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        add(&self.epoll, &stream, EventData::new_u64(states.len() as u64), flags)?;
        let state = Arc::new(SocketState::default());
        states.push(state.clone());
        match states.len() {
            ..=FEW => {}
            count if count == FEW + 1 => states.iter().for_each(|state| state.begin()),
            _ => state.begin(),
        }
        Ok(Socket::new(stream, state))
    }

    /// Hears what has changed, where sockets are not tried without a reason.
    pub(crate) fn refresh(&self) {
        if !self.is_fresh.take() && self.states.borrow().len() > FEW {
            self.look();
        }
    }

    pub(crate) fn pipe(&self) -> Pipe {
        self.pipe
    }

    /// Sleeps until something changes, or for `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // `epoll_wait` counts in milliseconds. Its successor that does not is younger than some kernels, and unknown to some
        // filters of system calls; this one counts in nanoseconds everywhere.
        let woken = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
        // Interrupted, timed out, woken: in each case the caller polls again.
        if woken.is_ok_and(|count| count > 0) {
            self.look();
            self.is_fresh.set(true);
        }
    }

    /// Hears what has changed. Of more than a few changes the rest is heard the next time.
    fn look(&self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 64];
        let Ok((events, _)) = wait(&self.epoll, &mut events[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) else {
            return;
        };
        let states = self.states.borrow();
        for event in &*events {
            match states.get(event.data.u64() as usize) {
                Some(state) => state.heard(event.flags),
                None => drop(rustix::io::read(&self.bell, &mut [0; 256])),
            }
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
        let ringer = Ringer::default();
        ringer.ring(poller.pipe()).unwrap();
        ringer.ring(poller.pipe()).unwrap();
        let begin = Instant::now();
        poller.sleep(Duration::from_secs(20));
        assert!(begin.elapsed() < Duration::from_secs(10));
        poller.sleep(Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_sleep_may_be_shorter_than_a_millisecond() {
        let poller = Poller::new().unwrap();
        let sleep = |_| {
            let begin = Instant::now();
            poller.sleep(Duration::from_micros(100));
            begin.elapsed()
        };
        // The shortest of many, because other tests share the cores.
        let shortest = (0..200).map(sleep).min().unwrap();
        assert!((100..900).contains(&shortest.as_micros()), "{shortest:?}");
    }

    #[test]
    fn a_pipe_of_another_life_is_not_written_to() {
        let poller = Poller::new().unwrap();
        let pipe = poller.pipe();
        let later = Pipe(Place { inode: pipe.0.inode + 1, ..pipe.0 });
        let ringer = Ringer::default();
        assert!(ringer.ring(later).is_err());
        ringer.ring(pipe).unwrap();
        drop(poller);
        // Neither the end that is open, nor by its name.
        assert!(ringer.ring(pipe).is_err() && ringer.ring(pipe).is_err());
    }
}
