//! The coordinator's side of a job: gathers the workers and gives them tasks. The principal type is [`Job`].

use crate::clock::Moment;
use crate::control::frame::sealed;
use crate::control::judge::{Heard, Judge};
use crate::control::messages::{Answer, Ordered, Task, TaskResult, ToAgent, WorkerCommand};
use crate::control::plane::{Joined, Plane};
use crate::control::question::Question;
use crate::error::{RunError, RunResult};
use crate::execution::concurrent::Concurrent;
use crate::execution::flows::{Arrivals, Flows, Wanted};
use crate::execution::options::ExecutionOptions;
use crate::group::Group;
use crate::launch::files::{Library, SharedFile};
use crate::launch::member::Member;
use crate::launch::rendezvous::Rendezvous;
use crate::launch::spawner::Spawner;
use crate::measure::assignment::Assignment;
use crate::measure::footprint;
use crate::measure::trial::{Trial, TrialReport};
use crate::memory::segment::{Segment, SegmentShape};
use crate::numbers::{Epoch, TaskNumber};
use crate::pacing::pace::Emulation;
use crate::transport::hosts::Hosts;
use crate::transport::tcp::{Secret, raise_open_files};
use crate::verdict::{Cause, Phase, Verdict};
use program::VerifiedProgram;

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use topology::Rank;

/// The description of a job.
#[derive(Clone, Debug, Default)]
pub struct JobSpec {
    /// The number of ranks.
    pub ranks: usize,
    /// How to execute. The launcher uses `emulation`; every worker loads the same machine from `emulated_source`.
    pub options: ExecutionOptions,
    /// The words with which the workers' [`Loader`](crate::Loader) finds the emulated machine.
    pub emulated_source: String,
}

/// Where workers find a program: the arguments of their [`Loader`](crate::Loader).
#[derive(Clone, Copy, Debug)]
pub struct ProgramSource<'a> {
    /// The words that name the program.
    pub words: &'a str,
    /// The files that it is in.
    pub files: &'a [&'a SharedFile],
}

/// Running workers, one per rank. Dropping it ends them all.
pub struct Job {
    pub(crate) segment: Segment,
    pub(crate) options: ExecutionOptions,
    pub(crate) emulated_source: String,
    pub(crate) members: Vec<Member>,
    pub(crate) spawner: Spawner,
    pub(crate) sender: Sender<Heard>,
    pub(crate) events: Receiver<Heard>,
    /// The connections with agents, if there are any.
    pub(crate) plane: Option<Arc<Plane>>,
    /// The name of each rank's machine; empty if the launcher started all ranks on one machine.
    pub(crate) machines: Vec<String>,
    /// The files that agents have received.
    remote_files: Library,
    pub(crate) secret: Secret,
    /// Distinguishes jobs with the same secret.
    pub(crate) id: [u8; 32],
    pub(crate) epoch: Epoch,
    tasks: TaskNumber,
    /// The state of the ranks of this epoch, and the decisions that follow from it.
    pub(crate) judge: Judge,
    pub(crate) over: Option<Verdict>,
}

impl Job {
    /// Starts one worker per rank with the commands that `command` gives, and waits until all have joined.
    ///
    /// # Errors
    /// If a process cannot be started, or does not join within the ready limit.
    pub fn launch(spec: &JobSpec, command: impl FnMut(Rank) -> Command) -> RunResult<Self> {
        raise_open_files();
        let secret = Secret::random().map_err(RunError::system("making the job's secret"))?;
        let (sender, events) = channel();
        let mut job = Self::new(spec, spec.options.clone(), secret, None, (sender, events))?;
        job.set_up_epoch(command)?;
        Ok(job)
    }

    /// Like [`Self::launch`], for ranks that another launcher started, perhaps on several machines. Rank 0 coordinates,
    /// starts its own worker, and waits for the agents of all other ranks (see [`attend`](crate::attend)).
    ///
    /// # Errors
    /// As for [`Self::launch`]; [`RunError::Absent`] if ranks do not reach the rendezvous.
    pub fn form(spec: &JobSpec, at: &Rendezvous, command: impl FnMut(Rank) -> Command) -> RunResult<Self> {
        raise_open_files();
        let limit = spec.options.ready_limit;
        let arrivals = at.receive(limit)?;
        // Machines are numbered in the order of their first ranks. The coordinator's machine is the first.
        let (mut keys, mut leaders) = (vec![at.machine.key()], vec![Rank(0)]);
        let (mut hosts, mut joined) = (vec![0], Vec::with_capacity(arrivals.len()));
        for arrival in arrivals {
            let machine = keys.iter().position(|&key| key == arrival.machine).unwrap_or_else(|| {
                keys.push(arrival.machine);
                leaders.push(arrival.rank);
                keys.len() - 1
            });
            hosts.push(machine as u32);
            let (post, inbox) =
                sealed(arrival.proven, true, limit / 2).map_err(RunError::system("preparing a control connection"))?;
            joined.push(Joined { rank: arrival.rank, machine, post, inbox });
        }
        if leaders.len() > 1 && spec.options.emulation.is_some() {
            let what = format!("a machine is emulated on one computer, but the ranks are on {}", leaders.len());
            return Err(RunError::Mismatch { what });
        }
        let mut options = spec.options.clone();
        if options.hosts != Hosts::Each {
            options.hosts = Hosts::Of(hosts);
        }
        let (sender, events) = channel();
        let plane =
            Plane::new(joined, leaders, sender.clone()).map_err(RunError::system("preparing to hear other ranks"))?;
        let own = plane.own_address();
        (options.interfaces, options.spare_interfaces) =
            at.ways(own, own).inspect_err(|error| plane.tell_all(&ToAgent::Refused { reason: error.to_string() }))?;
        if plane.leaders().len() > 1 {
            at.say_unused(&options.interfaces);
        }
        let mut job = Self::new(spec, options, at.secret.clone(), Some(plane), (sender, events))?;
        job.machines = vec![at.machine.name().to_owned(); spec.ranks];
        job.set_up_epoch(command)?;
        Ok(job)
    }

    fn new(
        spec: &JobSpec,
        options: ExecutionOptions,
        secret: Secret,
        plane: Option<Arc<Plane>>,
        (sender, events): (Sender<Heard>, Receiver<Heard>),
    ) -> RunResult<Self> {
        let shape = SegmentShape::new(spec.ranks, options.emulation.as_ref(), options.arena_bytes);
        let spread = plane.as_ref().is_some_and(|plane| plane.leaders().len() > 1);
        let id = crate::transport::tcp::nonce().map_err(RunError::system("naming the job"))?;
        Ok(Self {
            segment: Segment::create(SegmentShape { spread, ..shape })?,
            options,
            emulated_source: spec.emulated_source.clone(),
            members: Vec::with_capacity(spec.ranks),
            spawner: Spawner::new().map_err(RunError::system("preparing to start workers"))?,
            sender,
            events,
            plane,
            machines: Vec::new(),
            remote_files: Library::default(),
            secret,
            id,
            epoch: Epoch(1),
            tasks: TaskNumber::default(),
            judge: Judge::new(Epoch::default(), Moment::now(), []),
            over: None,
        })
    }

    /// Replaces all workers and connections after a verdict. Messages of the old ones are ignored.
    ///
    /// # Errors
    /// [`RunError::Departed`] if an agent is gone, because its rank cannot be restarted; otherwise as for
    /// [`Self::launch`].
    pub fn rebuild(&mut self, command: impl FnMut(Rank) -> Command) -> RunResult<()> {
        self.note_departures();
        if let Some(rank) = self.judge.departed() {
            return Err(RunError::Departed { rank, machine: self.machine_of(rank) });
        }
        self.reap();
        self.members.clear();
        self.epoch = self.epoch.next();
        self.segment = Segment::create(self.segment.shape())?;
        self.over = None;
        self.set_up_epoch(command)
    }

    /// Sets how long later tasks may make no progress on any rank.
    pub fn allow(&mut self, work_limit: Duration) {
        self.options.work_limit = work_limit;
    }

    /// Ends the job for a reason of the caller. All ranks are told the reason.
    pub fn call_off(&mut self, reason: &str) {
        if let (Some(plane), None) = (&self.plane, self.over) {
            plane.tell_all(&ToAgent::Refused { reason: reason.to_owned() });
        }
    }

    /// The number of ranks.
    pub fn rank_count(&self) -> usize {
        self.members.len()
    }

    /// The ranks of each computer.
    pub fn machines(&self) -> Vec<Vec<Rank>> {
        self.options.hosts.machines(self.members.len())
    }

    /// The machine that the ranks emulate, if any.
    pub(crate) fn emulation(&self) -> Option<&Emulation> {
        self.options.emulation.as_ref()
    }

    /// The number of machines on which the ranks are.
    pub fn machine_count(&self) -> usize {
        self.plane.as_ref().map_or(1, |plane| plane.leaders().len())
    }

    /// The ids of the worker processes that this process has started, by rank.
    pub fn process_ids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Member::process).collect()
    }

    /// Runs one trial of `program`, which every worker loads from `source` and `files`.
    ///
    /// # Errors
    /// [`RunError::Ended`] with the rank at fault and the reports of live ranks. This ends the epoch: every later trial
    /// returns the same verdict until the job is rebuilt.
    pub fn run(
        &mut self,
        source: &str,
        files: &[&SharedFile],
        program: &VerifiedProgram,
        trial: &Trial,
    ) -> RunResult<TrialReport> {
        let assignment = Assignment { program, group: Group::all(self.members.len()), trial: trial.clone() };
        self.run_together(&[(ProgramSource { words: source, files }, assignment)]).map(|mut reports| reports.remove(0))
    }

    /// Runs trials at the same time, each in its group, with its own lanes. Returns a report for each. Groups may
    /// overlap.
    ///
    /// # Errors
    /// As for [`Self::run`]. An error in one trial ends all of them, and the evidence names the trial.
    pub fn run_together(&mut self, trials: &[(ProgramSource<'_>, Assignment<'_>)]) -> RunResult<Vec<TrialReport>> {
        let assignments: Vec<Assignment<'_>> = trials.iter().map(|(_, assignment)| assignment.clone()).collect();
        let concurrent = Concurrent::assigned(&assignments, self.members.len())?;
        let repetitions = assignments.first().map_or(0, |assignment| assignment.trial.repetitions);
        footprint::check(&concurrent, repetitions, &self.options, |rank| self.machine_index(rank) == 0)?;
        let files: Vec<&SharedFile> = trials.iter().flat_map(|(source, _)| source.files).copied().collect();
        let task = |paths: Vec<PathBuf>| {
            let mut paths = paths.into_iter();
            let order = |(ProgramSource { words, files }, Assignment { group, trial, .. }): &(
                ProgramSource<'_>,
                Assignment<'_>,
            )| {
                let (source, files) = ((*words).to_owned(), paths.by_ref().take(files.len()).collect());
                Ordered { source, files, group: group.clone(), trial: trial.clone() }
            };
            Task::Trial(trials.iter().map(order).collect())
        };
        let mut found = self.perform(&files, task, &concurrent, |rank, finding| match finding {
            TaskResult::Trial(reports) if reports.len() == concurrent.local_ranks(rank).count() => Some(reports),
            _ => None,
        })?;
        if let Some(plane) = &self.plane {
            for (rank, reports) in found.iter_mut().enumerate() {
                let machine = plane.machine(Rank::from_index(rank));
                for sample in reports.iter_mut().flat_map(|report| &mut report.samples) {
                    (sample.start, sample.end) = (plane.here(machine, sample.start), plane.here(machine, sample.end));
                }
            }
        }
        Ok(concurrent.reports(found))
    }

    /// Times exchanges that take place at the same time.
    pub(crate) fn probe(&mut self, wanted: Wanted) -> RunResult<(Flows, Vec<Arrivals>)> {
        let machine = self.options.emulation.as_ref().map(Emulation::topology);
        let task = |_| Task::Probe(wanted.clone());
        let probed = Flows::new(wanted.clone(), self.members.len(), machine)?;
        let arrivals = self.perform(&[], task, &probed.concurrent()?, |_, finding| match finding {
            TaskResult::Probe(arrivals) => Some(arrivals),
            TaskResult::Trial(_) => None,
        })?;
        Ok((probed, arrivals))
    }

    /// PREPARE → READY → RUN → DONE. Every rank must compute the digest of `concurrent` by itself.
    fn perform<T>(
        &mut self,
        files: &[&SharedFile],
        task: impl Fn(Vec<PathBuf>) -> Task,
        concurrent: &Concurrent<'_>,
        accept: impl Fn(Rank, TaskResult) -> Option<T>,
    ) -> RunResult<Vec<T>> {
        if let Some(verdict) = self.over {
            return Err(RunError::Verdict(verdict));
        }
        // Errors are returned here before any rank allocates memory.
        concurrent.arenas(&self.segment, &self.options)?;
        let paths = self.provide(files)?;
        self.tasks = self.tasks.next();
        let (number, plan) = (self.tasks, concurrent.digest());
        let limit_ms = self.options.work_limit.as_millis() as u64;
        self.order_each(|job, rank| {
            let what = task(paths[job.machine_index(rank)].clone());
            WorkerCommand::Prepare { task: number, limit_ms, what }
        })?;
        let mut question = match self.options.hosts.any_apart(Group::all(self.members.len()).ranks()) {
            true => Question::Listening { task: number, plan },
            false => Question::Ready { task: number, plan },
        };
        let mut ordered = None;
        let answers = loop {
            let in_time =
                if question.phase() == Phase::Work { self.options.work_limit } else { self.options.ready_limit };
            let answers = self.gather(question.clone(), in_time, |_| true, ordered.as_ref())?;
            let Some((order, next)) = question.then(&answers) else { break answers };
            self.order_each(|_, _| order.clone())?;
            (ordered, question) = (Some(order), next);
        };
        let findings = answers.into_iter().map(|(rank, answer)| match answer {
            Answer::Done { finding, .. } => accept(rank, finding).ok_or(rank),
            _ => Err(rank),
        });
        findings.collect::<Result<_, _>>().map_err(|rank| {
            let verdict = Verdict { rank, cause: Cause::Failed, phase: Phase::Report };
            self.end(verdict, "it reported on another task".to_owned())
        })
    }

    /// The paths of these files on each machine. Sends a file to the machines that do not have it.
    fn provide(&mut self, files: &[&SharedFile]) -> RunResult<Vec<Vec<PathBuf>>> {
        let mut paths = vec![files.iter().map(|file| file.path()).collect::<Vec<_>>()];
        let leaders: Vec<Rank> = self.plane.iter().flat_map(|plane| plane.leaders().iter().copied().skip(1)).collect();
        let Some(plane) = self.plane.clone().filter(|_| !leaders.is_empty()) else { return Ok(paths) };
        for file in files {
            if self.remote_files.has(file) {
                continue;
            }
            file.send(|message| plane.tell_leaders(message)).map_err(RunError::system("sending a plan"))?;
            let leads = |rank| leaders.contains(&rank);
            let kept = self.gather(Question::Kept { file: file.id() }, self.options.ready_limit, leads, None)?;
            let paths = kept.into_iter().filter_map(|(_, answer)| match answer {
                Answer::Kept { path, .. } => Some(path),
                _ => None,
            });
            let forgotten = self.remote_files.keep(file, paths.collect());
            if !forgotten.is_empty() {
                plane.tell_leaders(&ToAgent::Forget { files: forgotten });
            }
        }
        paths.extend((0..leaders.len()).map(|machine| self.remote_files.paths(files, machine)));
        Ok(paths)
    }

    /// The machine of a rank; 0 is this one.
    fn machine_index(&self, rank: Rank) -> usize {
        self.plane.as_ref().map_or(0, |plane| plane.machine(rank))
    }

    /// Sends an order to every worker. A worker that takes no order within the ready limit does not run.
    fn order_each(&mut self, order: impl Fn(&Self, Rank) -> WorkerCommand) -> RunResult<()> {
        for index in 0..self.members.len() {
            let rank = Rank::from_index(index);
            let Err(error) = self.members[index].order(&order(self, rank)) else { continue };
            match error.kind() {
                io::ErrorKind::InvalidInput => {
                    return Err(RunError::System { what: "ordering the workers", source: error });
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    let limit = self.options.ready_limit;
                    let verdict = Verdict { rank, cause: Cause::Silent, phase: Phase::Prepare };
                    return Err(self.end(verdict, format!("it took no orders for {limit:?}")));
                }
                // A broken channel gives a `Gone` event, which says how the process ended.
                _ => {}
            }
        }
        Ok(())
    }
}
