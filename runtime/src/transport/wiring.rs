//! Which connections of a program are memory, and which are sockets.
//!
//! The principal type is [`Hosts`], which says which ranks share memory; [`Wiring`] is what one rank has for those that
//! do not, and [`Wires`] picks a lane for each connection.

use crate::transport::ring::Rings;
use crate::transport::tcp::{InTurn, Poller, Streams};
use crate::transport::{ReceiveLane, SendLane, Transport};
use program::{Connection, ConnectionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use topology::Rank;

/// Which ranks are on one computer. Ranks of different computers talk over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hosts {
    /// All.
    #[default]
    One,
    /// None: every rank has a computer of its own, or pretends to.
    Each,
    /// Those with the same number; by rank.
    Of(Vec<u32>),
}

impl Hosts {
    /// Whether two ranks are on different computers.
    pub fn apart(&self, a: Rank, b: Rank) -> bool {
        match self {
            Self::One => false,
            Self::Each => a != b,
            Self::Of(hosts) => hosts.get(a.index()) != hosts.get(b.index()),
        }
    }

    /// The ranks of each computer, by its first rank.
    pub fn machines(&self, ranks: usize) -> Vec<Vec<Rank>> {
        let mut machines: Vec<Vec<Rank>> = Vec::new();
        for rank in (0..ranks).map(Rank::from_index) {
            match machines.iter_mut().find(|members| !self.apart(members[0], rank)) {
                Some(members) => members.push(rank),
                None => machines.push(vec![rank]),
            }
        }
        machines
    }

    /// Whether any two of these ranks are.
    pub(crate) fn any_apart(&self, ranks: &[Rank]) -> bool {
        ranks.windows(2).any(|pair| self.apart(pair[0], pair[1]))
    }
}

/// One rank's way to other computers.
#[derive(Default)]
pub(crate) struct Wiring {
    pub(crate) hosts: Hosts,
    pub(crate) streams: Streams,
    /// Present where there are streams.
    pub(crate) poller: Option<Poller>,
}

/// The lanes of one rank for one program.
pub(crate) struct Wires<'a> {
    pub(crate) rings: Rings<'a>,
    pub(crate) wiring: &'a mut Wiring,
    /// How many connections of other programs come before.
    pub(crate) first: u32,
    /// The bytes that a lane must take though its receiver does not.
    pub(crate) backlog: usize,
    /// Where messages between computers have turns: how fast lanes are to be, in bytes per second, if that matters.
    pub(crate) rates: Option<BTreeMap<ConnectionId, f64>>,
}

impl Wires<'_> {
    /// Whether there are any streams.
    pub(crate) fn is_remote(&self) -> bool {
        self.wiring.poller.is_some()
    }

    /// The streams and the poller, for a connection between computers.
    fn remote(&mut self, connection: &Connection) -> Option<(&mut Streams, &Poller)> {
        let Wiring { hosts, streams, poller } = &mut *self.wiring;
        poller.as_ref().filter(|_| hosts.apart(connection.from, connection.to)).map(|poller| (streams, poller))
    }

    /// What a lane is to know about its turns, if it has any.
    fn turns(&self, id: ConnectionId) -> Option<InTurn> {
        self.rates.as_ref().map(|rates| InTurn { rate: rates.get(&id).copied() })
    }
}

impl Transport for Wires<'_> {
    fn sender(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn SendLane>> {
        let (first, backlog, turns) = (self.first, self.backlog, self.turns(id));
        match self.remote(connection) {
            Some((streams, poller)) => streams.sender(ConnectionId(first + id.0), backlog, turns, poller),
            None => Ok(Box::new(self.rings.sender(id, connection)?)),
        }
    }

    fn receiver(&mut self, id: ConnectionId, connection: &Connection) -> io::Result<Box<dyn ReceiveLane>> {
        let first = self.first;
        match self.remote(connection) {
            Some((streams, poller)) => streams.receiver(ConnectionId(first + id.0), poller),
            None => Ok(Box::new(self.rings.receiver(id, connection)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_their_computer() {
        let groups =
            |hosts: Hosts| hosts.machines(4).into_iter().map(|members| members.iter().map(|rank| rank.0).collect());
        let groups = |hosts: Hosts| groups(hosts).collect::<Vec<Vec<u32>>>();
        assert_eq!(groups(Hosts::One), [[0, 1, 2, 3]]);
        assert_eq!(groups(Hosts::Each), [[0], [1], [2], [3]]);
        assert_eq!(groups(Hosts::Of(vec![7, 3, 7, 3])), [[0, 2], [1, 3]]);
        assert_eq!(Hosts::One.machines(0), Vec::<Vec<Rank>>::new());
    }
}
