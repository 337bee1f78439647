//! Whether pairs that are measured together are measured right.
//!
//! The principal function is [`disturbance`]. Each rank sends once alone what it sent in a round, over a distance that
//! differs from rank to rank; where that is clearly faster, what the rounds show is an upper limit and no more.

use super::ProfileError;
use super::bench::Bench;
use super::contention::Alone;
use super::suspects::Scene;
use crate::rounds::{Pair, Round};
use std::collections::BTreeSet;

/// Pairs disturb each other if they are slower together by more than this.
const CLEARLY: f64 = 1.15;
/// Rounds that are looked at.
const ROUNDS: usize = 8;

/// How much slower pairs were in their rounds than alone, at worst.
#[derive(Clone, Debug)]
pub(super) struct Disturbance {
    /// Within machines, and between them; 1 where there is none.
    pub(super) near: f64,
    pub(super) far: f64,
    /// What was clearly slower, with its round and its cost in it.
    pub(super) seen: Vec<(Pair, Round, f64)>,
    /// What pairs cost alone.
    pub(super) alone: Vec<(Pair, f64)>,
}

/// Compares some pairs of some rounds with themselves alone.
pub(super) fn disturbance(bench: &mut Bench<'_>, scene: &Scene<'_>) -> Result<Disturbance, ProfileError> {
    let mut found = Disturbance { near: 1.0, far: 1.0, seen: Vec::new(), alone: Vec::new() };
    let rounds = &scene.view.rounds;
    let looked_at = rounds.len().min(ROUNDS);
    for number in 0..looked_at {
        let round = &rounds[number * rounds.len() / looked_at];
        if round.len() < 2 {
            continue;
        }
        let chosen = (0..round.len()).filter(|flow| flow % looked_at == number);
        for flow in chosen {
            let pair = round[flow];
            let alone = bench.slopes(&[scene.view.load(pair)], 0.04, 2..=5)?.all;
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

impl Disturbance {
    /// Whether any of these pairs was clearly slower.
    pub(super) fn concerns(&self, pairs: &BTreeSet<Pair>) -> bool {
        self.seen.iter().any(|(pair, ..)| pairs.contains(pair))
    }

    /// What pairs probably cost alone.
    pub(super) fn alone(&self, scene: &Scene<'_>) -> Alone {
        let factor = |pair: &Pair| if scene.is_far(pair) { self.far } else { self.near };
        let mut alone = Alone::guess(scene.view, &factor);
        self.alone.iter().for_each(|(pair, beta)| alone.learn(*pair, *beta));
        alone
    }
}
