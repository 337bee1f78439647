//! How two processes prove to each other that they belong to the same job, before either reads anything else.
//!
//! The principal type is [`Gate`], the acceptor's side; [`introduce`] is the connector's side.
//!
//! ```text
//! acceptor                                 connector
//!   nonce a                    ─────────▶
//!                              ◀─────────    nonce c, claim, tag("connect", a, c, claim)
//!   tag("accept", c, a, claim) ────────▶
//! ```
//!
//! All lengths are fixed, and the acceptor uses no byte of an unauthenticated connection before its tag is verified. It
//! serves all unauthenticated connections at the same time, so that a silent one delays no other. It closes such a
//! connection after [`PROOF_LIMIT`], or already after [`CROWDED_PROOF_LIMIT`] if others need its place and everything received has been
//! read. Meanwhile, further connections wait at the listener. A wrong tag is answered with [`REFUSAL`], which says only
//! that a retry is useless. A connector that is cut off without an answer may try again.
//!
//! A process without a free descriptor accepts no connection for [`REST`] and then goes on, so that many
//! unauthenticated connections cannot end a job.

use super::secret::{BYTES, Secret, nonce};
use crate::clock::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::time::Timespec;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long an unauthenticated connection may take to prove that it belongs to the job.
const PROOF_LIMIT: Duration = Duration::from_secs(2);
/// How long it may take while others need its place.
const CROWDED_PROOF_LIMIT: Duration = Duration::from_millis(250);
/// How many unauthenticated connections are served at the same time.
const STRANGERS: usize = 512;
/// How often a waiting process checks whether the job still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long no connection is accepted after there was no free descriptor.
const REST: Duration = Duration::from_millis(100);
/// The bytes of a connector's proof: nonce, claim and tag.
const PROOF: usize = 3 * BYTES;
/// The answer to a wrong tag. To be a valid tag by chance is as unlikely as to guess the secret.
const REFUSAL: [u8; BYTES] = [0; BYTES];

/// What a connector claims to be. It counts only with a valid tag.
pub(crate) type Claim = [u8; BYTES];

/// A connection whose two ends have proved that they belong to the job.
pub(crate) struct Proven {
    pub(crate) stream: TcpStream,
    /// A key that only these two ends know.
    pub(crate) session: Secret,
}

/// The connector's side. It calls `go_on` repeatedly and gives up when that returns false.
///
/// # Errors
/// `PermissionDenied` if one of the two ends does not have the secret; `TimedOut` if the deadline has passed;
/// `Interrupted` if `go_on` returned false; otherwise the error of the operating system.
pub(crate) fn introduce(
    address: SocketAddr,
    claim: Claim,
    secret: &Secret,
    deadline: Moment,
    go_on: &dyn Fn() -> bool,
) -> io::Result<Proven> {
    let connector = Connector { deadline, go_on };
    let stream = connector.connect(address)?;
    stream.set_nodelay(true)?;
    let (mut theirs, mine) = ([0; BYTES], nonce()?);
    connector.read(&stream, &mut theirs)?;
    let tag = secret.tag(&[b"connect", &theirs, &mine, &claim]);
    connector.write(&stream, &[mine, claim, tag].concat())?;
    let mut answer = [0; BYTES];
    connector.read(&stream, &mut answer)?;
    if !secret.verify(&[b"accept", &mine, &theirs, &claim], &answer) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "who listens there does not belong to this job"));
    }
    stream.set_nonblocking(false)?;
    Ok(Proven { stream, session: session(secret, &theirs, &mine) })
}

/// The conditions under which a connector keeps waiting.
struct Connector<'a> {
    deadline: Moment,
    go_on: &'a dyn Fn() -> bool,
}

impl Connector<'_> {
    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        self.until(&stream, PollFlags::OUT)?;
        stream.take_error()?.map_or(Ok(stream), Err)
    }

    fn read(&self, mut stream: &TcpStream, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            self.until(stream, PollFlags::IN)?;
            match stream.read(&mut into[filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&self, mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            self.until(stream, PollFlags::OUT)?;
            match stream.write(&bytes[written..]) {
                Ok(more) => written += more,
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sleeps until the socket is ready for `what`.
    fn until(&self, stream: &TcpStream, what: PollFlags) -> io::Result<()> {
        loop {
            if !(self.go_on)() {
                return Err(io::Error::new(ErrorKind::Interrupted, "nobody waits for this connection any more"));
            }
            let left = self.deadline.since(Moment::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "it did not answer in time"));
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.min(POLL_INTERVAL).subsec_nanos()) };
            match poll(&mut [PollFd::new(stream, what)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether the same call may work a moment later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether this process, or the system, has no resources for one more connection now.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// The key of one connection. Both nonces are in it, so every connection has its own key.
fn session(secret: &Secret, acceptor: &[u8; BYTES], connector: &[u8; BYTES]) -> Secret {
    secret.derive(&[b"session", acceptor, connector])
}

/// An accepted connection that has not yet proved that it belongs to the job.
struct Unauthenticated {
    stream: TcpStream,
    address: SocketAddr,
    nonce: [u8; BYTES],
    said: Vec<u8>,
    since: Moment,
}

/// The acceptor's side, for any number of connections.
pub(crate) struct Gate<'a> {
    listeners: Vec<TcpListener>,
    secret: &'a Secret,
    /// In the order in which they were accepted.
    strangers: Vec<Unauthenticated>,
    refusals: Refusals,
    /// The end of the pause in which no connection is accepted, and the error that caused the pause.
    full: Option<(Moment, io::Error)>,
}

impl<'a> Gate<'a> {
    /// A gate for these listeners, which must not block. The gate closes them when it is dropped.
    pub(crate) fn new(listeners: Vec<TcpListener>, secret: &'a Secret) -> Self {
        Self { listeners, secret, strangers: Vec::new(), refusals: Refusals::default(), full: None }
    }

    /// The error because of which connections cannot be accepted now, if there is one.
    pub(crate) fn full(&self) -> Option<&io::Error> {
        self.full.as_ref().map(|(_, error)| error)
    }

    /// How many connections were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refusals.count
    }

    /// Waits for at most [`POLL_INTERVAL`]. Returns the connections whose proof is valid and for whose claim `known` returns a
    /// value. Their streams do not block.
    ///
    /// # Errors
    /// If the operating system cannot wait.
    pub(crate) fn admit<T>(
        &mut self,
        mut known: impl FnMut(&Claim, SocketAddr) -> Option<T>,
    ) -> io::Result<Vec<(T, Proven)>> {
        let has_spoken = self.wait()?;
        let now = Moment::now();
        let patience = if self.full.is_some() { CROWDED_PROOF_LIMIT } else { PROOF_LIMIT };
        let mut admitted = Vec::new();
        for (mut stranger, has_spoken) in std::mem::take(&mut self.strangers).into_iter().zip(has_spoken) {
            // A connection that ends early, has a wrong proof or is too slow is dropped. Its rank stays missing.
            let heard = if has_spoken { stranger.listen() } else { Ok(false) };
            match heard {
                Ok(false) if now < stranger.since.after(patience) => self.strangers.push(stranger),
                Ok(true) => {
                    let address = stranger.address;
                    match self.authenticate(stranger, &mut known) {
                        Some(guest) => admitted.push(guest),
                        None => self.refuse(address, "its proof is wrong, or nobody waits for it"),
                    }
                }
                Ok(false) => self.refuse(stranger.address, "it did not prove in time that it belongs here"),
                Err(_) => self.refuse(stranger.address, "it left without a proof"),
            }
        }
        self.accept_new(now)?;
        Ok(admitted)
    }

    fn refuse(&mut self, address: SocketAddr, why: &str) {
        match self.refusals.note(Moment::now()) {
            0 => {}
            1 => tracing::warn!("a connection from {address} was refused: {why}"),
            many => tracing::warn!("{many} connections were refused, the last one from {address}: {why}"),
        }
    }

    /// Sleeps until a connection or bytes arrive, for at most [`POLL_INTERVAL`]. Returns which of the unauthenticated
    /// connections are readable.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let strangers = self.strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN));
        // Listeners are left out while nothing can be accepted.
        let listeners = self.listeners.iter().filter(|_| self.has_room(Moment::now()));
        let listeners = listeners.map(|listener| PollFd::new(listener, PollFlags::IN));
        let mut sockets: Vec<_> = strangers.chain(listeners).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()) };
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(sockets[..self.strangers.len()].iter().map(|socket| !socket.revents().is_empty()).collect())
    }

    /// Whether one more connection can be accepted, possibly in the place of an old one.
    fn has_room(&self, now: Moment) -> bool {
        if self.full.as_ref().is_some_and(|(until, _)| now < *until) {
            return false;
        }
        let oldest = self.strangers.first().filter(|_| self.strangers.len() >= STRANGERS);
        oldest.is_none_or(|oldest| now >= oldest.since.after(CROWDED_PROOF_LIMIT))
    }

    /// Accepts new connections. All proofs that have arrived were read before.
    fn accept_new(&mut self, now: Moment) -> io::Result<()> {
        // Many connections at one listener must not keep the others from theirs.
        let one = self.listeners.len().min(1);
        self.listeners.rotate_left(one);
        for at in 0..self.listeners.len() {
            for _ in 0..STRANGERS {
                if !self.has_room(now) {
                    return Ok(());
                }
                let (mut stream, address) = match self.listeners[at].accept() {
                    Ok(accepted) => accepted,
                    Err(error) if is_full(&error) => {
                        self.rest(now, error);
                        return Ok(());
                    }
                    // Nothing is left to accept, or the connection is already gone. Neither matters.
                    Err(_) => break,
                };
                self.full = None;
                let nonce = nonce()?;
                if stream.set_nonblocking(true).and_then(|()| stream.write_all(&nonce)).is_ok() {
                    if self.strangers.len() >= STRANGERS {
                        let oldest = self.strangers.remove(0);
                        self.refuse(oldest.address, "it did not prove that it belongs here, and others want to");
                    }
                    let said = Vec::with_capacity(PROOF);
                    self.strangers.push(Unauthenticated { stream, address, nonce, said, since: now });
                }
            }
        }
        Ok(())
    }

    /// Accepts nothing for a while. Until then some connections are authenticated or closed, and new ones wait.
    fn rest(&mut self, now: Moment, error: io::Error) {
        if self.full.is_none() {
            tracing::warn!("connections have to wait, because none can be accepted right now: {error}");
        }
        self.full = Some((now.after(REST), error));
    }

    fn authenticate<T>(
        &self,
        mut stranger: Unauthenticated,
        known: &mut impl FnMut(&Claim, SocketAddr) -> Option<T>,
    ) -> Option<(T, Proven)> {
        let (proof, _) = stranger.said.as_chunks::<BYTES>();
        let &[theirs, claim, tag] = proof else { return None };
        if !self.secret.verify(&[b"connect", &stranger.nonce, &theirs, &claim], &tag) {
            // It does not matter whether the refusal arrives.
            let _ = stranger.stream.write_all(&REFUSAL);
            return None;
        }
        let guest = known(&claim, stranger.address)?;
        let answer = self.secret.tag(&[b"accept", &theirs, &stranger.nonce, &claim]);
        // The connector has received only the nonce so far, so these bytes fit into the socket's buffer.
        stranger.stream.write_all(&answer).ok()?;
        stranger.stream.set_nodelay(true).ok()?;
        let session = session(self.secret, &stranger.nonce, &theirs);
        Some((guest, Proven { stream: stranger.stream, session }))
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // The connections that are still open count as refused.
        self.refusals.count += self.strangers.len() as u64;
        match self.refusals.untold() {
            0 => {}
            rest => tracing::warn!("{rest} more connections were refused: nobody waited for them"),
        }
    }
}

/// Counts refused connections. The first ones are logged one by one; later ones are logged once a second, as a number.
#[derive(Default)]
struct Refusals {
    count: u64,
    told: u64,
    /// Until when nothing is logged.
    quiet: Moment,
}

impl Refusals {
    /// How many are logged one by one.
    const SINGLY: u64 = 8;
    const PAUSE: Duration = Duration::from_secs(1);

    /// Counts one more refusal. Returns how many refusals to log now.
    fn note(&mut self, now: Moment) -> u64 {
        self.count += 1;
        if self.count > Self::SINGLY && now < self.quiet {
            return 0;
        }
        self.quiet = now.after(Self::PAUSE);
        self.untold()
    }

    /// How many refusals were not logged yet. They count as logged afterwards.
    fn untold(&mut self) -> u64 {
        self.count - std::mem::replace(&mut self.told, self.count)
    }
}

impl Unauthenticated {
    /// Reads more of the proof. Returns whether it is complete.
    fn listen(&mut self) -> io::Result<bool> {
        let mut bytes = [0; PROOF];
        match self.stream.read(&mut bytes[self.said.len()..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                let start = self.said.len();
                self.said.extend_from_slice(&bytes[start..start + read]);
                Ok(self.said.len() == PROOF)
            }
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    const LONG: Duration = Duration::from_secs(20);

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 4096).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Sends a valid proof if the nonce has arrived. The stream does not block. Returns whether it did.
    fn answer(stream: &mut TcpStream, secret: &Secret) -> bool {
        let (mut theirs, mine, claim) = ([0; BYTES], [1; BYTES], [2; BYTES]);
        let has_nonce = stream.read(&mut theirs).is_ok_and(|bytes| bytes == BYTES);
        if has_nonce {
            let tag = secret.tag(&[b"connect", &theirs, &mine, &claim]);
            stream.write_all(&[mine, claim, tag].concat()).unwrap();
        }
        has_nonce
    }

    /// More connectors than are served at once send their proofs as soon as they can, before the gate reads again.
    #[test]
    fn whose_proof_has_come_is_heard_before_others_are_let_in() {
        const ALL: usize = 2 * STRANGERS + 1;
        crate::transport::tcp::raise_open_files();
        let secret = Secret::random().unwrap();
        let (listener, address) = listener();
        let mut gate = Gate::new(vec![listener], &secret);
        let mut come: Vec<_> = (0..ALL).map(|_| TcpStream::connect(address).unwrap()).collect();
        come.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let mut answered: Vec<TcpStream> = Vec::new();
        let (mut admitted, deadline) = (0, Moment::now().after(LONG));
        while admitted < ALL {
            assert!(Moment::now() < deadline, "{admitted} of {ALL}");
            admitted += gate.admit(|_, _| Some(())).unwrap().len();
            answered.extend(come.extract_if(.., |stream| answer(stream, &secret)));
        }
        assert_eq!(gate.refused(), 0);
    }

    #[test]
    fn a_crowd_that_says_nothing_keeps_nobody_out() {
        const CROWD: usize = 3 * STRANGERS;
        crate::transport::tcp::raise_open_files();
        let secret = Secret::random().unwrap();
        let (listener, address) = listener();
        let mut gate = Gate::new(vec![listener], &secret);
        let crowd: Vec<_> = (0..CROWD).map(|_| TcpStream::connect(address).unwrap()).collect();
        let begin = Moment::now();
        let deadline = begin.after(LONG);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| introduce(address, [3; BYTES], &secret, deadline, &|| true));
            while gate.admit(|_, _| Some(())).unwrap().is_empty() {
                assert!(Moment::now() < deadline, "nobody was let in");
            }
            honest.join().unwrap().unwrap();
        });
        // The connections before it are closed neither earlier nor later than they must be.
        let waited = Moment::now().since(begin);
        assert!((3 * CROWDED_PROOF_LIMIT..2 * PROOF_LIMIT).contains(&waited), "{waited:?}");
        assert!(gate.refused() as usize > CROWD - STRANGERS, "{}", gate.refused());
        drop(crowd);
    }

    /// A listener never answers, and after a moment `go_on` returns false.
    #[test]
    fn who_waits_for_an_answer_leaves_when_the_job_is_over() {
        let secret = Secret::random().unwrap();
        let (_silent, address) = listener();
        let (asked, begin) = (std::cell::Cell::new(0), Moment::now());
        let go_on = || asked.replace(asked.get() + 1) < 5;
        let error = introduce(address, [3; BYTES], &secret, begin.after(LONG), &go_on).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        let waited = Moment::now().since(begin);
        assert!(waited < LONG / 2, "{waited:?}");
        let soon = Moment::now().after(3 * POLL_INTERVAL);
        let error = introduce(address, [3; BYTES], &secret, soon, &|| true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// Set in a test process of its own. Its limits may be changed.
    const ALONE: &str = "ANTIPHON_TEST_ALONE";

    /// Whether this process runs only this test. If not, starts a process that does, and checks its result.
    pub(crate) fn alone(name: &str) -> bool {
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args([name, "--test-threads", "1"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        false
    }

    /// Leaves this process `left` free descriptors. Returns the earlier limits.
    pub(crate) fn limit_descriptors(left: usize) -> Rlimit {
        let used = std::fs::read_dir("/proc/self/fd").unwrap().count() - 1;
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some((used + left) as u64), maximum: before.maximum }).unwrap();
        before
    }

    /// Unauthenticated connections take all descriptors. A connector with the secret gets in nevertheless.
    #[test]
    fn a_process_without_descriptors_lets_others_wait() {
        const CROWD: usize = 96;
        if !alone("a_process_without_descriptors_lets_others_wait") {
            return;
        }
        let secret = Secret::random().unwrap();
        let (listener, address) = listener();
        // The connectors' ends are in this process too, so they take their descriptors before the limit is lowered.
        let mut crowd: Vec<_> = (0..CROWD).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut honest = crowd.pop().unwrap();
        honest.set_nonblocking(true).unwrap();
        limit_descriptors(CROWD / 3);
        let mut gate = Gate::new(vec![listener], &secret);
        let (mut was_full, mut admitted, deadline) = (false, 0, Moment::now().after(LONG));
        while admitted == 0 {
            assert!(Moment::now() < deadline, "nobody was let in");
            admitted += gate.admit(|_, _| Some(())).unwrap().len();
            was_full |= gate.full().is_some();
            answer(&mut honest, &secret);
        }
        assert!(was_full);
    }

    #[test]
    fn of_a_flood_there_are_few_words_and_they_count_all() {
        let mut refusals = Refusals::default();
        let mut told = Vec::new();
        for index in 0..25_000 {
            told.push(refusals.note(Moment::default().after(Duration::from_micros(100) * index)));
        }
        told.push(refusals.untold());
        assert_eq!(told.iter().sum::<u64>(), 25_000);
        assert_eq!(told.iter().filter(|&&told| told > 0).count() as u64, Refusals::SINGLY + 3);
        assert_eq!(refusals.untold(), 0);
    }
}
