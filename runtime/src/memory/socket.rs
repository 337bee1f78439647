//! A socket of a lane, and whether there is a point in trying it.
//!
//! The principal type is [`Socket`]. A rank with many lanes would spend its time on asking the kernel about each of them. So its
//! [`Poller`](super::poller::Poller) hears which have changed, and a socket that was found empty, or full, is left alone until then.
//! Where a rank has few, trying costs no more than asking, and is never late.

use rustix::event::epoll::EventFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits of a [`SocketState`]. There is something to read, or was when the kernel said so.
const READABLE: u8 = 1;
/// There is room to write.
const WRITABLE: u8 = 2;
/// One of the ends has ended the connection, which shows at every later try.
const ENDED: u8 = 4;
/// Somebody listens to what the kernel says of it.
const HEARD: u8 = 8;

/// What is known of a socket. One thread alone changes it, so no change is lost between reading and writing it.
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

    /// From now on the kernel is listened to; nothing has been tried since it began to speak.
    pub(crate) fn begin(&self) {
        self.add(HEARD | READABLE | WRITABLE);
    }

    /// What the kernel says.
    pub(crate) fn heard(&self, events: EventFlags) {
        let has = |flags: EventFlags| events.intersects(flags);
        self.add(if has(EventFlags::IN) { READABLE } else { 0 });
        self.add(if has(EventFlags::OUT) { WRITABLE } else { 0 });
        self.add(if has(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) { ENDED } else { 0 });
    }
}

/// `None` where the kernel has no room, or no data, right now.
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
    /// Whether to try to write at any time: the kernel says that there is room again only where there is much.
    is_eager: bool,
}

impl Socket {
    /// One of which a poller says what changes.
    pub(crate) fn new(stream: TcpStream, state: Arc<SocketState>) -> Self {
        Self { stream, state, is_eager: false }
    }

    /// From now on it is written to whenever there is something to write.
    pub(crate) fn write_eagerly(&mut self) {
        self.is_eager = true;
    }

    /// What options are set on.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads what has come; `None` if nothing has, nothing if the stream has ended.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.state.may(READABLE) {
            return Ok(None);
        }
        let read = now((&self.stream).read(into));
        match read {
            Ok(Some(0)) if !into.is_empty() => self.state.add(ENDED),
            Ok(Some(bytes)) if bytes == into.len() => {}
            // Whatever comes from now on is a change.
            Ok(_) => self.state.remove(READABLE),
            Err(_) => {}
        }
        read
    }

    /// Sends what there is room for; `None` if there is none.
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

/// One that nobody listens to, and is always tried.
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

    /// So many sockets that each is left alone until the kernel speaks of it, and their other ends.
    fn crowd(poller: &Poller) -> (Vec<Socket>, Vec<TcpStream>) {
        let (near, far): (Vec<_>, Vec<_>) = (0..2 * FEW).map(|_| pair()).unzip();
        (near.into_iter().map(|near| poller.watch(near).unwrap()).collect(), far)
    }

    /// Looks around until something is there.
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
        // It is in the kernel, but nobody has said so.
        assert!((0..1000).all(|_| near[5].read(&mut into).unwrap().is_none()));
        assert_eq!(until(&poller, || near[5].read(&mut into).unwrap()), 64);
        // The rest needs no word, nor does the end of all.
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
        // Reading a little does not make the kernel speak of room, and whoever is eager finds it.
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
