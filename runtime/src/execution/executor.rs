//! One rank, prepared for works that run at the same time, and the loop that runs them.
//!
//! The principal type is [`Executor`]. It is made once per trial, and runs every program once per repetition. A rank
//! has one thread. It polls the threadblocks of all programs, and sleeps when nothing moves in any of them. So a
//! program that waits delays no other.

use crate::clock::{Moment, WaitFor};
use crate::error::{RunError, RunResult};
use crate::execution::concurrent::Concurrent;
use crate::execution::flows::Flows;
use crate::execution::local_rank::{LocalRank, LocalRankSetup};
use crate::execution::options::ExecutionOptions;
use crate::execution::watch::RankWatch;
use crate::interpreter::buffers::Call;
use crate::interpreter::recorder::StepTime;
use crate::interpreter::{Interpreter, Poll};
use crate::memory::heap::Heap;
use crate::memory::segment::Segment;
use crate::numbers::CallNumber;
use crate::pacing::pace::Emulation;
use crate::plan::RankPlan;
use crate::plan::geometry::Geometry;
use crate::transport::{Transport, Transports};
use crate::verdict::Phase;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::time::Duration;
use topology::Rank;

/// How long after the last arrival an emulated collective starts, so that every rank is awake by then.
const EMULATED_LEAD: Duration = Duration::from_micros(500);

/// How long after the last arrival a run starts, so that the time to wake up does not count as latency.
const LEAD: Duration = Duration::from_micros(300);

/// When one rank started and ended one repetition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RepetitionSample {
    /// Its start.
    pub start: Moment,
    /// Its end.
    pub end: Moment,
}

/// One run of one rank.
pub(crate) struct Run {
    /// The common start that was announced.
    pub(crate) announced: Moment,
    /// The results of its local ranks.
    pub(crate) local_ranks: Vec<Ran>,
}

/// One run of one local rank.
pub(crate) struct Ran {
    /// The start and the end of the local rank.
    pub(crate) sample: RepetitionSample,
    /// The end of each of its threadblocks.
    pub(crate) threadblocks: Vec<Moment>,
    /// The times of its messages, if they were kept.
    pub(crate) steps: Vec<StepTime>,
}

/// One rank, ready to run.
pub(crate) struct Executor<'a> {
    segment: &'a Segment,
    rank: Rank,
    emulation: Option<&'a Emulation>,
    transports: Transports<'a>,
    is_linked: bool,
    local_ranks: Vec<LocalRank<'a>>,
    /// How many works run at the same time. The rank may have no local rank in some of them.
    works: usize,
    limit: Duration,
    /// How long after the last arrival a run starts.
    lead: Duration,
    /// Whether the times of all steps are kept.
    records: bool,
}

impl<'a> Executor<'a> {
    pub(crate) fn new(
        segment: &'a Segment,
        rank: Rank,
        concurrent: &'a Concurrent<'a>,
        remote: Option<Box<dyn Transport>>,
        options: &'a ExecutionOptions,
    ) -> RunResult<Self> {
        let plan = |work: usize, number| {
            let work = &concurrent.works()[work];
            RankPlan::new(work, number, work.tiles(options))
        };
        Self::arrange(segment, rank, concurrent, plan, remote, options)
    }

    /// One rank of a probe. `concurrent` contains only the probe's program.
    pub(crate) fn of_flows(
        segment: &'a Segment,
        rank: Rank,
        (concurrent, flows): (&'a Concurrent<'a>, &Flows),
        remote: Option<Box<dyn Transport>>,
        options: &'a ExecutionOptions,
    ) -> RunResult<Self> {
        let plan = |work: usize, number| {
            let geometry = Geometry::of_slots(flows.slots(number));
            Ok(RankPlan::of_geometry(&concurrent.works()[work], number, geometry))
        };
        Self::arrange(segment, rank, concurrent, plan, remote, options)
    }

    fn arrange(
        segment: &'a Segment,
        rank: Rank,
        concurrent: &'a Concurrent<'a>,
        plan: impl Fn(usize, Rank) -> RunResult<RankPlan<'a>>,
        remote: Option<Box<dyn Transport>>,
        options: &'a ExecutionOptions,
    ) -> RunResult<Self> {
        let (emulation, works) = (options.emulation.as_ref(), concurrent.works().len());
        if emulation.is_some() || remote.is_some() {
            // Timers decide emulated arrivals and the pace between computers. The default timer slack of 50 µs would be
            // a measurable part of them.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
                .map_err(std::io::Error::from)
                .map_err(RunError::system("sharpening timers"))?;
        }
        let (arenas, _) = concurrent.arenas(segment, options)?;
        let place = |(work, number): (usize, Rank)| {
            let plan = plan(work, number)?;
            if let Some(emulation) = emulation {
                emulation.check(&plan)?;
            }
            let before = concurrent.works()[..work].iter().map(|work| work.program.connections.len() as u32);
            let (first, digest) = (before.sum(), concurrent.digests()[work].as_str());
            let of_work = &concurrent.works()[work];
            let backlog = of_work.backlog(of_work.tiles(options))?;
            Ok(LocalRankSetup { work, first, digest, arena: arenas[work].clone(), backlog, plan })
        };
        let places = concurrent
            .local_ranks(rank)
            .map(|local_rank| place(local_rank).map_err(RunError::in_work(local_rank.0, works)));
        let places: Vec<LocalRankSetup<'a>> = places.collect::<RunResult<_>>()?;
        let lengths: Vec<_> = places.iter().map(LocalRankSetup::areas).collect();
        let (heap, areas) = Heap::new(&lengths).map_err(RunError::system("making buffers"))?;
        let transports = Transports::new(segment, rank, heap, remote);
        transports.publish()?;
        let local_ranks =
            places.into_iter().zip(areas).map(|(place, areas)| LocalRank::new(place, areas, emulation)).collect();
        let lead = if emulation.is_some() { EMULATED_LEAD } else { LEAD };
        let limit = options.work_limit;
        Ok(Self {
            segment,
            rank,
            emulation,
            transports,
            is_linked: false,
            local_ranks,
            works,
            limit,
            lead,
            records: false,
        })
    }

    /// This rank's local ranks, in the order of the works.
    pub(crate) fn local_ranks(&mut self) -> &mut [LocalRank<'a>] {
        &mut self.local_ranks
    }

    /// Keeps the times of all steps from now on.
    pub(crate) fn record(&mut self) {
        self.records = true;
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Opens the lanes, after a barrier of all ranks.
    fn link(&mut self, call: CallNumber) -> RunResult<()> {
        let Self { segment, rank, emulation, works, .. } = *self;
        segment.barrier.wait(rank, call.rounds()[0], Duration::ZERO, self.limit)?;
        let in_place: Vec<_> =
            self.local_ranks.iter().flat_map(|local_rank| local_rank.read_in_place(emulation)).collect();
        self.transports.attach(&in_place);
        for local_rank in &mut self.local_ranks {
            let linked = local_rank.link(emulation, &mut self.transports);
            linked.map_err(RunError::in_work(local_rank.place.work, works))?;
        }
        self.is_linked = true;
        Ok(())
    }

    /// Runs every program once, together with all other ranks. `calls` are for the local ranks, in their order.
    /// `number` is the same on all ranks, and larger for each run.
    pub(crate) fn run(&mut self, calls: Vec<Call<'_>>, number: CallNumber) -> RunResult<Run> {
        let Self { segment, rank, emulation, works, limit, records, .. } = *self;
        self.local_ranks.iter().zip(&calls).try_for_each(|(local_rank, call)| local_rank.check_call(call))?;
        segment.activity.enter(rank, Phase::Start);
        if !self.is_linked {
            self.link(number)?;
        }
        // Everything that is possible is prepared before the common start, because the time after it is measured.
        let mut running = Vec::with_capacity(calls.len());
        for (local_rank, call) in self.local_ranks.iter_mut().zip(calls) {
            let work = local_rank.place.work;
            let mut interpreter = local_rank.prepare(segment, call, emulation, number)?;
            if records {
                interpreter.record();
            }
            running.push(RunningProgram { work, interpreter, moved: Moment::default(), moves: false, end: None });
        }
        let mut watch = RankWatch::new(segment, rank, self.transports.poller());
        let announced = segment.barrier.wait(rank, number.rounds()[1], self.lead, limit)?;
        segment.activity.enter(rank, Phase::Work);
        let start = match emulation {
            // Emulated messages start at the announced moment, even if this computer lets the rank run later.
            Some(_) => announced,
            None => announced.wait(),
        };
        play(&mut running, start, limit, works, &mut watch)?;
        let ran = |program: RunningProgram<'_>| {
            let (threadblocks, steps) = program.interpreter.ends();
            Ran { sample: RepetitionSample { start, end: program.end.unwrap_or(start) }, threadblocks, steps }
        };
        let local_ranks = running.into_iter().map(ran).collect();
        // Otherwise the later work of finished ranks would slow down ranks that still run.
        segment.activity.enter(rank, Phase::Report);
        segment.barrier.wait(rank, number.rounds()[2], Duration::ZERO, limit)?;
        Ok(Run { announced, local_ranks })
    }
}

/// One local rank's program while it runs.
struct RunningProgram<'a> {
    work: usize,
    interpreter: Interpreter<'a>,
    /// When it last moved anything, and whether it did in this round.
    moved: Moment,
    moves: bool,
    end: Option<Moment>,
}

/// Runs all programs from `start` to their ends. `limit` is the longest time without progress of one of them and of
/// other ranks.
///
/// # Errors
/// A verdict, or the error of one of the programs: a missed deadline, a peer that executes another call or plan, a
/// broken lane, or a program that no verifier accepts.
fn play(
    running: &mut [RunningProgram<'_>],
    start: Moment,
    limit: Duration,
    works: usize,
    watch: &mut RankWatch<'_>,
) -> RunResult<()> {
    for program in &mut *running {
        program.interpreter.begin(start);
        program.moved = start;
    }
    loop {
        let mut wait = WaitFor::Peer;
        watch.refresh();
        for program in running.iter_mut().filter(|program| program.end.is_none()) {
            let poll = program.interpreter.sweep().map_err(RunError::in_work(program.work, works))?;
            program.moves = matches!(poll, Poll::Moved);
            match poll {
                Poll::Done => program.end = Some(Moment::now()),
                Poll::Blocked(other) => wait = wait.min(other),
                Poll::Moved => {}
            }
        }
        if running.iter().all(|program| program.end.is_some()) {
            return Ok(());
        }
        watch.check()?;
        let now = Moment::now();
        let anywhere = watch.moved_anywhere(now, limit);
        let mut latest = now.after(limit / 4);
        for program in running.iter_mut().filter(|program| program.end.is_none()) {
            if program.moves {
                program.moved = now;
            }
            let deadline = program.moved.max(anywhere).after(limit);
            latest = latest.min(deadline);
            if now > deadline {
                let overdue = program.interpreter.overdue(now.since(program.moved));
                return Err(RunError::in_work(program.work, works)(overdue));
            }
        }
        if running.iter().any(|program| program.moves) {
            watch.progressed(running.iter().map(|program| program.interpreter.finished()).sum());
        } else {
            watch.idle(now, wait.end(latest));
        }
    }
}
