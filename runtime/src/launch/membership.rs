//! How the processes of a session notice that one of them is gone.
//!
//! The principal type is [`MemberWatch`], a thread of each process that sleeps until something happens. Rank 0's thread has a
//! connection with every other process. A process that ends closes its connection. A process that is stopped sends no signs
//! of life. In both cases rank 0 tells all others the verdict. If rank 0 itself is gone, every process finds that out by
//! itself. A process that leaves in order says so before. What follows from what was heard is decided in [`WatchState`].
//!
//! ```text
//! member                       rank 0
//!   Hello(where it is)    ───▶
//!                         ◀─── Directory(where all are)
//!   Ready                 ───▶                              its lanes are formed
//!                         ◀─── Go                           all lanes are formed
//!   Failed                ───▶                              instead of Hello or Ready: it cannot take part
//!                         ◀─── Refused                      instead of Directory or Go: there will be no session
//!   Beat, End             ───▶                              why all is over, or a communicator, or that it leaves
//!                         ◀─── Beat, End
//! ```

use crate::background;
use crate::clock::Moment;
use crate::control::frame::{Inbox, Outbox};
use crate::launch::machine::Machine;
use crate::launch::watch_state::WatchState;
use crate::session::places::Directory;
use crate::session::status::{SessionEnd, SessionStatus};
use crate::transport::network::TransportAddress;
use crate::transport::shared::port::rank_memory::ProcessPlace;
use crate::transport::tcp::ListenAddresses;
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
    pub(super) addresses: MemberAddresses,
}

/// Where a rank waits for others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberAddresses {
    /// For those of other machines, while the session is formed.
    pub(super) session: TransportAddress,
    /// For those that are left after a failure.
    pub(super) survivors: ListenAddresses,
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
    /// It cannot take part.
    Failed { reason: String },
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
    /// It cannot take part, or there will be no session. (What [`Rendezvous`](crate::launch::rendezvous::Rendezvous) says
    /// to those whom it turns away.)
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
        (status, directory): (&Arc<SessionStatus>, Arc<Directory>),
        silence: Duration,
    ) -> std::io::Result<Self> {
        let posts: Vec<Arc<Outbox>> = lines.iter().map(|line| line.post.clone()).collect();
        let is_hub = own == Rank(0);
        let told = posts.clone();
        status.on_end(move |end| told.iter().for_each(|post| say(post, is_hub, end)));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let state = WatchState::new(own, lines.iter().map(|line| line.rank), silence, Moment::now());
        let (status, stop_too) = (status.clone(), stop.clone());
        let watcher = Watcher { is_hub, lines, state, status, directory, silence, stop: stop_too };
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

/// The thread's part.
struct Watcher {
    is_hub: bool,
    lines: Vec<MemberConnection>,
    state: WatchState,
    status: Arc<SessionStatus>,
    directory: Arc<Directory>,
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
            let look_at = self.state.next_look().map_or(beat_at, |look| look.min(beat_at));
            let Some(ready) = self.sleep(look_at.since(now)) else { break };
            for index in ready {
                self.hear(index);
            }
            let Self { state, status, directory, .. } = &mut self;
            state.judge(Moment::now(), status, &|rank| directory.has_died(rank));
        }
        for line in &self.lines {
            // The other end sees that this process has left.
            let _ = line.inbox.stream().shutdown(Shutdown::Both);
        }
    }

    /// Sleeps for `limit`, or until something is heard: on which lines. `None` if the watch ends.
    fn sleep(&self, limit: Duration) -> Option<Vec<usize>> {
        let open: Vec<usize> = (0..self.lines.len()).filter(|&index| self.state.is_open(index)).collect();
        let stream = |&index: &usize| PollFd::new(self.lines[index].inbox.stream(), PollFlags::IN);
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
        for (_, line) in self.lines.iter().enumerate().filter(|(index, _)| self.state.is_open(*index)) {
            // The socket of a process that is gone is read too.
            let _ = if self.is_hub { line.post.offer(&ToMember::Beat) } else { line.post.offer(&FromMember::Beat) };
        }
    }

    /// Reads what a process has said. Rank 0 passes on what has ended.
    fn hear(&mut self, index: usize) {
        loop {
            let inbox = &mut self.lines[index].inbox;
            let heard = match self.is_hub {
                true => inbox.receive().map(|said| said.map(MemberNews::of_member)),
                false => inbox.receive().map(|said| said.map(MemberNews::of_hub)),
            };
            let now = Moment::now();
            match heard {
                Ok(None) => return,
                Ok(Some(MemberNews::Life)) => self.state.hear(index, None, (&self.status, now), |_| {}),
                Ok(Some(MemberNews::End(end))) => {
                    let pass_on = |other: usize| say(&self.lines[other].post, true, &end);
                    self.state.hear(index, Some(&end), (&self.status, now), pass_on);
                }
                Err(_) => return self.state.ended(index, now),
            }
        }
    }
}

impl MemberNews {
    fn of_member(said: FromMember) -> Self {
        match said {
            FromMember::End(end) => Self::End(end),
            FromMember::Hello(_) | FromMember::Ready | FromMember::Beat | FromMember::Failed { .. } => Self::Life,
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
