//! Worker processes for the tests: this test binary, run again with one test selected.

use crate::plans::{PlanSpec, machine};
use runtime::{Job, JobSpec, Loader, RunResult, control_from_stdin, serve};
use schedule::program::VerifiedProgram;
use std::process::{Command, Stdio};
use topology::{Rank, Topology};

/// Set for workers only; what it says is mischief to do (see [`Mischief`]), or nothing.
const ROLE: &str = "RUNTIME_TEST_WORKER";

/// How a worker of a test misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mischief {
    None,
    /// Loads another plan than it is told.
    OtherPlan,
    /// Finds no plan.
    NoPlan,
    /// Dies before it joins.
    DiesAtOnce,
}

const MISCHIEF: [(&str, Mischief); 4] = [
    ("none", Mischief::None),
    ("other-plan", Mischief::OtherPlan),
    ("no-plan", Mischief::NoPlan),
    ("dies-at-once", Mischief::DiesAtOnce),
];

struct TestLoader(Mischief);

impl Loader for TestLoader {
    fn program(&self, source: &str) -> Result<VerifiedProgram, String> {
        let mut spec: PlanSpec = source.parse()?;
        match self.0 {
            Mischief::OtherPlan => spec.chunks += 1,
            Mischief::NoPlan => return Err("the file is gone".to_owned()),
            Mischief::None | Mischief::DiesAtOnce => {}
        }
        Ok(spec.program())
    }

    fn topology(&self, source: &str) -> Result<Topology, String> {
        Ok(machine(source))
    }
}

/// Not a test of its own: what a worker process runs. In the ordinary run of the tests the variable is not set.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mischief = MISCHIEF.iter().find(|(name, _)| *name == role).unwrap().1;
    if mischief == Mischief::DiesAtOnce {
        std::process::exit(3);
    }
    let result = serve(control_from_stdin().unwrap(), &TestLoader(mischief));
    std::process::exit(i32::from(result.is_err()));
}

/// Launches a job whose rank r misbehaves as `mischief(r)` says.
pub(crate) fn launch(spec: &JobSpec, mischief: impl Fn(Rank) -> Mischief) -> RunResult<Job> {
    let name = |mischief| MISCHIEF.iter().find(|(_, known)| *known == mischief).unwrap().0;
    Job::launch(spec, |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker::worker_process", "--nocapture"]).env(ROLE, name(mischief(rank)));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    })
}
