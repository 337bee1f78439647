//! From a sketch as written to tables over one topology.
//!
//! The principal function is [`SketchFile::resolve`]; `links` does the part about links, `symmetry` the part about
//! symmetries. Everything that names something is looked up here, so that strategies see only ids that exist.

use super::error::{Mistake, SketchError};
use super::file::{Connections, Objective, RankMap, Ranks, SizeRange, SketchFile, SymmetryRule, SymmetryWish, line_of};
use super::symmetry::{Symmetries, check_sketch, rotation};
use crate::{Automorphism, Constraints, StrategyKind};
use schedule::RankSet;
use serde_saphyr::{Location, Spanned};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::{Rank, Topology};

/// The most symmetries of a sketch; each costs a table over all links.
const MAX_SYMMETRIES: usize = 64;

/// A sketch, resolved against a topology.
#[derive(Clone, PartialEq, Debug)]
pub struct Sketch {
    /// What errors and reports call the file.
    pub origin: String,
    /// Its name; the file's name where the file does not say.
    pub name: String,
    /// Why it exists.
    pub why: Option<String>,
    /// What strategies obey.
    pub constraints: Constraints,
    /// What the planner is told.
    pub pins: Pins,
}

/// Options that a sketch fixes; what it leaves open is `None`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pins {
    /// Chunks per rank.
    pub chunks_per_rank: Option<u32>,
    /// The one strategy to use.
    pub strategy: Option<StrategyKind>,
    /// How long to search.
    pub time_limit: Option<Duration>,
    /// The buffer sizes the sketch is meant for.
    pub sizes: SizeRange,
    /// A preference between schedules of equal length.
    pub objective: Option<Objective>,
    /// A preference for few or many connections per switch.
    pub connections: Option<Connections>,
}

impl SketchFile {
    /// Resolves the sketch for `topology`.
    ///
    /// # Errors
    /// [`SketchError`] with the position of the first rule that the topology cannot meet.
    pub fn resolve(&self, topology: &Topology) -> Result<Sketch, SketchError> {
        let resolver = Resolver { file: self, topology, local: local_ranks(topology) };
        resolver.check_shape()?;
        let mut constraints = Constraints {
            forbidden: resolver.forbidden_links()?,
            max_machine_hops: self.max_machine_hops()?,
            own_chunks_first: self.body.own_chunks_first.as_ref().filter(|wish| wish.value).map(line_of),
            ..Constraints::none()
        };
        constraints.owners = resolver.owners(&constraints)?;
        constraints.symmetry = resolver.symmetries(&constraints)?;
        let pins = Pins {
            chunks_per_rank: self.chunks_per_rank()?,
            strategy: self.strategy()?,
            time_limit: self.time_limit()?,
            sizes: self.sizes()?,
            objective: self.body.objective,
            connections: self.body.connections,
        };
        let name = self.body.name.clone().unwrap_or_else(|| self.origin.clone());
        let why = self.body.why.clone().or_else(|| self.comment.clone());
        Ok(Sketch { origin: self.origin.clone(), name, why, constraints, pins })
    }
}

/// The position of every rank in its machine.
fn local_ranks(topology: &Topology) -> Vec<u64> {
    let mut local = vec![0; topology.rank_count()];
    for machine in topology.machines() {
        (0..).zip(machine).for_each(|(position, rank)| local[rank.index()] = position);
    }
    local
}

/// A sketch, a topology, and the position of every rank in its machine.
pub(super) struct Resolver<'a> {
    pub(super) file: &'a SketchFile,
    pub(super) topology: &'a Topology,
    pub(super) local: Vec<u64>,
}

/// An entry of a map from local ranks to lists of local ranks.
pub(super) struct Entry {
    pub(super) ranks: BTreeSet<u64>,
    pub(super) line: u32,
}

/// Ranks by number: over all machines, or inside each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    Global,
    Local,
}

impl Resolver<'_> {
    pub(super) fn topology_name(&self) -> String {
        self.topology.name().to_owned()
    }

    fn check_shape(&self) -> Result<(), SketchError> {
        let Some(at) = &self.file.body.topology else { return Ok(()) };
        let shape = &at.value;
        let machines = self.topology.machines();
        let wrong = |expected: String, found: String| {
            let (topology, such_as) = (self.topology_name(), shape.such_as.clone());
            Err(self.file.error(at.referenced, Mistake::WrongShape { expected, found, topology, such_as }))
        };
        if let Some(expected) = shape.machines.filter(|&expected| expected != machines.len()) {
            return wrong(counted(expected, "machine"), counted(machines.len(), "machine"));
        }
        let misfit = |expected: &usize| machines.iter().map(Vec::len).find(|size| size != expected);
        if let Some((expected, found)) = shape.ranks_per_machine.and_then(|size| Some((size, misfit(&size)?))) {
            let expected = format!("machines of {}", counted(expected, "rank"));
            return wrong(expected, format!("a machine of {}", counted(found, "rank")));
        }
        Ok(())
    }

    pub(super) fn rank(&self, number: &Spanned<u64>) -> Result<Rank, SketchError> {
        let ranks = self.topology.rank_count();
        match usize::try_from(number.value).ok().filter(|&rank| rank < ranks) {
            Some(rank) => Ok(Rank::from_index(rank)),
            None => {
                let mistake = Mistake::NoSuchRank { rank: number.value, ranks, topology: self.topology_name() };
                Err(self.file.error(number.referenced, mistake))
            }
        }
    }

    /// Checks that some machine has a rank of this number.
    pub(super) fn local_rank(&self, number: &Spanned<u64>) -> Result<u64, SketchError> {
        let ranks = self.topology.machines().iter().map(Vec::len).max().unwrap_or(0);
        if number.value < ranks as u64 {
            return Ok(number.value);
        }
        let mistake = Mistake::NoSuchLocalRank { rank: number.value, ranks, topology: self.topology_name() };
        Err(self.file.error(number.referenced, mistake))
    }

    pub(super) fn ranks(
        &self,
        ranks: &Ranks,
        numbering: Numbering,
        what: &'static str,
    ) -> Result<RankSet, SketchError> {
        if ranks.list.is_empty() {
            let mistake = Mistake::Empty { what, effect: "name no link" };
            return Err(self.file.error(ranks.at, mistake));
        }
        match numbering {
            Numbering::Global => ranks.list.iter().map(|rank| self.rank(rank)).collect(),
            Numbering::Local => {
                let local = self.local_set(ranks)?;
                Ok(self.with_local_number(&local))
            }
        }
    }

    pub(super) fn local_set(&self, ranks: &Ranks) -> Result<BTreeSet<u64>, SketchError> {
        ranks.list.iter().map(|rank| self.local_rank(rank)).collect()
    }

    /// The ranks of all machines that have one of these numbers in theirs.
    pub(super) fn with_local_number(&self, numbers: &BTreeSet<u64>) -> RankSet {
        self.topology.ranks().filter(|rank| numbers.contains(&self.local[rank.index()])).collect()
    }

    /// Checks the numbers of a map from local ranks to lists of local ranks.
    pub(super) fn rank_map(
        &self,
        map: &RankMap,
        at: Location,
        what: &'static str,
    ) -> Result<BTreeMap<u64, Entry>, SketchError> {
        let empty = |at, what| {
            let effect = "let nothing leave its machine";
            Err(self.file.error(at, Mistake::Empty { what, effect }))
        };
        if map.0.is_empty() {
            return empty(at, what);
        }
        let mut entries = BTreeMap::new();
        for (key, values) in &map.0 {
            if values.list.is_empty() {
                return empty(values.at, "this list");
            }
            entries.insert(self.local_rank(key)?, Entry { ranks: self.local_set(values)?, line: line_of(key) });
        }
        Ok(entries)
    }

    /// The symmetries asked for, each checked against the topology and the rest of the sketch.
    fn symmetries(&self, constraints: &Constraints) -> Result<Vec<Automorphism>, SketchError> {
        let Some(wish) = &self.file.body.symmetry else { return Ok(Vec::new()) };
        let rules = match &wish.value {
            SymmetryWish::None => return Ok(Vec::new()),
            SymmetryWish::Auto => return Ok(Symmetries::of(self.topology).detect(constraints)),
            SymmetryWish::List(rules) => rules,
        };
        if rules.len() > MAX_SYMMETRIES {
            let (what, count, limit) = ("symmetry", rules.len(), MAX_SYMMETRIES);
            return Err(self.file.error(wish.referenced, Mistake::TooMany { what, count, limit }));
        }
        let known = Symmetries::of(self.topology);
        let check = |rule: &Spanned<SymmetryRule>| {
            let (ranks, symmetry) = self.renumbering(rule)?;
            let automorphism = known.automorphism(ranks).and_then(|found| {
                check_sketch(self.topology, constraints, &found)?;
                Ok(found)
            });
            automorphism.map_err(|why| {
                let mistake = Mistake::NotASymmetry { symmetry, topology: self.topology_name(), why };
                self.file.error(rule.referenced, mistake)
            })
        };
        rules.iter().map(check).collect()
    }

    /// The image of every rank, and the rule in words.
    fn renumbering(&self, rule: &Spanned<SymmetryRule>) -> Result<(Vec<Rank>, String), SketchError> {
        let ranks = self.topology.rank_count();
        let inconsistent = |text: String| Err(self.file.error(rule.referenced, Mistake::Inconsistent { text }));
        match &rule.value {
            SymmetryRule { rotate: Some(offset), within, permutation: None } => {
                let within = within.as_ref().map_or(ranks as u64, |within| within.value);
                let Some(block) = usize::try_from(within).ok().filter(|&n| n > 0 && ranks.is_multiple_of(n)) else {
                    return inconsistent(format!("`within: {within}` does not divide the {ranks} ranks into blocks"));
                };
                // Any offset means the same as its remainder, which always fits.
                let remainder = (offset.value % within) as usize;
                Ok((rotation(ranks, remainder, block), format!("rotating by {} within {within}", offset.value)))
            }
            SymmetryRule { rotate: None, within: None, permutation: Some(images) } => {
                if images.value.len() != ranks {
                    let count = images.value.len();
                    return inconsistent(format!(
                        "a permutation lists an image for each of the {ranks} ranks, not {count}"
                    ));
                }
                let images = images.value.iter().map(|image| self.rank(image)).collect::<Result<_, _>>()?;
                Ok((images, "this permutation".to_owned()))
            }
            _ => inconsistent("a symmetry is either `rotate` (with `within`) or `permutation`".to_owned()),
        }
    }
}

/// `1 rank`, `2 ranks`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
