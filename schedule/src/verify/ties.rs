//! Messages that stand before the messages they wait for, although their times allow the other order.
//!
//! Where messages take no time, or less than the tolerance, their stated starts do not say which comes first: a file
//! may list the message that forwards a chunk before the message that brings it. [`in_causal_order`] looks for an order
//! in which every message, with all its chunks, comes after the messages that bring them. Messages that wait for each
//! other in a cycle have no such order.

use super::moments::Moments;
use super::traffic::{Tracks, Traffic, demand};
use crate::clearly_before;
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
        held: BTreeMap::new(),
        waiting: BTreeMap::new(),
        start: (0..count as u32).map(|message| moments.start(message)).collect(),
        sent: Vec::with_capacity(moments.departures().len()),
        is_sent: vec![false; count],
    };
    for track in 0..traffic.track_count() {
        let chunk = demand(traffic).chunk(traffic.chunk(track));
        if !chunk.combine && tracks.starts[track] < tracks.starts[track + 1] {
            queue.held.extend(chunk.holders.iter().map(|&rank| ((track, rank), Micros(f64::NEG_INFINITY))));
        }
    }
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
    /// From when on a rank holds the chunk of a track.
    held: BTreeMap<(usize, Rank), Micros>,
    /// Messages that wait for a chunk at a rank.
    waiting: BTreeMap<(usize, Rank), Vec<u32>>,
    start: Vec<Micros>,
    sent: Vec<u32>,
    is_sent: Vec<bool>,
}

impl Queue<'_> {
    /// Sends a message if all its chunks have arrived, and adds the messages that can now leave. Otherwise the message
    /// waits for its first missing chunk.
    fn send(&mut self, message: u32, ready: &mut Vec<u32>) {
        if self.is_sent[message as usize] {
            return;
        }
        let tracks = self.tracks;
        let deliveries = || tracks.of_message(message).iter().map(|hop| hop.delivery);
        let mut start = self.moments.start(message);
        for delivery in deliveries() {
            let Some(track) = self.carried[delivery as usize] else { continue };
            let key = (track, tracks.hops[delivery as usize].from);
            match self.held.get(&key) {
                Some(&since) if !clearly_before(self.moments.start(message), since) => start = start.max(since),
                _ => return self.waiting.entry(key).or_default().push(message),
            }
        }
        self.is_sent[message as usize] = true;
        self.start[message as usize] = start;
        self.sent.push(message);
        let end = start + (self.moments.end(message) - self.moments.start(message));
        for delivery in deliveries() {
            let Some(track) = self.carried[delivery as usize] else { continue };
            let key = (track, tracks.hops[delivery as usize].to);
            let since = self.held.entry(key).or_insert(Micros(f64::INFINITY));
            if end < *since {
                *since = end;
                ready.extend(self.waiting.remove(&key).into_iter().flatten());
            }
        }
    }
}
