//! The messages of a schedule chunk by chunk, for a plain schedule and for a compressed one.
//!
//! The principal types are [`Traffic`], the messages, and [`Tracks`], the senders and receivers of each chunk. A plain
//! schedule has a track for every chunk. A compressed one has a track for the first chunk of each orbit; base transfers
//! that carry another chunk of the orbit are mapped to it.

use super::moments::Moments;
use super::structure;
use crate::{ChunkId, Delivery, Demand, Schedule, Transfer, TransferKind};
use topology::{Micros, Rank, Topology};

/// One chunk of one message, as part of its track.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) kind: TransferKind,
}

/// Something that serves one message at a time: a link by its id, then the resources.
pub(super) type ServerId = usize;

/// The messages that are verified.
pub(super) trait Traffic: Sync {
    /// The schedule, or the base of a compressed one.
    fn schedule(&self) -> &Schedule;
    /// The number of tracks.
    fn track_count(&self) -> usize;
    /// The chunk that a track is about.
    fn chunk(&self, track: usize) -> ChunkId;
    /// Every hop of a message, with its track.
    fn hops(&self, message: u32, give: &mut dyn FnMut(usize, Hop));
    /// The links and resources that a message keeps busy, for how long from its start, and for how many images of it.
    fn servers(&self, message: u32, give: &mut dyn FnMut(ServerId, Micros, usize));
}

/// The transfers of `schedule` with their stated starts, and ends that follow from their links.
pub(super) fn stated(schedule: &Schedule, topology: &Topology, ranks: usize) -> Moments {
    let transfers = &schedule.transfers;
    let takes_part = |t: &Transfer| structure::is_timed(t) && t.from.index() < ranks && t.to.index() < ranks;
    let departures = (0..transfers.len() as u32).filter(|&t| takes_part(&transfers[t as usize])).collect();
    let end = |transfer: &Transfer| match topology.links().get(transfer.link.index()) {
        Some(link) => {
            let known = structure::known_chunks(schedule, transfer);
            transfer.start + link.transfer_time(schedule.demand.message_bytes(&known))
        }
        None => transfer.start.max(transfer.end),
    };
    Moments::new(transfers.iter().map(|t| t.start).collect(), transfers.iter().map(end).collect(), departures)
}

/// The hops of each chunk in order of departure, and the deliveries of each message.
pub(super) struct Tracks {
    pub(super) starts: Vec<u32>,
    pub(super) hops: Vec<Hop>,
    pub(super) deliveries: Vec<Delivery>,
    firsts: Vec<u32>,
    of_message: Vec<OnTrack>,
}

/// A delivery and its track.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnTrack {
    pub(super) delivery: u32,
    pub(super) track: u32,
}

impl Tracks {
    pub(super) fn of(traffic: &impl Traffic, moments: &Moments) -> Self {
        let mut starts = vec![0u32; traffic.track_count() + 1];
        for &message in moments.departures() {
            traffic.hops(message, &mut |track, _| starts[track + 1] += 1);
        }
        for track in 1..starts.len() {
            starts[track] += starts[track - 1];
        }
        let count = starts[starts.len() - 1] as usize;
        let nobody = Hop { from: Rank(0), to: Rank(0), kind: TransferKind::Copy };
        let (mut hops, mut deliveries) = (vec![nobody; count], vec![Delivery::new(0); count]);
        let (mut next, mut of_message) = (starts.clone(), Vec::with_capacity(count));
        let mut firsts = vec![0; traffic.schedule().transfers.len() + 1];
        let mut ends = firsts.clone();
        for &message in moments.departures() {
            firsts[message as usize] = of_message.len() as u32;
            traffic.hops(message, &mut |track, hop| {
                let place = next[track];
                next[track] += 1;
                (hops[place as usize], deliveries[place as usize]) = (hop, Delivery::new(message));
                of_message.push(OnTrack { delivery: place, track: track as u32 });
            });
            ends[message as usize] = of_message.len() as u32;
        }
        let firsts = firsts.into_iter().zip(ends).flat_map(|(first, end)| [first, end]).collect();
        Self { starts, hops, deliveries, firsts, of_message }
    }

    /// The deliveries of a message.
    pub(super) fn of_message(&self, message: u32) -> &[OnTrack] {
        let [first, end] = [self.firsts[2 * message as usize], self.firsts[2 * message as usize + 1]];
        &self.of_message[first as usize..end as usize]
    }
}

/// A plain schedule.
pub(super) struct Plain<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) topology: &'a Topology,
}

impl Traffic for Plain<'_> {
    fn schedule(&self) -> &Schedule {
        self.schedule
    }

    fn track_count(&self) -> usize {
        self.schedule.demand.chunks().len()
    }

    fn chunk(&self, track: usize) -> ChunkId {
        ChunkId(track as u32)
    }

    fn hops(&self, message: u32, give: &mut dyn FnMut(usize, Hop)) {
        let transfer = &self.schedule.transfers[message as usize];
        let Transfer { from, to, kind, .. } = *transfer;
        for chunk in structure::known_chunks(self.schedule, transfer).iter() {
            give(chunk.index(), Hop { from, to, kind });
        }
    }

    fn servers(&self, message: u32, give: &mut dyn FnMut(ServerId, Micros, usize)) {
        let transfer = &self.schedule.transfers[message as usize];
        let Some(link) = self.topology.links().get(transfer.link.index()) else { return };
        let bytes = self.schedule.demand.message_bytes(&structure::known_chunks(self.schedule, transfer));
        give(transfer.link.index(), link.occupancy(bytes), 1);
        for &resource in &link.resources {
            let busy = self.topology.resource(resource).occupancy(link, bytes);
            give(self.topology.links().len() + resource.index(), busy, 1);
        }
    }
}

/// The demand of the schedule that is verified.
pub(super) fn demand(traffic: &impl Traffic) -> &Demand {
    &traffic.schedule().demand
}
