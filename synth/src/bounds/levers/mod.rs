//! What a faster machine would buy: the effect of levers on the bound and on a plan.
//!
//! The principal function is [`levers`]. A bound is the optimum of a linear program or the value of a cut. So the
//! amount by which it falls when something becomes 1 % faster is its dual price; twice the speed shows where another
//! bound takes over. The plan is replayed in the same order on the faster machine. That shows what it gains without
//! being planned again.

mod kinds;

use crate::bounds::{Certificate, bounds};
use crate::problem::{Deadline, Problem};
use kinds::{HardwareKind, Members, parts};
use schedule::{LowerBound, Schedule, Timeline, Usage, VerifiedSchedule, replay, verify};
use serde::Serialize;
use std::sync::Arc;
use topology::{LinkId, Micros, Topology, TopologyParts};

/// The speed-up for which the price is computed, and the speed-up that a lever stands for.
const MARGIN: f64 = 1.01;
const PURCHASE: f64 = 2.0;
/// The most kinds that are tried, the busiest first.
const TRIED: usize = 8;

/// A change of the machine: a faster kind of link or resource, or one more link.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Lever {
    /// The name, such as `machine*.nic*` or `one more link 0 → 9`.
    pub name: String,
    /// How many links or resources change.
    pub count: usize,
    /// For how much of the makespan the busiest of them is busy in the plan, from 0 to 1.
    pub utilisation: f64,
    /// By how much the bound falls per per cent of speed (its dual price); absent if the lever does not change a speed.
    #[serde(rename = "price_us_per_percent", skip_serializing_if = "Option::is_none")]
    pub price: Option<Micros>,
    /// The bound for any chunking, with all of them twice as fast, or with one more.
    #[serde(rename = "bound_us")]
    pub bound: Micros,
    /// The makespan of this plan's order on that machine; absent if the order is no valid plan there, or does not use
    /// the new link.
    #[serde(rename = "makespan_us", skip_serializing_if = "Option::is_none")]
    pub makespan: Option<Micros>,
}

/// Which bound binds, and which levers would help.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Leverage {
    /// The bound of the machine as it is, for any chunking.
    #[serde(rename = "bound_us")]
    pub bound: Micros,
    /// The name of that bound.
    pub binding: String,
    /// Why that bound holds.
    pub certificate: Option<Certificate>,
    /// The busiest kinds first, then one more link.
    pub levers: Vec<Lever>,
    /// Whether all levers were tried; `false` if the deadline passed before.
    pub is_complete: bool,
}

/// What each kind of link and resource is worth to `plan`, which solves `problem`, and to any plan.
pub fn levers(problem: &Problem, plan: &VerifiedSchedule, deadline: &Deadline) -> Leverage {
    let present = bounds(problem, deadline);
    let LowerBound { value: bound, name: binding } = present.best_at_any_chunking();
    let certificate = present.list.iter().find(|it| it.name == binding && it.value == bound);
    let certificate = certificate.map(|it| it.certificate.clone());
    let trial = LeverTrial { problem, plan: plan.schedule(), bound, deadline };
    let (links, resources) = Timeline::of(plan).usage();
    let mut kinds: Vec<(f64, HardwareKind)> = HardwareKind::all(&problem.topology)
        .into_iter()
        .map(|kind| (utilisation(&kind, &links, &resources), kind))
        .collect();
    kinds.sort_by(|a, b| b.0.total_cmp(&a.0));
    kinds.truncate(TRIED);
    let (mut levers, mut is_complete) = (Vec::new(), true);
    for (utilisation, kind) in &kinds {
        let lever = trial.faster(kind, *utilisation);
        // A bound that the deadline cut short cannot be compared.
        if deadline.has_passed() {
            is_complete = false;
            break;
        }
        levers.extend(lever);
    }
    if is_complete && let Some(link) = wanted(&problem.topology, certificate.as_ref(), &links) {
        let lever = trial.one_more(link, links[link.index()].utilisation);
        is_complete = !deadline.has_passed();
        levers.extend(lever.filter(|_| is_complete));
    }
    Leverage { bound, binding, certificate, levers, is_complete }
}

fn utilisation(kind: &HardwareKind, links: &[Usage], resources: &[Usage]) -> f64 {
    let most = |usages: &mut dyn Iterator<Item = f64>| usages.fold(0.0, f64::max);
    match &kind.members {
        Members::Links(ids) => most(&mut ids.iter().map(|id| links[id.index()].utilisation)),
        Members::Resources(ids) => most(&mut ids.iter().map(|id| resources[id.index()].utilisation)),
    }
}

/// The busiest link that leaves the set of the cut; without a cut, the busiest of all links.
fn wanted(topology: &Topology, certificate: Option<&Certificate>, links: &[Usage]) -> Option<LinkId> {
    let leaves = |id: &LinkId| match certificate {
        Some(Certificate::Cut { ranks, .. }) => {
            let has = |rank| ranks.binary_search(&rank).is_ok();
            has(topology.link(*id).from) && !has(topology.link(*id).to)
        }
        _ => true,
    };
    let candidates = topology.link_ids().filter(leaves);
    candidates.reduce(|best, next| if links[next.index()].busy > links[best.index()].busy { next } else { best })
}

/// Evaluates changed machines.
struct LeverTrial<'a> {
    problem: &'a Problem,
    plan: &'a Schedule,
    bound: Micros,
    deadline: &'a Deadline,
}

impl LeverTrial<'_> {
    fn faster(&self, kind: &HardwareKind, utilisation: f64) -> Option<Lever> {
        let topology = &self.problem.topology;
        let margin = self.problem_on(kind.faster(topology, MARGIN))?;
        let purchase = self.problem_on(kind.faster(topology, PURCHASE))?;
        let price = self.bound - bounds(&margin, self.deadline).best_at_any_chunking().value;
        Some(Lever {
            name: kind.name.clone(),
            count: kind.members.len(),
            utilisation,
            price: Some(price.max(Micros::ZERO)),
            bound: bounds(&purchase, self.deadline).best_at_any_chunking().value.min(self.bound),
            makespan: self.played_on(&purchase),
        })
    }

    /// Adds a link beside `link`, with its own ports.
    fn one_more(&self, link: LinkId, utilisation: f64) -> Option<Lever> {
        let mut parts = parts(&self.problem.topology);
        let twin = topology::Link { resources: topology::ResourceIds::default(), ..parts.links[link.index()].clone() };
        let name = format!("one more link {} → {}", twin.from, twin.to);
        parts.links.push(twin);
        let richer = self.problem_on(parts)?;
        let bound = bounds(&richer, self.deadline).best_at_any_chunking().value.min(self.bound);
        Some(Lever { name, count: 1, utilisation, price: None, bound, makespan: None })
    }

    fn problem_on(&self, parts: TopologyParts) -> Option<Problem> {
        let topology = Arc::new(Topology::new(parts).ok()?);
        Some(Problem { topology, ..self.problem.clone() })
    }

    /// The makespan of the plan's order on the changed machine, if that is a valid plan.
    fn played_on(&self, problem: &Problem) -> Option<Micros> {
        let messages: Vec<schedule::Message> = self.plan.transfers.iter().map(schedule::Message::from).collect();
        let transfers = replay(&problem.demand, &problem.topology, &messages).ok()?;
        let played = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "again");
        Some(verify(played, &problem.topology).ok()?.schedule().makespan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::synthesize;
    use crate::problem::SearchOptions;
    use schedule::{Collective, Demand, Request};

    fn leverage(spec: &str, collective: Collective, size: u64) -> (Leverage, f64) {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(1);
        let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
        let options =
            SearchOptions { strategy: Some(crate::problem::StrategyKind::Classic), ..SearchOptions::default() };
        let found = synthesize(std::slice::from_ref(&problem), &options, &|_| {}).expect("a schedule");
        let makespan = found.report.makespan_us;
        (levers(&problem, &found.schedule, &Deadline::default()), makespan)
    }

    #[test]
    fn between_two_machines_only_the_network_is_worth_anything() {
        // 8 GB cross one link of 12.5 GB/s in each direction: 1 % more speed saves 1 − 1/1.01 of 40 ms.
        let (found, makespan) = leverage("ndv2x2", Collective::AllGather, 1_000_000_000);
        assert_eq!(found.binding, "cut");
        let network = found.levers.iter().find(|it| it.name.contains("between machines")).expect("the network");
        let price = network.price.expect("a price").0;
        assert!((price - 40_000.0 * (1.0 - 1.0 / 1.01)).abs() < 1.0, "{price}");
        assert!((network.bound.0 - 20_001.3).abs() < 1.0, "{:?}", network);
        assert!(network.makespan.is_some_and(|it| it.0 < makespan * 0.6), "{network:?}");
        for other in found.levers.iter().filter(|it| it.name.contains("within")) {
            assert_eq!(other.price.expect("a price"), Micros::ZERO, "{other:?}");
        }
        // One direction gets a second link; the other direction still takes as long.
        let more = found.levers.last().expect("one more link");
        assert!(more.name.starts_with("one more link") && (more.bound.0 - found.bound.0).abs() < 1e-6, "{more:?}");
    }

    #[test]
    fn a_shared_port_is_named_as_what_binds() {
        let (found, _) = leverage("switch:5,alpha=1us,bandwidth=10GBps", Collective::AllGather, 5_000_000);
        let ports = &found.levers[0];
        assert_eq!(ports.count, 10, "{ports:?}");
        assert!(ports.price.is_some_and(|price| price.0 > 3.0), "{ports:?}");
        assert!(found.is_complete);
    }

    #[test]
    fn a_deadline_that_has_passed_leaves_levers_untried() {
        let topology = Arc::new(topology::resolve("ring:4").expect("a ring"));
        let demand = Demand::new(Request::new(Collective::AllGather, 4, 4096)).expect("a request");
        let problem = Problem::new(topology, Arc::new(demand));
        let found = synthesize(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {}).expect("a schedule");
        let cancel = crate::problem::Cancel::default();
        cancel.cancel();
        let found = levers(&problem, &found.schedule, &Deadline::after(None, cancel));
        assert!(!found.is_complete && found.levers.is_empty());
    }
}
