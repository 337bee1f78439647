//! Ranks that have a GPU each, and a communicator of NCCL: what the profiler and the tuner measure with on GPUs.
//!
//! The principal type is [`GpuRank`]. The ranks have met as any others; by that they agree on who takes which GPU, and tell each other
//! what is wrong: a rank that cannot take part says why on all of them, and nobody waits for it.

mod links;
mod mapped;
mod probe;

use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use mapped::TuningMemory;
pub use mapped::mapped_bytes;
pub use probe::GpuProbe;
use runtime::{GpuDevice, NcclCommunicator, NcclError, NcclId, NcclLibrary, NcclSearch, NcclTrials};
use std::collections::BTreeMap;
use std::time::Duration;
use topology::Rank;

/// Of what a rank says, the others learn so many bytes.
const LONGEST: usize = 600;
/// How a rank is.
const GOOD: u8 = 0;
const FAULTY: u8 = 1;
const LATE: u8 = 2;
/// The most bytes of what a table keeps of the GPUs of a machine.
const LENGTH: usize = 160;
/// With this variable NCCL lets several ranks of a communicator use one GPU, from 2.30.3 on.
const SHARED: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
/// What a rank says where it is set, and where not.
const SHARES: &str = "+";
const OWNS: &str = "-";

/// A rank's GPU with its end of a communicator of NCCL, which all ranks of a [`Communicator`] have.
#[derive(Debug)]
pub struct GpuRank {
    library: NcclLibrary,
    /// Given back before what it was made on.
    mapped: TuningMemory,
    trials: NcclTrials,
    /// How long the ranks may wait for each other.
    limit: Duration,
    /// The computer of each rank.
    hosts: Vec<String>,
    /// What each rank's GPU is called.
    names: Vec<String>,
    /// The address of each rank's GPU on the PCI bus of its host.
    bus_ids: Vec<String>,
}

/// Why a rank cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RankFault {
    why: String,
    /// It has only waited for others, or heard of their end.
    is_of_others: bool,
}

impl RankFault {
    /// What has gone wrong over NCCL.
    pub(crate) fn of(error: &NcclError) -> Self {
        Self { why: error.to_string(), is_of_others: error.is_of_others() }
    }

    /// Whether it has only waited for others, or heard of their end.
    pub(crate) fn is_of_others(&self) -> bool {
        self.is_of_others
    }

    /// What it says.
    pub(crate) fn into_why(self) -> String {
        self.why
    }
}

impl From<&str> for RankFault {
    fn from(why: &str) -> Self {
        Self { why: why.to_owned(), is_of_others: false }
    }
}

impl From<&String> for RankFault {
    fn from(why: &String) -> Self {
        why.as_str().into()
    }
}

/// What each rank says, or who says why it cannot go on, and that: the first rank with a fault of its own, or else the first one.
///
/// # Errors
/// As any call.
pub(crate) fn said_or_why(
    comm: &Communicator,
    own: Result<String, RankFault>,
) -> CommResult<Result<Vec<String>, (usize, String)>> {
    let (kind, text) = match own {
        Ok(text) => (GOOD, text),
        Err(RankFault { why, is_of_others }) => (if is_of_others { LATE } else { FAULTY }, why),
    };
    let mut bytes = vec![kind];
    bytes.extend(topology::shorten_to(&text, LONGEST).as_bytes());
    bytes.resize(LONGEST, 0);
    let mut all = vec![0; LONGEST * comm.size()];
    comm.all_gather(&bytes, &mut all)?;
    let text = |said: &[u8]| {
        let text = String::from_utf8_lossy(&said[1..]);
        text.trim_end_matches('\0').trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
    };
    let ranks = || all.chunks_exact(LONGEST).enumerate();
    let first = |kind: u8| ranks().find(move |(_, said)| said[0] == kind);
    Ok(match first(FAULTY).or_else(|| first(LATE)) {
        Some((rank, said)) => Err((rank, text(said))),
        None => Ok(ranks().map(|(_, said)| text(said)).collect()),
    })
}

/// The same; a fault is an error on all ranks.
///
/// # Errors
/// [`CommError::Gpu`] on all ranks if one has a fault; as any call.
fn said(comm: &Communicator, own: Result<String, RankFault>) -> CommResult<Vec<String>> {
    said_or_why(comm, own)?.map_err(|(rank, why)| CommError::Gpu(format!("rank {rank}: {why}")))
}

/// The hosts of all ranks, from what each says before it: whether it lets ranks share a GPU.
///
/// # Errors
/// If they do not say the same.
fn compared(said: Vec<String>) -> Result<Vec<String>, String> {
    let all: Vec<(String, String)> =
        said.into_iter().map(|text| (text[..1].to_owned(), text[1..].to_owned())).collect();
    if let Some(rank) = all.iter().position(|(shares, _)| *shares != all[0].0) {
        let [with, without] = if all[0].0 == SHARES { [0, rank] } else { [rank, 0] };
        return Err(format!(
            "rank {with} has {SHARED}=1, and rank {without} has not (hint: set it on all ranks or on none)"
        ));
    }
    Ok(all.into_iter().map(|(_, host)| host).collect())
}

/// The number of a rank's GPU on its host. `hosts` has the host of each rank, `count` is how many GPUs the driver shows.
///
/// # Errors
/// If there are too few.
fn ordinal(rank: usize, hosts: &[String], count: usize, is_shared: bool) -> Result<usize, String> {
    let here = hosts.iter().filter(|host| **host == hosts[rank]).count();
    let before = hosts[..rank].iter().filter(|host| **host == hosts[rank]).count();
    match count {
        0 => Err("the CUDA driver shows no GPU (hint: nvidia-smi lists the GPUs; CUDA_VISIBLE_DEVICES may hide them)"
            .to_owned()),
        // Some launchers show each rank another one.
        1 => Ok(0),
        _ if before < count => Ok(before),
        _ if is_shared => Ok(before % count),
        _ => Err(format!("there are {count} GPUs for the {here} ranks of this machine{}", too_few())),
    }
}

fn too_few() -> String {
    format!(
        " (hint: start as many ranks as there are GPUs; CUDA_VISIBLE_DEVICES may hide some; {SHARED}=1 lets ranks share a GPU, with NCCL \
         2.30.3 or newer)"
    )
}

/// Two ranks that have the same GPU.
fn same_gpu(hosts: &[String], bus_ids: &[String]) -> Option<[usize; 2]> {
    let mut known = BTreeMap::new();
    hosts.iter().zip(bus_ids).enumerate().find_map(|(rank, place)| known.insert(place, rank).map(|first| [first, rank]))
}

/// What a table keeps of a machine: its GPUs, of each kind how many, and the version of NCCL.
fn described<'a>(names: impl Iterator<Item = &'a String>, version: &str) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    names.for_each(|name| *kinds.entry(name).or_default() += 1);
    let kinds: Vec<String> = kinds.into_iter().map(|(name, count)| format!("{count} × {name}")).collect();
    let text: String = kinds.join(", ").chars().filter(|letter| topology::is_printable(*letter)).collect();
    format!("{}, NCCL {version}", topology::shorten_to(&text, LENGTH))
}

/// The computer of this rank, whatever it is told to take for its machine.
fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("{} {}", read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"))
}

impl GpuRank {
    /// Takes a GPU on each rank, in the order of the ranks of a host, and makes a communicator of NCCL. All ranks make this call. They
    /// may take `limit` for each step.
    ///
    /// # Errors
    /// [`CommError::Gpu`] on all ranks with the first rank that has no driver, no NCCL, or no GPU of its own; as any call.
    pub fn open(comm: &Communicator, limit: Duration) -> CommResult<Self> {
        let comm = &comm.without_table()?;
        comm.set_time_limit(limit.saturating_mul(2));
        let is_shared = std::env::var(SHARED).is_ok_and(|value| value == "1");
        let hosts = said(comm, Ok(format!("{}{}", if is_shared { SHARES } else { OWNS }, host())))?;
        let hosts = compared(hosts).map_err(CommError::Gpu)?;
        let own = || -> Result<(NcclLibrary, GpuDevice, String), String> {
            mapped_bytes()?;
            let count = GpuDevice::count().map_err(|error| error.to_string())?;
            let gpu = GpuDevice::open(ordinal(comm.rank(), &hosts, count, is_shared)?);
            let gpu = gpu.map_err(|error| error.to_string())?;
            let library = NcclLibrary::find(&NcclSearch::from_environment()).map_err(|error| error.to_string())?;
            library.can_run_plans().map_err(|error| error.to_string())?;
            let about =
                format!("{}|{}|{}", gpu.bus_id().map_err(|error| error.to_string())?, library.version(), gpu.name());
            Ok((library, gpu, about))
        };
        let own = own();
        let about = said(comm, own.as_ref().map(|(.., about)| about.clone()).map_err(RankFault::from))?;
        let (library, gpu, _) = own.map_err(CommError::Gpu)?;
        let part = |text: &String, at| text.splitn(3, '|').nth(at).unwrap_or_default().to_owned();
        let parts = |at| about.iter().map(|text| part(text, at)).collect::<Vec<_>>();
        let (bus_ids, versions, names) = (parts(0), parts(1), parts(2));
        if let Some(rank) = versions.iter().position(|version| *version != versions[0]) {
            let what = format!("rank {rank} has NCCL {}, and rank 0 has NCCL {}", versions[rank], versions[0]);
            return Err(CommError::Gpu(format!("{what} (hint: ANTIPHON_NCCL names the library)")));
        }
        if let Some([first, second]) = same_gpu(&hosts, &bus_ids).filter(|_| !is_shared) {
            let what = format!("ranks {first} and {second} have the same GPU, {}", bus_ids[first]);
            return Err(CommError::Gpu(format!("{what}{}", too_few())));
        }
        let (id, place) = (unique_id(comm, &library)?, (Rank::from_index(comm.rank()), comm.size()));
        let joined = NcclCommunicator::join(&library, &gpu, id, place, limit);
        let joined = joined.and_then(|of| NcclTrials::new(&library, gpu, of, limit));
        said(comm, joined.as_ref().map(|_| String::new()).map_err(RankFault::of))?;
        let trials = joined.map_err(|error| CommError::Gpu(error.to_string()))?;
        Ok(Self { trials, mapped: TuningMemory::default(), library, limit, hosts, names, bus_ids })
    }

    /// Makes another communicator after an error. Memory that the ranks had shared is to be shared [anew](Self::map_again). All ranks make
    /// this call.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub(crate) fn renew(&mut self, comm: &Communicator) -> CommResult<()> {
        let id = unique_id(comm, &self.library)?;
        let joined = self.trials.rejoin(&self.library, id, self.limit);
        said(comm, joined.map(|()| String::new()).map_err(|error| RankFault::of(&error))).map(drop)
    }

    /// What is timed on it.
    pub(crate) fn trials(&mut self) -> &mut NcclTrials {
        &mut self.trials
    }

    /// What each rank's GPU is called.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The address of each rank's GPU on the PCI bus of its host, such as `0000:17:00.0`.
    pub fn bus_ids(&self) -> &[String] {
        &self.bus_ids
    }

    /// Sentences about NVLinks and network adapters, as NVML and Linux tell them. All ranks make this call.
    ///
    /// # Errors
    /// As any call.
    pub fn link_notes(&self, comm: &Communicator) -> CommResult<Vec<String>> {
        links::link_notes(comm, self)
    }

    /// The version of NCCL.
    pub fn nccl_version(&self) -> String {
        self.library.version().to_string()
    }

    /// What each machine is ([`gpu_hardware`]).
    pub(crate) fn hardware(&self, machines: &[u32]) -> Vec<String> {
        gpu_hardware(machines, &self.names, &self.nccl_version())
    }
}

/// What a tuning table keeps of each machine, by its number: its GPUs, of each kind how many, and the version of NCCL. `machines` and
/// `names` have the machine of each rank, and what its GPU is called.
pub fn gpu_hardware(machines: &[u32], names: &[String], nccl_version: &str) -> Vec<String> {
    let count = machines.iter().max().map_or(0, |last| last + 1);
    let on = |machine: u32| machines.iter().zip(names).filter(move |(of, _)| **of == machine);
    (0..count).map(|machine| described(on(machine).map(|(_, name)| name), nccl_version)).collect()
}

/// What all ranks need to make a communicator of NCCL, which rank 0 makes.
fn unique_id(comm: &Communicator, library: &NcclLibrary) -> CommResult<NcclId> {
    let made = if comm.rank() == 0 { NcclCommunicator::unique_id(library).map(|id| id.0) } else { Ok([0; 128]) };
    let mut id = *made.as_ref().unwrap_or(&[0; 128]);
    said(comm, made.map(|_| String::new()).map_err(|error| RankFault::of(&error)))?;
    comm.broadcast(&mut id, 0)?;
    Ok(NcclId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_take_its_gpus_in_order() {
        let hosts = ["a", "b", "a", "a", "b"].map(str::to_owned);
        let all = |count, is_shared| -> Vec<Option<usize>> {
            (0..5).map(|rank| ordinal(rank, &hosts, count, is_shared).ok()).collect()
        };
        assert_eq!(all(4, false), [0, 0, 1, 2, 1].map(Some));
        assert_eq!(all(2, false), [Some(0), Some(0), Some(1), None, Some(1)]);
        assert_eq!(all(2, true), [0, 0, 1, 0, 1].map(Some));
        assert_eq!(all(1, false), [Some(0); 5], "a launcher shows each rank another one");
        assert!(ordinal(3, &hosts, 2, false).unwrap_err().contains("2 GPUs for the 3 ranks"));
        assert!(ordinal(3, &hosts, 0, false).unwrap_err().contains("hint"));
        let buses = |text: [&str; 5]| same_gpu(&hosts, &text.map(str::to_owned));
        assert_eq!(buses(["1", "1", "2", "3", "2"]), None);
        assert_eq!(buses(["1", "1", "2", "1", "2"]), Some([0, 3]));
    }

    #[test]
    fn a_machine_is_its_gpus_and_nccl() {
        let names = ["B", "A", "B"].map(str::to_owned);
        assert_eq!(described(names.iter(), "2.30.7"), "1 × A, 2 × B, NCCL 2.30.7");
        let long = ["x\u{1b}".repeat(300)];
        assert!(described(long.iter(), "2.30.7").chars().count() <= 200);
    }

    /// Whatever GPUs this computer has: what `said` does is the same.
    #[test]
    fn all_ranks_are_told_the_same_and_own_faults_come_first() {
        let ranks = Communicator::local(3).unwrap();
        let late = || Err(RankFault { why: "late".to_owned(), is_of_others: true });
        let all = |own: [Result<String, RankFault>; 3]| -> Vec<String> {
            let say = |comm: &Communicator, own| match said(comm, own) {
                Ok(texts) => texts.join(","),
                Err(error) => error.to_string(),
            };
            std::thread::scope(|scope| {
                let threads = ranks.iter().zip(own).map(|(comm, own)| scope.spawn(move || say(comm, own)));
                threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        let good = |text: &str| Ok(text.to_owned());
        assert_eq!(all([good("a"), good(""), good("c")]), ["a,,c"; 3]);
        assert_eq!(all([late(), good("b"), Err("no driver".into())]), ["rank 2: no driver"; 3]);
        assert_eq!(all([good("a"), late(), late()]), ["rank 1: late"; 3]);
    }

    #[test]
    fn ranks_share_gpus_all_or_none() {
        let of = |said: [&str; 3]| compared(said.map(str::to_owned).to_vec());
        assert_eq!(of(["-a 1", "-b 2", "-a 1"]).unwrap(), ["a 1", "b 2", "a 1"]);
        assert_eq!(of(["+a", "+a", "+a"]).unwrap(), ["a"; 3]);
        assert!(of(["-a", "-a", "+a"]).unwrap_err().starts_with("rank 2 has NCCL_MULTI_RANK_GPU_ENABLE=1, and rank 0"));
        assert!(of(["+a", "-a", "+a"]).unwrap_err().starts_with("rank 0 has NCCL_MULTI_RANK_GPU_ENABLE=1, and rank 1"));
    }
}
