//! The variables with which launchers describe a job to the processes that they start.
//!
//! The principal function is [`find`]. Explicit options come first, then `ANTIPHON_RANK` and its companions, then torchrun's
//! variables, then those of Open MPI and of PMI (MPICH, Intel MPI), then Slurm's. A variable that is missing or makes no sense is an error that names
//! it: a rank with a wrong guess would wait for ranks that never come.

use super::{LaunchError, LaunchResult};
use std::collections::BTreeMap;

/// The most ranks of a launch.
const MOST_RANKS: u32 = 1 << 20;
/// The first of the ports that are derived from a job's name; they are below the range that systems assign.
const FIRST_PORT: u16 = 20_000;
/// The number of these ports.
const PORTS: u64 = 10_000;
/// The step numbers that Slurm uses for batch scripts and the like, in which `srun` started nothing.
const SLURM_RESERVED: u64 = 0xffff_fff0;

/// Variables of a process.
pub struct Environment(BTreeMap<String, String>);

/// What a user says of a job, before the environment is asked.
#[derive(Clone, Copy, Default, Debug)]
pub struct Explicit<'a> {
    /// Which rank this is.
    pub rank: Option<u32>,
    /// How many ranks there are.
    pub ranks: Option<u32>,
    /// The address of rank 0, `HOST:PORT`.
    pub master: Option<&'a str>,
}

/// The description of a job by its launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobDescription {
    /// Which rank this is.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// The addresses of rank 0, `HOST:PORT`.
    pub masters: Vec<String>,
}

impl Environment {
    /// The variables of this process; values that are not text are ignored, because no launcher sets such.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    #[cfg(test)]
    pub(crate) fn of(variables: &[(&str, &str)]) -> Self {
        Self(variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The interfaces that `ANTIPHON_INTERFACE` names.
    pub fn interfaces(&self) -> Vec<String> {
        let list = self.get("ANTIPHON_INTERFACE").into_iter();
        list.flat_map(|list| list.split(',').map(|name| name.trim().to_owned())).collect()
    }

    fn number(&self, name: &str) -> LaunchResult<Option<u64>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.trim().parse().map_err(|_| bad(format!("{name}={text} is not a number")))?;
        Ok(Some(number))
    }

    fn port(&self, name: &str, add: u64) -> LaunchResult<Option<u16>> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        let port = number.checked_add(add).and_then(|port| u16::try_from(port).ok()).filter(|&port| port > 0);
        let odd = || match add {
            0 => bad(format!("{name}={number} is not a port")),
            _ => bad(format!("{name}={number} leaves no port after it")).hint("ANTIPHON_PORT names another one"),
        };
        port.ok_or_else(odd).map(Some)
    }

    /// Rank and number of ranks, if one of the variables is set.
    fn place(&self, rank: &str, ranks: &str) -> LaunchResult<Option<(u32, u32)>> {
        match (self.number(rank)?, self.number(ranks)?) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(half(rank, ranks)),
            (None, Some(_)) => Err(half(ranks, rank)),
            (Some(_), Some(size)) if size == 0 || size > u64::from(MOST_RANKS) => {
                Err(bad(format!("{ranks}={size}: there can be 1 to {MOST_RANKS} ranks")))
            }
            (Some(at), Some(size)) if at >= size => {
                Err(bad(format!("{rank}={at}, but {ranks}={size}: ranks are counted from 0")))
            }
            (Some(at), Some(size)) => Ok(Some((at as u32, size as u32))),
        }
    }
}

fn bad(what: String) -> LaunchError {
    LaunchError::new(what)
}

fn half(set: &str, missing: &str) -> LaunchError {
    bad(format!("{set} is set, but {missing} is not")).hint(
        "set both, or neither; for commands, --ranks N starts N ranks here, whatever the environment says, and \
             --rank and --world-size say it explicitly",
    )
}

fn no_master(what: &str) -> LaunchError {
    bad(format!("{what} does not say where rank 0 is"))
        .hint("MASTER_ADDR, or --master HOST:PORT, names an address of rank 0's machine")
}

/// The launch that the command line and the environment describe; `None` if this process was not started as one of
/// several.
///
/// # Errors
/// Bad input that names the variable or option.
pub fn find(explicit: Explicit<'_>, environment: &Environment) -> LaunchResult<Option<JobDescription>> {
    let master = explicit.master.map(|master| address_of("--master", master)).transpose()?;
    let found = match (explicit.rank, explicit.ranks) {
        (Some(rank), Some(ranks)) if rank >= ranks => {
            return Err(bad(format!("--rank {rank}, but --world-size {ranks}: ranks are counted from 0")));
        }
        (Some(rank), Some(ranks)) => Some((rank, ranks, LauncherKind::Explicit)),
        _ => started(environment)?,
    };
    let Some((rank, ranks, kind)) = found else {
        let lonely = "--master says where rank 0 is, but not which rank this is";
        return match master {
            Some(_) => Err(bad(lonely.to_owned()).hint("--rank R and --world-size N say it")),
            None => Ok(None),
        };
    };
    let masters = match master {
        Some(master) => vec![master],
        None if ranks == 1 => Vec::new(),
        None => kind.masters(ranks, environment)?,
    };
    masters.iter().try_for_each(|master| general(master))?;
    Ok(Some(JobDescription { rank, ranks, masters }))
}

fn general(master: &str) -> LaunchResult<()> {
    let host = master.strip_prefix('[').and_then(|rest| rest.split([']', '%']).next()).unwrap_or_default();
    match host.parse::<std::net::IpAddr>() {
        Ok(address) if runtime::is_for_one_link(address) => {
            Err(bad(format!("{master}, where rank 0 is to be, is valid on one link only"))
                .hint("--master NAME:PORT, or another address of rank 0's machine"))
        }
        _ => Ok(()),
    }
}

/// `HOST:PORT`, checked; `name` is where it comes from.
///
/// # Errors
/// If it has another form.
pub fn address_of(name: &str, master: &str) -> LaunchResult<String> {
    let port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    let is_address = master.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() > 0);
    let is_name = || master.split_once(':').is_some_and(|(host, text)| !host.is_empty() && port(text));
    match is_address || is_name() {
        true => Ok(master.to_owned()),
        false => Err(bad(format!("{name} {master} is not of the form HOST:PORT"))
            .hint("IPv6 addresses are written in brackets: [fd00::1]:29500")),
    }
}

/// The launcher of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LauncherKind {
    Explicit,
    /// The variables of this project.
    Antiphon,
    Torchrun,
    OpenMpi,
    Pmi,
    Slurm,
}

/// Rank, number of ranks and launcher, from the variables of the first launcher that set any.
fn started(environment: &Environment) -> LaunchResult<Option<(u32, u32, LauncherKind)>> {
    let names = [
        ("ANTIPHON_RANK", "ANTIPHON_SIZE", LauncherKind::Antiphon),
        ("RANK", "WORLD_SIZE", LauncherKind::Torchrun),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", LauncherKind::OpenMpi),
        ("PMI_RANK", "PMI_SIZE", LauncherKind::Pmi),
    ];
    for (rank, ranks, kind) in names {
        if let Some((rank, ranks)) = environment.place(rank, ranks)? {
            return Ok(Some((rank, ranks, kind)));
        }
    }
    // A batch script has most of Slurm's variables, but is not one of several processes.
    let step = environment.number("SLURM_STEP_ID")?.or(environment.number("SLURM_STEPID")?);
    if environment.get("SLURM_PROCID").is_none() || step.is_none_or(|step| step >= SLURM_RESERVED) {
        return Ok(None);
    }
    let ranks = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let ranks = ranks.into_iter().find(|name| environment.get(name).is_some()).unwrap_or(ranks[1]);
    Ok(environment.place("SLURM_PROCID", ranks)?.map(|(rank, ranks)| (rank, ranks, LauncherKind::Slurm)))
}

impl LauncherKind {
    /// The addresses of rank 0.
    fn masters(self, ranks: u32, environment: &Environment) -> LaunchResult<Vec<String>> {
        if self == Self::Antiphon {
            let master = environment.get("ANTIPHON_MASTER").ok_or_else(|| half("ANTIPHON_RANK", "ANTIPHON_MASTER"))?;
            return Ok(vec![address_of("ANTIPHON_MASTER", master)?]);
        }
        if let Some(host) = environment.get("MASTER_ADDR") {
            let port = match environment.port("ANTIPHON_PORT", 0)? {
                Some(port) => port,
                // The port itself is used by torchrun's store.
                None => match environment.port("MASTER_PORT", 1)? {
                    Some(port) => port,
                    None => return Err(half("MASTER_ADDR", "MASTER_PORT")),
                },
            };
            return Ok(vec![address(host, port)]);
        }
        match self {
            Self::Explicit | Self::Antiphon => Err(no_master("--rank")),
            Self::Torchrun => {
                Err(half("RANK", "MASTER_ADDR").hint("--master HOST:PORT names an address of rank 0's machine as well"))
            }
            Self::OpenMpi => {
                let port = named_port(environment, &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])?;
                if environment.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(u64::from(ranks)) {
                    return Ok(vec![address("127.0.0.1", port)]);
                }
                let hosts = environment.get("OMPI_MCA_orte_hnp_uri").map(head_addresses).unwrap_or_default();
                match hosts.is_empty() {
                    true => Err(no_master("mpirun")),
                    false => Ok(hosts.iter().map(|host| address(host, port)).collect()),
                }
            }
            Self::Pmi => {
                let here = environment.number("MPI_LOCALNRANKS")?.or(environment.number("PMI_LOCAL_SIZE")?);
                match here == Some(u64::from(ranks)) {
                    true => Ok(vec![address("127.0.0.1", named_port(environment, &["PMI_JOBID", "PMI_ID"])?)]),
                    false => Err(no_master("the launcher")),
                }
            }
            Self::Slurm => {
                let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
                let list = lists.into_iter().find_map(|name| environment.get(name).map(|list| (name, list)));
                let Some((name, list)) = list else { return Err(no_master("srun")) };
                let host = first_host(list).ok_or_else(|| bad(format!("{name}={list} names no machine")))?;
                Ok(vec![address(&host, named_port(environment, &["SLURM_JOB_ID", "SLURM_STEP_ID"])?)])
            }
        }
    }
}

fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A port that all ranks of a job derive from its name, so that two jobs on one machine seldom get the same port.
fn named_port(environment: &Environment, names: &[&str]) -> LaunchResult<u16> {
    if let Some(port) = environment.port("ANTIPHON_PORT", 0)? {
        return Ok(port);
    }
    let name: Vec<&str> = names.iter().filter_map(|name| environment.get(name)).collect();
    let hash = name
        .join(".")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Ok(FIRST_PORT + (hash % PORTS) as u16)
}

/// The addresses of mpirun's machine, from `JOB;tcp://A,B:PORT;tcp6://…`.
fn head_addresses(uri: &str) -> Vec<String> {
    let ends = uri.split(';').filter_map(|part| part.strip_prefix("tcp://"));
    let hosts = ends.filter_map(|end| end.rsplit_once(':')).flat_map(|(hosts, _)| hosts.split(','));
    hosts.filter(|host| host.parse::<std::net::Ipv4Addr>().is_ok()).map(str::to_owned).collect()
}

/// The first machine of a list such as `node[003-010,12],gpu1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let prefix = &list[..end];
    let host = match list[end..].strip_prefix('[') {
        None => prefix.to_owned(),
        Some(ranges) => {
            let (ranges, rest) = ranges.split_once(']')?;
            let first = ranges.split([',', '-']).next()?;
            let suffix = rest.split(',').next().unwrap_or_default();
            // If a name has several brackets: the first entry of each.
            let suffix = if suffix.contains('[') { first_host(rest)? } else { suffix.to_owned() };
            format!("{prefix}{first}{suffix}")
        }
    };
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args<'a>(options: &[(&str, &'a str)]) -> Explicit<'a> {
        let of = |name| options.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let number = |name| of(name).map(|text| text.parse().unwrap());
        Explicit { rank: number("rank"), ranks: number("size"), master: of("master") }
    }

    type Pairs = &'static [(&'static str, &'static str)];
    type Expected = Option<(u32, u32, &'static [&'static str])>;
    const TORCH: Pairs = &[("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "29500")];
    const OMPI: Pairs = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("ANTIPHON_PORT", "77")];
    const SLURM: Pairs =
        &[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "6"), ("SLURM_STEP_ID", "0"), ("ANTIPHON_PORT", "77")];

    fn with(base: Pairs, more: Pairs) -> Vec<(&'static str, &'static str)> {
        // Later variables replace earlier ones.
        base.iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name)).chain(more).copied().collect()
    }

    #[test]
    fn launchers_are_understood_in_their_order() {
        let mine: Pairs = &[("rank", "1"), ("size", "2"), ("master", "h:9")];
        let local: Pairs = &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")];
        let spread: Pairs = &[
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("OMPI_MCA_orte_hnp_uri", "38719.0;tcp://10.0.2.15,172.17.0.1:43301;tcp6://[fd00::2]:1"),
        ];
        let cases: Vec<(Pairs, Vec<_>, Expected)> = vec![
            (&[], vec![], None),
            (mine, vec![], Some((1, 2, &["h:9"]))),
            (mine, with(TORCH, &[]), Some((1, 2, &["h:9"]))),
            (&[("rank", "0"), ("size", "1")], vec![], Some((0, 1, &[]))),
            (&[("rank", "0"), ("size", "2")], with(TORCH, &[]), Some((0, 2, &["n1:29501"]))),
            (&[], with(TORCH, &[]), Some((3, 8, &["n1:29501"]))),
            (&[], with(TORCH, OMPI), Some((3, 8, &["n1:77"]))),
            (&[], with(TORCH, &[("MASTER_ADDR", "fd00::1")]), Some((3, 8, &["[fd00::1]:29501"]))),
            (&[("master", "[fd00::7]:5")], with(TORCH, &[]), Some((3, 8, &["[fd00::7]:5"]))),
            (&[], with(OMPI, local), Some((1, 4, &["127.0.0.1:77"]))),
            (&[], with(OMPI, spread), Some((1, 4, &["10.0.2.15:77", "172.17.0.1:77"]))),
            (&[], with(OMPI, &[("MASTER_ADDR", "n9")]), Some((1, 4, &["n9:77"]))),
            (
                &[],
                vec![("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("ANTIPHON_PORT", "7")],
                Some((0, 2, &["127.0.0.1:7"])),
            ),
            (&[], with(SLURM, &[("SLURM_JOB_NODELIST", "gpu[07-12,20],login")]), Some((5, 6, &["gpu07:77"]))),
            (&[], with(SLURM, &[("SLURM_STEP_NODELIST", "a1"), ("SLURM_JOB_NODELIST", "b")]), Some((5, 6, &["a1:77"]))),
            (&[], with(SLURM, &[("SLURM_STEP_NUM_TASKS", "7"), ("SLURM_NODELIST", "x")]), Some((5, 7, &["x:77"]))),
            // A batch script is not one of several processes.
            (&[], with(SLURM, &[("SLURM_STEP_ID", "4294967291")]), None),
            (&[], with(SLURM, &[("SLURM_STEP_ID", "")]), None),
        ];
        for (options, variables, expected) in cases {
            let found = find(args(options), &Environment::of(&variables)).unwrap();
            let expected = expected.map(|(rank, ranks, masters)| JobDescription {
                rank,
                ranks,
                masters: masters.iter().map(ToString::to_string).collect(),
            });
            assert_eq!(found, expected, "{options:?} {variables:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases: Vec<(Pairs, Vec<_>, &str)> = vec![
            (&[], vec![("RANK", "0")], "RANK is set, but WORLD_SIZE is not"),
            (&[], vec![("WORLD_SIZE", "2")], "WORLD_SIZE is set, but RANK is not"),
            (&[], with(TORCH, &[("RANK", "8")]), "RANK=8, but WORLD_SIZE=8"),
            (&[], with(TORCH, &[("RANK", "-1")]), "RANK=-1 is not a number"),
            (&[], with(TORCH, &[("WORLD_SIZE", "many")]), "WORLD_SIZE=many is not a number"),
            (&[], with(TORCH, &[("WORLD_SIZE", "0")]), "WORLD_SIZE=0"),
            (&[], with(TORCH, &[("WORLD_SIZE", "4294967296")]), "WORLD_SIZE=4294967296"),
            (&[], with(TORCH, &[("MASTER_ADDR", "")]), "RANK is set, but MASTER_ADDR is not"),
            (&[], with(TORCH, &[("MASTER_PORT", "")]), "MASTER_ADDR is set, but MASTER_PORT is not"),
            (&[], with(TORCH, &[("MASTER_PORT", "65535")]), "MASTER_PORT=65535 leaves no port"),
            (&[], with(TORCH, &[("ANTIPHON_PORT", "0")]), "ANTIPHON_PORT=0 is not a port"),
            (&[], with(OMPI, &[]), "mpirun does not say where rank 0 is"),
            (&[], with(OMPI, &[("OMPI_COMM_WORLD_SIZE", "")]), "but OMPI_COMM_WORLD_SIZE is not"),
            (&[], with(SLURM, &[]), "srun does not say where rank 0 is"),
            (&[], with(SLURM, &[("SLURM_NTASKS", "5")]), "SLURM_PROCID=5, but SLURM_NTASKS=5"),
            (&[], with(SLURM, &[("SLURM_JOB_NODELIST", "[")]), "SLURM_JOB_NODELIST=["),
            (&[("rank", "2"), ("size", "2")], vec![], "--rank 2, but --world-size 2"),
            (&[("rank", "1"), ("size", "2")], vec![], "--rank does not say where rank 0 is"),
            (&[("rank", "1"), ("size", "2"), ("master", "host")], vec![], "--master host is not of the form"),
            (&[("rank", "1"), ("size", "2"), ("master", "::1:70")], vec![], "--master ::1:70 is not of the form"),
            (
                &[("rank", "1"), ("size", "2"), ("master", "[fe80::1%2]:7")],
                vec![],
                "[fe80::1%2]:7, where rank 0 is to be",
            ),
            (&[], with(TORCH, &[("MASTER_ADDR", "fe80::1%eth0")]), "[fe80::1%eth0]:29501, where rank 0 is to be"),
            (&[("master", "h:1")], vec![], "--master says where rank 0 is, but not which rank"),
        ];
        for (options, variables, expected) in cases {
            let error = find(args(options), &Environment::of(&variables)).unwrap_err().to_string();
            assert!(error.contains(expected), "{options:?} {variables:?}: {error}");
        }
    }

    #[test]
    fn the_first_machine_of_a_list() {
        let cases = [
            ("node1", Some("node1")),
            ("node[1-4]", Some("node1")),
            ("node[003,007-9]-ib,other", Some("node003-ib")),
            ("a,b[1-2]", Some("a")),
            ("rack[2-3]n[05-10]", Some("rack2n05")),
            ("node[", None),
            ("", None),
        ];
        for (list, expected) in cases {
            assert_eq!(first_host(list).as_deref(), expected, "{list}");
        }
    }

    #[test]
    fn jobs_have_ports_of_their_own_and_their_ranks_the_same() {
        let port = |job: &str| named_port(&Environment::of(&[("SLURM_JOB_ID", job)]), &["SLURM_JOB_ID"]).unwrap();
        assert_eq!(port("1"), port("1"));
        let ports: std::collections::BTreeSet<_> = (0..100).map(|job| port(&job.to_string())).collect();
        assert!(ports.len() > 90 && ports.iter().all(|port| (20_000..30_000).contains(port)));
    }
}
