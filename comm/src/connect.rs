//! How a process finds the other ranks.
//!
//! The principal type is [`Config`].

use crate::agreed::{AgreedTable, OwnTable};
use crate::communicator::{Communicator, LIMIT, WORLD};
use crate::error::{CommError, CommResult};
use crate::launcher::command::end_with_command;
use crate::launcher::environment::{Environment, Explicit, JobDescription, address_of, find};
use crate::launcher::{LaunchError, LaunchResult, interfaces, key};
use crate::log::{Says, say};
use crate::plan_store::PlanStore;
use crate::probe::link_costs;
use crate::statistics::StatisticsFile;
use crate::table::PlanTable;
use runtime::{Machine, Rendezvous, Session};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;
use tune::RankTransport;

/// How long to wait for the other ranks, if nobody says otherwise.
const JOINING: Duration = Duration::from_secs(60);

/// What a rank knows before it knows the others.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which rank this process is.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Where rank 0 waits for the others, `HOST:PORT`; several are tried in turn.
    pub masters: Vec<String>,
    /// What all ranks know, and nobody else: at least 16 bytes. `None` stands for `ANTIPHON_SECRET`, or mpirun's key of the
    /// job, or a file of the user.
    pub secret: Option<String>,
    /// A name of this machine: ranks with the same name share memory. `None` asks the system.
    pub machine: Option<String>,
    /// How ranks exchange data; the same on all ranks.
    pub transport: RankTransport,
    /// Where ranks of other machines reach this rank: the first of these interfaces, named by name, address or network,
    /// such as `ib0` or `10.1.0.0/16`. Without one, the interface that leads to rank 0.
    pub interfaces: Vec<String>,
    /// How long to wait for the other ranks.
    pub joining: Duration,
    /// How long a call may go without any progress.
    pub timeout: Duration,
    /// The plans to use: a file or folder that [`PlanTable`] reads, the same on all ranks. Without one, textbook algorithms
    /// serve all calls.
    pub table: Option<PathBuf>,
    /// One blocking call in this many is timed, with the table's plan or with stock, in classes of sizes up to twice the smallest.
    /// If stock is faster, it serves such calls, until the plan is faster again. The same on all ranks, which must all make blocking calls at the same places; 0 for none.
    pub confirm_every: u32,
    /// Whether rank 0 says on standard error which plan serves what.
    pub says_decisions: bool,
    /// The file that rank 0 writes at the end: which plan has served how many calls.
    pub statistics: Option<PathBuf>,
}

impl Config {
    /// A rank that finds the others at `master`, `HOST:PORT`.
    pub fn new(rank: usize, size: usize, master: impl Into<String>) -> Self {
        let masters = vec![master.into()];
        Self {
            rank,
            size,
            masters,
            secret: None,
            machine: None,
            transport: RankTransport::Auto,
            interfaces: Vec::new(),
            joining: JOINING,
            timeout: LIMIT,
            table: None,
            confirm_every: 0,
            says_decisions: false,
            statistics: None,
        }
    }

    /// What the environment says: `ANTIPHON_RANK`, `ANTIPHON_SIZE` and `ANTIPHON_MASTER`, or torchrun's, mpirun's or srun's
    /// variables; and what [`Self::read_env`] reads. Without any, this process is the only rank.
    ///
    /// # Errors
    /// [`CommError::Launch`] if a variable makes no sense.
    pub fn from_env() -> CommResult<Self> {
        let environment = Environment::of_process();
        let found = find(Explicit::default(), &environment)?;
        let mut config = Self::of(found.unwrap_or(JobDescription { rank: 0, ranks: 1, masters: Vec::new() }));
        config.read(&environment)?;
        Ok(config)
    }

    /// What a launcher says.
    pub fn of(JobDescription { rank, ranks, masters }: JobDescription) -> Self {
        Self { masters, ..Self::new(rank as usize, ranks as usize, String::new()) }
    }

    /// Reads what the environment says besides who this rank is: `ANTIPHON_TIMEOUT`, `ANTIPHON_TABLE`, `ANTIPHON_CONFIRM`,
    /// `ANTIPHON_DISABLE`, `ANTIPHON_DEBUG`, `ANTIPHON_STATS`, `ANTIPHON_HOST`, `ANTIPHON_TRANSPORT` (`auto`, `shm` or
    /// `tcp`) and `ANTIPHON_INTERFACE` (a list with commas).
    ///
    /// # Errors
    /// [`CommError::Launch`] if a variable makes no sense.
    pub fn read_env(&mut self) -> CommResult<()> {
        self.read(&Environment::of_process())
    }

    /// # Errors
    /// If the ranks are on several machines, and are to use shared memory.
    fn check_machines(&self, machines: &[u32]) -> LaunchResult<()> {
        let count = machines.iter().max().map_or(0, |last| last + 1);
        if self.transport == RankTransport::Shm && count > 1 {
            let what = format!("the ranks are on {count} machines, which share no memory");
            return Err(LaunchError::new(what).hint("the transport `auto` uses TCP between them"));
        }
        Ok(())
    }

    fn read(&mut self, environment: &Environment) -> CommResult<()> {
        if let Some(level) = environment.get("ANTIPHON_DEBUG") {
            self.says_decisions = matches!(level, "info" | "debug" | "trace" | "1");
        }
        if let Some(path) = environment.get("ANTIPHON_STATS") {
            self.statistics = Some(PathBuf::from(path));
        }
        if let Some(name) = environment.get("ANTIPHON_HOST") {
            self.machine = Some(name.to_owned());
        }
        if let Some(text) = environment.get("ANTIPHON_TRANSPORT") {
            let known = text.trim().parse().map_err(|why| LaunchError::new(format!("ANTIPHON_TRANSPORT: {why}")));
            self.transport = known?;
        }
        let named = environment.interfaces();
        if !named.is_empty() {
            self.interfaces = named;
        }
        if environment.get("ANTIPHON_DISABLE").is_some_and(|value| value != "0") {
            self.table = None;
        } else if let Some(path) = environment.get("ANTIPHON_TABLE") {
            self.table = Some(PathBuf::from(path));
        }
        if let Some(text) = environment.get("ANTIPHON_CONFIRM") {
            let every =
                text.trim().parse().map_err(|_| LaunchError::new(format!("ANTIPHON_CONFIRM={text} is no number")));
            self.confirm_every = every?;
        }
        if let Some(text) = environment.get("ANTIPHON_TIMEOUT") {
            let seconds: Option<f64> = text.trim().trim_end_matches('s').parse().ok();
            let limit =
                seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).filter(|it| !it.is_zero());
            self.timeout =
                limit.ok_or_else(|| LaunchError::new(format!("ANTIPHON_TIMEOUT={text} is no number of seconds")))?;
        }
        Ok(())
    }
}

impl Communicator {
    /// The communicator of all processes that a launcher has started, from the environment ([`Config::from_env`]).
    ///
    /// # Errors
    /// [`CommError::Launch`] if the environment makes no sense; [`CommError::Run`] if the ranks do not find each other.
    pub fn from_env() -> CommResult<Self> {
        Self::connect(&Config::from_env()?)
    }

    /// The communicator of all ranks that find each other at the same place.
    ///
    /// # Errors
    /// [`CommError::Argument`], [`CommError::Launch`], or [`CommError::Run`] if the ranks do not find each other.
    pub fn connect(config: &Config) -> CommResult<Self> {
        let Config { rank, size, .. } = *config;
        if rank >= size || u32::try_from(size).is_err() {
            return Err(CommError::Argument(format!("rank {rank} of {size}: ranks are counted from 0")));
        }
        config.masters.iter().filter(|_| size > 1).try_for_each(|master| address_of("the master", master).map(drop))?;
        end_with_command();
        let session = match size {
            1 => Session::local(1)?.pop(),
            _ => Some(Session::connect(&rendezvous(config)?, config.joining, config.timeout)?),
        };
        let session = session.ok_or_else(|| CommError::Argument("there is no rank".to_owned()))?;
        config.check_machines(session.machines())?;
        // Each rank says it of itself.
        if let Some(fault) = session.reading_fault() {
            Says { decisions: config.says_decisions, warnings: false }.info(|| {
                format!(
                    "rank {rank} cannot read the memory of other processes, so long messages are copied twice: {fault}"
                )
            });
        }
        let members = (0..size).map(Rank::from_index).collect();
        let says = Says { warnings: rank == 0, decisions: rank == 0 && config.says_decisions };
        let own = OwnTable::read(config.table.as_deref());
        let links = link_costs(&session, config.timeout)?;
        let file = config.statistics.clone().filter(|_| rank == 0).map(|path| Arc::new(StatisticsFile::new(path)));
        // A table that is confirmed by some ranks only is another table.
        let every = if own.is_empty() { 0 } else { config.confirm_every };
        let besides = u64::from(every) << 8 | config.transport as u64;
        let AgreedTable { table, lines, why_none } = own.agree(&session, besides, config.timeout)?;
        // Only ranks that have something to say have lines.
        lines.iter().for_each(|line| say(line));
        let plans = PlanStore::new(PlanTable::default(), says, links)
            .over(config.transport)
            .counted_in(file)
            .without_table_because(why_none);
        let made = Self::new(session, WORLD, (members, rank), config.timeout, Arc::new(plans));
        made.begin_with(table, every)?;
        Ok(made)
    }
}

fn rendezvous(config: &Config) -> CommResult<Rendezvous> {
    let secret = match &config.secret {
        Some(text) => key::of_text(text.as_bytes(), "the secret")?,
        None => key::secret(None, &Environment::of_process())?,
    };
    let machine = match &config.machine {
        Some(name) => Machine::named(name),
        None => Machine::here()?,
    };
    let rank = Rank::from_index(config.rank);
    let machine = if config.transport == RankTransport::Tcp { machine.of_rank(rank) } else { machine };
    Ok(Rendezvous {
        rank,
        ranks: config.size,
        masters: config.masters.clone(),
        secret,
        machine,
        interfaces: interfaces::addresses(&config.interfaces)?,
        found: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> CommResult<Config> {
        let mut config = Config::new(0, 2, "127.0.0.1:1");
        config.secret = Some("a secret for tests only".to_owned());
        config.read(&Environment::of(variables)).map(|()| config)
    }

    #[test]
    fn variables_say_how_ranks_exchange_data() {
        let transports = [("auto", RankTransport::Auto), ("shm", RankTransport::Shm), ("tcp", RankTransport::Tcp)];
        for (text, transport) in transports {
            assert_eq!(read(&[("ANTIPHON_TRANSPORT", text)]).unwrap().transport, transport);
        }
        assert_eq!(read(&[]).unwrap().transport, RankTransport::Auto);
        let error = read(&[("ANTIPHON_TRANSPORT", "rdma")]).unwrap_err().to_string();
        assert!(error.contains("ANTIPHON_TRANSPORT: rdma is none of auto, shm and tcp"), "{error}");

        let machine = |variables: &[_]| rendezvous(&read(variables).unwrap()).unwrap().machine;
        assert_eq!(machine(&[("ANTIPHON_TRANSPORT", "shm")]), Machine::here().unwrap());
        let alone = machine(&[("ANTIPHON_TRANSPORT", "tcp"), ("ANTIPHON_HOST", "n1")]);
        assert_eq!(alone, Machine::named("n1").of_rank(Rank(0)));
        let spread = read(&[("ANTIPHON_TRANSPORT", "shm")]).unwrap().check_machines(&[0, 1]).unwrap_err().to_string();
        assert!(spread.contains("2 machines") && spread.contains("hint: "), "{spread}");
        read(&[("ANTIPHON_TRANSPORT", "tcp")]).unwrap().check_machines(&[0, 1]).unwrap();
    }

    #[test]
    fn variables_say_where_others_reach_a_rank() {
        let of = |list| read(&[("ANTIPHON_INTERFACE", list)]).unwrap();
        assert_eq!(of("eth0, 10.1.0.0/16").interfaces, ["eth0", "10.1.0.0/16"]);
        let loopback: std::net::IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(rendezvous(&of("127.0.0.0/8")).unwrap().interfaces, [loopback]);
        assert!(rendezvous(&read(&[]).unwrap()).unwrap().interfaces.is_empty());
        let error = rendezvous(&of("nowhere7")).unwrap_err().to_string();
        assert!(error.contains("nowhere7") && error.contains("127.0.0.1"), "{error}");
    }
}
