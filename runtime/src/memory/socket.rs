//! A socket of a lane, and whether a read or a write may succeed now.
//!
//! The principal type is [`Socket`]. A rank with many lanes would spend its time on failed calls. So its
//! [`Poller`](super::poller::Poller) reads which sockets have changed. A socket that was found empty, or full, is not
//! tried again before that. A rank with few sockets tries them always, which is no slower.

use rustix::event::epoll::EventFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits of a [`SocketState`]. There is something to read, or there was at the last event.
const READABLE: u8 = 1;
/// There is room to write.
const WRITABLE: u8 = 2;
/// One end has closed the connection. Every later call shows this.
const ENDED: u8 = 4;
/// A poller reads the events of this socket.
const HEARD: u8 = 8;

/// What is known about a socket. Only one thread changes it, so a load and a store together lose no change.
#[derive(Default)]
pub(crate) struct SocketState(AtomicU8);

impl SocketState {
    fn add(&self, bits: u8) {
        self.0.store(self.0.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    fn remove(&self, bits: u8) {
        self.0.store(self.0.load(Ordering::Relaxed) & !bits, Ordering::Relaxed);
    }

    fn may(&self, what: u8) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        state & HEARD == 0 || state & (what | ENDED) != 0
    }

    /// Starts to use the events. Until the first call fails, the socket counts as ready.
    pub(crate) fn begin(&self) {
        self.add(HEARD | READABLE | WRITABLE);
    }

    /// Adds the news of an event.
    pub(crate) fn heard(&self, events: EventFlags) {
        let has = |flags: EventFlags| events.intersects(flags);
        self.add(if has(EventFlags::IN) { READABLE } else { 0 });
        self.add(if has(EventFlags::OUT) { WRITABLE } else { 0 });
        self.add(if has(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) { ENDED } else { 0 });
    }
}

/// `None` if the kernel has no room, or no data, now.
pub(crate) fn now(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A socket that does not block.
pub(crate) struct Socket {
    stream: TcpStream,
    state: Arc<SocketState>,
    /// Whether to try every write. The kernel reports room only when there is much room.
    is_eager: bool,
}

impl Socket {
    /// A socket whose `state` a poller updates.
    pub(crate) fn new(stream: TcpStream, state: Arc<SocketState>) -> Self {
        Self { stream, state, is_eager: false }
    }

    /// From now on every write is tried, whatever the events say.
    pub(crate) fn write_eagerly(&mut self) {
        self.is_eager = true;
    }

    /// The stream, for its options.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads the bytes that have arrived. `None` if there are none; 0 bytes if the stream has ended.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.state.may(READABLE) {
            return Ok(None);
        }
        let read = now((&self.stream).read(into));
        match read {
            Ok(Some(0)) if !into.is_empty() => self.state.add(ENDED),
            Ok(Some(bytes)) if bytes == into.len() => {}
            // The buffer is empty now; every later arrival gives an event.
            Ok(_) => self.state.remove(READABLE),
            Err(_) => {}
        }
        read
    }

    /// Sends as many bytes as there is room for; `None` if there is no room.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>], how: SendFlags) -> io::Result<Option<usize>> {
        if !self.is_eager && !self.state.may(WRITABLE) {
            return Ok(None);
        }
        let sent =
            rustix::net::sendmsg(&self.stream, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL | how);
        let sent = now(sent.map_err(io::Error::from));
        let wanted = parts.iter().map(|part| part.len()).sum::<usize>();
        if !matches!(sent, Ok(Some(bytes)) if bytes == wanted) {
            self.state.remove(WRITABLE);
        }
        sent
    }
}

/// A socket without a poller: it is always tried.
impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::new(stream, Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::poller::{FEW, Poller};
    use super::*;
    use crate::transport::tcp::lane::tests::pair;
    use std::io::Write;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(20);

    /// So many sockets that each is tried only after an event, and their peers.
    fn crowd(poller: &Poller) -> (Vec<Socket>, Vec<TcpStream>) {
        let (near, far): (Vec<_>, Vec<_>) = (0..2 * FEW).map(|_| pair()).unzip();
        (near.into_iter().map(|near| poller.watch(near).unwrap()).collect(), far)
    }

    /// Reads events until `found` returns something.
    fn until<T>(poller: &Poller, mut found: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            poller.refresh();
            match found() {
                Some(found) => return found,
                None => assert!(begin.elapsed() < LONG, "nothing came"),
            }
        }
    }

    #[test]
    fn a_socket_is_tried_again_when_something_has_changed() {
        let poller = Poller::new().unwrap();
        let (near, far) = crowd(&poller);
        let mut into = [0; 64];
        poller.refresh();
        assert!(near.iter().all(|socket| socket.read(&mut into).unwrap().is_none()));
        (&far[5]).write_all(&[7; 80]).unwrap();
        // The bytes are in the kernel, but no event was read.
        assert!((0..1000).all(|_| near[5].read(&mut into).unwrap().is_none()));
        assert_eq!(until(&poller, || near[5].read(&mut into).unwrap()), 64);
        // The rest needs no new event, and the end of the stream needs none.
        assert_eq!(near[5].read(&mut into).unwrap(), Some(16));
        assert_eq!(near[5].read(&mut into).unwrap(), None);
        (&far[5]).write_all(&[7]).unwrap();
        drop(far);
        let mut read = 0;
        until(&poller, || {
            read += near[5].read(&mut into).unwrap().unwrap_or(0);
            (read > 0).then_some(())
        });
        assert_eq!(until(&poller, || near[5].read(&mut into).unwrap()), 0);
        assert_eq!(near[5].read(&mut into).unwrap(), Some(0));
    }

    #[test]
    fn a_full_socket_is_left_alone_until_there_is_room() {
        let poller = Poller::new().unwrap();
        let (mut near, far) = crowd(&poller);
        let data = vec![0; 1 << 20];
        let send = |socket: &Socket| socket.send(&[IoSlice::new(&data)], SendFlags::empty()).unwrap();
        near[1].write_eagerly();
        for at in [0, 1] {
            while send(&near[at]).is_some() {}
        }
        // Reading a little does not produce an event about room, but an eager socket finds the room.
        far.iter().for_each(|far| far.set_nonblocking(false).unwrap());
        let mut into = vec![0; 1 << 18];
        (&far[1]).read_exact(&mut into).unwrap();
        let begin = Instant::now();
        while send(&near[1]).is_none() {
            assert!(begin.elapsed() < LONG);
            let _ = (&far[1]).read(&mut into).unwrap();
        }
        assert!(send(&near[0]).is_none());
        far[0].set_nonblocking(true).unwrap();
        until(&poller, || {
            while now((&far[0]).read(&mut into)).unwrap().is_some() {}
            send(&near[0])
        });
    }
}
