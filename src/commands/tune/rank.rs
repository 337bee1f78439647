//! One rank: it joins the others and measures with them.
//!
//! The principal functions are [`run`], for a rank of a launch of this program, and [`Tuning::as_a_rank`], for one that somebody else
//! has started.

use super::load::Burner;
use super::log::RankLog;
use super::{MeasuredLaunches, Tuning};
use crate::failure::{Failure, Outcome};
use crate::launch::config_of;
use crate::screen::bytes;
use comm::{CellSamples, CommError, Communicator, Config, LaunchEnd, NextWork, TuneJob};
use std::time::Instant;

/// Measures as one of the ranks that [`super::launch`] has started.
pub(crate) fn run() -> Outcome {
    let job = TuneJob::of_environment().map_err(Failure::bad_input)?;
    let job = job.ok_or_else(|| Failure::bad_input(anyhow::anyhow!("{} is not set", TuneJob::VARIABLE)))?;
    let mut config = Config::from_env().map_err(Failure::no)?;
    (config.table, config.joining) = (None, job.joining);
    let comm = Communicator::connect(&config).map_err(Failure::no)?;
    let _burner = job.loaded.then(Burner::start);
    job.run(&comm, Vec::new()).map_err(told)
}

/// Files that are no plans are the user's mistake.
pub(super) fn told(error: CommError) -> Failure {
    match error {
        CommError::Argument(_) => Failure::bad_input(error),
        _ => Failure::no(error),
    }
}

impl Tuning<'_> {
    /// This process is a rank that somebody else has started, once. So it joins the others several times: the memory and the
    /// connections of each session are others, which is most of what differs between launches. Rank 0 gets what was measured.
    pub(super) fn as_a_rank(&self, mut job: TuneJob) -> Outcome<Option<MeasuredLaunches>> {
        let mut config = match config_of(&self.args.launch)? {
            Some(config) => config,
            None => return Err(Failure::bad_input(anyhow::anyhow!("--ranks is needed without a launcher"))),
        };
        config.timeout = job.options.limit.max(config.timeout);
        let (mut launches, mut chosen, mut loaded) = (Vec::new(), Vec::new(), None);
        let begin = Instant::now();
        let mut first = begin.elapsed();
        loop {
            let comm = Communicator::connect(&config).map_err(Failure::no)?;
            chosen.push(job.chosen.clone());
            job.options.budget = self.budget(job.launch);
            let (cells, end) = self.measure_as_a_rank(&comm, &job)?;
            launches.push(cells);
            first = if job.launch == 1 { begin.elapsed() } else { first };
            if job.launch < self.args.launches {
                // Rank 0 says what comes next.
                let next = || self.next_work(&launches, &end).map_err(CommError::NoPlan);
                let NextWork { cells, chosen } = comm.shared_value(next).map_err(Failure::no)?;
                (job.work, job.chosen) = (Some(cells), Some(chosen));
                job.launch += 1;
                continue;
            }
            if self.args.load_aware {
                job = TuneJob { work: None, chosen: None, launch: job.launch + 1, ..job };
                job.options.budget = self.left();
                let _burner = Burner::start();
                loaded = Some(self.measure_as_a_rank(&comm, &job)?.0);
            }
            let (ended_early, is_interrupted) = (None, false);
            let all = MeasuredLaunches { launches, chosen, loaded, end, ended_early, first, is_interrupted };
            return Ok((comm.rank() == 0).then_some(all));
        }
    }

    fn measure_as_a_rank(&self, comm: &Communicator, job: &TuneJob) -> Outcome<(Vec<CellSamples>, LaunchEnd)> {
        let bar = self.screen.progress("tune");
        let candidates = job.candidates(comm, Vec::new()).map_err(told)?;
        let log = self.args.log.as_deref().map(|folder| RankLog::open(folder, job.launch, comm.rank()));
        let mut log = log.transpose()?;
        let say = |cell: &CellSamples| {
            bar.message(format!("launch {}: {} {}", job.launch, cell.collective, bytes(cell.bytes)));
            log.iter_mut().for_each(|log| log.add(cell));
        };
        let work = job.work.clone().unwrap_or_else(|| job.options.grid(comm.size()));
        let cells = comm.measure(&work, &candidates, &job.options, say).map_err(Failure::no)?;
        let key = comm.table_key().map_err(Failure::no)?;
        Ok((cells, Communicator::launch_end(&candidates, key).map_err(Failure::no)?))
    }
}
