//! One machine of an imported description, and how several are joined.
//!
//! The principal types are [`ImportedBoard`], the links of a machine and what they share, and [`DeviceTree`], the PCIe
//! tree of bridges, sockets and devices. Every edge of the tree is two resources, one for each direction. So two
//! messages in the same direction wait for each other, and two in opposite directions do not.

use super::Imported;
use crate::{
    Latency, Link, MAX_LISTED_LINKS, MAX_RANKS, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology,
    TopologyError, TopologyParts, TopologyResult,
};

/// A resource of a machine, by its position in [`Board::shared`].
pub(super) type SharedIndex = usize;

/// Something shared.
pub(super) struct SharedPart {
    pub(super) name: String,
    pub(super) beta: MicrosPerByte,
    /// The source of its bandwidth.
    pub(super) note: String,
}

/// A link within the machine.
pub(super) struct DirectLink {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) alpha: Micros,
    /// Zero if only its resources limit the link.
    pub(super) beta: MicrosPerByte,
    pub(super) shared: Vec<SharedIndex>,
    pub(super) note: String,
}

/// How a rank reaches other machines: the resources on its way out and on its way in.
pub(super) struct Outlet {
    /// For the whole way between two machines.
    pub(super) alpha: Micros,
    pub(super) out: Vec<SharedIndex>,
    pub(super) back: Vec<SharedIndex>,
    pub(super) note: String,
}

/// One machine.
#[derive(Default)]
pub(super) struct ImportedBoard {
    pub(super) ranks: usize,
    pub(super) wires: Vec<DirectLink>,
    pub(super) shared: Vec<SharedPart>,
    /// One for each rank, or an empty list.
    pub(super) outlets: Vec<Option<Outlet>>,
}

impl ImportedBoard {
    /// Adds a resource.
    pub(super) fn share(&mut self, name: String, beta: MicrosPerByte, note: &str) -> SharedIndex {
        self.shared.push(SharedPart { name, beta, note: note.to_owned() });
        self.shared.len() - 1
    }

    /// Adds a resource for each direction: `name.tx`, away from the ranks, and `name.rx`.
    pub(super) fn share_both(&mut self, name: &str, beta: MicrosPerByte, note: &str) -> [SharedIndex; 2] {
        ["tx", "rx"].map(|side| self.share(format!("{name}.{side}"), beta, note))
    }

    fn slowest(&self, shared: &[SharedIndex]) -> MicrosPerByte {
        shared.iter().map(|&index| self.shared[index].beta).fold(MicrosPerByte::ZERO, MicrosPerByte::max)
    }
}

/// A place in a tree.
pub(super) type TreeNode = usize;

/// Bridges, sockets and devices. Place 0 is the root.
pub(super) struct DeviceTree {
    /// The place above each, and the edge to it as `[towards the root, back]`.
    above: Vec<Option<(TreeNode, Option<[SharedIndex; 2]>)>>,
}

impl DeviceTree {
    pub(super) fn new() -> Self {
        Self { above: vec![None] }
    }

    /// Adds a place below another. Without an edge, the way between them costs nothing.
    pub(super) fn add(&mut self, above: TreeNode, edge: Option<[SharedIndex; 2]>) -> TreeNode {
        self.above.push(Some((above, edge)));
        self.above.len() - 1
    }

    fn to_root(&self, place: TreeNode) -> Vec<TreeNode> {
        std::iter::successors(Some(place), |&place| self.above[place].map(|(above, _)| above)).collect()
    }

    /// The resources on the way from one place to another, in order.
    pub(super) fn path(&self, from: TreeNode, to: TreeNode) -> Vec<SharedIndex> {
        let (mut up, mut down) = (self.to_root(from), self.to_root(to));
        while up.last() == down.last() && !up.is_empty() {
            up.pop();
            down.pop();
        }
        let edge = |place: &TreeNode| self.above[*place].and_then(|(_, edge)| edge);
        let climb = up.iter().filter_map(edge).map(|[up, _]| up);
        climb.chain(down.iter().rev().filter_map(edge).map(|[_, down]| down)).collect()
    }

    /// How many places lie between two, even those that cost nothing.
    pub(super) fn distance(&self, from: TreeNode, to: TreeNode) -> usize {
        let (up, down) = (self.to_root(from), self.to_root(to));
        let common = up.iter().rev().zip(down.iter().rev()).take_while(|(a, b)| a == b).count();
        up.len() + down.len() - 2 * common
    }
}

/// Gives each rank a way out of its machine: the nearest NIC, and of equally near ones the least used. `nics` are
/// places with their `[tx, rx]`, the α of the way between machines, and a note.
pub(super) fn outlets(
    tree: &DeviceTree,
    ranks: &[TreeNode],
    nics: &[(TreeNode, [SharedIndex; 2], Micros, String)],
) -> Vec<Option<Outlet>> {
    let mut load = vec![0usize; nics.len()];
    let mut nearest = |rank: &TreeNode| {
        let choice = (0..nics.len()).min_by_key(|&nic| (tree.distance(*rank, nics[nic].0), load[nic], nic))?;
        load[choice] += 1;
        let (place, [tx, rx], alpha, note) = &nics[choice];
        let mut out = tree.path(*rank, *place);
        out.push(*tx);
        let mut back = vec![*rx];
        back.extend(tree.path(*place, *rank));
        Some(Outlet { alpha: *alpha, out, back, note: note.clone() })
    };
    ranks.iter().map(&mut nearest).collect()
}

/// Puts machines together, `copies` of each. Resources that no link uses are left out.
pub(super) fn join(boards: &[ImportedBoard], copies: u64, name: &str, notes: Vec<String>) -> TopologyResult<Imported> {
    let too_many = |what, count: u128, limit: usize| match count > limit as u128 {
        true => Err(TopologyError::TooMany { what, count: count.try_into().unwrap_or(u64::MAX), limit: limit as u64 }),
        false => Ok(()),
    };
    let total = |of: fn(&ImportedBoard) -> usize| {
        boards.iter().map(|board| of(board) as u128).sum::<u128>() * u128::from(copies)
    };
    let ranks = total(|board| board.ranks);
    too_many("ranks", ranks, MAX_RANKS)?;
    too_many("resources", total(|board| board.shared.len()), MAX_LISTED_LINKS)?;
    let ways_out = total(|board| board.outlets.iter().flatten().count());
    too_many("links", total(|board| board.wires.len()) + ways_out * ways_out, MAX_LISTED_LINKS)?;
    let boards: Vec<&ImportedBoard> =
        boards.iter().flat_map(|board| std::iter::repeat_n(board, copies as usize)).collect();
    let mut joint = Joint::default();
    for board in &boards {
        joint.starts.push((joint.ranks, joint.shared));
        joint.ranks += board.ranks;
        joint.shared += board.shared.len();
    }
    for (index, board) in boards.iter().enumerate() {
        joint.inside(index, board);
        for (other, far) in boards.iter().enumerate().filter(|(other, _)| *other != index) {
            joint.between((index, board), (other, far));
        }
    }
    joint.finish(&boards, name, notes)
}

/// Machines while they are put together.
#[derive(Default)]
struct Joint {
    /// The first rank and the first resource of each machine.
    starts: Vec<(usize, usize)>,
    ranks: usize,
    shared: usize,
    links: Vec<(Link, String)>,
}

impl Joint {
    fn inside(&mut self, index: usize, board: &ImportedBoard) {
        let (first, offset) = self.starts[index];
        for wire in &board.wires {
            let link = Link {
                from: Rank::from_index(first + wire.from),
                to: Rank::from_index(first + wire.to),
                alpha: wire.alpha,
                beta: wire.beta.max(board.slowest(&wire.shared)),
                latency: Latency::Occupies,
                resources: wire.shared.iter().map(|shared| ResourceId::from_index(offset + shared)).collect(),
            };
            self.links.push((link, wire.note.clone()));
        }
    }

    fn between(&mut self, (index, board): (usize, &ImportedBoard), (other, far): (usize, &ImportedBoard)) {
        let ((first, offset), (far_first, far_offset)) = (self.starts[index], self.starts[other]);
        let ways = |board: &'_ ImportedBoard| -> Vec<usize> {
            (0..board.outlets.len()).filter(|&rank| board.outlets[rank].is_some()).collect()
        };
        for from in ways(board) {
            for to in ways(far) {
                let (Some(out), Some(back)) = (&board.outlets[from], &far.outlets[to]) else { continue };
                let sent = out.out.iter().map(|shared| offset + shared);
                let received = back.back.iter().map(|shared| far_offset + shared);
                let link = Link {
                    from: Rank::from_index(first + from),
                    to: Rank::from_index(far_first + to),
                    alpha: out.alpha.max(back.alpha),
                    beta: board.slowest(&out.out).max(far.slowest(&back.back)),
                    latency: Latency::Occupies,
                    resources: sent.chain(received).map(ResourceId::from_index).collect(),
                };
                self.links.push((link, out.note.clone()));
            }
        }
    }

    fn finish(mut self, boards: &[&ImportedBoard], name: &str, notes: Vec<String>) -> TopologyResult<Imported> {
        self.links.sort_by_key(|(link, _)| (link.from, link.to));
        let mut place: Vec<Option<ResourceId>> = vec![None; self.shared];
        let used = self.links.iter().flat_map(|(link, _)| link.resources.iter());
        used.for_each(|id| place[id.index()] = Some(*id));
        let named = boards.iter().enumerate().flat_map(|(machine, board)| {
            board.shared.iter().map(move |shared| (format!("machine{machine}.{}", shared.name), shared))
        });
        let (mut resources, mut resource_notes) = (Vec::new(), Vec::new());
        for (slot, (name, shared)) in place.iter_mut().zip(named).filter(|(slot, _)| slot.is_some()) {
            *slot = Some(ResourceId::from_index(resources.len()));
            resources.push(Resource::new(name, shared.beta));
            resource_notes.push(shared.note.clone());
        }
        let (mut links, mut link_notes) = (Vec::new(), Vec::new());
        for (mut link, note) in self.links {
            link.resources = link.resources.iter().filter_map(|id| place[id.index()]).collect();
            links.push(link);
            link_notes.push(note);
        }
        let ranks = |(start, board): (&(usize, usize), &&ImportedBoard)| {
            (start.0..start.0 + board.ranks).map(Rank::from_index).collect()
        };
        let machines = self.starts.iter().zip(boards).map(ranks).collect();
        let topology =
            Topology::new(TopologyParts { name: name.to_owned(), ranks: self.ranks, machines, links, resources })?;
        Ok(Imported { topology, notes, links: link_notes, resources: resource_notes })
    }
}
