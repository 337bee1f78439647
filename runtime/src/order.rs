//! The order of messages on the resources of an emulated machine.
//!
//! The principal type is [`ResourceOrder`]. A schedule says which message passes a shared port first; a program
//! keeps that order only within a rank. So a message waits until the one before it on each of its resources has
//! claimed them. Transfers are numbered by their start, and a message's other waits are for transfers that start
//! earlier still, so this adds no circle.

use crate::interpreter::ends;
use schedule::program::{Program, Step};
use std::collections::BTreeMap;
use topology::{LinkId, Rank, Topology};

/// What precedes and follows one transfer on its resources.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Neighbours {
    pub(crate) transfer: u32,
    /// The transfers directly before it.
    pub(crate) before: Vec<u32>,
    /// The other ranks that send those directly after it.
    pub(crate) next: Vec<Rank>,
}

/// The neighbours of one rank's transfers. Empty where order does not matter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResourceOrder(BTreeMap<u32, Neighbours>);

impl ResourceOrder {
    /// The order for the messages that `rank` sends. Tiles interleave messages as no schedule says, so several of
    /// them take whatever order comes.
    pub(crate) fn of(program: &Program, topology: &Topology, rank: Rank, tiles: usize) -> Self {
        let mut order = Self::default();
        if tiles > 1 {
            return order;
        }
        let mut last: Vec<Option<(u32, Rank)>> = vec![None; topology.resources().len()];
        for (transfer, link) in senders(program) {
            let link = topology.link(link);
            for resource in &link.resources {
                let before = last[resource.index()].replace((transfer, link.from));
                if link.from == rank {
                    order.entry(transfer).before.extend(before.map(|(earlier, _)| earlier));
                }
                if let Some((earlier, _)) = before.filter(|&(_, from)| from == rank && link.from != rank) {
                    order.entry(earlier).next.push(link.from);
                }
            }
        }
        order
    }

    fn entry(&mut self, transfer: u32) -> &mut Neighbours {
        self.0.entry(transfer).or_insert_with(|| Neighbours { transfer, ..Neighbours::default() })
    }

    /// The neighbours of a transfer of this rank, if it shares anything.
    pub(crate) fn around(&self, transfer: Option<u32>) -> Option<&Neighbours> {
        self.0.get(&transfer?)
    }
}

fn steps(program: &Program) -> impl Iterator<Item = &Step> {
    program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps)
}

/// Every transfer with the link it takes, in the schedule's order.
fn senders(program: &Program) -> BTreeMap<u32, LinkId> {
    let sends = steps(program).filter_map(|step| {
        let (_, to) = ends(&step.instruction);
        Some((step.transfer?, program.connections[to?.index()].link))
    });
    sends.collect()
}

/// How many transfers the schedule of a program has, as far as its steps tell.
pub(crate) fn transfer_count(program: &Program) -> usize {
    steps(program).filter_map(|step| step.transfer).max().map_or(0, |last| last as usize + 1)
}
