//! Messages between two ranks.
//!
//! Messages from one rank to another arrive in the order in which they were sent. They and collectives do not wait for each
//! other.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::numbers::message_stream;
use crate::request::BegunCall;
use bytemuck::{cast_slice, cast_slice_mut};
use runtime::{Call, CallPlace, Element, Prepared, RawCall};
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use topology::Rank;

/// A message, as one of its two ends sees it, with the lock of all messages: it is dropped when the message has its place.
pub(crate) struct OrderedMessage<'a> {
    _order: MutexGuard<'a, BTreeMap<(usize, bool), u32>>,
    pub(crate) prepared: Prepared,
    /// Which messages it is in order with, and which of them it is.
    pub(crate) at: CallPlace,
}

impl Communicator {
    /// The next message to a member, or from it.
    pub(crate) fn message(&self, peer: usize, bytes: usize, is_sent: bool) -> CommResult<OrderedMessage<'_>> {
        let rank = self.member(peer)?;
        self.check()?;
        let session = &self.shared.session;
        let (from, to, prepared) = match is_sent {
            true => (self.rank(), peer, session.prepare_send(rank, bytes)),
            false => (peer, self.rank(), session.prepare_receive(rank, bytes)),
        };
        let stream = message_stream(self.shared.id, Rank::from_index(from), Rank::from_index(to));
        let mut order = self.messages();
        let count = order.entry((peer, is_sent)).or_default();
        *count = count.wrapping_add(1);
        let at = CallPlace { communicator: self.shared.id, stream, number: *count };
        Ok(OrderedMessage { _order: order, prepared, at })
    }

    /// Sends a message to a rank. It returns when the vector may be changed again, which may be before the message is received.
    ///
    /// # Errors
    /// [`CommError`](crate::CommError).
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> CommResult<()> {
        let message = self.message(to, size_of_val(data), true)?;
        self.exchange_message(message, Call::OutOfPlace { input: cast_slice(data), output: &mut [] })
    }

    /// Receives a message from a rank; it must be as long as the vector.
    ///
    /// # Errors
    /// [`CommError`](crate::CommError).
    pub fn receive<T: Element>(&self, into: &mut [T], from: usize) -> CommResult<()> {
        let message = self.message(from, size_of_val(into), false)?;
        self.exchange_message(message, Call::OutOfPlace { input: &[], output: cast_slice_mut(into) })
    }

    fn exchange_message(&self, message: OrderedMessage<'_>, call: Call<'_>) -> CommResult<()> {
        let at = message.at;
        let result = self.shared.session.call_holding(message, |message| &message.prepared, at, call, self.limit());
        result.map_err(|error| self.refused(at, error))
    }

    /// Sends or receives a message of so many bytes that is given by its address, as the only buffer of the call.
    ///
    /// # Errors
    /// [`CommError`](crate::CommError).
    pub fn begin_message(&self, buffers: RawCall, bytes: usize, peer: usize, is_sent: bool) -> CommResult<BegunCall> {
        let message = self.message(peer, bytes, is_sent)?;
        let (at, started) = (message.at, self.shared.session.start(&message.prepared, message.at, buffers));
        drop(message);
        let ticket = started.map_err(|error| self.refused(at, error))?;
        Ok(BegunCall::new(self.clone(), ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nobody has received goes with the communicator, and so does what comes later.
    #[test]
    fn messages_of_a_communicator_that_is_gone_are_not_kept() {
        const BYTES: usize = 1 << 10;
        let ranks = Communicator::local(2).unwrap();
        std::thread::scope(|scope| {
            for world in ranks {
                scope.spawn(move || {
                    let other = world.duplicate().unwrap();
                    let kept = || world.shared.session.kept_bytes();
                    // A barrier comes after the messages, and takes them out of its way.
                    let send = |times: usize| (0..times).for_each(|_| other.send(&[1_u8; BYTES], 1).unwrap());
                    if world.rank() == 0 {
                        send(10);
                        world.barrier().unwrap();
                        world.barrier().unwrap();
                        send(10);
                        world.barrier().unwrap();
                        return;
                    }
                    world.barrier().unwrap();
                    assert!(kept() >= 10 * BYTES, "{} bytes", kept());
                    drop(other);
                    assert_eq!(kept(), 0);
                    world.barrier().unwrap();
                    world.barrier().unwrap();
                    assert_eq!(kept(), 0);
                });
            }
        });
    }

    /// A thread that waits in a collective does not keep another thread of its rank from sending.
    #[test]
    fn messages_go_while_another_thread_waits_in_a_collective() {
        let ranks = Communicator::local(2).unwrap();
        let [one, other] = &ranks[..] else { unreachable!("there are two") };
        std::thread::scope(|scope| {
            scope.spawn(|| one.barrier().unwrap());
            scope.spawn(|| {
                // The barrier has begun, and cannot end before the message.
                while one.state().calls == 0 {
                    std::thread::yield_now();
                }
                one.send(&[7_u8; 10], 1).unwrap();
            });
            let mut heard = [0_u8; 10];
            other.receive(&mut heard, 0).unwrap();
            assert_eq!(heard, [7; 10]);
            other.barrier().unwrap();
        });
    }
}
