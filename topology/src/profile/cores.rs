//! What the cores of a machine take for messages, where its ranks outnumber them.
//!
//! The principal function is [`cores`]. All ranks of a machine send at the same time, and so keep all cores busy: what one more
//! message takes then, and one more byte, is the share of the cores in every message. A message that has the machine for itself
//! shows neither: it takes the time in which its receiver wakes, and in that time cores do other work.

use super::ProfileError;
use super::bench::{Bench, REPETITIONS, Slope, spans};
use super::contention::DetectedResource;
use super::scout::TINY;
use super::suspects::{Scene, Suspect};
use crate::line::{CONFIDENCE, Line, LinePoint};
use crate::rounds::{Pair, Round};
use crate::{Exchange, Rank};
use std::collections::BTreeSet;

/// To so many others each rank sends.
const FAN: usize = 4;
/// How many tiny messages follow each other on each connection.
const COUNTS: [u32; 3] = [1, 8, 32];
/// The lengths of long messages, in bytes: caches make bytes cost more where more of them are under way, and plans have messages
/// of all lengths.
const LENGTHS: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// All flows together have at most so many bytes under way.
const MOST_TOGETHER: u64 = 64 << 20;
/// Passes over all settings.
const TURNS: u32 = 4;

/// The cores of each machine that has more ranks than cores.
pub(super) fn cores(bench: &mut Bench<'_>, scene: &Scene<'_>) -> Result<Vec<DetectedResource>, ProfileError> {
    let mut found = Vec::new();
    for (machine, members) in scene.places.machines().iter().enumerate() {
        if scene.shares_cores(machine) {
            let about = format!(
                "everything inside machine {machine}, whose {} ranks share {} cores",
                members.len(),
                scene.cores.unwrap_or(0)
            );
            let users = scene.view.pairs.keys().filter(|pair| scene.is_inside(pair, machine)).copied().collect();
            let flows = crowd(members, &users);
            if flows.len() > 1 {
                let name = format!("machine{machine}.cores");
                found.extend(kept_busy(bench, Suspect { name, about, both: false, users, flows })?);
            }
        }
    }
    Ok(found)
}

/// Each rank sends to the ranks that follow it.
fn crowd(members: &[Rank], users: &BTreeSet<Pair>) -> Round {
    let count = members.len();
    let pairs = (1..count.min(FAN + 1))
        .flat_map(|shift| (0..count).map(move |at| Pair { from: members[at], to: members[(at + shift) % count] }));
    pairs.filter(|pair| users.contains(pair)).collect()
}

/// Measures what one more message and one more byte takes while all flows of the suspect are under way. The quickest repetition
/// counts: what else this computer does takes cores, too. `None` if longer messages never took longer.
fn kept_busy(bench: &mut Bench<'_>, suspect: Suspect) -> Result<Option<DetectedResource>, ProfileError> {
    let flows = suspect.flows.len() as f64;
    let lengths = LENGTHS.map(|bytes| bytes.min(MOST_TOGETHER / suspect.flows.len() as u64).max(TINY));
    let mut tiny = vec![Vec::new(); COUNTS.len()];
    let mut long = vec![Vec::new(); LENGTHS.len()];
    for _ in 0..TURNS {
        for (times, messages) in tiny.iter_mut().zip(COUNTS) {
            times.extend(together(bench, &suspect.flows, TINY, messages)?);
        }
        for (times, bytes) in long.iter_mut().zip(lengths) {
            times.extend(together(bench, &suspect.flows, bytes, 1)?);
        }
    }
    let point = |(times, of): (&Vec<f64>, f64)| LinePoint {
        bytes: of * flows,
        time: times.iter().copied().fold(f64::INFINITY, f64::min),
        variance: 0.0,
    };
    let tiny: Vec<LinePoint> = tiny.iter().zip(COUNTS.map(f64::from)).map(point).collect();
    let line = Line::through(&tiny).unwrap_or(Line { begins: 0.0, beta: 0.0, noise: 0.0 });
    let single = tiny[0].time;
    let long: Vec<LinePoint> = long.iter().zip(lengths.map(|bytes| bytes as f64)).map(point).collect();
    // Each length counts alike: the mean of logarithms.
    let costs = long.iter().map(|point| (point.time - single) / point.bytes);
    let costs: Vec<f64> = costs.filter(|&cost| cost > 0.0).map(f64::ln).collect();
    if costs.is_empty() {
        return Ok(None);
    }
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    let spread = costs.iter().map(|cost| (cost - mean).abs()).fold(0.0, f64::max);
    Ok(Some(DetectedResource {
        suspect,
        slope: Slope { beta: mean.exp(), margin: mean.exp() * spread },
        message: Slope { beta: line.beta.max(0.0), margin: CONFIDENCE * line.noise },
        factor: None,
    }))
}

/// When the last of equal flows has arrived, in each repetition.
fn together(bench: &mut Bench<'_>, flows: &[Pair], bytes: u64, messages: u32) -> Result<Vec<f64>, ProfileError> {
    let exchange = |&Pair { from, to }: &Pair| Exchange { from, to, bytes, messages };
    let runs = bench.run(&flows.iter().map(exchange).collect::<Vec<_>>(), REPETITIONS)?;
    let times = |flow: usize| runs.iter().map(|times| times[flow].0).collect();
    Ok(spans(&(0..flows.len()).map(times).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use crate::profile::ProfileOptions;
    use crate::profile::tests::{knowing_machines, measure};
    use crate::{Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

    /// Two machines of four ranks, with a NIC each. What is inside a machine shares its cores.
    fn crowded() -> Topology {
        let named = |name: String, beta: f64| Resource::new(name, MicrosPerByte(beta));
        let nics =
            (0..2).flat_map(|machine| ["tx", "rx"].map(|side| named(format!("machine{machine}.nic.{side}"), 1e-3)));
        let core = |machine| Resource { alpha: Micros(0.25), ..named(format!("machine{machine}.cores"), 2e-5) };
        let link = |from: usize, to: usize| {
            let (home, away) = (from / 4, to / 4);
            let near = home == away;
            let uses = if near { vec![4 + home] } else { vec![2 * home, 2 * away + 1] };
            Link {
                from: Rank::from_index(from),
                to: Rank::from_index(to),
                alpha: Micros(if near { 4.0 } else { 30.0 }),
                beta: MicrosPerByte(if near { 2e-5 } else { 1e-3 }),
                latency: Latency::Pipelines,
                resources: uses.into_iter().map(ResourceId::from_index).collect(),
            }
        };
        let pairs = (0..8).flat_map(|from| (0..8).filter(move |to| *to != from).map(move |to| (from, to)));
        Topology::new(TopologyParts {
            name: "crowded".to_owned(),
            ranks: 8,
            machines: [0..4, 4..8].map(|ranks| ranks.map(Rank::from_index).collect()).to_vec(),
            links: pairs.map(|(from, to)| link(from, to)).collect(),
            resources: nics.chain((0..2).map(core)).collect(),
        })
        .unwrap()
    }

    #[test]
    fn ranks_that_outnumber_cores_share_them() {
        let truth = crowded();
        let of = |cores: Option<usize>| measure(&truth, &ProfileOptions { cores, ..knowing_machines(&truth) }).0;
        let measured = of(Some(2));
        let is_core = |shared: &&Resource| shared.name.ends_with(".cores");
        let cores: Vec<&Resource> = measured.topology.resources().iter().filter(is_core).collect();
        assert_eq!(cores.len(), 2);
        for core in cores {
            assert!((core.alpha.0 / 0.25 - 1.0).abs() < 0.1 && (core.beta.0 / 2e-5 - 1.0).abs() < 0.1, "{core:?}");
        }
        let near = |link: &&Link| link.from.index() / 4 == link.to.index() / 4;
        for link in measured.topology.links().iter().filter(near) {
            assert!(link.latency == Latency::Pipelines && link.resources.len() == 1, "{link:?}");
        }
        // Neither a bus nor ports are invented beside them.
        let names: Vec<&str> = measured.topology.resources().iter().map(|shared| shared.name.as_str()).collect();
        assert!(names.iter().all(|name| name.contains("nic") || name.contains("cores")), "{names:?}");
        let text = measured.to_yaml("");
        assert!(text.contains("whose 4 ranks share 2 cores: 12 flows together"), "{text}");
        // Where each rank has a core, nothing of the kind is looked for.
        assert!(of(Some(4)).topology.resources().iter().all(|shared| shared.alpha == Micros::ZERO));
    }
}
