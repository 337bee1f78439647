//! One stream of bytes over one socket, or over several sockets to different interfaces.
//!
//! The principal types are [`Outgoing`] and [`Incoming`]. Over several sockets the stream is cut into parts, called
//! turns. The sender gives each turn to the next socket that has room, and writes its number and length before it. So a
//! fast interface carries more than a slow one. The receiver delivers turns in the order of their numbers. It keeps
//! turns that arrive early, up to a limit, so that a fast interface goes on while a slow one delivers the next turn.
//! Over one socket only the bytes themselves travel.

use crate::memory::socket::Socket;
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};

/// The most bytes of a turn. Turns are small, so that the kernel takes several of them before the receiver reads any,
/// and all sockets are busy.
pub(super) const TURN: usize = 16 << 10;
/// About how many bytes of a stream the kernel takes for one socket. These bytes must use that interface, however slow
/// it is. But they must last until this rank polls again.
const AHEAD: usize = 32 << 10;
/// How many whole early turns a receiver keeps. While a slow interface delivers the bytes that the kernel has taken for
/// it, a fast one may deliver this many turns before it has to wait.
const KEPT: usize = 64;
/// The bytes before a turn: its number and its length, little-endian.
const HEADER: usize = 8;

/// The sender's end.
pub(super) struct Outgoing {
    pub(super) sockets: Vec<Socket>,
    /// For each socket, the bytes of its turn that it has not taken.
    rests: Vec<Vec<u8>>,
    /// The socket that was given the last turn.
    at: usize,
    /// The number of the next turn.
    number: u32,
    /// The most bytes of a packet.
    packet: usize,
}

impl Outgoing {
    /// A stream over these sockets, which all lead to the same receiver.
    pub(super) fn new(mut sockets: Vec<Socket>) -> Self {
        if sockets.len() > 1 {
            for socket in &mut sockets {
                // If the kernel refuses, a slow interface takes more than it should.
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket.stream(), AHEAD);
                socket.write_eagerly();
            }
        }
        Self { rests: vec![Vec::new(); sockets.len()], sockets, at: 0, number: 0, packet: usize::MAX }
    }

    /// Cuts what a single socket sends into packets of at most `packet` bytes.
    pub(super) fn in_packets(self, packet: usize) -> Self {
        Self { packet, ..self }
    }

    /// Sends as many bytes of `words`, and then of `data`, as possible without waiting. Returns how many.
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
                // The bytes that passed count. The next call returns the error.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Sends a packet over the only socket. The kernel does not join it with later bytes.
    fn hand(&self, words: &[u8], data: &[u8]) -> io::Result<usize> {
        let alone = if self.packet == usize::MAX { SendFlags::empty() } else { SendFlags::EOR };
        Ok(self.sockets[0].send(&[IoSlice::new(words), IoSlice::new(data)], alone)?.unwrap_or(0))
    }

    /// Gives a turn to the next socket that takes any of it, and returns the length of the turn; 0 if no socket takes
    /// any. The bytes that the socket does not take at once are kept, so that other sockets can go on.
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

    /// Sends the bytes that are kept. Returns whether none are left.
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

/// The length of the next of equal packets. A last packet of a few bytes would wait as long as a large one.
fn next_packet(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most).max(1))
}

/// The next turn on a socket, as far as it has arrived.
#[derive(Clone, Default)]
struct StreamPart {
    header: [u8; HEADER],
    /// How many bytes of the header have arrived.
    come: usize,
    /// How many bytes of the turn have not been read.
    left: usize,
    /// The bytes that were read early.
    early: Vec<u8>,
}

impl StreamPart {
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
    turns: Vec<StreamPart>,
    /// Whole turns that arrived early, by number.
    kept: BTreeMap<u32, Vec<u8>>,
    /// The number of the next turn; how much of it was delivered, if it was kept.
    number: u32,
    handed: usize,
}

impl Incoming {
    pub(super) fn new(sockets: Vec<Socket>) -> Self {
        let turns = vec![StreamPart::default(); sockets.len()];
        Self { sockets, turns, kept: BTreeMap::new(), number: 0, handed: 0 }
    }

    /// Reads bytes that have arrived; 0 if there are none.
    ///
    /// # Errors
    /// If a connection is broken, or closed too early.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let [socket] = &self.sockets[..] {
            return some_of(socket.read(into)?);
        }
        let mut passed = 0;
        while passed < into.len() {
            match self.read_turn(&mut into[passed..]) {
                Ok(0) => break,
                Ok(bytes) => passed += bytes,
                // The bytes that passed count. The next call returns the error.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Reads from the next turn, if it has arrived.
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

    /// Reads the next turn directly into its destination.
    fn read_from(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        let turn = &mut self.turns[at];
        let most = into.len().min(turn.left);
        let bytes = some_of(self.sockets[at].read(&mut into[..most])?)?;
        turn.left -= bytes;
        if turn.left == 0 {
            *turn = StreamPart::default();
            self.number = self.number.wrapping_add(1);
        }
        Ok(bytes)
    }

    /// Reads turns that arrived early. Returns whether one is complete.
    fn keep(&mut self) -> io::Result<bool> {
        let (before, mut broken) = (self.kept.len(), None);
        for (turn, socket) in self.turns.iter_mut().zip(&self.sockets).filter(|(turn, _)| turn.come == HEADER) {
            // A turn that was begun is completed, even beyond the limit.
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

    /// The socket on which the next turn arrives.
    fn at_hand(&mut self) -> io::Result<Option<usize>> {
        let has_it = |turn: &StreamPart, number| turn.come == HEADER && turn.number() == number;
        if let Some(at) = self.turns.iter().position(|turn| has_it(turn, self.number)) {
            return Ok(Some(at));
        }
        // A peer that has sent everything may be gone while the rest still arrives on other sockets.
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

/// How many bytes were read; the end of the stream is an error.
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

    /// A turn that is late holds back the turns after it, but blocks no socket.
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
        // Header and payload arrive in pieces.
        for part in [&header(0, 5)[..3], &header(0, 5)[3..], &[0, 0]] {
            assert_eq!(incoming.read(&mut into).unwrap(), 0);
            (&near[1]).write_all(part).unwrap();
        }
        let mut received = Vec::new();
        while received.len() < 2 {
            let bytes = read(&mut incoming, &mut into);
            received.extend_from_slice(&into[..bytes]);
        }
        // The peers of the first and the last socket have nothing more to send.
        (&near[1]).write_all(&[0; 3]).unwrap();
        drop(near);
        while received.len() < 11 {
            let bytes = read(&mut incoming, &mut into);
            received.extend_from_slice(&into[..bytes]);
        }
        assert_eq!(received, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert!((0..1_000_000).any(|_| incoming.read(&mut into).is_err()));
    }

    /// One socket takes nothing more, so all turns go over the other one.
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

    /// A slow socket delivers the first turn. All earlier arrivals have left the kernel by then, up to a limit.
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

    /// A packet is sent as it is, whatever follows. No packet is much shorter than the others.
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
