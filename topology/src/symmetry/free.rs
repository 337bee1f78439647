//! Groups of renumberings in which only the identity leaves a rank in place (semiregular groups).
//!
//! The principal type is [`SemiregularGroup`]. An element is determined by the image of rank 0. So a group needs one
//! number per rank, not a list of renumberings: which generator was applied to which earlier element. Whether
//! generators form such a group is checked point by point (Schreier's lemma: a product that brings rank 0 back must be
//! the identity) or, where they commute, generator by generator ([`Translations`]).

use super::{Action, Translations};
use crate::Rank;

/// The most point images that checking a generator may take: a second or two.
const MOST_WORK: usize = 1 << 30;

/// How an element comes from an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupGrowth {
    /// The earlier element.
    pub parent: u32,
    /// The generator applied after it.
    pub generator: u32,
}

/// A group of renumberings of which only the identity leaves a rank in place. Element 0 is the identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SemiregularGroup {
    generators: Vec<Vec<Rank>>,
    tree: Tree,
}

/// All elements, each represented by the image of rank 0.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tree {
    /// Element i + 1 as an earlier element and a generator.
    growth: Vec<GroupGrowth>,
    /// For each rank, the element that maps rank 0 to it.
    element: Vec<Option<u32>>,
}

impl Tree {
    /// Every place of rank 0 under `generators`, nearest first.
    fn grown(generators: &[Vec<Rank>], ranks: usize) -> Self {
        let mut element = vec![None; ranks];
        let mut places = Vec::new();
        if ranks > 0 {
            element[0] = Some(0);
            places.push(Rank(0));
        }
        let mut growth = Vec::new();
        let mut parent = 0;
        while parent < places.len() {
            for (generator, images) in generators.iter().enumerate() {
                let place = images[places[parent].index()];
                if element[place.index()].is_none() {
                    element[place.index()] = Some(places.len() as u32);
                    places.push(place);
                    growth.push(GroupGrowth { parent: parent as u32, generator: generator as u32 });
                }
            }
            parent += 1;
        }
        Self { growth, element }
    }

    /// The images of `point` under all elements.
    fn images(&self, generators: &[Vec<Rank>], point: Rank) -> Vec<Rank> {
        let mut images = Vec::with_capacity(self.growth.len() + 1);
        images.push(point);
        for step in &self.growth {
            images.push(generators[step.generator as usize][images[step.parent as usize].index()]);
        }
        images
    }

    /// Whether the elements form a group in which only the identity leaves a rank in place.
    fn is_free(&self, generators: &[Vec<Rank>]) -> bool {
        let ranks = self.element.len();
        let places = self.images(generators, Rank(0));
        // products[g][e]: which element generator g after element e is.
        let product = |generator: &Vec<Rank>| -> Option<Vec<u32>> {
            places.iter().map(|place| self.element[generator[place.index()].index()]).collect()
        };
        let Some(products) = generators.iter().map(product).collect::<Option<Vec<_>>>() else { return false };
        (0..ranks).map(Rank::from_index).all(|point| {
            let images = self.images(generators, point);
            let agrees = |generator: &Vec<Rank>, product: &Vec<u32>| {
                images.iter().zip(product).all(|(image, &after)| generator[image.index()] == images[after as usize])
            };
            images[1..].iter().all(|&image| image != point)
                && generators.iter().zip(&products).all(|(generator, product)| agrees(generator, product))
        })
    }
}

impl SemiregularGroup {
    /// The identity alone.
    pub fn trivial(ranks: usize) -> Self {
        Self { generators: Vec::new(), tree: Tree::grown(&[], ranks) }
    }

    /// Adds a generator (a renumbering of all ranks) if it is new, if the larger group still leaves no rank in place,
    /// and if this can be checked in a second or two. Returns whether it was added.
    pub fn admit(&mut self, ranks: &[Rank]) -> bool {
        let count = self.tree.element.len();
        if !self.could_admit(ranks) {
            return false;
        }
        let mut generators = self.generators.clone();
        generators.push(ranks.to_vec());
        let tree = Tree::grown(&generators, count);
        if !are_translations(&generators, &tree) {
            let work = count.saturating_mul(tree.growth.len() + 1).saturating_mul(generators.len());
            if work > MOST_WORK || !count.is_multiple_of(tree.growth.len() + 1) || !tree.is_free(&generators) {
                return false;
            }
        }
        *self = Self { generators, tree };
        true
    }

    /// Whether `ranks` is new and moves every rank: cheap, and necessary for [`Self::admit`].
    pub fn could_admit(&self, ranks: &[Rank]) -> bool {
        let moves_all = || ranks.iter().enumerate().all(|(rank, image)| image.index() != rank);
        ranks.first().is_some_and(|image| self.tree.element[image.index()].is_none()) && moves_all()
    }

    /// Whether every rank can be mapped to every other: there is no larger group of this kind.
    pub fn is_transitive(&self) -> bool {
        self.order() == self.tree.element.len()
    }

    /// How many elements there are, the identity included.
    pub fn order(&self) -> usize {
        self.tree.growth.len() + 1
    }

    /// The renumberings that generate the group.
    pub fn generators(&self) -> &[Vec<Rank>] {
        &self.generators
    }

    /// How each element but the identity follows from an earlier one: element i + 1 from `growth()[i]`.
    pub fn growth(&self) -> &[GroupGrowth] {
        &self.tree.growth
    }
}

/// Whether `generators` commute and leave no rank in place. This is a fast check, and it suffices on most large
/// machines.
fn are_translations(generators: &[Vec<Rank>], tree: &Tree) -> bool {
    let points: Vec<Vec<u32>> = generators.iter().map(|it| it.iter().map(|rank| rank.0).collect()).collect();
    let points: Vec<&[u32]> = points.iter().map(Vec::as_slice).collect();
    Translations::proposed(&points).is_some_and(|group| {
        group.order() == tree.growth.len() + 1 && Action::new(&group, &points, tree.element.len()).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(list: &[u32]) -> Vec<Rank> {
        list.iter().copied().map(Rank).collect()
    }

    #[test]
    fn no_combination_leaves_a_rank_in_place() {
        let mut group = SemiregularGroup::trivial(4);
        assert!(group.admit(&images(&[1, 0, 3, 2])));
        assert!(!group.admit(&images(&[1, 0, 3, 2])), "it is there already");
        assert!(!group.admit(&images(&[0, 2, 1, 3])), "rank 0 stays");
        assert!(!group.admit(&images(&[1, 2, 3, 0])), "with the first it generates the symmetries of a square");
        assert!(group.admit(&images(&[2, 3, 0, 1])));
        assert!(group.is_transitive() && group.order() == 4);
        // Rank 0 comes back before ranks 3 to 6 do.
        assert!(!SemiregularGroup::trivial(7).admit(&images(&[1, 2, 0, 4, 5, 6, 3])));
    }

    #[test]
    fn elements_grow_from_earlier_ones() {
        let mut group = SemiregularGroup::trivial(6);
        let turn = images(&[1, 2, 0, 4, 5, 3]);
        assert!(group.admit(&turn));
        let swap = images(&[3, 4, 5, 0, 1, 2]);
        assert!(group.admit(&swap));
        let mut elements = vec![images(&[0, 1, 2, 3, 4, 5])];
        for step in group.growth() {
            let generator = &group.generators()[step.generator as usize];
            elements.push(elements[step.parent as usize].iter().map(|rank| generator[rank.index()]).collect());
        }
        for (index, element) in elements.iter().enumerate() {
            assert!(elements[..index].iter().all(|other| other.iter().zip(element).all(|(a, b)| a != b)));
        }
        assert_eq!(elements.len(), 6);
    }
}
