//! How the processes of a session notice that one of them is gone.
//!
//! The principal type is [`MemberWatch`], a thread of each process that sleeps until something happens. Rank 0's thread has a
//! connection with every other process. A process that ends closes its connection. A process that is stopped sends no signs
//! of life. In both cases rank 0 tells all others the verdict. If rank 0 itself is gone, every process finds that out by
//! itself. A process that leaves in order says so before.
//!
//! ```text
//! member                       rank 0
//!   Hello(where it is)    ───▶
//!                         ◀─── Directory(where all are)
//!   Ready                 ───▶                              its lanes are formed
//!                         ◀─── Go                           all lanes are formed
//!   Beat, End             ───▶                              why all is over, or a communicator, or that it leaves
//!                         ◀─── Beat, End
//! ```

use crate::background;
use crate::clock::Moment;
use crate::control::frame::{Inbox, Outbox};
use crate::launch::machine::Machine;
use crate::session::places::ProcessPlace;
use crate::session::status::{SessionEnd, SessionStatus};
use crate::transport::tcp::ListenAddresses;
use crate::verdict::{Cause, Phase, Verdict};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use topology::Rank;

/// A message that is here is read whole in this time.
pub(super) const READING: Duration = Duration::from_millis(2);

/// Where a rank of a session is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberPlace {
    pub(super) machine: Machine,
    pub(super) process: ProcessPlace,
    /// Where it waits for ranks of other machines.
    pub(super) listening: ListenAddresses,
}

/// What a process says to rank 0's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromMember {
    /// Where it is.
    Hello(MemberPlace),
    /// Its lanes are formed.
    Ready,
    /// It runs.
    Beat,
    /// Something has ended there.
    End(SessionEnd),
}

/// What rank 0's process says to the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToMember {
    /// Who forms a new session after a failure: ranks of the old one, in the order of the new one.
    Group(Vec<Rank>),
    /// Where all ranks are.
    Directory(Vec<MemberPlace>),
    /// All lanes are formed.
    Go,
    /// It runs.
    Beat,
    /// Something has ended.
    End(SessionEnd),
    /// It cannot take part. (What [`Rendezvous`](crate::launch::rendezvous::Rendezvous) says to those whom it turns away.)
    Refused { reason: String },
}

/// The connection of rank 0's process with another process.
pub(super) struct MemberConnection {
    /// The other process's rank.
    pub(super) rank: Rank,
    pub(super) post: Arc<Outbox>,
    pub(super) inbox: Inbox<TcpStream>,
}

/// Watches the other processes until it is dropped.
pub(crate) struct MemberWatch {
    own: Rank,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Who is told that this process leaves in order: rank 0, or on rank 0 all others.
    posts: Vec<Arc<Outbox>>,
}

impl Drop for MemberWatch {
    fn drop(&mut self) {
        self.posts.iter().for_each(|post| say(post, self.own == Rank(0), &SessionEnd::Left(self.own)));
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MemberWatch {
    /// Watches through these connections: on rank 0 those with all others, on another rank the one with rank 0. A process
    /// that says nothing for `silence` is taken for stopped.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub(super) fn new(
        own: Rank,
        lines: Vec<MemberConnection>,
        status: &Arc<SessionStatus>,
        silence: Duration,
    ) -> std::io::Result<Self> {
        let posts: Vec<Arc<Outbox>> = lines.iter().map(|line| line.post.clone()).collect();
        let is_hub = own == Rank(0);
        let told = posts.clone();
        status.on_end(move |end| told.iter().for_each(|post| say(post, is_hub, end)));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let now = Moment::now();
        let lines =
            lines.into_iter().map(|line| WatchedLine { line, heard_at: now, is_open: true, has_left: false }).collect();
        let watcher = Watcher { is_hub, lines, status: status.clone(), silence, stop: stop.clone() };
        let thread = background::spawn("antiphon-watch", move || watcher.run())?;
        Ok(Self { own, stop, thread: Some(thread), posts })
    }
}

fn say(post: &Outbox, is_hub: bool, end: &SessionEnd) {
    // A process that does not hear this notices by itself that others are gone.
    let _ = match is_hub {
        true => post.send(&ToMember::End(end.clone())),
        false => post.send(&FromMember::End(end.clone())),
    };
}

struct WatchedLine {
    line: MemberConnection,
    heard_at: Moment,
    /// Whether the connection has not ended.
    is_open: bool,
    /// Whether the other process has said that it leaves. The reason may follow.
    has_left: bool,
}

/// The thread's part.
struct Watcher {
    is_hub: bool,
    lines: Vec<WatchedLine>,
    status: Arc<SessionStatus>,
    silence: Duration,
    stop: Arc<OwnedFd>,
}

/// What was heard.
enum MemberNews {
    /// It runs.
    Life,
    End(SessionEnd),
}

impl Watcher {
    fn run(mut self) {
        let pause = self.silence / 5;
        let mut beat_at = Moment::now();
        loop {
            let now = Moment::now();
            if now >= beat_at {
                self.beat();
                beat_at = now.after(pause);
            }
            let Some(ready) = self.sleep(beat_at.since(now)) else { break };
            for index in ready {
                self.hear(index);
            }
            self.judge(Moment::now());
        }
        for watched in &self.lines {
            // The other end sees that this process has left.
            let _ = watched.line.inbox.stream().shutdown(Shutdown::Both);
        }
    }

    /// Sleeps for `limit`, or until something is heard: on which lines. `None` if the watch ends.
    fn sleep(&self, limit: Duration) -> Option<Vec<usize>> {
        let open: Vec<usize> = (0..self.lines.len()).filter(|&index| self.lines[index].is_open).collect();
        let stream = |&index: &usize| PollFd::new(self.lines[index].line.inbox.stream(), PollFlags::IN);
        let mut sockets: Vec<_> = open.iter().map(stream).collect();
        sockets.push(PollFd::new(&*self.stop, PollFlags::IN));
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // Interrupted or timed out: nothing was heard.
        let _ = poll(&mut sockets, Some(&timeout));
        let has_spoken = |socket: &PollFd<'_>| !socket.revents().is_empty();
        match sockets.last().is_some_and(has_spoken) {
            true => None,
            false => Some(
                open.into_iter().zip(&sockets).filter(|(_, socket)| has_spoken(socket)).map(|(at, _)| at).collect(),
            ),
        }
    }

    fn beat(&self) {
        for watched in self.lines.iter().filter(|watched| watched.is_open) {
            let post = &watched.line.post;
            // The socket of a process that is gone is read too.
            let _ = if self.is_hub { post.offer(&ToMember::Beat) } else { post.offer(&FromMember::Beat) };
        }
    }

    /// Reads what a process has said.
    fn hear(&mut self, index: usize) {
        loop {
            let watched = &mut self.lines[index];
            let inbox = &mut watched.line.inbox;
            let heard = match self.is_hub {
                true => inbox.receive().map(|said| said.map(MemberNews::of_member)),
                false => inbox.receive().map(|said| said.map(MemberNews::of_hub)),
            };
            watched.heard_at = Moment::now();
            let rank = watched.line.rank;
            match heard {
                Ok(None) => return,
                Ok(Some(MemberNews::Life)) => {}
                Ok(Some(MemberNews::End(end))) => {
                    watched.has_left |= end == SessionEnd::Left(rank);
                    match self.is_hub {
                        true => self.relay(index, &end),
                        false => drop(self.status.hear(&end)),
                    }
                }
                Err(_) => {
                    watched.is_open = false;
                    if !watched.has_left {
                        self.lost(rank);
                    }
                    return;
                }
            }
        }
    }

    /// Rank 0 tells all others what one has said.
    fn relay(&self, from: usize, end: &SessionEnd) {
        if self.status.hear(end) {
            let others = self.lines.iter().enumerate().filter(|(index, watched)| *index != from && watched.is_open);
            others.for_each(|(_, watched)| say(&watched.line.post, true, end));
        }
    }

    /// The connection of a process has ended, which did not say that it leaves. If rank 0 is gone, every other process notices
    /// that by itself.
    fn lost(&self, rank: Rank) {
        self.status.end(Verdict { rank, cause: Cause::Lost, phase: Phase::Work });
    }

    /// Looks for processes that have said nothing for too long.
    fn judge(&mut self, now: Moment) {
        for index in 0..self.lines.len() {
            let watched = &mut self.lines[index];
            if watched.is_open && !watched.has_left && now.since(watched.heard_at) > self.silence {
                watched.is_open = false;
                let verdict = Verdict { rank: watched.line.rank, cause: Cause::Silent, phase: Phase::Work };
                self.status.end(verdict);
            }
        }
    }
}

impl MemberNews {
    fn of_member(said: FromMember) -> Self {
        match said {
            FromMember::End(end) => Self::End(end),
            FromMember::Hello(_) | FromMember::Ready | FromMember::Beat => Self::Life,
        }
    }

    fn of_hub(said: ToMember) -> Self {
        match said {
            ToMember::End(end) => Self::End(end),
            ToMember::Group(_) | ToMember::Directory(_) | ToMember::Go | ToMember::Beat | ToMember::Refused { .. } => {
                Self::Life
            }
        }
    }
}
