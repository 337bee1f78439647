//! The launcher's side of a job: starts the workers, coordinates trials, decides about faults.

use super::frame::{Answer, Command as Order, Finding, Inbox, PROTOCOL, Task, Welcome, send, send_descriptor};
use super::worker::BEAT;
use crate::board::{Board, BoardShape, Cause, Verdict};
use crate::clock::Moment;
use crate::error::{Phase, RunError, RunResult};
use crate::executor::arena;
use crate::footprint;
use crate::options::Options;
use crate::pace::Emulation;
use crate::probe::{Arrivals, Flows, Wanted};
use crate::tcp::Secret;
use crate::trial::{Trial, TrialReport};
use crate::work::Work;
use schedule::program::{Program, VerifiedProgram, digest};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use topology::Rank;

/// How often a waiting launcher looks around.
const GLANCE: Duration = Duration::from_millis(20);
/// How long live ranks have to say their last word after a verdict.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// A rank that gave no sign of life for so long is not running.
const SILENCE: Duration = BEAT.saturating_mul(8);

/// What to launch.
#[derive(Clone, Debug, Default)]
pub struct JobSpec {
    /// How many ranks.
    pub ranks: usize,
    /// How to execute. `emulation` is taken from here, and loaded by every worker from `emulated_source`.
    pub options: Options,
    /// What the workers' [`Loader`](super::Loader) needs to find the emulated machine.
    pub emulated_source: String,
}

/// What a worker's reader thread saw.
enum Event {
    Answer(Answer),
    Gone(io::Error),
}

/// One worker, from outside.
struct Member {
    child: Child,
    stream: UnixStream,
    /// The last sign of life and when it changed.
    beat: (u64, Moment),
    gone: bool,
}

/// Running workers, one per rank. Dropping it ends them all.
pub struct Job {
    board: Board,
    options: Options,
    members: Vec<Member>,
    events: Receiver<(Rank, Event)>,
    secret: Secret,
    tasks: u64,
    over: Option<Verdict>,
    /// What ranks said went wrong, heard while the verdict was still open.
    reports: Vec<(Rank, String)>,
}

impl Job {
    /// Starts one worker per rank with the commands that `command` gives, and waits until all have joined.
    ///
    /// # Errors
    /// If a process cannot be started, or does not join within the ready limit.
    pub fn launch(spec: &JobSpec, mut command: impl FnMut(Rank) -> Command) -> RunResult<Self> {
        let shape = BoardShape::new(spec.ranks, spec.options.emulation.as_ref(), spec.options.arena_bytes);
        let board = Board::create(shape)?;
        let (sender, events) = channel();
        let options = spec.options.clone();
        let secret = Secret::random().map_err(RunError::system("making the job's secret"))?;
        let members = Vec::with_capacity(spec.ranks);
        let mut job = Self { board, options, members, events, secret, tasks: 0, over: None, reports: Vec::new() };
        for rank in (0..spec.ranks).map(Rank::from_index) {
            let member = start(rank, command(rank), &sender).map_err(RunError::system("starting a worker"))?;
            // A worker that is stopped reads nothing. A send that fills its channel waits twice: after the part that
            // still fits, and for the rest. Zero would mean no limit.
            let limit = (spec.options.ready_limit / 2).max(Duration::from_millis(1));
            member.stream.set_write_timeout(Some(limit)).map_err(RunError::system("preparing a control channel"))?;
            job.members.push(member);
            // A worker that is gone already shows as `Gone`, with how it ended.
            let _ = job.welcome(rank, shape, spec);
        }
        job.gather(Phase::Prepare, spec.options.ready_limit, |_, answer| match answer {
            Answer::Hello { protocol: PROTOCOL, .. } => Ok(()),
            Answer::Hello { protocol, .. } => {
                Err((Cause::Disagrees, format!("it speaks protocol {protocol}, the launcher {PROTOCOL}")))
            }
            other => Err(unexpected(&other)),
        })?;
        Ok(job)
    }

    fn welcome(&self, rank: Rank, board: BoardShape, spec: &JobSpec) -> io::Result<()> {
        let stream = &self.members[rank.index()].stream;
        let emulation = spec.options.emulation.as_ref();
        send_descriptor(stream, self.board.descriptor())?;
        send(
            stream,
            &Order::Welcome(Welcome {
                protocol: PROTOCOL,
                rank,
                board,
                ring_bytes: spec.options.ring_bytes,
                tile_bytes: spec.options.tile_bytes,
                work_limit_ms: spec.options.work_limit.as_millis() as u64,
                emulation: emulation.map(|emulation| (spec.emulated_source.clone(), emulation.slowdown())),
                hosts: spec.options.hosts.clone(),
                interface: spec.options.interface,
                ready_limit_ms: spec.options.ready_limit.as_millis() as u64,
                secret: self.secret.clone(),
            }),
        )
    }

    /// How many ranks.
    pub fn rank_count(&self) -> usize {
        self.members.len()
    }

    /// The machine that the ranks imitate, if any.
    pub(crate) fn emulation(&self) -> Option<&Emulation> {
        self.options.emulation.as_ref()
    }

    /// The processes, by rank.
    pub fn process_ids(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.child.id()).collect()
    }

    /// Runs one trial of `program`, which every worker loads from `source`.
    ///
    /// # Errors
    /// [`RunError::Ended`] with the rank at fault and what the live ranks said. The job is over then, and every
    /// later trial returns the same verdict.
    pub fn run(&mut self, source: &str, program: &VerifiedProgram, trial: &Trial) -> RunResult<TrialReport> {
        let work = Work::new(program, trial.count, trial.dtype);
        let program = work.program;
        if program.ranks.len() != self.members.len() {
            let what = format!("the plan is for {} ranks, the job has {}", program.ranks.len(), self.members.len());
            return Err(RunError::Mismatch { what });
        }
        let tiles = work.tiles(&self.options);
        footprint::check(program, trial, tiles)?;
        let task = Task::Trial { source: source.to_owned(), trial: trial.clone() };
        let backlog = work.backlog(tiles)?;
        let ranks = self.perform(task, program, backlog, |finding| match finding {
            Finding::Trial(report) => Some(report),
            Finding::Probe(_) => None,
        })?;
        Ok(TrialReport { ranks })
    }

    /// Times exchanges that take place at the same time.
    pub(crate) fn probe(&mut self, wanted: Wanted) -> RunResult<(Flows, Vec<Arrivals>)> {
        let machine = self.options.emulation.as_ref().map(Emulation::topology);
        let task = Task::Probe(wanted.clone());
        let flows = Flows::new(wanted, self.members.len(), machine)?;
        let arrivals = self.perform(task, flows.program(), 0, |finding| match finding {
            Finding::Probe(arrivals) => Some(arrivals),
            Finding::Trial(_) => None,
        })?;
        Ok((flows, arrivals))
    }

    /// PREPARE → READY → RUN → DONE; every rank prepares `task` and must come to `program` by itself.
    fn perform<T>(
        &mut self,
        task: Task,
        program: &Program,
        backlog: usize,
        accept: impl Fn(Finding) -> Option<T>,
    ) -> RunResult<Vec<T>> {
        if let Some(verdict) = self.over {
            return Err(RunError::Verdict(verdict));
        }
        // All ranks are idle now, and the ends of the last task's rings are gone.
        self.board.reset(&arena(&self.board, program, backlog, &self.options)?);
        self.tasks += 1;
        let (job, plan) = (self.tasks, digest(program));
        self.order_all(&Order::Prepare { job, task })?;
        let differs = |theirs| (Cause::Disagrees, format!("its plan is {theirs}, the launcher's {plan}"));
        if self.options.hosts.any_remote(self.members.len()) {
            let addresses = self.gather(Phase::Prepare, self.options.ready_limit, |_, answer| match answer {
                Answer::Listening { job: at, plan: theirs, address } if at == job && theirs == plan => Ok(address),
                Answer::Listening { plan: theirs, .. } => Err(differs(theirs)),
                other => Err(unexpected(&other)),
            })?;
            self.order_all(&Order::Connect { job, addresses })?;
        }
        self.gather(Phase::Prepare, self.options.ready_limit, |_, answer| match answer {
            Answer::Ready { job: ready, plan: theirs } if ready == job && theirs == plan => Ok(()),
            Answer::Ready { plan: theirs, .. } => Err(differs(theirs)),
            other => Err(unexpected(&other)),
        })?;
        self.order_all(&Order::Run { job })?;
        self.gather(Phase::Work, self.options.work_limit, |_, answer| match answer {
            Answer::Done { job: done, finding } if done == job => {
                let wrong = || (Cause::Failed, "it reported on another task".to_owned());
                accept(finding).ok_or_else(wrong)
            }
            other => Err(unexpected(&other)),
        })
    }

    /// Tells every worker. One that leaves its channel full for the ready limit does not run.
    fn order_all(&mut self, order: &Order) -> RunResult<()> {
        for index in 0..self.members.len() {
            let Err(error) = send(&self.members[index].stream, order) else { continue };
            match error.kind() {
                io::ErrorKind::InvalidInput => {
                    return Err(RunError::System { what: "ordering the workers", source: error });
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    let (rank, limit) = (Rank::from_index(index), self.options.ready_limit);
                    let verdict = Verdict { rank, cause: Cause::Silent, phase: Phase::Prepare };
                    return Err(self.end(verdict, format!("it took no orders for {limit:?}")));
                }
                // A broken channel shows as `Gone`, with how the process ended.
                _ => {}
            }
        }
        Ok(())
    }

    /// One accepted answer of every rank, or a verdict: by what `accept` refuses, by a rank that is gone, or when
    /// nothing anywhere has moved for `limit`.
    fn gather<T>(
        &mut self,
        phase: Phase,
        limit: Duration,
        mut accept: impl FnMut(Rank, Answer) -> Result<T, (Cause, String)>,
    ) -> RunResult<Vec<T>> {
        let mut answers: Vec<Option<T>> = self.members.iter().map(|_| None).collect();
        let (mut moved, mut activity) = (Moment::now(), self.board.activity());
        while let Some(missing) = answers.iter().position(Option::is_none) {
            match self.events.recv_timeout(GLANCE) {
                Ok((rank, Event::Answer(Answer::Failed { phase, reason, peer }))) => {
                    // Who loses a peer may be faster to say so than the kernel to say that the peer is dead. A peer
                    // that gave a reason before it ended lost a connection just as this one did.
                    if let Some(peer) = peer.filter(|&peer| self.is_dead(peer) && self.ended_silently(peer)) {
                        return Err(self.lost(peer, phase, &io::Error::other(reason)));
                    }
                    return Err(self.end(Verdict { rank, cause: Cause::Failed, phase }, reason));
                }
                Ok((rank, Event::Answer(answer))) => match accept(rank, answer) {
                    Ok(value) => answers[rank.index()] = Some(value),
                    Err((cause, evidence)) => return Err(self.end(Verdict { rank, cause, phase }, evidence)),
                },
                Ok((rank, Event::Gone(error))) => return Err(self.lost(rank, phase, &error)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let now = Moment::now();
            self.listen_for_beats(now);
            let current = self.board.activity();
            if current != activity {
                (moved, activity) = (now, current);
            }
            if now.since(moved) > limit {
                let waiting = |rank: &usize| answers[*rank].is_none();
                return Err(self.overdue((missing..self.members.len()).filter(waiting).collect(), phase, limit));
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    fn listen_for_beats(&mut self, now: Moment) {
        for (index, member) in self.members.iter_mut().enumerate() {
            let beats = self.board.beats(Rank::from_index(index)).load(Ordering::Relaxed);
            if beats != member.beat.0 {
                member.beat = (beats, now);
            }
        }
    }

    /// The verdict on a rank whose channel broke.
    fn lost(&mut self, rank: Rank, phase: Phase, error: &io::Error) -> RunError {
        let phase = if phase == Phase::Work { self.board.phase(rank) } else { phase };
        let status = self.end_of(rank);
        self.members[rank.index()].gone = true;
        let evidence = status.map_or_else(|| error.to_string(), |status| status.to_string());
        self.end(Verdict { rank, cause: Cause::Died, phase }, evidence)
    }

    /// How a process ended; it follows the end of its channels within moments, if it follows.
    fn end_of(&mut self, rank: Rank) -> Option<ExitStatus> {
        let child = &mut self.members[rank.index()].child;
        let deadline = Moment::now().after(GLANCE * 5);
        loop {
            match child.try_wait() {
                Ok(None) if Moment::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                status => return status.ok().flatten(),
            }
        }
    }

    fn is_dead(&mut self, rank: Rank) -> bool {
        rank.index() < self.members.len() && self.end_of(rank).is_some()
    }

    /// Whether a rank whose process has ended gave no reason.
    fn ended_silently(&mut self, rank: Rank) -> bool {
        let deadline = Moment::now().after(LAST_WORDS);
        while !self.members[rank.index()].gone && Moment::now() < deadline {
            match self.events.recv_timeout(GLANCE) {
                Ok((from, Event::Answer(Answer::Failed { reason, .. }))) => self.reports.push((from, reason)),
                Ok((from, Event::Gone(_))) => self.members[from.index()].gone = true,
                _ => {}
            }
        }
        !self.reports.iter().any(|&(from, _)| from == rank)
    }

    /// The verdict when nothing moves: on a rank that does not run, else on the one that is furthest behind.
    fn overdue(&mut self, waiting: Vec<usize>, phase: Phase, limit: Duration) -> RunError {
        let now = Moment::now();
        let silent = |&&index: &&usize| now.since(self.members[index].beat.1) > SILENCE;
        let behind = |&&index: &&usize| self.board.progress(Rank::from_index(index)).load(Ordering::Relaxed);
        let silent = waiting.iter().find(silent);
        let (index, cause) = match (silent, waiting.iter().min_by_key(behind)) {
            (Some(&index), _) => (index, Cause::Silent),
            (None, Some(&index)) => (index, Cause::Late),
            (None, None) => (0, Cause::Late),
        };
        let rank = Rank::from_index(index);
        let finished = self.board.progress(rank).load(Ordering::Relaxed);
        let phase = if phase == Phase::Work { self.board.phase(rank) } else { phase };
        let evidence = format!("nothing moved for {limit:?}; it has finished {finished} steps of this job");
        self.end(Verdict { rank, cause, phase }, evidence)
    }

    /// Pronounces a verdict, hears the live ranks, and ends all processes.
    fn end(&mut self, verdict: Verdict, evidence: String) -> RunError {
        let verdict = self.board.pronounce(verdict);
        self.over = Some(verdict);
        for member in &self.members {
            // Wakes those who wait for an order; it fails only for those who are gone.
            let _ = member.stream.shutdown(Shutdown::Write);
        }
        let deadline = Moment::now().after(LAST_WORDS);
        let mut reports = std::mem::take(&mut self.reports);
        while self.members.iter().any(|member| !member.gone) && Moment::now() < deadline {
            match self.events.recv_timeout(GLANCE) {
                Ok((rank, Event::Answer(Answer::Failed { reason, .. }))) => reports.push((rank, reason)),
                Ok((rank, Event::Gone(_))) => self.members[rank.index()].gone = true,
                _ => {}
            }
        }
        self.reap();
        reports.sort();
        RunError::Ended { verdict, evidence, reports }
    }

    /// Ends and collects every process that is left.
    fn reap(&mut self) {
        for member in &mut self.members {
            // Both fail only where there is nothing left to end.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = member.stream.shutdown(Shutdown::Write);
        }
        let deadline = Moment::now().after(LAST_WORDS);
        let running = |member: &mut Member| matches!(member.child.try_wait(), Ok(None));
        while self.members.iter_mut().any(running) && Moment::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.reap();
    }
}

fn unexpected(answer: &Answer) -> (Cause, String) {
    let text: String = format!("{answer:?}").chars().take(200).collect();
    (Cause::Failed, format!("it said out of turn: {text}"))
}

/// Starts a worker and a thread that reads what it says.
fn start(rank: Rank, mut command: Command, events: &Sender<(Rank, Event)>) -> io::Result<Member> {
    let (stream, theirs) = UnixStream::pair()?;
    let mut inbox = Inbox::new(stream.try_clone()?);
    let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    // `command` still owns their end; the channel must break when the worker is gone.
    drop(command);
    let events = events.clone();
    let read = move || {
        loop {
            let (event, last) = match inbox.receive() {
                Ok(Some(answer)) => (Event::Answer(answer), false),
                Ok(None) => continue,
                Err(error) => (Event::Gone(error), true),
            };
            if events.send((rank, event)).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new().name(format!("rank {rank}")).spawn(read)?;
    Ok(Member { child, stream, beat: (0, Moment::now()), gone: false })
}
