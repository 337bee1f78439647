//! Measures every pair: sweeps over message sizes and counts, repeated until α and β are known well enough.
//!
//! The principal function is [`sweep`]. Every pass runs all rounds with all settings, each time in another order, so
//! that a burst or a drift of the machine affects all pairs and settings alike. Pairs that are known well enough are
//! left out.

use super::bench::{Bench, PARTS, REPETITIONS, shift};
use super::scout::{TINY, View};
use super::{ProfileError, ProfileOptions};
use crate::Exchange;
use crate::fit::{LinkFit, Sample, fit_link};
use crate::rounds::{Pair, Round};
use std::collections::BTreeMap;
use std::time::Instant;

/// Message sizes, in parts of the longest message, and how many messages follow each other; zero is a tiny message.
const SETTINGS: [(u64, u32); 6] = [(0, 1), (HALF, 1), (PARTS / 32, 8), (0, 16), (PARTS / 16, 1), (PARTS, 1)];

const HALF: u64 = PARTS / 2;

/// A setting is measured again if α + β·bytes misses it by this relative error.
const MISSED: f64 = 0.1;

/// Fits every pair of the rounds.
pub(super) fn sweep(
    bench: &mut Bench<'_>,
    rounds: &[Round],
    view: &View,
    options: &ProfileOptions,
) -> Result<BTreeMap<Pair, LinkFit>, ProfileError> {
    let started = Instant::now();
    let mut samples: BTreeMap<Pair, Vec<Sample>> = BTreeMap::new();
    let mut fits: BTreeMap<Pair, LinkFit> = BTreeMap::new();
    let mut open: Vec<Round> = rounds.to_vec();
    let most = options.most_turns.max(options.least_turns).max(1);
    for turn in 1..=most {
        let rounds_open = open.len();
        for (index, round) in open.iter().enumerate() {
            for setting in 0..SETTINGS.len() {
                let (parts, messages) = SETTINGS[(setting + turn as usize + index) % SETTINGS.len()];
                let parts = match parts {
                    PARTS => PARTS - shift(turn),
                    HALF => HALF + shift(turn),
                    parts => parts,
                };
                let unknown = |pair: &&Pair| fits.get(*pair).is_none_or(|fit| is_open(fit, parts, turn, options));
                let flows: Round = round.iter().filter(unknown).copied().collect();
                if !flows.is_empty() {
                    time(bench, &flows, (parts, messages), view, &mut samples)?;
                }
            }
            bench.report((turn as usize - 1) * rounds_open + index + 1, most as usize * rounds_open);
        }
        if turn < options.least_turns {
            continue;
        }
        for pair in open.iter().flatten() {
            let samples = samples.get(pair).map_or(&[][..], Vec::as_slice);
            let fit = fit_link(samples).map_err(|cause| ProfileError::Fit { from: pair.from, to: pair.to, cause })?;
            fits.insert(*pair, fit);
        }
        for round in &mut open {
            let more = |fit: &LinkFit| is_open(fit, 0, turn + 1, options) || is_open(fit, PARTS, turn + 1, options);
            round.retain(|pair| fits.get(pair).is_some_and(more));
        }
        open.retain(|round| !round.is_empty());
        if open.is_empty() || started.elapsed() > options.budget || bench.is_late() {
            break;
        }
    }
    Ok(fits)
}

/// Whether a pass still needs the setting with this many parts. Tiny messages give α and cost nothing; others give β. A
/// setting that the model misses is measured again, up to twice the least number of passes; after that the link really
/// behaves so.
fn is_open(fit: &LinkFit, parts: u64, turn: u32, options: &ProfileOptions) -> bool {
    let patient = turn <= 2 * options.least_turns;
    let known = if parts == 0 { options.knows_alpha(fit) } else { options.knows_beta(fit) };
    !known || patient && fit.worst_error > MISSED
}

fn time(
    bench: &mut Bench<'_>,
    round: &Round,
    (parts, messages): (u64, u32),
    view: &View,
    samples: &mut BTreeMap<Pair, Vec<Sample>>,
) -> Result<(), ProfileError> {
    let exchange = |&pair: &Pair| {
        let bytes = (view.load(pair).1 * parts / PARTS).max(TINY);
        Exchange { from: pair.from, to: pair.to, bytes, messages }
    };
    let exchanges: Vec<Exchange> = round.iter().map(exchange).collect();
    for times in bench.run(&exchanges, REPETITIONS)? {
        for ((pair, exchange), time) in round.iter().zip(&exchanges).zip(times) {
            samples.entry(*pair).or_default().push(Sample { bytes: exchange.bytes, messages, time });
        }
    }
    Ok(())
}
