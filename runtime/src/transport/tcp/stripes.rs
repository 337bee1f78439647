//! One stream of bytes over one socket, or over several of different interfaces.
//!
//! The principal types are [`Outgoing`] and [`Incoming`]. Over several sockets the stream is cut into turns. The sender
//! gives the next one to a socket that takes it, and says before it which turn it is and how long: so a fast way carries
//! more than a slow one. The receiver hands over turns by their numbers, and keeps what came before its time, up to a limit:
//! a fast way goes on while a slow one brings what is next. Over one socket only the bytes themselves travel.

use crate::memory::socket::Socket;
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};

/// The most bytes of a turn. Small enough that what the kernel takes without the receiver is several turns, so that all
/// sockets are busy.
pub(super) const TURN: usize = 16 << 10;
/// What the kernel takes of a stream for one of its sockets, about. What it has taken must go that way, however slow it
/// is; but it must last until this rank looks again.
const AHEAD: usize = 32 << 10;
/// How many whole turns a receiver keeps that came before their time; so much faster one way may be than another before
/// it has to wait, times what the kernel takes.
const KEPT: usize = 64;
/// What precedes a turn: its number and its length, little endian.
const HEADER: usize = 8;

/// The sender's end.
pub(super) struct Outgoing {
    pub(super) sockets: Vec<Socket>,
    /// What each socket has not taken of the turn that it was given.
    rests: Vec<Vec<u8>>,
    /// The socket that was given the last turn.
    at: usize,
    /// The number of the next turn.
    number: u32,
    /// The most bytes that one socket is given at once.
    packet: usize,
}

impl Outgoing {
    /// Over these, connected with the same receiver.
    pub(super) fn new(mut sockets: Vec<Socket>) -> Self {
        if sockets.len() > 1 {
            for socket in &mut sockets {
                // Where it is refused, a slow way takes more than it should.
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket.stream(), AHEAD);
                socket.write_eagerly();
            }
        }
        Self { rests: vec![Vec::new(); sockets.len()], sockets, at: 0, number: 0, packet: usize::MAX }
    }

    /// The same, which gives a socket packets of at most so many bytes.
    pub(super) fn in_packets(self, packet: usize) -> Self {
        Self { packet, ..self }
    }

    /// Sends as many bytes of `words`, and then of `data`, as go without waiting; how many.
    ///
    /// # Errors
    /// If a connection is broken.
    pub(super) fn write(&mut self, words: &[u8], data: &[u8]) -> io::Result<usize> {
        let (whole, mut passed) = (words.len() + data.len(), 0);
        while passed < whole {
            let (words, data) = (&words[passed.min(words.len())..], &data[passed.saturating_sub(words.len())..]);
            let most = next_packet(whole - passed, self.packet);
            let given = match self.sockets.len() {
                1 => {
                    let words = &words[..words.len().min(most)];
                    let rest = data.len().min(most - words.len());
                    self.hand(words, &data[..rest]).map(|given| (given, words.len() + rest))
                }
                _ => self.give(if words.is_empty() { data } else { words }).map(|given| (given, given)),
            };
            match given {
                Ok((given, wanted)) => {
                    passed += given;
                    if given < wanted || given == 0 {
                        break;
                    }
                }
                // What has passed counts; the next call says what is wrong.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Gives the only socket a packet: the kernel sends it without what follows.
    fn hand(&self, words: &[u8], data: &[u8]) -> io::Result<usize> {
        let alone = if self.packet == usize::MAX { SendFlags::empty() } else { SendFlags::EOR };
        Ok(self.sockets[0].send(&[IoSlice::new(words), IoSlice::new(data)], alone)?.unwrap_or(0))
    }

    /// Gives a turn to the next socket that takes any of it; how long it is. What the socket does not take at once is
    /// kept here, so that other sockets go on.
    fn give(&mut self, data: &[u8]) -> io::Result<usize> {
        let turn = &data[..data.len().min(TURN)];
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&self.number.to_le_bytes());
        header[4..].copy_from_slice(&(turn.len() as u32).to_le_bytes());
        for step in 1..=self.sockets.len() {
            let at = (self.at + step) % self.sockets.len();
            if !self.flush_one(at)? {
                continue;
            }
            let parts = [IoSlice::new(&header), IoSlice::new(turn)];
            let Some(bytes) = self.sockets[at].send(&parts, SendFlags::empty())? else { continue };
            self.rests[at].extend(&header[bytes.min(HEADER)..]);
            self.rests[at].extend(&turn[bytes.saturating_sub(HEADER)..]);
            (self.at, self.number) = (at, self.number.wrapping_add(1));
            return Ok(turn.len());
        }
        Ok(0)
    }

    /// Hands on what is kept; whether all of it went.
    ///
    /// # Errors
    /// If a connection is broken.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        (0..self.sockets.len()).try_fold(true, |all, at| Ok(self.flush_one(at)? && all))
    }

    fn flush_one(&mut self, at: usize) -> io::Result<bool> {
        let rest = &mut self.rests[at];
        if !rest.is_empty() {
            let taken = self.sockets[at].send(&[IoSlice::new(rest)], SendFlags::empty())?.unwrap_or(0);
            rest.drain(..taken);
        }
        Ok(rest.is_empty())
    }
}

/// The length of the next of equal packets: the last one must not be a few bytes, which wait as long as a large one.
fn next_packet(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most).max(1))
}

/// What is known of the next turn on a socket.
#[derive(Clone, Default)]
struct Turn {
    header: [u8; HEADER],
    /// How much of the header has come.
    come: usize,
    /// How much of the turn has not been read.
    left: usize,
    /// What was read before its time.
    early: Vec<u8>,
}

impl Turn {
    fn number(&self) -> u32 {
        let [a, b, c, d, ..] = self.header;
        u32::from_le_bytes([a, b, c, d])
    }

    fn length(&self) -> usize {
        let [.., a, b, c, d] = self.header;
        u32::from_le_bytes([a, b, c, d]) as usize
    }
}

/// The receiver's end.
pub(super) struct Incoming {
    pub(super) sockets: Vec<Socket>,
    turns: Vec<Turn>,
    /// Whole turns that came before their time.
    kept: BTreeMap<u32, Vec<u8>>,
    /// The number of the turn at hand, and how much of it was handed over, if it was kept.
    number: u32,
    handed: usize,
}

impl Incoming {
    pub(super) fn new(sockets: Vec<Socket>) -> Self {
        let turns = vec![Turn::default(); sockets.len()];
        Self { sockets, turns, kept: BTreeMap::new(), number: 0, handed: 0 }
    }

    /// Reads what has arrived; 0 if nothing has.
    ///
    /// # Errors
    /// If a connection is broken, or closed before its time.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let [socket] = &self.sockets[..] {
            return some_of(socket.read(into)?);
        }
        let mut passed = 0;
        while passed < into.len() {
            match self.read_turn(&mut into[passed..]) {
                Ok(0) => break,
                Ok(bytes) => passed += bytes,
                // What has passed counts; the next call says what is wrong.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Reads from the turn at hand, if it has come.
    fn read_turn(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(turn) = self.kept.get(&self.number) {
                let bytes = into.len().min(turn.len() - self.handed);
                into[..bytes].copy_from_slice(&turn[self.handed..self.handed + bytes]);
                self.handed += bytes;
                if self.handed == turn.len() {
                    self.kept.remove(&self.number);
                    (self.handed, self.number) = (0, self.number.wrapping_add(1));
                }
                return Ok(bytes);
            }
            match self.at_hand()? {
                Some(at) if self.turns[at].early.is_empty() => return self.read_from(at, into),
                _ if !self.keep()? => return Ok(0),
                _ => {}
            }
        }
    }

    /// Reads the turn at hand where it belongs.
    fn read_from(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        let turn = &mut self.turns[at];
        let most = into.len().min(turn.left);
        let bytes = some_of(self.sockets[at].read(&mut into[..most])?)?;
        turn.left -= bytes;
        if turn.left == 0 {
            *turn = Turn::default();
            self.number = self.number.wrapping_add(1);
        }
        Ok(bytes)
    }

    /// Reads what came before its time; whether a turn was completed.
    fn keep(&mut self) -> io::Result<bool> {
        let (before, mut broken) = (self.kept.len(), None);
        for (turn, socket) in self.turns.iter_mut().zip(&self.sockets).filter(|(turn, _)| turn.come == HEADER) {
            // One that was begun is completed, whatever its number.
            if self.kept.len() >= KEPT && turn.early.is_empty() {
                continue;
            }
            let start = turn.early.len();
            turn.early.resize(start + turn.left, 0);
            let read = socket.read(&mut turn.early[start..]).and_then(some_of);
            let bytes = read.unwrap_or_else(|error| {
                broken = Some(error);
                0
            });
            turn.early.truncate(start + bytes);
            turn.left -= bytes;
            if turn.left == 0 {
                let whole = std::mem::take(turn);
                self.kept.insert(whole.number(), whole.early);
            }
        }
        match broken {
            Some(error) if self.kept.len() == before => Err(error),
            _ => Ok(self.kept.len() > before),
        }
    }

    /// The socket on which the turn at hand comes.
    fn at_hand(&mut self) -> io::Result<Option<usize>> {
        let has_it = |turn: &Turn, number| turn.come == HEADER && turn.number() == number;
        if let Some(at) = self.turns.iter().position(|turn| has_it(turn, self.number)) {
            return Ok(Some(at));
        }
        // A peer that has sent all it had may be gone, while the rest still comes from elsewhere.
        let mut broken = None;
        for (at, turn) in self.turns.iter_mut().enumerate().filter(|(_, turn)| turn.come < HEADER) {
            match self.sockets[at].read(&mut turn.header[turn.come..]).and_then(some_of) {
                Ok(bytes) => turn.come += bytes,
                Err(error) => broken = Some(error),
            }
            if turn.come == HEADER {
                turn.left = turn.length();
                if !(1..=TURN).contains(&turn.left) {
                    let what = format!("the peer announces a turn of {} bytes", turn.left);
                    return Err(io::Error::new(ErrorKind::InvalidData, what));
                }
            }
            if has_it(turn, self.number) {
                return Ok(Some(at));
            }
        }
        broken.map_or(Ok(None), Err)
    }
}

/// How much was read; the end of a stream is an error.
fn some_of(read: Option<usize>) -> io::Result<usize> {
    match read {
        Some(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the peer closed the connection")),
        read => Ok(read.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::pair;
    use super::*;
    use crate::memory::socket::now;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn sockets(streams: impl IntoIterator<Item = TcpStream>) -> Vec<Socket> {
        streams.into_iter().map(Socket::from).collect()
    }

    fn header(number: u32, length: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Reads until something has come.
    fn read(incoming: &mut Incoming, into: &mut [u8]) -> usize {
        (0..1_000_000).find_map(|_| Some(incoming.read(into).unwrap()).filter(|&bytes| bytes > 0)).unwrap()
    }

    /// A turn that is held up keeps those after it from being taken too early, and holds up no socket.
    #[test]
    fn turns_are_read_by_number_whichever_comes_first() {
        let (near, far): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
        let mut incoming = Incoming::new(sockets(far));
        let mut into = [0; 64];
        for (number, socket) in [(2, 0), (1, 2)] {
            (&near[socket]).write_all(&header(number, 3)).unwrap();
            (&near[socket]).write_all(&[number as u8; 3]).unwrap();
        }
        assert_eq!(incoming.read(&mut into).unwrap(), 0);
        // Torn apart, header and payload.
        for part in [&header(0, 5)[..3], &header(0, 5)[3..], &[0, 0]] {
            assert_eq!(incoming.read(&mut into).unwrap(), 0);
            (&near[1]).write_all(part).unwrap();
        }
        let mut received = Vec::new();
        while received.len() < 2 {
            let bytes = read(&mut incoming, &mut into);
            received.extend_from_slice(&into[..bytes]);
        }
        // The peers of the first and the last socket have nothing more to say.
        (&near[1]).write_all(&[0; 3]).unwrap();
        drop(near);
        while received.len() < 11 {
            let bytes = read(&mut incoming, &mut into);
            received.extend_from_slice(&into[..bytes]);
        }
        assert_eq!(received, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert!((0..1_000_000).any(|_| incoming.read(&mut into).is_err()));
    }

    /// One way takes nothing: all goes the other, but for what the kernel took at first.
    #[test]
    fn a_way_that_is_blocked_blocks_no_other() {
        let ((full, _blocked), (near, far)) = (pair(), pair());
        let junk = vec![0; 1 << 20];
        while now((&full).write(&junk)).unwrap().is_some() {}
        let mut outgoing = Outgoing::new(sockets([near, full]));
        let mut incoming = Incoming::new(sockets([far, pair().1]));
        let (data, mut sent, mut received) = (vec![3; 8 * TURN + 5], 0, 0);
        let mut into = vec![0; data.len()];
        while received < data.len() {
            sent += outgoing.write(&[], &data[sent..]).unwrap();
            outgoing.flush().unwrap();
            received += incoming.read(&mut into[received..]).unwrap();
        }
        assert!(into == data);
    }

    /// A slow way brings the first turn; all that came before it is out of the kernel by then, up to a limit.
    #[test]
    fn turns_before_their_time_hold_up_no_way() {
        const AHEAD: u32 = 40;
        let ((fast, far), (slow, slow_far)) = (pair(), pair());
        let mut incoming = Incoming::new(sockets([far, slow_far]));
        let mut into = vec![0; TURN * (AHEAD as usize + 1)];
        for number in 1..=AHEAD {
            let turn = [&header(number, TURN as u32)[..], &vec![number as u8; TURN]].concat();
            let mut at = 0;
            while at < turn.len() {
                at += now((&fast).write(&turn[at..])).unwrap().unwrap_or(0);
                assert_eq!(incoming.read(&mut into).unwrap(), 0);
            }
        }
        assert!((0..1_000_000).any(|_| incoming.read(&mut into).unwrap() > 0 || incoming.kept.len() == AHEAD as usize));
        (&slow).write_all(&[&header(0, TURN as u32)[..], &[0; TURN]].concat()).unwrap();
        let mut received = 0;
        while received < into.len() {
            received += read(&mut incoming, &mut into[received..]);
        }
        assert!(into.chunks(TURN).enumerate().all(|(number, turn)| turn.iter().all(|&byte| byte == number as u8)));
    }

    /// A packet is sent as it is, whatever follows, and none is much shorter than the others.
    #[test]
    fn a_message_is_cut_into_equal_packets() {
        let packets = |mut left: usize, most: usize| {
            let mut lengths = Vec::new();
            while left > 0 {
                lengths.push(next_packet(left, most));
                left -= lengths[lengths.len() - 1];
            }
            lengths
        };
        assert_eq!(packets(2001, 1000), [667, 667, 667]);
        assert_eq!(packets(65_536, 61_440), [32_768, 32_768]);
        assert_eq!((packets(1000, 1000), packets(5, usize::MAX)), (vec![1000], vec![5]));
        let (near, mut far) = pair();
        let mut outgoing = Outgoing::new(sockets([near])).in_packets(1000);
        let data: Vec<u8> = (0..2001).map(|index| index as u8).collect();
        assert_eq!(outgoing.write(&[], &data).unwrap(), data.len());
        far.set_nonblocking(false).unwrap();
        let mut into = vec![0; data.len()];
        far.read_exact(&mut into).unwrap();
        assert!(into == data);
    }

    #[test]
    fn lengths_that_no_sender_gives_are_refused() {
        for length in [0, TURN as u32 + 1, u32::MAX] {
            let (near, far): (Vec<_>, Vec<_>) = (0..2).map(|_| pair()).unzip();
            let mut incoming = Incoming::new(sockets(far));
            (&near[0]).write_all(&header(0, length)).unwrap();
            let error = (0..1_000_000).find_map(|_| incoming.read(&mut [0; 8]).err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
    }
}
