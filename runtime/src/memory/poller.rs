//! How a rank sleeps until a socket changes or a peer wakes it.
//!
//! The principal type is [`Poller`]. A thread cannot wait for a futex and a socket together. So a rank with sockets has
//! a [`Pipe`], and ranks of its computer write to the pipe instead of waking the futex. They open the pipe under
//! `/proc`, which only processes of the same user may do, and keep it open ([`Ringer`]). If a wake-up fails, the
//! sleeper still polls again soon. An eventfd would be smaller, but other processes could not open it.
//!
//! Events are edge-triggered: a rank tries all lanes before it sleeps, so only later changes matter. With more than
//! [`FEW`] sockets, the events also tell which sockets to try ([`Socket`]).

use super::socket::{Socket, SocketState};
use crate::memory::region::OpenFilePlace;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Up to this many sockets, a rank tries all of them. For few sockets, failed calls were measured to cost less than one
/// call that asks for changes.
pub(super) const FEW: usize = 32;
/// The event data of the pipe. The event data of a socket is its number.
const BELL: u64 = u64::MAX;

/// The writing end of a rank's pipe, as other processes of this user find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pipe(pub(crate) OpenFilePlace);

/// Writes to a rank's pipe. Opens the pipe for the first ring and keeps it open.
#[derive(Default)]
pub(crate) struct Ringer {
    opened: Mutex<Option<(Pipe, File)>>,
}

impl Ringer {
    /// Wakes the owner of `pipe`.
    ///
    /// # Errors
    /// If the pipe cannot be written to. Its owner is gone, or will poll again by itself.
    pub(crate) fn ring(&self, pipe: Pipe) -> io::Result<()> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let end = match &*opened {
            Some((known, end)) if *known == pipe => end,
            // For reading too: then there is always a reader, and a write after the owner's death raises no SIGPIPE. Programs that
            // use this crate as a library may not ignore this signal.
            _ => &opened.insert((pipe, pipe.0.open(OFlags::RDWR | OFlags::NONBLOCK)?)).1,
        };
        match rustix::io::write(end, &[1]) {
            // A full pipe wakes its owner too.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => {
                *opened = None;
                Err(error.into())
            }
        }
    }
}

/// What one rank sleeps on: its sockets and its pipe.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
    /// The writing end, kept open so that other processes can open it.
    _ringer: OwnedFd,
    pipe: Pipe,
    /// The state of each socket, by its event data.
    states: Mutex<Vec<Arc<SocketState>>>,
    /// Whether changes were already read since the last `refresh`.
    is_fresh: AtomicBool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = create(CreateFlags::CLOEXEC)?;
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let pipe = Pipe(OpenFilePlace::of(ringer.as_fd())?);
        Ok(Self { epoll, bell, _ringer: ringer, pipe, states: Mutex::default(), is_fresh: AtomicBool::new(false) })
    }

    /// Adds a socket: its changes end a sleep.
    pub(crate) fn watch(&self, stream: TcpStream) -> io::Result<Socket> {
        let mut states = self.states();
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

    /// Reads the changes, if there are so many sockets that not all are tried.
    pub(crate) fn refresh(&self) {
        if !self.is_fresh.swap(false, Ordering::Relaxed) && self.states().len() > FEW {
            self.look();
        }
    }

    fn states(&self) -> MutexGuard<'_, Vec<Arc<SocketState>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pipe(&self) -> Pipe {
        self.pipe
    }

    /// Sleeps until something changes, or for `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // `epoll_wait` counts in milliseconds. `epoll_pwait2` does not, but old kernels and some filters of system
        // calls do not know it. `poll` counts in nanoseconds everywhere.
        let woken = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
        // Interrupted, timed out or woken: in each case the caller polls again.
        if woken.is_ok_and(|count| count > 0) {
            self.look();
            self.is_fresh.store(true, Ordering::Relaxed);
        }
    }

    /// Reads up to 64 changes. Further changes are read the next time.
    fn look(&self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 64];
        let Ok((events, _)) = wait(&self.epoll, &mut events[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) else {
            return;
        };
        let states = self.states();
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
        // The shortest of many sleeps, because other tests share the cores.
        let shortest = (0..200).map(sleep).min().unwrap();
        assert!((100..900).contains(&shortest.as_micros()), "{shortest:?}");
    }

    #[test]
    fn a_pipe_of_another_life_is_not_written_to() {
        let poller = Poller::new().unwrap();
        let pipe = poller.pipe();
        let later = Pipe(OpenFilePlace { inode: pipe.0.inode + 1, ..pipe.0 });
        let ringer = Ringer::default();
        assert!(ringer.ring(later).is_err());
        ringer.ring(pipe).unwrap();
        drop(poller);
        // Its path leads nowhere. The end that is open takes bytes that nobody reads, and no signal ends this process.
        assert!(Ringer::default().ring(pipe).is_err());
        ringer.ring(pipe).unwrap();
    }
}
