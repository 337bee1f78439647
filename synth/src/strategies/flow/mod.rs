//! `flow`: routes first, for demands in which every chunk has one destination (AllToAll and similar).
//!
//! The principal type is [`Flow`]. Copies cannot help here, so a chunk is a path, and the loads of links and resources
//! decide. [`balance`] finds routes with the least busiest load, for one chunk of each orbit under the symmetries of
//! machine and demand ([`quotient`]). Then several orders along these routes are replayed, and the fastest is kept. The
//! orders range from one chunk per message, the longest way first, to one message per link and round ([`rounds`]).
//!
//! On fabrics with a link for every pair, one order needs no search ([`phases`]). Where α matters, routes through
//! relays that gather and hand out compete with these ([`staged`]).

mod balance;
mod phases;
mod quotient;
mod rounds;
mod staged;

use crate::ordering::interleaved;
use crate::ordering::queues::{Priorities, order};
use crate::problem::constraints::RuleKind;
use crate::problem::merging::merging_pays_somewhere;
use crate::problem::reach::check_reachable;
use crate::problem::tolerance::beats;
use crate::problem::{Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::{Attempt, Context, Strategy};
use crate::symmetry::Mirror;
use balance::{Balance, BalanceEffort, RouteWeights};
use quotient::Quotient;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rounds::{Aligned, rounds};
use schedule::{Message, Schedule, Transfer, makespan, replay};
use staged::MemberPaths;
use topology::quantity::show_duration;
use topology::{Bytes, LinkId, Micros};

/// The strategy `flow`.
#[derive(Clone, Copy, Debug)]
pub struct Flow;

const NAME: &str = StrategyKind::Flow.as_str();
/// Finding symmetries may take one part in this many of the time left.
const MIRROR_PART: u32 = 4;
/// The work of the search for routes, in visits of links and paths: a second or two.
const WORK: u64 = 60_000_000;
/// The cost of a microsecond on the way relative to one of the busiest load: first where bytes decide, then where α
/// does.
const DETOURS: [f64; 2] = [1e-3, 1e-1];
/// The most chunks for which routes are searched.
const MOST_CHUNKS: usize = 1 << 21;
/// Above this number, chunks only travel together, hop by hop.
const MOST_ALONE: usize = 500_000;
/// The most hops that are ordered one by one.
const MOST_MESSAGES: usize = 4_000_000;
/// The most hops of chunks in all routes, which take two gigabytes.
const MOST_HOPS: usize = 40_000_000;
/// The most hops that are ordered, all orders of one way of merging together; and the most orders.
const ORDERS: usize = 200_000;
const MOST_ORDERS: usize = 16;
/// A plan this close (relative) to the bound needs no other routes.
const CLOSE: f64 = 2e-3;
/// Links × chunks above which no routes are searched for more than one chunk per rank.
const MOST_BALANCED: usize = 4_000_000;
/// Chunks that take less than this many α on some link are worth gathering.
const DEAR: f64 = 16.0;
/// The most hops of chunks that are planned in stages, for all ways together: a second or two.
const STAGED: usize = 4_000_000;
/// The most messages that are reordered.
const MOST_REORDERED: usize = 1 << 15;
/// Head starts that decide between equally long ways, in messages on the slowest link.
const TIES: f64 = 1e-3;

impl Strategy for Flow {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Flow
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        let refused = |why: String| SynthError::NotApplicable { strategy: NAME, why };
        let several = || refused("some chunk has several destinations".to_owned());
        if !problem.demand.is_unicast() || problem.demand.has_sums() {
            return Err(several());
        }
        let chunks = problem.demand.chunks().len();
        if chunks > MOST_CHUNKS {
            return Err(refused(format!("{chunks} chunks are more than the {MOST_CHUNKS} it writes routes for")));
        }
        check_reachable(problem)?;
        let mut search = FlowSearch { problem, context, best: None, peaks: Vec::new() };
        search.try_phases();
        if search.is_close() {
            return Ok(vec![search.conclude(1)]);
        }
        let mirror = Mirror::all(problem, context.symmetries, &context.deadline.part(MIRROR_PART)).into_iter().next();
        let mirror = mirror.unwrap_or_else(|| Mirror::plain(&problem.topology));
        let quotient = Quotient::new(problem, mirror).ok_or_else(several)?;
        let largest_alpha = problem.topology.links().iter().map(|link| link.alpha.0).fold(0.0, f64::max);
        let mut random = Pcg64Mcg::seed_from_u64(context.options.seed);
        for weights in route_weights(problem) {
            if search.best.is_some() && context.deadline.has_passed() || search.is_good_enough() {
                break;
            }
            let mut balance = Balance::new(&quotient, weights);
            let effort = BalanceEffort { work: WORK, floor: context.bound.0 - largest_alpha };
            if !balance.play(effort, &mut random, context.deadline) {
                // Some chunk has no route yet.
                if search.best.is_none() {
                    return Err(SynthError::NothingYet);
                }
                break;
            }
            search.peaks.push(balance.peak());
            let hops = balance.hops();
            if hops > MOST_HOPS {
                return Err(refused(format!("{hops} hops of chunks are more than the {MOST_HOPS} it writes down")));
            }
            search.try_orders(&quotient, &balance.routes(), hops);
        }
        search.try_stages();
        Ok(vec![search.conclude(quotient.mirror.order())])
    }
}

/// The objectives for which routes are searched: chunks that are messages of their own and, where α occupies, chunks
/// that share messages, once for large and once for small ones.
fn route_weights(problem: &Problem) -> Vec<RouteWeights> {
    if problem.demand.chunks().len() > MOST_ALONE {
        return vec![RouteWeights { alpha: 0.0, detour: DETOURS[0], lockstep: true }];
    }
    let mut route_weights = vec![RouteWeights { alpha: 1.0, detour: DETOURS[0], lockstep: false }];
    if merging_pays_somewhere(&problem.topology) {
        route_weights.extend(DETOURS.map(|detour| RouteWeights { alpha: 0.0, detour, lockstep: true }));
    }
    route_weights
}

/// The state of the search, with the best plan so far.
struct FlowSearch<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    best: Option<FlowPlan>,
    /// The busiest load of each set of routes, in µs; without α where messages are shared.
    peaks: Vec<f64>,
}

struct FlowPlan {
    transfers: Vec<Transfer>,
    makespan: Micros,
    order: &'static str,
}

impl FlowSearch<'_> {
    fn is_good_enough(&self) -> bool {
        self.best.as_ref().is_some_and(|best| self.context.is_enough(best.makespan))
    }

    /// Replays as many orders along `routes` as the time permits.
    fn try_orders(&mut self, quotient: &Quotient<'_>, routes: &[Vec<LinkId>], hops: usize) {
        let (problem, links) = (self.problem, self.problem.topology.links().len());
        let merges: &[usize] = if merging_pays_somewhere(&problem.topology) { &[1, usize::MAX, 4] } else { &[1] };
        if merges.len() > 1 || hops > MOST_MESSAGES {
            for aligned in [Aligned::First, Aligned::Last] {
                let is_worth_it = aligned == Aligned::First || hops <= MOST_MESSAGES;
                if is_worth_it && !self.is_over() {
                    self.keep(&rounds(routes, links, aligned), "flow/rounds");
                }
            }
        }
        if hops > MOST_MESSAGES {
            return;
        }
        let mut random = Pcg64Mcg::seed_from_u64(self.context.options.seed);
        for _ in 0..(ORDERS / hops.max(1)).clamp(1, MOST_ORDERS) {
            for &merge in merges {
                if self.is_over() {
                    return;
                }
                let mut priorities = Priorities::new(problem, merge, &mut random);
                priorities.head_start = quotient.head_starts(priorities.slowest * TIES, &mut random);
                self.try_priorities(routes, &priorities, if merge == 1 { "flow/queues" } else { "flow/merged" });
            }
        }
        if self.best.is_none() {
            self.keep(&rounds(routes, links, Aligned::First), "flow/rounds");
        }
    }

    /// Replays direct messages in phases, where every pair has a link and links share resources.
    fn try_phases(&mut self) {
        let (topology, constraints) = (&self.problem.topology, &self.problem.constraints);
        if topology.resources().is_empty() || constraints.exceeds(&RuleKind::OF_LINKS) {
            return;
        }
        let Some(direct) = phases::direct(self.problem) else { return };
        for messages in phases::phases(self.problem, &direct) {
            if self.is_over() || self.context.deadline.has_passed_for_all() {
                break;
            }
            self.keep(&messages, "flow/phases");
        }
        self.reorder();
    }

    /// Whether no search for routes is worthwhile: the best plan is close to the bound, or there are very many chunks.
    fn is_close(&self) -> bool {
        let (links, chunks) = (self.problem.topology.links().len(), self.problem.demand.chunks().len());
        let close = |best: &FlowPlan| best.makespan.0 <= self.context.goal().0 * (1.0 + CLOSE);
        let cut = self.problem.demand.request().chunks_per_rank > 1;
        self.best.as_ref().is_some_and(|best| close(best) || cut && links * chunks > MOST_BALANCED)
    }

    fn try_priorities(&mut self, routes: &[Vec<LinkId>], priorities: &Priorities, name: &'static str) {
        let strict = self.context.deadline.clone().strict();
        let deadline = if self.best.is_some() { &strict } else { self.context.deadline };
        if let Some(order) = order(self.problem, routes, priorities, deadline) {
            self.keep(&order.messages, name);
        }
    }

    /// Replays routes in stages, where α matters and the sketch does not limit routes. Then reorders the best plan.
    fn try_stages(&mut self) {
        let Problem { topology, demand, constraints } = self.problem;
        let chunks = demand.chunks().len();
        let bytes = Bytes(demand.chunk_ids().map(|id| demand.bytes_of(id).0).sum::<f64>() / chunks.max(1) as f64);
        let matters = |link: &topology::Link| link.byte_time(bytes) < link.alpha * DEAR;
        let is_free = !constraints.exceeds(&[RuleKind::ForbiddenLinks]);
        if self.is_over()
            || !is_free
            || !merging_pays_somewhere(&self.problem.topology)
            || !topology.links().iter().any(matters)
        {
            return;
        }
        let Some(paths) = MemberPaths::new(self.problem) else { return };
        let mut left = STAGED;
        for way in staged::ways(self.problem) {
            if self.is_over() || left == 0 {
                break;
            }
            let messages = way.messages(self.problem, &paths);
            left = left.saturating_sub(messages.iter().map(|message| message.chunks.len()).sum());
            self.keep(&messages, "flow/staged");
        }
        self.reorder();
    }

    /// Replays the messages of the best plan in better orders.
    fn reorder(&mut self) {
        let Some(best) = self.best.as_ref().filter(|best| !self.is_over() && best.transfers.len() < MOST_REORDERED)
        else {
            return;
        };
        let (order, messages) = (best.order, best.transfers.iter().map(Message::from).collect::<Vec<_>>());
        if let Ok(transfers) = interleaved(self.problem, &messages, self.context.deadline) {
            self.keep_timed(transfers, order);
        }
    }

    fn is_over(&self) -> bool {
        self.is_good_enough() || self.best.is_some() && self.context.deadline.has_passed()
    }

    fn keep(&mut self, messages: &[Message], order: &'static str) {
        let Ok(transfers) = replay(&self.problem.demand, &self.problem.topology, messages) else { return };
        self.keep_timed(transfers, order);
    }

    fn keep_timed(&mut self, transfers: Vec<Transfer>, order: &'static str) {
        let makespan = makespan(&transfers);
        if self.best.as_ref().is_none_or(|best| beats(makespan, best.makespan)) {
            self.best = Some(FlowPlan { transfers, makespan, order });
        }
    }

    /// The best plan, as an attempt; its routes were found for one of every `images` chunks.
    fn conclude(self, images: usize) -> Attempt {
        let stop = match () {
            () if self.is_good_enough() => StopReason::Optimal,
            () if self.context.deadline.has_passed() => StopReason::TimeLimit,
            () => StopReason::Done,
        };
        let symmetric = if images > 1 { format!("; {images} images of each") } else { String::new() };
        let peaks: Vec<String> = self.peaks.iter().map(|&peak| show_duration(Micros(peak))).collect();
        let routes =
            format!("the busiest link or port is busy for {}, with each set of routes{symmetric}", peaks.join(", "));
        let note = (!peaks.is_empty()).then_some(routes);
        let name = self.best.as_ref().map_or(NAME, |best| best.order).to_owned();
        let demand = &self.problem.demand;
        let schedule =
            self.best.map(|best| Schedule::new(&self.problem.topology, demand.clone(), best.transfers, &name));
        Attempt { name, schedule, stop, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, SearchOptions};
    use rand_pcg::rand_core::Rng;
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Latency, Link, MicrosPerByte, Rank, Topology, TopologyParts, resolve};

    /// The verified makespan of what the strategy proposes, and the bound.
    fn planned(problem: &Problem) -> (f64, f64) {
        let (options, deadline, bound) =
            (SearchOptions::default(), Deadline::default(), bounds(problem, &Deadline::default()).best().value);
        let context = Context::among_others(&options, &deadline, bound);
        let attempt = Flow.propose(problem, &context).expect("a connected topology").remove(0);
        let schedule = attempt.schedule.expect("a schedule");
        let makespan = schedule.makespan().0;
        verify(schedule, &problem.topology).expect("a right schedule");
        assert!(makespan >= bound.0 * (1.0 - 1e-9), "{makespan} below {bound}");
        (makespan, bound.0)
    }

    fn all_to_all(topology: Arc<Topology>, size: u64) -> Problem {
        let request = Request::new(Collective::AllToAll, topology.rank_count(), size);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn large_messages_come_close_to_the_bound() {
        for (spec, most) in [
            ("ndv2x2", 1.005),
            ("dgx2x2", 1.005),
            ("dgx-a100x2", 1.005),
            ("mi250x2", 1.005),
            ("h800x8", 1.005),
            ("torus2d:8x8", 1.005),
            ("torus2d:7x5", 1.02),
            ("switch:11", 1.005),
            ("dragonfly:3x3x2", 1.02),
        ] {
            let topology = Arc::new(resolve(spec).expect("a known topology"));
            let (makespan, bound) = planned(&all_to_all(topology, 1_000_000_000));
            assert!(makespan <= most * bound, "{spec}: {makespan} of {bound}");
        }
    }

    #[test]
    fn small_messages_share_an_alpha() {
        for (spec, most) in [("torus2d:8x8", 11.0), ("clique:8", 1.1), ("ring:9,direction=both", 4.1)] {
            let topology = Arc::new(resolve(spec).expect("a known topology"));
            let alpha = topology.links()[0].alpha.0;
            let (makespan, _) = planned(&all_to_all(topology, 64));
            assert!(makespan <= most * alpha, "{spec}: {} times α", makespan / alpha);
        }
    }

    #[test]
    fn others_relay_for_a_group() {
        // The members' own links are half of the links that leave them; the other half leads through other ranks.
        let topology = Arc::new(resolve("torus2d:4x4").expect("a family"));
        let mut request = Request::new(Collective::AllToAll, 16, 1_000_000_000).with_chunks(4);
        request.members = [0, 1, 4, 5].map(Rank).into_iter().collect();
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a valid request")));
        let (makespan, bound) = planned(&problem);
        // Large chunks do not pipeline well over three links.
        assert!(makespan <= 2.1 * bound, "{makespan} of {bound}");
        // Alone, the four ranks have eight links.
        let alone = all_to_all(Arc::new(resolve("mesh2d:2x2").expect("a family")), 1_000_000_000);
        assert!(makespan < 0.8 * planned(&alone).0);
    }

    /// A ring, so that every rank can be reached, and chords, with four bandwidths and two kinds of α.
    fn random_machine(seed: u64) -> Topology {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |limit: u32| random.next_u32() % limit;
        let ranks = 5 + below(12);
        let ring = (0..ranks).map(|rank| (rank, (rank + 1) % ranks));
        let chords = (0..3 * ranks).map(|_| (below(ranks), 1 + below(ranks - 1)));
        let chords: Vec<(u32, u32)> = chords.map(|(from, by)| (from, (from + by) % ranks)).collect();
        let links = ring.chain(chords).map(|(from, to)| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(0.5),
            beta: MicrosPerByte([1e-5, 2e-5, 4e-5, 1e-4][below(4) as usize]),
            latency: [Latency::Occupies, Latency::Pipelines][below(2) as usize],
            resources: [].into(),
        });
        let parts = TopologyParts { ranks: ranks as usize, links: links.collect(), ..TopologyParts::default() };
        Topology::new(parts).expect("a valid topology")
    }

    #[test]
    fn random_machines_and_byte_matrices_stay_near_the_bound() {
        for seed in 0..24 {
            let topology = Arc::new(random_machine(seed));
            let ranks = topology.rank_count();
            let (makespan, bound) = planned(&all_to_all(topology.clone(), 100_000_000));
            assert!(makespan <= 2.0 * bound, "machine {seed}: {makespan} of {bound}");
            // All ranks send much to rank 0, rank 1 sends nothing, and the others send within their half.
            let bytes = |from: usize, to: usize| match (from, to) {
                _ if from == to || from == 1 => 0,
                (_, 0) => 40_000_000,
                _ if (from < ranks / 2) == (to < ranks / 2) => 8_000_000,
                _ => 0,
            };
            let matrix: Vec<Vec<u64>> = (0..ranks).map(|from| (0..ranks).map(|to| bytes(from, to)).collect()).collect();
            let request = Request::new(Collective::AllToAllV, ranks, matrix.iter().flatten().sum()).with_chunks(4);
            let demand = Demand::from_matrix(request, &matrix).expect("a valid matrix");
            let (makespan, bound) = planned(&Problem::new(topology, Arc::new(demand)));
            assert!(makespan <= 2.0 * bound, "machine {seed}, uneven: {makespan} of {bound}");
        }
    }

    #[test]
    fn whoever_interrupts_gets_what_there_is() {
        let topology = Arc::new(resolve("torus2d:12x12").expect("a family"));
        let problem = all_to_all(topology, 1 << 30);
        let options = SearchOptions::default();
        options.cancel.cancel();
        let deadline = Deadline::after(None, options.cancel.clone());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempt = Flow.propose(&problem, &context).expect("a connected topology").remove(0);
        assert_eq!(attempt.stop, StopReason::TimeLimit);
        verify(attempt.schedule.expect("one round of routes is always found"), &problem.topology).expect("right");
    }

    #[test]
    fn copies_are_refused() {
        let topology = Arc::new(resolve("ring:4").expect("a family"));
        let demand = Demand::new(Request::new(Collective::AllGather, 4, 400)).expect("a valid request");
        let (options, deadline, bound) = (SearchOptions::default(), Deadline::default(), Micros::ZERO);
        let context = Context::among_others(&options, &deadline, bound);
        let refused = Flow.propose(&Problem::new(topology, Arc::new(demand)), &context);
        assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
    }
}
