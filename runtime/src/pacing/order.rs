//! The order of messages on the resources of an emulated machine.
//!
//! The principal type is [`ResourceOrder`]. A schedule says which message passes a shared port first, but a program
//! keeps that order only within a rank. So a message waits until the previous one on each of its resources has claimed
//! them.
//!
//! These waits must form no cycle with those of the program. Transfers are numbered by their start, but waits follow
//! arrivals: on links with different costs a message may start first and arrive last, and its receiver may wait for a
//! message that starts later. So the order on resources comes from one order of all messages, [`line_up`]. There, each
//! message comes after everything that it, or its receiver, waits for, and after every message that starts before it on
//! its resources. Only where the second rule would close a cycle does a message pass messages that start before it. All
//! waits of the program point backwards in this order, for all sizes of messages and rings.

use program::{Connection, ConnectionId, Program, Step};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Rank, Topology};

/// The neighbours of one transfer on its resources.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Neighbours {
    pub(crate) transfer: u32,
    /// The transfers directly before it.
    pub(crate) before: Vec<u32>,
    /// The other ranks that send the transfers directly after it.
    pub(crate) next: Vec<Rank>,
}

/// The neighbours of one rank's transfers. Empty where order does not matter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResourceOrder(BTreeMap<u32, Neighbours>);

impl ResourceOrder {
    /// The order for the messages that `rank` sends. Empty for several tiles, because tiles interleave messages in ways
    /// that no schedule defines.
    pub(crate) fn of(program: &Program, topology: &Topology, rank: Rank, tiles: usize) -> Self {
        let mut order = Self::default();
        if tiles > 1 {
            return order;
        }
        let mut last: Vec<Option<(u32, Rank)>> = vec![None; topology.resources().len()];
        let shared = program.connections.iter().map(|lane| resources(topology, lane)).collect::<Vec<_>>();
        for (transfer, lane) in line_up(program, &shared) {
            let from = program.connections[lane.index()].from;
            for &resource in &shared[lane.index()] {
                let before = last[resource].replace((transfer, from));
                if from == rank {
                    order.entry(transfer).before.extend(before.map(|(earlier, _)| earlier));
                }
                if let Some((earlier, _)) = before.filter(|&(_, other)| other == rank && from != rank) {
                    order.entry(earlier).next.push(from);
                }
            }
        }
        order
    }

    fn entry(&mut self, transfer: u32) -> &mut Neighbours {
        self.0.entry(transfer).or_insert_with(|| Neighbours { transfer, ..Neighbours::default() })
    }

    /// The neighbours of a transfer of this rank, if it shares a resource.
    pub(crate) fn around(&self, transfer: Option<u32>) -> Option<&Neighbours> {
        self.0.get(&transfer?)
    }
}

/// The resources of a lane on an emulated machine.
fn resources(topology: &Topology, lane: &Connection) -> Vec<usize> {
    topology.link(lane.link).resources.iter().map(|resource| resource.index()).collect()
}

fn steps(program: &Program) -> impl Iterator<Item = &Step> {
    program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps)
}

/// Every transfer with the lane it takes.
fn senders(program: &Program) -> BTreeMap<u32, ConnectionId> {
    steps(program).filter_map(|step| Some((step.transfer?, step.instruction.sends_to()?))).collect()
}

/// All transfers in an order in which they can take place one after the other, each sent and received at once. Among
/// the transfers that can be next, those that are first on all their resources go first, or all of them if there are
/// none. Of these, the schedule's first start decides. Transfers that wait in a cycle are left out. Only a program
/// without a schedule has such a cycle, and no order resolves it. `shared` has the resources of each connection.
pub(crate) fn line_up(program: &Program, shared: &[Vec<usize>]) -> Vec<(u32, ConnectionId)> {
    let waits = Waits::of(program);
    let mut open = vec![0u32; waits.nodes];
    waits.edges.iter().for_each(|&(_, node)| open[node] += 1);
    let senders = senders(program);
    let transfer = |node: usize| node.checked_sub(waits.locals).map(|index| index as u32);
    let taken = |node: usize| -> &[usize] {
        let lane = transfer(node).and_then(|transfer| senders.get(&transfer));
        lane.map_or(&[], |lane| &shared[lane.index()])
    };
    let count = shared.iter().flatten().max().map_or(0, |last| last + 1);
    let mut queues = vec![BTreeSet::new(); count];
    for node in 0..waits.nodes {
        for &resource in taken(node) {
            queues[resource].insert(node);
        }
    }
    let is_next = |queues: &[BTreeSet<usize>], node: usize| {
        taken(node).iter().all(|&resource| queues[resource].first() == Some(&node))
    };
    let mut ready: BTreeSet<usize> = (0..waits.nodes).filter(|&node| open[node] == 0).collect();
    let mut due: BTreeSet<usize> = ready.iter().copied().filter(|&node| is_next(&queues, node)).collect();
    let mut order = Vec::with_capacity(senders.len());
    while let Some(&node) = due.first().or(ready.first()) {
        ready.remove(&node);
        due.remove(&node);
        order.extend(transfer(node).and_then(|transfer| Some((transfer, *senders.get(&transfer)?))));
        let mut changed = Vec::new();
        for &resource in taken(node) {
            queues[resource].remove(&node);
            changed.extend(queues[resource].first().filter(|&next| ready.contains(next)));
        }
        for &(_, follower) in waits.from(node) {
            open[follower] -= 1;
            if open[follower] == 0 {
                ready.insert(follower);
                changed.push(follower);
            }
        }
        due.extend(changed.into_iter().filter(|&node| is_next(&queues, node)));
    }
    order
}

/// The waits of a program, as a graph.
struct Waits {
    /// The number of local steps. They are the first nodes, and the transfers follow.
    locals: usize,
    nodes: usize,
    /// Pairs of nodes: the second one waits for the first one. Sorted.
    edges: Vec<(usize, usize)>,
}

impl Waits {
    fn of(program: &Program) -> Self {
        let locals = steps(program).filter(|step| step.transfer.is_none()).count();
        let nodes = locals + transfer_count(program);
        let mut next = 0;
        let mut node = |step: &Step| match step.transfer {
            Some(transfer) => locals + transfer as usize,
            None => {
                next += 1;
                next - 1
            }
        };
        let mut edges = Vec::new();
        for rank in &program.ranks {
            let blocks = rank.threadblocks.iter();
            let of_blocks: Vec<Vec<usize>> = blocks.map(|block| block.steps.iter().map(&mut node).collect()).collect();
            for (block, own) in rank.threadblocks.iter().zip(&of_blocks) {
                edges.extend(own.windows(2).map(|pair| (pair[0], pair[1])));
                for (step, &node) in block.steps.iter().zip(own) {
                    let after = step.after.iter();
                    edges.extend(after.map(|on| (of_blocks[on.threadblock as usize][on.step as usize], node)));
                }
            }
        }
        // The steps of one transfer are one node.
        edges.retain(|(before, after)| before != after);
        edges.sort_unstable();
        edges.dedup();
        Self { locals, nodes, edges }
    }

    /// The edges that begin at a node.
    fn from(&self, node: usize) -> &[(usize, usize)] {
        let first = self.edges.partition_point(|&(before, _)| before < node);
        let length = self.edges[first..].partition_point(|&(before, _)| before == node);
        &self.edges[first..first + length]
    }
}

/// How many transfers the schedule of a program has, as far as its steps tell.
pub(crate) fn transfer_count(program: &Program) -> usize {
    steps(program).filter_map(|step| step.transfer).max().map_or(0, |last| last as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::{Buffer, Instruction, PartShape, RankProgram, Slice, StepRef, Tempo, Threadblock};
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Resource, ResourceId, TopologyParts};

    /// Ranks 0 and 1 send to rank 2 through one port; links 2 and 3 from rank 2 and rank 0 to rank 1 share nothing.
    fn machine() -> Topology {
        let link = |(from, to, resources): (u32, u32, &[ResourceId])| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(1.0),
            latency: Latency::Occupies,
            resources: resources.into(),
        };
        let resources = vec![Resource::new("port", MicrosPerByte(1.0))];
        let port = &[ResourceId(0)];
        let links = LINKS.map(|(from, to)| link((from, to, if to == 2 { port } else { &[] }))).into();
        Topology::new(TopologyParts { ranks: 3, links, resources, ..Default::default() }).unwrap()
    }

    /// The ends of each link. They are also the connections of the programs.
    const LINKS: [(u32, u32); 4] = [(0, 2), (1, 2), (2, 1), (0, 1)];

    /// One step of a threadblock: whether it sends, its transfer, its link, and the step of its rank that it waits for.
    type Move = (bool, u32, u32, Option<(u32, u32)>);

    fn send(transfer: u32, link: u32) -> Move {
        (true, transfer, link, None)
    }

    fn receive(transfer: u32, link: u32) -> Move {
        (false, transfer, link, None)
    }

    fn program(ranks: [&[&[Move]]; 3]) -> Program {
        let slice = Slice { buffer: Buffer::Input, index: 0, count: 1 };
        let step = |&(sends, transfer, link, after): &Move| {
            let id = ConnectionId(link);
            let instruction = match sends {
                true => Instruction::Send { to: id, src: slice },
                false => Instruction::Receive { from: id, dst: slice },
            };
            let after = after.into_iter().map(|(threadblock, step)| StepRef { threadblock, step }).collect();
            Step { transfer: Some(transfer), after, ..Step::new(instruction) }
        };
        let block = |moves: &&[Move]| Threadblock { steps: moves.iter().map(step).collect() };
        let rank =
            |blocks: &[&[Move]]| RankProgram { threadblocks: blocks.iter().map(block).collect(), ..Default::default() };
        let connection = |(id, (from, to)): (usize, (u32, u32))| Connection {
            from: Rank(from),
            to: Rank(to),
            channel: 0,
            link: LinkId(id as u32),
        };
        Program {
            demand: Arc::new(Demand::new(Request::new(Collective::Gather, 3, 0)).unwrap()),
            op: None,
            in_place: false,
            shape: PartShape::Equal { parts: 1 },
            uniform: false,
            connections: LINKS.into_iter().enumerate().map(connection).collect(),
            ranks: ranks.map(rank).into(),
            tempo: Tempo::default(),
        }
    }

    /// Transfers 0 and 3 from rank 0, 1 and 2 from rank 1.
    fn port() -> (Program, Topology) {
        (program([&[&[send(0, 0), send(3, 0)]], &[&[send(1, 1), send(2, 1)]], &[]]), machine())
    }

    fn line(program: &Program) -> Vec<u32> {
        let machine = machine();
        let shared: Vec<_> = program.connections.iter().map(|lane| resources(&machine, lane)).collect();
        line_up(program, &shared).into_iter().map(|(transfer, _)| transfer).collect()
    }

    #[test]
    fn a_message_keeps_its_turn_though_it_waits_for_one_that_starts_later() {
        // Transfer 1 is sent once rank 1 has received transfer 3, which arrives before transfer 2 starts.
        let waits = (true, 1, 1, Some((0, 0)));
        let kept = program([&[&[send(0, 0), send(2, 0)]], &[&[receive(3, 2)], &[waits]], &[&[send(3, 2)]]]);
        assert_eq!(line(&kept), [0, 3, 1, 2]);
        // Here rank 0 sends transfer 2 before transfer 3, so transfer 2 cannot wait for transfer 3.
        let circle = program([&[&[send(0, 0), send(2, 0), send(3, 3)]], &[&[receive(3, 3)], &[waits]], &[]]);
        assert_eq!(line(&circle), [0, 2, 3, 1]);
    }

    #[test]
    fn a_message_waits_for_the_one_before_it_on_the_port() {
        let (program, topology) = port();
        let neighbours = |transfer, before: &[u32], next: &[u32]| Neighbours {
            transfer,
            before: before.to_vec(),
            next: next.iter().copied().map(Rank).collect(),
        };
        let order = ResourceOrder::of(&program, &topology, Rank(0), 1);
        assert_eq!(order.around(Some(0)), Some(&neighbours(0, &[], &[1])));
        assert_eq!(order.around(Some(3)), Some(&neighbours(3, &[2], &[])));
        let order = ResourceOrder::of(&program, &topology, Rank(1), 1);
        assert_eq!(order.around(Some(1)), Some(&neighbours(1, &[0], &[])));
        assert_eq!(order.around(Some(2)), Some(&neighbours(2, &[1], &[0])));
        assert_eq!(transfer_count(&program), 4);
    }

    #[test]
    fn tiles_take_whatever_order_comes() {
        let (program, topology) = port();
        assert_eq!(ResourceOrder::of(&program, &topology, Rank(0), 2), ResourceOrder::default());
    }
}
