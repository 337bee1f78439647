//! Sockets between the processes of a computer: file descriptors travel through them, and they tell who is gone.
//!
//! The principal type is [`PeerSockets`]. Names and secrets of the sockets come from elsewhere ([`PeerListener`]).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::{PidfdFlags, pidfd_open};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// When all connections must be there, or are not wanted any more.
#[derive(Clone)]
pub(super) struct SocketDeadline {
    begin: Instant,
    limit: Duration,
    stop: Option<Arc<AtomicBool>>,
}

/// Between two looks at whether anybody waits still.
const LOOK: Duration = Duration::from_millis(20);
/// Between two calls of a rank whose queue is full.
const CALL: Duration = Duration::from_millis(1);

impl SocketDeadline {
    pub(super) fn after(limit: Duration, stop: Option<Arc<AtomicBool>>) -> Self {
        Self { begin: Instant::now(), limit, stop }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    /// The same, but not later than this from now on.
    fn within(&self, limit: Duration) -> Self {
        Self::after(self.left().min(limit), self.stop.clone())
    }

    /// Why nobody waits for this any more, if so.
    fn check(&self, what: &dyn Fn() -> String) -> Result<Duration, String> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(format!("nobody needs {} any more", what()));
        }
        match self.left() {
            Duration::ZERO => Err(format!("{} was not there after {:?}", what(), self.limit)),
            left => Ok(left),
        }
    }

    /// Waits until there is something to read, for this.
    fn wait(&self, socket: BorrowedFd<'_>, what: &dyn Fn() -> String) -> Result<(), String> {
        loop {
            let slice = self.check(what)?.min(LOOK);
            let timeout = slice.try_into().map_err(|_| "the time limit is too long".to_owned())?;
            match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(format!("{}: {error}", what())),
            }
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

fn text_of(name: &[u8; 16]) -> String {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("antiphon-{digits}")
}

/// Calls a rank. Another program may have filled its queue: then it is called again, until it is too late.
fn call(of: &SocketName, own: Rank, deadline: &SocketDeadline) -> Result<UnixStream, String> {
    let said = |error: rustix::io::Errno| error.to_string();
    let to = SocketAddrUnix::new_abstract_name(text_of(&of.name).as_bytes()).map_err(said)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(said)?;
    loop {
        match connect(&socket, &to) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                deadline.check(&|| "room in its queue".to_owned())?;
                std::thread::sleep(CALL);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    let mut socket = UnixStream::from(socket);
    // Its buffer is empty, so there is room.
    socket.write_all(&[&of.secret[..], &own.0.to_le_bytes()].concat()).map_err(|error| error.to_string())?;
    Ok(socket)
}

impl PeerListener {
    pub(super) fn new() -> io::Result<Self> {
        let name = SocketName { name: random()?, secret: random()? };
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(text_of(&name.name))?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name })
    }

    /// Connects with all ranks that have a name here: calls those before this one, and is called by those after it.
    pub(super) fn connect(
        self,
        rank: Rank,
        names: &[Option<SocketName>],
        deadline: &SocketDeadline,
    ) -> Result<PeerSockets, String> {
        let mut sockets = PeerSockets::new(names.len());
        for (index, named) in names.iter().enumerate().take(rank.index()) {
            let Some(named) = named else { continue };
            let called = call(named, rank, deadline);
            let called = called.map_err(|error| format!("calling the process of rank {index}: {error}"))?;
            sockets.sockets[index] = Some(PeerSocket::new(called));
        }
        let later = rank.index() + 1..names.len();
        let is_missing =
            |index: &usize, sockets: &PeerSockets| names[*index].is_some() && sockets.sockets[*index].is_none();
        while let Some(missing) = later.clone().find(|index| is_missing(index, &sockets)) {
            deadline.wait(self.listener.as_fd(), &|| format!("the call of rank {missing}"))?;
            match self.listener.accept() {
                Ok((socket, _)) => self.admit(socket, rank, &mut sockets, deadline),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("being called by rank {missing}: {error}")),
            }
        }
        Ok(sockets)
    }

    /// Takes a caller that belongs here; any other one is left alone. Of other users nothing is heard.
    fn admit(&self, socket: UnixStream, own: Rank, sockets: &mut PeerSockets, deadline: &SocketDeadline) {
        let is_ours =
            rustix::net::sockopt::socket_peercred(&socket).is_ok_and(|caller| caller.uid == rustix::process::geteuid());
        let Some(hello) = Some(&socket).filter(|_| is_ours).and_then(|socket| heard(socket, deadline)) else { return };
        let rank = u32::from_le_bytes([hello[16], hello[17], hello[18], hello[19]]) as usize;
        let belongs = hello[..16] == self.name.secret && rank > own.index();
        if let Some(place @ None) = sockets.sockets.get_mut(rank).filter(|_| belongs) {
            *place = Some(PeerSocket::new(socket));
        }
    }
}

/// What a caller says first, if it says it all in time.
fn heard(mut socket: &UnixStream, deadline: &SocketDeadline) -> Option<[u8; 20]> {
    let (deadline, mut hello, mut has) = (deadline.within(HELLO), [0; 20], 0);
    socket.set_nonblocking(true).ok()?;
    while has < hello.len() {
        deadline.wait(socket.as_fd(), &String::new).ok()?;
        match socket.read(&mut hello[has..]) {
            Ok(0) => return None,
            Ok(count) => has += count,
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(_) => return None,
        }
    }
    Some(hello)
}

/// How long a caller may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// What a rank says when it leaves in order.
const FAREWELL: u8 = 0xF0;

/// A socket to another rank.
#[derive(Debug)]
struct PeerSocket {
    stream: UnixStream,
    /// Its process, where the system tells it: children that it has forked may hold its sockets.
    process: Option<OwnedFd>,
}

impl PeerSocket {
    fn new(stream: UnixStream) -> Self {
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let process = peer.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty())).ok();
        Self { stream, process }
    }

    /// What there is to hear: a byte, the end, or nothing yet.
    fn heard(&self) -> Result<Option<u8>, rustix::io::Errno> {
        let mut byte = [0u8];
        let (_, count) = recv(&self.stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        Ok((count > 0).then_some(byte[0]))
    }

    fn has_left(&self) -> bool {
        self.heard() == Ok(Some(FAREWELL))
    }

    /// It has ended, or has closed the socket, without a farewell.
    fn is_gone(&self) -> bool {
        let mut asked = self.process.iter().map(|process| PollFd::new(process, PollFlags::IN)).collect::<Vec<_>>();
        // Before its farewell is looked for, which it may say meanwhile.
        let has_ended = matches!(poll(&mut asked, Some(&NOW)), Ok(count) if count > 0);
        match self.heard() {
            Ok(Some(byte)) => has_ended && byte != FAREWELL,
            Ok(None) => true,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => has_ended,
            Err(_) => true,
        }
    }
}

/// To look, and not to wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A socket to each of the other ranks.
#[derive(Debug)]
pub(in crate::device) struct PeerSockets {
    sockets: Vec<Option<PeerSocket>>,
    /// Whoever leaves has done its part of all calls.
    is_orderly: AtomicBool,
}

impl PeerSockets {
    fn new(ranks: usize) -> Self {
        Self { sockets: (0..ranks).map(|_| None).collect(), is_orderly: AtomicBool::new(true) }
    }

    /// Whether the end of these sockets comes with a farewell. Without one the others take this rank for gone.
    pub(in crate::device) fn set_orderly(&self, is_orderly: bool) {
        self.is_orderly.store(is_orderly, Ordering::Release);
    }

    /// Sends a file descriptor to each of the others.
    pub(super) fn send(&self, descriptor: BorrowedFd<'_>) -> Result<(), String> {
        for (index, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            let (descriptors, mut space) = ([descriptor], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            sendmsg(&socket.stream, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)
                .map_err(|error| format!("sending memory to rank {index}: {error}"))?;
        }
        Ok(())
    }

    /// The file descriptor that a rank sends.
    pub(super) fn receive(&self, from: Rank, deadline: &SocketDeadline) -> Result<OwnedFd, String> {
        let Some(socket) = &self.sockets[from.index()] else { return Err(format!("rank {from} is not connected")) };
        deadline.wait(socket.stream.as_fd(), &|| format!("the memory of rank {from}"))?;
        let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&socket.stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
        received.map_err(|error| format!("receiving the memory of rank {from}: {error}"))?;
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        descriptors.next().ok_or_else(|| format!("rank {from} is gone, or has sent no memory"))
    }

    /// A rank whose process has ended without a farewell.
    pub(super) fn gone(&self) -> Option<Rank> {
        let found = self.sockets.iter().position(|socket| socket.as_ref().is_some_and(PeerSocket::is_gone));
        found.map(Rank::from_index)
    }

    /// Waits until something happens to any of them but these, or to `stop`; whether it was `stop`.
    pub(super) fn wait(&self, stop: BorrowedFd<'_>, ended: &[Rank]) -> Result<bool, String> {
        let is_open = |index: &usize| !ended.contains(&Rank::from_index(*index));
        let open = (0..self.sockets.len()).filter(is_open).filter_map(|index| self.sockets[index].as_ref());
        let mut asked: Vec<PollFd<'_>> = Vec::new();
        for socket in open {
            asked.push(PollFd::new(&socket.stream, PollFlags::IN));
            asked.extend(socket.process.as_ref().map(|process| PollFd::new(process, PollFlags::IN)));
        }
        asked.push(PollFd::from_borrowed_fd(stop, PollFlags::IN));
        match poll(&mut asked, None) {
            Ok(_) => Ok(asked.last().is_some_and(|stop| !stop.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The ranks that have left in order.
    pub(super) fn left(&self) -> Vec<Rank> {
        let has_left = |of: &Option<PeerSocket>| of.as_ref().is_some_and(PeerSocket::has_left);
        let left = self.sockets.iter().enumerate().filter(|(_, socket)| has_left(socket));
        left.map(|(index, _)| Rank::from_index(index)).collect()
    }

    /// Whether no other rank uses what it has got through them: each has left, or is gone.
    pub(super) fn are_ended(&self) -> bool {
        self.sockets.iter().flatten().all(|socket| socket.has_left() || socket.is_gone())
    }

    /// Tells the others that this rank leaves, and listens still.
    pub(super) fn leave(&self) {
        let is_orderly = self.is_orderly.load(Ordering::Acquire);
        for socket in self.sockets.iter().flatten() {
            // Who is gone needs no farewell.
            if is_orderly {
                let _ = send(&socket.stream, &[FAREWELL], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            let _ = socket.stream.shutdown(std::net::Shutdown::Write);
        }
    }
}

impl Drop for PeerSockets {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_waits_is_told_to_stop() {
        let (listener, other) = (PeerListener::new().unwrap(), PeerListener::new().unwrap());
        let (begin, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let deadline = SocketDeadline::after(LONG, Some(stop.clone()));
        let names = [listener.name, other.name].map(Some);
        let said = std::thread::scope(|scope| {
            let waits = scope.spawn(|| listener.connect(Rank(0), &names, &deadline));
            stop.store(true, Ordering::Release);
            waits.join().unwrap().unwrap_err()
        });
        assert_eq!(said, "nobody needs the call of rank 1 any more");
        assert!(begin.elapsed() < LONG / 2);
        // A deadline that is over is so also where there is something to read.
        let (one, mut two) = UnixStream::pair().unwrap();
        two.write_all(&[1]).unwrap();
        let over = SocketDeadline::after(Duration::ZERO, None);
        assert_eq!(over.wait(one.as_fd(), &|| "it".to_owned()), Err("it was not there after 0ns".to_owned()));
        assert_eq!(SocketDeadline::after(LONG, None).wait(one.as_fd(), &String::new), Ok(()));
    }

    #[test]
    fn a_stranger_that_says_little_holds_nobody_up_for_long() {
        let (listener, other) = (PeerListener::new().unwrap(), PeerListener::new().unwrap());
        let (begin, names) = (Instant::now(), [listener.name, other.name].map(Some));
        let stranger = SocketName { secret: [1; 16], ..listener.name };
        let deadline = SocketDeadline::after(LONG, None);
        // One has the wrong secret, the other one says a part and waits.
        let wrong = call(&stranger, Rank(1), &deadline).unwrap();
        let to = SocketAddr::from_abstract_name(text_of(&listener.name.name)).unwrap();
        let mut slow = UnixStream::connect_addr(&to).unwrap();
        slow.write_all(&[1]).unwrap();
        let sockets = std::thread::scope(|scope| {
            let other = scope.spawn(|| other.connect(Rank(1), &names, &deadline).unwrap());
            (listener.connect(Rank(0), &names, &deadline).unwrap(), other.join().unwrap())
        });
        assert!(begin.elapsed() < LONG / 2, "the whole of a hello has a time limit");
        assert_eq!((sockets.0.gone(), sockets.1.gone()), (None, None));
        drop((wrong, slow));
        sockets.1.set_orderly(false);
        drop(sockets.1);
        assert_eq!((sockets.0.gone(), sockets.0.left()), (Some(Rank(1)), Vec::new()), "it left without a word");
        assert!(sockets.0.are_ended());
    }

    #[test]
    fn ranks_that_leave_in_order_are_not_gone() {
        let (listener, other) = (PeerListener::new().unwrap(), PeerListener::new().unwrap());
        let (names, deadline) = ([listener.name, other.name].map(Some), SocketDeadline::after(LONG, None));
        let (one, two) = std::thread::scope(|scope| {
            let other = scope.spawn(|| other.connect(Rank(1), &names, &deadline).unwrap());
            (listener.connect(Rank(0), &names, &deadline).unwrap(), other.join().unwrap())
        });
        assert!(!one.are_ended() && !two.are_ended());
        two.leave();
        assert_eq!((one.gone(), one.left(), one.are_ended()), (None, vec![Rank(1)], true));
        // It hears the others still.
        assert_eq!((two.gone(), two.are_ended()), (None, false));
        drop(one);
        assert_eq!((two.left(), two.are_ended()), (vec![Rank(0)], true));
    }

    #[test]
    fn calls_wait_for_room_in_a_queue_no_longer_than_they_may() {
        let name = SocketName { name: random().unwrap(), secret: [0; 16] };
        let at = SocketAddrUnix::new_abstract_name(text_of(&name.name).as_bytes()).unwrap();
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&full, &at).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let (mut held, limit) = (Vec::new(), Duration::from_millis(50));
        let said = loop {
            match call(&name, Rank(1), &SocketDeadline::after(limit, None)) {
                Ok(socket) => held.push(socket),
                Err(said) => break said,
            }
            assert!(held.len() < 100);
        };
        assert_eq!(said, "room in its queue was not there after 50ms");
    }
}
