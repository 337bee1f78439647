//! What ranks tell each other before they share memory.
//!
//! The principal type is [`PeerGather`]. Every rank gathers as often as the others whatever happens to it, so that none
//! waits for one that has given up: what has failed is told when they gather next.

use super::error::PeerMemoryError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use topology::Rank;

/// A way in which the ranks tell each other some bytes, such as a collective of NCCL's. It has a deadline of its own.
pub trait PeerGather {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Every rank gives as many bytes. The bytes of all ranks, in their order.
    ///
    /// # Errors
    /// Why they did not meet: who is gone, or did not come in time.
    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String>;

    /// When this is set, nobody needs the memory any more, and whoever waits for other ranks gives up.
    fn stop(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// The bytes of all ranks, as many of each.
pub(super) fn gathered(
    gather: &mut dyn PeerGather,
    doing: &'static str,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, PeerMemoryError> {
    let (rank, ranks) = (gather.rank(), gather.ranks());
    let failed = |why: String| PeerMemoryError::Gather { rank, doing, why };
    let all = gather.gather(bytes).map_err(failed)?;
    let is_whole = all.len() == ranks && all.iter().all(|of| of.len() == bytes.len());
    if is_whole { Ok(all) } else { Err(failed("not as many bytes came as were given".to_owned())) }
}

/// How far a rank has come.
pub(super) type RankOutcome = Result<(), RankFailure>;

/// What a rank has to tell the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RankFailure {
    NoAccess(Rank),
    Said(String),
}

/// The bytes of an outcome.
const OUTCOME: usize = 256;
const RIGHT: u8 = 0;
const NO_ACCESS: u8 = 1;
const SAID: u8 = 2;

fn encoded(outcome: &RankOutcome) -> Vec<u8> {
    let mut bytes = match outcome {
        Ok(()) => vec![RIGHT],
        Err(RankFailure::NoAccess(peer)) => [&[NO_ACCESS][..], &peer.0.to_le_bytes()].concat(),
        Err(RankFailure::Said(why)) => {
            let mut end = why.len().min(OUTCOME - 2);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            [&[SAID][..], &why.as_bytes()[..end]].concat()
        }
    };
    bytes.resize(OUTCOME, 0);
    bytes
}

fn decoded(rank: Rank, bytes: &[u8]) -> Result<(), PeerMemoryError> {
    match bytes {
        [RIGHT, ..] => Ok(()),
        [NO_ACCESS, a, b, c, d, ..] => {
            Err(PeerMemoryError::NoAccess { rank, peer: Rank(u32::from_le_bytes([*a, *b, *c, *d])) })
        }
        bytes => {
            let text = bytes.get(1..).unwrap_or_default();
            let why = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
            Err(PeerMemoryError::Failed { rank, why })
        }
    }
}

/// All ranks tell each other how far they have come, and something more. If one has failed, all fail with the same reason.
pub(super) fn meet(
    gather: &mut dyn PeerGather,
    doing: &'static str,
    outcome: &RankOutcome,
    more: &[u8],
) -> Result<Vec<Vec<u8>>, PeerMemoryError> {
    let mut bytes = encoded(outcome);
    bytes.extend(more);
    let all = gathered(gather, doing, &bytes)?;
    for (index, of) in all.iter().enumerate() {
        decoded(Rank::from_index(index), &of[..OUTCOME])?;
    }
    Ok(all.into_iter().map(|mut of| of.split_off(OUTCOME)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_their_bytes() {
        let of = |outcome: RankOutcome| decoded(Rank(3), &encoded(&outcome));
        assert_eq!(of(Ok(())), Ok(()));
        let no_access = PeerMemoryError::NoAccess { rank: Rank(3), peer: Rank(70_000) };
        assert_eq!(of(Err(RankFailure::NoAccess(Rank(70_000)))), Err(no_access));
        for text in ["", "no room", &"ü".repeat(300)] {
            let kept: String = text.chars().take(127).collect();
            let failed = PeerMemoryError::Failed { rank: Rank(3), why: kept };
            assert_eq!(of(Err(RankFailure::Said(text.to_owned()))), Err(failed));
        }
    }
}
