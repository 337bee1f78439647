//! Messages between pairs of GPUs over NCCL, as a profile times them.
//!
//! The principal type is [`NcclExchanges`]. All messages with one number make a group on each rank: the first of all exchanges, then the
//! second, and so on. So both ends of a message are in the group of the same number, and no rank waits for another in a circle.

use super::calls::{IN_PROGRESS, SUCCESS};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::error::NcclError;
use crate::device::cuda::{GpuDevice, GpuError, GpuMemory};
use std::ffi::{c_int, c_void};
use topology::{Exchange, Rank};

/// The most bytes of all messages of one number, on one rank.
const MOST_BYTES: u64 = 1 << 34;
/// NCCL's number of bytes as a type.
const BYTE: c_int = 1;

/// One rank's end of an exchange.
#[derive(Clone, Copy, Debug)]
struct ExchangeEnd {
    peer: Rank,
    is_sent: bool,
    bytes: u64,
    messages: u32,
    /// Where it begins in the memory.
    at: u64,
}

/// One rank's ends of exchanges that take place at the same time.
#[derive(Debug)]
pub(super) struct NcclExchanges {
    ends: Vec<ExchangeEnd>,
    memory: GpuMemory,
    /// The exchanges that this rank receives.
    pub(super) received: Vec<usize>,
}

impl NcclExchanges {
    pub(super) fn new(
        gpu: &GpuDevice,
        (rank, ranks): (Rank, usize),
        exchanges: &[Exchange],
        known: Option<GpuMemory>,
    ) -> Result<Self, NcclError> {
        let (mut ends, mut received, mut total) = (Vec::new(), Vec::new(), 0u64);
        for (index, &Exchange { from, to, bytes, messages }) in exchanges.iter().enumerate() {
            if from == to || from.index() >= ranks || to.index() >= ranks {
                return Err(NcclError::NoExchange { from, to, ranks });
            }
            for (end, peer, is_sent) in [(from, to, true), (to, from, false)] {
                if end == rank {
                    ends.push(ExchangeEnd { peer, is_sent, bytes, messages, at: total });
                    total = total.saturating_add(bytes.next_multiple_of(16));
                    received.extend((!is_sent).then_some(index));
                }
            }
        }
        if total > MOST_BYTES {
            return Err(NcclError::Gpu(GpuError::Room { has: MOST_BYTES as usize, given: total as usize }));
        }
        let memory = match known.filter(|memory| memory.bytes() as u64 >= total) {
            Some(memory) => memory,
            None => GpuMemory::new(gpu, total as usize)?,
        };
        Ok(Self { ends, memory, received })
    }

    /// How many groups there are.
    pub(super) fn groups(&self) -> u32 {
        self.ends.iter().map(|end| end.messages).max().unwrap_or(0)
    }

    /// The memory is never given back, because the stream does not end.
    pub(super) fn keep(&self) {
        self.memory.keep();
    }

    /// The memory, for other exchanges.
    pub(super) fn into_memory(self) -> GpuMemory {
        self.memory
    }

    /// Puts a group into a stream of the communicator's GPU.
    pub(super) fn put(
        &self,
        comm: &mut NcclCommunicator,
        stream: *mut c_void,
        number: u32,
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        comm.check()?;
        let (calls, handle, doing) = (comm.calls, comm.handle, "exchanging messages");
        // SAFETY: it takes nothing.
        comm.checked(doing, unsafe { (calls.group_start)() })?;
        let mut code = SUCCESS;
        for end in self.ends.iter().filter(|end| end.messages > number) {
            let (at, count, peer) = (self.memory.address() + end.at, end.bytes as usize, end.peer.0 as c_int);
            let given = match end.is_sent {
                // SAFETY: all ends have places of their own in the memory. Whoever has this value waits for the stream before it drops
                // it, or keeps the memory.
                true => unsafe { (calls.send)(at as _, count, BYTE, peer, handle, stream) },
                // SAFETY: as above.
                false => unsafe { (calls.receive)(at as _, count, BYTE, peer, handle, stream) },
            };
            if code == SUCCESS && given != IN_PROGRESS {
                code = given;
            }
        }
        // SAFETY: it takes nothing.
        let ended = unsafe { (calls.group_end)() };
        let code = if code == SUCCESS { ended } else { code };
        if code != IN_PROGRESS {
            comm.checked(doing, code)?;
        }
        comm.settle(doing, deadline)
    }
}
