//! The two ends of a TCP lane.
//!
//! The principal types are [`TcpSender`] and [`TcpReceiver`], over one socket or over several
//! ([`stripes`](super::stripes)). Payload moves directly between the caller's buffer and the kernel. Only the few words
//! before a message, and operands of reductions, pass through memory of the lane.

use super::credit::{Admitting, Credit};
use super::stripes::{Incoming, Outgoing};
use crate::memory::socket::Socket;
use crate::transport::{ReceiveLane, SendLane};
use std::collections::VecDeque;
use std::io;

/// Room for the words before a message and for other small data.
const SMALL: usize = 4096;
/// The most bytes that a receiver holds for a caller that reads in the lane.
const HELD: usize = 256 << 10;
/// Fewer bytes than this may be a part of an element or of a word, so more bytes are read behind them.
const LEAST: usize = 64;
/// A receiver reads this many bytes at once, if they have arrived: a small message and the words before it.
const TOGETHER: usize = 4096;

/// The sender.
pub(super) struct TcpSender {
    stripes: Outgoing,
    /// The memory that `reserve` lends.
    room: Vec<u8>,
    /// Bytes that the kernel has not accepted: committed words first, then messages that must not wait.
    pending: VecDeque<u8>,
    /// The most bytes of messages in `pending`.
    backlog: usize,
    /// Present if the receiver gives credit.
    credit: Option<Credit>,
}

impl TcpSender {
    pub(super) fn new(sockets: Vec<Socket>, backlog: usize) -> Self {
        let stripes = Outgoing::new(sockets);
        Self { stripes, room: vec![0; SMALL], pending: VecDeque::new(), backlog, credit: None }
    }

    /// Cuts what this sender sends into packets of at most `packet` bytes.
    pub(super) fn in_packets(self, packet: usize) -> Self {
        Self { stripes: self.stripes.in_packets(packet), ..self }
    }

    /// Makes this sender wait for credit of its receiver.
    pub(super) fn with_credit(self) -> Self {
        Self { credit: Some(Credit::default()), ..self }
    }

    /// Sends the pending bytes, and `data` behind them. Returns how much of `data` was sent or is in a socket's own
    /// buffer; `None` if not all pending bytes were.
    fn pass(&mut self, data: &[u8]) -> io::Result<Option<usize>> {
        let before = self.pending.len();
        let passed = self.stripes.write(self.pending.make_contiguous(), data)?;
        self.pending.drain(..passed.min(before));
        Ok(passed.checked_sub(before))
    }
}

impl SendLane for TcpSender {
    fn reserve(&mut self) -> io::Result<&mut [u8]> {
        let taken = self.pending.len().min(SMALL);
        Ok(&mut self.room[taken..])
    }

    fn commit(&mut self, bytes: usize) -> io::Result<()> {
        let start = self.pending.len().min(SMALL);
        // The bytes are sent with the next message, or when the lane is flushed.
        self.pending.extend(&self.room[start..start + bytes]);
        Ok(())
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        let data = match &mut self.credit {
            Some(credit) => &data[..credit.most(&self.stripes.sockets[0], data.len())?],
            None => data,
        };
        let taken = self.pass(data)?.unwrap_or(0);
        let kept = (data.len() - taken).min(self.backlog.saturating_sub(self.pending.len()));
        self.pending.extend(&data[taken..taken + kept]);
        if let Some(credit) = &mut self.credit {
            credit.sent(taken + kept);
        }
        Ok(taken + kept)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(self.pass(&[])?.is_some() && self.stripes.flush()?)
    }
}

/// The receiver.
pub(super) struct TcpReceiver {
    stripes: Incoming,
    /// As long as the longest request so far, because many lanes read few words or none.
    held: Vec<u8>,
    start: usize,
    end: usize,
    admitting: Admitting,
}

impl TcpReceiver {
    pub(super) fn new(sockets: Vec<Socket>) -> Self {
        Self { stripes: Incoming::new(sockets), held: Vec::new(), start: 0, end: 0, admitting: Admitting::default() }
    }
}

impl ReceiveLane for TcpReceiver {
    fn peek(&mut self, most: usize) -> io::Result<&[u8]> {
        self.admitting.flush(&self.stripes.sockets[0])?;
        let most = most.min(HELD);
        // Reads little more than requested: the rest may be read directly into its buffer.
        if self.end - self.start < most.min(LEAST) {
            self.held.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let room = most.max(TOGETHER);
            if self.held.len() < room {
                self.held.resize(room, 0);
            }
            self.end += self.stripes.read(&mut self.held[self.end..room])?;
        }
        Ok(&self.held[self.start..self.end.min(self.start + most)])
    }

    fn release(&mut self, bytes: usize) -> io::Result<()> {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "only what was peeked is released");
        Ok(())
    }

    fn admit(&mut self, bytes: usize) -> io::Result<()> {
        self.admitting.admit(&self.stripes.sockets[0], bytes)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let held = (self.end - self.start).min(into.len());
        into[..held].copy_from_slice(&self.held[self.start..self.start + held]);
        self.start += held;
        if held == into.len() {
            return Ok(held);
        }
        self.admitting.flush(&self.stripes.sockets[0])?;
        // The held bytes must be delivered even if the peer is gone by now. The next call returns the error.
        match self.stripes.read(&mut into[held..]) {
            Ok(bytes) => Ok(held + bytes),
            Err(_) if held > 0 => Ok(held),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    pub(crate) fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        for stream in [&near, &far] {
            stream.set_nonblocking(true).unwrap();
        }
        (near, far)
    }

    fn byte(index: usize) -> u8 {
        (index * 31 % 251) as u8
    }

    /// All ways to read see one stream, when they take turns. Nothing blocks if the stream is longer than all buffers.
    #[test]
    fn words_payload_and_operands_are_one_stream() {
        for sockets in [1, 2, 3] {
            one_stream(sockets);
        }
    }

    fn one_stream(sockets: usize) {
        const BYTES: usize = 20 << 20;
        let sockets = (0..sockets).map(|_| pair()).map(|(near, far)| (Socket::from(near), Socket::from(far)));
        let (near, far) = sockets.unzip();
        let (mut sender, mut receiver) = (TcpSender::new(near, 0), TcpReceiver::new(far));
        let data: Vec<u8> = (0..BYTES).map(byte).collect();
        let (mut sent, mut received, mut turn) = (0, 0, 0);
        let mut into = vec![0; 100_000];
        while received < BYTES {
            turn += 1;
            if turn % 3 == 0 {
                let room = sender.reserve().unwrap();
                let take = room.len().min(16).min(BYTES - sent);
                room[..take].copy_from_slice(&data[sent..sent + take]);
                sender.commit(take).unwrap();
                sent += take;
            }
            let most = BYTES.min(sent + 300_000);
            sent += sender.send(&data[sent..most]).unwrap();
            // As after every round of an interpreter.
            sender.flush().unwrap();
            let wanted = (1 + turn * 7919 % into.len()).min(BYTES - received);
            let bytes = if turn % 2 == 0 {
                receiver.receive(&mut into[..wanted]).unwrap()
            } else {
                let found = receiver.peek(wanted).unwrap();
                assert!(found.len() <= wanted);
                into[..found.len()].copy_from_slice(found);
                let bytes = found.len();
                receiver.release(bytes).unwrap();
                bytes
            };
            assert!(into[..bytes] == data[received..received + bytes], "after {received} bytes");
            received += bytes;
        }
        assert!(sender.flush().unwrap());
    }

    /// A small message and the words before it are one segment, and are read at once.
    #[test]
    fn words_travel_with_what_follows() {
        let (near, far) = pair();
        let mut sender = TcpSender::new(vec![near.into()], 0);
        let room = sender.reserve().unwrap();
        room[..16].fill(1);
        sender.commit(16).unwrap();
        let mut raw = [0; 4096];
        assert_eq!(far.peek(&mut raw).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(sender.send(&[2; 1000]).unwrap(), 1000);
        assert!((0..1_000_000).any(|_| far.peek(&mut raw).is_ok_and(|bytes| bytes == 1016)));
        let mut receiver = TcpReceiver::new(vec![far.try_clone().unwrap().into()]);
        assert_eq!(receiver.peek(16).unwrap(), [1; 16]);
        receiver.release(16).unwrap();
        assert_eq!(far.peek(&mut raw).unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut into = [0; 1000];
        assert_eq!((receiver.receive(&mut into).unwrap(), into), (1000, [2; 1000]));
        // Words without a message behind them are sent when the lane is flushed.
        sender.commit(8).unwrap();
        assert!(sender.flush().unwrap());
        assert!((0..1_000_000).any(|_| receiver.peek(8).unwrap().len() == 8));
    }

    #[test]
    fn a_backlog_takes_messages_that_nobody_receives() {
        let (near, far) = pair();
        let mut plain = TcpSender::new(vec![near.try_clone().unwrap().into()], 0);
        let data = vec![7; 64 << 20];
        let kernel = std::iter::from_fn(|| Some(plain.send(&data).unwrap()).filter(|&bytes| bytes > 0)).sum::<usize>();
        assert!(kernel < data.len());
        let mut sender = TcpSender::new(vec![near.into()], 1 << 20);
        assert_eq!(sender.send(&data).unwrap(), 1 << 20);
        assert_eq!((sender.send(&data).unwrap(), sender.flush().unwrap()), (0, false));
        drop(far);
    }

    #[test]
    fn a_message_without_credit_stops_after_its_beginning() {
        const BYTES: usize = 1 << 20;
        let (near, far) = pair();
        let mut sender = TcpSender::new(vec![near.into()], 0).with_credit();
        let mut receiver = TcpReceiver::new(vec![far.into()]);
        let (data, mut into) = (vec![7; BYTES], vec![0; BYTES]);
        let (mut sent, mut received) = (0, 0);
        for credit in [0, BYTES] {
            receiver.admit(credit).unwrap();
            // Until all bytes that may be sent have arrived, and much longer. The kernel's delay is unknown.
            let (mut idle, begin) = (0, std::time::Instant::now());
            while idle < 100_000 || received < sent || (credit > 0 && sent < BYTES) {
                let moved = [sender.send(&data[sent..]).unwrap(), receiver.receive(&mut into[received..]).unwrap()];
                (sent, received) = (sent + moved[0], received + moved[1]);
                idle = if moved == [0, 0] { idle + 1 } else { 0 };
                assert!(begin.elapsed().as_secs() < 20, "{received} of {sent} bytes arrived");
            }
            assert_eq!(sent < BYTES / 2, credit == 0, "{sent} bytes");
        }
        assert!(sent == BYTES && into == data);
    }

    #[test]
    fn a_receiver_has_memory_for_what_was_asked_of_it() {
        let (near, far) = pair();
        let (mut sender, mut receiver) = (TcpSender::new(vec![near.into()], 0), TcpReceiver::new(vec![far.into()]));
        assert_eq!(sender.send(&[5; 2000]).unwrap(), 2000);
        assert!((0..1_000_000).any(|_| receiver.receive(&mut [0; 1000]).unwrap() == 1000));
        assert_eq!(receiver.held.capacity(), 0);
        assert!((0..1_000_000).any(|_| receiver.peek(16).unwrap() == [5; 16]));
        assert!(receiver.held.capacity() < HELD / 16, "{}", receiver.held.capacity());
        receiver.release(16).unwrap();
        assert!((0..1_000_000).any(|_| receiver.peek(usize::MAX).unwrap() == [5; 984]));
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_at_both_ends() {
        let (near, far) = pair();
        drop(near);
        let mut receiver = TcpReceiver::new(vec![far.try_clone().unwrap().into()]);
        // The end of the stream may take a moment to arrive.
        let error = (0..1_000_000).find_map(|_| receiver.receive(&mut [0; 8]).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let mut sender = TcpSender::new(vec![far.into()], 0);
        assert!((0..1_000_000).any(|_| sender.send(&[0; 8]).is_err()));
    }
}
