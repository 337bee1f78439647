//! Whether pairs that are measured together slow each other down.
//!
//! The principal function is [`disturbance`]. Some ranks of each round repeat alone what they sent in it, so that each
//! rank does this about once. Where a pair is clearly faster alone, the costs of the rounds are only upper limits.

use super::ProfileError;
use super::bench::Bench;
use super::contention::Alone;
use super::suspects::Scene;
use crate::rounds::{Pair, Round};

/// Pairs disturb each other if they are slower together by more than this.
const CLEARLY: f64 = 1.15;
/// Rounds that are looked at.
const ROUNDS: usize = 8;

/// By which factor pairs were slower in their rounds than alone, at worst.
#[derive(Clone, Debug)]
pub(super) struct Disturbance {
    /// Within machines, and between them; 1 where pairs do not disturb each other.
    pub(super) near: f64,
    pub(super) far: f64,
    /// Pairs that were clearly slower, each with its round and its cost in it.
    pub(super) seen: Vec<(Pair, Round, f64)>,
    /// What pairs cost alone.
    pub(super) alone: Vec<(Pair, f64)>,
}

/// Measures some pairs of some rounds again, alone.
pub(super) fn disturbance(bench: &mut Bench<'_>, scene: &Scene<'_>) -> Result<Disturbance, ProfileError> {
    let mut found = Disturbance { near: 1.0, far: 1.0, seen: Vec::new(), alone: Vec::new() };
    let rounds = &scene.view.rounds;
    let looked_at = rounds.len().min(ROUNDS);
    let mut turns = vec![0; scene.places.rank_count()];
    for number in 0..looked_at {
        let round = &rounds[number * rounds.len() / looked_at];
        if round.len() < 2 {
            continue;
        }
        for flow in chosen(round, scene.places.rank_count().div_ceil(looked_at), &mut turns) {
            let pair = round[flow];
            let alone = bench.slopes(&[scene.view.load(pair)], 0.04, 2..=4)?.all;
            found.alone.push((pair, alone.beta));
            let Some(glimpse) = scene.view.pairs.get(&pair) else { continue };
            if glimpse.slope.beta <= CLEARLY * (alone.beta + alone.margin) {
                continue;
            }
            let loads: Vec<_> = round.iter().map(|pair| scene.view.load(*pair)).collect();
            let again = bench.slopes(&loads, 0.08, 2..=4)?.each[flow];
            if again.beta - again.margin > CLEARLY * (alone.beta + alone.margin) {
                let side = if scene.is_far(&pair) { &mut found.far } else { &mut found.near };
                *side = side.max(again.beta / alone.beta.max(f64::MIN_POSITIVE));
                found.seen.push((pair, round.clone(), again.beta));
            }
        }
        bench.report(number + 1, looked_at);
    }
    Ok(found)
}

/// At most `most` flows of a round, those whose senders had the fewest `turns`.
fn chosen(round: &[Pair], most: usize, turns: &mut [usize]) -> Vec<usize> {
    let mut flows: Vec<usize> = (0..round.len()).collect();
    flows.sort_by_key(|&flow| turns[round[flow].from.index()]);
    flows.truncate(most);
    flows.iter().for_each(|&flow| turns[round[flow].from.index()] += 1);
    flows
}

impl Disturbance {
    /// The probable cost of pairs alone.
    pub(super) fn alone(&self, scene: &Scene<'_>) -> Alone {
        let factor = |pair: &Pair| if scene.is_far(pair) { self.far } else { self.near };
        let mut alone = Alone::guess(scene.view, &factor);
        self.alone.iter().for_each(|(pair, beta)| alone.learn(*pair, *beta));
        alone
    }
}
