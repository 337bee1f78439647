//! Messages between ranks that have mapped each other's memory.
//!
//! The principal functions are [`Derivation::put`] and [`Derivation::take_put`]. Such a message is put and taken in the same stage, at
//! different levels. A rank that takes it later than it came, because its place is still in use, takes it to an inbox. So the kernels of
//! a stage wait for each other only, and for nothing that comes after an exchange. Levels order what a rank does in a stage: each message
//! is taken at a higher level than it was put at, so no ranks wait for each other in a circle.

use super::{Derivation, RoundTime, SentMessage, StageWork, WorkKind, WorkPlace, overlap};
use program::{ConnectionId, Slice};
use topology::Rank;

impl Derivation<'_> {
    /// Whether the kernel moves the messages of a connection.
    pub(super) fn is_mapped(&self, connection: ConnectionId) -> bool {
        let ends = self.program.connections[connection.index()];
        self.domains[ends.from.index()] == self.domains[ends.to.index()]
    }

    pub(super) fn put(&mut self, rank: Rank, to: ConnectionId, source: Slice) {
        let place = WorkPlace::Buffer(source);
        let ready = self.last(rank, place, false);
        let connection = &mut self.connections[to.index()];
        let at = ready.max(connection.put).next_work();
        let number = self.first_message[to.index()] + connection.received.len() + connection.sent.len();
        connection.put = at;
        connection.sent.push_back(SentMessage { at, source });
        self.add(rank, WorkKind::Put(number), [place, place], source, at);
    }

    /// Takes a message, and reduces it with `src` if there is one.
    pub(super) fn take_put(&mut self, rank: Rank, from: ConnectionId, src: Option<Slice>, dst: Slice) {
        let number = self.first_message[from.index()] + self.connections[from.index()].received.len();
        let connection = &mut self.connections[from.index()];
        let Some(SentMessage { at: put, source }) = connection.sent.pop_front() else { return };
        let came = put.max(connection.taken).next_work();
        let destination = WorkPlace::Buffer(dst);
        let given = src.map_or(destination, WorkPlace::Buffer);
        let free = self.last(rank, destination, true).max(self.last(rank, given, false));
        let at = came.max(free.next_work());
        // A destination that is a part of what is reduced would be overwritten too early.
        let overlaps = src.is_some_and(|src| src != dst && overlap(src, dst));
        if at.round == put.round && !overlaps {
            let kind = src.map_or(WorkKind::Take(number), |_| WorkKind::TakeReduce(number));
            self.connections[from.index()].taken = at;
            self.received(from, [put, at], source, destination, dst);
            return self.add(rank, kind, [given, destination], dst, at);
        }
        let inbox = WorkPlace::Inbox(number);
        self.connections[from.index()].taken = came;
        self.received(from, [put, came], source, inbox, dst);
        self.add(rank, WorkKind::Take(number), [inbox, inbox], dst, came);
        match src {
            None => self.work(rank, WorkKind::Copy, inbox, destination, dst, came),
            Some(src) if src == dst => self.work(rank, WorkKind::Reduce, inbox, destination, dst, came),
            Some(_) => {
                self.work(rank, WorkKind::Reduce, given, inbox, dst, came);
                let reduced = self.work[rank.index()].last();
                let reduced = reduced.map_or(came, |it| RoundTime { round: it.stage, level: it.level });
                self.work(rank, WorkKind::Copy, inbox, destination, dst, reduced);
            }
        }
    }

    /// Work of the kernel at a time, from one place to another.
    fn add(&mut self, rank: Rank, kind: WorkKind, [source, destination]: [WorkPlace; 2], shape: Slice, at: RoundTime) {
        self.mark(rank, source, false, at);
        if !matches!(kind, WorkKind::Put(_)) {
            self.mark(rank, destination, true, at);
        }
        self.work[rank.index()].push(StageWork { stage: at.round, level: at.level, kind, source, destination, shape });
    }
}
