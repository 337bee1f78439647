//! Sockets between the processes of a computer: file descriptors travel through them, and they tell who is gone.
//!
//! The principal type is [`PeerSockets`]. Names and secrets of the sockets come from elsewhere ([`PeerListener`]).

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};
use topology::Rank;

/// What all ranks know of a rank's socket: its name, and what a caller has to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SocketName {
    pub(super) name: [u8; 16],
    pub(super) secret: [u8; 16],
}

/// A rank that others call.
pub(super) struct PeerListener {
    listener: UnixListener,
    pub(super) name: SocketName,
}

/// When all connections must be there.
#[derive(Clone, Copy)]
pub(super) struct SocketDeadline {
    begin: Instant,
    limit: Duration,
}

impl SocketDeadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    /// Waits until there is something to read, for this.
    fn wait(&self, socket: BorrowedFd<'_>, what: impl Fn() -> String) -> Result<(), String> {
        let left = self.left();
        let timeout = left.try_into().map_err(|_| "the time limit is too long".to_owned())?;
        let mut asked = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut asked, Some(&timeout)) {
            Ok(0) => Err(format!("{} was not there after {:?}", what(), self.limit)),
            Ok(_) => Ok(()),
            // Whoever waits looks again.
            Err(rustix::io::Errno::INTR) if !self.left().is_zero() => self.wait(socket, what),
            Err(error) => Err(format!("{}: {error}", what())),
        }
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// A number that no other process has.
pub(super) fn process_number() -> io::Result<[u8; 16]> {
    static NUMBER: std::sync::Mutex<Option<(u32, [u8; 16])>> = std::sync::Mutex::new(None);
    let mut number = NUMBER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A child that was forked is another process.
    match &*number {
        Some((process, known)) if *process == std::process::id() => Ok(*known),
        _ => Ok(number.insert((std::process::id(), random()?)).1),
    }
}

fn address(name: &[u8; 16]) -> io::Result<SocketAddr> {
    let text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("antiphon-{text}"))
}

impl PeerListener {
    pub(super) fn new() -> io::Result<Self> {
        let name = SocketName { name: random()?, secret: random()? };
        let listener = UnixListener::bind_addr(&address(&name.name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name })
    }

    /// Connects with all ranks: calls those before this one, and is called by those after it.
    pub(super) fn connect(
        self,
        rank: Rank,
        names: &[SocketName],
        deadline: SocketDeadline,
    ) -> Result<PeerSockets, String> {
        let mut sockets = PeerSockets { sockets: names.iter().map(|_| None).collect() };
        for (index, named) in names.iter().enumerate().take(rank.index()) {
            let called = address(&named.name).and_then(|to| UnixStream::connect_addr(&to));
            let called = called.and_then(|mut socket| {
                socket.set_write_timeout(Some(deadline.left().max(Duration::from_millis(1))))?;
                socket.write_all(&[&named.secret[..], &rank.0.to_le_bytes()].concat())?;
                Ok(socket)
            });
            let called = called.map_err(|error| format!("calling the process of rank {index}: {error}"))?;
            sockets.sockets[index] = Some(called);
        }
        while let Some(missing) = (rank.index() + 1..names.len()).find(|index| sockets.sockets[*index].is_none()) {
            deadline.wait(self.listener.as_fd(), || format!("the call of rank {missing}"))?;
            match self.listener.accept() {
                Ok((socket, _)) => self.admit(socket, rank, &mut sockets, deadline),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("being called by rank {missing}: {error}")),
            }
        }
        Ok(sockets)
    }

    /// Takes a caller that belongs here; any other one is left alone.
    fn admit(&self, mut socket: UnixStream, own: Rank, sockets: &mut PeerSockets, deadline: SocketDeadline) {
        let is_ours =
            rustix::net::sockopt::socket_peercred(&socket).is_ok_and(|caller| caller.uid == rustix::process::geteuid());
        let mut hello = [0; 20];
        let heard = socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_read_timeout(Some(deadline.left().clamp(Duration::from_millis(1), HELLO))))
            .and_then(|()| socket.read_exact(&mut hello));
        let rank = u32::from_le_bytes([hello[16], hello[17], hello[18], hello[19]]) as usize;
        let belongs = is_ours && heard.is_ok() && hello[..16] == self.name.secret && rank > own.index();
        if let Some(place @ None) = sockets.sockets.get_mut(rank).filter(|_| belongs) {
            *place = Some(socket);
        }
    }
}

/// How long a caller may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// What a rank says when it leaves in order.
const FAREWELL: u8 = 0xF0;

/// A socket to each of the other ranks.
#[derive(Debug)]
pub(in crate::device) struct PeerSockets {
    sockets: Vec<Option<UnixStream>>,
}

impl PeerSockets {
    /// Sends a file descriptor to each of the others.
    pub(super) fn send(&self, descriptor: BorrowedFd<'_>) -> Result<(), String> {
        for (index, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            let (descriptors, mut space) = ([descriptor], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)
                .map_err(|error| format!("sending memory to rank {index}: {error}"))?;
        }
        Ok(())
    }

    /// The file descriptor that a rank sends.
    pub(super) fn receive(&self, from: Rank, deadline: SocketDeadline) -> Result<OwnedFd, String> {
        let Some(socket) = &self.sockets[from.index()] else { return Err(format!("rank {from} is not connected")) };
        deadline.wait(socket.as_fd(), || format!("the memory of rank {from}"))?;
        let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
        received.map_err(|error| format!("receiving the memory of rank {from}: {error}"))?;
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        descriptors.next().ok_or_else(|| format!("rank {from} is gone, or has sent no memory"))
    }

    /// A rank whose process has ended without a farewell.
    pub(super) fn gone(&self) -> Option<Rank> {
        let is_gone = |socket: &UnixStream| {
            let mut byte = [0u8];
            match recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((_, count)) => count == 0,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
                Err(_) => true,
            }
        };
        let found = self.sockets.iter().position(|socket| socket.as_ref().is_some_and(is_gone));
        found.map(Rank::from_index)
    }

    /// Waits until something happens to any of them but these, or to `stop`; whether it was `stop`.
    pub(super) fn wait(&self, stop: BorrowedFd<'_>, ended: &[Rank]) -> Result<bool, String> {
        let is_open = |index: &usize| !ended.contains(&Rank::from_index(*index));
        let open = (0..self.sockets.len()).filter(is_open).filter_map(|index| self.sockets[index].as_ref());
        let mut asked: Vec<PollFd<'_>> = open.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        asked.push(PollFd::from_borrowed_fd(stop, PollFlags::IN));
        match poll(&mut asked, None) {
            Ok(_) => Ok(asked.last().is_some_and(|stop| !stop.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The ranks that have left in order.
    pub(super) fn left(&self) -> Vec<Rank> {
        let has_left = |socket: &UnixStream| {
            let mut byte = [0u8];
            let heard = recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            matches!(heard, Ok((_, 1))) && byte[0] == FAREWELL
        };
        let left = self.sockets.iter().enumerate().filter(|(_, socket)| socket.as_ref().is_some_and(has_left));
        left.map(|(index, _)| Rank::from_index(index)).collect()
    }
}

impl Drop for PeerSockets {
    fn drop(&mut self) {
        for socket in self.sockets.iter().flatten() {
            // Who is gone needs no farewell.
            let _ = rustix::net::send(socket, &[FAREWELL], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
