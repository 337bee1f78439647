//! `symmetric`: the matching search on one link and chunk of each orbit, repeated everywhere by the symmetries.
//!
//! The principal type is [`Symmetric`]. Where ranks look alike, every decision is made once and holds for all of them.
//! The trees along which chunks travel are images of a few base trees, as in algorithms for Cayley graphs. There are
//! far fewer decisions, so that thousands of ranks take no longer than dozens, and bad choices are less likely.

use super::MatchingSearch;
use super::instance::Instance;
use crate::problem::constraints::RuleKind;
use crate::problem::{Problem, StrategyKind, SynthError};
use crate::strategies::bundles::{WORK, of_bearable_size};
use crate::strategies::{Attempt, Context, Strategy};
use crate::symmetry::Mirror;

/// The strategy `symmetric`.
#[derive(Clone, Copy, Debug)]
pub struct Symmetric;

const NAME: &str = StrategyKind::Symmetric.as_str();
/// The number of symmetry groups that are tried; they share the work of one search.
const GROUPS: usize = 2;

impl Strategy for Symmetric {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Symmetric
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        if problem.demand.is_unicast() {
            let why = "every chunk has one destination".to_owned();
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        of_bearable_size(NAME, problem, |problem| search(problem, context))
    }
}

fn search(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    let mut mirrors = Mirror::all(problem, context.symmetries, context.deadline);
    // The largest group leaves the fewest decisions; the next one forbids fewer schedules.
    mirrors.truncate(GROUPS);
    if mirrors.is_empty() {
        let why = "no symmetry of the machine, the demand and the sketch moves every rank".to_owned();
        return Err(SynthError::NotApplicable { strategy: NAME, why });
    }
    let mut attempts = Vec::with_capacity(mirrors.len());
    let work = WORK / mirrors.len() as u64;
    for mirror in mirrors {
        let name = format!("{NAME}/{}", mirror.order());
        let instance = Instance::new(problem, mirror, context.deadline)?;
        let mut search = MatchingSearch::new(&instance, context, work);
        search.restart();
        let is_enough = search.is_good_enough() || context.deadline.has_passed();
        attempts.push(search.conclude(&name));
        if is_enough {
            break;
        }
    }
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, Limits, SearchOptions};
    use crate::sketch::SketchFile;
    use crate::strategies::orbits::OrbitWalk;
    use schedule::{Collective, Demand, Request, Schedule, verify};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use topology::{
        Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts, resolve,
    };

    fn problem(spec: &str, collective: Collective, chunk_bytes: u64, chunks: u32, sketch: &str) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let ranks = topology.rank_count();
        let request = Request::new(collective, ranks, chunk_bytes * ranks as u64 * u64::from(chunks));
        let mut problem =
            Problem::new(topology.clone(), Arc::new(Demand::new(request.with_chunks(chunks)).expect("a request")));
        if !sketch.is_empty() {
            let sketch = SketchFile::parse(sketch, "s.yaml").expect("a sketch").resolve(&topology).expect("it fits");
            problem.constraints = Arc::new(sketch.constraints.clone());
        }
        problem
    }

    fn plan(problem: &Problem) -> Result<Schedule, SynthError> {
        let options = SearchOptions { limits: Limits { restarts: 4, ..Limits::default() }, ..SearchOptions::default() };
        let deadline = Deadline::default();
        let bound = bounds(problem, &Deadline::default()).best().value;
        let context = Context::among_others(&options, &deadline, bound);
        // As in the planner: the orbit walk first, then the search.
        let walked = OrbitWalk.propose(problem, &context).unwrap_or_default();
        let attempts = if walked.is_empty() { Symmetric.propose(problem, &context)? } else { walked };
        let found = attempts.into_iter().filter_map(|attempt| attempt.schedule);
        let best = found.min_by(|a, b| a.makespan().total_cmp(&b.makespan())).expect("a schedule");
        verify(best.clone(), &problem.topology).expect("a right schedule");
        Ok(best)
    }

    #[test]
    fn tori_finish_in_as_few_steps_as_their_links_permit() {
        for (spec, steps) in [("4x4", 4.0), ("5x5", 6.0), ("8x8", 16.0), ("7x9", 16.0), ("16x16", 64.0)] {
            let spec = format!("torus2d:{spec},alpha=0.5us,bandwidth=50GiBps");
            let found = plan(&problem(&spec, Collective::AllGather, 1 << 20, 1, "")).unwrap().makespan().0;
            assert!(found <= steps * 20.03125 * (1.0 + 1e-9), "{spec}: {found} µs");
        }
    }

    #[test]
    fn taccl_s_hardest_case_is_at_its_bound() {
        let sketch = include_str!("../../../../sketches/sk1-dgx2-n2.yaml");
        let problem = problem("dgx2x2,costs=taccl-1mb", Collective::AllGather, 1_000_000, 2, sketch);
        let schedule = plan(&problem).unwrap();
        assert!((schedule.makespan().0 - 496.0).abs() < 1e-6, "{}", schedule.makespan());
        assert!(crate::sketch::obey(&schedule, &problem.topology, &problem.constraints).is_empty());
        // Under each symmetry, the image of every transfer happens at the same time.
        let key = |time: f64| (time * 1e6).round() as i64;
        let sent = |it: &schedule::Transfer| (it.chunks.to_vec(), it.link, key(it.start.0));
        let all: BTreeSet<_> = schedule.transfers.iter().map(sent).collect();
        for symmetry in &problem.constraints.symmetry {
            let images = crate::symmetry::chunk_images(&problem.demand)(symmetry).expect("the demand is symmetric");
            for (chunks, link, start) in &all {
                let mut moved: Vec<_> = chunks.iter().map(|chunk| images[chunk.index()]).collect();
                moved.sort_unstable();
                assert!(all.contains(&(moved, symmetry.links[link.index()], *start)));
            }
        }
    }

    #[test]
    fn images_that_share_a_port_take_turns() {
        // All four ranks send through one switch: each decision is made once, but its messages are sent one after the
        // other.
        let pairs = (0..4).flat_map(|from| (0..4).filter(move |&to| to != from).map(move |to| (Rank(from), Rank(to))));
        let link = |(from, to)| Link {
            from,
            to,
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.001),
            latency: Latency::Occupies,
            resources: [ResourceId(0)].into(),
        };
        let resources = vec![Resource::new("hub", MicrosPerByte(0.001))];
        let parts = TopologyParts { ranks: 4, links: pairs.map(link).collect(), resources, ..TopologyParts::default() };
        let topology = Arc::new(Topology::new(parts).expect("a machine"));
        let demand = Demand::new(Request::new(Collective::AllGather, 4, 4_000)).expect("a request");
        let schedule = plan(&Problem::new(topology, Arc::new(demand))).unwrap();
        assert!(schedule.makespan().0 >= 12.0, "{}", schedule.makespan());
    }

    #[test]
    fn where_nothing_is_alike_it_does_not_apply() {
        for (spec, collective) in
            [("line:5", Collective::AllGather), ("ring:4", Collective::AllToAll), ("ring:4", Collective::Broadcast)]
        {
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let context = Context::among_others(&options, &deadline, Micros::ZERO);
            let refused = Symmetric.propose(&problem(spec, collective, 1000, 1, ""), &context);
            assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{spec}");
        }
    }
}
