//! One measurement: a program runs several times on real buffers, and its result is checked.
//!
//! The principal types are [`Trial`] and its [`TrialReport`]. The same code runs a rank in a thread and in a process.
//! Buffers are filled before every repetition, outside the timed part: in place, values would grow otherwise. Guard
//! bytes around the buffers show writes out of bounds.

use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::executor::{Executor, RepetitionSample};
use crate::execution::local_rank::{Buffers, GUARD, LocalRank};
use crate::interpreter::buffers::Call;
use crate::interpreter::recorder::StepTime;
use crate::measure::reference::Reference;
use crate::memory::heap::Area;
use crate::numbers::TaskNumber;
use program::Program;
use serde::{Deserialize, Serialize};
use topology::{Micros, Rank};

/// Whether results are compared with the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The first and the last repetition, warm-ups included.
    #[default]
    FirstAndLast,
    /// No repetition, because this program was checked at this size before.
    Skip,
}

/// The most timed repetitions of all trials that run together. Every rank must be able to report that many samples.
pub(crate) const MOST_REPETITIONS: u32 = 1 << 20;

/// How often a program runs, on which data, and whether its results are checked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Elements of one block (`program::Layout`).
    pub count: u64,
    /// Their type.
    pub dtype: DType,
    /// The number of untimed repetitions, which come first.
    pub warmups: u32,
    /// The number of timed repetitions, at most 2²⁰.
    pub repetitions: u32,
    /// The seed of the inputs.
    pub seed: u64,
    /// Whether results are checked.
    pub check: Check,
    /// Whether the times of all messages are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steps: bool,
}

impl Trial {
    /// One checked repetition.
    pub fn once(count: u64, dtype: DType) -> Self {
        Self { count, dtype, warmups: 0, repetitions: 1, seed: 0, check: Check::FirstAndLast, steps: false }
    }
}

/// What one rank found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RankReport {
    /// The timed repetitions.
    pub samples: Vec<RepetitionSample>,
    /// Errors over all checked repetitions: wrong elements of the output, changed elements of an input that must not
    /// change, and damaged guard bytes.
    pub wrong: u64,
    /// The messages of each timed repetition, if they were to be kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Vec<StepTime>>,
}

/// What all ranks found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrialReport {
    /// By rank of the program.
    pub ranks: Vec<RankReport>,
}

impl TrialReport {
    /// The sum of [`RankReport::wrong`] over all ranks.
    pub fn wrong(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.wrong).sum()
    }

    /// For each repetition, the time from the first start to the last end of any rank.
    pub fn spans(&self) -> Vec<Micros> {
        spans(self.ranks.iter())
    }

    /// Like [`Self::spans`], over all ranks of collectives that ran together.
    pub fn spans_of_all(reports: &[Self]) -> Vec<Micros> {
        spans(reports.iter().flat_map(|report| &report.ranks))
    }
}

fn spans<'a>(ranks: impl Iterator<Item = &'a RankReport> + Clone) -> Vec<Micros> {
    let repetitions = ranks.clone().map(|rank| rank.samples.len()).min().unwrap_or(0);
    let span = |repetition: usize| {
        let samples = || ranks.clone().map(|rank| rank.samples[repetition]);
        let start = samples().map(|sample| sample.start).min().unwrap_or_default();
        samples().map(|sample| sample.end).max().unwrap_or_default().micros_since(start)
    };
    (0..repetitions).map(span).collect()
}

const GUARD_BYTE: u8 = 0xa5;
/// The content of an output before a collective. No small integer has this pattern.
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

/// The buffers of one local rank, with what is needed to fill and check them.
struct TrialBuffers<'a> {
    number: Rank,
    program: &'a Program,
    reference: Reference<'a>,
    input: Guarded,
    output: Guarded,
    report: RankReport,
}

impl<'a> TrialBuffers<'a> {
    fn new(local_rank: &mut LocalRank<'a>, trial: &Trial) -> RunResult<Self> {
        let (program, dtype) = (local_rank.program(), trial.dtype);
        let too_large = |_| RunError::TooLarge { elements: trial.count, dtype };
        let count = usize::try_from(trial.count).map_err(too_large)?;
        // Each collective that runs at the same time has other data, so that bytes in the wrong collective are found.
        let seed = trial.seed.wrapping_add(local_rank.place.work as u64);
        let Buffers { input, output } = local_rank.take_buffers().expect("an executor runs one trial");
        Ok(Self {
            number: local_rank.number(),
            program,
            reference: Reference::new(&program.demand, program.op, count, dtype, seed),
            input: Guarded::new(input),
            output: Guarded::new(output),
            report: RankReport::default(),
        })
    }

    /// The buffer of an in-place call. A rank's program names only the larger of input and output.
    fn larger(&mut self) -> (&mut Guarded, &Reference<'a>) {
        let larger = if self.input.0.len() > self.output.0.len() { &mut self.input } else { &mut self.output };
        (larger, &self.reference)
    }

    fn refill(&mut self) {
        let (number, places) = (self.number, self.reference.places(self.number));
        self.output.get().fill(POISON);
        if self.program.in_place {
            let (buffer, reference) = self.larger();
            buffer.get().fill(POISON);
            reference.fill(number, buffer.get(), places.input_at);
        } else {
            self.reference.fill(number, self.input.get(), 0);
        }
    }

    fn call(&mut self) -> Call<'_> {
        if self.program.in_place {
            return Call::InPlace(self.larger().0.get());
        }
        Call::OutOfPlace { input: self.input.get(), output: self.output.get() }
    }

    fn check(&mut self) {
        let (number, places) = (self.number, self.reference.places(self.number));
        let damage = self.input.damage() + self.output.damage();
        self.report.wrong += damage
            + match self.program.in_place {
                true => {
                    let (buffer, reference) = self.larger();
                    reference.wrong(number, buffer.get(), places.output_at)
                }
                false => {
                    let changed = self.reference.changed(number, self.input.get());
                    changed + self.reference.wrong(number, self.output.get(), 0)
                }
            };
    }
}

/// One rank's part of trials that run together. Returns a report for each work that the rank takes part in.
pub(crate) fn run_rank(executor: &mut Executor<'_>, trials: &[&Trial], task: TaskNumber) -> RunResult<Vec<RankReport>> {
    let local_ranks = executor.local_ranks().iter_mut();
    let mut benches: Vec<TrialBuffers<'_>> = local_ranks
        .map(|local_rank| TrialBuffers::new(local_rank, trials[local_rank.place.work]))
        .collect::<RunResult<_>>()?;
    let (warmups, repetitions) = trials.first().map_or((0, 0), |trial| (trial.warmups, trial.repetitions));
    let checked = trials.iter().any(|trial| trial.check == Check::FirstAndLast);
    let total = u64::from(warmups) + u64::from(repetitions);
    if trials.iter().any(|trial| trial.steps) {
        executor.record();
    }
    for repetition in 0..total {
        benches.iter_mut().for_each(TrialBuffers::refill);
        let calls = benches.iter_mut().map(TrialBuffers::call).collect();
        let run = executor.run(calls, task.first_call().plus(repetition))?;
        let edge = repetition == 0 || repetition + 1 == total;
        for (bench, ran) in benches.iter_mut().zip(run.local_ranks) {
            if repetition >= u64::from(warmups) {
                bench.report.samples.push(ran.sample);
                if !ran.steps.is_empty() {
                    bench.report.steps.push(ran.steps);
                }
            }
            if checked && edge {
                bench.check();
            }
        }
    }
    Ok(benches.into_iter().map(|bench| bench.report).collect())
}
