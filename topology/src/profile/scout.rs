//! A first look at every pair: suitable message sizes, and the rough cost.
//!
//! The principal function is [`scout`]. A length that takes little time on one link takes minutes on another. The
//! longest message of a pair is therefore found by doubling, until it takes about as long as a sample should. All pairs
//! of a round run at once, even if they disturb each other. No rank sends while it receives: acknowledgements would
//! queue behind data, and this cost depends more on the congestion control than on the machine.

use super::bench::{Bench, ProbeFlow, REPETITIONS, Slope};
use super::{ProfileError, ProfileOptions};
use crate::Exchange;
use crate::robust::median;
use crate::rounds::{Pair, Round, apart, shifts};
use std::collections::BTreeMap;

/// The shortest message that shows something of the bandwidth, in bytes.
const FIRST: u64 = 64 << 10;
/// The bytes of a message whose time is almost only α.
pub(super) const TINY: u64 = 64;

/// What the first look shows of a pair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Glimpse {
    /// The longest message worth timing.
    pub(super) long: u64,
    /// The time of a tiny message.
    pub(super) alpha: f64,
    /// The cost of a byte while the rest of the round runs.
    pub(super) slope: Slope,
    /// The mean time of a byte of the longest message in the round.
    pub(super) lasting: f64,
}

/// The result of the first look.
pub(super) struct View {
    pub(super) pairs: BTreeMap<Pair, Glimpse>,
    /// The rounds in which they were seen.
    pub(super) rounds: Vec<Round>,
}

impl View {
    /// The flow that a pair sends when it is measured together with others.
    pub(super) fn load(&self, pair: Pair) -> ProbeFlow {
        (pair, self.pairs.get(&pair).map_or(FIRST, |glimpse| glimpse.long))
    }
}

/// Looks at every pair that the probe connects.
pub(super) fn scout(
    bench: &mut Bench<'_>,
    ranks: usize,
    connected: &dyn Fn(&Pair) -> bool,
    options: &ProfileOptions,
) -> Result<View, ProfileError> {
    let rounds = apart(ranks, 0, shifts(ranks).flatten().filter(connected), &|_| Vec::new());
    let mut pairs = BTreeMap::new();
    for (index, round) in rounds.iter().enumerate() {
        let loads = lengths(bench, round, options)?;
        let tiny: Vec<Exchange> =
            round.iter().map(|&Pair { from, to }| Exchange { from, to, bytes: TINY, messages: 1 }).collect();
        let times = bench.run(&tiny, REPETITIONS)?;
        let slopes = bench.slopes(&loads, options.glance, 2..=3)?;
        for (flow, (pair, long)) in loads.into_iter().enumerate() {
            let alpha = median(times.iter().map(|times| times[flow].0).collect());
            pairs.insert(pair, Glimpse { long, alpha, slope: slopes.each[flow], lasting: slopes.lasting[flow] });
        }
        bench.report(index + 1, rounds.len());
    }
    Ok(View { pairs, rounds })
}

/// The longest message for each pair of a round.
fn lengths(bench: &mut Bench<'_>, round: &Round, options: &ProfileOptions) -> Result<Vec<ProbeFlow>, ProfileError> {
    let mut loads: Vec<ProbeFlow> = round.iter().map(|pair| (*pair, FIRST)).collect();
    let mut growing = vec![true; round.len()];
    while growing.contains(&true) {
        let open: Vec<usize> = (0..round.len()).filter(|&flow| growing[flow]).collect();
        let exchange = |&flow: &usize| {
            let (Pair { from, to }, bytes) = loads[flow];
            Exchange { from, to, bytes, messages: 1 }
        };
        let times = bench.run(&open.iter().map(exchange).collect::<Vec<_>>(), 1)?;
        for (flow, time) in open.into_iter().zip(times.into_iter().flatten()) {
            let bytes = &mut loads[flow].1;
            // The last step goes to the length that follows from the time so far; the other steps double.
            let grown = options.long(time.0 / *bytes as f64);
            growing[flow] = grown >= 4 * *bytes && options.sample_time / time >= 4.0;
            *bytes = if growing[flow] { 4 * *bytes } else { grown };
        }
    }
    Ok(loads)
}
