//! Which physical rank each rank of a sketch is: `placement`.
//!
//! The principal function is [`choose`]. A sketch is written for logical ranks. On a machine of the same inner wiring
//! whose NIC sits beside other devices, another numbering of the same wiring puts the relays beside the NIC. Only
//! automorphisms of the inside of each machine are considered, so that nothing else in the sketch changes its meaning.
//! inspector-topo and msccl-tools do the same for one machine type: they measure its devices and renumber them.

use super::body::PlacementWish;
use super::error::{Mistake, SketchError};
use super::file::SketchFile;
use super::resolve::SketchResolver;
use serde_saphyr::{Location, Spanned};
use topology::symmetry::{Colours, automorphisms, extend};
use topology::{Link, Rank, Topology, TopologyParts, shorten};

/// The work of the search for the symmetries of one machine, in links visited.
const SEARCH_WORK: u64 = 10_000_000;
/// The work of comparing placements, in links visited: a few seconds.
const WORK: usize = 200_000_000;
/// The most symmetries of a machine that are tried in one step.
const MOST_MOVES: usize = 512;
/// The most steps from the sketch's own numbering to a placement.
const MOST_STEPS: usize = 16;

/// The physical rank of every logical rank.
pub(super) fn choose(file: &SketchFile, topology: &Topology) -> Result<Vec<Rank>, SketchError> {
    let Some(wish) = &file.body.placement else { return Ok(topology.ranks().collect()) };
    match &wish.value {
        PlacementWish::None => Ok(topology.ranks().collect()),
        PlacementWish::Auto => Ok(best(file, topology)),
        PlacementWish::List(list) => listed(file, topology, wish.referenced, list),
    }
}

/// The placement that a list spells out: the physical local ranks, the same for every machine, or all physical ranks.
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
            let (rank, ranks, topology) = (number.value, machine.len(), shorten(topology.name()));
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

/// Checks that a placement keeps the ranks and the inner links of every machine.
fn check(topology: &Topology, placement: &[Rank]) -> Result<(), String> {
    let moved =
        topology.ranks().find(|rank| topology.machine_of(*rank) != topology.machine_of(placement[rank.index()]));
    if let Some(rank) = moved {
        let to = placement[rank.index()];
        return Err(format!("`placement` moves rank {rank} to rank {to} of another machine"));
    }
    match extend(&inside(topology), Colours::default(), placement) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("`placement` changes the inside of a machine: {why}")),
    }
}

/// The cost of the links between machines that the sketch leaves, compared entry by entry: the time of the busiest
/// resource or link when each of these links carries one byte (in µs), the sum of their β, and the sum of their α.
/// `None` where the sketch's rules do not fit this placement.
fn cost(file: &SketchFile, topology: &Topology, placement: &[Rank]) -> Option<[f64; 3]> {
    let constraints = SketchResolver::new(file, topology, placement.to_vec()).link_rules().ok()?;
    let mut busy = vec![0.0; topology.resources().len()];
    let [mut peak, mut beta, mut alpha] = [0.0f64; 3];
    for id in topology.link_ids().filter(|&id| constraints.allows_link(id)) {
        let link = topology.link(id);
        if topology.crosses_machines(link) {
            for &resource in &link.resources {
                busy[resource.index()] += topology.resource(resource).beta.0;
                peak = peak.max(busy[resource.index()]);
            }
            peak = peak.max(link.beta.0);
            beta += link.beta.0;
            alpha += link.alpha.0;
        }
    }
    Some([peak, beta, alpha])
}

/// Whether one cost is less than another by more than rounding; `None` is the greatest cost.
fn is_less(cost: Option<[f64; 3]>, than: Option<[f64; 3]>) -> bool {
    let (Some(cost), Some(than)) = (cost, than) else { return cost.is_some() && than.is_none() };
    let differing = cost.iter().zip(&than).find(|(a, b)| (*a - *b).abs() > 1e-9 * a.abs().max(b.abs()));
    differing.is_some_and(|(a, b)| a < b)
}

/// The placement under which the sketch's links between machines cost least. The search starts from the sketch's own
/// numbering and repeats the best move. A move renumbers one machine, or all of them alike, by a symmetry of its
/// inside.
fn best(file: &SketchFile, topology: &Topology) -> Vec<Rank> {
    let mut placement: Vec<Rank> = topology.ranks().collect();
    let moves = moves(topology);
    let mut least = cost(file, topology, &placement);
    for _ in 0..MOST_STEPS {
        let mut improved = None;
        for one in &moves {
            let moved: Vec<Rank> = placement.iter().map(|rank| one[rank.index()]).collect();
            let cost = cost(file, topology, &moved);
            if is_less(cost, least) {
                (least, improved) = (cost, Some(moved));
            }
        }
        match improved {
            Some(moved) => placement = moved,
            None => break,
        }
    }
    placement
}

/// The moves: symmetries of the insides of machines, first in all machines alike, then machine by machine.
fn moves(topology: &Topology) -> Vec<Vec<Rank>> {
    let machines = topology.machines();
    let affordable = (WORK / topology.links().len().max(1) / MOST_STEPS / (machines.len() + 1)).clamp(8, MOST_MOVES);
    let inside: Vec<Vec<Vec<Rank>>> =
        (0..machines.len()).map(|machine| elements(topology, machine, affordable)).collect();
    let identity: Vec<Rank> = topology.ranks().collect();
    let place = |images: &mut Vec<Rank>, machine: usize, local: &[Rank]| {
        for (rank, image) in machines[machine].iter().zip(local) {
            images[rank.index()] = machines[machine][image.index()];
        }
    };
    let alike = inside.iter().flatten().filter(|local| inside.iter().all(|others| others.contains(local)));
    let mut moves: Vec<Vec<Rank>> = Vec::new();
    for local in alike {
        let mut images = identity.clone();
        (0..machines.len()).for_each(|machine| place(&mut images, machine, local));
        if !moves.contains(&images) {
            moves.push(images);
        }
    }
    for (machine, local) in inside.iter().enumerate().flat_map(|(machine, all)| all.iter().map(move |it| (machine, it)))
    {
        let mut images = identity.clone();
        place(&mut images, machine, local);
        moves.push(images);
    }
    moves
}

/// Some symmetries of the inside of a machine, over local ranks; those that need few generators come first.
fn elements(topology: &Topology, machine: usize, limit: usize) -> Vec<Vec<Rank>> {
    let ranks = &topology.machines()[machine];
    let local = |rank: Rank| ranks.iter().position(|&other| other == rank).map(Rank::from_index);
    let links = ranks.iter().flat_map(|&rank| topology.outgoing(rank)).filter_map(|&id| {
        let link = topology.link(id);
        Some(Link { from: local(link.from)?, to: local(link.to)?, ..link.clone() })
    });
    let parts = TopologyParts {
        ranks: ranks.len(),
        links: links.collect(),
        resources: topology.resources().to_vec(),
        ..TopologyParts::default()
    };
    let inside = Topology::new(parts).expect("a part of a valid topology is valid");
    automorphisms(&inside, Colours::default(), SEARCH_WORK).elements(limit)
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

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{Latency, Micros, MicrosPerByte};

    /// Two machines, each a ring of four with its NIC beside local rank `near`. Links between them cost one byte-time
    /// more for each end that is not `near`.
    fn rings(near: [u32; 2]) -> Topology {
        let link = |from: u32, to: u32, beta: f64| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(beta),
            latency: Latency::Occupies,
            resources: [].into(),
        };
        let mut links = Vec::new();
        for machine in [0, 4] {
            for rank in 0..4 {
                links.push(link(machine + rank, machine + (rank + 1) % 4, 1.0));
                links.push(link(machine + (rank + 1) % 4, machine + rank, 1.0));
            }
        }
        for (here, there) in [(0, 1), (1, 0)] {
            for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
                let far = f64::from(u8::from(from != near[here])) + f64::from(u8::from(to != near[there]));
                links.push(link(4 * here as u32 + from, 4 * there as u32 + to, 1.0 + far));
            }
        }
        let machines = vec![(0..4).map(Rank).collect(), (4..8).map(Rank).collect()];
        let parts = TopologyParts { name: "rings".into(), ranks: 8, machines, links, resources: vec![] };
        Topology::new(parts).unwrap()
    }

    fn placed(sketch: &str, topology: &Topology) -> Result<Vec<u32>, String> {
        let sketch = SketchFile::parse(sketch, "s.yaml").and_then(|file| file.resolve(topology));
        let placement = sketch.map_err(|error| error.to_string())?.constraints.placement;
        Ok(placement.into_iter().map(|rank| rank.0).collect())
    }

    #[test]
    fn auto_puts_the_relay_beside_the_nic() {
        let auto = "placement: auto\nrelays: {0: [0]}\n";
        assert_eq!(placed(auto, &rings([0, 0])), Ok(vec![]), "it is there");
        assert_eq!(placed(auto, &rings([2, 2])).map(|it| (it[0], it[4])), Ok((2, 6)));
        assert_eq!(placed(auto, &rings([1, 3])).map(|it| (it[0], it[4])), Ok((1, 7)), "machine by machine");
        assert_eq!(placed("relays: {0: [0]}", &rings([2, 2])), Ok(vec![]));
        assert_eq!(placed("placement: none\nrelays: {0: [0]}", &rings([2, 2])), Ok(vec![]));
        // Neighbours in the sketch stay neighbours.
        let both = placed("placement: auto\nrelays: {0: [0], 1: [0]}\n", &rings([3, 3])).unwrap();
        assert_eq!((both[0], both[1] % 2), (3, 0));
    }

    #[test]
    fn auto_finds_the_links_that_exist() {
        // Between these machines there are only 0 → 9 and 8 → 1. Inside a machine, 2 and 3 are linked as 0 and 1 are.
        let topology = topology::resolve("ndv2x2").unwrap();
        let identity = placed("relays: {2: [3]}\n", &topology).unwrap_err();
        assert!(identity.contains("names no link"), "{identity}");
        let placement = placed("placement: auto\nrelays: {2: [3]}\n", &topology).unwrap();
        assert_eq!((placement[2], placement[3]), (0, 1));
    }

    #[test]
    fn rules_follow_the_placement() {
        let topology = rings([2, 2]);
        let text =
            "placement: [2, 3, 0, 1]\nrelays: {0: [0]}\nlinks: {forbid: [[0, 1], [4, 5]]}\nsymmetry: [{rotate: 4}]\n";
        let sketch = SketchFile::parse(text, "s.yaml").unwrap().resolve(&topology).unwrap();
        let line = |from, to| {
            let link = topology.between(Rank(from), Rank(to)).next().unwrap();
            sketch.constraints.forbidden[link.index()]
        };
        assert_eq!((line(2, 6), line(6, 2)), (None, None));
        assert!(line(0, 4).is_some());
        assert_eq!((line(2, 3), line(0, 1)), (Some(3), None));
        assert_eq!(sketch.constraints.symmetry[0].ranks[2], Rank(6));
    }

    #[test]
    fn a_placement_that_is_none_is_refused() {
        let topology = rings([0, 0]);
        for (list, evidence) in [
            ("[0, 2, 1, 3]", "changes the inside of a machine: link 0 → 1 would become 0 → 2, which does not exist"),
            ("[0, 1, 2]", "lists 3 ranks, but a machine has 4 and all have 8"),
            ("[0, 1, 2, 2]", "is the image of two ranks"),
            ("[0, 1, 2, 4]", "local rank 4 does not exist"),
            ("[4, 5, 6, 7, 0, 1, 2, 3]", "moves rank 0 to rank 4 of another machine"),
        ] {
            let error = placed(&format!("placement: {list}"), &topology).unwrap_err();
            assert!(error.contains(evidence), "{list}: {error}");
        }
        assert_eq!(placed("placement: [1, 2, 3, 0, 4, 5, 6, 7]", &topology), Ok(vec![1, 2, 3, 0, 4, 5, 6, 7]));
    }
}
