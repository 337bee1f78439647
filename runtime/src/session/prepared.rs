//! Calls that are prepared once and made again and again.
//!
//! The principal type is [`Prepared`].

use super::Session;
use super::script::{CallScript, SequencedProgram};
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use std::ops::Range;
use std::sync::Arc;
use topology::Rank;

/// A rank's part of a program for one count and data type. It belongs to one session, and can be called any number of times.
#[derive(Clone)]
pub struct Prepared {
    pub(super) script: Arc<CallScript>,
}

/// A call that does nothing.
impl Default for Prepared {
    fn default() -> Self {
        Self { script: Arc::new(CallScript::exchange(Rank(0), &[], &[])) }
    }
}

impl Prepared {
    /// The bytes of the input and of the output buffer, as out of place; in place, of the buffer that is both, twice.
    pub fn lengths(&self) -> [usize; 2] {
        [self.script.lengths[0], self.script.lengths[1]]
    }

    /// How many bytes it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.script.bytes()
    }
}

impl Session {
    /// This rank's part of a program among `members`, ranks of the session in the order of the program's ranks.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if this rank is not among them or there are too few or too many of them; [`RunError::TooLarge`],
    /// [`RunError::Indivisible`].
    pub fn prepare(
        &self,
        sequenced: &SequencedProgram,
        members: &[Rank],
        count: u64,
        dtype: DType,
    ) -> RunResult<Prepared> {
        let (needed, given) = (sequenced.program().program().ranks.len(), members.len());
        let refuse = |what: String| RunError::Mismatch { what };
        if needed != given || members.iter().any(|member| member.index() >= self.ranks()) {
            return Err(refuse(format!(
                "the plan is for {needed} ranks, {given} of a session of {} were named",
                self.ranks()
            )));
        }
        let own = members.iter().position(|member| *member == self.shared.rank);
        let own = own.ok_or_else(|| refuse(format!("rank {} is not among the members", self.shared.rank)))?;
        let script = CallScript::new(sequenced, Rank::from_index(own), members, count, dtype)?;
        Ok(self.prepared(script))
    }

    /// One message to each of some ranks of the session, and one from each of some: `(rank, bytes)` of the input, and of the
    /// output. What a rank sends to itself is copied. All calls of the communicator must agree on who sends how much to whom.
    pub fn prepare_exchange(&self, sends: &[(Rank, Range<usize>)], receives: &[(Rank, Range<usize>)]) -> Prepared {
        self.prepared(CallScript::exchange(self.shared.rank, sends, receives))
    }

    /// A message of so many bytes to a rank, which receives it with [`Self::prepare_receive`] in the same call of the same
    /// communicator.
    pub fn prepare_send(&self, to: Rank, bytes: usize) -> Prepared {
        self.prepared(CallScript::message(self.shared.rank, to, bytes, true))
    }

    /// A message of so many bytes from a rank.
    pub fn prepare_receive(&self, from: Rank, bytes: usize) -> Prepared {
        self.prepared(CallScript::message(self.shared.rank, from, bytes, false))
    }

    fn prepared(&self, mut script: CallScript) -> Prepared {
        let is_between_machines = script.peers().any(|peer| self.shared.directory.is_elsewhere(peer));
        script.is_between_machines = is_between_machines;
        Prepared { script: Arc::new(script) }
    }
}
