//! Bundles: chunks with the same holders and receivers travel together, so that a search has fewer chunks to plan.
//!
//! The principal type is [`Bundles`]. A search costs (deliveries × chunks). With tens of thousands of equal chunks per
//! rank it would take minutes, and gain nothing over a few dozen. So each run of equal chunks is tied into bundles, the
//! search plans the bundles, and every message is unpacked again.

use crate::problem::{Problem, SynthError};
use crate::strategies::Attempt;
use schedule::{ChunkId, Demand, Message, Request, Schedule, replay};
use std::ops::Range;
use std::sync::Arc;
use topology::Bytes;

/// Chunks per rank that always stay apart: finer cuts gain little.
const APART: u32 = 16;

/// The most deliveries of one schedule, which then takes some gigabytes of memory.
const MOST_DELIVERIES: u64 = 1 << 24;
/// The work of one search, in links examined at 64 chunks: one or two seconds of one core.
pub(super) const WORK: u64 = 60_000_000;

/// What `search` proposes for `problem`; if there are too many chunks, `search` plans bundles of them.
pub(crate) fn of_bearable_size(
    strategy: &'static str,
    problem: &Problem,
    search: impl Fn(&Problem) -> Result<Vec<Attempt>, SynthError>,
) -> Result<Vec<Attempt>, SynthError> {
    let deliveries: u64 = problem.demand.chunks().iter().map(|chunk| chunk.wanted_by.len() as u64).sum();
    if deliveries > MOST_DELIVERIES {
        let why = format!("{deliveries} deliveries are more than the {MOST_DELIVERIES} it writes down");
        return Err(SynthError::NotApplicable { strategy, why });
    }
    let per_chunk = deliveries / problem.demand.chunks().len().max(1) as u64;
    let cost = |chunks: u64| chunks * per_chunk * (chunks / 64 + 64);
    match Bundles::new(problem, WORK, cost) {
        Some(bundles) => {
            let attempts = search(&bundles.problem)?.into_iter();
            attempts.map(|attempt| bundles.unpacked(problem, attempt)).collect()
        }
        None => search(problem),
    }
}

/// A problem with fewer, larger chunks, and the original chunks in each of them.
struct Bundles {
    /// The problem over bundles, which is searched.
    problem: Problem,
    /// For each bundle, its chunks in the original problem.
    contents: Vec<Range<u32>>,
}

impl Bundles {
    /// Ties the chunks of `problem` until a search costs at most `limit`, where `cost` estimates the cost from the
    /// number of chunks. `None` if the search is cheap enough already, or if there is nothing to tie.
    fn new(problem: &Problem, limit: u64, cost: impl Fn(u64) -> u64) -> Option<Self> {
        let demand = &problem.demand;
        let (chunks, per_rank) = (demand.chunks().len() as u64, demand.request().chunks_per_rank);
        let mut together = 1;
        while together <= per_rank / APART / 2 && cost(chunks / u64::from(together)) > limit {
            together *= 2;
        }
        (together > 1).then(|| Self::of(problem, together))?
    }

    fn of(problem: &Problem, together: u32) -> Option<Self> {
        let demand = &*problem.demand;
        let mut contents: Vec<Range<u32>> = Vec::new();
        let mut first = 0;
        for run in demand.chunks().chunk_by(|a, b| a == b) {
            let end = first + run.len() as u32;
            contents.extend((first..end).step_by(together as usize).map(|at| at..end.min(at + together)));
            first = end;
        }
        let bundled = contents.iter().map(|content| {
            let one = ChunkId(content.start);
            let bytes = Bytes(demand.bytes_of(one).0 * content.len() as f64);
            schedule::Chunk { bytes: Some(bytes), ..demand.chunk(one).clone() }
        });
        let request = demand.request();
        let request = Request { chunks_per_rank: request.chunks_per_rank.div_ceil(together), ..request.clone() };
        let bundled = Demand::from_chunks(request, bundled.collect()).ok()?;
        Some(Self { problem: Problem { demand: Arc::new(bundled), ..problem.clone() }, contents })
    }

    /// Turns an attempt at the bundled problem into one at the original.
    ///
    /// # Errors
    /// If the order cannot be replayed, which would be a defect of the search.
    fn unpacked(&self, problem: &Problem, attempt: Attempt) -> Result<Attempt, SynthError> {
        let Some(schedule) = attempt.schedule else { return Ok(attempt) };
        let contents = |chunk: &ChunkId| self.contents[chunk.index()].clone().map(ChunkId);
        let messages = schedule.transfers.iter().map(|transfer| Message {
            chunks: transfer.chunks.iter().flat_map(contents).collect(),
            link: transfer.link,
            kind: transfer.kind,
        });
        let messages: Vec<Message> = messages.collect();
        let (topology, demand) = (&*problem.topology, &problem.demand);
        let order = |error| SynthError::Order { strategy: "matching and symmetric", error };
        let transfers = replay(demand, topology, &messages).map_err(order)?;
        let schedule = Schedule::new(topology, demand.clone(), transfers, &attempt.name);
        Ok(Attempt { schedule: Some(schedule), ..attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, SearchOptions};
    use crate::strategies::matching::Matching;
    use crate::strategies::{Context, Strategy};
    use schedule::{Collective, verify};
    use topology::resolve;

    fn problem(spec: &str, collective: Collective, size: u64, chunks: u32) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(chunks);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn bundles_hold_every_chunk_once_and_all_bytes() {
        for (collective, chunks) in
            [(Collective::AllGather, 1000), (Collective::AllToAll, 77), (Collective::Broadcast, 999)]
        {
            let problem = problem("ring:5", collective, 1_000_003, chunks);
            let bundles = Bundles::new(&problem, 1, |chunks| chunks).expect("there is something to tie");
            let held: Vec<u32> = bundles.contents.iter().cloned().flatten().collect();
            assert_eq!(held, (0..problem.demand.chunks().len() as u32).collect::<Vec<_>>());
            assert!(bundles.contents.len() >= (APART as usize) && bundles.contents.len() < held.len() / 2);
            let bytes = |demand: &Demand| demand.chunk_ids().map(|id| demand.bytes_of(id).0).sum::<f64>();
            let (all, tied) = (bytes(&problem.demand), bytes(&bundles.problem.demand));
            assert!((all / tied - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn few_chunks_stay_as_they_are() {
        let problem = problem("ring:5", Collective::AllGather, 1_000_003, 31);
        assert!(Bundles::new(&problem, 1, |chunks| chunks).is_none());
    }

    #[test]
    fn tens_of_thousands_of_chunks_are_planned_near_the_bound() {
        for collective in [Collective::AllGather, Collective::AllToAll, Collective::Scatter] {
            let problem = problem("ring:4", collective, 1_000_000_000, 60_000);
            let (options, deadline, bound) =
                (SearchOptions::default(), Deadline::default(), bounds(&problem, &Deadline::default()).best().value);
            let context = Context::among_others(&options, &deadline, bound);
            let attempt = Matching.propose(&problem, &context).expect("a connected topology").remove(0);
            let schedule = attempt.schedule.expect("a schedule");
            assert!(schedule.makespan().0 <= bound.0 * 1.25, "{collective}: {} of {bound}", schedule.makespan());
            verify(schedule, &problem.topology).expect("a right schedule");
        }
    }
}
