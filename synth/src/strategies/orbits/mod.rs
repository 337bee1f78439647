//! Spreading decided on orbits: one link and one chunk of each orbit stand for all of their images.
//!
//! The principal type is [`Orbits`], a group of translations and what it does to ranks, links and chunks;
//! [`Orbits::spread`] searches for a base plan, [`Orbits::unfolded`] repeats it everywhere. Under a group that leaves nothing in
//! place, the images of a transfer use as many different links and carry as many different chunks, so a plan is right
//! exactly if, of each orbit of links, no two base transfers overlap, and each base chunk finds its way [1]. The state of a
//! search is therefore what each *base* chunk has reached: N places instead of N² on a torus of N ranks.
//!
//! [1] The same argument makes schedules for Cayley graphs out of one tree: Zhao and others, "Efficient Direct-Connect
//! Topologies for Collective Communications" (2022).

mod compressed;
mod strategy;
mod walk;

pub use compressed::{CompressedSynthesis, is_too_large_for_plain, synthesize_compressed, wants_compression};
pub use strategy::OrbitWalk;

use crate::problem::Problem;
use crate::problem::merging::merging_pays_somewhere;
use crate::strategies::Context;
use crate::symmetry::Shared;
use schedule::{ChunkId, ChunkList, Transfer, TransferKind};
use topology::symmetry::{Action, Translations};
use topology::{LinkId, Micros, Topology};
use walk::{Sent, Walk, WalkStyle};

/// Deliveries of one search, all styles and restarts together: a second or so.
const WORK: usize = 1 << 21;
/// How many chunks a message takes at most, by style.
const MERGES: [usize; 6] = [1, 2, 4, 8, 16, usize::MAX];
/// Restarts of one style.
const RESTARTS: usize = 8;

/// A group of translations of topology, demand and sketch.
pub(crate) struct Orbits {
    group: Translations,
    links: Action,
    chunks: Action,
    generators: Vec<OrbitGenerator>,
}

/// Where a generator sends ranks, links and chunks.
#[derive(Clone)]
struct OrbitGenerator {
    ranks: Vec<u32>,
    links: Vec<u32>,
    chunks: Vec<u32>,
}

/// A plan for the base chunks.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// One transfer of each orbit, in the order in which they leave.
    pub(crate) transfers: Vec<Transfer>,
    /// When the last one, and with it every image, has arrived.
    pub(crate) makespan: Micros,
}

impl Orbits {
    /// The group that as many of `symmetries` generate as commute and leave no rank, link or chunk in place; `None` if only
    /// the identity does.
    pub(crate) fn new(problem: &Problem, symmetries: &[Shared]) -> Option<Self> {
        let mut best: Option<Self> = None;
        for shared in symmetries {
            let mut generators = best.as_ref().map_or(Vec::new(), |best| best.generators.clone());
            generators.push(OrbitGenerator {
                ranks: shared.symmetry.ranks.iter().map(|rank| rank.0).collect(),
                links: shared.symmetry.links.iter().map(|link| link.0).collect(),
                chunks: shared.chunks.iter().map(|chunk| chunk.0).collect(),
            });
            best = Self::acting(problem, generators).or(best);
        }
        best
    }

    fn acting(problem: &Problem, generators: Vec<OrbitGenerator>) -> Option<Self> {
        let of = |part: fn(&OrbitGenerator) -> &[u32]| generators.iter().map(part).collect::<Vec<&[u32]>>();
        let (ranks, links, chunks) = (of(|it| &it.ranks), of(|it| &it.links), of(|it| &it.chunks));
        let group = Translations::proposed(&ranks)?;
        let (topology, demand) = (&problem.topology, &problem.demand);
        // Where no rank stays in place, a search for one of each orbit is a search for all.
        Action::new(&group, &ranks, topology.rank_count())?;
        Some(Self {
            links: Action::new(&group, &links, topology.links().len())?,
            chunks: Action::new(&group, &chunks, demand.chunks().len())?,
            group,
            generators,
        })
    }

    /// How many images everything has, itself included.
    pub(crate) fn order(&self) -> usize {
        self.group.order()
    }

    /// Whether a walk can heed what the machine shares and what the sketch asks for.
    fn can_spread(problem: &Problem) -> bool {
        let constraints = &problem.constraints;
        problem.topology.resources().is_empty() && !constraints.limits_ways() && constraints.own_chunks_first.is_none()
    }

    /// The best base plan found: some styles and restarts, fewer where one takes long, and none after one that reaches the
    /// goal. `None` where no style serves everybody without relays, or the problem is not of this kind: shared resources, a
    /// sketch that limits ways, too many deliveries.
    pub(crate) fn spread(&self, problem: &Problem, context: &Context<'_>) -> Option<Base> {
        if !Self::can_spread(problem) {
            return None;
        }
        let walk = Walk::new(self, problem)?;
        let merges = if merging_pays_somewhere(&problem.topology) { &MERGES[..] } else { &MERGES[..1] };
        let tries = (WORK / walk.deliveries().max(1)).clamp(merges.len(), merges.len() * RESTARTS);
        let mut best: Option<(Micros, Vec<Sent>)> = None;
        for number in 0..tries {
            let is_enough = best.as_ref().is_some_and(|(makespan, _)| context.is_enough(*makespan));
            if is_enough || number > 0 && context.deadline.has_passed() {
                break;
            }
            let style = WalkStyle { merge: merges[number % merges.len()], seed: context.options.seed ^ number as u64 };
            let cutoff = best.as_ref().map_or(Micros(f64::INFINITY), |(makespan, _)| *makespan);
            if let Some((makespan, sent)) = walk.run(style, cutoff, context.deadline)
                && makespan < cutoff
            {
                best = Some((makespan, sent));
            }
        }
        let (makespan, sent) = best?;
        Some(Base { transfers: self.transfers(&problem.topology, &sent), makespan })
    }

    /// Base messages as transfers over one link each: that of their first chunk.
    fn transfers(&self, topology: &Topology, sent: &[Sent]) -> Vec<Transfer> {
        let transfer = |sent: &Sent| {
            let id = sent.items[0].link;
            let link = topology.link(id);
            let here = |item: &walk::Item| {
                let element = self.group.quotient(self.links.element(id.0), self.links.element(item.link.0));
                ChunkId(self.chunks.place(item.chunk, element))
            };
            let mut chunks: ChunkList = sent.items.iter().map(here).collect();
            chunks.sort_unstable();
            let (from, to, kind) = (link.from, link.to, TransferKind::Copy);
            Transfer { chunks, from, to, link: id, kind, start: sent.start, end: sent.end }
        };
        sent.iter().map(transfer).collect()
    }

    /// Every transfer of the base followed by its images: at the same times, in the order in which they leave.
    pub(crate) fn unfolded(&self, topology: &Topology, base: &[Transfer]) -> Vec<Transfer> {
        let mut all = Vec::with_capacity(base.len() * self.order());
        for transfer in base {
            for element in 0..self.order() as u32 {
                let link = LinkId(self.links.image(&self.group, element, transfer.link.0));
                let (from, to) = (topology.link(link).from, topology.link(link).to);
                all.push(Transfer {
                    chunks: self.chunk_images(&transfer.chunks, element),
                    from,
                    to,
                    link,
                    ..*transfer
                });
            }
        }
        all
    }

    fn chunk_images(&self, chunks: &[ChunkId], element: u32) -> ChunkList {
        let image = |chunk: &ChunkId| ChunkId(self.chunks.image(&self.group, element, chunk.0));
        let mut images: ChunkList = chunks.iter().map(image).collect();
        if images.len() > 1 {
            images.sort_unstable();
        }
        images
    }
}
