//! Groups of translations: commuting renumberings that leave nothing in place, as on rings, tori, cubes and cliques.
//!
//! The principal types are [`Translations`], the group Z/n₁ × … × Z/nₖ with one generator for each factor, and
//! [`Action`], its effect on a set of points (ranks, links or chunks). An element is a number whose digits, in the
//! mixed base n₁, …, nₖ, say how often each generator is applied. Every point of an orbit is the image of the orbit's
//! first point under exactly one element, so applying an element to a point adds digits.
//!
//! Why [`Action::new`] is a proof: it numbers the points of an orbit by elements. Then it checks for every point that
//! each generator adds 1 (modulo nᵢ) to its own digit and changes no other digit. Generators that do so everywhere are
//! permutations that commute and have the stated orders, and only the identity leaves a point in place, because it adds
//! nothing. This takes one look per point and generator; checking an arbitrary group takes one per point and element.

/// The most factors: 2¹⁷ ranks have no more.
const MOST_FACTORS: usize = 20;

/// The group Z/n₁ × … × Z/nₖ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Translations {
    /// nᵢ, all above 1.
    orders: Vec<u32>,
    size: u32,
}

impl Translations {
    /// The group that `generators` (`generator[p]` is the image of point p) would form if every point moved as point 0
    /// does; `None` if it would have more elements than there are points. [`Action::new`] checks whether it is one.
    pub fn proposed(generators: &[&[u32]]) -> Option<Self> {
        if generators.len() > MOST_FACTORS {
            return None;
        }
        let orders = generators.iter().map(|generator| cycle_length(generator)).collect::<Option<Vec<u32>>>()?;
        let points = generators.first().map_or(1, |generator| generator.len());
        let size = orders.iter().try_fold(1u32, |size, &order| size.checked_mul(order))?;
        (size as usize <= points && orders.iter().all(|&order| order > 1)).then_some(Self { orders, size })
    }

    /// How many elements there are, the identity included.
    pub fn order(&self) -> usize {
        self.size as usize
    }

    /// The element that each generator is.
    pub fn generators(&self) -> impl Iterator<Item = u32> {
        self.orders.iter().scan(1, |weight, &order| {
            let element = *weight;
            *weight *= order;
            Some(element)
        })
    }

    /// One element after the other: their product.
    pub fn product(&self, one: u32, other: u32) -> u32 {
        self.digits(one, other, |a, b, order| if a + b >= order { a + b - order } else { a + b })
    }

    /// The element that maps `other` to `one`.
    pub fn quotient(&self, one: u32, other: u32) -> u32 {
        self.digits(one, other, |a, b, order| if a >= b { a - b } else { a + order - b })
    }

    fn digits(&self, mut one: u32, mut other: u32, combine: impl Fn(u32, u32, u32) -> u32) -> u32 {
        let (mut result, mut weight) = (0, 1);
        for &order in &self.orders {
            result += weight * combine(one % order, other % order, order);
            (one, other, weight) = (one / order, other / order, weight * order);
        }
        result
    }

    /// For each element but the identity: an earlier element, and the generator that makes it from that one.
    fn steps(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        (1..self.size).map(|element| {
            let (mut rest, mut weight) = (element, 1);
            for (generator, &order) in self.orders.iter().enumerate() {
                if !rest.is_multiple_of(order) {
                    return (generator, element - weight);
                }
                (rest, weight) = (rest / order, weight * order);
            }
            unreachable!("an element above 0 has a digit above 0")
        })
    }

    /// Each element with generator `number` applied once more.
    fn successor(&self, element: u32, number: usize) -> u32 {
        let weight: u32 = self.orders[..number].iter().product();
        let order = self.orders[number];
        if element / weight % order + 1 == order { element - weight * (order - 1) } else { element + weight }
    }
}

/// The number of steps after which point 0 comes back; `None` if it is more than the number of points.
fn cycle_length(generator: &[u32]) -> Option<u32> {
    let mut point = 0;
    for length in 1..=generator.len() {
        point = *generator.get(point as usize)?;
        if point == 0 {
            return Some(length as u32);
        }
    }
    None
}

/// The effect of a group of translations on points: only the identity leaves one in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    size: u32,
    /// For each point, its orbit and the element that maps the orbit's first point to it.
    address: Vec<(u32, u32)>,
    /// The points of all orbits, in the order of the elements.
    places: Vec<u32>,
}

impl Action {
    /// The effect of `generators`, one for each factor of `group`, on as many points as each of them has images; `None`
    /// unless they move every point as [`Translations`] say.
    pub fn new(group: &Translations, generators: &[&[u32]], points: usize) -> Option<Self> {
        let same = generators.len() == group.orders.len() && generators.iter().all(|it| it.len() == points);
        if !same || !points.is_multiple_of(group.order()) {
            return None;
        }
        const UNKNOWN: (u32, u32) = (u32::MAX, u32::MAX);
        let steps: Vec<(usize, u32)> = group.steps().collect();
        let successors: Vec<Vec<u32>> = (0..generators.len())
            .map(|number| (0..group.size).map(|element| group.successor(element, number)).collect())
            .collect();
        let mut address = vec![UNKNOWN; points];
        let mut places: Vec<u32> = Vec::with_capacity(points);
        for first in 0..points as u32 {
            if address[first as usize] != UNKNOWN {
                continue;
            }
            let start = places.len();
            let number = (start / group.order()) as u32;
            places.push(first);
            for &(generator, earlier) in &steps {
                places.push(generators[generator][places[start + earlier as usize] as usize]);
            }
            let orbit = &places[start..];
            for (element, &place) in orbit.iter().enumerate() {
                let known = address.get_mut(place as usize)?;
                if std::mem::replace(known, (number, element as u32)) != UNKNOWN {
                    return None;
                }
            }
            // Orbit by orbit, because its points are in the cache now.
            let adds = |(generator, successors): (&&[u32], &Vec<u32>)| {
                orbit.iter().zip(successors).all(|(&point, &next)| generator[point as usize] == orbit[next as usize])
            };
            if !generators.iter().zip(&successors).all(adds) {
                return None;
            }
        }
        Some(Self { size: group.size, address, places })
    }

    /// How many orbits there are.
    pub fn orbits(&self) -> usize {
        self.places.len() / self.size as usize
    }

    /// The orbit of a point.
    pub fn orbit(&self, point: u32) -> u32 {
        self.address[point as usize].0
    }

    /// The element that maps the first point of its orbit to `point`.
    pub fn element(&self, point: u32) -> u32 {
        self.address[point as usize].1
    }

    /// The first point of an orbit.
    pub fn first(&self, orbit: u32) -> u32 {
        self.place(orbit, 0)
    }

    /// The image of the first point of an orbit under `element`.
    pub fn place(&self, orbit: u32, element: u32) -> u32 {
        self.places[orbit as usize * self.size as usize + element as usize]
    }

    /// The image of a point.
    pub fn image(&self, group: &Translations, element: u32, point: u32) -> u32 {
        let (orbit, own) = self.address[point as usize];
        self.place(orbit, group.product(own, element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row by row: the translations of a torus of so many rows and columns.
    fn torus(rows: u32, columns: u32) -> [Vec<u32>; 2] {
        let all = 0..rows * columns;
        let down = all.clone().map(|rank| (rank + columns) % (rows * columns)).collect();
        let right = all.map(|rank| rank / columns * columns + (rank + 1) % columns).collect();
        [down, right]
    }

    fn action(generators: &[Vec<u32>]) -> Option<(Translations, Action)> {
        let generators: Vec<&[u32]> = generators.iter().map(Vec::as_slice).collect();
        let group = Translations::proposed(&generators)?;
        let points = generators.first().map_or(3, |it| it.len());
        Action::new(&group, &generators, points).map(|action| (group, action))
    }

    #[test]
    fn elements_act_as_sums_of_digits() {
        for (rows, columns) in [(3, 4), (2, 2), (5, 2)] {
            let generators = torus(rows, columns);
            let (group, action) = action(&generators).expect("a torus");
            assert_eq!((group.order() as u32, action.orbits()), (rows * columns, 1));
            for element in 0..rows * columns {
                let (down, right) = (element % rows, element / rows);
                for point in 0..rows * columns {
                    let (row, column) = ((point / columns + down) % rows, (point % columns + right) % columns);
                    assert_eq!(action.image(&group, element, point), row * columns + column);
                }
                for other in 0..rows * columns {
                    assert_eq!(group.product(group.quotient(element, other), other), element);
                }
            }
        }
    }

    #[test]
    fn several_orbits_and_no_generator() {
        let (group, pairs) = action(&[vec![1, 0, 3, 2]]).expect("two exchanges");
        assert_eq!((group.order(), pairs.orbits(), pairs.first(1), pairs.orbit(3), pairs.element(3)), (2, 2, 2, 1, 1));
        let (group, alone) = action(&[]).expect("the identity");
        assert_eq!((group.order(), alone.orbits(), alone.image(&group, 0, 2)), (1, 3, 2));
    }

    #[test]
    fn whatever_is_no_group_of_translations_is_refused() {
        for wrong in [
            // A point stays; a point is the image of two; a number too large; cycles of different lengths.
            vec![vec![1, 0, 2, 3]],
            vec![vec![1, 0, 1, 2]],
            vec![vec![1, 9, 3, 0]],
            vec![vec![1, 2, 0, 4, 5, 6, 3]],
            vec![vec![1, 0, 3, 4, 5, 2]],
            // Two that do not commute; one twice; one with too few images.
            vec![vec![1, 0, 3, 2], vec![1, 2, 3, 0]],
            vec![vec![1, 0, 3, 2], vec![1, 0, 3, 2]],
            vec![vec![1, 0, 3, 2], vec![2, 3, 0]],
            vec![vec![0, 1]],
        ] {
            assert!(action(&wrong).is_none(), "{wrong:?}");
        }
        let mut torn = torus(3, 4);
        torn[1].swap(5, 6);
        assert!(action(&torn).is_none());
    }
}
