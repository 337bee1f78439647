//! Communicators: a rank's connection to the hub, and the operations that it waits for.
//!
//! The principal type is [`Comm`].

use crate::cuda::Driver;
use crate::wire::{CUDA_ERROR, Code, IN_PROGRESS, Kind, REMOTE_ERROR, Reply, Request, SUCCESS, SYSTEM_ERROR, Terms};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Work of one operation: what is asked, and where the data lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) terms: Terms,
    pub(crate) send: u64,
    pub(crate) send_bytes: usize,
    pub(crate) recv: u64,
    pub(crate) recv_bytes: usize,
}

/// What has happened so far.
struct CommState {
    code: Code,
    text: String,
    replies: BTreeMap<u64, Reply>,
    /// The hub's connection has ended.
    is_closed: bool,
    /// Pieces of work in streams.
    outstanding: u64,
}

/// One rank of a communicator.
pub(crate) struct Comm {
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
    /// Requests are written as a whole.
    socket: OnceLock<Mutex<TcpStream>>,
    /// The same socket, to end it.
    ending: OnceLock<TcpStream>,
    state: Mutex<CommState>,
    changed: Condvar,
    numbers: AtomicU64,
    /// A number that all ranks know; groups work on communicators in the order of these.
    nonce: OnceLock<u64>,
    pub(crate) is_blocking: bool,
    /// Groups that are not in their streams yet, where nothing blocks.
    launching: AtomicU64,
    groups: AtomicU64,
    /// Peers with which something was exchanged before, and kinds of operations.
    connected: Mutex<BTreeSet<(u8, i32)>>,
    is_aborted: AtomicBool,
    pub(crate) is_finalized: AtomicBool,
}

/// How long anything may wait.
pub(crate) fn limit() -> Duration {
    let text = std::env::var("FAKE_NCCL_LIMIT_MS").ok();
    Duration::from_millis(text.and_then(|text| text.parse().ok()).unwrap_or(20_000))
}

/// The fault that `FAKE_NCCL_FAULT` wants of a rank's operation, or of a group with the kind `launch`: `RANK:NUMBER:KIND`. A communicator
/// counts its own operations and groups, from 1. The kind `stall-once` happens once in a process.
fn fault_of(rank: usize, number: u64) -> Option<String> {
    let text = std::env::var("FAKE_NCCL_FAULT").ok()?;
    let mut parts = text.split(':');
    let is_it = parts.next()?.parse() == Ok(rank) && parts.next()?.parse() == Ok(number);
    is_it.then(|| parts.next().unwrap_or("error").to_owned())
}

static HAS_STALLED: AtomicBool = AtomicBool::new(false);

impl Comm {
    pub(crate) fn new(ranks: usize, rank: usize, is_blocking: bool) -> Arc<Self> {
        let state = CommState {
            code: IN_PROGRESS,
            text: String::new(),
            replies: BTreeMap::new(),
            is_closed: false,
            outstanding: 0,
        };
        Arc::new(Self {
            ranks,
            rank,
            socket: OnceLock::new(),
            ending: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            numbers: AtomicU64::new(1),
            nonce: OnceLock::new(),
            is_blocking,
            launching: AtomicU64::new(0),
            groups: AtomicU64::new(1),
            connected: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
        })
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.nonce.get().copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, CommState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of everything so far.
    pub(crate) fn code(&self) -> Code {
        match self.state().code {
            SUCCESS if self.launching.load(Ordering::Acquire) > 0 => IN_PROGRESS,
            code => code,
        }
    }

    /// With `FAKE_NCCL_CONNECT`: whether some of these operations need connections that are not there yet.
    pub(crate) fn connects(&self, operations: &[Operation]) -> bool {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        let new = operations.iter().filter(|of| connected.insert((of.terms.kind as u8, of.terms.peer))).count();
        new > 0 && std::env::var_os("FAKE_NCCL_CONNECT").is_some()
    }

    /// Whether the next group is to fail before it is in its stream.
    pub(crate) fn fails_to_launch(&self) -> bool {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        fault_of(self.rank, number).as_deref() == Some("launch")
    }

    /// A group will be in its stream later.
    pub(crate) fn begin_launch(&self) {
        self.launching.fetch_add(1, Ordering::AcqRel);
    }

    /// It is there now, or something was wrong.
    pub(crate) fn end_launch(&self, code: Code) {
        if code != SUCCESS {
            self.fail(code, "a group cannot be put into its stream");
        }
        self.launching.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn text(&self) -> String {
        self.state().text.clone()
    }

    fn fail(&self, code: Code, text: &str) {
        let mut state = self.state();
        if [SUCCESS, IN_PROGRESS].contains(&state.code) {
            (state.code, state.text) = (code, text.to_owned());
        }
        self.changed.notify_all();
    }

    /// Connects to the hub, and waits for all ranks.
    pub(crate) fn join(self: &Arc<Self>, port: u16, nonce: u64) {
        let begin = Instant::now();
        let _ = self.nonce.set(nonce);
        let mut socket = match TcpStream::connect(("127.0.0.1", port)) {
            Ok(socket) => socket,
            Err(error) => return self.fail(SYSTEM_ERROR, &format!("the process of the unique id is gone: {error}")),
        };
        let hello = [nonce, self.ranks as u64, self.rank as u64].map(u64::to_le_bytes).concat();
        let clones = socket.try_clone().and_then(|reader| Ok((reader, socket.try_clone()?)));
        let (mut reader, ending) = match clones.and_then(|clones| socket.write_all(&hello).map(|()| clones)) {
            Ok(clones) => clones,
            Err(error) => return self.fail(SYSTEM_ERROR, &error.to_string()),
        };
        let _ = (self.socket.set(Mutex::new(socket)), self.ending.set(ending));
        let comm = self.clone();
        std::thread::spawn(move || {
            while let Ok(reply) = Reply::read(&mut reader) {
                comm.state().replies.insert(reply.number, reply);
                comm.changed.notify_all();
            }
            comm.state().is_closed = true;
            comm.changed.notify_all();
        });
        match self.reply(0, begin) {
            Ok(_) => {
                let mut state = self.state();
                if state.code == IN_PROGRESS {
                    state.code = SUCCESS;
                }
            }
            Err((code, text)) => self.fail(code, &format!("not all {} ranks have come: {text}", self.ranks)),
        }
    }

    /// Waits for the answer to a request.
    fn reply(&self, number: u64, begin: Instant) -> Result<Reply, (Code, String)> {
        let mut state = self.state();
        loop {
            if let Some(reply) = state.replies.remove(&number) {
                return match reply.code {
                    SUCCESS => Ok(reply),
                    code => Err((code, String::from_utf8_lossy(&reply.data).into_owned())),
                };
            }
            if self.is_aborted.load(Ordering::Acquire) {
                return Err((REMOTE_ERROR, "the communicator was aborted".to_owned()));
            }
            if state.is_closed {
                return Err((REMOTE_ERROR, "the process of the unique id is gone".to_owned()));
            }
            let Some(left) = limit().checked_sub(begin.elapsed()) else {
                return Err((REMOTE_ERROR, format!("rank {} has waited for {:?}", self.rank, limit())));
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Counts work that was put into a stream, until [`Self::run`] has done it.
    pub(crate) fn expect_work(&self) {
        self.state().outstanding += 1;
    }

    /// Does the operations of a group, all at the same time.
    pub(crate) fn run(&self, operations: &[Operation], driver: &Driver) {
        // Work may be done while a later group is on its way.
        let is_right = self.state().code == SUCCESS;
        if is_right && let Err((code, text)) = self.exchange(operations, driver) {
            self.fail(code, &text);
        }
        self.state().outstanding -= 1;
        self.changed.notify_all();
    }

    fn exchange(&self, operations: &[Operation], driver: &Driver) -> Result<(), (Code, String)> {
        let memory = |what: &str| (CUDA_ERROR, format!("rank {}: {what} is no memory of the device", self.rank));
        let (begin, clock) = (Instant::now(), driver.clock());
        let mut numbers = Vec::new();
        for operation in operations {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            self.fault(number, begin)?;
            let data = driver.read(operation.send, operation.send_bytes).ok_or_else(|| memory("what is sent"))?;
            let request = Request { number, terms: operation.terms, begin: clock, data };
            self.send(&request)?;
            numbers.push(number);
        }
        for (operation, number) in operations.iter().zip(numbers) {
            let Reply { data, end, .. } = self.reply(number, begin)?;
            driver.advance(end);
            if data.len() != operation.recv_bytes {
                return Err((SYSTEM_ERROR, format!("{} bytes came, and not {}", data.len(), operation.recv_bytes)));
            }
            driver.write(operation.recv, &data).ok_or_else(|| memory("where it is received"))?;
        }
        Ok(())
    }

    fn send(&self, request: &Request) -> Result<(), (Code, String)> {
        let Some(socket) = self.socket.get() else { return Err((SYSTEM_ERROR, "no connection".to_owned())) };
        let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        request.write(&mut *socket).map_err(|error| (REMOTE_ERROR, error.to_string()))
    }

    /// Asks for something at once, after all work in streams.
    pub(crate) fn ask(&self, terms: Terms, data: Vec<u8>) -> Result<Vec<u8>, Code> {
        self.drain();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let sent = self.send(&Request { number, terms, begin: 0, data });
        let reply = sent.and_then(|()| self.reply(number, Instant::now())).map(|reply| reply.data);
        reply.map_err(|(code, text)| {
            self.fail(code, &text);
            code
        })
    }

    /// Does what `FAKE_NCCL_FAULT` wants.
    fn fault(&self, number: u64, begin: Instant) -> Result<(), (Code, String)> {
        match fault_of(self.rank, number).as_deref() {
            None => Ok(()),
            Some("exit") => std::process::exit(86),
            // Nobody answers this.
            Some("stall") => self.reply(u64::MAX, begin).map(drop),
            Some("stall-once") if HAS_STALLED.swap(true, Ordering::AcqRel) => Ok(()),
            Some("stall-once") => self.reply(u64::MAX, begin).map(drop),
            Some("launch") => Ok(()),
            Some(_) => Err((SYSTEM_ERROR, format!("rank {} fails in operation {number}, as it was told", self.rank))),
        }
    }

    /// Waits until no work is in streams, at most as long as anything may wait.
    pub(crate) fn drain(&self) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), limit(), |state| state.outstanding > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.outstanding == 0
    }

    /// Asks for a smaller communicator, which may also be done where no operation works any more.
    pub(crate) fn ask_anyway(&self, terms: Terms, data: Vec<u8>) -> Result<Vec<u8>, Code> {
        let is_aborted = self.is_aborted.swap(false, Ordering::AcqRel);
        let told = self.ask(terms, data);
        self.is_aborted.store(is_aborted, Ordering::Release);
        told
    }

    /// Ends what is in streams, and waits until nothing is. No operation works any more.
    pub(crate) fn revoke(&self) {
        self.is_aborted.store(true, Ordering::Release);
        drop(self.state());
        self.changed.notify_all();
        self.drain();
        let mut state = self.state();
        (state.code, state.text) = (SUCCESS, String::new());
    }

    /// Ends the connection, and all that waits for it.
    pub(crate) fn close(&self, is_abort: bool) {
        self.is_aborted.fetch_or(is_abort, Ordering::AcqRel);
        if !is_abort && self.code() == SUCCESS {
            let terms = Terms { kind: Kind::Leave, count: 0, dtype: 0, op: 0, peer: 0 };
            // If the hub is gone, nobody has to know.
            let _ = self.send(&Request { number: u64::MAX, terms, begin: 0, data: Vec::new() });
        }
        if let Some(socket) = self.ending.get() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(self.state());
        self.changed.notify_all();
    }
}
