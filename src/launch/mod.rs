//! How the ranks of a command are started, and which of them this process is.
//!
//! The principal type is [`Launch`]. A command with ranks calls [`Launch::of`] first. If another program started the
//! ranks, only rank 0 runs the command; on the others, [`Role::Agent`] serves the coordinator and returns.

pub(crate) mod library;

use crate::cli::{LaunchArgs, MOST_LOCAL_RANKS};
use crate::failure::{Failure, Outcome, read_text};
use crate::workbench::fault;
use comm::Config;
use comm::launcher::environment::{Environment, Explicit, JobDescription, find};
use comm::launcher::{LaunchError, interfaces, key};
use runtime::{Machine, Rendezvous};
use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use topology::Rank;

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        let LaunchError { text, hint } = error;
        Self::bad_input(anyhow::anyhow!(text)).hint_if(hint)
    }
}

/// What the command line says of the job.
fn explicit(args: &LaunchArgs) -> Explicit<'_> {
    Explicit { rank: args.rank, ranks: args.world_size, master: args.master.as_deref() }
}

/// What starts the ranks.
pub(crate) enum Launch {
    /// This process starts this many.
    Local(usize),
    /// Another program started them; this process is rank 0.
    Of(JoiningRank),
}

/// A rank that another program has started, until it meets the others.
#[derive(Clone)]
pub(crate) struct JoiningRank {
    at: Box<Rendezvous>,
    /// How long to wait for the others.
    limit: Duration,
    has_met: Rc<Cell<bool>>,
}

impl JoiningRank {
    /// The rank that options and environment describe, if this process is one of several ranks.
    pub(crate) fn of(args: &LaunchArgs) -> Option<Self> {
        let environment = Environment::of_process();
        let found = if args.ranks.is_none() { find(explicit(args), &environment).ok()?? } else { return None };
        Self::found(args, &environment, found).ok()
    }

    /// # Errors
    /// Bad input if there is no secret, or this machine is unknown.
    fn found(args: &LaunchArgs, environment: &Environment, found: JobDescription) -> Outcome<Self> {
        let JobDescription { rank, ranks, masters } = found;
        let machine = match environment.get("ANTIPHON_HOST") {
            Some(name) => Machine::named(name),
            None => Machine::here().map_err(Failure::no)?,
        };
        let secret = key::secret(args.secret_file.as_deref(), environment)?;
        let (rank, ranks, interfaces) = (Rank(rank), ranks as usize, Vec::new());
        let at = Box::new(Rendezvous { rank, ranks, masters, secret, machine, interfaces, found: Vec::new() });
        Ok(Self { at, limit: args.ready_limit(ranks), has_met: Rc::default() })
    }

    /// Where it meets the others. From now on they learn of failures there.
    pub(crate) fn meet(&self) -> &Rendezvous {
        self.has_met.set(true);
        &self.at
    }

    /// Tells the others, if they still wait, that this rank does not come, and why.
    pub(crate) fn call_off(&self, reason: &str) {
        if !self.has_met.get() {
            self.at.call_off(self.limit, reason);
        }
    }

    /// A failure whose text is sent to the others after it was shown.
    fn excuse(&self, failure: Failure) -> Failure {
        let waiting = self.clone();
        failure.and_tell(move |reason| waiting.call_off(reason))
    }
}

/// The role of this process.
pub(crate) enum Role {
    /// It runs the command.
    Coordinator(Launch),
    /// It was one of the other ranks, and its part is done.
    Agent,
    /// The number of ranks is not given.
    Open,
}

impl Launch {
    /// Local processes for a plan.
    ///
    /// # Errors
    /// Bad input if there would be more than `--ranks` allows: a short file can name a machine of very many ranks.
    pub(crate) fn local(ranks: usize) -> Outcome<Self> {
        if ranks > MOST_LOCAL_RANKS as usize {
            let what = format!("the plan has {ranks} ranks, and at most {MOST_LOCAL_RANKS} start on one computer");
            return Err(Failure::bad_input(anyhow::anyhow!(what)).hint("start them elsewhere: --rank, --world-size"));
        }
        Ok(Self::Local(ranks))
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Local(ranks) => *ranks,
            Self::Of(waiting) => waiting.at.ranks,
        }
    }
}

impl Role {
    /// The role that the command line and the environment give to this process. An agent's work is done when this
    /// returns.
    ///
    /// # Errors
    /// Bad input if a variable or an option makes no sense; on an agent, the error of the job.
    pub(crate) fn take(args: &LaunchArgs) -> Outcome<Self> {
        if let Some(ranks) = args.ranks {
            return Ok(Self::Coordinator(Launch::Local(ranks as usize)));
        }
        let environment = Environment::of_process();
        let Some(found) = find(explicit(args), &environment)? else { return Ok(Self::Open) };
        let mut waiting = JoiningRank::found(args, &environment, found)?;
        let named = if args.interface.is_empty() { environment.interfaces() } else { args.interface.clone() };
        waiting.at.interfaces = interfaces::addresses(&named).map_err(|error| waiting.excuse(error.into()))?;
        waiting.at.found = interfaces::found();
        if waiting.at.rank == Rank(0) {
            return Ok(Self::Coordinator(Launch::Of(waiting)));
        }
        let binary = binary().map_err(|failure| waiting.excuse(failure))?;
        runtime::attend(waiting.meet(), waiting.limit, &mut || worker(&binary)).map_err(fault)?;
        Ok(Self::Agent)
    }

    /// Runs `conduct` on the process that runs the command. If it fails before the ranks have met, the others get the
    /// reason.
    pub(crate) fn play(self, conduct: impl FnOnce(Option<Launch>) -> Outcome) -> Outcome {
        match self {
            Self::Agent => Ok(()),
            Self::Open => conduct(None),
            Self::Coordinator(Launch::Of(waiting)) => {
                let launch = Launch::Of(waiting.clone());
                conduct(Some(launch)).map_err(|failure| waiting.excuse(failure))
            }
            Self::Coordinator(launch) => conduct(Some(launch)),
        }
    }
}

/// How this process joins the others as a program that uses the library, if somebody else has started all ranks.
///
/// # Errors
/// Bad input if a variable or an option makes no sense.
pub(crate) fn config_of(args: &LaunchArgs) -> Outcome<Option<Config>> {
    let Some(found) = find(explicit(args), &Environment::of_process())? else { return Ok(None) };
    let mut config = Config::of(found);
    config.read_env().map_err(Failure::bad_input)?;
    config.secret = args.secret_file.as_deref().map(read_text).transpose()?.map(|text| text.trim().to_owned());
    if !args.interface.is_empty() {
        config.interfaces.clone_from(&args.interface);
    }
    config.joining = args.ready_limit(config.size);
    config.table = None;
    Ok(Some(config))
}

/// The path of this program, to start it again.
///
/// # Errors
/// If the system does not tell the path.
pub(crate) fn binary() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(Failure::no)
}

/// The command that starts one rank's worker. The worker has its own process group, so that Ctrl-C reaches only its
/// launcher, which reports it. A worker whose launcher has ended ends by itself.
pub(crate) fn worker(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("worker").process_group(0);
    command
}
