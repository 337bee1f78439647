//! Messages that stand before the messages they wait for, although their times allow the other order.
//!
//! Where messages take no time, or less than the tolerance, their stated starts do not say which comes first: a file
//! may list the message that forwards a chunk before the message that brings it. [`in_causal_order`] looks for an order
//! in which every message, with all its chunks, comes after the messages that bring them. Messages that wait for each
//! other in a cycle have no such order.

use super::moments::Moments;
use super::traffic::{Tracks, Traffic, demand};
use crate::{RankSet, clearly_before};
use std::collections::BTreeMap;
use topology::{Micros, Rank};

/// The same messages, each moved behind the messages that it waits for, within the tolerance; `None` where some wait
/// for ever.
pub(super) fn in_causal_order(traffic: &impl Traffic, moments: &Moments, tracks: &Tracks) -> Option<Moments> {
    let count = traffic.schedule().transfers.len();
    let mut queue = Queue {
        moments,
        tracks,
        carried: plain_hops(traffic, tracks),
        holders: (0..traffic.track_count()).map(|track| &demand(traffic).chunk(traffic.chunk(track)).holders).collect(),
        arrived: BTreeMap::new(),
        waiting: BTreeMap::new(),
        found: vec![0; count],
        start: (0..count as u32).map(|message| moments.start(message)).collect(),
        sent: Vec::with_capacity(moments.departures().len()),
        is_sent: vec![false; count],
    };
    for &message in moments.departures() {
        let mut ready = vec![message];
        while let Some(message) = ready.pop() {
            queue.send(message, &mut ready);
        }
    }
    let Queue { start, sent, .. } = queue;
    (sent.len() == moments.departures().len()).then(|| moments.moved(start, sent))
}

/// For each delivery its track, if the chunk is not combined; of a combined chunk even a part of the sum may be sent.
fn plain_hops(traffic: &impl Traffic, tracks: &Tracks) -> Vec<Option<usize>> {
    let of = |track: usize| {
        let is_plain = !demand(traffic).chunk(traffic.chunk(track)).combine;
        let count = tracks.starts[track + 1] - tracks.starts[track];
        std::iter::repeat_n(is_plain.then_some(track), count as usize)
    };
    (0..traffic.track_count()).flat_map(of).collect()
}

struct Queue<'a> {
    moments: &'a Moments,
    tracks: &'a Tracks,
    carried: Vec<Option<usize>>,
    /// For each track, who holds its chunk from the beginning on.
    holders: Vec<&'a RankSet>,
    /// From when on another rank holds the chunk of a track.
    arrived: BTreeMap<(usize, Rank), Micros>,
    /// Messages that wait for a chunk at a rank.
    waiting: BTreeMap<(usize, Rank), Vec<u32>>,
    /// For each message, so many of its first chunks are known to have arrived.
    found: Vec<u32>,
    start: Vec<Micros>,
    sent: Vec<u32>,
    is_sent: Vec<bool>,
}

impl Queue<'_> {
    /// From when on a rank holds the chunk of a track.
    fn since(&self, key @ (track, rank): (usize, Rank)) -> Option<Micros> {
        let arrived = || self.arrived.get(&key).copied();
        if self.holders[track].has(rank) { Some(Micros(f64::NEG_INFINITY)) } else { arrived() }
    }

    /// Sends a message if all its chunks have arrived, and adds the messages that can now leave. Otherwise the message
    /// waits for its first missing chunk.
    fn send(&mut self, message: u32, ready: &mut Vec<u32>) {
        if self.is_sent[message as usize] {
            return;
        }
        let (tracks, carried) = (self.tracks, std::mem::take(&mut self.carried));
        let stated = self.moments.start(message);
        // The track and the ends of each hop that is not of a sum.
        let hops = tracks.of_message(message).iter().filter_map(|hop| {
            let ends = &tracks.hops[hop.delivery as usize];
            Some((carried[hop.delivery as usize]?, ends.from, ends.to))
        });
        let missing = hops.clone().skip(self.found[message as usize] as usize).find(|&(track, from, _)| {
            let is_there = self.since((track, from)).is_some_and(|since| !clearly_before(stated, since));
            self.found[message as usize] += u32::from(is_there);
            !is_there
        });
        match missing {
            Some((track, from, _)) => self.waiting.entry((track, from)).or_default().push(message),
            None => self.leave(message, hops, ready),
        }
        self.carried = carried;
    }

    /// Sends a message all of whose chunks have arrived.
    fn leave(&mut self, message: u32, hops: impl Iterator<Item = (usize, Rank, Rank)> + Clone, ready: &mut Vec<u32>) {
        let stated = self.moments.start(message);
        let arrived = hops.clone().filter_map(|(track, from, _)| self.since((track, from)));
        let start = arrived.fold(stated, Micros::max);
        self.is_sent[message as usize] = true;
        self.start[message as usize] = start;
        self.sent.push(message);
        let end = start + (self.moments.end(message) - stated);
        for (track, _, to) in hops {
            if self.since((track, to)).is_none_or(|since| end < since) {
                self.arrived.insert((track, to), end);
                ready.extend(self.waiting.remove(&(track, to)).into_iter().flatten());
            }
        }
    }
}
