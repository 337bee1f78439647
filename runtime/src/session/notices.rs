//! What ranks tell each other besides messages: that a communicator is broken, and for whom they wait.

use super::ports::LanePorts;
use crate::transport::notice::{BreachNotice, WaitNotice};
use topology::Rank;

impl LanePorts {
    /// Tells all peers that a communicator is broken.
    pub(crate) fn tell(&mut self, notice: BreachNotice) {
        if let Ok(own) = self.directory.memory(self.rank) {
            own.notices().write(notice);
        }
        for peer in &self.remote {
            if let Some(port) = &mut self.ports[peer.index()] {
                port.tell(notice);
            }
        }
    }

    /// Tells all peers for whom this rank waits.
    pub(crate) fn tell_wait(&mut self, notice: WaitNotice) {
        if let Ok(own) = self.directory.memory(self.rank) {
            own.notices().write_wait(notice);
        }
        for peer in &self.remote {
            if let Some(port) = &mut self.ports[peer.index()] {
                port.tell_wait(notice);
            }
        }
    }

    /// For whom a peer waits in a communicator, and has waited for long.
    pub(crate) fn waits_for(&self, peer: Rank, communicator: u64) -> Option<Rank> {
        match self.ports.get(peer.index())? {
            Some(port) => port.waits_for(communicator),
            None => self.directory.memory(peer).ok()?.notices().waits_for(communicator),
        }
    }

    /// What a peer has told of a communicator.
    pub(crate) fn told(&self, peer: Rank, communicator: u64) -> Option<BreachNotice> {
        match &self.ports[peer.index()] {
            Some(port) => port.told(communicator),
            None => self.directory.memory(peer).ok()?.notices().find(communicator),
        }
    }
}
