//! Runs plans on real buffers: starts local ranks or gathers those of a launcher, gives them plans, measures and
//! checks.
//!
//! The principal type is [`Workbench`]. Ranks get a plan as unnamed temporary files, which the system deletes when this process ends.
//! Ranks that share memory with the coordinator read their excerpts of the program that it has verified. All others
//! load, verify and lower the plan themselves. The runtime compares the hashes of the results.

use crate::amounts::bytes;
use crate::cli::{LoweringArgs, TransportChoice};
use crate::failure::{Failure, Outcome};
use crate::launch::{self, Launch};
use crate::loading::{ForeignSource, Form, LoadRequest, MemoryMode, PlanKind};
use crate::plan;
use program::{Layout, VerifiedProgram, has_excerpts, play, write_excerpts};
use runtime::{
    Assignment, Cause, Emulation, Group, Hosts, Job, JobSpec, Phase, RunError, SharedFile, Trial, TrialReport,
};
use schedule::{Request, VerifiedSchedule, file};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;
use topology::{Micros, Probe, Rank, Topology};

/// What to measure on.
pub(crate) struct Setup {
    /// How the ranks are started, and how many there are.
    pub launch: Launch,
    /// Processes or threads.
    pub transport: TransportChoice,
    /// The topology (a SPEC or a path) whose links are paced, and the factor by which they are slowed down.
    pub emulate: Option<(String, f64)>,
    /// How long all ranks together may take to get ready.
    pub ready_timeout: Duration,
    /// How long the ranks may be without progress; `None` if this follows from their work.
    pub timeout: Option<Duration>,
    /// How plans become programs.
    pub lowering: LoweringArgs,
}

/// Local ranks, ready to run plans.
pub(crate) struct Workbench {
    ranks: RunningRanks,
    form: Form,
    timeout: Option<Duration>,
    slowdown: f64,
}

enum RunningRanks {
    Processes(Box<Job>),
    Threads { count: usize, options: Box<runtime::ExecutionOptions> },
}

/// A plan that the ranks can load.
pub(crate) struct Installed {
    plan: SharedFile,
    topology: SharedFile,
    kind: PlanKind,
    request: Request,
    /// Its predicted time at the size that it was made for.
    predicted: Micros,
    /// The program for each kind of call that the plan serves.
    out_of_place: Option<Compiled>,
    in_place: Option<Compiled>,
}

/// The program of a plan for one kind of call.
struct Compiled {
    program: VerifiedProgram,
    /// The file of its excerpts for ranks that share memory, and its digest.
    excerpts: Option<(SharedFile, String)>,
}

impl Workbench {
    /// Starts the ranks.
    pub(crate) fn open(setup: &Setup) -> Outcome<Self> {
        let (ready_limit, work_limit) = (setup.ready_timeout, setup.timeout.unwrap_or(PATIENCE));
        let mut options = runtime::ExecutionOptions { ready_limit, work_limit, ..runtime::ExecutionOptions::default() };
        let mut emulated_source = String::new();
        let count = setup.launch.ranks();
        if let Some((spec, slowdown)) = &setup.emulate {
            let topology = plan::topology(spec)?;
            if topology.rank_count() != count {
                let needed = topology.rank_count();
                return Err(Failure::bad_input(anyhow::anyhow!("{spec} has {needed} ranks, but {count} are to run")));
            }
            options.emulation = Some(Emulation::new(topology, *slowdown).map_err(Failure::bad_input)?);
            emulated_source.clone_from(spec);
        }
        options.hosts = if setup.transport == TransportChoice::Tcp { Hosts::Each } else { Hosts::One };
        let spec = JobSpec { ranks: count, options, emulated_source };
        let ranks = match (&setup.launch, setup.transport) {
            (Launch::Local(_), TransportChoice::Threads) => {
                RunningRanks::Threads { count, options: Box::new(spec.options) }
            }
            (Launch::Local(_), _) => {
                let binary = launch::binary()?;
                RunningRanks::Processes(Box::new(Job::launch(&spec, |_| launch::worker(&binary)).map_err(fault)?))
            }
            (Launch::Of(_), TransportChoice::Threads) => {
                return Err(Failure::bad_input(anyhow::anyhow!("ranks that a launcher starts are no threads"))
                    .hint("--ranks N starts N ranks here, whatever the environment says"));
            }
            (Launch::Of(at), transport) => {
                let binary = launch::binary()?;
                let mut job = Job::form(&spec, at.meet(), |_| launch::worker(&binary)).map_err(fault)?;
                if transport == TransportChoice::Shm && job.machine_count() > 1 {
                    let what = format!("the ranks are on {} machines, which share no memory", job.machine_count());
                    job.call_off(&what);
                    return Err(
                        Failure::bad_input(anyhow::anyhow!(what)).hint("--transport auto uses TCP between them")
                    );
                }
                RunningRanks::Processes(Box::new(job))
            }
        };
        let form = Form { lowering: setup.lowering.clone(), unfused: setup.emulate.is_some() };
        let slowdown = setup.emulate.as_ref().map_or(1.0, |(_, slowdown)| *slowdown);
        Ok(Self { ranks, form, timeout: setup.timeout, slowdown })
    }

    /// Ends the job because of `failure`, and tells all ranks.
    pub(crate) fn call_off(&mut self, failure: &Failure) {
        if let RunningRanks::Processes(job) = &mut self.ranks {
            job.call_off(&failure.to_string());
        }
    }

    /// How long trials that run together may be without progress.
    fn patience(&self, trials: &[(&Installed, Group, Trial)]) -> Duration {
        let predicted = trials.iter().map(|(plan, _, trial)| plan.predicted(trial).0).sum::<f64>();
        let handled = |(plan, group, trial): &(&Installed, Group, Trial)| {
            bytes(&plan.request, trial) as f64 * group.ranks().len() as f64
        };
        let lanes = trials.iter().map(|(plan, ..)| plan.lanes()).sum();
        patience(Micros(predicted * self.slowdown), trials.iter().map(handled).sum(), lanes)
    }

    /// Writes a plan where the ranks can read it, and lowers it for both kinds of calls.
    pub(crate) fn install(&self, schedule: &VerifiedSchedule) -> Outcome<Installed> {
        let request = schedule.schedule().demand.request().clone();
        let serves_in_place = Layout::new(schedule.schedule().demand.clone(), true).is_ok();
        let compiled = |memory| self.compiled(self.form.compile(schedule, memory)?);
        Ok(Installed {
            plan: unnamed(|out| file::write(schedule, out))?,
            topology: unnamed(|out| out.write_all(topology::to_json(schedule.topology()).as_bytes()))?,
            kind: PlanKind::Schedule,
            request,
            predicted: schedule.schedule().makespan(),
            out_of_place: Some(compiled(MemoryMode::OutOfPlace)?),
            in_place: serves_in_place.then(|| compiled(MemoryMode::InPlace)).transpose()?,
        })
    }

    /// The program, with its excerpts if all ranks share memory with this process.
    fn compiled(&self, program: VerifiedProgram) -> Outcome<Compiled> {
        let is_shared = self.machines().is_some_and(|machines| machines.len() == 1) && has_excerpts(&program);
        let excerpts = || -> Outcome<_> {
            let mut digest = String::new();
            let file = unnamed(|out| write_excerpts(&program, out).map(|found| digest = found))?;
            Ok((file, digest))
        };
        Ok(Compiled { excerpts: is_shared.then(excerpts).transpose()?, program })
    }

    /// Writes a plan of another tool where the ranks can read it.
    pub(crate) fn install_foreign(&self, source: &ForeignSource<'_>, topology: &Arc<Topology>) -> Outcome<Installed> {
        let kind = PlanKind::Foreign(source.op);
        let of = |memory| -> Outcome<_> {
            self.form.foreign(source, topology, memory)?.map(|program| self.compiled(program)).transpose()
        };
        let (out_of_place, in_place) = (of(MemoryMode::OutOfPlace)?, of(MemoryMode::InPlace)?);
        let either = out_of_place.as_ref().or(in_place.as_ref()).map(|compiled| &compiled.program);
        let request = either.map(|program| program.program().demand.request().clone());
        let played = either.and_then(|program| play(program, topology).ok());
        Ok(Installed {
            plan: unnamed(|out| out.write_all(source.text.as_bytes()))?,
            topology: unnamed(|out| out.write_all(topology::to_json(topology).as_bytes()))?,
            kind,
            request: request
                .ok_or_else(|| Failure::no(anyhow::anyhow!("the plan can run neither in place nor out of place")))?,
            predicted: played.map_or(Micros::ZERO, |played| played.timeline.makespan()),
            out_of_place,
            in_place,
        })
    }

    /// The ranks of each machine; `None` if the ranks emulate other machines.
    pub(crate) fn machines(&self) -> Option<Vec<Vec<Rank>>> {
        match &self.ranks {
            RunningRanks::Processes(job) if !self.form.unfused => Some(job.machines()),
            _ => None,
        }
    }

    /// The ranks as a probe, which times exchanges.
    pub(crate) fn probe(&mut self) -> Outcome<&mut dyn Probe> {
        match &mut self.ranks {
            RunningRanks::Processes(job) => Ok(&mut **job),
            RunningRanks::Threads { .. } => Err(Failure::bad_input(anyhow::anyhow!("only processes are profiled"))),
        }
    }

    /// Runs one trial among all ranks.
    pub(crate) fn run(&mut self, plan: &Installed, memory: MemoryMode, trial: &Trial) -> Outcome<TrialReport> {
        let group = Group::all(plan.request.ranks);
        self.run_together(&[(plan, group, trial.clone())], memory).map(|mut reports| reports.remove(0))
    }

    /// Runs trials at the same time, each in its group.
    pub(crate) fn run_together(
        &mut self,
        trials: &[(&Installed, Group, Trial)],
        memory: MemoryMode,
    ) -> Outcome<Vec<TrialReport>> {
        let (mut assignments, mut words, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for (plan, group, trial) in trials {
            let Compiled { program, excerpts } = plan.compiled(memory).ok_or_else(|| {
                let kind = if memory == MemoryMode::InPlace { "in-place" } else { "out-of-place" };
                Failure::bad_input(anyhow::anyhow!("this {} has no {kind} form", plan.request.collective))
            })?;
            assignments.push(Assignment { program, group: group.clone(), trial: trial.clone() });
            let (source, of_source) = match excerpts {
                Some((excerpts, of)) => (LoadRequest::Excerpt { of: of.clone() }, vec![excerpts]),
                None => {
                    let kind = plan.kind.clone();
                    let form = self.form.clone();
                    (LoadRequest::Plan { kind, memory, form }, vec![&plan.plan, &plan.topology])
                }
            };
            words.push(serde_json::to_string(&source).map_err(Failure::no)?);
            files.push(of_source);
        }
        let limit = self.timeout.unwrap_or_else(|| self.patience(trials));
        match &mut self.ranks {
            RunningRanks::Threads { count, options } => {
                options.work_limit = limit;
                runtime::try_together(*count, &assignments, options).map_err(fault)
            }
            RunningRanks::Processes(job) => {
                job.allow(limit);
                let sources = words.iter().zip(&files).map(|(words, files)| runtime::ProgramSource { words, files });
                job.run_together(&sources.zip(assignments).collect::<Vec<_>>()).map_err(fault)
            }
        }
    }
}

/// How long ranks may be without progress if nothing that they do takes long.
const PATIENCE: Duration = Duration::from_secs(10);
/// A message may take this many times as long as the whole plan is predicted to take; during a message, no progress is
/// seen.
const SLACK: f64 = 2.0;
/// How many bytes per second all ranks of a slow machine fill and check together.
const HANDLING: f64 = 2e8;

/// How many connections per second all ranks of a slow machine prepare together before data moves.
const PREPARING: f64 = 1e3;

/// How long ranks may be without progress, for this predicted time, this many bytes in all buffers, and this many
/// connections.
fn patience(predicted: Micros, bytes: f64, lanes: usize) -> Duration {
    let longest = SLACK * predicted.0 * 1e-6 + bytes / HANDLING + lanes as f64 / PREPARING;
    PATIENCE.saturating_add(Duration::try_from_secs_f64(longest).unwrap_or(Duration::MAX))
}

const SECRETS: &str = "all ranks need the same secret: --secret-file F, ANTIPHON_SECRET, or a shared home folder";

/// A fault of a run as the answer "no"; the hint depends on the fault.
pub(crate) fn fault(error: RunError) -> Failure {
    let late = match &error {
        RunError::Deadline { phase, .. } => Some(*phase),
        RunError::Ended { verdict, .. } => match verdict.cause {
            Cause::Late | Cause::Silent => Some(verdict.phase),
            Cause::Died | Cause::Failed | Cause::Disagrees | Cause::Orphaned | Cause::Cut | Cause::Lost => None,
        },
        _ => None,
    };
    let mut lines = vec![error.to_string()];
    if let RunError::Ended { reports, .. } = &error {
        lines.extend(reports.iter().map(|(rank, words)| format!("  rank {rank}: {words}")));
    }
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        lines.push(format!("  {cause}"));
        source = cause.source();
    }
    let failure = Failure::no(anyhow::anyhow!("{}", lines.join("\n")));
    let failure = failure.hint_if(late.map(|phase| match phase {
        Phase::Prepare => "--ready-timeout gives ranks more time to get ready",
        _ => "`run --timeout` gives a repetition more time",
    }));
    failure.hint_if(match &error {
        RunError::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Some(SECRETS),
        RunError::Absent { refused: 1.., .. } => Some(SECRETS),
        RunError::Unreachable { .. } => {
            Some("every rank must be able to reach rank 0 at this address; --master HOST:PORT names another one")
        }
        RunError::Rendezvous { .. } => Some("--master HOST:PORT or ANTIPHON_PORT names another address or port"),
        RunError::Absent { .. } => Some("--ready-timeout gives the others more time"),
        _ => None,
    })
}

/// A file without a name, with the content that `write` gives it.
fn unnamed(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Outcome<SharedFile> {
    let written = tempfile::tempfile().and_then(|file| {
        let mut out = BufWriter::new(&file);
        write(&mut out)?;
        out.flush()?;
        drop(out);
        Ok(SharedFile::new(file))
    });
    written.map_err(|error| Failure::no(error).context("a temporary file could not be written"))
}

impl Installed {
    /// The request of the plan.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// The predicted time of a trial's collective: at most in proportion to its size.
    fn predicted(&self, trial: &Trial) -> Micros {
        let ratio = bytes(&self.request, trial) as f64 / (self.request.size_bytes.max(1)) as f64;
        self.predicted * ratio.max(1.0)
    }

    /// Whether it serves this kind of call.
    pub(crate) fn serves(&self, memory: MemoryMode) -> bool {
        self.compiled(memory).is_some()
    }

    fn compiled(&self, memory: MemoryMode) -> Option<&Compiled> {
        match memory {
            MemoryMode::OutOfPlace => self.out_of_place.as_ref(),
            MemoryMode::InPlace => self.in_place.as_ref(),
        }
    }

    /// The most connections of its programs.
    fn lanes(&self) -> usize {
        let both = [&self.out_of_place, &self.in_place].into_iter().flatten();
        both.map(|compiled| compiled.program.program().connections.len()).max().unwrap_or(0)
    }

    /// The number of elements of a block must be a multiple of this.
    pub(crate) fn granularity(&self) -> u64 {
        let both = [&self.out_of_place, &self.in_place].into_iter().flatten();
        let programs = both.map(|compiled| compiled.program.program());
        let parts = programs.filter(|program| program.uniform).map(|program| u64::from(program.shape.parts()));
        parts.max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_may_and_what_takes_a_moment_may_not() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let of = |predicted_us: f64, bytes: f64| patience(Micros(predicted_us), bytes, 12);
        assert!(patience(Micros(1.0), 1.0, 17_664) > Duration::from_secs(25), "24 ranks, 32 instances");
        assert!(of(6e8, 0.0) > minutes(10), "ten minutes");
        assert!(of(1e3, 4096.0) < Duration::from_secs(11), "a millisecond");
        assert!(of(1e3, 64e9) > minutes(5), "large buffers take long to fill");
        assert!(of(f64::INFINITY, 0.0) > minutes(1_000_000));
    }
}
