//! How fast a rank sends to other computers.

use program::{ConnectionId, Program};
use std::collections::BTreeMap;
use topology::{Micros, MicrosPerByte};

/// Faster than this, in bytes per second, a timer for every segment costs more than queues do.
const FASTEST_PACED: f64 = 2.5e9;

/// A lane is slower than another if it has less than this share of its rate: measured rates differ a little.
const SLOWER: f64 = 0.8;

/// By how much a lane may be faster than its plan, whose rates were measured, and which a pause must not hold up for good.
pub(super) const HEADROOM: f64 = 1.05;

/// The rates of lanes to other computers, in bytes per second, of a rank that sends these messages at these times: a little
/// more than the plan counts on, but where a lane sends next to slower ones, no more than these leave it of what they share. A
/// plan takes a slow message for done with the sender's interface once it could have left; in truth it goes at its receiver's
/// pace, and would lose what others take.
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

/// Whether any messages of two lanes are on their way at once; those of a lane follow each other, in this order.
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

    /// As all pairs of messages say.
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
