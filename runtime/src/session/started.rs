//! A call under way that owns its buffers.
//!
//! The principal type is [`Started`].

use super::buffers::RawCall;
use super::{CallPlace, Prepared, Session, Ticket};
use crate::element::Element;
use crate::error::RunResult;
use std::time::Duration;

/// A call under way, with the vectors that it uses. If it is dropped before it is over, it is cancelled.
pub struct Started<T> {
    session: Session,
    ticket: Ticket,
    /// What the session said at the end.
    result: Option<RunResult<()>>,
    /// What is only read; `None` in place.
    _input: Option<Vec<T>>,
    output: Vec<T>,
}

impl Session {
    /// Begins a call that owns its buffers; without an input it is in place.
    ///
    /// # Errors
    /// As [`Session::start`].
    #[expect(unsafe_code, reason = "keeps the buffers until the call is over")]
    pub fn start_owned<T: Element>(
        &self,
        prepared: &Prepared,
        at: CallPlace,
        input: Option<Vec<T>>,
        mut output: Vec<T>,
    ) -> RunResult<Started<T>> {
        let (start, bytes) = (output.as_mut_ptr().cast(), size_of_val(&*output));
        let buffers = match &input {
            // SAFETY: the vector is kept, and used by nobody else, until the call is over (`Started`). Any bytes are an element.
            None => unsafe { RawCall::in_place(start, bytes) },
            // SAFETY: the same for both vectors.
            Some(input) => unsafe {
                RawCall::out_of_place((input.as_ptr().cast(), size_of_val(&**input)), (start, bytes))
            },
        };
        let ticket = self.start(prepared, at, buffers)?;
        Ok(Started { session: self.clone(), ticket, result: None, _input: input, output })
    }
}

impl<T> Started<T> {
    /// Whether the call is over.
    /// A call that has not moved for longer than `limit` has failed.
    pub fn test(&mut self, limit: Duration) -> bool {
        if self.result.is_none() {
            self.result = self.session.test(self.ticket, limit);
        }
        self.result.is_some()
    }

    /// Waits until the call is over, or until `goes_on` says no: see [`Session::wait_while`]. Whether it is over.
    pub fn wait_while(&mut self, limit: Duration, goes_on: impl Fn() -> bool) -> bool {
        if self.result.is_none() {
            self.result = self.session.wait_while(self.ticket, limit, goes_on);
        }
        self.result.is_some()
    }

    /// Waits until the call is over; its output, or what both buffers were in place.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn wait(mut self, limit: Duration) -> RunResult<Vec<T>> {
        let result = self.result.take().unwrap_or_else(|| self.session.wait(self.ticket, limit));
        self.result = Some(Ok(()));
        result.map(|()| std::mem::take(&mut self.output))
    }
}

impl<T> Drop for Started<T> {
    fn drop(&mut self) {
        if self.result.is_none() {
            self.session.cancel(self.ticket);
        }
    }
}
