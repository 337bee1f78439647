//! Threads, sockets and processes inside a host, which see only the host's network.

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs `work` on a thread inside a namespace. Sockets that it opens stay in the namespace, whichever thread uses them
/// later.
pub(crate) fn enter<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_to(namespace);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread into a namespace, where it must stay until it ends.
pub(super) fn move_to(namespace: &str) {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    let entered = File::open(format!("/run/netns/{namespace}"))
        .and_then(|file| Ok(rustix::thread::move_into_link_name_space(file.as_fd(), kind)?));
    entered.unwrap_or_else(|error| panic!("entering {namespace}: {error}"));
}

/// A process inside a host, with its children; they are killed when this is dropped.
pub(crate) struct Guest {
    child: Child,
    /// The name for failures.
    name: String,
    stdout: Heard,
    stderr: Heard,
}

/// How a guest ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Guest {
    /// Starts a command on this computer.
    pub(crate) fn here(command: Command) -> Self {
        Self::start(command, |command| command.spawn())
    }

    /// Starts a command inside a namespace.
    pub(super) fn inside(namespace: &str, command: Command) -> Self {
        Self::start(command, |command| enter(namespace, || command.spawn()))
    }

    fn start(mut command: Command, spawn: impl FnOnce(&mut Command) -> io::Result<Child>) -> Self {
        // In its own process group, so that its children end with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = spawn(&mut command).unwrap_or_else(|error| panic!("{name}: {error}"));
        let stdout = Heard::from(child.stdout.take().expect("a pipe"));
        let stderr = Heard::from(child.stderr.take().expect("a pipe"));
        Self { child, name, stdout, stderr }
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end, which must come within `limit`.
    pub(crate) fn wait(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let ended = self.ends_before(deadline);
        // Its children hold the pipes as well. Until it is waited for, no other process gets its number.
        self.kill();
        let status = self.child.wait().expect("a child can be waited for");
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
        assert!(ended, "{} did not end within {limit:?}\n{stdout}{stderr}", self.name);
        Ended { status, stdout, stderr }
    }

    /// Waits until `words` are on stdout, within `limit`.
    pub(crate) fn says(&self, words: &str, limit: Duration) {
        let said = self.stdout.until(limit, |text, ended| ended || text.contains(words));
        let told = self.stdout.all();
        assert!(said && told.contains(words), "{} did not say `{words}`: {told}{}", self.name, self.stderr.all());
    }

    fn ends_before(&self, deadline: Instant) -> bool {
        let Ok(process) = pidfd_open(self.id(), PidfdFlags::empty()) else { return true };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut wait = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut wait, Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("waiting for {}: {error}", self.name),
            }
        }
    }

    fn kill(&self) {
        // The group may have ended already.
        let _ = kill_process_group(self.id(), Signal::KILL);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // After it was waited for, another process may have its number.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            drop(self.child.wait());
        }
    }
}

/// The text that a thread reads from a pipe.
struct Heard(Arc<(Mutex<Pipe>, Condvar)>);

#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    ended: bool,
}

impl Heard {
    fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(Pipe::default()), Condvar::new()));
        let heard = shared.clone();
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            loop {
                // After a read error, the text so far is the best there is.
                let length = pipe.read(&mut piece).unwrap_or(0);
                let mut state = heard.0.lock().unwrap_or_else(PoisonError::into_inner);
                state.bytes.extend_from_slice(&piece[..length]);
                state.ended = length == 0;
                heard.1.notify_all();
                if state.ended {
                    return;
                }
            }
        });
        Self(shared)
    }

    /// Waits until `done` is true for the text so far and for whether the pipe has ended.
    fn until(&self, limit: Duration, mut done: impl FnMut(&str, bool) -> bool) -> bool {
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |state: &mut Pipe| !done(&String::from_utf8_lossy(&state.bytes), state.ended);
        let (_state, timeout) =
            self.0.1.wait_timeout_while(state, limit, waiting).unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// The whole output. A process that outlived its group may keep the pipe open; it is not waited for.
    fn all(&self) -> String {
        self.until(Duration::from_secs(1), |_, ended| ended);
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&state.bytes).into_owned()
    }
}

impl Ended {
    /// Returns itself, if the process was successful; fails otherwise.
    pub(crate) fn ok(self) -> Self {
        assert!(self.status.success(), "{}\nstdout: {}\nstderr: {}", self.status, self.stdout, self.stderr);
        self
    }
}
