//! How a call in rounds ends: when it is done, and who is missing if it is not.
//!
//! The principal type is [`RoundEnds`].

use super::calls::{IN_PROGRESS, SUCCESS};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::error::{NcclError, RoundFailure};
use super::rounds::{GRACE, NcclRounds};
use cudarc::driver::CudaEvent;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;
use topology::Rank;

/// How far a call that is in a stream has come.
#[derive(Default)]
pub(super) struct RoundEnds {
    pub(super) ends: Vec<CudaEvent>,
    /// So many rounds are done.
    pub(super) done: usize,
}

impl RoundEnds {
    /// Looks which rounds are done, and says what NCCL says then. After an error a stream may run on, past the messages that failed: so a
    /// round counts only if nothing was wrong after its end was seen.
    pub(super) fn look(&mut self, comm: &NcclCommunicator) -> c_int {
        // Of an end that the driver cannot tell, NCCL or the deadline decides: then the communicator is aborted, too.
        let more = self.ends[self.done..].iter().take_while(|end| matches!(end.try_is_complete(), Ok(true))).count();
        let code = comm.async_error();
        if [SUCCESS, IN_PROGRESS].contains(&code) {
            self.done += more;
        }
        code
    }
}

impl NcclRounds {
    /// An error with the ranks for which the kernel has waited, when it has ended.
    pub(super) fn explained(&self, error: NcclError) -> NcclError {
        let missing = self.region.as_ref().map(|region| region.missing(&self.plan)).unwrap_or_default();
        match error {
            NcclError::Round { rank, round, rounds, why, .. } if !missing.is_empty() => {
                NcclError::Round { rank, round, rounds, peers: missing, why }
            }
            error => error,
        }
    }

    /// After an abort the rest of a call runs on without its messages. When it is done, nothing uses the caller's buffers any more.
    pub(super) fn drain(&mut self, deadline: NcclDeadline) {
        let Ok(done) = self.own.record_event(None) else { return };
        let grace = NcclDeadline::after(GRACE);
        while !grace.is_over() && matches!(done.try_is_complete(), Ok(false)) {
            deadline.pause();
        }
        self.done = Arc::new(done);
    }

    pub(super) fn settled(
        &self,
        comm: &mut NcclCommunicator,
        (round, mut before): (usize, Option<&mut RoundEnds>),
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        let since = Instant::now();
        loop {
            if comm.is_stopped() {
                return Err(NcclError::Aborted);
            }
            let code = before.as_mut().map_or_else(|| comm.async_error(), |before| before.look(comm));
            let round = before.as_ref().map_or(round, |before| before.done);
            match code {
                SUCCESS => return Ok(()),
                IN_PROGRESS if deadline.is_over() => return Err(self.late(comm, round, deadline)),
                IN_PROGRESS => deadline.pause_since(since),
                code => return Err(self.failed(comm, round, code)),
            }
        }
    }

    /// Waits for one round after the other.
    pub(super) fn watch(
        &self,
        comm: &mut NcclCommunicator,
        reached: &mut RoundEnds,
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        loop {
            match reached.look(comm) {
                SUCCESS | IN_PROGRESS if reached.done == reached.ends.len() => return Ok(()),
                SUCCESS | IN_PROGRESS if deadline.is_over() => return Err(self.late(comm, reached.done, deadline)),
                SUCCESS | IN_PROGRESS => deadline.pause(),
                code => return Err(self.failed(comm, reached.done, code)),
            }
        }
    }

    fn late(&self, comm: &mut NcclCommunicator, round: usize, deadline: NcclDeadline) -> NcclError {
        self.ended(comm, round, RoundFailure::Late { limit: deadline.limit })
    }

    pub(super) fn failed(&self, comm: &mut NcclCommunicator, round: usize, code: c_int) -> NcclError {
        let what = comm.calls.text(code, comm.handle);
        self.ended(comm, round, RoundFailure::Failed { code, what })
    }

    fn ended(&self, comm: &mut NcclCommunicator, round: usize, why: RoundFailure) -> NcclError {
        comm.abort();
        let exchanges = self.plan.exchanges();
        // After the last exchange, the kernel may wait for messages.
        let rounds = exchanges.len().max(round + 1);
        let messages = exchanges.get(round).map_or(&[][..], Vec::as_slice);
        let mut peers: Vec<Rank> = messages.iter().map(|message| message.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        NcclError::Round { rank: self.plan.rank(), round, rounds, peers, why }
    }
}
