//! A rank's ends of a program's connections.
//!
//! The principal types are [`Lanes`] and, per direction, [`ConnectionEnds`]. Besides payload, a lane carries a few
//! words that do not count as bytes of a message: the stamp of a collective, and arrival times on an emulated machine.
//! Words are aligned to their own size, so that no window of a lane ends inside them.

use crate::error::{RunError, RunResult};
use crate::transport::{LaneRequest, ReceiveLane, SendLane, Transports};
use program::{Connection, ConnectionId};
use std::io;
use topology::Rank;

/// One end of a connection.
struct ConnectionEnd<L: ?Sized> {
    lane: Box<L>,
    peer: Rank,
    /// How many bytes have passed, words and padding included.
    position: u64,
    /// Whether this end is in [`ConnectionEnds::keeping`].
    keeps: bool,
}

/// A rank's ends of one direction, by connection; `None` for connections of other ranks.
pub(crate) struct ConnectionEnds<L: ?Sized> {
    rank: Rank,
    ends: Vec<Option<ConnectionEnd<L>>>,
    /// The lanes that may still keep bytes that were sent.
    keeping: Vec<ConnectionId>,
}

/// All ends of a rank.
pub(crate) struct Lanes {
    /// Whether a lane may keep sent bytes until it is flushed.
    pub(crate) remote: bool,
    pub(crate) outgoing: ConnectionEnds<dyn SendLane>,
    pub(crate) incoming: ConnectionEnds<dyn ReceiveLane>,
}

impl Lanes {
    /// Takes `rank`'s ends of a program's connections. `request` describes each lane.
    pub(crate) fn new<'r>(
        rank: Rank,
        connections: &'r [Connection],
        transports: &mut Transports<'_>,
        request: impl Fn(ConnectionId, &'r Connection) -> LaneRequest<'r>,
    ) -> RunResult<Self> {
        let (count, remote) = (connections.len(), transports.poller().is_some());
        let mut outgoing: ConnectionEnds<dyn SendLane> = ConnectionEnds::new(rank, count);
        let mut incoming: ConnectionEnds<dyn ReceiveLane> = ConnectionEnds::new(rank, count);
        for (index, connection) in connections.iter().enumerate() {
            let lane = request(ConnectionId(index as u32), connection);
            outgoing.add(connection.from, connection.to, || transports.sender(&lane))?;
            incoming.add(connection.to, connection.from, || transports.receiver(&lane))?;
        }
        Ok(Self { remote, outgoing, incoming })
    }
}

impl<L: ?Sized> ConnectionEnds<L> {
    fn new(rank: Rank, count: usize) -> Self {
        Self { rank, ends: Vec::with_capacity(count), keeping: Vec::new() }
    }

    /// Adds the end of the next connection, if it belongs to this rank.
    fn add(&mut self, owner: Rank, peer: Rank, open: impl FnOnce() -> io::Result<Box<L>>) -> RunResult<()> {
        let end = if owner == self.rank {
            let lane = open().map_err(|source| RunError::Lane { rank: owner, peer, source })?;
            Some(ConnectionEnd { lane, peer, position: 0, keeps: false })
        } else {
            None
        };
        self.ends.push(end);
        Ok(())
    }

    /// Applies `work` to an end. An error names the peer.
    fn with<'l, T>(
        &'l mut self,
        id: ConnectionId,
        work: impl FnOnce(&'l mut ConnectionEnd<L>) -> io::Result<T>,
    ) -> RunResult<T> {
        let rank = self.rank;
        let Some(end) = &mut self.ends[id.index()] else {
            return Err(RunError::Program { rank, fault: format!("it uses connection {} of other ranks", id.0) });
        };
        let peer = end.peer;
        work(end).map_err(|source| RunError::Lane { rank, peer, source })
    }

    /// How many bytes to skip so that `size` bytes are aligned.
    fn padding(&mut self, id: ConnectionId, size: usize) -> RunResult<usize> {
        self.with(id, |end| Ok((end.position.next_multiple_of(size as u64) - end.position) as usize))
    }
}

impl ConnectionEnds<dyn SendLane> {
    /// The room that can be filled now.
    pub(crate) fn room(&mut self, id: ConnectionId) -> RunResult<&mut [u8]> {
        self.with(id, |end| end.lane.reserve())
    }

    /// Hands the filled room over.
    pub(crate) fn commit(&mut self, id: ConnectionId, bytes: usize) -> RunResult<()> {
        self.may_keep(id);
        self.with(id, |end| {
            end.position += bytes as u64;
            end.lane.commit(bytes)
        })
    }

    /// Sends as much of `data` as possible. Returns how much (see [`SendLane::send`]).
    pub(crate) fn send(&mut self, id: ConnectionId, data: &[u8]) -> RunResult<usize> {
        self.may_keep(id);
        self.with(id, |end| {
            let sent = end.lane.send(data)?;
            end.position += sent as u64;
            Ok(sent)
        })
    }

    /// Offers the data of a later message. Returns whether it was offered (see [`SendLane::offer`]).
    pub(crate) fn offer(&mut self, id: ConnectionId, data: &[u8]) -> RunResult<bool> {
        self.with(id, |end| end.lane.offer(data))
    }

    /// Sends what the lanes still keep. Returns whether nothing is left.
    pub(crate) fn flush(&mut self) -> RunResult<bool> {
        let mut left = 0;
        for at in 0..self.keeping.len() {
            let id = self.keeping[at];
            let keeps = self.with(id, |end| {
                end.keeps = !end.lane.flush()?;
                Ok(end.keeps)
            })?;
            if keeps {
                self.keeping[left] = id;
                left += 1;
            }
        }
        self.keeping.truncate(left);
        Ok(left == 0)
    }

    fn may_keep(&mut self, id: ConnectionId) {
        if let Some(end) = &mut self.ends[id.index()]
            && !std::mem::replace(&mut end.keeps, true)
        {
            self.keeping.push(id);
        }
    }

    /// Sends all words or none. Returns whether they were sent.
    pub(crate) fn send_words<const N: usize>(&mut self, id: ConnectionId, words: [u64; N]) -> RunResult<bool> {
        let padding = self.padding(id, 8 * N)?;
        if self.room(id)?.len() < padding {
            return Ok(false);
        }
        self.commit(id, padding)?;
        let room = self.room(id)?;
        if room.len() < 8 * N {
            return Ok(false);
        }
        for (place, word) in room.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        self.commit(id, 8 * N)?;
        Ok(true)
    }
}

impl ConnectionEnds<dyn ReceiveLane> {
    /// The bytes that have arrived. The caller needs at most `most` of them.
    pub(crate) fn peek(&mut self, id: ConnectionId, most: usize) -> RunResult<&[u8]> {
        self.with(id, |end| end.lane.peek(most))
    }

    /// Receives into the beginning of `into`. Returns how much.
    pub(crate) fn receive(&mut self, id: ConnectionId, into: &mut [u8]) -> RunResult<usize> {
        self.with(id, |end| {
            let received = end.lane.receive(into)?;
            end.position += received as u64;
            Ok(received)
        })
    }

    /// Admits `bytes` more bytes (see [`ReceiveLane::admit`]).
    pub(crate) fn admit(&mut self, id: ConnectionId, bytes: usize) -> RunResult<()> {
        self.with(id, |end| end.lane.admit(bytes))
    }

    /// Gives the room of used bytes back.
    pub(crate) fn release(&mut self, id: ConnectionId, bytes: usize) -> RunResult<()> {
        self.with(id, |end| {
            end.position += bytes as u64;
            end.lane.release(bytes)
        })
    }

    /// Receives all words or none.
    pub(crate) fn receive_words<const N: usize>(&mut self, id: ConnectionId) -> RunResult<Option<[u64; N]>> {
        let padding = self.padding(id, 8 * N)?;
        if self.peek(id, padding)?.len() < padding {
            return Ok(None);
        }
        self.release(id, padding)?;
        let data = self.peek(id, 8 * N)?;
        if data.len() < 8 * N {
            return Ok(None);
        }
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(data.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.release(id, 8 * N)?;
        Ok(Some(words))
    }
}
