//! A worker: one rank in its own process.
//!
//! The principal function is [`serve`]. The main thread executes. A control thread reads the launcher's commands and
//! gives signs of life, so a rank that is busy or blocked still listens. When the launcher closes the channel, or is
//! stopped for too long, the control thread ends all waits, and the process if that does not help. When the launcher is
//! gone, the kernel kills the process, even if it is stopped.

use crate::clock::Moment;
use crate::control::frame::{Inbox, receive_descriptor, send};
use crate::control::judge::BEAT;
use crate::control::messages::{Answer, Ordered, PROTOCOL, Task, TaskResult, Welcome, WorkerCommand, WorkerTerms};
use crate::control::worker_state::{BACKSTOP, FailureExit, FarewellAction, WorkerAction, WorkerEvent, WorkerState};
use crate::error::{RunError, RunResult};
use crate::execution::concurrent::{Concurrent, Loaded, Work};
use crate::execution::executor::Executor;
use crate::execution::flows::{Arrivals, Flows, Wanted};
use crate::execution::options::ExecutionOptions;
use crate::group::Group;
use crate::launch::parent::listen;
use crate::launch::spawner::end_with_parent;
use crate::measure::trial::{RankReport, Trial, run_rank};
use crate::memory::segment::Segment;
use crate::numbers::TaskNumber;
use crate::pacing::pace::Emulation;
use crate::transport::network::{KeptConnections, Network, NetworkTask};
use crate::transport::tcp::raise_open_files;
use crate::transport::{Transport, network};
use crate::verdict::{Cause, Phase, Verdict};
use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use topology::{Rank, Topology};

/// Connections must be made within this share of the ready limit. So a rank can report which peer it did not reach
/// before the launcher only sees that nothing moves.
const MEETING: f64 = 0.75;

/// What a worker's program knows and this crate does not: how to find programs and machines.
///
/// Both functions must depend only on their arguments: every rank loads by itself, and digests are compared.
pub trait Loader {
    /// The program that `source` names, or the excerpt of its rank `number`. `files` are the files that were given to
    /// [`Job::run`](crate::Job::run), at their paths on this machine. A rank without a `number` takes no part, but must
    /// know the connections of the others.
    ///
    /// # Errors
    /// Why there is no such program, in words.
    fn program(&self, source: &str, files: &[PathBuf], number: Option<Rank>) -> Result<Loaded, String>;

    /// The machine to emulate that `source` names.
    ///
    /// # Errors
    /// Why there is no such machine, in words.
    fn topology(&self, source: &str) -> Result<Topology, String>;
}

/// The control channel of a worker: its standard input.
///
/// # Errors
/// If the descriptor cannot be duplicated.
pub fn control_from_stdin() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Serves one job on `control` until the launcher ends it.
///
/// # Errors
/// The error that ended the job early. It is reported to the launcher if possible.
pub fn serve(control: UnixStream, loader: &dyn Loader) -> RunResult<()> {
    raise_open_files();
    let channel_error = RunError::system;
    end_with_parent();
    control.set_read_timeout(Some(Duration::from_secs(30))).map_err(channel_error("preparing the control channel"))?;
    let memory = receive_descriptor(&control).map_err(channel_error("receiving the shared memory"))?;
    let stream = control.try_clone().map_err(channel_error("duplicating the control channel"))?;
    let mut inbox = Inbox::new(stream);
    let broken = |fault: String| RunError::Protocol { rank: Rank(0), fault };
    let welcome = match inbox.receive().map_err(channel_error("waiting for the launcher's welcome"))? {
        Some(WorkerCommand::Welcome(welcome)) => welcome,
        other => return Err(broken(format!("the launcher said {other:?} instead of a welcome"))),
    };
    let Welcome { terms, secret } = welcome;
    let rank = terms.rank;
    send(&control, &Answer::Hello { protocol: PROTOCOL, rank }).map_err(channel_error("answering the launcher"))?;
    if terms.protocol != PROTOCOL {
        return Err(broken(format!("the launcher speaks protocol {}, this worker {PROTOCOL}", terms.protocol)));
    }
    let (segment, first_here) = (Segment::open(memory, terms.segment)?, terms.first_here);
    let options = options(terms, loader)?;
    control.set_read_timeout(Some(BEAT)).map_err(channel_error("preparing the control channel"))?;
    let patience = Some(options.ready_limit.max(BACKSTOP));
    control.set_write_timeout(patience).map_err(channel_error("preparing the control channel"))?;
    let (commands, received) = channel();
    let (watched, limit) = (segment.clone(), options.work_limit);
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || listen(inbox, &watched, (rank, limit), commands))
        .map_err(channel_error("starting the control thread"))?;
    Worker {
        segment,
        rank,
        state: RefCell::new(WorkerState::new(options.ready_limit)),
        network: network(options.interfaces.clone(), options.spare_interfaces, secret),
        options,
        first_here,
        control,
        commands: received,
        connections: RefCell::default(),
    }
    .work(loader)
}

/// The options of this worker. It loads the emulated machine by itself, and lets the launcher's deadline pass first.
fn options(terms: WorkerTerms, loader: &dyn Loader) -> RunResult<ExecutionOptions> {
    let emulation = terms.emulation.map(|(source, slowdown)| {
        let topology = loader.topology(&source).map_err(|what| RunError::Mismatch { what })?;
        Emulation::new(Arc::new(topology), slowdown)
    });
    let (emulation, work_limit) = (emulation.transpose()?, terms.options.work_limit + BACKSTOP);
    Ok(ExecutionOptions { emulation, work_limit, ..terms.options })
}

/// The programs that `rank` needs for these orders. A program that several orders need is loaded once.
fn programs(ordered: &[Ordered], rank: Rank, loader: &dyn Loader) -> RunResult<Vec<Arc<Loaded>>> {
    let mut programs: Vec<Arc<Loaded>> = Vec::with_capacity(ordered.len());
    let numbers: Vec<_> = ordered.iter().map(|order| order.group.number(rank)).collect();
    for (index, order) in ordered.iter().enumerate() {
        let same = |&earlier: &usize| {
            let other = &ordered[earlier];
            (&other.source, &other.files, numbers[earlier]) == (&order.source, &order.files, numbers[index])
        };
        programs.push(match (0..index).find(same) {
            Some(earlier) => programs[earlier].clone(),
            None => {
                let program = loader.program(&order.source, &order.files, numbers[index]);
                Arc::new(program.map_err(|what| RunError::Mismatch { what })?)
            }
        });
    }
    Ok(programs)
}

struct Worker {
    segment: Segment,
    rank: Rank,
    state: RefCell<WorkerState>,
    options: ExecutionOptions,
    /// Whether this worker prepares the shared memory for all ranks of its machine.
    first_here: bool,
    network: Box<dyn Network>,
    control: UnixStream,
    commands: Receiver<WorkerCommand>,
    /// The connections of the current task. They stay open until the task is done or the launcher knows the error.
    /// Otherwise a further rank would lose a connection and might be the first to report it.
    connections: RefCell<Option<Box<dyn KeptConnections>>>,
}

impl Worker {
    /// Serves trials until the launcher closes the channel. Reports an error to the launcher.
    fn work(mut self, loader: &dyn Loader) -> RunResult<()> {
        match self.trials(loader) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.leave(error)?),
        }
    }

    /// Reports the error, and stays until the cause of the job's end is decided. A rank that only lost a connection
    /// reports the verdict instead, if it arrives in time.
    fn leave(&self, mut error: RunError) -> RunResult<RunError> {
        let has_lost_peers = error.lost_peer().is_some();
        let mut failure_exit = FailureExit::new(Moment::now(), has_lost_peers);
        loop {
            let verdict = self.segment.verdict.check().err();
            match failure_exit.step(Moment::now(), verdict.is_some()) {
                FarewellAction::Wait => std::thread::sleep(Duration::from_millis(1)),
                FarewellAction::Say => {
                    error = verdict.filter(|_| has_lost_peers).unwrap_or(error);
                    let (phase, peers) = (self.segment.activity.phase(self.rank), self.lost_peers(&error));
                    self.answer(&Answer::Failed { phase, reason: error.chain(), peers })?;
                }
                FarewellAction::Leave => return Ok(error),
            }
        }
    }

    /// The peers that a rank has lost, if it fails because it lost one. All connections are checked, not only the one
    /// that broke first: a rank that was cut off lost all peers, and the others lost only that rank.
    fn lost_peers(&self, error: &RunError) -> Vec<Rank> {
        let Some(peer) = error.lost_peer() else { return Vec::new() };
        let mut peers = self.connections.borrow().as_ref().map(|kept| kept.ended()).unwrap_or_default();
        peers.insert(peer);
        peers.into_iter().collect()
    }

    fn trials(&mut self, loader: &dyn Loader) -> RunResult<()> {
        while let Some(command) = self.hear()? {
            let WorkerCommand::Prepare { task, limit_ms, what } = command else {
                return Err(self.unexpected(&command, "what to prepare"));
            };
            self.options.work_limit = Duration::from_millis(limit_ms) + BACKSTOP;
            self.segment.activity.enter(self.rank, Phase::Prepare);
            let finding = match what {
                Task::Trial(ordered) => {
                    TaskResult::Trial(self.trial(task, &ordered, &programs(&ordered, self.rank, loader)?)?)
                }
                Task::Probe(wanted) => TaskResult::Probe(self.probe(task, wanted)?),
            };
            self.connections.take();
            self.answer(&Answer::Done { task, finding })?;
        }
        match self.segment.verdict.check() {
            Err(RunError::Verdict(Verdict { cause: Cause::Orphaned, .. })) => Ok(()),
            verdict => verdict,
        }
    }

    fn trial(&self, task: TaskNumber, ordered: &[Ordered], programs: &[Arc<Loaded>]) -> RunResult<Vec<RankReport>> {
        let has_excerpts = programs.iter().any(|program| matches!(**program, Loaded::Excerpt(_)));
        let all = Group::all(self.segment.rank_count());
        if has_excerpts && (self.options.emulation.is_some() || self.options.hosts.any_apart(all.ranks())) {
            let what = "ranks that do not share memory, or emulate a machine, need whole programs".to_owned();
            return Err(RunError::Mismatch { what });
        }
        let work = |(order, program): (&Ordered, _)| {
            Work::loaded(program, order.group.clone(), order.trial.count, order.trial.dtype)
        };
        let works = ordered.iter().zip(programs.iter().map(AsRef::as_ref)).map(work).collect();
        let trials: Vec<&Trial> = ordered.iter().map(|order| &order.trial).collect();
        let concurrent = Concurrent::tried(works, &trials, self.segment.rank_count())?;
        self.clear(&concurrent)?;
        let remote = self.connect(task, &concurrent)?;
        let mut executor = Executor::new(&self.segment, self.rank, &concurrent, remote, &self.options)?;
        self.await_run(task, &concurrent)?;
        run_rank(&mut executor, &trials, task)
    }

    fn probe(&self, task: TaskNumber, wanted: Wanted) -> RunResult<Arrivals> {
        let machine = self.options.emulation.as_ref().map(Emulation::topology);
        let flows = Flows::new(wanted, self.segment.rank_count(), machine)?;
        let concurrent = flows.concurrent()?;
        self.clear(&concurrent)?;
        let remote = self.connect(task, &concurrent)?;
        let mut executor = Executor::of_flows(&self.segment, self.rank, (&concurrent, &flows), remote, &self.options)?;
        self.await_run(task, &concurrent)?;
        flows.run_rank(&mut executor, task.first_call())
    }

    /// Prepares the machine's shared memory. All its ranks are between two tasks now: no rank uses the rings of the
    /// last task any more, and none uses the rings of this task before all are ready.
    fn clear(&self, concurrent: &Concurrent<'_>) -> RunResult<()> {
        if self.first_here {
            concurrent.arenas(&self.segment, &self.options)?.1.reset(self.segment.region());
        }
        Ok(())
    }

    /// Connects with ranks of other computers, if there are any.
    fn connect(&self, task: TaskNumber, concurrent: &Concurrent<'_>) -> RunResult<Option<Box<dyn Transport>>> {
        let (hosts, segment) = (&self.options.hosts, &self.segment);
        if !hosts.any_apart(Group::all(segment.rank_count()).ranks()) {
            return Ok(None);
        }
        let endpoint = self.network.listen()?;
        self.answer(&Answer::Listening { task, plan: concurrent.digest(), address: endpoint.address()? })?;
        let addresses = match self.next()? {
            WorkerCommand::Connect { task: now, addresses } if now == task => addresses,
            other => return Err(self.unexpected(&other, "connect")),
        };
        let task = NetworkTask {
            rank: self.rank,
            hosts,
            connections: concurrent.connections(),
            task: task.0,
            deadline: Moment::now().after(self.options.ready_limit.mul_f64(MEETING)),
            check: &|| segment.verdict.check(),
        };
        let joined = endpoint.join(&task, &addresses)?;
        self.connections.replace(Some(joined.kept));
        Ok(Some(joined.transport))
    }

    /// Votes that this rank is ready, and waits for the order to run.
    fn await_run(&self, task: TaskNumber, concurrent: &Concurrent<'_>) -> RunResult<()> {
        self.answer(&Answer::Ready { task, plan: concurrent.digest() })?;
        match self.next()? {
            WorkerCommand::Run { task: now } if now == task => Ok(()),
            other => Err(self.unexpected(&other, "run")),
        }
    }

    /// The next command during a task.
    fn next(&self) -> RunResult<WorkerCommand> {
        self.hear()?.map_or_else(
            || {
                self.segment.verdict.check()?;
                Err(RunError::Protocol { rank: self.rank, fault: "the launcher left without a word".to_owned() })
            },
            Ok,
        )
    }

    /// The next command to obey; `None` if no more will come.
    fn hear(&self) -> RunResult<Option<WorkerCommand>> {
        loop {
            let event = match self.commands.recv_timeout(BEAT) {
                Ok(command) => WorkerEvent::Said(command),
                Err(RecvTimeoutError::Timeout) => WorkerEvent::Quiet,
                Err(RecvTimeoutError::Disconnected) => WorkerEvent::HungUp,
            };
            let action = self.state.borrow_mut().step(Moment::now(), event);
            match action {
                WorkerAction::Wait => {}
                WorkerAction::Obey(command) => return Ok(Some(command)),
                WorkerAction::Refuse(command) => return Err(self.unexpected(&command, "what may follow")),
                WorkerAction::Say(answer) => self.say(&answer)?,
                WorkerAction::GiveUp(waited) => return Err(self.undecided(waited)),
                WorkerAction::Leave => return Ok(None),
            }
        }
    }

    fn undecided(&self, waited: Duration) -> RunError {
        let (rank, phase, place) =
            (self.rank, self.segment.activity.phase(self.rank), "the launcher's decision".to_owned());
        RunError::Deadline { rank, peer: None, phase, place, waited_ms: waited.as_millis() as u64, finished: 0 }
    }

    fn answer(&self, answer: &Answer) -> RunResult<()> {
        self.state.borrow_mut().said(Moment::now(), answer);
        self.say(answer)
    }

    fn say(&self, answer: &Answer) -> RunResult<()> {
        send(&self.control, answer).map_err(RunError::system("answering the launcher"))
    }

    fn unexpected(&self, command: &WorkerCommand, expected: &str) -> RunError {
        RunError::Protocol { rank: self.rank, fault: format!("the launcher said {command:?}, not {expected}") }
    }
}
