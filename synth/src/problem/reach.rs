//! Whether every chunk can reach every rank that wants it, checked before any search.
//!
//! The principal function is [`check_reachable`]. If no rule depends on the chunk, two searches over the allowed links
//! decide for all chunks at once. Otherwise each distinct set of holders costs one search. Where no path exists, the
//! error names a sketch line whose removal opens a path. That line is found by searching again without it.

use crate::problem::constraints::RuleKind;
use crate::problem::{Hindrance, Problem, SynthError};
use schedule::{ChunkId, RankSet};
use std::collections::{BTreeSet, VecDeque};
use topology::{LinkId, Rank, Topology};

/// Checks that under the constraints every chunk has a path to every rank that wants it.
///
/// # Errors
/// [`SynthError::Infeasible`] for the first chunk without such a path, with the sketch line to relax.
pub fn check_reachable(problem: &Problem) -> Result<(), SynthError> {
    if chunks_do_not_matter(problem) && is_strongly_connected(problem) {
        return Ok(());
    }
    let demand = &problem.demand;
    let mut checked: Option<(&RankSet, &RankSet)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        // Chunks of one rank stand next to each other, and the same result holds for all of them.
        if checked.replace((&chunk.holders, &chunk.wanted_by)) == Some((&chunk.holders, &chunk.wanted_by)) {
            continue;
        }
        // Every contribution to a sum needs its own path. For a copied chunk, a path from any holder is enough.
        let sources: Vec<RankSet> = match chunk.combine {
            true => chunk.holders.iter().copied().map(RankSet::one).collect(),
            false => vec![chunk.holders.clone()],
        };
        for source in sources {
            let reached = crossings(problem, id, &source, &IgnoredRule::Nothing);
            if let Some(&rank) = chunk.wanted_by.iter().find(|rank| reached[rank.index()].is_none()) {
                let relax = culprit(problem, id, &source, rank);
                return Err(SynthError::Infeasible { chunk: id, rank, holders: source.to_vec(), relax });
            }
        }
    }
    Ok(())
}

/// For each rank, the fewest links between machines on an allowed path of `chunk` from its holders; `None`
/// where no path exists within the limit on such links.
pub(crate) fn machine_hops(problem: &Problem, chunk: ChunkId) -> Vec<Option<u32>> {
    crossings(problem, chunk, &problem.demand.chunk(chunk).holders, &IgnoredRule::Nothing)
}

/// Which rule of the sketch a search ignores.
enum IgnoredRule {
    Nothing,
    Everything,
    Line(u32),
}

impl IgnoredRule {
    fn ignores(&self, line: u32) -> bool {
        match *self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Line(ignored) => ignored == line,
        }
    }
}

fn chunks_do_not_matter(problem: &Problem) -> bool {
    !problem.constraints.exceeds(&[RuleKind::ForbiddenLinks, RuleKind::OwnChunksFirst])
}

fn is_strongly_connected(problem: &Problem) -> bool {
    let topology = &problem.topology;
    let spans = |links: fn(&Topology, Rank) -> &[LinkId], end: fn(&topology::Link) -> Rank| {
        let mut seen = vec![false; topology.rank_count()];
        seen[0] = true;
        let mut stack = vec![Rank(0)];
        let mut count = 1;
        while let Some(rank) = stack.pop() {
            for &link in links(topology, rank).iter().filter(|&&link| problem.allows_link(link)) {
                let next = end(topology.link(link));
                if !std::mem::replace(&mut seen[next.index()], true) {
                    count += 1;
                    stack.push(next);
                }
            }
        }
        count == topology.rank_count()
    };
    spans(Topology::outgoing, |link| link.to) && spans(Topology::incoming, |link| link.from)
}

/// A search over (rank, stage) for the fewest machine crossings. Links inside a machine cost nothing, so their ends go
/// to the front of the queue.
fn crossings(problem: &Problem, chunk: ChunkId, from: &RankSet, relaxed: &IgnoredRule) -> Vec<Option<u32>> {
    let topology = &problem.topology;
    let limit = match problem.constraints.max_machine_hops {
        Some((limit, line)) if !relaxed.ignores(line) => limit,
        _ => u32::MAX,
    };
    let stages = problem.constraints.stages.as_ref().filter(|stages| !relaxed.ignores(stages.line));
    let count = stages.map_or(1, |stages| usize::from(stages.count));
    let mut fewest: Vec<Option<u32>> = vec![None; topology.rank_count() * count];
    let mut queue: VecDeque<(Rank, u8, u32)> = from.iter().map(|&rank| (rank, 0, 0)).collect();
    while let Some((rank, stage, hops)) = queue.pop_front() {
        let known = &mut fewest[rank.index() * count + usize::from(stage)];
        if known.is_some() {
            continue;
        }
        *known = Some(hops);
        for &id in topology.outgoing(rank) {
            let link = topology.link(id);
            let hindrance = problem.constraints.hindrance(&problem.demand, chunk, id);
            let next = stages.map_or(Some(0), |stages| stages.after(stage, id));
            let Some(next) = next.filter(|_| hindrance.is_none_or(|it| relaxed.ignores(it.line()))) else { continue };
            if fewest[link.to.index() * count + usize::from(next)].is_some() {
                continue;
            }
            if !topology.crosses_machines(link) {
                queue.push_front((link.to, next, hops));
            } else if hops < limit {
                queue.push_back((link.to, next, hops + 1));
            }
        }
    }
    fewest.chunks(count).map(|stages| stages.iter().flatten().min().copied()).collect()
}

/// The first sketch line without which `chunk` could get from `source` to `rank`. If only several lines together block
/// it, the first of those.
fn culprit(problem: &Problem, chunk: ChunkId, source: &RankSet, rank: Rank) -> Option<Hindrance> {
    let opens = |relaxed: &IgnoredRule| crossings(problem, chunk, source, relaxed)[rank.index()].is_some();
    if !opens(&IgnoredRule::Everything) {
        return None;
    }
    let hindrance = |link| problem.constraints.hindrance(&problem.demand, chunk, link);
    let limit = problem.constraints.max_machine_hops.map(|(_, line)| Hindrance::TooManyMachineHops { line });
    let stages = problem.constraints.stages.as_ref().map(|stages| Hindrance::OutOfStage { line: stages.line });
    let mut lines = BTreeSet::new();
    let links = problem.topology.link_ids();
    let mut candidates: Vec<Hindrance> = links.filter_map(hindrance).chain(limit).chain(stages).collect();
    candidates.retain(|it| lines.insert(it.line()));
    candidates.sort_by_key(|it| it.line());
    candidates.iter().copied().find(|it| opens(&IgnoredRule::Line(it.line()))).or(candidates.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Constraints;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{Latency, Link, Micros, MicrosPerByte, TopologyParts};

    fn link(from: u32, to: u32) -> Link {
        Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(1e-3),
            latency: Latency::Occupies,
            resources: [].into(),
        }
    }

    /// Ranks 0 1 | 2 3 | 4 5 on three machines in a line, with links in both directions.
    fn line_of_machines(constraints: Constraints) -> Problem {
        let machines = (0..3).map(|m| vec![Rank(2 * m), Rank(2 * m + 1)]).collect();
        let links = (0..5).flat_map(|r| [link(r, r + 1), link(r + 1, r)]).collect();
        let parts = TopologyParts { name: "line".into(), ranks: 6, machines, links, resources: vec![] };
        let topology = Arc::new(Topology::new(parts).unwrap());
        let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 6, 600)).unwrap());
        Problem { topology, demand, constraints: Arc::new(constraints) }
    }

    fn refused(constraints: Constraints) -> (ChunkId, Rank, Option<Hindrance>) {
        match check_reachable(&line_of_machines(constraints)) {
            Err(SynthError::Infeasible { chunk, rank, relax, .. }) => (chunk, rank, relax),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_connected_machine_is_fine() {
        assert_eq!(check_reachable(&line_of_machines(Constraints::none())), Ok(()));
    }

    #[test]
    fn a_forbidden_bridge_is_named() {
        let mut forbidden = vec![None; 10];
        forbidden[2] = Some(17);
        let expected = (ChunkId(0), Rank(2), Some(Hindrance::ForbiddenLink { line: 17 }));
        assert_eq!(refused(Constraints { forbidden, ..Constraints::none() }), expected);
    }

    #[test]
    fn a_relay_that_excludes_an_owner_is_named() {
        let mut owners = vec![None; 10];
        owners[2] = Some((RankSet::one(Rank(0)), 5));
        let expected = (ChunkId(1), Rank(2), Some(Hindrance::NotItsSender { line: 5 }));
        assert_eq!(refused(Constraints { owners, ..Constraints::none() }), expected);
    }

    #[test]
    fn a_limit_on_machine_hops_is_named() {
        let constraints = |limit| Constraints { max_machine_hops: Some((limit, 9)), ..Constraints::none() };
        assert_eq!(check_reachable(&line_of_machines(constraints(2))), Ok(()));
        let expected = (ChunkId(0), Rank(4), Some(Hindrance::TooManyMachineHops { line: 9 }));
        assert_eq!(refused(constraints(1)), expected);
    }

    #[test]
    fn two_lines_at_fault_name_the_first() {
        let mut forbidden = vec![None; 10];
        (forbidden[2], forbidden[6]) = (Some(30), Some(20));
        let expected = (ChunkId(0), Rank(2), Some(Hindrance::ForbiddenLink { line: 30 }));
        assert_eq!(refused(Constraints { forbidden: forbidden.clone(), ..Constraints::none() }), expected);
        let mut problem = line_of_machines(Constraints { forbidden, ..Constraints::none() });
        let request = Request { root: Some(Rank(5)), ..Request::new(Collective::Gather, 6, 600) };
        problem.demand = Arc::new(Demand::new(request).unwrap());
        let error = check_reachable(&problem).unwrap_err();
        assert!(matches!(error, SynthError::Infeasible { relax: Some(it), .. } if it.line() == 20), "{error:?}");
    }

    #[test]
    fn a_machine_in_two_halves_has_no_line_to_blame() {
        let mut problem = line_of_machines(Constraints::none());
        let links = vec![link(0, 1), link(1, 0)];
        let parts = TopologyParts { ranks: 6, links, ..TopologyParts::default() };
        problem.topology = Arc::new(Topology::new(parts).unwrap());
        assert!(matches!(check_reachable(&problem), Err(SynthError::Infeasible { relax: None, .. })));
        let members = [Rank(0), Rank(1)].into_iter().collect();
        let request = Request { members, ..Request::new(Collective::AllGather, 6, 600) };
        problem.demand = Arc::new(Demand::new(request).unwrap());
        assert_eq!(check_reachable(&problem), Ok(()), "nobody wants anything beyond the bridge");
    }

    #[test]
    fn every_part_of_a_sum_needs_a_way() {
        let mut forbidden = vec![None; 10];
        forbidden[9] = Some(3);
        let mut problem = line_of_machines(Constraints { forbidden, ..Constraints::none() });
        problem.demand = Arc::new(Demand::new(Request::new(Collective::Reduce, 6, 600)).unwrap());
        let error = check_reachable(&problem).unwrap_err();
        assert!(matches!(&error, SynthError::Infeasible { holders, .. } if holders == &[Rank(5)]), "{error:?}");
    }
}
