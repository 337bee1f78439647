//! Calls under way.
//!
//! The principal type is [`Request`].

use crate::communicator::Communicator;
use crate::error::CommResult;
use runtime::{RunResult, Ticket};

/// A call under way. If it is dropped before it is over, it is cancelled, and the communicator is broken.
pub struct BegunCall {
    communicator: Communicator,
    ticket: Ticket,
    is_over: bool,
}

impl BegunCall {
    pub(crate) fn new(communicator: Communicator, ticket: Ticket) -> Self {
        Self { communicator, ticket, is_over: false }
    }

    /// Whether the call is over. Once it has said so, or failed, the memory is the caller's again.
    ///
    /// # Errors
    /// Why the call has failed.
    pub fn test(&mut self) -> CommResult<bool> {
        if self.is_over {
            return Ok(true);
        }
        match self.communicator.shared.session.test(self.ticket, self.communicator.limit()) {
            None => Ok(false),
            Some(result) => self.end(result).map(|()| true),
        }
    }

    /// Waits until the call is over.
    ///
    /// # Errors
    /// Why the call has failed.
    pub fn wait(&mut self) -> CommResult<()> {
        if self.is_over {
            return Ok(());
        }
        let result = self.communicator.shared.session.wait(self.ticket, self.communicator.limit());
        self.end(result)
    }

    /// Waits until the call is over, or until `goes_on` says no, which is asked at least every 50 ms. Whether it is over.
    ///
    /// # Errors
    /// Why the call has failed.
    pub fn wait_while(&mut self, goes_on: impl Fn() -> bool) -> CommResult<bool> {
        if self.is_over {
            return Ok(true);
        }
        let session = &self.communicator.shared.session;
        match session.wait_while(self.ticket, self.communicator.limit(), goes_on) {
            None => Ok(false),
            Some(result) => self.end(result).map(|()| true),
        }
    }

    fn end(&mut self, result: RunResult<()>) -> CommResult<()> {
        self.is_over = true;
        result.map_err(|error| self.communicator.fail(error))
    }
}

impl Drop for BegunCall {
    fn drop(&mut self) {
        if !self.is_over {
            self.communicator.shared.session.cancel(self.ticket);
            self.communicator.dropped();
        }
    }
}
