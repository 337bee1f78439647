//! Who starts the ranks of a command, and what this process is among them.
//!
//! The principal type is [`Launch`]. A command that has ranks asks [`Launch::of`] first. Ranks other than 0 of somebody
//! else's launch have nothing to decide: [`Role::Agent`] serves the coordinator and returns.

mod environment;
mod interfaces;
mod key;

use crate::cli::LaunchArgs;
use crate::failure::{Failure, Outcome};
use crate::workbench::fault;
use environment::{Environment, Found, launcher};
use runtime::{Machine, Rendezvous};
use std::path::{Path, PathBuf};
use std::process::Command;
use topology::Rank;

/// Who starts the ranks.
pub(crate) enum Launch {
    /// This process, so many.
    Local(usize),
    /// Somebody else; this is rank 0.
    Of(Box<Rendezvous>),
}

/// What this process is.
pub(crate) enum Role {
    /// It runs the command.
    Coordinator(Launch),
    /// It was one of the other ranks, and its part is done.
    Agent,
    /// Nobody said how many ranks there are.
    Open,
}

impl Launch {
    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Local(ranks) => *ranks,
            Self::Of(at) => at.ranks,
        }
    }
}

impl Role {
    /// What the command line and the environment make of this process. An agent's work is done when this returns.
    ///
    /// # Errors
    /// Bad input if a variable or an option makes no sense; what went wrong with the job, on an agent.
    pub(crate) fn take(args: &LaunchArgs) -> Outcome<Self> {
        if let Some(ranks) = args.ranks {
            return Ok(Self::Coordinator(Launch::Local(ranks as usize)));
        }
        let environment = Environment::of_process();
        let Some(found) = launcher(args, &environment)? else { return Ok(Self::Open) };
        let Found { rank, ranks, masters } = found;
        let machine = match environment.get("ANTIPHON_HOST") {
            Some(name) => Machine::named(name),
            None => Machine::here().map_err(Failure::no)?,
        };
        let secret = key::secret(args.secret_file.as_deref(), &environment)?;
        let named = environment.get("ANTIPHON_INTERFACE").filter(|_| args.interface.is_empty());
        let named = named.map(|list| list.split(',').map(str::to_owned).collect());
        let interfaces = interfaces::addresses(&named.unwrap_or_else(|| args.interface.clone()))?;
        let found = interfaces::found();
        let at = Rendezvous { rank: Rank(rank), ranks: ranks as usize, masters, secret, machine, interfaces, found };
        if rank == 0 {
            return Ok(Self::Coordinator(Launch::Of(Box::new(at))));
        }
        let binary = binary()?;
        runtime::attend(&at, args.ready_timeout, &mut || worker(&binary)).map_err(fault)?;
        Ok(Self::Agent)
    }
}

/// This program, to be started again.
///
/// # Errors
/// If the system does not say where it is.
pub(crate) fn binary() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(Failure::no)
}

/// The command that is one rank's worker.
pub(crate) fn worker(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("worker");
    command
}
