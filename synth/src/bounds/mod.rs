//! Lower bounds: times that no schedule can beat, each with a certificate that another program can check.
//!
//! The principal function is [`bounds`]. Bounds allow merged messages (n chunks on a link take α + n·β·b), so no valid
//! schedule lies below them. The bound that forbids merging has a scope of its own and never becomes the bound of a
//! schedule. Links that the sketch forbids do not count. Two bounds are never added.
//!
//! All arguments but one ignore when groups start: more freedom makes no schedule slower. That one looks only at what
//! starts at some time or later (`starts`).
//!
//! Sums that one rank wants are bounded as spreading on the reversed topology, which is also how they are planned. For
//! other sums (AllReduce) each argument is made directly: twice the bound of an AllGather would be wrong.

mod capacity;
mod certificate;
mod classes;
mod crossing;
mod cut;
mod degree;
mod feeding;
mod flow;
mod horizon;
mod latency;
mod leaving;
mod levers;
pub(crate) mod multicommodity;
mod prices;
mod rounds;
mod starts;
mod sweep;
mod volume;

use crate::problem::reversed::reversed_spreading;
use crate::problem::{Deadline, Problem};
pub(crate) use capacity::capacity;
pub use certificate::{Certificate, LinkGroup, Tail, WholeChunks};
use classes::RankClasses;
use crossing::{CrossingEffort, crossing};
use degree::{Side, degree};
pub use horizon::{LinkPeriods, ModelRow, Multiplier, Proof, ResourcePeriods};
pub use levers::{Lever, Leverage, levers};
use schedule::LowerBound;
use serde::Serialize;
pub(crate) use starts::counted_from;
use topology::{Micros, Topology};

/// On a machine with more links, a bound takes more than a tenth of a second.
const MANY_LINKS: usize = 1 << 18;

/// With more links, only the arguments that need no table of all links are made: distance, degree and volume.
const MOST_LINKS: usize = 1 << 23;

/// The schedules for which a bound holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All schedules, however the data is cut.
    AnyChunking,
    /// Schedules with the chunks of this demand, in messages of any number of chunks.
    ThisChunking,
    /// Schedules with the chunks of this demand, each in its own message.
    OneChunkPerMessage,
}

/// A proven lower bound on the makespan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bound {
    /// The argument: `latency`, `ingress`, `egress`, `cut`, `cut_tail`, `rounds`, `crossing`, `volume`, `flow`,
    /// `horizon`.
    pub name: &'static str,
    /// The schedules for which it holds.
    pub scope: Scope,
    /// No such schedule has a smaller makespan.
    #[serde(rename = "value_us")]
    pub value: Micros,
    /// The evidence.
    pub certificate: Certificate,
}

/// All bounds of one problem.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Bounds {
    /// In the order in which they were computed.
    pub list: Vec<Bound>,
}

impl Bounds {
    /// The bound that binds: the largest that holds for every schedule of this demand, merged messages included.
    pub fn binding(&self) -> Option<&Bound> {
        self.largest(|scope| scope != Scope::OneChunkPerMessage)
    }

    /// Adds those of `more`, bounds of a part of the same demand, that are higher than all of their scope here.
    pub(crate) fn add_higher(&mut self, more: impl IntoIterator<Item = Bound>) {
        let known = (self.best().value, self.best_at_any_chunking().value);
        let is_higher = |bound: &Bound| match bound.scope {
            Scope::AnyChunking => bound.value > known.1,
            Scope::ThisChunking => bound.value > known.0,
            Scope::OneChunkPerMessage => false,
        };
        self.list.extend(more.into_iter().filter(is_higher));
    }

    fn largest(&self, counts: impl Fn(Scope) -> bool) -> Option<&Bound> {
        let valid = self.list.iter().filter(|bound| counts(bound.scope));
        valid.fold(None, |best: Option<&Bound>, bound| match best {
            Some(best) if best.value >= bound.value => Some(best),
            _ => Some(bound),
        })
    }

    /// The value and name of [`Self::binding`], as a schedule carries them; zero where nothing has to move.
    pub fn best(&self) -> LowerBound {
        carried(self.binding())
    }

    /// The largest bound that holds for any chunking. A schedule carries it where the chunk count was searched.
    pub fn best_at_any_chunking(&self) -> LowerBound {
        carried(self.largest(|scope| scope == Scope::AnyChunking))
    }
}

fn carried(bound: Option<&Bound>) -> LowerBound {
    match bound {
        Some(bound) => LowerBound { value: bound.value, name: bound.name.to_owned() },
        None => LowerBound { value: Micros::ZERO, name: "latency".to_owned() },
    }
}

/// Every lower bound that applies to `problem`, each as strong as it gets before `deadline`. The bound by distance is
/// always included; others may be missing.
pub fn bounds(problem: &Problem, deadline: &Deadline) -> Bounds {
    let mut all = either_way(problem, |problem| direct(problem, deadline));
    all.add_higher(starts::later(problem, deadline));
    all
}

/// The bounds at another chunk count than that of `known`, where time is short. Bounds for any chunking are copied from
/// `known`; of the others, only those that take no time are computed.
pub(crate) fn bounds_like(known: &Bounds, problem: &Problem, deadline: &Deadline) -> Bounds {
    let Bounds { list } = either_way(problem, |problem| chunked(problem, deadline));
    let anew = list.into_iter().filter(|bound| bound.scope != Scope::AnyChunking);
    let known = known.list.iter().filter(|bound| bound.scope == Scope::AnyChunking);
    Bounds { list: known.cloned().chain(anew).collect() }
}

/// A stronger bound for small machines than those `known`, as far as a second suffices.
pub fn thorough_bounds(problem: &Problem, known: &Bounds, deadline: &Deadline) -> Vec<Bound> {
    let least = known.best().value;
    if problem.topology.links().len() > crossing::MOST_LINKS {
        return Vec::new();
    }
    let of = |problem: &Problem| {
        crossing(problem, &RankClasses::new(problem), CrossingEffort::THOROUGH, least, deadline).into_iter().collect()
    };
    either_way(problem, of).list
}

/// The bounds that `of` finds for a problem. For sums that one rank wants, those of the equivalent spreading on the
/// reversed topology.
fn either_way(problem: &Problem, of: impl Fn(&Problem) -> Vec<Bound>) -> Bounds {
    let Some(spreading) = reversed_spreading(problem) else { return Bounds { list: of(problem) } };
    let mut list = of(&spreading);
    list.iter_mut().for_each(|bound| turn_around(bound, &problem.topology));
    Bounds { list }
}

fn direct(problem: &Problem, deadline: &Deadline) -> Vec<Bound> {
    let mut list = latency::latency(problem, deadline);
    // Without copies, the bound by prices is the strongest and comes first. With copies, cuts are stronger and come
    // first.
    let copied = problem.demand.chunks().iter().any(|chunk| chunk.wanted_by.len() > 1);
    let mut prices = if copied { None } else { prices::flow(problem, &deadline.part(2)) };
    if !deadline.has_passed() {
        let classes = RankClasses::new(problem);
        list.extend(degree(problem, &classes, Side::Ingress));
        list.extend(degree(problem, &classes, Side::Egress));
        if !is_late(problem, deadline) && !is_huge(problem) {
            list.extend(cut::cut(problem, &classes, deadline));
            list.extend(rounds::rounds(problem, &classes, deadline));
            list.extend(crossing(problem, &classes, CrossingEffort::QUICK, Micros::ZERO, deadline));
        }
    }
    if !is_late(problem, deadline) {
        list.extend(volume::volume(problem, deadline));
    }
    if copied && !deadline.has_passed() && !is_huge(problem) {
        prices = prices::flow(problem, deadline);
    }
    list.extend(prices);
    list
}

/// Whether a machine has so many links that tables and flows over all of them would take gigabytes.
fn is_huge(problem: &Problem) -> bool {
    problem.topology.links().len() > MOST_LINKS
}

/// Whether the time is up on a machine so large that one more bound takes long.
fn is_late(problem: &Problem, deadline: &Deadline) -> bool {
    problem.topology.links().len() > MANY_LINKS && deadline.has_passed()
}

/// The bounds that depend on chunks and take little time.
fn chunked(problem: &Problem, deadline: &Deadline) -> Vec<Bound> {
    let mut list = latency::latency(problem, deadline);
    if !deadline.has_passed() {
        let classes = RankClasses::new(problem);
        list.extend(degree(problem, &classes, Side::Ingress));
        list.extend(degree(problem, &classes, Side::Egress));
    }
    list
}

/// Rewrites a bound on the reversed topology in terms of the topology itself.
fn turn_around(bound: &mut Bound, topology: &Topology) {
    bound.name = match bound.name {
        "ingress" => "egress",
        "egress" => "ingress",
        name => name,
    };
    match &mut bound.certificate {
        Certificate::Cut { ranks, .. } => {
            let outside = topology.ranks().filter(|rank| ranks.binary_search(rank).is_err());
            *ranks = outside.collect();
        }
        Certificate::Path { links } => links.reverse(),
        Certificate::Rounds { backwards, .. } => *backwards = !*backwards,
        Certificate::Volume { .. }
        | Certificate::Prices { .. }
        | Certificate::Horizon { .. }
        | Certificate::Crossing { .. }
        | Certificate::Later { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use schedule::{Collective, Demand, Request};
    use std::fmt::Write;
    use std::sync::Arc;
    use std::time::Duration;
    use topology::resolve;

    fn of(spec: &str, collective: Collective, size: u64, chunks: u32) -> Bounds {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(chunks);
        bounds(&Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request"))), &Deadline::default())
    }

    fn check(spec: &str, collective: Collective, size: u64, chunks: u32, expected: Expect) {
        let mut text = String::new();
        for Bound { name, scope, value, .. } in of(spec, collective, size, chunks).list {
            writeln!(text, "{name} {scope:?} {:.4}", value.0).expect("strings take any text");
        }
        expected.assert_eq(&text);
    }

    #[test]
    fn published_machines() {
        let gather = Collective::AllGather;
        check(
            "dgx1",
            gather,
            1_000_000_000,
            1,
            expect![[r#"
                latency AnyChunking 1.4000
                latency ThisChunking 7501.4000
                ingress AnyChunking 5834.0333
                ingress ThisChunking 7500.7000
                ingress OneChunkPerMessage 7502.1000
                egress AnyChunking 834.0333
                egress ThisChunking 2500.7000
                egress OneChunkPerMessage 2500.7000
                cut AnyChunking 5834.0333
                cut_tail ThisChunking 5834.0333
                rounds AnyChunking 1.4000
                crossing ThisChunking 7502.1000
                volume AnyChunking 5834.0333
                flow AnyChunking 1875.7000
            "#]],
        );
        check(
            "ndv2x2",
            gather,
            1_000_000_000,
            1,
            expect![[r#"
                latency AnyChunking 4.1000
                latency ThisChunking 12504.1000
                ingress AnyChunking 6250.7000
                ingress ThisChunking 7500.7000
                ingress OneChunkPerMessage 7500.7000
                egress AnyChunking 417.3667
                egress ThisChunking 1250.7000
                egress OneChunkPerMessage 1250.7000
                cut AnyChunking 40001.3000
                cut_tail ThisChunking 43752.7000
                crossing ThisChunking 43752.7000
                volume AnyChunking 40001.3000
                flow AnyChunking 2652.2152
            "#]],
        );
        check(
            "ndv2x2",
            gather,
            1_000_000_000,
            8,
            expect![[r#"
                latency AnyChunking 4.1000
                latency ThisChunking 1566.6000
                ingress AnyChunking 6250.7000
                ingress ThisChunking 6250.7000
                ingress OneChunkPerMessage 6250.7000
                egress AnyChunking 417.3667
                egress ThisChunking 469.4500
                egress OneChunkPerMessage 469.4500
                cut AnyChunking 40001.3000
                cut_tail ThisChunking 40471.4500
                crossing ThisChunking 40471.4500
                volume AnyChunking 40001.3000
                flow AnyChunking 2652.2152
            "#]],
        );
        check(
            "ndv2x2",
            Collective::AllToAll,
            1_000_000_000,
            1,
            expect![[r#"
                latency AnyChunking 4.1000
                latency ThisChunking 12504.1000
                ingress AnyChunking 6250.7000
                ingress ThisChunking 7500.7000
                ingress OneChunkPerMessage 7500.7000
                egress AnyChunking 6250.7000
                egress ThisChunking 7500.7000
                egress OneChunkPerMessage 7500.7000
                cut AnyChunking 320001.3000
                cut_tail ThisChunking 320001.3000
                crossing ThisChunking 320001.3000
                volume AnyChunking 320001.3000
                flow AnyChunking 320001.3000
            "#]],
        );
        check(
            "dgx2x2",
            gather,
            1_000_000_000,
            1,
            expect![[r#"
                latency AnyChunking 4.0000
                latency ThisChunking 3004.0000
                ingress AnyChunking 7750.7000
                ingress ThisChunking 7750.7000
                ingress OneChunkPerMessage 7750.7000
                egress AnyChunking 250.7000
                egress ThisChunking 250.7000
                egress OneChunkPerMessage 250.7000
                cut AnyChunking 7750.7000
                cut_tail ThisChunking 7750.7000
                crossing ThisChunking 4194.3040
                volume AnyChunking 7381.6524
                flow AnyChunking 1300.7000
            "#]],
        );
    }

    #[test]
    fn steps_on_tori() {
        for (spec, ranks, steps) in [("4x4", 16, 4.0), ("5x5", 25, 6.0), ("8x8", 64, 16.0)] {
            let spec = format!("torus2d:{spec},alpha=0.5us,bandwidth=50GiBps");
            let bounds = of(&spec, Collective::AllGather, ranks << 20, 1);
            let single = bounds.list.iter().find(|b| b.scope == Scope::OneChunkPerMessage && b.name == "ingress");
            let value = single.expect("an ingress bound").value.0;
            assert!((value / 20.03125 - steps).abs() < 1e-9, "{spec}: {value}");
        }
    }

    #[test]
    fn sums_are_bounded_where_they_flow() {
        check(
            "line:3,alpha=1us,bandwidth=1GBps",
            Collective::ReduceScatter,
            3_000,
            1,
            expect![[r#"
                latency AnyChunking 2.0000
                latency ThisChunking 4.0000
                egress AnyChunking 3.0000
                egress ThisChunking 3.0000
                egress OneChunkPerMessage 4.0000
                ingress AnyChunking 2.0000
                ingress ThisChunking 2.0000
                ingress OneChunkPerMessage 2.0000
                cut AnyChunking 3.0000
                cut_tail ThisChunking 4.0000
                rounds AnyChunking 2.0000
                crossing ThisChunking 4.0000
                volume AnyChunking 2.5000
                flow AnyChunking 2.2500
            "#]],
        );
        check(
            "ring:4,alpha=1us,bandwidth=1GBps",
            Collective::AllReduce,
            4_000,
            1,
            expect![[r#"
                latency AnyChunking 3.0000
                latency ThisChunking 6.0000
                ingress AnyChunking 5.0000
                ingress ThisChunking 5.0000
                ingress OneChunkPerMessage 8.0000
                egress AnyChunking 5.0000
                egress ThisChunking 5.0000
                egress OneChunkPerMessage 8.0000
                cut AnyChunking 5.0000
                rounds AnyChunking 3.0000
                crossing ThisChunking 12.0000
                volume AnyChunking 7.0000
            "#]],
        );
        check(
            "switch:4,alpha=1us,bandwidth=1GBps",
            Collective::Reduce,
            4_000,
            2,
            expect![[r#"
                latency AnyChunking 1.0000
                latency ThisChunking 3.0000
                egress AnyChunking 5.0000
                egress ThisChunking 5.0000
                egress OneChunkPerMessage 6.0000
                ingress AnyChunking 5.0000
                ingress ThisChunking 5.0000
                ingress OneChunkPerMessage 6.0000
                rounds AnyChunking 5.0000
                crossing ThisChunking 5.0000
                volume AnyChunking 4.0000
                flow AnyChunking 2.0000
            "#]],
        );
    }

    #[test]
    fn a_cut_on_the_reversed_topology_names_the_ranks_that_send() {
        let bounds = of("line:3,alpha=1us,bandwidth=1GBps", Collective::Reduce, 1_000, 1);
        let egress = bounds.list.iter().find(|bound| bound.name == "egress").expect("everybody sends");
        let Certificate::Cut { ranks, capacity, .. } = &egress.certificate else { panic!("a cut, not {egress:?}") };
        assert_eq!((ranks.as_slice(), capacity.0), (&[topology::Rank(2)][..], 0.001));
    }

    /// A bound that is left out for lack of time weakens the best bound. A chunk count that inherits bounds keeps the
    /// best bound for any chunking.
    #[test]
    fn in_a_hurry_bounds_are_weaker_never_wrong() {
        let late = Deadline::after(Some(Duration::ZERO), crate::problem::Cancel::default());
        for (spec, collective) in [
            ("ndv2x2", Collective::AllToAll),
            ("torus2d:4x4", Collective::AllReduce),
            ("dgx2x2", Collective::AllGather),
            ("mesh2d:3x4", Collective::ReduceScatter),
        ] {
            let topology = Arc::new(resolve(spec).expect("a known topology"));
            let request = |chunks| Request::new(collective, topology.rank_count(), 1 << 30).with_chunks(chunks);
            let problem = |chunks| {
                Problem::new(topology.clone(), Arc::new(Demand::new(request(chunks)).expect("a valid request")))
            };
            let [one, four] = [1, 4].map(problem);
            let all = bounds(&one, &Deadline::default());
            let some = bounds(&one, &late);
            assert!(some.best().value <= all.best().value && some.best().value > Micros::ZERO, "{spec}");
            let inherited = bounds_like(&all, &four, &Deadline::default());
            assert_eq!(inherited.best_at_any_chunking(), all.best_at_any_chunking(), "{spec}");
            assert!(
                inherited.best().value <= bounds(&four, &Deadline::default()).best().value * (1.0 + 1e-12),
                "{spec}"
            );
        }
    }

    /// When the work runs out, some bounds get weaker, but not the binding one.
    #[test]
    fn large_machines_are_bounded_as_well() {
        for spec in ["ring:3000", "clique:400", "torus2d:40x40"] {
            let bounds = of(spec, Collective::AllGather, 1 << 30, 1);
            let binding = bounds.binding().expect("something moves");
            let arguments = bounds.list.iter().filter(|it| it.name == "ingress" && it.scope != Scope::AnyChunking);
            let weakest = arguments.map(|it| it.value.0).fold(f64::INFINITY, f64::min);
            assert!(weakest >= binding.value.0 * 0.9, "{spec}: chunks pass by {weakest} µs, not {binding:?}");
        }
    }

    #[test]
    fn nothing_to_move_takes_no_time() {
        assert_eq!(of("ring:1", Collective::AllReduce, 1_000, 1).best().value, Micros::ZERO);
    }
}
