//! A route for every chunk, so that no link or resource is busy for much longer than necessary.
//!
//! The principal type is [`Balance`]. Every link and resource has a price that grows with a high power of its load. For
//! each source, a shortest-path tree by these prices offers every chunk a path. The chunk remembers this path with
//! earlier ones, and takes the one that raises the powers of all loads least, while all other chunks stay. This is best
//! response in a potential game: no step raises the potential. The power rises round by round, so that the potential
//! approaches the busiest load.
//!
//! Against one shortest path per chunk, trees save a factor of the number of destinations. Against fractional flows
//! [1], whole chunks need no decomposition and no rounding.
//!
//! [1] Garg and Könemann, "Faster and Simpler Algorithms for Multicommodity Flow and Other Fractional Packing
//! Problems", SIAM J. Comput. 37 (2007).

use super::quotient::{HolderDemand, Quotient};
use crate::problem::Deadline;
use crate::problem::distance::LimitedPaths;
use crate::problem::options::DeadlinePoll;
use crate::problem::tolerance::reaches;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::ChunkId;
use topology::{Bytes, LinkId, Micros};

/// The powers of loads, round by round; later rounds use the last one.
const POWERS: [i32; 12] = [3, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64];
/// The most paths that a chunk remembers.
const WAYS: usize = 48;
/// After this many rounds without progress, the search ends.
const PATIENCE: u32 = 8;
/// A peak that is lower by this fraction counts as progress.
const PROGRESS: f64 = 1e-4;
/// Hops beyond this number count as the last one.
const HOPS: usize = 64;
/// The largest random difference between links of the same price, so that trees find other paths each time.
const NOISE: f64 = 1e-3;
/// How often the deadline is checked, in links visited: every few hundredths of a second.
const POLLED: u64 = 1 << 20;

/// What a route costs besides its bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RouteWeights {
    /// The part of its α that a chunk pays: all if it is a message of its own, none if many chunks share a message.
    pub(crate) alpha: f64,
    /// The cost of a microsecond on the way, relative to a microsecond of the busiest load.
    pub(crate) detour: f64,
    /// Whether all chunks move at once, hop by hop. Then the busiest load of every hop counts, not the busiest of all.
    pub(crate) lockstep: bool,
}

/// When to stop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct BalanceEffort {
    /// The work, in visits of links and paths.
    pub(crate) work: u64,
    /// A lower bound on the busiest load, in µs.
    pub(crate) floor: f64,
}

/// A way of a chunk: links, first link first.
type LinkPath = Box<[LinkId]>;

/// The paths of some wanted chunks, and which of them each chunk takes.
#[derive(Clone, Debug, Default)]
struct ChunkWays {
    paths: Vec<LinkPath>,
    taken: Vec<Option<u8>>,
}

/// Routes of all chunks, and the loads that they cause.
pub(crate) struct Balance<'a> {
    quotient: &'a Quotient<'a>,
    weights: RouteWeights,
    /// By source and wanted chunks.
    ways: Vec<Vec<ChunkWays>>,
    loads: Loads,
    /// The same for each hop; empty unless all chunks move at once.
    hops: Vec<Loads>,
    best: f64,
    /// By source, wanted chunks and chunk: the paths taken when the busiest load was least.
    kept: Vec<Vec<Vec<Option<u8>>>>,
}

/// For how long each link and resource is busy.
struct Loads {
    busy: Vec<f64>,
    power: i32,
    /// The unit of loads in powers: about the largest load.
    unit: f64,
}

impl Loads {
    fn new(sellers: usize) -> Self {
        Self { busy: vec![0.0; sellers], power: 1, unit: 1.0 }
    }

    fn change(&mut self, seller: u32, more: f64) {
        let busy = &mut self.busy[seller as usize];
        *busy = (*busy + more).max(0.0);
    }

    fn rescale(&mut self, power: i32, least: f64) {
        (self.power, self.unit) = (power, self.peak().max(least));
    }

    /// What `more` adds to the power of a load, in the units of price times µs.
    fn added(&self, seller: u32, more: f64) -> f64 {
        let before = self.busy[seller as usize] / self.unit;
        let more = more / self.unit;
        // For small differences, the derivative is more precise than the difference of powers.
        let added = match more < 1e-6 {
            true => before.powi(self.power - 1) * more,
            false => ((before + more).powi(self.power) - before.powi(self.power)) / f64::from(self.power),
        };
        added * self.unit
    }

    fn peak(&self) -> f64 {
        self.busy.iter().copied().fold(0.0, f64::max)
    }
}

impl<'a> Balance<'a> {
    /// No chunk has a path yet.
    pub(crate) fn new(quotient: &'a Quotient<'a>, weights: RouteWeights) -> Self {
        let sellers = quotient.sellers();
        let ways = |source: &HolderDemand| {
            let of = |chunks: usize| ChunkWays { paths: Vec::new(), taken: vec![None; chunks] };
            source.wanted.iter().map(|some| of(some.chunks.len())).collect()
        };
        Self {
            quotient,
            weights,
            ways: quotient.sources.iter().map(ways).collect(),
            loads: Loads::new(sellers),
            hops: if weights.lockstep { (0..HOPS).map(|_| Loads::new(sellers)).collect() } else { Vec::new() },
            best: f64::INFINITY,
            kept: Vec::new(),
        }
    }

    /// Runs rounds until nothing improves, or the work or the time is over; `false` if some chunk has no path by then.
    pub(crate) fn play(&mut self, effort: BalanceEffort, random: &mut Pcg64Mcg, deadline: &Deadline) -> bool {
        let mut poll = DeadlinePoll::new(deadline, POLLED);
        let (mut left, mut stale) = (effort.work as i64, 0);
        let slowest = self.longest_message();
        for round in 0.. {
            let power = POWERS[round.min(POWERS.len() - 1)];
            self.loads.rescale(power, effort.floor.max(slowest).max(f64::MIN_POSITIVE));
            self.hops.iter_mut().for_each(|hop| hop.rescale(power, slowest.max(f64::MIN_POSITIVE)));
            for source in 0..self.ways.len() {
                let spent = self.respond(source, random);
                left -= spent as i64;
                let is_over = poll.is_over_after(spent) || left < 0;
                // The first round is completed, so that every chunk gets a path, unless a schedule exists already.
                if is_over && (round > 0 || deadline.has_passed_for_all()) {
                    self.keep();
                    return round > 0;
                }
            }
            let peak = self.measure();
            stale = if peak < self.best * (1.0 - PROGRESS) { 0 } else { stale + 1 };
            self.keep();
            let settled = stale >= PATIENCE && round >= POWERS.len();
            if settled || reaches(Micros(self.best), Micros(effort.floor)) && round > 1 || left < 0 {
                break;
            }
        }
        true
    }

    /// The objective: the busiest load or, if all chunks move at once, the sum of the busiest loads of all hops.
    fn measure(&self) -> f64 {
        match self.hops.is_empty() {
            true => self.loads.peak(),
            false => self.hops.iter().map(Loads::peak).sum(),
        }
    }

    /// The busiest load of the best round, in µs; in lockstep, the sum over all hops.
    pub(crate) fn peak(&self) -> f64 {
        self.best
    }

    /// Stores the present paths if the objective has never been lower.
    fn keep(&mut self) {
        let peak = self.measure();
        let complete = self.ways.iter().flatten().flat_map(|ways| &ways.taken).all(Option::is_some);
        if complete && peak < self.best {
            self.best = peak;
            let taken = |ways: &Vec<ChunkWays>| ways.iter().map(|ways| ways.taken.clone()).collect();
            self.kept = self.ways.iter().map(taken).collect();
        }
    }

    /// The longest time for which one chunk keeps a link or resource busy; loads below that scale mean little.
    fn longest_message(&self) -> f64 {
        let wanted = self.quotient.sources.iter().flat_map(|source| &source.wanted);
        let bytes = wanted.map(|some| some.bytes.0).fold(0.0, f64::max);
        let uses = (0..self.quotient.orbits()).flat_map(|orbit| self.quotient.uses(orbit));
        uses.map(|it| it.busy(self.weights.alpha, Bytes(bytes))).fold(0.0, f64::max)
    }

    /// Offers a new path to all chunks of a source, and lets each choose; returns the number of visits.
    fn respond(&mut self, source: usize, random: &mut Pcg64Mcg) -> usize {
        let quotient = self.quotient;
        let HolderDemand { holders, wanted } = &quotient.sources[source];
        let topology = &quotient.problem.topology;
        let Some(first) = wanted.first() else { return 0 };
        let bytes = Bytes(wanted.iter().map(|some| some.bytes.0).sum::<f64>() / wanted.len() as f64);
        let length: Vec<f64> = (0..quotient.orbits()).map(|orbit| self.price(orbit, None, bytes)).collect();
        let paths = LimitedPaths::new(quotient.problem, holders.iter().copied(), |link| {
            let way = self.weights.detour * topology.link(link).transfer_time(bytes).0;
            let noise = 1.0 + NOISE * f64::from(random.next_u32() % 1024) / 1024.0;
            quotient.problem.allows(first.chunks[0], link).then(|| (length[quotient.orbit(link)] + way) * noise)
        });
        let mut looks = topology.links().len();
        for (index, some) in wanted.iter().enumerate() {
            let offered = paths.path_to(some.to).into_boxed_slice();
            let mut ways = std::mem::take(&mut self.ways[source][index]);
            if ways.paths.len() < WAYS && !ways.paths.contains(&offered) {
                ways.paths.push(offered);
            }
            for chunk in 0..some.chunks.len() {
                looks += self.choose(&mut ways, chunk, some.bytes);
            }
            self.ways[source][index] = ways;
        }
        looks
    }

    /// The cost of `bytes` on a link of an orbit. If all chunks move at once, it includes the load of the `hop`-th hop.
    fn price(&self, orbit: usize, hop: Option<usize>, bytes: Bytes) -> f64 {
        let mut price = 0.0;
        let hop = hop.and_then(|hop| self.hops.get(hop.min(HOPS - 1)));
        for it in self.quotient.uses(orbit) {
            let more = it.busy(self.weights.alpha, bytes);
            price += self.loads.added(it.seller, more) + hop.map_or(0.0, |hop| hop.added(it.seller, more));
        }
        price
    }

    /// Puts a chunk on the path that raises the powers of all loads least; returns the number of visits.
    fn choose(&mut self, ways: &mut ChunkWays, chunk: usize, bytes: Bytes) -> usize {
        if let Some(taken) = ways.taken[chunk] {
            self.charge(&ways.paths[usize::from(taken)], bytes, -1.0);
        }
        let mut looks = 1;
        let mut best = (f64::INFINITY, 0);
        let choices = if ways.paths.len() > 1 { &ways.paths[..] } else { &[] };
        for (index, path) in choices.iter().enumerate() {
            looks += path.len();
            let mut cost = 0.0;
            for (hop, &link) in path.iter().enumerate() {
                cost += self.price(self.quotient.orbit(link), Some(hop), bytes)
                    + self.weights.detour * self.quotient.problem.topology.link(link).transfer_time(bytes).0;
            }
            if cost < best.0 {
                best = (cost, index);
            }
        }
        ways.taken[chunk] = Some(best.1 as u8);
        self.charge(&ways.paths[best.1], bytes, 1.0);
        looks
    }

    fn charge(&mut self, path: &[LinkId], bytes: Bytes, sign: f64) {
        for (hop, &link) in path.iter().enumerate() {
            for it in self.quotient.uses(self.quotient.orbit(link)) {
                let more = sign * it.busy(self.weights.alpha, bytes);
                self.loads.change(it.seller, more);
                if let Some(hop) = self.hops.get_mut(hop.min(HOPS - 1)) {
                    hop.change(it.seller, more);
                }
            }
        }
    }

    /// The number of links of all routes together, images included.
    pub(crate) fn hops(&self) -> usize {
        let kept = self.ways.iter().flatten().zip(self.kept.iter().flatten());
        let length = |(ways, kept): (&ChunkWays, &Vec<Option<u8>>)| -> usize {
            kept.iter().flatten().map(|&taken| ways.paths[usize::from(taken)].len()).sum()
        };
        kept.map(length).sum::<usize>() * self.quotient.mirror.order()
    }

    /// The links of every chunk's path in the best round, images included; empty where a chunk stays.
    pub(crate) fn routes(&self) -> Vec<Vec<LinkId>> {
        let (quotient, demand) = (self.quotient, &self.quotient.problem.demand);
        let mut routes = vec![Vec::new(); demand.chunks().len()];
        for ((source, ways), kept) in quotient.sources.iter().zip(&self.ways).zip(&self.kept) {
            for ((some, ways), kept) in source.wanted.iter().zip(ways).zip(kept) {
                for (&chunk, taken) in some.chunks.iter().zip(kept) {
                    let path = &ways.paths[usize::from(taken.expect("kept ways are complete"))];
                    self.repeat(&mut routes, chunk, path);
                }
            }
        }
        routes
    }

    /// Writes the route of a chunk and of its images.
    fn repeat(&self, routes: &mut [Vec<LinkId>], chunk: ChunkId, path: &[LinkId]) {
        let mirror = &self.quotient.mirror;
        if mirror.order() == 1 {
            routes[chunk.index()] = path.to_vec();
            return;
        }
        let chunks = mirror.chunks(chunk);
        chunks.iter().for_each(|image| routes[image.index()].reserve_exact(path.len()));
        for &link in path {
            for (image, link) in chunks.iter().zip(mirror.links(link)) {
                routes[image.index()].push(link);
            }
        }
    }
}
