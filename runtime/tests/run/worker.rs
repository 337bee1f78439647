//! Worker processes for the tests: this test binary, started again with one test selected.

use crate::plans::{PlanSpec, machine};
use runtime::{
    DType, Job, JobSpec, Loaded, Loader, Machine, Rendezvous, RunResult, Secret, Trial, attend, control_from_stdin,
    serve,
};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use topology::{Rank, Topology};

/// Set for workers only: the name of the worker's [`Mischief`].
const ROLE: &str = "RUNTIME_TEST_WORKER";

/// Set for launchers that a test will kill: the plan to run.
const LAUNCHER: &str = "RUNTIME_TEST_LAUNCHER";

/// Set for agents only: rank, number of ranks, address of rank 0, name of the machine, and the worker's [`Mischief`].
const AGENT: &str = "RUNTIME_TEST_AGENT";

/// How a worker of a test misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mischief {
    None,
    /// Loads another plan than the one it is told to load, if the plan has several chunks.
    OtherPlan,
    /// Finds no plan if the plan has several chunks.
    NoPlan,
    /// Speaks another version of the protocol.
    OtherProtocol,
    /// Dies before it joins.
    DiesAtOnce,
}

const MISCHIEF: [(&str, Mischief); 5] = [
    ("none", Mischief::None),
    ("other-plan", Mischief::OtherPlan),
    ("no-plan", Mischief::NoPlan),
    ("other-protocol", Mischief::OtherProtocol),
    ("dies-at-once", Mischief::DiesAtOnce),
];

impl Mischief {
    fn name(self) -> &'static str {
        MISCHIEF.iter().find(|(_, known)| *known == self).unwrap().0
    }
}

struct TestLoader(Mischief);

impl Loader for TestLoader {
    fn program(&self, source: &str, _: &[std::path::PathBuf], _: Option<Rank>) -> Result<Loaded, String> {
        let mut spec: PlanSpec = source.parse()?;
        match self.0 {
            Mischief::OtherPlan if spec.chunks > 1 => spec.chunks += 1,
            Mischief::NoPlan if spec.chunks > 1 => return Err("the file is gone".to_owned()),
            _ => {}
        }
        Ok(Loaded::Whole(spec.program()))
    }

    fn topology(&self, source: &str) -> Result<Topology, String> {
        Ok(machine(source))
    }
}

/// Not a test, but the code of a worker process. In an ordinary run of the tests the variable is not set.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mischief = named(&role);
    if mischief == Mischief::OtherProtocol {
        return speak_otherwise();
    }
    if mischief == Mischief::DiesAtOnce {
        std::process::exit(3);
    }
    let result = serve(control_from_stdin().unwrap(), &TestLoader(mischief));
    std::process::exit(i32::from(result.is_err()));
}

/// Greets the launcher in a later version of the protocol, and waits until the launcher leaves.
fn speak_otherwise() {
    let mut control = control_from_stdin().unwrap();
    let hello = r#"{"hello":{"protocol":9999,"rank":1}}"#;
    control.write_all(&(hello.len() as u32).to_le_bytes()).and_then(|()| control.write_all(hello.as_bytes())).unwrap();
    // The launcher may kill this process before.
    drop(std::io::copy(&mut control, &mut std::io::sink()));
}

fn named(name: &str) -> Mischief {
    MISCHIEF.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Not a test, but a launcher that prints the process ids of its workers and then runs an endless trial.
#[test]
fn launcher_process() {
    let Ok(spec) = std::env::var(LAUNCHER) else { return };
    let spec: PlanSpec = spec.parse().unwrap();
    let mut job =
        launch(&JobSpec { ranks: spec.topology().rank_count(), ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let processes: Vec<_> = job.process_ids().iter().map(u32::to_string).collect();
    println!("workers {}", processes.join(" "));
    let trial = Trial { warmups: u32::MAX, ..Trial::once(1000, DType::F32) };
    job.run(&spec.to_string(), &[], &spec.program(), &trial).unwrap();
}

/// Not a test, but an agent.
#[test]
fn agent_process() {
    let Ok(place) = std::env::var(AGENT) else { return };
    let [rank, ranks, at, machine, mischief] = place.split(' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let at = rendezvous(rank.parse().unwrap(), ranks.parse().unwrap(), at, machine);
    let result = attend(&at, Duration::from_secs(20), &mut || command(named(mischief)));
    std::process::exit(i32::from(result.is_err()));
}

/// What a rank of the tests knows before it has met the others.
pub(crate) fn rendezvous(rank: u32, ranks: usize, at: &str, machine: &str) -> Rendezvous {
    Rendezvous {
        rank: Rank(rank),
        ranks,
        masters: vec![at.to_owned()],
        secret: Secret::from_text(b"a secret of tests"),
        machine: Machine::named(machine),
        interfaces: Vec::new(),
        found: Vec::new(),
    }
}

/// Starts [`agent_process`].
pub(crate) fn start_agent(rank: usize, ranks: usize, at: &str, machine: &str, mischief: Mischief) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "worker::agent_process"])
        .env(AGENT, format!("{rank} {ranks} {at} {machine} {}", mischief.name()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts [`launcher_process`], whose standard output the caller reads.
pub(crate) fn start_launcher(spec: &PlanSpec) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker::launcher_process", "--nocapture"]).env(LAUNCHER, spec.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Launches a job. The worker of rank r misbehaves as `mischief(r)` says.
pub(crate) fn launch(spec: &JobSpec, mischief: impl Fn(Rank) -> Mischief) -> RunResult<Job> {
    Job::launch(spec, |rank| command(mischief(rank)))
}

/// The command that starts a worker.
pub(crate) fn command(mischief: Mischief) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker::worker_process", "--nocapture"]).env(ROLE, mischief.name());
    command.env_remove(LAUNCHER).env_remove(AGENT);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
