//! Workers of agents: jobs on several machines, also after a fault.

use crate::cut::cut;
use crate::plans::{COLLECTIVES, PlanSpec};
use crate::worker::{Mischief, command, launch, rendezvous, start_agent};
use runtime::{Cause, DType, ExecutionOptions, Job, JobSpec, RunError, RunResult, Trial};
use schedule::Collective;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use topology::Rank;

/// A job whose ranks, except rank 0, are agents. They end with the job.
pub(crate) struct Spread {
    job: Option<Job>,
    agents: Vec<Child>,
}

impl Spread {
    pub(crate) fn form(machines: &[&str], work_limit: Duration) -> Self {
        Self::with(machines, work_limit, Duration::from_secs(20))
    }

    pub(crate) fn with(machines: &[&str], work_limit: Duration, ready_limit: Duration) -> Self {
        let (spread, error) = Self::with_odd(machines, (work_limit, ready_limit), |_| Mischief::None);
        assert!(error.is_none(), "{error:?}");
        spread
    }

    /// Lets workers of agents misbehave. Also returns the error if the job cannot be formed.
    pub(crate) fn with_odd(
        machines: &[&str],
        (work_limit, ready_limit): (Duration, Duration),
        mischief: impl Fn(usize) -> Mischief,
    ) -> (Self, Option<RunError>) {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let ranks = machines.len();
        let start = |(rank, machine): (usize, &&str)| start_agent(rank, ranks, &at, machine, mischief(rank));
        let agents = machines.iter().enumerate().skip(1).map(start).collect();
        let options = ExecutionOptions { work_limit, ready_limit, ..ExecutionOptions::default() };
        let spec = JobSpec { ranks, options, ..JobSpec::default() };
        let job = Job::form(&spec, &rendezvous(0, ranks, &at, machines[0]), |_| command(Mischief::None));
        let (job, error) = job.map_or_else(|error| (None, Some(error)), |job| (Some(job), None));
        (Self { job, agents }, error)
    }

    pub(crate) fn job(&mut self) -> &mut Job {
        self.job.as_mut().unwrap()
    }

    /// The process id of an agent.
    pub(crate) fn agent(&self, rank: usize) -> u32 {
        self.agents[rank - 1].id()
    }

    /// The process ids of the workers of all agents.
    pub(crate) fn workers(&self) -> Vec<u32> {
        (1..=self.agents.len()).map(|rank| self.worker(rank)).collect()
    }

    /// The process id of an agent's worker.
    pub(crate) fn worker(&self, rank: usize) -> u32 {
        let parent = self.agent(rank);
        let processes = std::fs::read_dir("/proc").unwrap();
        let mut numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let is_child = |child: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok()) == Some(parent)
        };
        numbers.find(is_child).unwrap()
    }

    /// Ends the job. Returns the exit codes of the agents.
    pub(crate) fn end(mut self) -> Vec<i32> {
        drop(self.job.take());
        self.agents.iter_mut().map(|agent| agent.wait().unwrap().code().unwrap_or(-1)).collect()
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        drop(self.job.take());
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

pub(crate) fn run(job: &mut Job, spec: &PlanSpec, trial: &Trial) -> RunResult<u64> {
    job.run(&spec.to_string(), &[], &spec.program(), trial).map(|report| {
        // The times of all machines belong to one clock: no rank ends before another one starts.
        for (repetition, span) in report.spans().iter().enumerate() {
            let longest = report.ranks.iter().map(|rank| rank.samples[repetition]);
            let longest = longest.map(|sample| sample.end.micros_since(sample.start).0).fold(0.0, f64::max);
            assert!(span.0 + 1e-6 >= longest && span.0 < 5e6, "{span} in all, {longest} at one rank");
        }
        report.wrong()
    })
}

pub(crate) fn plan(ranks: usize) -> PlanSpec {
    PlanSpec { chunks: 2, ..PlanSpec::new(&format!("ring:{ranks}"), Collective::AllReduce) }
}

pub(crate) fn endless() -> Trial {
    Trial { repetitions: 1_000_000, ..Trial::once(1000, DType::F32) }
}

pub(crate) fn kill(process: u32) {
    signal(process, "-KILL");
}

pub(crate) fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

#[test]
fn ranks_of_several_machines_run_every_collective() {
    for machines in [&["a", "a", "a"][..], &["a", "b", "b", "a", "c"]] {
        let mut spread = Spread::form(machines, Duration::from_secs(30));
        assert_eq!(spread.job().machine_count(), if machines.len() == 3 { 1 } else { 3 });
        for collective in COLLECTIVES {
            let spec = PlanSpec { chunks: 2, ..PlanSpec::new(&format!("ring:{}", machines.len()), collective) };
            for (count, dtype) in [(17, DType::I32), (30_000, DType::F64)] {
                let trial = Trial { warmups: 1, repetitions: 3, ..Trial::once(count, dtype) };
                assert_eq!(run(spread.job(), &spec, &trial).unwrap(), 0, "{spec}");
            }
        }
        assert!(spread.end().iter().all(|&code| code == 0));
    }
}

/// Calls `act` as soon as a rank has finished another step. Then all ranks have voted for the plan that runs.
pub(crate) fn when_it_works<T: Send + 'static>(
    job: &Job,
    rank: usize,
    act: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (watch, rank) = (job.watch(), Rank::from_index(rank));
    let before = watch.steps(rank);
    std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while watch.steps(rank) == before {
            assert!(Instant::now() < deadline, "rank {rank} does not work");
            std::thread::yield_now();
        }
        act()
    })
}

/// Kills a rank's worker while it works, and checks the verdict.
fn fault(spread: &mut Spread, victim: usize) {
    let ranks = spread.agents.len() + 1;
    let worker = spread.worker(victim);
    let killer = when_it_works(spread.job(), victim, move || kill(worker));
    let error = run(spread.job(), &plan(ranks), &endless()).unwrap_err();
    killer.join().unwrap();
    let RunError::Ended { verdict, evidence, reports } = error else { panic!("{error}") };
    assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), Cause::Died), "{evidence}");
    assert!(evidence.contains("signal: 9") && evidence.contains("on machine"), "{evidence}");
    let others: Vec<_> = (0..ranks).filter(|&rank| rank != victim).map(Rank::from_index).collect();
    assert_eq!(reports.iter().map(|report| report.0).collect::<Vec<_>>(), others, "{reports:?}");
}

#[test]
fn after_a_verdict_an_epoch_begins_with_new_workers() {
    let mut spread = Spread::form(&["a", "b", "b", "a"], Duration::from_secs(20));
    for victim in [2, 1, 3] {
        fault(&mut spread, victim);
        assert!(matches!(run(spread.job(), &plan(4), &Trial::once(10, DType::F32)), Err(RunError::Verdict(_))));
        spread.job().rebuild(|_| command(Mischief::None)).unwrap();
        for count in [1, 5000] {
            assert_eq!(run(spread.job(), &plan(4), &Trial::once(count, DType::F32)).unwrap(), 0);
        }
    }
    // The last epoch ended without an error, so the agents do too.
    assert_eq!(spread.end(), [0, 0, 0]);
}

#[test]
fn a_local_job_is_rebuilt_as_well() {
    let mut job = launch(&JobSpec { ranks: 3, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    for victim in 0..3 {
        let worker = job.process_ids()[victim];
        kill(worker);
        let error = run(&mut job, &plan(3), &endless()).unwrap_err();
        assert!(matches!(error, RunError::Ended { verdict, .. } if verdict.rank.index() == victim), "{error}");
        job.rebuild(|_| command(Mischief::None)).unwrap();
        assert_eq!(run(&mut job, &plan(3), &Trial::once(5000, DType::F32)).unwrap(), 0);
    }
}

#[test]
fn a_cut_control_connection_ends_the_job_on_both_sides() {
    let limit = Duration::from_secs(10);
    let mut spread = Spread::form(&["a", "b", "c"], limit);
    let agent = spread.agent(2);
    let cutter = when_it_works(spread.job(), 2, move || assert!(cut(agent), "the agent has no connection"));
    let begin = Instant::now();
    let error = run(spread.job(), &plan(3), &endless()).unwrap_err();
    cutter.join().unwrap();
    assert!(begin.elapsed() < limit, "the error came after {:?}", begin.elapsed());
    let RunError::Ended { verdict, evidence, .. } = error else { panic!("{error}") };
    assert_eq!((verdict.rank, verdict.cause), (Rank(2), Cause::Lost), "{evidence}");
    assert!(evidence.contains("on machine c"), "{evidence}");
    assert_eq!(spread.end(), [1, 1]);
}

#[test]
fn a_rank_whose_agent_is_gone_cannot_come_back() {
    let mut spread = Spread::form(&["a", "b", "c"], Duration::from_secs(20));
    kill(spread.agents[1].id());
    let error = run(spread.job(), &plan(3), &endless()).unwrap_err();
    assert!(matches!(error, RunError::Ended { verdict, .. } if verdict.rank == Rank(2)), "{error}");
    let error = spread.job().rebuild(|_| command(Mischief::None)).unwrap_err();
    assert!(matches!(&error, RunError::Departed { rank: Rank(2), machine } if machine == "c"), "{error}");
    assert_eq!(spread.end(), [1, -1]);
}
