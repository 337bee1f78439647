//! One measurement: a program run several times on real buffers, with its answer checked.
//!
//! The principal types are [`Trial`] and its [`TrialReport`]. The same code runs a rank in a thread and in a
//! process. Buffers are refilled before every repetition, outside the timed part (in place, values would grow
//! otherwise), and guard bytes around them show writes out of bounds.

use crate::clock::Moment;
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::executor::{Buffers, Executor, GUARD};
use crate::heap::Area;
use crate::memory::Call;
use crate::reference::Reference;
use schedule::program::Program;
use serde::{Deserialize, Serialize};
use topology::{Micros, Rank};

/// Whether answers are compared with the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The first and the last repetition.
    #[default]
    FirstAndLast,
    /// None; somebody has checked this program at this size before.
    Skip,
}

/// The most timed repetitions of one trial: what every rank must be able to report at the end.
pub(crate) const MOST_REPETITIONS: u32 = 1 << 20;

/// How often, on what, and how a program is run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Elements of one block (`schedule::program::Layout`).
    pub count: u64,
    /// Their type.
    pub dtype: DType,
    /// Untimed repetitions first.
    pub warmups: u32,
    /// Timed repetitions, at most 2²⁰.
    pub repetitions: u32,
    /// Of the inputs.
    pub seed: u64,
    /// Whether answers are checked.
    pub check: Check,
}

impl Trial {
    /// One checked repetition.
    pub fn once(count: u64, dtype: DType) -> Self {
        Self { count, dtype, warmups: 0, repetitions: 1, seed: 0, check: Check::FirstAndLast }
    }
}

/// When one rank started and ended one repetition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Its start.
    pub start: Moment,
    /// Its end.
    pub end: Moment,
}

/// What one rank found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RankReport {
    /// The timed repetitions.
    pub samples: Vec<Sample>,
    /// Elements that were wrong, over all checked repetitions: of the output, of an input that must not change,
    /// and of the guards.
    pub wrong: u64,
}

/// What all ranks found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrialReport {
    /// By rank.
    pub ranks: Vec<RankReport>,
}

impl TrialReport {
    /// Wrong elements over all ranks.
    pub fn wrong(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.wrong).sum()
    }

    /// For each repetition, the global span: from the first start to the last end of any rank.
    pub fn spans(&self) -> Vec<Micros> {
        let repetitions = self.ranks.iter().map(|rank| rank.samples.len()).min().unwrap_or(0);
        let span = |repetition: usize| {
            let samples = || self.ranks.iter().map(|rank| rank.samples[repetition]);
            let start = samples().map(|sample| sample.start).min().unwrap_or_default();
            samples().map(|sample| sample.end).max().unwrap_or_default().micros_since(start)
        };
        (0..repetitions).map(span).collect()
    }
}

const GUARD_BYTE: u8 = 0xa5;
/// What an output holds before a collective; no small integer has this pattern.
const POISON: u8 = 0xcc;

/// A buffer with guard bytes on both sides.
struct Guarded(Area);

impl Guarded {
    fn new(mut area: Area) -> Self {
        area.fill(GUARD_BYTE);
        Self(area)
    }

    fn get(&mut self) -> &mut [u8] {
        let end = self.0.len() - GUARD;
        &mut self.0[GUARD..end]
    }

    fn damage(&self) -> u64 {
        let (low, high) = (&self.0[..GUARD], &self.0[self.0.len() - GUARD..]);
        low.iter().chain(high).filter(|&&byte| byte != GUARD_BYTE).count() as u64
    }
}

/// The buffers of one rank, with what is needed to fill and check them.
struct Bench {
    input: Guarded,
    output: Guarded,
}

impl Bench {
    fn new(buffers: Buffers) -> Self {
        Self { input: Guarded::new(buffers.input), output: Guarded::new(buffers.output) }
    }

    /// The buffer of an in-place call: a rank's program names only the larger.
    fn larger(&mut self) -> &mut Guarded {
        if self.input.0.len() > self.output.0.len() { &mut self.input } else { &mut self.output }
    }

    fn refill(&mut self, rank: Rank, program: &Program, reference: &Reference<'_>) {
        let places = reference.places(rank);
        self.output.get().fill(POISON);
        if program.in_place {
            let buffer = self.larger().get();
            buffer.fill(POISON);
            reference.fill(rank, buffer, places.input_at);
        } else {
            reference.fill(rank, self.input.get(), 0);
        }
    }

    fn call(&mut self, program: &Program) -> Call<'_> {
        if program.in_place {
            return Call::InPlace(self.larger().get());
        }
        Call::OutOfPlace { input: self.input.get(), output: self.output.get() }
    }

    fn wrong(&mut self, rank: Rank, program: &Program, reference: &Reference<'_>) -> u64 {
        let places = reference.places(rank);
        let damage = self.input.damage() + self.output.damage();
        if program.in_place {
            return damage + reference.wrong(rank, self.larger().get(), places.output_at);
        }
        let changed = reference.changed(rank, self.input.get());
        damage + changed + reference.wrong(rank, self.output.get(), 0)
    }
}

/// The epoch of the first run of a task of a job: later runs count on, and no two tasks meet.
pub(crate) fn first_epoch(job: u64) -> u64 {
    (job << 32) + 1
}

/// One rank's part of a trial; `job` tells the trials of a job apart.
pub(crate) fn run_rank(executor: &mut Executor<'_>, trial: &Trial, job: u64) -> RunResult<RankReport> {
    let (rank, program) = (executor.rank(), executor.program());
    let count =
        usize::try_from(trial.count).map_err(|_| RunError::TooLarge { elements: trial.count, dtype: trial.dtype })?;
    let reference = Reference::new(&program.demand, program.op, count, trial.dtype, trial.seed);
    let buffers = executor.take_buffers().expect("an executor runs one trial");
    let mut buffers = Bench::new(buffers);
    let mut report = RankReport::default();
    let total = u64::from(trial.warmups) + u64::from(trial.repetitions);
    for repetition in 0..total {
        buffers.refill(rank, program, &reference);
        let sample = executor.run(buffers.call(program), first_epoch(job) + repetition)?.sample;
        if repetition >= u64::from(trial.warmups) {
            report.samples.push(sample);
        }
        let edge = repetition == 0 || repetition + 1 == total;
        if trial.check == Check::FirstAndLast && edge {
            report.wrong += buffers.wrong(rank, program, &reference);
        }
    }
    Ok(report)
}
