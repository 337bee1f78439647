//! How a worker notices that its launcher is gone or stopped.
//!
//! The principal function is [`listen`], a worker's control thread. A launcher that is gone closes its channel. A
//! stopped launcher does not, and would block its workers. So [`Parent`] checks whether it runs.

use crate::clock::Moment;
use crate::control::frame::Inbox;
use crate::control::messages::WorkerCommand;
use crate::control::worker_state::BACKSTOP;
use crate::memory::segment::Segment;
use crate::verdict::{Cause, Verdict};
use rustix::process::{Pid, getppid};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use topology::Rank;

/// How often to check.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The control thread. It forwards commands and gives signs of life, until the launcher is gone or has been stopped for
/// longer than `limit`, or than the limit of a later command.
pub(super) fn listen(
    mut inbox: Inbox<UnixStream>,
    segment: &Segment,
    (rank, mut limit): (Rank, Duration),
    commands: Sender<WorkerCommand>,
) {
    let mut parent = Parent::new(Moment::now());
    let gone = loop {
        match inbox.receive() {
            Ok(Some(command)) => {
                if let WorkerCommand::Prepare { limit_ms, .. } = &command {
                    limit = Duration::from_millis(*limit_ms);
                }
                // No receiver is left once the main thread has returned.
                if commands.send(command).is_err() {
                    return;
                }
            }
            Ok(None) if parent.stopped(Moment::now()) > limit => break ErrorKind::TimedOut,
            Ok(None) => {}
            Err(error) => break error.kind(),
        }
        segment.activity.beats(rank).fetch_add(1, Ordering::Relaxed);
    };
    let is_orphaned = matches!(gone, ErrorKind::UnexpectedEof | ErrorKind::TimedOut);
    let cause = if is_orphaned { Cause::Orphaned } else { Cause::Failed };
    segment.verdict.abandon(Verdict { rank, cause, phase: segment.activity.phase(rank) });
    // Ends a wait for the next command.
    drop(commands);
    // The main thread may be busy in a loader, and no process is left that could end it.
    std::thread::sleep(BACKSTOP);
    std::process::exit(1);
}

/// The parent of this process.
struct Parent {
    process: Option<Pid>,
    /// How long it has been stopped while this process ran.
    stopped: Duration,
    looked: Moment,
}

impl Parent {
    /// The parent that this process has now.
    fn new(now: Moment) -> Self {
        Self { process: getppid(), stopped: Duration::ZERO, looked: now }
    }

    /// How long the parent has been stopped by now. Time in which this process did not run does not count, so a user
    /// may stop and continue a whole job with its workers.
    fn stopped(&mut self, now: Moment) -> Duration {
        let passed = now.since(self.looked);
        if passed >= POLL_INTERVAL {
            self.looked = now;
            self.stopped =
                if self.is_stopped() { self.stopped + passed.min(2 * POLL_INTERVAL) } else { Duration::ZERO };
        }
        self.stopped
    }

    fn is_stopped(&self) -> bool {
        let Some(process) = self.process else { return false };
        let path = format!("/proc/{}/stat", process.as_raw_nonzero());
        // The state follows the name. The name is in brackets and may contain any character.
        let words = std::fs::read_to_string(path).unwrap_or_default();
        words.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, kill_process};
    use std::process::Stdio;

    #[test]
    fn only_time_of_a_stopped_process_counts_and_only_while_this_one_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let process = Pid::from_child(&child);
        let at = |millis| Moment(1).after(Duration::from_millis(millis));
        let mut parent = Parent { process: Some(process), ..Parent::new(at(0)) };
        assert_eq!(parent.stopped(at(300)), Duration::ZERO);
        kill_process(process, Signal::STOP).unwrap();
        while !parent.is_stopped() {
            std::thread::yield_now();
        }
        assert_eq!(parent.stopped(at(600)), Duration::from_millis(300));
        // Too soon to check again; then this process did not run for a minute.
        assert_eq!(parent.stopped(at(700)), Duration::from_millis(300));
        assert_eq!(parent.stopped(at(60_000)), Duration::from_millis(300) + 2 * POLL_INTERVAL);
        kill_process(process, Signal::CONT).unwrap();
        while parent.is_stopped() {
            std::thread::yield_now();
        }
        assert_eq!(parent.stopped(at(61_000)), Duration::ZERO);
        child.kill().unwrap();
        child.wait().unwrap();
        // A parent that is gone does not count as stopped; the end of the channel shows that.
        assert_eq!(parent.stopped(at(62_000)), Duration::ZERO);
    }
}
