//! The format of control messages: JSON, with its length before it.
//!
//! The principal types are [`Inbox`] and [`Outbox`]. The channel between a launcher and its worker is a socket pair. One
//! end is the worker's standard input, so no process listens and no other process can connect. The descriptor of the
//! shared memory travels before the first message. Between machines, the channel is a TCP connection whose ends have
//! proved that they belong to the job. There a keyed tag follows every message. It covers the number of the message and
//! its bytes, so an altered, repeated or forged message, or one after a gap, is never parsed. A length beyond
//! [`LONGEST`] is refused before anything is allocated.

use crate::transport::tcp::{Proven, Secret};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::time::Timespec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The longest message, in bytes. A report of [`crate::measure::trial::MOST_REPETITIONS`] samples fits.
const LONGEST: usize = 64 << 20;

/// The bytes of a tag.
const TAG: usize = 32;

/// A message with its length before it.
fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > LONGEST {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("a message of {length} bytes is too long")));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Sends one message. After a partial failure the stream is closed for writing: later bytes would count as the rest.
pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let frame = framed(message)?;
    // It fails only if the other end is gone.
    stream.write_all(&frame).inspect_err(|_| drop(stream.shutdown(Shutdown::Write)))
}

/// The key and the counter of one direction between machines.
struct Seal {
    key: Secret,
    /// How many messages have passed.
    count: u64,
}

impl Seal {
    fn tag(&mut self, frame: &[u8]) -> [u8; TAG] {
        let tag = self.key.tag(&[&self.count.to_le_bytes(), frame]);
        self.count += 1;
        tag
    }
}

/// The sending end of a connection between machines. Several threads may use it.
pub(crate) struct Outbox {
    stream: TcpStream,
    seal: Mutex<Seal>,
}

impl Outbox {
    /// Sends one message. After an error the connection is cut.
    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let frame = framed(message)?;
        self.write(&mut self.seal.lock().unwrap_or_else(PoisonError::into_inner), frame)
    }

    /// Sends one message if that is possible without waiting. Returns whether it was sent.
    pub(crate) fn offer(&self, message: &impl Serialize) -> io::Result<bool> {
        let Ok(mut seal) = self.seal.try_lock() else { return Ok(false) };
        // The kernel reports room only if much more than a small message fits.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_room = poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(&now))? > 0;
        if has_room {
            self.write(&mut seal, framed(message)?)?;
        }
        Ok(has_room)
    }

    /// Whether a message is being sent.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        self.seal.try_lock().is_err()
    }

    fn write(&self, seal: &mut Seal, mut frame: Vec<u8>) -> io::Result<()> {
        let tag = seal.tag(&frame);
        frame.extend_from_slice(&tag);
        (&self.stream).write_all(&frame).inspect_err(|_| self.cut())
    }

    /// Ends the connection in both directions.
    pub(crate) fn cut(&self) {
        // It fails only if the connection has already ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The address of this end, as the other end sees it.
    pub(crate) fn address(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }
}

/// The two ends of an authenticated connection; `accepted` on the side that listened. A message that the other side
/// does not take for `limit` is an error.
pub(crate) fn sealed(proven: Proven, accepted: bool, limit: Duration) -> io::Result<(Outbox, Inbox<TcpStream>)> {
    let Proven { stream, session } = proven;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(limit))?;
    let direction = |from_acceptor: bool| {
        let name: &[u8] = if from_acceptor { b"from acceptor" } else { b"from connector" };
        Seal { key: session.derive(&[name]), count: 0 }
    };
    let inbox = Inbox { stream: stream.try_clone()?, buffer: Vec::new(), seal: Some(direction(!accepted)) };
    Ok((Outbox { stream, seal: Mutex::new(direction(accepted)) }, inbox))
}

/// Receives messages, and keeps the arrived part of the next one.
pub(crate) struct Inbox<S> {
    stream: S,
    buffer: Vec<u8>,
    seal: Option<Seal>,
}

impl<S: Read> Inbox<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), seal: None }
    }

    /// The stream, to set its timeouts.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// The next message; `None` if the stream's read timeout passes first.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is gone; `InvalidData` if the bytes are no message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            let length = self.buffer.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize);
            if let Some(length) = length {
                if length > LONGEST {
                    return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
                }
                let end = 4 + length;
                let sealed = end + if self.seal.is_some() { TAG } else { 0 };
                if self.buffer.len() >= sealed {
                    self.check(end)?;
                    let message = serde_json::from_slice(&self.buffer[4..end])?;
                    self.buffer.drain(..sealed);
                    return Ok(Some(message));
                }
            }
            // The buffer grows with the bytes that arrive, not with the announced length.
            let mut piece = [0; 8192];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.buffer.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks the tag after the frame that ends at `end`, if this connection has tags.
    fn check(&mut self, end: usize) -> io::Result<()> {
        let Some(seal) = &mut self.seal else { return Ok(()) };
        let (frame, rest) = self.buffer.split_at(end);
        let parts: [&[u8]; 2] = [&seal.count.to_le_bytes(), frame];
        let is_right = rest.first_chunk().is_some_and(|tag| seal.key.verify(&parts, tag));
        seal.count += 1;
        is_right.then_some(()).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message was altered on its way"))
    }
}

/// Sends a descriptor, with one byte.
pub(crate) fn send_descriptor(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptor of [`send_descriptor`].
pub(crate) fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut pieces = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(stream.as_fd(), &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let missing = || io::Error::new(ErrorKind::InvalidData, "no descriptor arrived; was this started by a launcher?");
    descriptors.flatten().next().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::control::messages::{Answer, TaskResult, WorkerCommand};
    use crate::execution::executor::RepetitionSample;
    use crate::measure::trial::{MOST_REPETITIONS, RankReport};
    use crate::numbers::TaskNumber;

    #[test]
    fn the_longest_report_fits_a_message() {
        let widest = RepetitionSample { start: Moment(u64::MAX), end: Moment(u64::MAX) };
        let length = |samples| {
            let finding = TaskResult::Trial(vec![RankReport {
                samples: vec![widest; samples],
                wrong: u64::MAX,
                steps: Vec::new(),
            }]);
            serde_json::to_vec(&Answer::Done { task: TaskNumber(u64::MAX), finding }).unwrap().len()
        };
        let each = length(11) - length(10);
        assert!(length(1) + each * MOST_REPETITIONS as usize <= LONGEST);
    }

    #[test]
    fn messages_survive_being_torn_apart() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut inbox = Inbox::new(far);
        inbox.stream.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        let message = WorkerCommand::Run { task: TaskNumber(7) };
        send(&near, &message).unwrap();
        send(&near, &message).unwrap();
        let mut bytes = vec![0; 4096];
        let length = inbox.stream.read(&mut bytes).unwrap();
        for cut in 0..length / 2 {
            (&near).write_all(&bytes[..cut]).unwrap();
            assert_eq!(inbox.receive::<WorkerCommand>().unwrap(), None);
            (&near).write_all(&bytes[cut..length / 2]).unwrap();
            assert_eq!(inbox.receive().unwrap(), Some(message.clone()));
        }
        drop(near);
        assert_eq!(inbox.receive::<WorkerCommand>().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_beyond_the_limit_and_nonsense_are_refused() {
        for bytes in [[255; 16].as_slice(), &[3, 0, 0, 0, b'{', b'{', b'{']] {
            let (near, far) = UnixStream::pair().unwrap();
            (&near).write_all(bytes).unwrap();
            assert!(Inbox::new(far).receive::<WorkerCommand>().is_err());
        }
    }

    /// The reader is too slow for a message. After a partly sent message, nothing else may be sent.
    #[test]
    fn nothing_follows_a_message_of_which_only_a_part_has_gone() {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_write_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let long = "x".repeat(1 << 20);
        let error = send(&near, &long).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut inbox = Inbox::new(far);
        let reader = std::thread::spawn(move || inbox.receive::<String>());
        // The reader makes room for more bytes.
        assert!((0..10_000).all(|_| send(&near, &"more").is_err()));
        drop(near);
        assert_eq!(reader.join().unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_not_urgent_waits_for_nobody() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let session = Secret::from_text(b"session");
        let limit = std::time::Duration::from_millis(20);
        let (post, _inbox) = sealed(Proven { stream, session: session.clone() }, false, limit).unwrap();
        let (_, mut theirs) = sealed(Proven { stream: far, session }, true, limit).unwrap();
        assert!(post.offer(&"one").unwrap());
        let busy = post.seal.lock().unwrap();
        assert!(!post.offer(&"two").unwrap());
        drop(busy);
        let long = "x".repeat(1 << 10);
        let sent = (0..1_000_000).take_while(|_| post.offer(&long).unwrap()).count();
        assert_eq!(theirs.receive::<String>().unwrap().as_deref(), Some("one"));
        // A message that was left out leaves no gap: all others arrive complete.
        for _ in 0..sent {
            assert_eq!(theirs.receive::<String>().unwrap().as_ref(), Some(&long));
        }
        assert!(post.offer(&"three").unwrap());
        assert_eq!(theirs.receive::<String>().unwrap().as_deref(), Some("three"));
    }

    #[test]
    fn a_descriptor_arrives_as_the_same_file() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send_descriptor(&near, file.as_fd()).unwrap();
        let arrived = receive_descriptor(&far).unwrap();
        let number = |descriptor: BorrowedFd<'_>| rustix::fs::fstat(descriptor).unwrap().st_rdev;
        assert_eq!(number(arrived.as_fd()), number(file.as_fd()));
        (&near).write_all(&[0]).unwrap();
        assert!(receive_descriptor(&far).is_err());
    }
}
