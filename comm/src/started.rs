//! Collectives and messages that are begun now and end later.
//!
//! The principal type is [`Pending`]. The vectors belong to the call until it is over, and then to the caller again.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::point_to_point::OrderedMessage;
use crate::stock::CallKind;
use runtime::{Element, Moment, RunResult, Started};
use schedule::{Collective, ReduceOp};
use std::ops::Range;
use std::time::Duration;
use topology::Rank;

/// A collective or a message under way. If it is dropped before it is over, the communicator is broken.
pub struct Pending<T> {
    communicator: Communicator,
    started: Option<Started<T>>,
}

impl<T> Pending<T> {
    /// Whether the call is over. It goes on while it is tested, and while this rank waits for any call.
    pub fn test(&mut self) -> bool {
        let limit = self.communicator.limit();
        self.started.as_mut().is_none_or(|started| started.test(limit))
    }

    /// Waits until the call is over; what was received.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn wait(mut self) -> CommResult<Vec<T>> {
        let Some(started) = self.started.take() else { return Ok(Vec::new()) };
        started.wait(self.communicator.limit()).map_err(|error| self.communicator.fail(error))
    }

    /// Waits until the call is over, for `timeout` at most, or up to 50 ms longer. Whether it is over; otherwise it
    /// stays under way.
    pub fn wait_for(&mut self, timeout: Duration) -> bool {
        let (limit, end) = (self.communicator.limit(), Moment::now().after(timeout));
        self.started.as_mut().is_none_or(|started| started.wait_while(limit, || Moment::now() < end))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let Some(mut started) = self.started.take() else { return };
        let limit = self.communicator.limit();
        if !started.test(limit) {
            self.communicator.dropped();
        } else if let Err(error) = started.wait(limit) {
            self.communicator.fail(error);
        }
    }
}

impl Communicator {
    fn start<T: Element>(
        &self,
        kind: CallKind,
        count: usize,
        input: Option<Vec<T>>,
        output: Vec<T>,
    ) -> CommResult<Pending<T>> {
        let mut state = self.usable_state()?;
        let (prepared, at) = self.ready(&mut state, kind, count, T::DTYPE)?;
        let started: RunResult<_> = self.shared.session.start_owned(prepared, at, input, output);
        drop(state);
        let started = started.map_err(|error| self.refused(at, error))?;
        Ok(Pending { communicator: self.clone(), started: Some(started) })
    }

    fn zeroes<T: Element>(length: usize) -> Vec<T> {
        vec![T::zeroed(); length]
    }

    fn rooted(&self, collective: Collective, root: usize) -> CommResult<(CallKind, bool)> {
        self.member(root)?;
        let kind = CallKind { root: Some(Rank::from_index(root)), ..CallKind::plain(collective) };
        Ok((kind, self.rank() == root))
    }

    /// See [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`CommError`]; so do all.
    pub fn start_all_reduce<T: Element>(&self, vector: Vec<T>, op: ReduceOp) -> CommResult<Pending<T>> {
        let kind = CallKind { op: Some(op), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        self.start(kind, vector.len(), None, vector)
    }

    /// See [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_all_reduce_into<T: Element>(&self, send: Vec<T>, op: ReduceOp) -> CommResult<Pending<T>> {
        let kind = CallKind { op: Some(op), ..CallKind::plain(Collective::AllReduce) };
        let (count, receive) = (send.len(), Self::zeroes(send.len()));
        self.start(kind, count, Some(send), receive)
    }

    /// See [`Communicator::all_gather`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_all_gather<T: Element>(&self, send: Vec<T>) -> CommResult<Pending<T>> {
        let kind = CallKind::plain(Collective::AllGather);
        let (count, receive) = (send.len(), Self::zeroes(send.len() * self.size()));
        self.start(kind, count, Some(send), receive)
    }

    /// See [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_reduce_scatter<T: Element>(&self, send: Vec<T>, op: ReduceOp) -> CommResult<Pending<T>> {
        let kind = CallKind { op: Some(op), ..CallKind::plain(Collective::ReduceScatter) };
        let count = self.block_length(send.len())?;
        self.start(kind, count, Some(send), Self::zeroes(count))
    }

    /// See [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_all_to_all<T: Element>(&self, send: Vec<T>) -> CommResult<Pending<T>> {
        let kind = CallKind::plain(Collective::AllToAll);
        let (count, receive) = (self.block_length(send.len())?, Self::zeroes(send.len()));
        self.start(kind, count, Some(send), receive)
    }

    /// See [`Communicator::all_to_all_v`]; what is received ends with the last of its blocks, and is zero between them.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_all_to_all_v<T: Element>(
        &self,
        mut send: Vec<T>,
        sends: &[Range<usize>],
        receives: &[Range<usize>],
    ) -> CommResult<Pending<T>> {
        let end = receives.iter().map(|block| block.end).max().unwrap_or(0);
        let [sent, received] = self.exchanged::<T>([(sends, send.len()), (receives, end)])?;
        let prepared = self.prepare_exchange(&sent, &received)?;
        let [input, output] = prepared.lengths();
        send.truncate(input / size_of::<T>());
        let (state, at) = self.place_of_exchange(&prepared)?;
        let receive = Self::zeroes(output / size_of::<T>());
        let started = self.shared.session.start_owned(&prepared, at, Some(send), receive);
        drop(state);
        let started = started.map_err(|error| self.refused(at, error))?;
        Ok(Pending { communicator: self.clone(), started: Some(started) })
    }

    /// See [`Communicator::send`]; nothing is received.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_send<T: Element>(&self, data: Vec<T>, to: usize) -> CommResult<Pending<T>> {
        let message = self.message(to, size_of_val(&*data), true)?;
        self.start_message(message, data, Vec::new())
    }

    /// See [`Communicator::receive`]; the message has `count` elements.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_receive<T: Element>(&self, count: usize, from: usize) -> CommResult<Pending<T>> {
        let into = Self::zeroes(count);
        let message = self.message(from, size_of_val(&*into), false)?;
        self.start_message(message, Vec::new(), into)
    }

    fn start_message<T: Element>(
        &self,
        message: OrderedMessage<'_>,
        data: Vec<T>,
        into: Vec<T>,
    ) -> CommResult<Pending<T>> {
        let (at, started) =
            (message.at, self.shared.session.start_owned(&message.prepared, message.at, Some(data), into));
        drop(message);
        let started = started.map_err(|error| self.refused(at, error))?;
        Ok(Pending { communicator: self.clone(), started: Some(started) })
    }

    /// See [`Communicator::broadcast`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_broadcast<T: Element>(&self, vector: Vec<T>, root: usize) -> CommResult<Pending<T>> {
        let (kind, _) = self.rooted(Collective::Broadcast, root)?;
        self.start(CallKind { in_place: true, ..kind }, vector.len(), None, vector)
    }

    /// See [`Communicator::reduce`]; what is received is empty on all ranks but the root.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_reduce<T: Element>(&self, send: Vec<T>, op: ReduceOp, root: usize) -> CommResult<Pending<T>> {
        let (kind, is_root) = self.rooted(Collective::Reduce, root)?;
        let (count, receive) = (send.len(), Self::zeroes(if is_root { send.len() } else { 0 }));
        self.start(CallKind { op: Some(op), ..kind }, count, Some(send), receive)
    }

    /// See [`Communicator::gather`]; what is received is empty on all ranks but the root.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_gather<T: Element>(&self, send: Vec<T>, root: usize) -> CommResult<Pending<T>> {
        let (kind, is_root) = self.rooted(Collective::Gather, root)?;
        let (count, receive) = (send.len(), Self::zeroes(if is_root { send.len() * self.size() } else { 0 }));
        self.start(kind, count, Some(send), receive)
    }

    /// See [`Communicator::scatter`]; `count` elements are received, and `send` is empty on all ranks but the root.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_scatter<T: Element>(&self, send: Vec<T>, count: usize, root: usize) -> CommResult<Pending<T>> {
        let (kind, _) = self.rooted(Collective::Scatter, root)?;
        self.start(kind, count, Some(send), Self::zeroes(count))
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn start_barrier(&self) -> CommResult<Pending<u8>> {
        self.start_all_reduce_into(vec![0], ReduceOp::Max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const LIMIT: Duration = Duration::from_secs(20);

    fn on_all(ranks: usize, work: impl Fn(&Communicator) + Sync) {
        std::thread::scope(|scope| {
            for comm in Communicator::local(ranks).unwrap() {
                let work = &work;
                scope.spawn(move || work(&comm));
            }
        });
    }

    #[test]
    fn calls_that_were_begun_give_what_others_give() {
        for count in [1, 20_000] {
            on_all(3, |comm| {
                let own = comm.rank();
                let sum = comm.start_all_reduce_into(vec![own as i64; count], ReduceOp::Sum).unwrap();
                let (to, from) = ((own + 1) % 3, (own + 2) % 3);
                let received = comm.start_receive::<i64>(count, from).unwrap();
                let sent = comm.start_send(vec![own as i64; count], to).unwrap();
                // Rank r sends r + 1 elements to each. Two elements of the buffer are not sent, and one is not received.
                let sends = [0, 1, 2].map(|to| to * (own + 1)..(to + 1) * (own + 1));
                let receives = [1..2, 2..4, 4..7];
                let blocks = comm.start_all_to_all_v(vec![own as u8; 3 * (own + 1) + 2], &sends, &receives).unwrap();
                assert_eq!(blocks.wait().unwrap(), [0, 0, 1, 1, 2, 2, 2]);
                assert_eq!(received.wait().unwrap(), vec![from as i64; count]);
                assert!(sent.wait().unwrap().is_empty());
                assert_eq!(sum.wait().unwrap(), vec![3; count]);
                let beyond = comm.start_all_to_all_v(vec![0_u8; 2], &[0..1, 1..2, 2..3], &receives);
                assert!(matches!(beyond, Err(crate::CommError::Argument(_))));
                assert!(comm.start_send(vec![0_u8], 3).is_err());
                comm.barrier().unwrap();
            });
        }
    }

    #[test]
    fn a_wait_of_a_while_leaves_the_call_under_way() {
        let waited = Barrier::new(2);
        on_all(2, |comm| {
            if comm.rank() == 0 {
                let mut pending = comm.start_barrier().unwrap();
                assert!(!pending.wait_for(Duration::from_millis(1)));
                waited.wait();
                assert!(pending.wait_for(LIMIT));
                pending.wait().unwrap();
            } else {
                waited.wait();
                comm.barrier().unwrap();
            }
        });
    }

    #[test]
    fn a_failed_call_that_is_dropped_breaks_the_communicator() {
        let dropped = Barrier::new(2);
        on_all(2, |comm| {
            if comm.rank() == 0 {
                comm.set_time_limit(Duration::from_millis(50));
                let mut pending = comm.start_barrier().unwrap();
                assert!(pending.wait_for(LIMIT), "its own limit is shorter");
                drop(pending);
                dropped.wait();
                assert!(comm.start_barrier().is_err());
            } else {
                dropped.wait();
                let told = comm.barrier().unwrap_err().to_string();
                assert!(told.contains("a call of rank 0 failed"), "{told}");
            }
        });
    }
}
