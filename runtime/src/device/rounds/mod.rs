//! Programs in rounds, for libraries that move messages only in groups and know no tags, as NCCL does.
//!
//! The principal types are [`Rounds`](derive::Rounds) and [`RoundPlan`](plan::RoundPlan). A round is a stage of local work, which a
//! kernel does, and then an exchange: all messages of the round in one group. After the last exchange there is one more stage.
//! Which message is in which round follows from the program alone, so all ranks agree without a word.

pub(crate) mod derive;
pub(crate) mod mapped;
pub(crate) mod plan;
pub(crate) mod tables;

#[cfg(test)]
mod tests;
