//! Timing of messages between pairs of ranks, for the profiler: among threads, and in a job.
//!
//! The principal type is [`ThreadProbe`]. [`Flows`] describes the exchanges.

use crate::error::{RunError, RunResult};
use crate::execution::executor::Executor;
use crate::execution::flows::{Arrivals, ExchangeFlow, Flows, Wanted};
use crate::execution::options::ExecutionOptions;
use crate::launch::launcher::Job;
use crate::launch::threads::each_rank;
use crate::memory::segment::{Segment, SegmentShape};
use crate::numbers::TaskNumber;
use crate::pacing::pace::Emulation;
use topology::{Exchange, Micros, Probe, ProbeError, Rank};

fn wanted(exchanges: &[Exchange], repetitions: u32) -> Wanted {
    let flow = |&Exchange { from, to, bytes, messages }: &Exchange| ExchangeFlow { from, to, bytes, messages };
    Wanted { flows: exchanges.iter().map(flow).collect(), repetitions }
}

/// Whether two ranks can exchange messages. Without an emulated machine, all ranks can.
fn connects(emulation: Option<&Emulation>, from: Rank, to: Rank) -> bool {
    emulation.is_none_or(|emulation| emulation.topology().between(from, to).next().is_some())
}

fn failed(error: RunError) -> ProbeError {
    ProbeError(error.chain())
}

/// Ranks as threads, to be profiled.
pub struct ThreadProbe {
    ranks: usize,
    options: ExecutionOptions,
    /// Kept from run to run, so that its pages exist; `None` after an error.
    segment: Option<Segment>,
    runs: TaskNumber,
}

impl ThreadProbe {
    /// A probe of `ranks` threads, which emulate another machine if `options` say so.
    pub fn new(ranks: usize, options: ExecutionOptions) -> Self {
        Self { ranks, options, segment: None, runs: TaskNumber::default() }
    }

    fn arrivals(&mut self, flows: &Flows) -> RunResult<Vec<Arrivals>> {
        let machine = self.options.emulation.as_ref();
        let segment = match self.segment.take() {
            Some(segment) => segment,
            None => Segment::create(SegmentShape::new(self.ranks, machine, self.options.arena_bytes))?,
        };
        let concurrent = flows.concurrent()?;
        concurrent.arenas(&segment, &self.options)?.1.reset(segment.region());
        self.runs = self.runs.next();
        let run = |rank, ()| {
            let mut executor = Executor::of_flows(&segment, rank, (&concurrent, flows), None, &self.options)?;
            flows.run_rank(&mut executor, self.runs.first_call())
        };
        let arrivals = each_rank(&segment, vec![(); self.ranks], run)?;
        self.segment = Some(segment);
        Ok(arrivals)
    }
}

impl Probe for ThreadProbe {
    fn rank_count(&self) -> usize {
        self.ranks
    }

    fn connects(&self, from: Rank, to: Rank) -> bool {
        connects(self.options.emulation.as_ref(), from, to)
    }

    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
        let machine = self.options.emulation.as_ref().map(Emulation::topology);
        let flows = Flows::new(wanted(exchanges, repetitions), self.ranks, machine).map_err(failed)?;
        let arrivals = self.arrivals(&flows).map_err(failed)?;
        flows.collect(arrivals)
    }
}

impl Probe for Job {
    fn rank_count(&self) -> usize {
        Job::rank_count(self)
    }

    fn connects(&self, from: Rank, to: Rank) -> bool {
        connects(self.emulation(), from, to)
    }

    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
        let (flows, arrivals) = self.probe(wanted(exchanges, repetitions)).map_err(failed)?;
        flows.collect(arrivals)
    }
}
