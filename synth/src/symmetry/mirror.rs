//! The images of a message under a group of symmetries: what a symmetric search repeats everywhere.
//!
//! The principal type is [`Mirror`]. Only the identity of the group leaves a rank in place. So the images of a message
//! use as many different links, and a search that decides for one link of each orbit decides for all of them. Without
//! symmetries the only image is the message itself; every search therefore works with a mirror.

use super::{SharedSymmetry, Symmetries};
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, ChunkList, Message, Transfer};
use topology::symmetry::{GroupGrowth, SemiregularGroup};
use topology::{LinkId, Topology};

/// A group of symmetries of topology, demand and sketch.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    generators: Vec<MirrorGenerator>,
    growth: Vec<GroupGrowth>,
    /// For each link, the one that stands for its orbit.
    representative: Vec<LinkId>,
}

/// What a generator makes of links and chunks.
#[derive(Clone, Debug)]
struct MirrorGenerator {
    links: Vec<LinkId>,
    chunks: Vec<ChunkId>,
}

/// A message of the base and its images, in the order of the group's elements.
pub(crate) struct MessageImages {
    /// The links, the given one first.
    pub(crate) links: Vec<LinkId>,
    /// For each chunk of the message, its images in the same order.
    pub(crate) chunks: Vec<Vec<ChunkId>>,
}

impl Mirror {
    pub(crate) fn plain(topology: &Topology) -> Self {
        Self { generators: Vec::new(), growth: Vec::new(), representative: topology.link_ids().collect() }
    }

    /// Mirrors of the symmetries of `problem`, or of those that its sketch names: the largest group first, then smaller
    /// ones.
    pub(crate) fn all(problem: &Problem, symmetries: &Symmetries, deadline: &Deadline) -> Vec<Self> {
        let mut group = SemiregularGroup::trivial(problem.topology.rank_count());
        let mut generators = Vec::new();
        let mut mirrors = Vec::new();
        for SharedSymmetry { symmetry, chunks } in symmetries.shared(problem, deadline) {
            if !group.admit(&symmetry.ranks) {
                continue;
            }
            generators.push(MirrorGenerator { links: symmetry.links.clone(), chunks });
            let mirror = Self::new(&problem.topology, generators.clone(), group.growth().to_vec());
            // An image that leaves a chunk in place would send that chunk twice.
            if mirror.moves_chunks(problem) {
                mirrors.push(mirror);
            }
        }
        mirrors.reverse();
        mirrors
    }

    fn new(topology: &Topology, generators: Vec<MirrorGenerator>, growth: Vec<GroupGrowth>) -> Self {
        let mut mirror = Self { generators, growth, representative: topology.link_ids().collect() };
        let mut is_known = vec![false; topology.links().len()];
        for link in topology.link_ids() {
            if !is_known[link.index()] {
                for image in mirror.links(link) {
                    is_known[image.index()] = true;
                    mirror.representative[image.index()] = link;
                }
            }
        }
        mirror
    }

    /// Whether no symmetry but the identity leaves a chunk where it is.
    fn moves_chunks(&self, problem: &Problem) -> bool {
        let demand = &problem.demand;
        let mut all = demand.chunk_ids().zip(demand.chunks());
        // A chunk with one holder always moves, because its holder moves.
        all.all(|(id, chunk)| chunk.holders.len() == 1 || self.chunks(id)[1..].iter().all(|&image| image != id))
    }

    /// How many images a message has, itself included.
    pub(crate) fn order(&self) -> usize {
        self.growth.len() + 1
    }

    /// The link that stands for the orbit of `link`.
    pub(crate) fn representative(&self, link: LinkId) -> LinkId {
        self.representative[link.index()]
    }

    /// The images of a link, itself first.
    pub(crate) fn links(&self, link: LinkId) -> Vec<LinkId> {
        self.grow(link, |generator, link| generator.links[link.index()])
    }

    /// The images of a chunk, itself first.
    pub(crate) fn chunks(&self, chunk: ChunkId) -> Vec<ChunkId> {
        self.grow(chunk, |generator, chunk| generator.chunks[chunk.index()])
    }

    pub(crate) fn images(&self, link: LinkId, chunks: &ChunkList) -> MessageImages {
        MessageImages { links: self.links(link), chunks: chunks.iter().map(|&chunk| self.chunks(chunk)).collect() }
    }

    fn grow<T: Copy>(&self, first: T, apply: impl Fn(&MirrorGenerator, T) -> T) -> Vec<T> {
        let mut images = Vec::with_capacity(self.order());
        images.push(first);
        for step in &self.growth {
            images.push(apply(&self.generators[step.generator as usize], images[step.parent as usize]));
        }
        images
    }

    /// Every transfer followed by its images, as messages.
    pub(crate) fn reflected(&self, transfers: &[Transfer]) -> Vec<Message> {
        let mut all = Vec::with_capacity(transfers.len() * self.order());
        for transfer in transfers {
            let images = self.images(transfer.link, &transfer.chunks);
            for (element, &link) in images.links.iter().enumerate() {
                let mut chunks: ChunkList = images.chunks.iter().map(|images| images[element]).collect();
                chunks.sort_unstable();
                all.push(Message { chunks, link, kind: transfer.kind });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request, TransferKind};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use topology::Micros;

    fn problem(spec: &str, collective: Collective) -> Problem {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), 1 << 20).with_chunks(2);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn images_use_different_links_and_carry_different_chunks() {
        for (spec, collective, order) in [
            ("torus2d:3x4", Collective::AllGather, 12),
            // Odd ranks send to the other machine, and even ranks receive.
            ("dgx2x2", Collective::AllGather, 16),
            ("hypercube:3", Collective::AllToAll, 8),
            ("torus3d:16x16x16", Collective::Broadcast, 1),
        ] {
            let problem = problem(spec, collective);
            let mirrors = Mirror::all(&problem, &Symmetries::default(), &Deadline::default());
            assert_eq!(mirrors.first().map_or(1, Mirror::order), order, "{spec}");
            for mirror in &mirrors {
                let link = mirror.representative(LinkId(1));
                let (from, to) = (problem.topology.link(link).from, problem.topology.link(link).to);
                let chunk = problem.demand.chunk_ids().find(|&id| problem.demand.chunk(id).holders.has(from));
                let chunks = ChunkList::from_slice(&[chunk.expect("every rank has some")]);
                let (start, end) = (Micros::ZERO, Micros(1.0));
                let all =
                    mirror.reflected(&[Transfer { chunks, from, to, link, kind: TransferKind::Copy, start, end }]);
                let links: BTreeSet<LinkId> = all.iter().map(|message| message.link).collect();
                let chunks: BTreeSet<ChunkId> = all.iter().map(|message| message.chunks[0]).collect();
                assert_eq!((links.len(), chunks.len()), (mirror.order(), mirror.order()), "{spec}");
                for message in &all {
                    assert_eq!(mirror.representative(message.link), link);
                    let sender = problem.topology.link(message.link).from;
                    assert!(problem.demand.chunk(message.chunks[0]).holders.has(sender), "{spec}");
                }
            }
        }
    }
}
