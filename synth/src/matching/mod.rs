//! `matching`: causal matching of links and chunks in time, with seeded restarts and repair.
//!
//! The principal type is [`Matching`]. It plans every demand that reduces nothing (`reversal` derives the
//! reducing ones): chunks that several ranks need are [`spread`], chunks with one destination are [`routed`].
//! Restarts differ in style and random numbers; they run in parallel, in batches of fixed size, and the best is
//! chosen by (makespan, transfers, restart), so the answer does not depend on the number of threads.

mod bits;
mod calendar;
pub(crate) mod distance;
mod instance;
mod prune;
mod routed;
mod spread;

use crate::{Attempt, Context, Problem, StopReason, Strategy, SynthError};
use instance::Instance;
use prune::without_idle_copies;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use routed::{Routing, order, route};
use schedule::{Message, Schedule, Transfer, replay};
use spread::{Patience, Style, spread};
use topology::{Latency, Micros};

/// The strategy `matching`.
#[derive(Clone, Copy, Debug)]
pub struct Matching;

/// Restarts that run before the cutoff is tightened; fixed, so that threads do not change the result.
const BATCH: u32 = 8;
/// Two makespans this close (relative) are equal.
const EQUAL: f64 = 1e-9;
/// Work of all restarts together, in looks of a link at 64 chunks: a few seconds of one core.
const WORK: u64 = 300_000_000;

impl Strategy for Matching {
    fn name(&self) -> &'static str {
        "matching"
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        if problem.demand.chunks().iter().any(|chunk| chunk.combine && chunk.holders.len() > 1) {
            let why = "it reduces; plan its reversal".to_owned();
            return Err(SynthError::NotApplicable { strategy: self.name(), why });
        }
        let instance = Instance::new(problem)?;
        let mut search = Search::new(&instance, context);
        search.restart();
        Ok(vec![search.conclude()])
    }
}

/// A complete schedule, in playing order.
#[derive(Clone, Debug)]
struct Plan {
    transfers: Vec<Transfer>,
    makespan: Micros,
}

struct Search<'a> {
    instance: &'a Instance<'a>,
    context: &'a Context<'a>,
    best: Option<Plan>,
    stop: StopReason,
}

impl<'a> Search<'a> {
    fn new(instance: &'a Instance<'a>, context: &'a Context<'a>) -> Self {
        Self { instance, context, best: None, stop: StopReason::Exhausted }
    }

    fn is_optimal(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.makespan.0 <= self.context.bound.0 * (1.0 + EQUAL))
    }

    /// Runs restarts, batch by batch, until their number, the work, the time or the gap is used up.
    fn restart(&mut self) {
        let restarts = self.context.options.limits.restarts.max(1).min(self.affordable_restarts());
        for batch in (0..restarts).step_by(BATCH as usize) {
            if self.is_optimal() {
                self.stop = StopReason::Optimal;
                return;
            }
            if self.best.is_some() && self.context.deadline.has_passed() {
                self.stop = StopReason::TimeLimit;
                return;
            }
            let cutoff = self.best.as_ref().map_or(Micros(f64::INFINITY), |best| best.makespan * (1.0 - EQUAL));
            let attempts: Vec<u32> = (batch..restarts.min(batch + BATCH)).collect();
            let plans = attempts.par_iter().map(|&attempt| self.attempt(attempt, cutoff));
            for plan in plans.collect::<Vec<_>>().into_iter().flatten() {
                self.keep(plan);
            }
        }
        if self.is_optimal() {
            self.stop = StopReason::Optimal;
        }
    }

    fn keep(&mut self, plan: Plan) {
        let better = self.best.as_ref().is_none_or(|best| {
            let tolerance = best.makespan.0 * EQUAL;
            let fewer = plan.transfers.len() < best.transfers.len();
            plan.makespan.0 < best.makespan.0 - tolerance || (fewer && plan.makespan.0 <= best.makespan.0 + tolerance)
        });
        if better {
            self.best = Some(plan);
        }
    }

    /// How many restarts the work limit pays for.
    fn affordable_restarts(&self) -> u32 {
        let demand = self.instance.demand;
        let words = demand.chunks().len().div_ceil(64) as u64;
        let deliveries: u64 = demand.chunks().iter().map(|chunk| chunk.wanted_by.len() as u64).sum();
        let per_delivery = words + 64;
        u32::try_from(WORK / (deliveries * per_delivery).max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// One restart; `None` if it found nothing that ends before the cutoff.
    fn attempt(&self, number: u32, cutoff: Micros) -> Option<Plan> {
        let seed = self.context.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(number);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let instance = self.instance;
        let messages = if self.is_unicast() {
            let routing = Routing { spreading: [4.0, 16.0, 1.0, 0.0][number as usize % 4], rounds: 6 };
            let routes = route(instance, routing, &mut random);
            order(instance, &routes, self.merge(number / 4), &mut random)
        } else {
            spread(instance, &[], self.style(number, &mut random), cutoff, &mut random)?
        };
        self.time(&messages)
    }

    /// Whether every chunk has at most one destination.
    fn is_unicast(&self) -> bool {
        let wanted = |chunk: &schedule::Chunk| chunk.wanted_by.iter().filter(|&&rank| !chunk.holders.has(rank)).count();
        self.instance.demand.chunks().iter().all(|chunk| wanted(chunk) <= 1)
    }

    /// Gives messages their times, without those that help nobody.
    fn time(&self, messages: &[Message]) -> Option<Plan> {
        let (topology, demand) = (self.instance.topology, self.instance.demand);
        let useful = without_idle_copies(messages, topology, demand);
        let transfers = replay(demand, topology, &useful).ok()?;
        let makespan = transfers.iter().map(|transfer| transfer.end).fold(Micros::ZERO, Micros::max);
        Some(Plan { transfers, makespan })
    }

    /// How many chunks a message of restart `number` carries at most.
    fn merge(&self, number: u32) -> usize {
        // Where α is a pure delay, or there is none, a merged message only arrives later.
        let pays = |link: &topology::Link| link.latency == Latency::Occupies && link.alpha > Micros::ZERO;
        if !self.instance.topology.links().iter().any(pays) {
            return 1;
        }
        [1, usize::MAX, 2, 4][number as usize % 4]
    }

    fn style(&self, number: u32, random: &mut Pcg64Mcg) -> Style {
        let mut weight = || f64::from(random.next_u32() % 5) / 4.0;
        Style {
            merge: self.merge(number),
            urgency: if number.is_multiple_of(2) { 1.0 + weight() } else { weight() },
            rarity: weight(),
            chance: 0.01 + weight() * weight() * 0.5,
            patience: if number / 4 % 2 == 0 { Patience::Waits } else { Patience::Greedy },
        }
    }

    fn conclude(self) -> Attempt {
        let (instance, name) = (self.instance, "matching");
        let note = self.best.is_none().then(|| "no restart served everybody".to_owned());
        let schedule = self
            .best
            .map(|best| Schedule::new(instance.topology, instance.problem.demand.clone(), best.transfers, name));
        Attempt { name: name.to_owned(), schedule, stop: self.stop, note }
    }
}
