//! What NVML and Linux say about the links of the ranks' GPUs, for the notes of a profile.
//!
//! The principal function is [`link_notes`]. What they say is no measurement: a profile has its numbers from messages alone.

use super::{GpuRank, said};
use crate::communicator::Communicator;
use crate::error::CommResult;
use runtime::{NvLinkEnd, NvLinks, NvmlError, NvmlLibrary};
use std::collections::BTreeMap;
use std::path::Path;

/// In place of an end that NVML does not tell.
const UNKNOWN: &str = "unknown";
/// Where Linux shows its devices.
const SYS: &str = "/sys";

/// What this rank learns about its GPU: the version of the driver, the links, and the nearest network adapters, or why not.
fn asked(bus_id: &str) -> String {
    let ask = || -> Result<String, NvmlError> {
        let nvml = NvmlLibrary::open()?;
        let version = nvml.driver_version()?;
        let NvLinks { ends, unknown } = nvml.links(bus_id)?;
        let links = ends.into_iter().map(|(end, count)| format!("{count} {end}"));
        let unknown = (unknown > 0).then(|| format!("{unknown} {UNKNOWN}"));
        Ok(format!("{version}|{}", links.chain(unknown).collect::<Vec<_>>().join(",")))
    };
    let nics = nearest_nics(Path::new(SYS), bus_id).join(", ");
    match ask() {
        Ok(text) => format!("ok|{text}|{nics}"),
        Err(why) => format!("no|{why}||{nics}"),
    }
}

/// The network adapters that share the most of their way to the processor with a PCI device.
fn nearest_nics(sys: &Path, bus_id: &str) -> Vec<String> {
    let place = |path: &Path| std::fs::canonicalize(path).ok();
    let Some(own) = place(&sys.join("bus/pci/devices").join(bus_id.to_ascii_lowercase())) else { return Vec::new() };
    let Ok(listed) = std::fs::read_dir(sys.join("class/infiniband")) else { return Vec::new() };
    let mut nics: Vec<(usize, String)> = Vec::new();
    for entry in listed.flatten() {
        let Some(there) = place(&entry.path().join("device")) else { continue };
        let shared = own.components().zip(there.components()).take_while(|(one, other)| one == other).count();
        nics.push((shared, entry.file_name().to_string_lossy().into_owned()));
    }
    let most = nics.iter().map(|(shared, _)| *shared).max();
    let mut nearest: Vec<String> = nics.into_iter().filter(|(of, _)| Some(*of) == most).map(|(_, name)| name).collect();
    nearest.sort();
    nearest
}

/// Sentences about the links of all GPUs. All ranks make this call.
///
/// # Errors
/// As any call.
pub(super) fn link_notes(comm: &Communicator, gpu: &GpuRank) -> CommResult<Vec<String>> {
    let all = said(comm, Ok(asked(&gpu.bus_ids[comm.rank()])))?;
    Ok(told(&all, &gpu.hosts, &gpu.bus_ids))
}

/// The sentences, from what each rank has learned.
fn told(all: &[String], hosts: &[String], bus_ids: &[String]) -> Vec<String> {
    let part = |rank: usize, at: usize| all[rank].split('|').nth(at).unwrap_or_default();
    let mut notes = Vec::new();
    let deaf: Vec<usize> = (0..all.len()).filter(|rank| part(*rank, 0) != "ok").collect();
    match deaf.first() {
        Some(rank) if deaf.len() == all.len() => {
            notes.push(format!(
                "What links there are was measured only, because NVML says nothing: {}.",
                part(*rank, 1)
            ));
        }
        Some(rank) => {
            notes.push(format!("NVML says nothing on rank {rank} ({}) and {} more.", part(*rank, 1), deaf.len() - 1))
        }
        None => {}
    }
    // By pairs and by switches, the ranks in their order.
    let (mut pairs, mut switches): (BTreeMap<[usize; 2], u32>, BTreeMap<u32, Vec<usize>>) = Default::default();
    let mut unknown: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for rank in 0..all.len() {
        for link in part(rank, 2).split(',').filter(|_| part(rank, 0) == "ok") {
            let Some((count, end)) = link.split_once(' ') else { continue };
            let Ok(count) = count.parse::<u32>() else { continue };
            if end == NvLinkEnd::Switch.to_string() {
                switches.entry(count).or_default().push(rank);
                continue;
            }
            if end == UNKNOWN {
                unknown.entry(count).or_default().push(rank);
                continue;
            }
            let is_there = |other: &usize| hosts[*other] == hosts[rank] && bus_ids[*other].eq_ignore_ascii_case(end);
            if let Some(other) = (0..all.len()).find(is_there) {
                // Both ends say so, or one.
                let known = pairs.entry([rank.min(other), rank.max(other)]).or_default();
                *known = (*known).max(count);
            }
        }
    }
    let version = (0..all.len()).find(|rank| part(*rank, 0) == "ok").map(|rank| part(rank, 1));
    if let Some(version) = version {
        let ends = pairs.iter().map(|([one, other], count)| format!("{one}–{other} {count}"));
        let ends =
            ends.chain(switches.iter().map(|(count, ranks)| format!("{count} to switches from {}", list(ranks))));
        let lost = unknown.iter().map(|(count, ranks)| format!("{count} of {} that it does not tell", list(ranks)));
        let ends: Vec<String> = ends.chain(lost).collect();
        let what = if ends.is_empty() { "none between these ranks".to_owned() } else { ends.join(", ") };
        notes.push(format!("NVLinks, says NVML of driver {version}: {what}."));
    }
    let mut nics: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    (0..all.len())
        .filter(|rank| !part(*rank, 3).is_empty())
        .for_each(|rank| nics.entry(part(rank, 3)).or_default().push(rank));
    for (names, ranks) in nics {
        notes.push(format!("Nearest network adapters of {}, says Linux: {names}.", list(&ranks)));
    }
    notes
}

fn list(ranks: &[usize]) -> String {
    let all: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("{} {}", if all.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_by_pairs_and_by_switches() {
        let hosts = ["a", "a", "b", "b"].map(str::to_owned);
        let bus_ids = ["0000:10:00.0", "0000:11:00.0", "0000:10:00.0", "0000:11:00.0"].map(str::to_owned);
        let all = [
            "ok|1.2|4 0000:11:00.0,2 0000:99:00.0|mlx5_0",
            "ok|1.2|4 0000:10:00.0,2 unknown|mlx5_0, mlx5_1",
            "ok|1.2|18 switch|mlx5_0",
            "no|libnvidia-ml.so.1 was not found||",
        ];
        let notes = told(&all.map(str::to_owned), &hosts, &bus_ids);
        assert_eq!(
            notes,
            [
                "NVML says nothing on rank 3 (libnvidia-ml.so.1 was not found) and 0 more.",
                "NVLinks, says NVML of driver 1.2: 0–1 4, 18 to switches from rank 2, 2 of rank 1 that it does not tell.",
                "Nearest network adapters of ranks 0, 2, says Linux: mlx5_0.",
                "Nearest network adapters of rank 1, says Linux: mlx5_0, mlx5_1.",
            ]
        );
        let none = ["no|libnvidia-ml.so.1 was not found||"; 4].map(str::to_owned);
        let only =
            "What links there are was measured only, because NVML says nothing: libnvidia-ml.so.1 was not found.";
        assert_eq!(told(&none, &hosts, &bus_ids), [only]);
        let without = ["ok|1.2||"; 4].map(str::to_owned);
        assert_eq!(told(&without, &hosts, &bus_ids), ["NVLinks, says NVML of driver 1.2: none between these ranks."]);
    }

    #[test]
    fn the_nearest_adapters_share_the_most_bridges() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let devices =
            ["pci0000:00/0000:00:01.0/0000:10:00.0", "pci0000:00/0000:00:01.0/0000:1a:00.0", "pci0000:80/0000:90:00.0"];
        for device in devices {
            std::fs::create_dir_all(sys.join("devices").join(device)).unwrap();
        }
        std::fs::create_dir_all(sys.join("bus/pci/devices")).unwrap();
        let link = |from: &str, to: &str| {
            let path = sys.join(from);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(sys.join("devices").join(to), path).unwrap();
        };
        link("bus/pci/devices/0000:10:00.0", devices[0]);
        link("class/infiniband/mlx5_0/device", devices[1]);
        link("class/infiniband/mlx5_1/device", devices[2]);
        assert_eq!(nearest_nics(sys, "0000:10:00.0"), ["mlx5_0"]);
        assert!(nearest_nics(sys, "0000:77:00.0").is_empty());
    }
}
