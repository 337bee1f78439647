//! Resolving a sketch: from the text to tables over one topology.
//!
//! The principal function is [`SketchFile::resolve`]. `links` handles the rules about links, `wishes` those about
//! symmetries, and `placement` finds the physical ranks that the sketch's numbers mean. All names are looked up here,
//! so that strategies see only ids that exist.

use super::body::{LocatedRanks, RankMap, SizeRange};
use super::error::{Mistake, SketchError};
use super::file::{SketchFile, line_of};
use super::placement;
use crate::problem::{Constraints, StrategyKind};
use schedule::RankSet;
use serde_saphyr::{Location, Spanned};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::{Rank, Topology, counted, shorten};

/// A sketch, resolved against a topology.
#[derive(Clone, PartialEq, Debug)]
pub struct Sketch {
    /// The name of the file in errors and reports.
    pub origin: String,
    /// The name of the sketch, or of the file if the sketch has none.
    pub name: String,
    /// Why the sketch exists.
    pub why: Option<String>,
    /// What strategies obey and prefer, over physical ranks and links.
    pub constraints: Constraints,
    /// Options that the sketch sets for the planner.
    pub pins: Pins,
}

/// Options that a sketch fixes; `None` where it leaves one open.
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
}

impl SketchFile {
    /// Resolves the sketch for `topology`.
    ///
    /// # Errors
    /// [`SketchError`] with the position of the first rule that the topology cannot meet.
    pub fn resolve(&self, topology: &Topology) -> Result<Sketch, SketchError> {
        check_shape(self, topology)?;
        let resolver = SketchResolver::new(self, topology, placement::choose(self, topology)?);
        let mut constraints = resolver.link_rules()?;
        constraints.owners = resolver.owners(&constraints)?;
        constraints.symmetry = resolver.symmetries(&constraints)?;
        constraints.connections = resolver.connections(&constraints)?;
        constraints.objective = self.body.objective;
        constraints.own_chunks_first = self.body.own_chunks_first.as_ref().filter(|wish| wish.value).map(line_of);
        if !resolver.is_identity() {
            constraints.placement = resolver.physical;
        }
        let pins = Pins {
            chunks_per_rank: self.chunks_per_rank()?,
            strategy: self.strategy()?,
            time_limit: self.time_limit()?,
            sizes: self.sizes()?,
        };
        let name = self.body.name.clone().unwrap_or_else(|| self.origin.clone());
        let why = self.body.why.clone().or_else(|| self.comment.clone());
        Ok(Sketch { origin: self.origin.clone(), name, why, constraints, pins })
    }
}

/// Refuses a topology of another shape than the sketch was written for.
fn check_shape(file: &SketchFile, topology: &Topology) -> Result<(), SketchError> {
    let Some(at) = &file.body.topology else { return Ok(()) };
    let shape = &at.value;
    let machines = topology.machines();
    let wrong = |expected: String, found: String| {
        let (topology, such_as) = (shorten(topology.name()), shape.such_as.clone());
        Err(file.error(at.referenced, Mistake::WrongShape { expected, found, topology, such_as }))
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

/// A sketch, a topology, and how their ranks correspond: the sketch's ranks are logical, the topology's are physical.
pub(super) struct SketchResolver<'a> {
    pub(super) file: &'a SketchFile,
    pub(super) topology: &'a Topology,
    /// The physical rank of every logical rank; both are in the same machine.
    pub(super) physical: Vec<Rank>,
    /// For every physical rank, its local rank in the sketch's numbering.
    pub(super) local: Vec<u64>,
    /// How many links the rules so far have looked at.
    pub(super) looked_at: Cell<usize>,
}

/// An entry of a map from local ranks to lists of local ranks.
pub(super) struct RankListEntry {
    pub(super) ranks: BTreeSet<u64>,
    pub(super) line: u32,
}

/// How ranks are numbered: over all machines, or inside each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    Global,
    Local,
}

impl<'a> SketchResolver<'a> {
    pub(super) fn new(file: &'a SketchFile, topology: &'a Topology, physical: Vec<Rank>) -> Self {
        let mut local = vec![0; topology.rank_count()];
        for machine in topology.machines() {
            (0..).zip(machine).for_each(|(position, rank)| local[physical[rank.index()].index()] = position);
        }
        Self { file, topology, physical, local, looked_at: Cell::new(0) }
    }

    fn is_identity(&self) -> bool {
        self.topology.ranks().eq(self.physical.iter().copied())
    }

    /// The rules about links alone: forbidden links, the most machine hops, and stages.
    pub(super) fn link_rules(&self) -> Result<Constraints, SketchError> {
        let stages = self.stages()?;
        let forbidden = self.forbidden_links(stages.as_ref())?;
        let max_machine_hops = self.file.max_machine_hops()?;
        Ok(Constraints { forbidden, max_machine_hops, stages, ..Constraints::none() })
    }

    pub(super) fn topology_name(&self) -> String {
        shorten(self.topology.name())
    }

    /// The physical rank of a logical one.
    pub(super) fn rank(&self, number: &Spanned<u64>) -> Result<Rank, SketchError> {
        let ranks = self.topology.rank_count();
        match usize::try_from(number.value).ok().filter(|&rank| rank < ranks) {
            Some(rank) => Ok(self.physical[rank]),
            None => {
                let mistake = Mistake::NoSuchRank { rank: number.value, ranks, topology: self.topology_name() };
                Err(self.file.error(number.referenced, mistake))
            }
        }
    }

    /// Checks that some machine has a local rank of this number.
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
        ranks: &LocatedRanks,
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

    pub(super) fn local_set(&self, ranks: &LocatedRanks) -> Result<BTreeSet<u64>, SketchError> {
        ranks.list.iter().map(|rank| self.local_rank(rank)).collect()
    }

    /// The ranks of all machines whose local rank is one of `numbers`.
    pub(super) fn with_local_number(&self, numbers: &BTreeSet<u64>) -> RankSet {
        self.topology.ranks().filter(|rank| numbers.contains(&self.local[rank.index()])).collect()
    }

    /// Checks the numbers of a map from local ranks to lists of local ranks.
    pub(super) fn rank_map(
        &self,
        map: &RankMap,
        at: Location,
        what: &'static str,
    ) -> Result<BTreeMap<u64, RankListEntry>, SketchError> {
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
            entries.insert(self.local_rank(key)?, RankListEntry { ranks: self.local_set(values)?, line: line_of(key) });
        }
        Ok(entries)
    }
}
