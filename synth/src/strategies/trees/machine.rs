//! How long a message keeps each link and resource busy.
//!
//! The principal type is [`LoadedMachine`]. Links and resources are both *slots*. Under symmetries one slot stands for
//! its orbit, and a message for all its images. If several images use one resource, they take turns there, so that it
//! is busy for that many messages.

use crate::problem::Problem;
use crate::problem::sets::by_first;
use crate::symmetry::Mirror;
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;
use topology::{Bytes, LinkId};

/// The slots, and how long messages of some sizes keep them busy.
#[derive(Clone, Debug)]
pub(super) struct LoadedMachine {
    sizes: Vec<Bytes>,
    /// For each link, where its slots begin in `slots`; one more entry at the end.
    first: Vec<u32>,
    slots: Vec<u32>,
    /// For each size, how long each entry of `slots` is busy, in µs.
    busy: Vec<Vec<f64>>,
    /// For each size and link, the time of a message in µs, including the turns of its images.
    durations: Vec<Vec<f64>>,
    /// For each link, the representative of its orbit.
    representative: Vec<LinkId>,
    /// For each slot, the representatives of the links that use it.
    users: Vec<Vec<LinkId>>,
}

impl LoadedMachine {
    /// The machine of `problem` under the symmetries of `mirror`, for messages of `sizes`.
    pub(super) fn new(problem: &Problem, mirror: &Mirror, mut sizes: Vec<Bytes>) -> Self {
        let topology = &*problem.topology;
        let links = topology.links().len();
        sizes.sort_by(Bytes::total_cmp);
        sizes.dedup();
        let orbits = ResourceOrbits::new(problem, mirror);
        let mut machine = Self {
            first: Vec::with_capacity(links + 1),
            slots: Vec::new(),
            busy: vec![Vec::new(); sizes.len()],
            durations: vec![Vec::with_capacity(links); sizes.len()],
            representative: topology.link_ids().map(|link| mirror.representative(link)).collect(),
            users: vec![Vec::new(); links + topology.resources().len()],
            sizes,
        };
        for id in topology.link_ids() {
            let link = topology.link(id);
            machine.first.push(machine.slots.len() as u32);
            let shared: Vec<(u32, f64, usize)> = link
                .resources
                .iter()
                .map(|&resource| {
                    let (slot, turns) = orbits.of[resource.index()];
                    ((links + slot) as u32, turns, resource.index())
                })
                .collect();
            let slowest =
                link.resources.iter().map(|&resource| topology.resource(resource).beta.0).fold(-1.0, f64::max);
            // A link is never busier than one of its resources that is no faster, so it then needs no slot.
            let own = slowest < link.beta.0;
            machine.slots.extend(shared.iter().map(|share| share.0));
            machine.slots.extend(own.then_some(machine.representative[id.index()].0));
            for (number, &bytes) in machine.sizes.iter().enumerate() {
                let mut longest: f64 = 0.0;
                for &(_, turns, resource) in &shared {
                    let one = topology.resources()[resource].occupancy(link, bytes).0;
                    machine.busy[number].push(one * turns);
                    longest = longest.max(one * (turns - 1.0));
                }
                if own {
                    machine.busy[number].push(link.occupancy(bytes).0);
                }
                machine.durations[number].push(link.transfer_time(bytes).0 + longest);
            }
            if machine.representative[id.index()] == id {
                for slot in &machine.slots[machine.first[id.index()] as usize..] {
                    machine.users[*slot as usize].push(id);
                }
            }
        }
        machine.first.push(machine.slots.len() as u32);
        for users in &mut machine.users {
            users.sort_unstable();
            users.dedup();
        }
        machine
    }

    /// Whether no two images of a message use one resource. Then what is planned for one image holds for all.
    pub(super) fn is_free_of_turns(problem: &Problem, mirror: &Mirror) -> bool {
        ResourceOrbits::new(problem, mirror).of.iter().all(|&(_, turns)| turns <= 1.0)
    }

    /// From now on, a message also occupies the slots of the opposite link.
    pub(super) fn carry_both_ways(&mut self, back: &[LinkId]) {
        let alone = self.clone();
        self.first.clear();
        self.slots.clear();
        self.busy.iter_mut().for_each(Vec::clear);
        for (index, &other) in back.iter().enumerate() {
            self.first.push(self.slots.len() as u32);
            for range in [alone.range(LinkId(index as u32)), alone.range(other)] {
                self.slots.extend(&alone.slots[range.clone()]);
                self.busy.iter_mut().zip(&alone.busy).for_each(|(busy, alone)| busy.extend(&alone[range.clone()]));
            }
        }
        self.first.push(self.slots.len() as u32);
    }

    pub(super) fn size(&self, bytes: Bytes) -> usize {
        self.sizes.partition_point(|size| size.total_cmp(&bytes).is_lt())
    }

    pub(super) fn sizes(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn slot_count(&self) -> usize {
        self.users.len()
    }

    /// The range of a link's entries in [`Self::slots`] and [`Self::busy`].
    #[inline]
    pub(super) fn range(&self, link: LinkId) -> std::ops::Range<usize> {
        self.first[link.index()] as usize..self.first[link.index() + 1] as usize
    }

    /// The slots of all links.
    #[inline]
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// How long these slots are busy with a message of a size, in µs.
    #[inline]
    pub(super) fn busy(&self, size: usize) -> &[f64] {
        &self.busy[size]
    }

    /// The time from the start of a message to its arrival, in µs.
    #[inline]
    pub(super) fn duration(&self, size: usize, link: LinkId) -> f64 {
        self.durations[size][link.index()]
    }

    /// The representative of the orbit of `link`.
    #[inline]
    pub(super) fn representative(&self, link: LinkId) -> LinkId {
        self.representative[link.index()]
    }

    /// The representatives of the links that use a slot.
    pub(super) fn users(&self, slot: usize) -> &[LinkId] {
        &self.users[slot]
    }
}

/// The orbits of resources under the symmetries.
struct ResourceOrbits {
    /// For each resource, the representative of its orbit, and how many images of a message meet at one resource of the
    /// orbit.
    of: Vec<(usize, f64)>,
}

impl ResourceOrbits {
    fn new(problem: &Problem, mirror: &Mirror) -> Self {
        let topology = &*problem.topology;
        let mut joined = UnionFind::new(topology.resources().len());
        if mirror.order() > 1 {
            for link in topology.link_ids().filter(|&link| mirror.representative(link) == link) {
                for image in mirror.links(link) {
                    let pairs = topology.link(link).resources.iter().zip(&topology.link(image).resources);
                    for (one, other) in pairs {
                        joined.union(one.index(), other.index());
                    }
                }
            }
        }
        let mut members: BTreeMap<usize, usize> = BTreeMap::new();
        let roots = by_first(joined.into_labeling());
        roots.iter().for_each(|&root| *members.entry(root).or_default() += 1);
        let turns = |root: usize| (mirror.order() as f64 / members[&root] as f64).max(1.0);
        Self { of: roots.iter().map(|&root| (root, turns(root))).collect() }
    }
}
