//! Other libraries, measured on the same hosts: Open MPI and Gloo, each by a small program that measures times as
//! `antiphon run` does. If one is not installed, its columns stay empty and a line says why. The program of Open MPI measures
//! our library as well, through the interposer.

use crate::fabric::{Cluster, Ended, Family, Place, Spec};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One measurement: a collective (nccl-tests' name) and its total size in bytes.
pub(crate) type Cell = (&'static str, u64);

/// Median times in µs.
pub(crate) type Times = BTreeMap<Cell, f64>;

/// The time limit for a whole list of measurements.
const PATIENCE: Duration = Duration::from_secs(300);

/// The programs that measure other libraries.
pub(crate) struct Peers {
    folder: PathBuf,
    /// The program, or the reason why there is none.
    pub mpi: Result<PathBuf, String>,
    /// The interposer, or the reason why there is none.
    pub interposer: Result<PathBuf, String>,
    /// The Python that has it, and the script.
    pub gloo: Result<(PathBuf, PathBuf), String>,
}

/// Where PyTorch may be: in the environment of our own tests, or in Debian's package.
const PYTHONS: [&str; 2] = [concat!(env!("CARGO_MANIFEST_DIR"), "/target/python/torch/bin/python"), "/usr/bin/python3"];

/// The algorithms that Open MPI's `tuned` component can be forced to use, by collective: the component's name of the
/// collective, and the number of its algorithms. Algorithms for two ranks or for an even number of ranks are left out.
const FORCED: &[(&str, u32)] =
    &[("allreduce", 6), ("allgather", 4), ("reduce_scatter", 4), ("alltoall", 4), ("bcast", 9)];

/// The number of rounds after which each algorithm was forced once.
pub(crate) const ROUNDS: u32 = 9;

impl Peers {
    /// Builds the programs, in a folder.
    pub(crate) fn prepare(folder: &Path) -> Self {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/peers");
        let program = folder.join("mpi");
        let compile = || {
            done(Command::new("mpirun").arg("--version")).map_err(|told| format!("no mpirun: {told}"))?;
            let mut compiler = Command::new("mpicc");
            compiler.args(["-O2", "-o"]).arg(&program).arg(sources.join("mpi.c"));
            done(&mut compiler).map_err(|told| format!("no mpicc: {told}"))
        };
        let mpi = compile().map(|()| program);
        let (interposer, library) = (folder.join("libantiphon_mpi.so"), built_libraries());
        let interpose = || {
            let mut build = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("plugin/mpi/build.sh"));
            build.arg("mpicc").arg(&interposer).env("ANTIPHON_LIB", &library);
            done(&mut build).map_err(|told| format!("no interposer: {told}"))
        };
        let interposer = interpose().map(|()| interposer.clone());
        let has_gloo = "import torch.distributed as dist; assert dist.is_gloo_available()";
        let python = PYTHONS
            .map(PathBuf::from)
            .into_iter()
            .find(|python| done(Command::new(python).args(["-c", has_gloo])).is_ok());
        let gloo = python.map(|python| (python, sources.join("gloo.py")));
        let gloo = gloo.ok_or_else(|| "no PyTorch with Gloo (.ci/setup python && .ci/setup torch)".to_owned());
        Self { folder: folder.to_owned(), mpi, interposer, gloo }
    }

    /// Open MPI's times, with its default choices or forced to the `round`-th algorithm of each collective.
    pub(crate) fn open_mpi(&self, place: Place<'_>, cells: &[Cell], seconds: f64, round: Option<u32>) -> Times {
        let Ok(program) = &self.mpi else { return Times::new() };
        let mut options = Vec::new();
        if let Some(round) = round {
            let mut option = |key: &str, value: &str| options.extend(["--mca", key, value].map(str::to_owned));
            option("coll_tuned_use_dynamic_rules", "1");
            for (collective, _) in FORCED.iter().filter(|(_, most)| round <= *most) {
                option(&format!("coll_tuned_{collective}_algorithm"), &round.to_string());
            }
        }
        let forced = |cell: &&Cell| round.is_none_or(|round| round <= algorithms(cell.0));
        let cells: Vec<Cell> = cells.iter().filter(forced).copied().collect();
        if cells.is_empty() {
            return Times::new();
        }
        let mut command = self.mpirun(place, options);
        command.arg(program).arg(seconds.to_string()).args(words(&cells));
        times(place.spawn(0, command).wait(PATIENCE), &cells)
    }

    /// The same program with our library in front of MPI, which says what it does; `None` without an MPI.
    pub(crate) fn interposed(&self, place: Place<'_>, cells: &[Cell], seconds: f64, table: &Path) -> Option<Ended> {
        let (Ok(program), Ok(interposer)) = (&self.mpi, &self.interposer) else { return None };
        let set = |variable: &str, path: &Path| format!("{variable}={}", path.display());
        let mut command = self.mpirun(place, Vec::new());
        command.args(["env".to_owned(), set("LD_PRELOAD", interposer), set("ANTIPHON_TABLE", table)]);
        command.args([set("LD_LIBRARY_PATH", &built_libraries()), "ANTIPHON_DEBUG=info".to_owned()]);
        command.arg(program).arg(seconds.to_string()).args(words(cells));
        Some(place.spawn(0, command).wait(PATIENCE).ok())
    }

    /// The times of our library with a table, in that program; `None` without an MPI.
    pub(crate) fn ours(&self, place: Place<'_>, cells: &[Cell], seconds: f64, table: &Path) -> Option<Times> {
        let ended = self.interposed(place, cells, seconds, table)?;
        // All calls were ours, and the table serves these ranks.
        let (told, is_ours) = (&ended.stderr, ended.stderr.contains("antiphon: rank 0 called "));
        let refusals =
            ["to MPI", "there is no table", "serves no calls of these ranks", "no table is used", "different tables"];
        assert!(is_ours && refusals.iter().all(|refusal| !told.contains(refusal)), "{told}");
        Some(times(ended, cells))
    }

    /// The command that starts a program on all ranks, once its name and arguments are added.
    fn mpirun(&self, place: Place<'_>, mut options: Vec<String>) -> Command {
        let mut option = |key: &str, value: &str| options.extend(["--mca", key, value].map(str::to_owned));
        option("pml", "ob1");
        let mut command = match place {
            Place::Here(_) => {
                option("btl", "vader,self");
                Command::new("mpirun")
            }
            Place::Loopback(_) => {
                option("btl", "tcp,self");
                option("btl_tcp_if_include", "lo");
                Command::new("mpirun")
            }
            Place::Hosts(cluster, each) => {
                option("btl", if each > 1 { "vader,tcp,self" } else { "tcp,self" });
                // Open MPI knows when ranks outnumber cores, but not that these hosts share cores.
                option("mpi_yield_when_idle", "1");
                for layer in ["btl_tcp_if_include", "oob_tcp_if_include"] {
                    option(layer, "10.77.0.0/24");
                }
                option("plm_rsh_agent", &self.remote_shell(cluster).display().to_string());
                let hosts: Vec<_> =
                    (0..cluster.hosts()).map(|host| format!("{}:{each}", Spec::address(host, 0, Family::V4))).collect();
                options.extend(["--host".to_owned(), hosts.join(",")]);
                // Open MPI distinguishes hosts by their names.
                let mut command = Command::new("unshare");
                command.args(["--uts", "sh", "-c", "hostname host0 && exec mpirun \"$@\"", "mpirun"]);
                command
            }
        };
        command.args(["-n", &place.ranks().to_string(), "--oversubscribe", "--bind-to", "none"]).args(&options);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// The script with which mpirun starts its daemons: it enters the host and gives it its own name.
    fn remote_shell(&self, cluster: &Cluster) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.join("remote-shell");
        let mut text = "#!/bin/sh\ncase $1 in\n".to_owned();
        for host in 0..cluster.hosts() {
            let (address, namespace) = (Spec::address(host, 0, Family::V4), cluster.namespace(host));
            text += &format!("{address}) namespace={namespace} name=host{host} ;;\n");
        }
        text += "esac\nshift\nexec ip netns exec $namespace unshare --uts sh -c \"hostname $name && $*\"\n";
        std::fs::write(&path, text).expect("the folder is ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
        path
    }

    /// Gloo's times, of the collectives that it has.
    pub(crate) fn gloo(&self, place: Place<'_>, cells: &[Cell], seconds: f64) -> Times {
        let Ok((python, program)) = &self.gloo else { return Times::new() };
        let cells: Vec<Cell> = cells.iter().filter(|cell| cell.0 != "reducescatter").copied().collect();
        let interface = if matches!(place, Place::Hosts(..)) { "eth0" } else { "lo" };
        let master = format!("tcp://{}:29511", place.master());
        let ranks = place.ranks();
        let guests: Vec<_> = (0..ranks)
            .map(|rank| {
                let mut command = Command::new(python);
                command.arg(program).args([&rank.to_string(), &ranks.to_string(), &master, &seconds.to_string()]);
                command.args(words(&cells)).env("GLOO_SOCKET_IFNAME", interface);
                place.spawn(rank, command)
            })
            .collect();
        let mut ended = guests.into_iter().map(|guest| guest.wait(PATIENCE));
        ended.next().map(|first| times(first, &cells)).unwrap_or_default()
    }
}

/// Where `cargo` leaves libantiphon.so.
fn built_libraries() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_antiphon")).with_file_name("deps")
}

/// How many algorithms Open MPI has for a collective.
fn algorithms(collective: &str) -> u32 {
    let name = match collective {
        "reducescatter" => "reduce_scatter",
        "broadcast" => "bcast",
        same => same,
    };
    FORCED.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most)
}

fn words(cells: &[Cell]) -> Vec<String> {
    cells.iter().map(|(collective, bytes)| format!("{collective}:{bytes}")).collect()
}

/// The lines of JSON that a program printed; cells that it refused are missing.
fn times(ended: Ended, cells: &[Cell]) -> Times {
    if !ended.status.success() {
        eprintln!("a peer ended with {}: {}", ended.status, ended.stderr.trim().lines().last().unwrap_or_default());
    }
    let rows = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    rows.filter_map(|row| {
        let is = |cell: &&Cell| row["collective"] == cell.0 && row["size_bytes"] == cell.1;
        Some((*cells.iter().find(is)?, row["time_us"].as_f64()?))
    })
    .collect()
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(told.trim().to_owned()) }
}
