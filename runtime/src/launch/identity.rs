//! What a process that connects claims to be.
//!
//! The principal type is [`Identity`].

use crate::control::messages::PROTOCOL;
use crate::transport::tcp::Claim;
use topology::Rank;

/// The first bytes of every claim: of a rank that takes part, and of a rank that only reports why it does not.
const MAGIC: [[u8; 4]; 2] = [*b"anti", *b"ant!"];
/// What an agent claims and proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) protocol: u32,
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    pub(super) machine: [u8; 16],
    /// Whether the agent only reports why it does not take part.
    pub(super) declines: bool,
}

impl Identity {
    pub(super) fn claim(self) -> Claim {
        let mut claim = [0; 32];
        claim[..4].copy_from_slice(&MAGIC[usize::from(self.declines)]);
        for (place, word) in claim[4..16].chunks_mut(4).zip([self.protocol, self.rank.0, self.ranks]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        claim[16..].copy_from_slice(&self.machine);
        claim
    }

    pub(super) fn of(claim: &Claim) -> Option<Self> {
        let (words, machine) = claim.split_at(16);
        let (words, _) = words.as_chunks::<4>();
        let &[magic, protocol, rank, ranks] = words else { return None };
        let word = u32::from_le_bytes;
        let machine = machine.try_into().ok()?;
        let declines = MAGIC.iter().position(|known| *known == magic)? == 1;
        Some(Self { protocol: word(protocol), rank: Rank(word(rank)), ranks: word(ranks), machine, declines })
    }
}

/// The rank that a connection claims to be, if it wants to take part.
pub(super) fn rank_of(claim: &Claim) -> Option<Rank> {
    Identity::of(claim).filter(|identity| identity.protocol == PROTOCOL && !identity.declines).map(|it| it.rank)
}
