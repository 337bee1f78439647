//! Bounds of groups that start later.
//!
//! The principal function is [`later`]. A schedule of all chunks contains one of those that are released at some time or
//! later. None of their messages leaves before that time. So every bound of them alone, counted from that time on, is a
//! bound of the whole.

use super::{Bound, Certificate, direct, either_way};
use crate::problem::{Deadline, Problem};
use schedule::{Chunk, Collective, Demand, Request};
use std::sync::Arc;
use topology::Micros;

/// At most so many starts are considered, evenly picked: each takes as long as all other bounds.
const MOST_STARTS: usize = 8;

/// The bounds of what starts at each of the starts of `problem` or later.
pub(super) fn later(problem: &Problem, deadline: &Deadline) -> Vec<Bound> {
    let mut starts: Vec<Micros> = match problem.demand.starts_later() {
        true => problem.demand.chunks().iter().map(|chunk| chunk.release).filter(|&it| it > Micros::ZERO).collect(),
        false => return Vec::new(),
    };
    starts.sort_by(Micros::total_cmp);
    starts.dedup();
    let stride = starts.len().div_ceil(MOST_STARTS);
    // The last start first: its bound is the least that a late group takes.
    let picked: Vec<Micros> = starts.into_iter().rev().step_by(stride).collect();
    let mut found = Vec::new();
    for (&start, left) in picked.iter().zip((1..=picked.len() as u32).rev()) {
        let Some(rest) = starting_from(problem, start) else { continue };
        let deadline = deadline.part(left);
        let bounds = either_way(&rest, |rest| direct(rest, &deadline)).list.into_iter();
        found.extend(bounds.map(|bound| counted_from(start, bound)));
    }
    found
}

/// `bound`, which holds from `start` on, from the beginning on.
pub(crate) fn counted_from(start: Micros, bound: Bound) -> Bound {
    let certificate = match start {
        Micros::ZERO => bound.certificate,
        start => Certificate::Later { start, of: Box::new(bound.certificate) },
    };
    Bound { value: start + bound.value, certificate, ..bound }
}

/// The chunks that are released at `start` or later, as if that were the beginning.
fn starting_from(problem: &Problem, start: Micros) -> Option<Problem> {
    let demand = &*problem.demand;
    let is_later = |chunk: &&Chunk| chunk.release >= start;
    let moved = |chunk: &Chunk| Chunk { release: Micros::ZERO, ..chunk.clone() };
    // Chunks that need not move do not wait for their release.
    let moves = |chunk: &&Chunk| !chunk.wanted_by.is_empty() && (chunk.is_sum() || chunk.lacking().next().is_some());
    let chunks: Vec<Chunk> = demand.chunks().iter().filter(is_later).filter(moves).map(moved).collect();
    if chunks.is_empty() {
        return None;
    }
    let request = Request { collective: Collective::Custom, root: None, ..demand.request().clone() };
    let demand = Demand::from_chunks(request, chunks).ok()?.with_chunk_bytes(demand.chunk_bytes()).ok()?;
    Some(Problem { demand: Arc::new(demand), ..problem.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use schedule::GroupRequest;
    use topology::Rank;

    #[test]
    fn a_late_group_takes_its_time_from_its_start_on() {
        let topology = Arc::new(topology::resolve("line:4,alpha=1us,bandwidth=1GBps").expect("a known topology"));
        for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::Reduce]
        {
            let request = Request {
                members: [1, 2, 3].map(Rank).into_iter().collect(),
                root: collective.is_rooted().then_some(Rank(3)),
                ..Request::new(collective, 4, 6000)
            };
            let early = GroupRequest::from(Request { size_bytes: 3000, ..request.clone() });
            let problem = |groups: &[GroupRequest]| {
                Problem::new(topology.clone(), Arc::new(Demand::joint(groups).expect("a valid request")))
            };
            let of = |groups: &[GroupRequest]| bounds(&problem(groups), &Deadline::default()).best().value;
            let alone = of(&[request.clone().into()]);
            for start in [0.0, 0.5, 7.0, 1000.0].map(Micros) {
                let late = GroupRequest { request: request.clone(), start };
                let (one, both) = (of(std::slice::from_ref(&late)), of(&[early.clone(), late]));
                assert!((one.0 - (start + alone).0).abs() < 1e-9, "{collective} at {start}: {one}, alone {alone}");
                // Crossings are counted for sums that are all alike: two groups of sums lack a bound that one has.
                let is_alike = collective != Collective::AllReduce;
                assert!(!is_alike || both >= one, "{collective} at {start}");
                assert!(both >= of(&[early.clone(), request.clone().into()]), "{collective} at {start}");
            }
        }
    }
    #[test]
    fn what_need_not_move_waits_for_nothing() {
        let topology = Arc::new(topology::resolve("ring:4").expect("a known topology"));
        let group = |members: &[u32], start: f64| {
            let members = members.iter().copied().map(Rank).collect();
            let request = Request { members, ..Request::new(Collective::AllGather, 4, 3000) };
            GroupRequest { request, start: Micros(start) }
        };
        let of = |start| {
            let demand = Demand::joint(&[group(&[0, 1, 2], 0.0), group(&[3], start)]).expect("a valid request");
            bounds(&Problem::new(topology.clone(), Arc::new(demand)), &Deadline::default()).best().value
        };
        assert_eq!(of(50.0), of(0.0));
    }
}
