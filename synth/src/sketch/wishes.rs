//! The symmetries that a sketch asks for: rotations, permutations, cycles, maps, or `auto`.
//!
//! The principal function is [`Resolver::symmetries`]. A rule renumbers the sketch's logical ranks. Before it is
//! checked, it is translated to physical ranks by the placement.

use super::body::{Cycle, RankImages, SymmetryRule, SymmetryWish};
use super::error::{Mistake, SketchError};
use super::resolve::SketchResolver;
use crate::problem::{Constraints, Deadline};
use crate::symmetry::{detect, rotation, symmetry_of};
use serde_saphyr::{Location, Spanned};
use topology::Rank;
use topology::symmetry::Automorphism;

/// The most symmetries of a sketch; each costs a table over all links.
const MAX_SYMMETRIES: usize = 64;

impl SketchResolver<'_> {
    /// The symmetries that the sketch asks for, each checked against the topology and the rest of the sketch.
    pub(super) fn symmetries(&self, constraints: &Constraints) -> Result<Vec<Automorphism>, SketchError> {
        let Some(wish) = &self.file.body.symmetry else { return Ok(Vec::new()) };
        let rules = match &wish.value {
            SymmetryWish::None => return Ok(Vec::new()),
            SymmetryWish::Auto => return Ok(detect(self.topology, constraints, &Deadline::default()).symmetries),
            SymmetryWish::List(rules) => rules,
        };
        if rules.len() > MAX_SYMMETRIES {
            let (what, count, limit) = ("symmetry", rules.len(), MAX_SYMMETRIES);
            return Err(self.file.error(wish.referenced, Mistake::TooMany { what, count, limit }));
        }
        let check = |rule: &Spanned<SymmetryRule>| {
            let (ranks, symmetry) = self.renumbering(rule)?;
            symmetry_of(self.topology, constraints, &ranks).map_err(|why| {
                let mistake = Mistake::NotASymmetry { symmetry, topology: self.topology_name(), why };
                self.file.error(rule.referenced, mistake)
            })
        };
        rules.iter().map(check).collect()
    }

    /// The image of every physical rank, and the rule in words.
    fn renumbering(&self, rule: &Spanned<SymmetryRule>) -> Result<(Vec<Rank>, String), SketchError> {
        match &rule.value {
            SymmetryRule { rotate: Some(offset), within, permutation: None, cycles: None, map: None } => {
                let ranks = self.topology.rank_count();
                let within = within.as_ref().map_or(ranks as u64, |within| within.value);
                let Some(block) = usize::try_from(within).ok().filter(|&n| n > 0 && ranks.is_multiple_of(n)) else {
                    let text = format!("`within: {within}` does not divide the {ranks} ranks into blocks");
                    return self.inconsistent(rule.referenced, text);
                };
                // Any offset is equivalent to its remainder, which always fits.
                let remainder = (offset.value % within) as usize;
                let logical = rotation(ranks, remainder, block);
                let mut images = self.physical.clone();
                for (from, to) in self.physical.iter().zip(logical) {
                    images[from.index()] = self.physical[to.index()];
                }
                Ok((images, format!("rotating by {} within {within}", offset.value)))
            }
            SymmetryRule { rotate: None, within: None, permutation: Some(images), cycles: None, map: None } => {
                Ok((self.listed(images)?, "this permutation".to_owned()))
            }
            SymmetryRule { rotate: None, within: None, permutation: None, cycles: Some(cycles), map: None } => {
                Ok((self.cycles(cycles)?, "this permutation".to_owned()))
            }
            SymmetryRule { rotate: None, within: None, permutation: None, cycles: None, map: Some(map) } => {
                Ok((self.mapped(map)?, "this permutation".to_owned()))
            }
            _ => {
                let text = "a symmetry is one of `rotate` (with `within`), `permutation`, `cycles` and `map`";
                self.inconsistent(rule.referenced, text.to_owned())
            }
        }
    }

    fn inconsistent<T>(&self, at: Location, text: String) -> Result<T, SketchError> {
        Err(self.file.error(at, Mistake::Inconsistent { text }))
    }

    /// `[1, 0, 2]`: the image of every rank.
    fn listed(&self, images: &Spanned<Vec<Spanned<u64>>>) -> Result<Vec<Rank>, SketchError> {
        let (ranks, count) = (self.topology.rank_count(), images.value.len());
        if count != ranks {
            let text = format!("a permutation lists an image for each of the {ranks} ranks, not {count}");
            return self.inconsistent(images.referenced, text);
        }
        let mut permuted = self.physical.clone();
        for (from, image) in self.physical.iter().zip(&images.value) {
            permuted[from.index()] = self.rank(image)?;
        }
        Ok(permuted)
    }

    /// `[[0, 3], [1, 2]]`: every rank becomes the next of its cycle; other ranks stay.
    fn cycles(&self, cycles: &Spanned<Vec<Cycle>>) -> Result<Vec<Rank>, SketchError> {
        let mut images: Vec<Rank> = self.topology.ranks().collect();
        let mut moved = vec![false; images.len()];
        for cycle in &cycles.value {
            let ranks = cycle.value.iter().map(|rank| self.rank(rank)).collect::<Result<Vec<_>, _>>()?;
            for (position, rank) in ranks.iter().enumerate() {
                if std::mem::replace(&mut moved[rank.index()], true) {
                    let text = format!("rank {} stands in the cycles twice", cycle.value[position].value);
                    return self.inconsistent(cycle.value[position].referenced, text);
                }
                images[rank.index()] = ranks[(position + 1) % ranks.len()];
            }
        }
        Ok(images)
    }

    /// `{0: 3, 3: 0}`: these ranks become their images; other ranks stay.
    fn mapped(&self, map: &Spanned<RankImages>) -> Result<Vec<Rank>, SketchError> {
        let mut images: Vec<Rank> = self.topology.ranks().collect();
        for (from, to) in &map.value.0 {
            images[self.rank(from)?.index()] = self.rank(to)?;
        }
        Ok(images)
    }
}
