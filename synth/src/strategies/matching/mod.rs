//! `matching`: causal matching of links and chunks in time, with seeded restarts and repair.
//!
//! The principal type is [`Matching`]. It plans every demand that reduces nothing; `reversal` derives the reducing
//! ones. Chunks that several ranks need are planned by [`spread`], chunks with one destination by [`routed`]. Restarts
//! differ in style and random numbers. They run in parallel, in batches of fixed size. The best is chosen by (makespan,
//! transfers, restart), so the result does not depend on the number of threads.

mod instance;
mod ports;
mod rerouted;
mod routed;
mod spread;
mod style;
mod symmetric;

use crate::bounds::multicommodity::{ConcurrentFlow, concurrent_flow};
use crate::ordering::queues::Priorities;
use crate::ordering::without_idle_copies;
use crate::problem::constraints::RuleKind;
use crate::problem::distance::PathTree;
use crate::problem::merging::merging_pays_somewhere;
use crate::problem::tolerance::{EQUAL, beats, reaches};
use crate::problem::{Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::bundles::{WORK, of_bearable_size};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use crate::symmetry::Mirror;
use instance::Instance;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use rerouted::{RepairEffort, improve};
use routed::{RouteParams, Routing};
use schedule::{Message, Schedule, Transfer, makespan, replay};
use spread::spread;
use style::{Style, TurnOrder, WaitRule};
pub use symmetric::Symmetric;
use topology::{Micros, Rank};

/// The strategy `matching`.
#[derive(Clone, Copy, Debug)]
pub struct Matching;

/// Restarts that run before the cutoff is tightened; a fixed number, so that threads do not change the result.
const BATCH: u32 = 8;
/// Above this number of links × chunks with one destination, the routes of `flow` are better.
const WORTH_ROUTING: usize = 400_000;
/// The most links × chunks with one destination for which loads are checked again for every single chunk.
const MOST_ROUTED: usize = WORK as usize / 16;
/// How often every chunk is routed.
const ROUNDS: u32 = 6;
const REPAIRS: u32 = 31;
/// The most repairs of one restart per chunk with one destination: few chunks have few arrangements.
const REPAIRS_PER_CHUNK: u32 = 4;
/// The most chunks per message, restart by restart.
const MERGES: [usize; 4] = [1, usize::MAX, 2, 4];
/// Which links choose first, restart by restart; `None` is what is usual on the machine.
const TURNS: [Option<TurnOrder>; 8] = {
    use TurnOrder::{Bulk, MostLacking, Scarce};
    [Some(Scarce), Some(Scarce), Some(Scarce), Some(MostLacking), None, Some(Bulk), Some(Bulk), Some(Bulk)]
};
/// Where bytes decide, all links are alike and no port is shared: of this many restarts, the one of this number lets the
/// ranks that lack most go first, without merging. All others let the links with the fewest candidates choose first.
const EVENING_OUT: (u32, u32) = (16, 11);
/// What a restart aims at while there is no plan, in bounds.
const AIMS: [f64; 4] = [1.001, 1.02, 1.1, 1.3];
/// What a restart aims at then: the part of the way from the bound to the best plan.
const REACHES: [f64; 4] = [1.0, 0.5, 0.75, 0.25];
/// The cost of repeating a message for its images and of timing it, in links examined at 64 chunks.
const REPEATING: usize = 4;
/// The cost of scheduling a chunk on one link of its way, in links examined at 64 chunks.
const SCHEDULING: usize = 32;

impl Strategy for Matching {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Matching
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, self.name())?;
        let (links, chunks) = (problem.topology.links().len(), problem.demand.chunks().len());
        if context.incumbent.is_some() && links * chunks > WORTH_ROUTING && problem.demand.is_unicast() {
            let why = "`flow` finds better routes for so many chunks".to_owned();
            return Err(SynthError::NotApplicable { strategy: self.name(), why });
        }
        of_bearable_size(self.name(), problem, |problem| {
            let instance = Instance::new(problem, Mirror::plain(&problem.topology), context.deadline)?;
            let mut search = MatchingSearch::new(&instance, context, WORK);
            search.restart();
            Ok(vec![search.conclude(self.name())])
        })
    }
}

/// A complete schedule, in order of departure; for a symmetric one, the base only, without images.
#[derive(Clone, Debug)]
struct MatchingPlan {
    transfers: Vec<Transfer>,
    makespan: Micros,
}

impl MatchingPlan {
    /// Whether it is faster, or equally fast with fewer transfers.
    fn is_better_than(&self, other: &Self) -> bool {
        let fewer = self.transfers.len() < other.transfers.len();
        beats(self.makespan, other.makespan) || fewer && reaches(self.makespan, other.makespan)
    }
}

/// The work of a search from nothing, and of a repair; neither is zero.
#[derive(Clone, Copy, PartialEq, Debug)]
struct SearchWork {
    fresh: u64,
    repair: u64,
}

/// The properties of a problem that decide which styles are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Traits {
    shared: bool,
    /// The largest α is more than twice the smallest.
    dear: bool,
    /// On every link, a chunk takes far longer than α.
    long: bool,
}

impl Traits {
    fn of(instance: &Instance<'_>) -> Self {
        let (topology, bytes) = (instance.topology, instance.demand.chunk_bytes());
        let alphas = || topology.links().iter().map(|link| link.alpha.0);
        let (least, most) = (alphas().fold(f64::INFINITY, f64::min), alphas().fold(0.0, f64::max));
        Self {
            shared: !topology.resources().is_empty(),
            dear: most > 2.0 * least,
            long: topology.links().iter().all(|link| 8.0 * link.alpha.0 < link.byte_time(bytes).0),
        }
    }
}

struct MatchingSearch<'a> {
    instance: &'a Instance<'a>,
    context: &'a Context<'a>,
    /// The work of the whole search, in links examined at 64 chunks.
    work: u64,
    /// The fluid optimum, where every chunk has one destination and there are few chunks.
    flow: Option<ConcurrentFlow>,
    traits: Traits,
    best: Option<MatchingPlan>,
    stop: StopReason,
}

impl<'a> MatchingSearch<'a> {
    fn new(instance: &'a Instance<'a>, context: &'a Context<'a>, work: u64) -> Self {
        let flow = concurrent_flow(instance.problem, context.deadline);
        let traits = Traits::of(instance);
        Self { instance, context, work, flow, traits, best: None, stop: StopReason::Done }
    }

    fn is_good_enough(&self) -> bool {
        self.best.as_ref().is_some_and(|best| self.context.is_enough(best.makespan))
    }

    /// Runs restarts, batch by batch, until their number, the work or the time is used up, or the gap is small enough.
    fn restart(&mut self) {
        let cost = self.cost();
        let restarts = u64::from(self.context.options.limits.restarts).min(self.work / cost.fresh).max(1);
        let repairs = self.work.saturating_sub(restarts * cost.fresh) / (restarts * cost.repair);
        let (restarts, repairs) = (restarts as u32, repairs as u32);
        for batch in (0..restarts).step_by(BATCH as usize) {
            if self.is_good_enough() {
                break;
            }
            let may_stop = self.best.is_some() || batch > 0 || self.context.deadline.is_strict();
            if may_stop && self.context.deadline.has_passed() {
                self.stop = StopReason::TimeLimit;
                return;
            }
            let numbers: Vec<u32> = (batch..restarts.min(batch + BATCH)).collect();
            let plans = numbers.par_iter().map(|&number| self.attempt(number, repairs));
            for plan in plans.collect::<Vec<_>>().into_iter().flatten() {
                self.keep(plan);
            }
        }
        if self.is_good_enough() {
            self.stop = StopReason::Optimal;
        } else if self.best.is_none() && self.context.deadline.has_passed() {
            self.stop = StopReason::TimeLimit;
        }
    }

    fn keep(&mut self, plan: MatchingPlan) {
        if self.best.as_ref().is_none_or(|best| plan.is_better_than(best)) {
            self.best = Some(plan);
        }
    }

    /// The costs of searches, in links examined at 64 chunks.
    fn cost(&self) -> SearchWork {
        let (topology, demand) = (self.instance.topology, self.instance.demand);
        let (links, chunks) = (topology.links().len(), demand.chunks().len());
        if self.instance.demand.is_unicast() {
            let looks = if self.can_relieve() { self.rounds_of_looks() + chunks } else { self.rounds_of_looks() };
            let schedule = SCHEDULING * chunks.max(1) * self.typical_hops();
            return SearchWork { fresh: (looks * links + schedule) as u64, repair: (4 * links + schedule) as u64 };
        }
        let words = chunks.div_ceil(64);
        let deliveries: usize = demand.chunks().iter().map(|chunk| chunk.wanted_by.len()).sum();
        let lookahead = if self.instance.distance.is_some() { 4 * topology.rank_count() } else { 0 };
        // With shared ports, every instant examines all links of the ports that became free.
        let ports = if topology.resources().is_empty() {
            0
        } else {
            topology.resources().len() + topology.links().len() / topology.rank_count()
        };
        let looks = (words + 64 + lookahead + ports) / self.instance.mirror.order() + REPEATING;
        let work = (deliveries * looks).max(1) as u64;
        SearchWork { fresh: work, repair: work }
    }

    /// The number of shortest-path trees that finding every route by prices takes.
    fn rounds_of_looks(&self) -> usize {
        ROUNDS as usize * (self.instance.demand.chunks().len() / self.stride() + 1)
    }

    /// Whether checking the loads for every single chunk is cheap.
    fn can_relieve(&self) -> bool {
        self.instance.topology.links().len() * self.instance.demand.chunks().len() <= MOST_ROUTED
    }

    /// The mean number of links from rank 0 to the ranks that it reaches, rounded up.
    fn typical_hops(&self) -> usize {
        let topology = self.instance.topology;
        let tree = PathTree::new(topology, [Rank(0)], |link| self.instance.problem.allows_link(link).then_some(1.0));
        let reached = || tree.distance.iter().filter(|distance| distance.is_finite());
        (reached().sum::<f64>() / reached().count() as f64).ceil().max(1.0) as usize
    }

    /// How many chunks of one rank are routed together, such that one routing costs a few per cent of the work limit.
    fn stride(&self) -> usize {
        let (links, chunks) = (self.instance.topology.links().len(), self.instance.demand.chunks().len());
        (links * chunks * ROUNDS as usize).div_ceil(WORK as usize / 32).max(1)
    }

    /// One restart and its repairs; `None` if it found no plan that ends before the target, or had no time.
    fn attempt(&self, number: u32, repairs: u32) -> Option<MatchingPlan> {
        if self.context.deadline.has_passed_for_all() {
            return None;
        }
        let seed = self.context.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(number);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let instance = self.instance;
        if instance.demand.is_unicast() {
            return self.routed(number, repairs, &mut random);
        }
        let repairs = repairs.min(REPAIRS);
        // A search that fails, fails early, so several fresh ones cost little more than one. Each has another style. If
        // two miss the target, any plan better than the best is accepted.
        let fresh = |attempt: u32, random: &mut Pcg64Mcg| {
            let target = self.target(self.best.as_ref(), if attempt < 2 { number } else { 0 });
            let style = self.style(number + attempt, random);
            spread(instance, &[], style, target, random)
        };
        let is_late = || self.context.deadline.has_passed();
        let mut in_time = (0..=repairs).take_while(|&attempt| attempt == 0 || !is_late());
        let fresh = in_time.find_map(|attempt| fresh(attempt, &mut random));
        let mut plan = fresh.and_then(|sent| self.complete(sent)).or_else(|| self.best.clone())?;
        for repair in (0..repairs).take_while(|_| !is_late()) {
            let style = self.style(number + repair, &mut random);
            plan = self.repaired(&plan, style, &mut random).unwrap_or(plan);
        }
        Some(plan)
    }

    /// Routes from the flow or by prices, scheduled and repaired.
    fn routed(&self, number: u32, repairs: u32, random: &mut Pcg64Mcg) -> Option<MatchingPlan> {
        let instance = self.instance;
        let mut routing = Routing::new(instance);
        // Four ways of finding routes are combined with four ways of merging messages, without repeating a combination.
        let way = number + number / 4;
        let balanced = way.is_multiple_of(2);
        let is_routed = match &self.flow {
            Some(flow) if balanced => routing.follow(flow, random),
            _ => {
                let strength = [4.0, 16.0, 1.0, 0.0][way as usize % 4];
                routing.spread_out(RouteParams { strength, rounds: ROUNDS, stride: self.stride() }, random)
            }
        };
        if !is_routed {
            return None;
        }
        // The other restarts keep the routes as found: relief makes detours, which cost most with small messages.
        if balanced && self.can_relieve() {
            routing.relieve_all(random);
        }
        let priorities = Priorities::new(instance.problem, self.merge(number), random);
        let most = REPAIRS_PER_CHUNK.saturating_mul(instance.demand.chunks().len() as u32);
        let effort = RepairEffort { steps: repairs.min(most), goal: self.context.goal() };
        self.time(&improve(routing, priorities, effort, random)?)
    }

    /// The time by which a search must end: between the bound and the best plan so far. A search with more time fills
    /// slow links with messages for which a shorter plan has no time.
    fn target(&self, best: Option<&MatchingPlan>, number: u32) -> Micros {
        let bound = self.context.bound;
        match best {
            None if number < BATCH / 2 => Micros(f64::INFINITY),
            None => bound * AIMS[number as usize % AIMS.len()],
            Some(best) => {
                let reach = REACHES[number as usize % REACHES.len()];
                (bound + (best.makespan - bound) * reach).min(best.makespan * (1.0 - EQUAL))
            }
        }
    }

    /// The plan with everything after a random instant searched again; `None` if that is no better.
    fn repaired(&self, plan: &MatchingPlan, style: Style, random: &mut Pcg64Mcg) -> Option<MatchingPlan> {
        let instant = plan.makespan * (f64::from(random.next_u32() % 1000) / 1000.0);
        let kept: Vec<Transfer> = plan.transfers.iter().filter(|transfer| transfer.start < instant).cloned().collect();
        let cutoff = self.target(Some(plan), random.next_u32() % 4);
        let repaired = self.complete(spread(self.instance, &kept, style, cutoff, random)?)?;
        repaired.is_better_than(plan).then_some(repaired)
    }

    /// A plan from the messages that a search has sent. Timing all images takes longer than searching, so it is done at
    /// the end.
    fn complete(&self, sent: Vec<Transfer>) -> Option<MatchingPlan> {
        match self.instance.mirror.order() {
            1 => self.time(&sent.iter().map(Message::from).collect::<Vec<_>>()),
            _ => Some(MatchingPlan { makespan: makespan(&sent), transfers: sent }),
        }
    }

    /// Gives messages their times, without useless deliveries.
    fn time(&self, messages: &[Message]) -> Option<MatchingPlan> {
        let (topology, demand) = (self.instance.topology, self.instance.demand);
        let useful = without_idle_copies(messages, topology, demand);
        let transfers = replay(demand, topology, &useful).ok()?;
        Some(MatchingPlan { makespan: makespan(&transfers), transfers })
    }

    /// The most chunks per message of restart `number`.
    fn merge(&self, number: u32) -> usize {
        if !merging_pays_somewhere(self.instance.topology) {
            return 1;
        }
        MERGES[number as usize % MERGES.len()]
    }

    fn style(&self, number: u32, random: &mut Pcg64Mcg) -> Style {
        let mut weight = || f64::from(random.next_u32() % 5) / 4.0;
        let urgency = if number.is_multiple_of(2) { 1.0 + weight() } else { weight() };
        let (rarity, chance) = (weight(), 0.01 + weight() * weight() * 0.5);
        let Traits { shared, dear, long } = self.traits;
        let plain = long && !shared && !dear;
        let evens_out = plain && number % EVENING_OUT.0 == EVENING_OUT.1;
        let merge = match self.merge(number) {
            _ if evens_out => 1,
            some @ 2..=4 if dear => some + random.next_u32() as usize % 5,
            most => most,
        };
        let usual = if shared { TurnOrder::MostLacking } else { TurnOrder::Scarce };
        let turn = match TURNS[number as usize % TURNS.len()] {
            _ if evens_out => TurnOrder::MostLacking,
            _ if plain => TurnOrder::Scarce,
            Some(TurnOrder::Bulk) if merge == 1 => usual,
            turn => turn.unwrap_or(usual),
        };
        let lot = if merge > 1 && dear { random.next_u32() } else { 0 };
        Style {
            merge,
            turn,
            batch: 1 << (lot % 4),
            skips_nearby: lot / 4 % 2 == 0,
            urgency,
            rarity,
            chance,
            patience: if (number / 4).is_multiple_of(2) { WaitRule::Waits } else { WaitRule::Greedy },
        }
    }

    fn conclude(self, name: &str) -> Attempt {
        let instance = self.instance;
        let note = self.best.is_none().then(|| "no restart served everybody".to_owned());
        let whole = |best: &MatchingPlan| match instance.mirror.order() {
            1 => Some(best.clone()),
            _ => self.time(&instance.mirror.reflected(&best.transfers)),
        };
        let best = self.best.as_ref().and_then(whole);
        let schedule =
            best.map(|best| Schedule::new(instance.topology, instance.problem.demand.clone(), best.transfers, name));
        Attempt { name: name.to_owned(), schedule, stop: self.stop, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, Limits, SearchOptions};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Rank, resolve};

    /// All messages of a clique leave at one instant, during which the time was never looked at.
    #[test]
    fn an_instant_of_many_messages_ends_with_the_time() {
        let topology = Arc::new(resolve("clique:150").expect("a known topology"));
        let demand = Demand::new(Request::new(Collective::AllGather, 150, 1 << 30)).expect("a valid request");
        let problem = Problem::new(topology.clone(), Arc::new(demand));
        let options = SearchOptions::default();
        let deadline = Deadline::after(None, options.cancel.clone()).strict();
        let instance = Instance::new(&problem, Mirror::plain(&topology), &deadline).expect("it is connected");
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let search = MatchingSearch::new(&instance, &context, WORK);
        let sent = || {
            let mut random = Pcg64Mcg::seed_from_u64(0);
            let style = search.style(0, &mut random);
            spread(&instance, &[], style, Micros(f64::INFINITY), &mut random)
        };
        assert_eq!(sent().map(|sent| sent.len()), Some(150 * 149));
        options.cancel.cancel();
        assert!(sent().is_none());
    }

    /// The verified makespan of a search with 16 restarts.
    fn makespan(spec: &str, collective: Collective, size: u64, chunks: u32) -> f64 {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(chunks);
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a valid request")));
        let options =
            SearchOptions { limits: Limits { restarts: 16, ..Limits::default() }, ..SearchOptions::default() };
        let (bound, deadline) = (bounds(&problem, &Deadline::default()).best().value, Deadline::default());
        let context = Context::among_others(&options, &deadline, bound);
        let mut attempts = Matching.propose(&problem, &context).expect("a connected topology");
        let schedule = attempts.remove(0).schedule.expect("a schedule");
        let makespan = schedule.makespan().0;
        verify(schedule, &topology).expect("a right schedule");
        makespan
    }

    #[test]
    fn tori_finish_in_as_few_steps_as_their_links_permit() {
        for (spec, ranks, steps) in [("4x4", 16, 4.0), ("5x5", 25, 6.0), ("6x6", 36, 9.0), ("8x8", 64, 16.0)] {
            let spec = format!("torus2d:{spec},alpha=0.5us,bandwidth=50GiBps");
            let found = makespan(&spec, Collective::AllGather, ranks << 20, 1);
            assert!(found <= steps * 20.03125 * (1.0 + 1e-9), "{spec}: {found} µs");
        }
    }

    #[test]
    fn machines_with_unequal_links() {
        let gather = Collective::AllGather;
        for (spec, collective, size, chunks, bar) in [
            ("dgx1", gather, 1_000_000_000, 2, 6254.0),
            ("dgx1", gather, 1_000_000_000, 4, 6257.1),
            ("dgx1", gather, 1_000_000_000, 8, 5951.0),
            ("ndv2x2", gather, 1_000_000_000, 1, 43_752.701),
            ("ndv2x2", gather, 1_000_000_000, 8, 40_472.0),
            ("ndv2x2", gather, 1_000, 1, 4.2),
            ("dgx2x2", gather, 1_000_000_000, 1, 7_750.701),
            ("ndv2x2", Collective::AllToAll, 1_000_000_000, 1, 320_001.301),
            ("dgx2x2", Collective::AllToAll, 1_000_000_000, 1, 80_002.601),
            ("dgx2x2", Collective::AllToAll, 1_000_000_000, 4, 80_002.601),
            ("dgx1", Collective::AllToAll, 1_000_000_000, 2, 13_752.2),
            ("dgx1", Collective::AllToAll, 1_000_000_000, 3, 13_339.0),
            ("ndv2x1", Collective::AllToAll, 1 << 20, 2, 15.2),
            ("ndv2x1", Collective::AllToAll, 1 << 20, 3, 14.7),
        ] {
            let found = makespan(spec, collective, size, chunks);
            assert!(found <= bar, "{spec} {collective} {size} C={chunks}: {found} µs, not {bar}");
        }
    }

    #[test]
    fn a_clique_takes_one_step_and_a_small_message_is_merged() {
        assert_eq!(makespan("clique:6,alpha=1us,bandwidth=1GBps", Collective::AllToAll, 6_000, 1), 2.0);
        // Two chunks over one link: one message of 2 KB, not two of 1 KB.
        assert_eq!(makespan("line:2,alpha=1us,bandwidth=1GBps", Collective::AllGather, 4_000, 2), 3.0);
    }

    /// The schedule for an AllToAll between two NDv2 machines under `constraints`.
    fn exchange(constraints: &Arc<crate::problem::Constraints>, threads: usize) -> Schedule {
        let topology = Arc::new(resolve("ndv2x2").expect("a known machine"));
        let request = Request::new(Collective::AllToAll, 16, 1 << 24).with_chunks(2);
        let demand = Arc::new(Demand::new(request).expect("a valid request"));
        let problem = Problem { topology, demand, constraints: constraints.clone() };
        let options = SearchOptions { limits: Limits { restarts: 5, ..Limits::default() }, ..SearchOptions::default() };
        let (bound, deadline) = (Micros::ZERO, Deadline::default());
        let context = Context::among_others(&options, &deadline, bound);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a few threads");
        let mut attempts = pool.install(|| Matching.propose(&problem, &context)).expect("a connected topology");
        attempts.remove(0).schedule.expect("a schedule")
    }

    #[test]
    fn own_chunks_leave_a_machine_first_where_the_sketch_says_so() {
        let topology = Arc::new(resolve("ndv2x2").expect("a known machine"));
        let free = Arc::new(crate::problem::Constraints::none());
        let own_first =
            Arc::new(crate::problem::Constraints { own_chunks_first: Some(3), ..crate::problem::Constraints::none() });
        let violations = |schedule: &Schedule| crate::sketch::obey(schedule, &topology, &own_first).len();
        assert!(violations(&exchange(&free, 2)) > 0, "the rule would change nothing");
        let schedule = exchange(&own_first, 2);
        assert_eq!(violations(&schedule), 0);
        verify(schedule, &topology).expect("a right schedule");
    }

    #[test]
    fn threads_do_not_change_routes() {
        let free = Arc::new(crate::problem::Constraints::none());
        assert_eq!(exchange(&free, 1), exchange(&free, 3));
    }

    #[test]
    fn what_takes_long_heeds_an_interrupt_and_what_does_not_is_finished() {
        for (spec, collective, is_long) in [
            ("torus2d:24x24", Collective::AllToAll, true),
            ("torus2d:40x40", Collective::AllGather, true),
            ("torus2d:4x4", Collective::AllToAll, false),
            ("dgx2x2", Collective::AllGather, false),
        ] {
            let topology = Arc::new(resolve(spec).expect("a known topology"));
            let request = Request::new(collective, topology.rank_count(), 1 << 30);
            let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
            let (options, bound) = (SearchOptions::default(), Micros::ZERO);
            options.cancel.cancel();
            let deadline = Deadline::after(None, options.cancel.clone());
            let context = Context::among_others(&options, &deadline, bound);
            match Matching.propose(&problem, &context) {
                Err(SynthError::NothingYet) => assert!(is_long, "{spec}"),
                attempts => {
                    let attempt = attempts.expect("a connected topology").remove(0);
                    assert_eq!((attempt.schedule.is_none(), attempt.stop), (is_long, StopReason::TimeLimit), "{spec}");
                }
            }
        }
    }

    #[test]
    fn more_deliveries_than_memory_holds_are_refused() {
        let topology = Arc::new(resolve("ring:5000").expect("a family"));
        let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 5000, 1 << 30)).expect("a request"));
        let options = SearchOptions::default();
        let (deadline, bound) = (Deadline::default(), Micros::ZERO);
        let context = Context::among_others(&options, &deadline, bound);
        let refused = Matching.propose(&Problem::new(topology, demand), &context);
        assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
    }

    #[test]
    fn a_rank_alone_has_nothing_to_do() {
        assert_eq!(makespan("ring:1", Collective::AllToAll, 1_000, 1), 0.0);
    }

    #[test]
    fn what_cannot_be_reached_is_an_error() {
        let topology = Arc::new(resolve("ring:4").expect("a family"));
        let forbidden = topology.links().iter().map(|link| (link.to == Rank(2)).then_some(9)).collect();
        let constraints = Arc::new(crate::problem::Constraints { forbidden, ..crate::problem::Constraints::none() });
        let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 4, 400)).expect("a valid request"));
        let options = SearchOptions::default();
        let deadline = Deadline::default();
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let refused = Matching.propose(&Problem { topology, demand, constraints }, &context);
        assert!(matches!(refused, Err(SynthError::Infeasible { rank: Rank(2), .. })), "{refused:?}");
    }
}
