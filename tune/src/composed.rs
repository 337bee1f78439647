//! Collectives that two others do, one after the other: candidates that need no plan and nothing of a program.
//!
//! The principal type is [`Composition`].

use schedule::Collective;

/// A collective that is done by two others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Composition {
    /// What it does.
    pub whole: Collective,
    /// What it does first, and then.
    pub halves: [Collective; 2],
    /// Whether what the table chooses serves the halves; else stock does.
    pub is_chosen: bool,
}

impl Composition {
    /// What can be composed, and of what.
    const KNOWN: [(Collective, [Collective; 2]); 5] = [
        (Collective::AllReduce, [Collective::ReduceScatter, Collective::AllGather]),
        (Collective::Broadcast, [Collective::Scatter, Collective::AllGather]),
        (Collective::Reduce, [Collective::ReduceScatter, Collective::Gather]),
        (Collective::AllGather, [Collective::Gather, Collective::Broadcast]),
        (Collective::ReduceScatter, [Collective::Reduce, Collective::Scatter]),
    ];

    /// All compositions, of stock and of what a table chooses.
    pub fn all() -> impl Iterator<Item = Self> {
        let both = |(whole, halves)| [false, true].map(|is_chosen| Self { whole, halves, is_chosen });
        Self::KNOWN.into_iter().flat_map(both)
    }

    /// The one that tables name so.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|of| of.name() == name)
    }

    /// Whether it competes only where a guideline asks for it: all but the first one, an AllReduce.
    pub fn is_on_request(&self) -> bool {
        Self::all().next() != Some(*self)
    }

    /// The name in tables and reports.
    pub fn name(&self) -> String {
        let [first, second] = self.halves;
        format!("{} {first} + {second}", if self.is_chosen { "chosen" } else { "stock" })
    }

    /// Whether it can serve calls of so many elements, as MPI counts them, among so many ranks. Halves have equal blocks.
    pub fn serves(&self, ranks: usize, collective: Collective, count: usize) -> bool {
        let is_cut = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => true,
            Collective::AllGather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter => false,
            Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv | Collective::Custom => false,
        };
        collective == self.whole && ranks > 1 && count > 0 && (!is_cut || count.is_multiple_of(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_composition_has_a_name_of_its_own() {
        let all: Vec<Composition> = Composition::all().collect();
        assert!(all.iter().all(|of| Composition::of_name(&of.name()) == Some(*of)), "{all:?}");
        assert_eq!(all[0].name(), "stock reducescatter + allgather");
        assert_eq!(Composition::of_name("mine"), None);
        assert!(all[0].serves(3, Collective::AllReduce, 9) && !all[0].serves(3, Collective::AllReduce, 10));
        assert!(!all[0].serves(3, Collective::AllGather, 9) && !all[0].serves(1, Collective::AllReduce, 9));
    }
}
