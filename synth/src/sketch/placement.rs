//! Which physical rank each rank of a sketch is: `placement`.
//!
//! The principal function is [`choose`]. A sketch is written for logical ranks; on a machine of the same inner wiring
//! whose NIC sits beside other devices, another numbering of the same wiring puts the relays where they belong. Only
//! automorphisms of the inside of each machine come into question, so that nothing else in the sketch changes its
//! meaning; inspector-topo and msccl-tools do the same for one machine type by measuring and renaming its devices.

use super::body::PlacementWish;
use super::error::{Mistake, SketchError};
use super::file::SketchFile;
use super::symmetry::Symmetries;
use serde_saphyr::{Location, Spanned};
use topology::{Rank, Topology, TopologyParts};

/// The physical rank of every logical rank.
pub(super) fn choose(file: &SketchFile, topology: &Topology) -> Result<Vec<Rank>, SketchError> {
    let Some(wish) = &file.body.placement else { return Ok(topology.ranks().collect()) };
    match &wish.value {
        PlacementWish::None => Ok(topology.ranks().collect()),
        PlacementWish::Auto => Ok(topology.ranks().collect()),
        PlacementWish::List(list) => listed(file, topology, wish.referenced, list),
    }
}

/// The placement that a list spells out: the physical local ranks of every machine, or all physical ranks.
fn listed(
    file: &SketchFile,
    topology: &Topology,
    at: Location,
    list: &[Spanned<u64>],
) -> Result<Vec<Rank>, SketchError> {
    let ranks = topology.rank_count();
    let physical = |machine: &[Rank], number: &Spanned<u64>| {
        let rank = usize::try_from(number.value).ok().and_then(|local| machine.get(local));
        rank.copied().ok_or_else(|| {
            let (rank, ranks, topology) = (number.value, machine.len(), topology.name().to_owned());
            file.error(number.referenced, Mistake::NoSuchLocalRank { rank, ranks, topology })
        })
    };
    let all: Vec<Rank> = topology.ranks().collect();
    let mut placement = all.clone();
    if list.len() == ranks {
        for (image, number) in placement.iter_mut().zip(list) {
            *image = physical(&all, number)?;
        }
    } else {
        for machine in topology.machines() {
            if machine.len() != list.len() {
                let (found, size) = (list.len(), machine.len());
                let text = format!("`placement` lists {found} ranks, but a machine has {size} and all have {ranks}");
                return Err(file.error(at, Mistake::Inconsistent { text }));
            }
            for (rank, number) in machine.iter().zip(list) {
                placement[rank.index()] = physical(machine, number)?;
            }
        }
    }
    check(topology, &placement).map_err(|text| file.error(at, Mistake::Inconsistent { text }))?;
    Ok(placement)
}

/// A placement leaves every machine its ranks and its inner links.
fn check(topology: &Topology, placement: &[Rank]) -> Result<(), String> {
    let moved =
        topology.ranks().find(|rank| topology.machine_of(*rank) != topology.machine_of(placement[rank.index()]));
    if let Some(rank) = moved {
        let to = placement[rank.index()];
        return Err(format!("`placement` moves rank {rank} to rank {to} of another machine"));
    }
    let inside = inside(topology);
    match Symmetries::of(&inside).automorphism(placement.to_vec()) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("`placement` changes the inside of a machine: {why}")),
    }
}

/// The topology without the links between machines.
fn inside(topology: &Topology) -> Topology {
    let links = topology.links().iter().filter(|link| !topology.crosses_machines(link)).cloned().collect();
    let parts = TopologyParts {
        name: topology.name().to_owned(),
        ranks: topology.rank_count(),
        machines: topology.machines().to_vec(),
        links,
        resources: topology.resources().to_vec(),
    };
    Topology::new(parts).expect("a part of a valid topology is valid")
}
