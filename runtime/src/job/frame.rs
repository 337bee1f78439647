//! Messages between launcher and workers: JSON, each behind its length.
//!
//! The principal type is [`Inbox`]. The channel is the socket pair whose one end is a worker's standard input, so
//! nothing listens and nobody else can connect. A length beyond [`LONGEST`] is refused before anything is
//! allocated. The shared memory's descriptor travels ahead of the first message.

use crate::board::BoardShape;
use crate::error::Phase;
use crate::probe::{Arrivals, Wanted};
use crate::tcp::Secret;
use crate::trial::{RankReport, Trial};
use crate::wiring::Hosts;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use topology::Rank;

/// Changes whenever a frame, the board or a ring changes its meaning.
pub(crate) const PROTOCOL: u32 = 3;
/// The longest message: a report of [`crate::trial::MOST_REPETITIONS`] samples fits.
const LONGEST: usize = 64 << 20;

/// What the launcher says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Welcome(Welcome),
    /// Load what the task needs, answer [`Answer::Listening`] where ranks are on different computers, allocate, and
    /// answer [`Answer::Ready`].
    Prepare {
        job: u64,
        task: Task,
    },
    /// Connect with the others; rank r listens at `addresses[r]`. Only where ranks are on different computers.
    Connect {
        job: u64,
        addresses: Vec<SocketAddr>,
    },
    /// Run what was prepared.
    Run {
        job: u64,
    },
}

/// What ranks do together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Run a plan.
    Trial { source: String, trial: Trial },
    /// Time exchanges between pairs.
    Probe(Wanted),
}

/// What came out of a task, on one rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finding {
    Trial(RankReport),
    Probe(Arrivals),
}

/// All that a worker needs to join.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) protocol: u32,
    pub(crate) rank: Rank,
    pub(crate) board: BoardShape,
    pub(crate) ring_bytes: usize,
    pub(crate) tile_bytes: Option<usize>,
    pub(crate) work_limit_ms: u64,
    /// Source and slowdown of an emulated machine.
    pub(crate) emulation: Option<(String, f64)>,
    pub(crate) hosts: Hosts,
    pub(crate) interface: IpAddr,
    pub(crate) ready_limit_ms: u64,
    pub(crate) secret: Secret,
}

/// What a worker says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Hello {
        protocol: u32,
        rank: Rank,
    },
    Listening {
        job: u64,
        plan: String,
        address: SocketAddr,
    },
    Ready {
        job: u64,
        plan: String,
    },
    Done {
        job: u64,
        finding: Finding,
    },
    /// `peer` is whom the rank lost, if it lost one.
    Failed {
        phase: Phase,
        reason: String,
        peer: Option<Rank>,
    },
}

/// Sends one message.
pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > LONGEST {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("a message of {length} bytes is too long")));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    stream.write_all(&frame)
}

/// Receives messages; keeps what has arrived of the next one.
pub(crate) struct Inbox {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Inbox {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// The next message; `None` if the stream's read timeout passes first.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other side is gone; `InvalidData` for what is no message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            let wanted = match self.buffer.first_chunk::<4>() {
                Some(length) => 4 + u32::from_le_bytes(*length) as usize,
                None => 4,
            };
            if wanted > 4 + LONGEST {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {wanted} bytes")));
            }
            if self.buffer.len() >= wanted && wanted > 4 {
                let message = serde_json::from_slice(&self.buffer[4..wanted])?;
                self.buffer.drain(..wanted);
                return Ok(Some(message));
            }
            // Grows as bytes arrive, not as a length promises.
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
}

/// Sends a descriptor with one byte.
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

/// Receives what [`send_descriptor`] sent.
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
    use crate::trial::{MOST_REPETITIONS, Sample};

    #[test]
    fn the_longest_report_fits_a_message() {
        let widest = Sample { start: Moment(u64::MAX), end: Moment(u64::MAX) };
        let length = |samples| {
            let finding = Finding::Trial(RankReport { samples: vec![widest; samples], wrong: u64::MAX });
            serde_json::to_vec(&Answer::Done { job: u64::MAX, finding }).unwrap().len()
        };
        let each = length(11) - length(10);
        assert!(length(1) + each * MOST_REPETITIONS as usize <= LONGEST);
    }

    #[test]
    fn messages_survive_being_torn_apart() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut inbox = Inbox::new(far);
        inbox.stream.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        let message = Command::Run { job: 7 };
        send(&near, &message).unwrap();
        send(&near, &message).unwrap();
        let mut bytes = vec![0; 4096];
        let length = inbox.stream.read(&mut bytes).unwrap();
        for cut in 0..length / 2 {
            (&near).write_all(&bytes[..cut]).unwrap();
            assert_eq!(inbox.receive::<Command>().unwrap(), None);
            (&near).write_all(&bytes[cut..length / 2]).unwrap();
            assert_eq!(inbox.receive().unwrap(), Some(message.clone()));
        }
        drop(near);
        assert_eq!(inbox.receive::<Command>().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_beyond_the_limit_and_nonsense_are_refused() {
        for bytes in [[255; 16].as_slice(), &[3, 0, 0, 0, b'{', b'{', b'{']] {
            let (near, far) = UnixStream::pair().unwrap();
            (&near).write_all(bytes).unwrap();
            assert!(Inbox::new(far).receive::<Command>().is_err());
        }
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
