//! Simulated annealing over drafts.
//!
//! The principal type is [`Chain`]. Each step changes the present draft a little and plays it. The new draft is kept if
//! it costs no more than the present one plus a random allowance, which shrinks from step to step. The number of steps
//! is fixed beforehand, from the size of the plan and not from the clock.

use super::chunk_history::ChunkHistory;
use super::clock::DraftClock;
use super::draft::{Draft, SendingId};
use super::recreate::{RepairWeights, recreate};
use super::ruin::ruin;
use crate::problem::tolerance::{beats, reaches};
use crate::problem::{Deadline, Problem};
use crate::strategies::shuffle::shuffle;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use schedule::ChunkId;
use topology::Micros;

/// The allowance at the start and at the end, relative to the cost.
const WARM: f64 = 6e-3;
const COLD: f64 = 1e-4;

/// One annealing search from one draft.
pub(super) struct Chain<'a> {
    problem: &'a Problem,
    clock: DraftClock<'a>,
    history: ChunkHistory<'a>,
    present: Draft,
    cost: f64,
    critical: Vec<SendingId>,
    /// The best draft so far, and its makespan.
    pub(super) best: Draft,
    pub(super) makespan: Micros,
    random: Pcg64Mcg,
}

impl<'a> Chain<'a> {
    /// A chain that starts from a draft; `None` if the draft cannot be played.
    pub(super) fn new(problem: &'a Problem, draft: Draft, random: Pcg64Mcg) -> Option<Self> {
        let mut chain = Self {
            problem,
            clock: DraftClock::new(problem),
            history: ChunkHistory::new(problem),
            present: Draft::default(),
            cost: f64::INFINITY,
            critical: Vec::new(),
            best: Draft::default(),
            makespan: Micros(f64::INFINITY),
            random,
        };
        let cost = chain.clock.play(&draft, f64::INFINITY)?;
        chain.accept(&draft, cost);
        Some(chain)
    }

    /// A chain that starts from a new draft, built chunk by chunk in random order. `None` if that fails, or if the
    /// deadline passes meanwhile.
    pub(super) fn from_nothing(
        problem: &'a Problem,
        weights: RepairWeights,
        deadline: &Deadline,
        random: Pcg64Mcg,
    ) -> Option<Self> {
        let chunks = problem.demand.chunks().len();
        let mut chain = Self::new(problem, Draft::new(problem.topology.rank_count(), chunks), random)?;
        let mut order: Vec<ChunkId> = problem.demand.chunk_ids().collect();
        shuffle(&mut order, |below| chain.random.random_range(0..below));
        for chunk in order {
            let mut draft = chain.present.clone();
            if deadline.has_passed()
                || !recreate(problem, &mut draft, &chain.history, chunk, weights, &mut chain.random)
            {
                return None;
            }
            let cost = chain.clock.play(&draft, f64::INFINITY)?;
            chain.makespan = Micros(f64::INFINITY);
            chain.accept(&draft, cost);
        }
        Some(chain)
    }

    /// Runs a number of steps, or until the goal or the deadline.
    pub(super) fn run(&mut self, steps: u32, goal: Micros, deadline: &Deadline) {
        let mut candidate = Draft::default();
        let mut lacking = Vec::new();
        for step in 0..steps {
            if reaches(self.makespan, goal) || deadline.has_passed() {
                return;
            }
            candidate.clone_from(&self.present);
            lacking.clear();
            if !ruin(self.problem, &mut candidate, &self.history, &self.critical, &mut lacking, &mut self.random) {
                continue;
            }
            if !self.repair(&mut candidate, &mut lacking) {
                continue;
            }
            let heat = WARM * (COLD / WARM).powf(f64::from(step) / f64::from(steps));
            let chance = self.random.random::<f64>().max(1e-12);
            let limit = self.cost * (1.0 - heat * chance.ln());
            if let Some(cost) = self.clock.play(&candidate, limit) {
                self.accept(&candidate, cost);
            }
        }
    }

    fn repair(&mut self, candidate: &mut Draft, lacking: &mut Vec<ChunkId>) -> bool {
        lacking.sort_unstable();
        lacking.dedup();
        shuffle(lacking, |below| self.random.random_range(0..below));
        let random = &mut self.random;
        let price = [0.0, 0.25, 1.0, 4.0][random.random_range(0..4)];
        let weights = RepairWeights {
            price,
            noise: random.random::<f64>() * 0.5,
            push: random.random::<f64>() * 0.3,
            overlook: [0.0, 0.05, 0.2][random.random_range(0..3)],
        };
        lacking.iter().all(|&chunk| recreate(self.problem, candidate, &self.history, chunk, weights, &mut self.random))
    }

    /// Makes the draft that was just played the present one.
    fn accept(&mut self, draft: &Draft, cost: f64) {
        let mut played = std::mem::take(&mut self.clock.played);
        draft.renumbered(&mut self.present, &mut played, self.clock.start(), &self.problem.topology);
        self.clock.played = played;
        self.cost = cost;
        self.history.write(&self.present, self.clock.held());
        self.critical = self.history.critical();
        if beats(self.clock.makespan, self.makespan) {
            self.makespan = self.clock.makespan;
            self.best.clone_from(&self.present);
        }
    }
}
