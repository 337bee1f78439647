//! Symmetries of a topology under a sketch: checked, or found.
//!
//! The principal functions are [`symmetry_of`], which checks whether a renumbering of ranks is a symmetry of both, and
//! [`detect`], which finds symmetries that a search can use. `topology::symmetry` does the machine's part of either.
//!
//! Detection looks for a group in which only the identity leaves a rank in place. A symmetry that fixes a rank would
//! make that rank send one chunk to several others at the same instant. Rotations and exchanges of machines are tried
//! first, because real machines have them; the general search adds what they miss. Rotations follow TACCL:
//! r → (r mod n + offset) mod n + n·⌊r/n⌋.

use crate::problem::{Constraints, Deadline};
use schedule::{Chunk, ChunkId, Demand, RankSet};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use topology::symmetry::{Automorphism, Colours, LinkEnds, SemiregularGroup, automorphisms, extend};
use topology::{LinkId, Rank, Topology};

/// Above this many link visits (about two seconds), rotations are no longer tried.
const ROTATION_WORK: usize = 10_000_000;
/// On a machine that is planned with symmetries or not at all, at least so many rotations are checked, whatever that takes.
const PATIENT_CHECKS: usize = 3;
/// Work below this takes negligible time, so that the deadline is not checked: symmetries save much more time.
const QUICK_WORK: usize = 500_000;
/// The work of the general search, in links visited: a second at most.
const SEARCH_WORK: u64 = 40_000_000;
/// The same for each millisecond left, where time is limited: this takes about a tenth of that time.
const SEARCH_PACE: u64 = 4_000;
/// The most entries of all renumberings that are examined.
const ELEMENTS: usize = 1 << 20;
/// Beyond this many ranks only rotations are tried: the elements of the whole group would take too much memory.
const MOST_RANKS: usize = 2048;

/// Why a renumbering of ranks is not a symmetry.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymmetryRejection {
    /// The machine has no such symmetry.
    #[error(transparent)]
    Topology(#[from] topology::symmetry::NotASymmetry),
    /// The sketch itself is not symmetric.
    #[error("{ends}, which line {line} treats differently")]
    SketchDiffers {
        /// The link, and the link that it would become.
        ends: LinkEnds,
        /// The sketch line that treats them differently.
        line: u32,
    },
}

/// The rotation r → (r mod n + offset) mod n + n·⌊r/n⌋ of all ranks, where n is `within` and divides `ranks`.
pub(crate) fn rotation(ranks: usize, offset: usize, within: usize) -> Vec<Rank> {
    let image = |rank: usize| (rank % within + offset) % within + within * (rank / within);
    (0..ranks).map(image).map(Rank::from_index).collect()
}

/// Extends a renumbering of ranks to links and resources.
///
/// # Errors
/// [`SymmetryRejection`] with the first rank, link or resource that has no image, or the first link that the sketch
/// treats differently.
pub(crate) fn symmetry_of(
    topology: &Topology,
    constraints: &Constraints,
    ranks: &[Rank],
) -> Result<Automorphism, SymmetryRejection> {
    let symmetry = extend(topology, Colours::default(), ranks)?;
    check_sketch(topology, constraints, &symmetry)?;
    Ok(symmetry)
}

/// Checks that the sketch treats each link and its image alike: both allowed or both not, in the same stages, and for
/// owners that map onto each other.
fn check_sketch(
    topology: &Topology,
    constraints: &Constraints,
    symmetry: &Automorphism,
) -> Result<(), SymmetryRejection> {
    let line_forbidding = |link: LinkId| constraints.forbidden.get(link.index()).copied().flatten();
    let owners = |link: LinkId| constraints.owners.get(link.index()).and_then(Option::as_ref);
    for id in topology.link_ids() {
        let image = symmetry.links[id.index()];
        let differs = |line| {
            let (link, image) = (topology.link(id), topology.link(image));
            let ends = LinkEnds { from: link.from, to: link.to, image_from: image.from, image_to: image.to };
            Err(SymmetryRejection::SketchDiffers { ends, line })
        };
        match (line_forbidding(id), line_forbidding(image)) {
            (Some(line), None) | (None, Some(line)) => return differs(line),
            _ => {}
        }
        let staged_otherwise =
            constraints.stages.as_ref().filter(|it| it.of_link[id.index()] != it.of_link[image.index()]);
        if let Some(stages) = staged_otherwise {
            return differs(stages.line);
        }
        match (owners(id), owners(image)) {
            (None, None) => {}
            (Some((here, line)), Some((there, _))) => {
                let mapped: RankSet = here.iter().map(|owner| symmetry.ranks[owner.index()]).collect();
                if mapped != *there {
                    return differs(*line);
                }
            }
            (Some((_, line)), None) | (None, Some((_, line))) => return differs(*line),
        }
    }
    Ok(())
}

pub(crate) struct Detected {
    /// Generators of a group in which only the identity leaves a rank in place.
    pub(crate) symmetries: Vec<Automorphism>,
    /// Whether there may be more symmetries that the time was too short to find.
    pub(crate) is_cut_short: bool,
}

/// Symmetries of `topology` under `constraints`; where time is limited, those found before `deadline`.
pub(crate) fn detect(topology: &Topology, constraints: &Constraints, deadline: &Deadline) -> Detected {
    let mut group = SemiregularGroup::trivial(topology.rank_count());
    let mut found = Vec::new();
    let mut work = 0;
    // A machine this large is planned with symmetries or not at all, and only rotations are tried; so are plans that are only written
    // compressed.
    let is_patient = topology.rank_count() > MOST_RANKS || deadline.is_open_ended();
    for rotations in rotations(topology) {
        let mut plausible =
            rotations.into_iter().filter(|ranks| group.could_admit(ranks) && is_plausible(topology, ranks));
        let symmetric = plausible.find_map(|ranks| {
            work += topology.links().len();
            let is_in_time = is_patient || work < QUICK_WORK || !deadline.has_passed();
            is_in_time.then(|| symmetry_of(topology, constraints, &ranks).ok()).flatten()
        });
        found.extend(symmetric.filter(|symmetry| group.admit(&symmetry.ranks)));
        let most_work =
            if is_patient { ROTATION_WORK.max(PATIENT_CHECKS * topology.links().len()) } else { ROTATION_WORK };
        if work > most_work || group.is_transitive() {
            return Detected { symmetries: found, is_cut_short: false };
        }
        if !is_patient && work >= QUICK_WORK && deadline.has_passed() {
            return Detected { symmetries: found, is_cut_short: true };
        }
    }
    let work = deadline.remaining().map_or(SEARCH_WORK, |left| SEARCH_WORK.min(left.as_millis() as u64 * SEARCH_PACE));
    if topology.rank_count() > MOST_RANKS || work < topology.links().len() as u64 {
        let is_cut_short = topology.rank_count() <= MOST_RANKS;
        return Detected { symmetries: found, is_cut_short };
    }
    let colours = link_colours(topology, constraints);
    let all = automorphisms(topology, Colours { links: &colours, ..Colours::default() }, work);
    let mut is_cut_short = work < SEARCH_WORK && !all.is_complete();
    for ranks in all.elements(ELEMENTS / topology.rank_count()) {
        if deadline.has_passed() {
            is_cut_short = true;
            break;
        }
        if group.could_admit(&ranks) {
            let symmetric = symmetry_of(topology, constraints, &ranks).ok();
            found.extend(symmetric.filter(|symmetry| group.admit(&symmetry.ranks)));
        }
        if group.is_transitive() {
            return Detected { symmetries: found, is_cut_short: false };
        }
    }
    Detected { symmetries: found, is_cut_short }
}

/// Whether the links of a few ranks have images. This cheap test rejects most renumberings of a large machine.
fn is_plausible(topology: &Topology, ranks: &[Rank]) -> bool {
    const LOOKED_AT: usize = 16;
    let stride = topology.rank_count().div_ceil(LOOKED_AT).max(1);
    let image = |rank: Rank| ranks[rank.index()];
    let links_map = |rank: Rank| {
        let mut leaving = topology.outgoing(rank).iter().map(|&id| topology.link(id).to);
        leaving.all(|to| topology.between(image(rank), image(to)).next().is_some())
    };
    // The last rank of a block is where a rotation wraps around.
    topology.ranks().step_by(stride).chain(topology.ranks().next_back()).all(links_map)
}

/// Lists of rotations, one list per block size, largest blocks first; then exchanges of neighbouring machines. The
/// first rotation of a list that is a symmetry generates the others of that list.
fn rotations(topology: &Topology) -> impl Iterator<Item = Vec<Vec<Rank>>> + use<'_> {
    let ranks = topology.rank_count();
    let blocks = divisors(ranks).into_iter().rev().filter(|&within| within > 1);
    let rotations = blocks.map(move |within| {
        let offsets = divisors(within).into_iter().filter(|&offset| offset < within);
        offsets.map(|offset| rotation(ranks, offset, within)).collect()
    });
    rotations.chain(std::iter::once_with(|| pairs_of_machines(topology).into_iter().collect()))
}

/// Exchanges every machine with its neighbour, rank by rank; `None` unless they are equally large and even in number.
fn pairs_of_machines(topology: &Topology) -> Option<Vec<Rank>> {
    let mut ranks: Vec<Rank> = topology.ranks().collect();
    for pair in topology.machines().chunks(2) {
        let [one, other] = pair else { return None };
        if one.len() != other.len() {
            return None;
        }
        one.iter().zip(other).for_each(|(a, b)| ranks.swap(a.index(), b.index()));
    }
    Some(ranks)
}

fn divisors(number: usize) -> Vec<usize> {
    (1..=number).filter(|&divisor| number.is_multiple_of(divisor)).collect()
}

/// Links that the sketch treats differently have different colours.
fn link_colours(topology: &Topology, constraints: &Constraints) -> Vec<u32> {
    let mut colours: BTreeMap<(bool, Option<u16>, Option<usize>), u32> = BTreeMap::new();
    let treatment = |id: LinkId| {
        let stages = constraints.stages.as_ref().map(|stages| stages.of_link[id.index()]);
        let owners = constraints.owners.get(id.index()).and_then(Option::as_ref).map(|(owners, _)| owners.len());
        (constraints.allows_link(id), stages, owners)
    };
    let mut colour = |id| {
        let next = colours.len() as u32;
        *colours.entry(treatment(id)).or_insert(next)
    };
    topology.link_ids().map(&mut colour).collect()
}

/// The image of each chunk under a symmetry of the machine; `None` if the demand is not symmetric.
pub(crate) fn chunk_images<'a>(demand: &'a Demand) -> impl Fn(&Automorphism) -> Option<Vec<ChunkId>> + 'a {
    let kinds = OnceCell::new();
    move |symmetry| {
        let images = demand.renumbered_pairs(&symmetry.ranks);
        images.or_else(|| kinds.get_or_init(|| Kinds::new(demand)).images(symmetry))
    }
}

/// The chunks of a demand by kind, so that symmetries can be applied to chunks.
///
/// Chunks of one kind have equal holders, receivers, bytes and releases. Among them, a chunk is identified by its place.
struct Kinds {
    sets: NumberedSets,
    /// For each chunk its kind.
    of: Vec<ChunkKind>,
    /// All chunks by kind, then by id.
    sorted: Vec<(ChunkKind, ChunkId)>,
    /// For each set number, where the kinds with these holders begin in `sorted`; and the end.
    starts: Vec<u32>,
}

/// Holders and receivers as numbers of sets, bytes and release.
type ChunkKind = (u32, u32, u64, u64);

impl Kinds {
    fn new(demand: &Demand) -> Self {
        let mut sets = NumberedSets::default();
        let bytes = |chunk: &Chunk| chunk.bytes.map_or(0, |bytes| bytes.0.to_bits());
        let mut kind = |chunk: &Chunk| {
            let (holders, wanted_by) = (sets.number(&chunk.holders), sets.number(&chunk.wanted_by));
            (holders, wanted_by, bytes(chunk), chunk.release.0.to_bits())
        };
        let of: Vec<ChunkKind> = demand.chunks().iter().map(&mut kind).collect();
        let mut sorted: Vec<(ChunkKind, ChunkId)> = of.iter().copied().zip(demand.chunk_ids()).collect();
        sorted.sort();
        let mut starts = vec![0; sets.known.len() + 1];
        of.iter().for_each(|kind| starts[kind.0 as usize + 1] += 1);
        (1..starts.len()).for_each(|set| starts[set] += starts[set - 1]);
        Self { sets, of, sorted, starts }
    }

    /// The image of each chunk; `None` if the demand is not symmetric.
    fn images(&self, symmetry: &Automorphism) -> Option<Vec<ChunkId>> {
        let moved = |set: &RankSet| set.iter().map(|rank| symmetry.ranks[rank.index()]).collect::<RankSet>();
        let mut set_images = vec![None; self.sets.known.len()];
        for (set, &number) in &self.sets.known {
            set_images[number as usize] = self.sets.known.get(&moved(set)).copied();
        }
        let mut images = vec![None; self.of.len()];
        for alike in self.sorted.chunk_by(|a, b| a.0 == b.0) {
            let (holders, wanted_by, bytes, release) = alike[0].0;
            let kind = (set_images[holders as usize]?, set_images[wanted_by as usize]?, bytes, release);
            let of_holders =
                &self.sorted[self.starts[kind.0 as usize] as usize..self.starts[kind.0 as usize + 1] as usize];
            let first = of_holders.partition_point(|entry| entry.0 < kind);
            for (place, &(_, id)) in alike.iter().enumerate() {
                let image = of_holders.get(first + place).filter(|entry| entry.0 == kind)?;
                images[id.index()] = Some(image.1);
            }
        }
        images.into_iter().collect()
    }
}

/// Distinct sets of ranks, numbered. Most chunks share theirs with the chunk before; two cached sets make that case
/// cheap.
#[derive(Default)]
struct NumberedSets {
    known: BTreeMap<RankSet, u32>,
    last: [Option<(RankSet, u32)>; 2],
}

impl NumberedSets {
    fn number(&mut self, set: &RankSet) -> u32 {
        let same = |(known, _): &&(RankSet, u32)| known.as_ptr() == set.as_ptr() && known.len() == set.len();
        if let Some(&(_, number)) = self.last.iter().flatten().find(same) {
            return number;
        }
        let next = self.known.len() as u32;
        let number = *self.known.entry(set.clone()).or_insert(next);
        self.last.rotate_right(1);
        self.last[0] = Some((set.clone(), number));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::SketchFile;
    use std::collections::BTreeSet;
    use topology::resolve;

    /// The images of ranks 0 and 1 under each symmetry, and how many there are.
    fn symmetries(text: &str, spec: &str) -> Result<Vec<(u32, u32)>, String> {
        let topology = resolve(spec).unwrap();
        let sketch = SketchFile::parse(text, "s.yaml").and_then(|file| file.resolve(&topology));
        let constraints = sketch.map_err(|error| error.to_string())?.constraints;
        constraints.symmetry.iter().for_each(|symmetry| check(&topology, symmetry));
        Ok(constraints.symmetry.iter().map(|symmetry| (symmetry.ranks[0].0, symmetry.ranks[1].0)).collect())
    }

    /// Checks the definition link by link, without the tables of the code under test.
    fn check(topology: &Topology, symmetry: &Automorphism) {
        let mut images = symmetry.links.clone();
        images.sort_unstable();
        assert!(images.iter().copied().eq(topology.link_ids()), "links map one to one");
        for id in topology.link_ids() {
            let (link, image) = (topology.link(id), topology.link(symmetry.links[id.index()]));
            assert_eq!(image.from, symmetry.ranks[link.from.index()]);
            assert_eq!(image.to, symmetry.ranks[link.to.index()]);
            assert_eq!((image.alpha, image.beta, image.latency), (link.alpha, link.beta, link.latency));
            // Two links share a resource exactly if their images do.
            for &resource in &link.resources {
                let other = topology.users(resource)[0];
                let other_image = topology.link(symmetry.links[other.index()]);
                let shares = image.resources.iter().any(|resource| other_image.resources.contains(resource));
                assert!(shares, "links {id} and {other}");
            }
        }
    }

    #[test]
    fn rotations_of_the_shipped_machines() {
        for (rule, spec, images) in [
            ("{rotate: 8, within: 16}", "ndv2x2", (8, 9)),
            ("{rotate: 8, within: 16}", "ndv2x2,costs=taccl-1mb", (8, 9)),
            ("{rotate: 8, within: 32}", "ndv2x4", (8, 9)),
            ("{rotate: 24, within: 32}", "ndv2x4,costs=taccl-1mb", (24, 25)),
            ("{rotate: 4, within: 8}", "ndv2x1", (4, 5)),
            ("{rotate: 2, within: 16}", "dgx2x2", (2, 3)),
            ("{rotate: 2, within: 16}", "dgx2x2,costs=taccl-1mb", (2, 3)),
            ("{rotate: 16, within: 32}", "dgx2x2,costs=taccl-1kb", (16, 17)),
            ("{rotate: 3}", "ring:8", (3, 4)),
            ("{rotate: 1000000000001, within: 4}", "torus2d:4x4", (1, 2)),
            ("{permutation: [3, 2, 1, 0]}", "line:4", (3, 2)),
            ("{cycles: [[0, 3], [2, 1]]}", "line:4", (3, 2)),
            ("{cycles: [[0, 1, 2, 3]]}", "clique:5", (1, 2)),
            ("{map: {0: 3, 3: 0, 1: 2, 2: 1}}", "line:4", (3, 2)),
            ("{map: {1: 3, 3: 1}}", "clique:4", (0, 3)),
        ] {
            assert_eq!(symmetries(&format!("symmetry: [{rule}]"), spec), Ok(vec![images]), "{rule} on {spec}");
        }
    }

    #[test]
    fn what_is_not_symmetric_is_said_with_evidence() {
        for (rule, spec, evidence) in [
            ("{rotate: 1, within: 8}", "ndv2x2", "link 0 → 1 would become 1 → 2, which differs from it"),
            ("{rotate: 2, within: 8}", "ndv2x1", "link 0 → 2 would become 2 → 4, which does not exist"),
            ("{rotate: 1, within: 16}", "dgx2x2,costs=taccl-1mb", "would not share an equal resource"),
            ("{rotate: 1}", "line:4", "link 2 → 3 would become 3 → 0, which does not exist"),
            ("{cycles: [[0, 1]]}", "line:4", "link 1 → 2 would become 0 → 2, which does not exist"),
            ("{cycles: [[0, 1], [1, 2]]}", "line:4", "rank 1 stands in the cycles twice"),
            ("{map: {0: 1}}", "clique:4", "rank 1 is the image of two ranks"),
        ] {
            let error = symmetries(&format!("symmetry: [{rule}]"), spec).unwrap_err();
            assert!(error.contains(evidence), "{rule} on {spec}: {error}");
        }
    }

    /// How many images the first rank has under the symmetries that `auto` finds.
    fn orbit(text: &str, spec: &str) -> usize {
        let topology = resolve(spec).unwrap();
        let sketch = SketchFile::parse(text, "s.yaml").unwrap().resolve(&topology).unwrap();
        let found = sketch.constraints.symmetry;
        found.iter().for_each(|symmetry| check(&topology, symmetry));
        let mut reached = BTreeSet::from([Rank(0)]);
        while let Some(next) =
            reached.iter().flat_map(|r| found.iter().map(|s| s.ranks[r.index()])).find(|r| !reached.contains(r))
        {
            reached.insert(next);
        }
        reached.len()
    }

    #[test]
    fn auto_finds_what_moves_every_rank() {
        let auto = "symmetry: auto";
        for (spec, reached) in [
            ("line:4", 2),
            ("line:5", 1),
            ("ring:6", 6),
            ("clique:7", 7),
            ("hypercube:4", 16),
            ("torus2d:2x3", 6),
            ("torus3d:2x3x4", 24),
            ("mesh2d:4x4", 4),
            ("dgx1", 4),
            ("ndv2x2", 2),
            ("ndv2x4", 4),
            ("dgx2x2,costs=taccl-1mb", 32),
        ] {
            assert_eq!(orbit(auto, spec), reached, "{spec}");
        }
        assert_eq!(orbit("symmetry: auto\nlinks: {forbid: [[0, 1]]}", "ring:6"), 1, "a sketch may break a symmetry");
        let relays = "symmetry: auto\nrelays: {1: [0], 3: [2], 5: [4], 7: [6], 9: [8], 11: [10], 13: [12], 15: [14]}";
        assert_eq!(orbit(relays, "dgx2x2,costs=taccl-1mb"), 16, "odd and even ranks differ");
    }

    #[test]
    fn a_machine_that_would_be_torn_apart_is_refused() {
        let error = symmetries("symmetry: [{rotate: 1}]", "dgx2x2").unwrap_err();
        assert!(error.contains("share a machine"), "{error}");
    }
}
