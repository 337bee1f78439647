//! Starts worker processes.
//!
//! The principal type is [`Spawner`]. The kernel can kill a process when its parent ends in any way, even a stopped
//! process. But for this it watches the *thread* that started the process. So one thread starts all workers of a job,
//! and lives as long as the job does.

use crate::clock::Moment;
use crate::control::frame::Inbox;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// How long a killed process may take to end.
const REMOVAL: Duration = Duration::from_secs(2);

/// Starts workers. A worker that serves ends together with its spawner.
pub(crate) struct Spawner {
    orders: Sender<(Command, SyncSender<io::Result<Child>>)>,
}

/// A worker that was just started.
pub(crate) struct Spawned {
    pub child: Child,
    /// The channel to the worker.
    pub stream: UnixStream,
    /// The channel from the worker.
    pub inbox: Inbox<UnixStream>,
}

impl Spawner {
    /// A spawner without workers.
    pub(crate) fn new() -> io::Result<Self> {
        let (orders, received) = channel::<(Command, SyncSender<_>)>();
        let deliver = move || {
            for (mut command, answer) in received {
                let child = command.spawn();
                // The command still owns the worker's end of the channel. The channel must break when the worker ends.
                drop(command);
                // It fails only if the caller has given up.
                let _ = answer.send(child);
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(deliver)?;
        Ok(Self { orders })
    }

    /// Starts a worker whose standard input is the channel. A message that it does not take for `limit` is an error.
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

/// Ends a worker's process and collects it. The process may leave by itself within `patience`. Returns whether it has
/// ended: the kernel keeps even a killed process as long as a device or a file system does not answer it.
pub(crate) fn end(child: &mut Child, patience: Duration) -> bool {
    let mut has_ended = || !matches!(child.try_wait(), Ok(None));
    if ends_within(patience, &mut has_ended) {
        return true;
    }
    // It fails only if the process has already ended.
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

/// Lets the kernel kill this process when its [`Spawner`] ends. If it has already ended, the channel is closed.
pub(crate) fn end_with_parent() {
    // If this is forbidden, the end of the channel still ends every worker that runs.
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
