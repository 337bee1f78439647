//! A plan whose messages are cut into pieces that follow each other: the same ways, with more chunks.
//!
//! The principal function is [`in_pieces`]. What passes through several ranks moves on before all of it has come, and every piece
//! pays its own α. How many pieces are worth that depends on what α and β really are, so the caller measures.

use crate::ordering::interleaved;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, Demand, Message, Request, Schedule, Transfer, VerifiedSchedule};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Plans in which chunks pass links more often are not made: looking for the best order of their messages would take long.
const MOST_DELIVERIES: usize = 1 << 12;

/// `plan` for `size_bytes` bytes with every chunk cut into `pieces`, in the best order of its messages. It is not verified. `None` if its
/// chunks are listed one by one, if it would have too many messages, or if its sums cannot be cut.
pub fn in_pieces(plan: &VerifiedSchedule, size_bytes: u64, pieces: NonZeroU32) -> Option<Schedule> {
    let whole = plan.schedule();
    let request = whole.demand.request();
    if request.collective.is_listed() || whole.deliveries().saturating_mul(pieces.get() as usize) > MOST_DELIVERIES {
        return None;
    }
    let chunks = request.chunks_per_rank.checked_mul(pieces.get())?;
    let request = Request { size_bytes, ..request.clone() }.with_chunks(chunks);
    let problem = Problem::new(plan.topology().clone(), Arc::new(Demand::new(request).ok()?));
    let cut = |transfer: &Transfer| {
        let piece = |piece: u32| move |chunk: &ChunkId| ChunkId(chunk.0 * pieces.get() + piece);
        let message = |number: u32| Message {
            chunks: transfer.chunks.iter().map(piece(number)).collect(),
            ..Message::from(transfer)
        };
        (0..pieces.get()).map(message).collect::<Vec<_>>()
    };
    let messages: Vec<Message> = whole.transfers.iter().flat_map(cut).collect();
    let transfers = interleaved(&problem, &messages, &Deadline::default()).ok()?;
    let strategy = format!("{} in {pieces} pieces", whole.produced_by.strategy);
    Some(Schedule::new(&problem.topology, problem.demand, transfers, &strategy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::textbook;
    use schedule::{Collective, verify};

    #[test]
    fn every_textbook_plan_can_be_cut_and_chains_gain() {
        let topology = Arc::new(topology::resolve("clique:6").unwrap());
        let (mut cut, mut gained) = (0, Vec::new());
        for collective in [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast,
            Collective::Reduce,
            Collective::AllToAll,
            Collective::Gather,
            Collective::Scatter,
        ] {
            let demand = Arc::new(Demand::new(Request::new(collective, 6, 16 << 20)).unwrap());
            for plan in textbook(&Problem::new(topology.clone(), demand)).unwrap() {
                let name = format!("{collective} {}", plan.produced_by.strategy);
                let plan = verify(plan, &topology).unwrap();
                let pieces = in_pieces(&plan, 16 << 20, NonZeroU32::new(4).unwrap());
                let Some(pieces) = pieces.and_then(|pieces| verify(pieces, &topology).ok()) else {
                    // Ranks that exchange whole sums.
                    assert!(["doubling", "one-shot"].iter().any(|of| name.contains(of)), "{name}");
                    continue;
                };
                cut += 1;
                if pieces.schedule().makespan() < plan.schedule().makespan() * 0.8 {
                    gained.push(name);
                }
            }
        }
        assert!(cut > 20, "{cut}");
        let has = |of: &str| gained.iter().any(|name| name == of);
        assert!(has("broadcast classic/chain") && has("reduce classic/chain"), "{gained:?}");
        assert!(!gained.iter().any(|name| name.starts_with("alltoall")), "{gained:?}");
    }
}
