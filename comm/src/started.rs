//! Collectives that are begun now and end later.
//!
//! The principal type is [`Pending`]. The vectors belong to the call until it is over, and then to the caller again.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::stock::CallKind;
use runtime::{Element, RunResult, Started};
use schedule::{Collective, ReduceOp};
use topology::Rank;

/// A collective under way. If it is dropped before it is over, the communicator is broken.
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
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let Some(mut started) = self.started.take() else { return };
        if !started.test(self.communicator.limit()) {
            self.communicator.dropped();
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
        let mut state = self.state();
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
        self.start_all_reduce(Vec::new(), ReduceOp::Max)
    }
}
