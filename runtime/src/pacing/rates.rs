//! How fast a rank sends to other computers.

use program::{ConnectionId, Program};
use std::collections::BTreeMap;
use topology::{Micros, MicrosPerByte};

/// The highest rate that is paced, in bytes per second. Above it, a timer for every segment costs more than queues do.
const FASTEST_PACED: f64 = 2.5e9;

/// A lane counts as slower than another below this share of the other's rate, because measured rates differ a little.
const SLOWER: f64 = 0.8;

/// A lane may be faster than its plan by this factor: the plan's rates were measured, and a lane must recover from a
/// pause.
pub(super) const HEADROOM: f64 = 1.05;

/// The rates of a rank's lanes to other computers, in bytes per second. `messages` are the messages that it sends, with
/// start and end. A lane may be a little faster than its plan. While slower lanes send too, it gets only what they
/// leave of the port that they share, but at least half of its own rate. A plan assumes that a slow message leaves the
/// sender's interface at full speed. In truth it leaves at the pace of its receiver, and would lose what faster lanes
/// take.
pub(super) fn rates(
    program: &Program,
    messages: impl Iterator<Item = (ConnectionId, [Micros; 2])>,
) -> BTreeMap<ConnectionId, f64> {
    let mut lanes: BTreeMap<ConnectionId, Vec<[Micros; 2]>> = BTreeMap::new();
    for (lane, times) in messages {
        lanes.entry(lane).or_default().push(times);
    }
    lanes.values_mut().for_each(|times| times.sort_unstable_by(|a, b| a[0].0.total_cmp(&b[0].0)));
    let per_second = |betas: &[MicrosPerByte], lane: ConnectionId| Some(1e6 / betas.get(lane.index())?.0);
    let rate = |lane: ConnectionId| per_second(&program.tempo.rates, lane);
    let pace = |(&lane, times): (&ConnectionId, &Vec<[Micros; 2]>)| {
        let (own, port) = (rate(lane)?, per_second(&program.tempo.ports, lane)?);
        let beside = lanes
            .iter()
            .filter(|(other, theirs)| rate(**other).is_some_and(|rate| rate < SLOWER * own) && overlap(times, theirs));
        let taken: f64 = beside.filter_map(|(&other, _)| rate(other)).sum();
        let pace = own.min((port - taken).max(own / 2.0)) * HEADROOM;
        Some((lane, pace)).filter(|_| pace < FASTEST_PACED)
    };
    lanes.iter().filter_map(pace).collect()
}

/// Whether two lanes ever have messages on their way at the same time. Messages of one lane are in order.
fn overlap(one: &[[Micros; 2]], other: &[[Micros; 2]]) -> bool {
    let mut other = other.iter().peekable();
    one.iter().any(|one| {
        while other.next_if(|other| other[1].0 <= one[0].0).is_some() {}
        other.peek().is_some_and(|other| other[0].0 < one[1].0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a check of all pairs of messages.
    #[test]
    fn lanes_overlap_where_any_of_their_messages_do() {
        let lane = |mut bits: u32| {
            let mut times = Vec::new();
            while bits != 0 {
                let start = bits.trailing_zeros();
                let end = start + (bits >> start).trailing_ones();
                times.push([Micros(f64::from(start)), Micros(f64::from(end))]);
                bits &= !0 << end;
            }
            times
        };
        for (one, other) in (0..64).flat_map(|one| (0..64).map(move |other| (one, other))) {
            assert_eq!(overlap(&lane(one), &lane(other)), one & other != 0, "{one:b} {other:b}");
        }
    }
}
