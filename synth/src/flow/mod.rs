//! `flow`: routes first, for demands in which every chunk has one destination (AllToAll and its kin).
//!
//! The principal type is [`Flow`]. Copies cannot help here, so a chunk is a path, and how busy links and resources are
//! decides. [`balance`] finds routes that keep the busiest as little busy as possible, for one chunk of each orbit under the
//! symmetries of machine and demand ([`quotient`]); then several orders along them are played, from one chunk a message,
//! the longest way first, to one message per link and round ([`rounds`]), and the fastest stands.

mod balance;
mod quotient;
mod rounds;

use crate::matching::Mirror;
use crate::matching::queues::{Priorities, order};
use crate::reach::check_reachable;
use crate::{Attempt, Context, Problem, StopReason, Strategy, SynthError};
use balance::{Balance, Effort, Taste};
use quotient::Quotient;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rounds::{Aligned, rounds};
use schedule::{Message, Schedule, Transfer, makespan, replay};
use topology::{Latency, LinkId, Micros};

/// The strategy `flow`.
#[derive(Clone, Copy, Debug)]
pub struct Flow;

const NAME: &str = "flow";
/// Looks at links and ways while routes are sought: a second or two.
const WORK: u64 = 60_000_000;
/// What a microsecond on the way weighs beside one of the busiest load, where bytes decide and where α does.
const DETOURS: [f64; 2] = [1e-3, 1e-1];
/// The most chunks that get a route each.
const MOST_CHUNKS: usize = 1 << 21;
/// More chunks than these only travel together, hop by hop.
const MOST_ALONE: usize = 500_000;
/// The most hops that are put in order one by one.
const MOST_MESSAGES: usize = 4_000_000;
/// The most hops of chunks that are written down: two gigabytes.
const MOST_HOPS: usize = 40_000_000;
/// How many hops may be put in order for each way of merging, one order after the other, and the most orders.
const ORDERS: usize = 200_000;
const MOST_ORDERS: usize = 16;
/// Head starts that decide between equally long ways, in messages on the slowest link.
const TIES: f64 = 1e-3;
/// Two makespans this close (relative) are equal.
const EQUAL: f64 = 1e-9;

impl Strategy for Flow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        let refused = |why: String| SynthError::NotApplicable { strategy: NAME, why };
        let several = || refused("some chunk has several destinations".to_owned());
        if !is_unicast(problem) {
            return Err(several());
        }
        let chunks = problem.demand.chunks().len();
        if chunks > MOST_CHUNKS {
            return Err(refused(format!("{chunks} chunks are more than the {MOST_CHUNKS} it writes routes for")));
        }
        check_reachable(problem)?;
        let mirror = Mirror::all(problem).into_iter().next().unwrap_or_else(|| Mirror::plain(&problem.topology));
        let quotient = Quotient::new(problem, mirror).ok_or_else(several)?;
        let largest_alpha = problem.topology.links().iter().map(|link| link.alpha.0).fold(0.0, f64::max);
        let mut search = Search { problem, context, best: None, peaks: Vec::new() };
        let mut random = Pcg64Mcg::seed_from_u64(context.options.seed);
        for taste in tastes(problem) {
            if search.best.is_some() && context.deadline.has_passed() || search.is_good_enough() {
                break;
            }
            let mut balance = Balance::new(&quotient, taste);
            let effort = Effort { work: WORK, floor: context.bound.0 - largest_alpha };
            if !balance.play(effort, &mut random, context.deadline) {
                // Not everybody has a way yet.
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
        Ok(vec![search.conclude(&quotient)])
    }
}

/// Whether every chunk has at most one destination and nothing is summed.
fn is_unicast(problem: &Problem) -> bool {
    problem.demand.chunks().iter().all(|chunk| {
        let wanted = chunk.wanted_by.iter().filter(|&&rank| !chunk.holders.has(rank)).count();
        wanted <= 1 && !(chunk.combine && chunk.holders.len() > 1)
    })
}

/// What routes are sought for: chunks that are messages of their own, and where α occupies, chunks that share messages,
/// large ones and small ones.
fn tastes(problem: &Problem) -> Vec<Taste> {
    if problem.demand.chunks().len() > MOST_ALONE {
        return vec![Taste { alpha: 0.0, detour: DETOURS[0], lockstep: true }];
    }
    let mut tastes = vec![Taste { alpha: 1.0, detour: DETOURS[0], lockstep: false }];
    if merging_pays(problem) {
        tastes.extend(DETOURS.map(|detour| Taste { alpha: 0.0, detour, lockstep: true }));
    }
    tastes
}

/// Where α is a pure delay, or there is none, a merged message only arrives later.
fn merging_pays(problem: &Problem) -> bool {
    let links = problem.topology.links().iter();
    links.into_iter().any(|link| link.latency == Latency::Occupies && link.alpha > Micros::ZERO)
}

/// The best plan so far.
struct Search<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    best: Option<Plan>,
    /// For how long each set of routes keeps the busiest busy, α not counted where messages are shared.
    peaks: Vec<f64>,
}

struct Plan {
    transfers: Vec<Transfer>,
    makespan: Micros,
    order: &'static str,
}

impl Search<'_> {
    fn is_good_enough(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.makespan.0 <= self.context.goal().0 * (1.0 + EQUAL))
    }

    /// Plays every order along `routes` that there is time for.
    fn try_orders(&mut self, quotient: &Quotient<'_>, routes: &Vec<Vec<LinkId>>, hops: usize) {
        let (problem, links) = (self.problem, self.problem.topology.links().len());
        let merges: &[usize] = if merging_pays(problem) { &[1, usize::MAX, 4] } else { &[1] };
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
                if let Some(order) = order(problem, routes, &priorities, self.context.deadline) {
                    self.keep(&order.messages, if merge == 1 { "flow/queues" } else { "flow/merged" });
                }
            }
        }
        if self.best.is_none() {
            self.keep(&rounds(routes, links, Aligned::First), "flow/rounds");
        }
    }

    fn is_over(&self) -> bool {
        self.is_good_enough() || self.best.is_some() && self.context.deadline.has_passed()
    }

    fn keep(&mut self, messages: &[Message], order: &'static str) {
        let Ok(transfers) = replay(&self.problem.demand, &self.problem.topology, messages) else { return };
        let makespan = makespan(&transfers);
        if self.best.as_ref().is_none_or(|best| makespan.0 < best.makespan.0 * (1.0 - EQUAL)) {
            self.best = Some(Plan { transfers, makespan, order });
        }
    }

    fn conclude(self, quotient: &Quotient<'_>) -> Attempt {
        let stop = match () {
            () if self.is_good_enough() => StopReason::Optimal,
            () if self.context.deadline.has_passed() => StopReason::TimeLimit,
            () => StopReason::Exhausted,
        };
        let images = quotient.mirror.order();
        let symmetric = if images > 1 { format!("; {images} images of each") } else { String::new() };
        let note = Some(format!("routes keep the busiest busy for {:.1?} µs{symmetric}", self.peaks));
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
    use crate::{Deadline, Options, bounds};
    use rand_pcg::rand_core::Rng;
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Link, MicrosPerByte, Rank, Topology, TopologyParts, resolve};

    /// The verified makespan of what the strategy proposes, and the bound.
    fn planned(problem: &Problem) -> (f64, f64) {
        let (options, deadline, bound) = (Options::default(), Deadline::default(), bounds(problem).best().value);
        let context = Context { options: &options, deadline: &deadline, incumbent: None, bound, progress: &|_| {} };
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
        // Their own links are half of those that leave them: the others lead around.
        let topology = Arc::new(resolve("torus2d:4x4").expect("a family"));
        let mut request = Request::new(Collective::AllToAll, 16, 1_000_000_000).with_chunks(4);
        request.members = [0, 1, 4, 5].map(Rank).into_iter().collect();
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a valid request")));
        let (makespan, bound) = planned(&problem);
        // Large chunks do not pipeline over three links.
        assert!(makespan <= 2.1 * bound, "{makespan} of {bound}");
        // Alone, the four have eight links.
        let alone = all_to_all(Arc::new(resolve("mesh2d:2x2").expect("a family")), 1_000_000_000);
        assert!(makespan < 0.8 * planned(&alone).0);
    }

    /// A ring, so that everybody is reached, and chords, of four bandwidths and two kinds of α.
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
            // Everybody sends much to one rank, one rank sends nothing, and the others keep to their half.
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
        let options = Options::default();
        options.cancel.cancel();
        let deadline = Deadline::after(None, options.cancel.clone());
        let context =
            Context { options: &options, deadline: &deadline, incumbent: None, bound: Micros::ZERO, progress: &|_| {} };
        let attempt = Flow.propose(&problem, &context).expect("a connected topology").remove(0);
        assert_eq!(attempt.stop, StopReason::TimeLimit);
        verify(attempt.schedule.expect("one round of routes is always found"), &problem.topology).expect("right");
    }

    #[test]
    fn copies_are_refused() {
        let topology = Arc::new(resolve("ring:4").expect("a family"));
        let demand = Demand::new(Request::new(Collective::AllGather, 4, 400)).expect("a valid request");
        let (options, deadline, bound) = (Options::default(), Deadline::default(), Micros::ZERO);
        let context = Context { options: &options, deadline: &deadline, incumbent: None, bound, progress: &|_| {} };
        let refused = Flow.propose(&Problem::new(topology, Arc::new(demand)), &context);
        assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
    }
}
