//! Messages between two ranks.
//!
//! Messages from one rank to another arrive in the order in which they were sent. They and collectives do not wait for each
//! other.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::numbers::message_stream;
use crate::request::BegunCall;
use bytemuck::{cast_slice, cast_slice_mut};
use runtime::{Call, CallPlace, Element, Phase, Prepared, RawCall, RunError};
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use topology::Rank;

/// How long who waits for a message from any rank looks without a pause.
const YIELDING: Duration = Duration::from_millis(2);
/// The pause between two looks afterwards. No bell rings for a message that no call waits for.
const PAUSE: Duration = Duration::from_micros(200);

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

    /// A member whose next message to this rank has come, and is not about to be received by a call that has begun. Until it is
    /// received, the answer is the same or one before it in the order of ranks.
    ///
    /// # Errors
    /// As any call.
    pub fn sender_of_next(&self) -> CommResult<Option<usize>> {
        self.check()?;
        let peers = || (0..self.size()).filter(|&peer| peer != self.rank());
        let (own, id) = (Rank::from_index(self.rank()), self.shared.id);
        let stream = |peer| message_stream(id, Rank::from_index(peer), own);
        let streams = peers().map(|peer| Ok((self.member(peer)?, stream(peer)))).collect::<CommResult<Vec<_>>>()?;
        let arrived = self.shared.session.arrived(&streams).map_err(|error| self.fail(error))?;
        Ok(arrived.and_then(|place| peers().nth(place)))
    }

    /// The same, when there is one or `goes_on` says no. It fails when there is none for as long as a call may go without progress.
    ///
    /// # Errors
    /// As any call.
    pub fn wait_for_sender(&self, since: Instant, goes_on: impl Fn() -> bool) -> CommResult<Option<usize>> {
        loop {
            let found = self.sender_of_next()?;
            if found.is_some() || !goes_on() {
                return Ok(found);
            }
            let waited = since.elapsed();
            if waited > self.limit() {
                return Err(self.fail(RunError::Deadline {
                    rank: self.shared.session.rank(),
                    peer: None,
                    phase: Phase::Work,
                    place: "a receive from any rank".to_owned(),
                    waited_ms: waited.as_millis() as u64,
                    finished: 0,
                }));
            }
            match waited < YIELDING {
                true => std::thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages from any rank are found in memory, whether short or long, and those that a call waits for are left to it.
    #[test]
    fn the_sender_of_a_message_is_found() {
        let ranks = Communicator::local(3).unwrap();
        std::thread::scope(|scope| {
            for world in ranks {
                scope.spawn(move || {
                    let since = Instant::now();
                    for length in [0, 10, 1 << 20] {
                        let data = vec![world.rank() as u8; length];
                        match world.rank() {
                            0 => {
                                let mut heard = [0; 3];
                                for _ in 0..2 {
                                    let from = world.wait_for_sender(since, || true).unwrap().unwrap();
                                    let mut received = vec![9; length];
                                    world.receive(&mut received, from).unwrap();
                                    assert_eq!(received, vec![from as u8; length]);
                                    heard[from] += 1;
                                }
                                assert_eq!(heard, [0, 1, 1]);
                                assert_eq!(world.sender_of_next().unwrap(), None);
                            }
                            _ => world.send(&data, 0).unwrap(),
                        }
                        world.barrier().unwrap();
                    }
                    // What a call waits for is not found.
                    if world.rank() == 0 {
                        let first = world.start_receive::<u8>(1, 1).unwrap();
                        assert_eq!(world.wait_for_sender(since, || false).unwrap(), None);
                        world.barrier().unwrap();
                        assert_eq!(world.wait_for_sender(since, || true).unwrap(), Some(2));
                        assert_eq!(first.wait().unwrap(), [1]);
                        let mut last = [0_u8];
                        world.receive(&mut last, 2).unwrap();
                    } else {
                        world.barrier().unwrap();
                        world.send(&[world.rank() as u8], 0).unwrap();
                    }
                });
            }
        });
    }

    /// Who sends nothing is waited for as long as any call is.
    #[test]
    fn a_message_from_any_rank_has_a_deadline() {
        let ranks = Communicator::local(2).unwrap();
        ranks[0].set_time_limit(Duration::from_millis(20));
        let error = ranks[0].wait_for_sender(Instant::now(), || true).unwrap_err();
        assert!(error.to_string().contains("a receive from any rank"), "{error}");
        assert!(ranks[1].send(&[1_u8], 0).is_err(), "the communicator is broken");
    }

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
