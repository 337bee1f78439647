//! An agent: looks after one rank whose process the coordinator did not start.
//!
//! The principal function is [`attend`]. An agent joins at the rendezvous, starts its worker over a socket pair as a
//! launcher does, and passes messages between coordinator and worker. It sends signs of life, publishes the
//! coordinator's verdicts in its machine's segment, and ends its worker, so even a stuck worker can be replaced. The
//! first agent of a machine makes the machine's shared memory and stores the files that its workers read. The other
//! agents find both under `/proc`.

use crate::clock::Moment;
use crate::control::agent_state::{AgentAction, AgentEvent, AgentOutcome, AgentState};
use crate::control::frame::{Inbox, Outbox, sealed, send, send_descriptor};
use crate::control::judge::BEAT;
use crate::control::messages::{Answer, EpochSetup, FromAgent, ToAgent, Welcome, WorkerTerms};
use crate::error::{RunError, RunResult};
use crate::launch::epoch_setup::data_secret;
use crate::launch::files::Receiving;
use crate::launch::rendezvous::Rendezvous;
use crate::launch::spawner::{Spawned, Spawner, end};
use crate::memory::segment::Segment;
use crate::numbers::Epoch;
use crate::verdict::{Phase, Verdict};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How much later than its channel a worker's process may end.
pub(super) const ENDING: Duration = Duration::from_millis(200);

/// Serves a job as a rank other than 0, until the coordinator ends it. `command` gives the workers' command.
///
/// # Errors
/// [`RunError::Unreachable`] if the coordinator cannot be joined within `limit`; the verdict that ended the job; or
/// [`RunError::Abandoned`] if the coordinator is gone.
pub fn attend(at: &Rendezvous, limit: Duration, command: &mut dyn FnMut() -> Command) -> RunResult<()> {
    let spawner = Spawner::new().map_err(RunError::system("preparing to start workers"))?;
    let proven = at.reach(limit)?;
    let (post, inbox) = sealed(proven, false, limit).map_err(RunError::system("preparing the control connection"))?;
    inbox.stream().set_read_timeout(Some(BEAT)).map_err(RunError::system("preparing the control connection"))?;
    let state = AgentState::new(at.rank, at.ranks, Moment::now(), limit);
    let post = Arc::new(post);
    Agent { at, post, command, spawner, state, files: BTreeMap::new(), arriving: None, epoch: None }.serve(inbox)
}

/// A worker, as its agent holds it.
struct WorkerHandle {
    child: Arc<Mutex<Child>>,
    stream: UnixStream,
}

/// The state of one epoch.
struct AgentEpoch {
    job: [u8; 32],
    segment: Segment,
    /// Whether this agent made the segment.
    leads: bool,
    worker: Option<WorkerHandle>,
    /// Ends the relay thread.
    over: Arc<AtomicBool>,
}

struct Agent<'a> {
    at: &'a Rendezvous,
    post: Arc<Outbox>,
    command: &'a mut dyn FnMut() -> Command,
    spawner: Spawner,
    state: AgentState,
    files: BTreeMap<u64, Receiving>,
    arriving: Option<(u64, Receiving)>,
    epoch: Option<AgentEpoch>,
}

impl Agent<'_> {
    fn serve(mut self, mut inbox: Inbox<std::net::TcpStream>) -> RunResult<()> {
        loop {
            let event = match inbox.receive() {
                Ok(Some(message)) => AgentEvent::Said(message),
                Ok(None) => AgentEvent::Quiet,
                Err(error) => AgentEvent::UnreachableAddresses(error),
            };
            for action in self.state.step(Moment::now(), event) {
                match action {
                    AgentAction::Obey(message) => self.obey(message).inspect_err(|error| self.excuse(error))?,
                    AgentAction::Pronounce(verdict) => self.pronounce(verdict),
                    AgentAction::EndWorker(patience) => self.end_worker(patience),
                    AgentAction::Beat => self.beat(),
                    AgentAction::Leave(outcome) => return self.ends_with(outcome),
                }
            }
        }
    }

    /// An error is ignored: a broken connection is noticed where messages are received.
    fn say(&self, message: &FromAgent) {
        let _ = self.post.send(message);
    }

    /// Reports why this rank fails.
    fn excuse(&self, error: &RunError) {
        let answer = Answer::Failed { phase: Phase::Prepare, reason: error.chain(), peers: Vec::new() };
        self.say(&FromAgent::Answer { epoch: self.state.epoch(), answer });
    }

    /// Does what the coordinator says in this epoch.
    fn obey(&mut self, message: ToAgent) -> RunResult<()> {
        match message {
            ToAgent::Ping { at, activity } => {
                self.say(&FromAgent::Pong { at, here: Moment::now() });
                // The coordinator's own segment already contains this activity.
                if let Some(epoch) = self.epoch.as_ref().filter(|epoch| epoch.leads) {
                    epoch.segment.activity.heard_of(activity);
                }
            }
            ToAgent::SetUp { epoch, setup } => self.set_up(epoch, setup)?,
            ToAgent::Enlist { terms, .. } => self.enlist(terms)?,
            ToAgent::Order { command, .. } => self.order(&command),
            ToAgent::Release { round, start, .. } => {
                if let Some(epoch) = &self.epoch {
                    epoch.segment.barrier.release(round, start);
                }
            }
            ToAgent::Keep { file, piece, is_last } => self.keep(file, &piece, is_last)?,
            ToAgent::Forget { files } => self.files.retain(|file, _| !files.contains(file)),
            // Other actions follow from these messages, so they never arrive here.
            ToAgent::Verdict { .. } | ToAgent::End | ToAgent::Refused { .. } => {}
        }
        Ok(())
    }

    /// Begins an epoch: makes the machine's shared memory, or opens it.
    fn set_up(&mut self, number: Epoch, setup: EpochSetup) -> RunResult<()> {
        let EpochSetup { job, segment: shape, place, absent, .. } = setup;
        let segment = match place {
            None => Segment::create(shape)?,
            Some(place) => {
                let file = place.open(OFlags::RDWR).map_err(RunError::system("opening the machine's shared memory"))?;
                Segment::open(OwnedFd::from(file), shape)?
            }
        };
        let over = Arc::new(AtomicBool::new(false));
        let made = if place.is_none() {
            segment.barrier.excuse(absent);
            self.start_relay(number, &segment, &over)?;
            Some(segment.place()?)
        } else {
            None
        };
        self.epoch = Some(AgentEpoch { job, segment, leads: made.is_some(), worker: None, over });
        let answer = Answer::IsSetUp { machine: self.at.machine.name().to_owned(), segment: made };
        self.say(&FromAgent::Answer { epoch: number, answer });
        Ok(())
    }

    fn start_relay(&self, epoch: Epoch, segment: &Segment, over: &Arc<AtomicBool>) -> RunResult<()> {
        let (post, segment, over) = (self.post.clone(), segment.clone(), over.clone());
        let carry = move || {
            segment.barrier.relay(&over, |round, lead| {
                let _ = post.send(&FromAgent::Arrived { epoch, round, lead_ns: lead.as_nanos() as u64 });
            });
        };
        let relay = std::thread::Builder::new().name("relay".to_owned()).spawn(carry);
        relay.map(drop).map_err(RunError::system("starting the relay"))
    }

    /// Starts the worker.
    fn enlist(&mut self, mut terms: WorkerTerms) -> RunResult<()> {
        let Some(epoch) = &mut self.epoch else { return Ok(()) };
        let reached = self.post.address().map_err(RunError::system("asking for this machine's address"))?;
        // The terms contain the address at which rank 0 is reached.
        let options = &mut terms.options;
        let zero = options.interfaces.first().copied();
        (options.interfaces, options.spare_interfaces) = self.at.ways(Some(reached), zero)?;
        // Only once for each machine.
        if terms.first_here {
            self.at.say_unused(&options.interfaces);
        }
        let secret = data_secret(&self.at.secret, &epoch.job, self.state.epoch());
        let (limit, number) = (options.ready_limit.max(BEAT), self.state.epoch());
        let (post, segment) = (self.post.clone(), &epoch.segment);
        let start = || {
            let Spawned { child, stream, inbox } = self.spawner.start((self.command)(), limit)?;
            let child = Arc::new(Mutex::new(child));
            let watched = child.clone();
            let hear = move || hear(inbox, &watched, &post, number);
            std::thread::Builder::new().name("worker".to_owned()).spawn(hear)?;
            // If the worker is already gone, the thread that reads its answers notices it.
            let _ = send_descriptor(&stream, segment.descriptor()).and_then(|()| {
                send(&stream, &crate::control::messages::WorkerCommand::Welcome(Welcome { terms, secret }))
            });
            Ok(WorkerHandle { child, stream })
        };
        let worker: io::Result<WorkerHandle> = start();
        epoch.worker = Some(worker.map_err(RunError::system("starting a worker"))?);
        Ok(())
    }

    /// Passes an order to the worker. A worker that does not take an order cannot take later ones, so it is ended.
    fn order(&mut self, command: &crate::control::messages::WorkerCommand) {
        let Some(worker) = self.epoch.as_ref().and_then(|epoch| epoch.worker.as_ref()) else { return };
        match send(&worker.stream, command) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                let reason = format!("its worker did not take an order: {error}");
                let answer = Answer::Failed { phase: Phase::Prepare, reason, peers: Vec::new() };
                self.say(&FromAgent::Answer { epoch: self.state.epoch(), answer });
                self.end_worker(Duration::ZERO);
            }
            // If the worker is gone, the thread that reads its answers notices it.
            _ => {}
        }
    }

    fn beat(&self) {
        let Some(epoch) = &self.epoch else { return };
        let (segment, rank) = (&epoch.segment, self.at.rank);
        let beats = segment.activity.beats(rank).load(Ordering::Relaxed);
        let [moves, progress] =
            [segment.activity.moves(rank), segment.activity.progress(rank)].map(|word| word.load(Ordering::Relaxed));
        self.say(&FromAgent::Beat {
            epoch: self.state.epoch(),
            beats,
            moves,
            progress,
            phase: segment.activity.phase(rank),
        });
    }

    /// Publishes a verdict on this machine. The worker may still report its error.
    fn pronounce(&self, verdict: Verdict) {
        let Some(epoch) = &self.epoch else { return };
        epoch.segment.verdict.pronounce(verdict);
        epoch.over.store(true, Ordering::Relaxed);
        if let Some(worker) = &epoch.worker {
            // It fails only if the worker is gone.
            let _ = worker.stream.shutdown(Shutdown::Write);
        }
    }

    fn keep(&mut self, file: u64, piece: &str, is_last: bool) -> RunResult<()> {
        let mut arriving = match self.arriving.take() {
            Some((id, arriving)) if id == file => arriving,
            _ => Receiving::new()?,
        };
        arriving.add(piece).map_err(RunError::system("keeping a plan"))?;
        if !is_last {
            self.arriving = Some((file, arriving));
            return Ok(());
        }
        let answer = Answer::Kept { file, path: arriving.path() };
        self.files.insert(file, arriving);
        self.say(&FromAgent::Answer { epoch: self.state.epoch(), answer });
        Ok(())
    }

    /// Ends the worker. It may leave by itself within `patience`.
    fn end_worker(&mut self, patience: Duration) {
        let Some(epoch) = &mut self.epoch else { return };
        epoch.over.store(true, Ordering::Relaxed);
        let Some(worker) = epoch.worker.take() else { return };
        let _ = worker.stream.shutdown(Shutdown::Write);
        let mut child = worker.child.lock().unwrap_or_else(PoisonError::into_inner);
        // The next epoch has its own segment, so a process that stays does no harm.
        end(&mut child, patience);
    }

    /// The result of the job for this rank.
    fn ends_with(&self, outcome: AgentOutcome) -> RunResult<()> {
        let rank = self.at.rank;
        match outcome {
            AgentOutcome::Done => Ok(()),
            AgentOutcome::Ended(verdict, evidence) => Err(RunError::Ended { verdict, evidence, reports: Vec::new() }),
            AgentOutcome::Refused(reason) => Err(RunError::Refused { rank, reason }),
            AgentOutcome::Abandoned(source) => {
                let activity = self.epoch.as_ref().map(|epoch| &epoch.segment.activity);
                let phase = activity.map_or(Phase::Prepare, |activity| activity.phase(rank));
                let finished = activity.map_or(0, |activity| activity.progress(rank).load(Ordering::Relaxed));
                let machine = self.at.machine.name().to_owned();
                Err(RunError::Abandoned { rank, machine, phase, finished, source })
            }
        }
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.end_worker(Duration::ZERO);
        self.post.cut();
    }
}

/// Passes on the worker's answers, and finally how it ended.
fn hear(mut inbox: Inbox<UnixStream>, child: &Mutex<Child>, post: &Outbox, epoch: Epoch) {
    let mut said = None;
    let end = loop {
        match inbox.receive() {
            Ok(Some(answer)) => {
                if let Answer::Failed { .. } = answer {
                    said = Some(Answer::clone(&answer));
                }
                // An error is ignored: a broken connection is noticed where messages are received.
                let _ = post.send(&FromAgent::Answer { epoch, answer });
            }
            Ok(None) => {}
            Err(error) => break error,
        }
    };
    let deadline = Moment::now().after(ENDING);
    let how = loop {
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        match status {
            Ok(None) if Moment::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some(status)) => break status.to_string(),
            Ok(None) | Err(_) => break end.to_string(),
        }
    };
    let _ = post.send(&FromAgent::Ended { epoch, how, said });
}
