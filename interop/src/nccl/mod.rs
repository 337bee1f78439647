//! Graph files of NCCL (`NCCL_GRAPH_FILE`): rings that NCCL takes in place of those that it would search for.
//!
//! The principal function is [`rings`], which finds the rings that a plan's chunks follow. A file has them twice: as rings, and as the
//! chains of which NCCL makes its trees within a machine, because NCCL uses only as many rings as it has trees.
//!
//! A graph file describes one machine. NCCL joins machines itself, so plans for several machines have no such file.
//!
//! Source: NVIDIA/nccl 2.30.7, `src/graph/search.cc` (`ncclTopoGetGraphFromXml`), `src/graph/connect.cc` (`ncclTopoPreset`).

use schedule::{ChunkId, Collective, Schedule, Transfer, VerifiedSchedule};
use std::collections::BTreeMap;
use std::io::{self, Write};
use topology::{LinkId, Rank, Topology};

schedule::words! {
    /// What the links of a machine are for NCCL. It uses the protocol LL128 only over NVLink, whose stores of 128 bytes are not torn.
    PathType {
        /// NVLink, directly or through switches.
        NvLink => "NVL",
        /// One PCIe switch.
        PcieSwitch => "PIX",
        /// Several PCIe switches.
        PcieSwitches => "PXB",
        /// A host bridge, that is a CPU.
        HostBridge => "PHB",
        /// Between CPUs.
        System => "SYS",
    }
}

/// The rings of a plan for one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct RingGraph {
    /// For each channel of NCCL its ranks, in the order of the ring, beginning with rank 0. NCCL gives each channel an equal part of
    /// the data, so a ring that carries twice as much as another one is here twice.
    pub channels: Vec<Vec<Rank>>,
    /// What each channel can carry, in GB/s, while all are used. NCCL's estimates use it.
    pub speed: f64,
}

/// The most channels that every NCCL from 2.18 on has.
const MAX_CHANNELS: usize = 32;

/// Why a plan has no graph file.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingExportError {
    /// NCCL joins machines itself.
    #[error("a graph file of NCCL describes one machine, and this plan is for {machines}")]
    Machines {
        /// The machines of the topology.
        machines: usize,
    },
    /// The collective sends each chunk to one rank, or some ranks take no part.
    #[error(
        "a graph file of NCCL has rings of all ranks: {collective} among {members} of {ranks} ranks does not follow such rings"
    )]
    Collective {
        /// What the plan does.
        collective: Collective,
        /// How many ranks take part.
        members: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A chunk goes from a rank to two others, or to a rank from two others.
    #[error("chunk {chunk} follows no ring: at rank {rank} its way divides or joins")]
    Divides {
        /// The chunk.
        chunk: ChunkId,
        /// Where.
        rank: Rank,
    },
    /// A chunk does not pass all ranks one after the other.
    #[error("chunk {chunk} follows no ring: its way passes {passed} of {ranks} ranks one after the other")]
    Short {
        /// The chunk.
        chunk: ChunkId,
        /// How many ranks it passes from where it begins.
        passed: usize,
        /// How many there are.
        ranks: usize,
    },
    /// The last rank of a chunk's way has no link to the first one.
    #[error("chunk {chunk} follows no ring: no link leads from rank {last} back to rank {first}")]
    Open {
        /// The chunk.
        chunk: ChunkId,
        /// The end of its way.
        last: Rank,
        /// Its begin.
        first: Rank,
    },
    /// More rings, each as often as its share of the data says, than NCCL has channels.
    #[error("the plan uses {rings} rings, in shares that need {channels} channels; NCCL has {MAX_CHANNELS}")]
    Channels {
        /// Different rings.
        rings: usize,
        /// Channels of equal parts.
        channels: usize,
    },
}

/// The rings that the chunks of a plan follow.
///
/// # Errors
/// [`RingExportError`] if they follow none, or if NCCL has no such rings.
pub fn rings(plan: &VerifiedSchedule) -> Result<RingGraph, RingExportError> {
    let (schedule, topology) = (plan.schedule(), plan.topology());
    let (machines, ranks) = (topology.machines().len(), topology.rank_count());
    if machines > 1 {
        return Err(RingExportError::Machines { machines });
    }
    let request = schedule.demand.request();
    let (collective, members) = (request.collective, request.members.len());
    if !passes_all_members(collective) || members != ranks || ranks < 2 {
        return Err(RingExportError::Collective { collective, members, ranks });
    }
    let mut shares: BTreeMap<Vec<Rank>, usize> = BTreeMap::new();
    for (chunk, way) in schedule.demand.chunk_ids().zip(ways(schedule, ranks)?) {
        let ring = ring(chunk, &way, topology)?;
        *shares.entry(ring).or_default() += 1;
    }
    let common = shares.values().copied().fold(0, greatest_common_divisor).max(1);
    let channels: usize = shares.values().map(|share| share / common).sum();
    if channels > MAX_CHANNELS {
        return Err(RingExportError::Channels { rings: shares.len(), channels });
    }
    let repeated = shares.into_iter().flat_map(|(ring, share)| std::iter::repeat_n(ring, share / common));
    let channels: Vec<Vec<Rank>> = repeated.collect();
    let speed = speed(&channels, topology);
    Ok(RingGraph { channels, speed })
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The way of a chunk: for each rank to whom it sends it, and from whom it has it.
#[derive(Clone)]
struct ChunkWay {
    next: Vec<Option<Rank>>,
    previous: Vec<Option<Rank>>,
}

/// Whether what a ring carries passes all members.
fn passes_all_members(collective: Collective) -> bool {
    match collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => true,
        Collective::Broadcast | Collective::Reduce => true,
        Collective::AllToAll | Collective::AllToAllV | Collective::Gather | Collective::Scatter => false,
        Collective::SendRecv | Collective::Custom => false,
    }
}

fn ways(schedule: &Schedule, ranks: usize) -> Result<Vec<ChunkWay>, RingExportError> {
    let mut ways =
        vec![ChunkWay { next: vec![None; ranks], previous: vec![None; ranks] }; schedule.demand.chunks().len()];
    for Transfer { chunks, from, to, .. } in &schedule.transfers {
        for &chunk in chunks.iter() {
            let way = &mut ways[chunk.index()];
            let after = way.next[from.index()].replace(*to);
            let before = way.previous[to.index()].replace(*from);
            if after.is_some_and(|after| after != *to) {
                return Err(RingExportError::Divides { chunk, rank: *from });
            }
            if before.is_some_and(|before| before != *from) {
                return Err(RingExportError::Divides { chunk, rank: *to });
            }
        }
    }
    Ok(ways)
}

/// The ring that a chunk follows, from rank 0 on.
fn ring(chunk: ChunkId, way: &ChunkWay, topology: &Topology) -> Result<Vec<Rank>, RingExportError> {
    let ranks = way.next.len();
    // Where the way begins; one that is closed already begins anywhere.
    let first = Rank::from_index(way.previous.iter().position(Option::is_none).unwrap_or(0));
    let mut ring = vec![first];
    while let Some(rank) = way.next[ring[ring.len() - 1].index()].filter(|rank| *rank != first && ring.len() < ranks) {
        ring.push(rank);
    }
    if ring.len() < ranks {
        return Err(RingExportError::Short { chunk, passed: ring.len(), ranks });
    }
    let last = ring[ranks - 1];
    if topology.between(last, first).next().is_none() {
        return Err(RingExportError::Open { chunk, last, first });
    }
    let zero = ring.iter().position(|rank| rank.index() == 0).unwrap_or(0);
    ring.rotate_left(zero);
    Ok(ring)
}

/// The least rate that a channel gets on any of its links, in GB/s, where links and what they share are divided equally.
fn speed(channels: &[Vec<Rank>], topology: &Topology) -> f64 {
    let mut links: BTreeMap<LinkId, usize> = BTreeMap::new();
    for ring in channels {
        let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
        let used = pairs.filter_map(|(from, to)| {
            topology.between(*from, *to).min_by(|a, b| topology.link(*a).beta.0.total_cmp(&topology.link(*b).beta.0))
        });
        used.for_each(|link| *links.entry(link).or_default() += 1);
    }
    let mut shared = vec![0; topology.resources().len()];
    for (link, users) in &links {
        topology.link(*link).resources.iter().for_each(|resource| shared[resource.index()] += users);
    }
    let of_links = links.iter().map(|(link, users)| (topology.link(*link).beta.0, *users));
    let of_shared = topology.resources().iter().zip(&shared).map(|(resource, users)| (resource.beta.0, *users));
    // 1 byte per µs is 0.001 GB/s.
    let slowest = of_links.chain(of_shared).map(|(beta, users)| beta * users as f64).fold(0.0, f64::max);
    1e-3 / slowest.max(f64::MIN_POSITIVE)
}

/// The identifier and pattern of NCCL's rings, and of its trees.
const GRAPHS: [(u32, u32); 2] = [(0, 4), (1, 3)];
/// More would not be believed, and a link that costs nothing has no rate.
const MAX_SPEED: f64 = 10_000.0;

/// Writes a graph file. GPUs have the number of their rank, in both ways in which NCCL finds them.
///
/// # Errors
/// Errors of `out`.
pub fn write_graph(graph: &RingGraph, path: PathType, out: &mut dyn Write) -> io::Result<()> {
    let (channels, speed) = (graph.channels.len(), graph.speed.min(MAX_SPEED));
    writeln!(out, r#"<graphs version="1">"#)?;
    for (id, pattern) in GRAPHS {
        write!(
            out,
            r#"  <graph id="{id}" pattern="{pattern}" crossnic="0" nchannels="{channels}" speedintra="{speed}""#
        )?;
        write!(out, r#" speedinter="{speed}" latencyinter="0" typeintra="{path}" typeinter="{path}""#)?;
        writeln!(out, r#" samechannels="0">"#)?;
        for ring in &graph.channels {
            writeln!(out, "    <channel>")?;
            for rank in ring {
                writeln!(out, r#"      <gpu dev="{:#x}" rank="{rank}"/>"#, rank.index())?;
            }
            writeln!(out, "    </channel>")?;
        }
        writeln!(out, "  </graph>")?;
    }
    writeln!(out, "</graphs>")
}

#[cfg(test)]
mod tests;
