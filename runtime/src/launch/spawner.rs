//! Where worker processes come from.
//!
//! The principal type is [`Spawner`]. The kernel can end a process whose launcher is gone, however that ended, and even one
//! that is stopped; but it follows the *thread* that started the process. So one thread starts all workers of a job, and
//! lives as long as the job does.

use crate::clock::Moment;
use crate::control::frame::Inbox;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// How long a process that was killed may take to be gone.
const REMOVAL: Duration = Duration::from_secs(2);

/// Starts workers; once they serve, they do not outlive it.
pub(crate) struct Spawner {
    orders: Sender<(Command, SyncSender<io::Result<Child>>)>,
}

/// A worker that has just been started.
pub(crate) struct Spawned {
    pub child: Child,
    /// The way to it.
    pub stream: UnixStream,
    /// The way back.
    pub inbox: Inbox<UnixStream>,
}

impl Spawner {
    /// One without workers.
    pub(crate) fn new() -> io::Result<Self> {
        let (orders, received) = channel::<(Command, SyncSender<_>)>();
        let deliver = move || {
            for (mut command, answer) in received {
                let child = command.spawn();
                // The command still owns the worker's end of the channel, which must break when the worker is gone.
                drop(command);
                // Who ordered it waits for it.
                let _ = answer.send(child);
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(deliver)?;
        Ok(Self { orders })
    }

    /// Starts a worker, whose standard input is the channel. A message that it does not take for `limit` is an error.
    pub(crate) fn start(&self, mut command: Command, limit: Duration) -> io::Result<Spawned> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_write_timeout(Some(limit))?;
        let inbox = Inbox::new(stream.try_clone()?);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let (answer, born) = sync_channel(1);
        let gone = || io::Error::other("the thread that starts workers is gone");
        self.orders.send((command, answer)).map_err(|_| gone())?;
        let child = born.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => io::Error::new(ErrorKind::TimedOut, format!("it did not start in {limit:?}")),
            RecvTimeoutError::Disconnected => gone(),
        })??;
        Ok(Spawned { child, stream, inbox })
    }
}

/// Ends a worker's process, which may leave by itself for `patience`, and collects it. Whether it has ended: the kernel may
/// keep even a process that was killed, as long as a device or a file system does not answer it.
pub(crate) fn end(child: &mut Child, patience: Duration) -> bool {
    let mut has_ended = || !matches!(child.try_wait(), Ok(None));
    if ends_within(patience, &mut has_ended) {
        return true;
    }
    // It fails only where there is nothing left to end.
    let _ = child.kill();
    ends_within(REMOVAL, || !matches!(child.try_wait(), Ok(None)))
}

fn ends_within(limit: Duration, mut has_ended: impl FnMut() -> bool) -> bool {
    let deadline = Moment::now().after(limit);
    loop {
        if has_ended() {
            return true;
        }
        if Moment::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has the kernel end this process when its [`Spawner`] is gone. Who is gone already has closed the channel.
pub(crate) fn end_with_parent() {
    // Where that is forbidden, the end of the channel still ends every worker that runs.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ended_and_one_that_cannot_be_is_not_waited_for() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        assert!(end(&mut child, Duration::ZERO));
        assert!(end(&mut child, Duration::ZERO), "who has ended has ended");
        let (limit, begin) = (Duration::from_millis(20), Moment::now());
        assert!(!ends_within(limit, || false));
        assert!(Moment::now().since(begin) >= limit);
    }
}
