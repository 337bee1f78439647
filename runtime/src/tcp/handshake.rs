//! How two processes of a job prove to each other that they belong to it, before anything else is read.
//!
//! The principal type is [`Gate`], where those who come prove what they claim; [`introduce`] is the other side.
//!
//! ```text
//! acceptor                                 connector
//!   nonce a                    ─────────▶
//!                              ◀─────────    nonce c, claim, tag("connect", a, c, claim)
//!   tag("accept", c, a, claim) ────────▶
//! ```
//!
//! All lengths are fixed, and nothing of a stranger's bytes is looked at before its tag is right. Strangers are heard
//! side by side, so that one who says nothing holds up nobody, and turned away after [`PATIENCE`]. Whose tag is wrong
//! hears [`REFUSAL`] instead of an answer, which says nothing but that it need not try again.

use super::secret::{BYTES, Secret, nonce};
use crate::clock::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long a stranger may take to prove who it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many strangers are heard at the same time.
const STRANGERS: usize = 256;
/// How often who waits looks whether there is still a job.
const GLANCE: Duration = Duration::from_millis(20);
/// What a connector says.
const PROOF: usize = 3 * BYTES;
/// The answer to a wrong tag; that it is the right tag of anything is as likely as guessing the secret.
const REFUSAL: [u8; BYTES] = [0; BYTES];

/// What a connector says it is; believed only with the right tag.
pub(crate) type Claim = [u8; BYTES];

/// A connection whose ends believe each other.
pub(crate) struct Proven {
    pub(crate) stream: TcpStream,
    /// Known to these two ends only.
    pub(crate) session: Secret,
}

/// The connector's side.
///
/// # Errors
/// `PermissionDenied` when one of the two does not have the secret; what the operating system says otherwise.
pub(crate) fn introduce(address: SocketAddr, claim: Claim, secret: &Secret, deadline: Moment) -> io::Result<Proven> {
    // Zero would mean no limit.
    let left = || deadline.since(Moment::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, left())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(left()))?;
    stream.set_write_timeout(Some(left()))?;
    let (mut theirs, mine) = ([0; BYTES], nonce()?);
    stream.read_exact(&mut theirs)?;
    let tag = secret.tag(&[b"connect", &theirs, &mine, &claim]);
    stream.write_all(&[mine, claim, tag].concat())?;
    let mut answer = [0; BYTES];
    stream.read_exact(&mut answer)?;
    if !secret.verify(&[b"accept", &mine, &theirs, &claim], &answer) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "who listens there does not belong to this job"));
    }
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(Proven { stream, session: session(secret, &theirs, &mine) })
}

/// The key of one connection; both nonces are in it, so no other connection has the same.
fn session(secret: &Secret, acceptor: &[u8; BYTES], connector: &[u8; BYTES]) -> Secret {
    secret.derive(&[b"session", acceptor, connector])
}

/// Who has connected and not yet proved that it belongs here.
struct Stranger {
    stream: TcpStream,
    address: SocketAddr,
    nonce: [u8; BYTES],
    said: Vec<u8>,
    until: Moment,
}

/// The acceptor's side, for as many as come.
pub(crate) struct Gate<'a> {
    listeners: Vec<TcpListener>,
    secret: &'a Secret,
    strangers: Vec<Stranger>,
    refused: u64,
}

impl<'a> Gate<'a> {
    /// A gate behind listeners that do not block. They are closed with it.
    pub(crate) fn new(listeners: Vec<TcpListener>, secret: &'a Secret) -> Self {
        Self { listeners, secret, strangers: Vec::new(), refused: 0 }
    }

    /// How many came and were not let in.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Waits for a glance at most; those whose proof is right and whose claim `known` makes something of. The streams
    /// do not block.
    ///
    /// # Errors
    /// If the operating system cannot wait.
    pub(crate) fn admit<T>(
        &mut self,
        mut known: impl FnMut(&Claim, SocketAddr) -> Option<T>,
    ) -> io::Result<Vec<(T, Proven)>> {
        self.wait()?;
        let now = Moment::now();
        self.welcome(now)?;
        let mut admitted = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            // A stranger who breaks off, lies or is too slow is forgotten; whom it wanted to be will be missed.
            match stranger.listen() {
                Ok(false) if now < stranger.until => self.strangers.push(stranger),
                Ok(true) => {
                    let address = stranger.address;
                    match self.believe(stranger, &mut known) {
                        Some(guest) => admitted.push(guest),
                        None => self.refuse(address, "its proof is wrong, or nobody waits for it"),
                    }
                }
                Ok(false) => self.refuse(stranger.address, "it did not prove in time that it belongs here"),
                Err(_) => self.refuse(stranger.address, "it left without a proof"),
            }
        }
        Ok(admitted)
    }

    fn refuse(&mut self, address: SocketAddr, why: &str) {
        self.refused += 1;
        tracing::warn!("a connection from {address} was refused: {why}");
    }

    /// Sleeps until somebody connects or says something, or for a glance.
    fn wait(&self) -> io::Result<()> {
        let listeners = self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let strangers = self.strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN));
        let mut sockets: Vec<_> = listeners.chain(strangers).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(GLANCE.subsec_nanos()) };
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes who has connected.
    fn welcome(&mut self, now: Moment) -> io::Result<()> {
        for listener in &self.listeners {
            for _ in 0..STRANGERS {
                let (mut stream, address) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::MFILE) => return Err(error),
                    // Nobody is left, or who came is gone again, which does not matter.
                    Err(_) => break,
                };
                let nonce = nonce()?;
                if stream.set_nonblocking(true).and_then(|()| stream.write_all(&nonce)).is_ok() {
                    if self.strangers.len() == STRANGERS {
                        self.strangers.remove(0);
                    }
                    let said = Vec::with_capacity(PROOF);
                    self.strangers.push(Stranger { stream, address, nonce, said, until: now.after(PATIENCE) });
                }
            }
        }
        Ok(())
    }

    fn believe<T>(
        &self,
        mut stranger: Stranger,
        known: &mut impl FnMut(&Claim, SocketAddr) -> Option<T>,
    ) -> Option<(T, Proven)> {
        let (proof, _) = stranger.said.as_chunks::<BYTES>();
        let &[theirs, claim, tag] = proof else { return None };
        if !self.secret.verify(&[b"connect", &stranger.nonce, &theirs, &claim], &tag) {
            // Whether it hears this does not matter.
            let _ = stranger.stream.write_all(&REFUSAL);
            return None;
        }
        let guest = known(&claim, stranger.address)?;
        let answer = self.secret.tag(&[b"accept", &theirs, &stranger.nonce, &claim]);
        // It has said nothing but its proof, so these bytes find room.
        stranger.stream.write_all(&answer).ok()?;
        stranger.stream.set_nodelay(true).ok()?;
        let session = session(self.secret, &stranger.nonce, &theirs);
        Some((guest, Proven { stream: stranger.stream, session }))
    }
}

impl Stranger {
    /// Whether it has said all that it has to say.
    fn listen(&mut self) -> io::Result<bool> {
        let mut bytes = [0; PROOF];
        match self.stream.read(&mut bytes[self.said.len()..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                let start = self.said.len();
                self.said.extend_from_slice(&bytes[start..start + read]);
                Ok(self.said.len() == PROOF)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
