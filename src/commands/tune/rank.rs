//! One rank: it joins the others and measures with them.
//!
//! The principal functions are [`run`], for a rank of a launch of this program, and [`Tuning::as_a_rank`], for one that somebody else
//! has started.

use super::load::Burner;
use super::log::RankLog;
use super::{MeasuredLaunches, TuneTerms, Tuning};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::config_of;
use crate::screen::{Bar, bytes};
use comm::{CellSamples, CommError, Communicator, Config, LaunchEnd, NextWork, TuneJob};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tune::TuningTable;

/// How often a rank of a launcher looks whether the user has interrupted it.
const LOOK: Duration = Duration::from_millis(20);
/// How long rank 0 waits after a failure for the signal that has ended another rank.
const GRACE: Duration = Duration::from_secs(1);

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

/// A launch, as a rank of a launcher begins with it.
struct RankLaunch {
    number: u32,
    /// Whether every rank computes meanwhile.
    is_loaded: bool,
    /// What serves the halves of collectives.
    chosen: Option<TuningTable>,
    end: LaunchEnd,
}

/// What a rank of a launcher says while it measures.
enum RankWord {
    /// It begins with a launch, or with the one beside computing.
    Begin(Box<RankLaunch>),
    /// A cell is measured.
    Cell(CellSamples),
}

/// A rank that somebody else has started, once. So it joins the others several times: the memory and the connections of each
/// session are others, which is most of what differs between launches. It measures on a thread of its own, because it may wait for
/// ranks that an interrupted launcher has ended.
struct LaunchedRank {
    terms: TuneTerms,
    config: Config,
    say: Sender<RankWord>,
}

impl LaunchedRank {
    fn run(&self, mut job: TuneJob) -> Result<(), CommError> {
        let mut launches = Vec::new();
        loop {
            let comm = Communicator::connect(&self.config)?;
            job.options.budget = self.terms.budget(job.launch);
            let (cells, end) = self.measure(&comm, &job)?;
            launches.push(cells);
            if job.launch < self.terms.launches {
                // Rank 0 says what comes next.
                let next = || self.terms.next_work(&launches, &end).map_err(CommError::NoPlan);
                let NextWork { cells, chosen, variants } = comm.shared_value(next)?;
                (job.work, job.chosen, job.variants) = (Some(cells), Some(chosen), variants);
                job.launch += 1;
                continue;
            }
            if self.terms.load_aware {
                job = TuneJob { work: None, chosen: None, launch: job.launch + 1, loaded: true, ..job };
                job.options.budget = self.terms.left();
                let _burner = Burner::start();
                self.measure(&comm, &job)?;
            }
            return Ok(());
        }
    }

    fn measure(&self, comm: &Communicator, job: &TuneJob) -> Result<(Vec<CellSamples>, LaunchEnd), CommError> {
        let candidates = job.candidates(comm, Vec::new())?;
        let mut gpu = comm.open_device(&job.options)?;
        let key = comm.table_key_of(gpu.as_ref())?;
        let end = comm.launch_end(&candidates, key)?.on(gpu.as_ref());
        // Nobody listens any more once the user has interrupted it; then this process ends.
        let say = |word| drop(self.say.send(word));
        let (number, is_loaded, chosen) = (job.launch, job.loaded, job.chosen.clone());
        say(RankWord::Begin(Box::new(RankLaunch { number, is_loaded, chosen, end: end.clone() })));
        let work = job.work.clone().unwrap_or_else(|| job.options.grid(comm.size()));
        let tell = |cell: &CellSamples| say(RankWord::Cell(cell.clone()));
        Ok((comm.measure_on(gpu.as_mut(), &work, &candidates, &job.options, tell)?, end))
    }
}

/// What a rank of a launcher has measured so far.
struct RankCells<'a> {
    rank: usize,
    bar: Bar,
    folder: Option<&'a Path>,
    log: Option<RankLog>,
    begin: Instant,
    /// The last ones are those of the launch under way.
    launches: Vec<Vec<CellSamples>>,
    chosen: Vec<Option<TuningTable>>,
    loaded: Option<Vec<CellSamples>>,
    end: Option<LaunchEnd>,
    first: Option<Duration>,
}

impl RankCells<'_> {
    fn hear(&mut self, word: RankWord) -> Outcome {
        match word {
            RankWord::Begin(launch) => {
                let RankLaunch { number, is_loaded, chosen, end } = *launch;
                self.log = self.folder.map(|folder| RankLog::open(folder, number, self.rank)).transpose()?;
                if number > 1 {
                    self.first.get_or_insert(self.begin.elapsed());
                }
                if is_loaded {
                    self.loaded = Some(Vec::new());
                } else {
                    // The one beside computing has no variants.
                    self.end = Some(end);
                    self.launches.push(Vec::new());
                    self.chosen.push(chosen);
                }
            }
            RankWord::Cell(cell) => {
                self.bar.message(format!("launch {}: {} {}", self.launches.len(), cell.collective, bytes(cell.bytes)));
                self.log.iter_mut().for_each(|log| log.add(&cell));
                if let Some(cells) = self.loaded.as_mut().or(self.launches.last_mut()) {
                    cells.push(cell);
                }
            }
        }
        Ok(())
    }

    /// All of it, for the rank that writes the table; `None` if nothing was measured.
    fn all(self, is_interrupted: bool) -> Option<MeasuredLaunches> {
        let Self { launches, chosen, loaded, end, first, begin, .. } = self;
        let end = end.filter(|_| launches.iter().any(|cells| !cells.is_empty()))?;
        let (loaded, first) = (loaded.filter(|_| !is_interrupted), first.unwrap_or_else(|| begin.elapsed()));
        Some(MeasuredLaunches { launches, chosen, loaded, end, ended_early: None, first, is_interrupted })
    }
}

impl Tuning<'_> {
    /// This process is a rank that somebody else has started. Rank 0 gets what was measured; if it was interrupted, the cells that
    /// were complete, whatever has become of the others.
    pub(super) fn as_a_rank(&self, job: TuneJob) -> Outcome<Option<MeasuredLaunches>> {
        let mut config = match config_of(&self.args.launch)? {
            Some(config) => config,
            None => return Err(Failure::bad_input(anyhow::anyhow!("--ranks is needed without a launcher"))),
        };
        config.timeout = job.options.limit.max(config.timeout);
        let (rank, bar, begin, folder) =
            (config.rank, self.screen.progress("tune"), self.terms.begin, self.args.log.as_deref());
        let (launches, chosen) = (Vec::new(), Vec::new());
        let (log, loaded, end, first) = (None, None, None, None);
        let mut cells = RankCells { rank, bar, folder, log, begin, launches, chosen, loaded, end, first };
        let (say, words) = channel();
        let launched = LaunchedRank { terms: self.terms.clone(), config, say };
        let thread = std::thread::Builder::new().name("antiphon-tune".to_owned());
        let measuring = thread.spawn(move || launched.run(job)).map_err(Failure::no)?;
        loop {
            if interrupt::was_raised() {
                return Self::interrupted(cells, &words);
            }
            match words.recv_timeout(LOOK) {
                Ok(word) => cells.hear(word)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let panicked = || Err(Failure::no(anyhow::anyhow!("the measuring panicked")));
        match measuring.join().map_or_else(|_| panicked(), |ended| ended.map_err(told)) {
            Ok(()) if rank == 0 => Ok(cells.all(false)),
            Ok(()) => Ok(None),
            Err(failure) => {
                // An interrupted launcher may end another rank before it comes to this one.
                let failed = Instant::now();
                while rank == 0 && failed.elapsed() < GRACE && !interrupt::was_raised() {
                    std::thread::sleep(LOOK);
                }
                if interrupt::was_raised() { Self::interrupted(cells, &words) } else { Err(failure) }
            }
        }
    }

    /// What there is when the user has interrupted it.
    fn interrupted(mut cells: RankCells<'_>, words: &Receiver<RankWord>) -> Outcome<Option<MeasuredLaunches>> {
        while let Ok(word) = words.try_recv() {
            cells.hear(word)?;
        }
        match cells.rank {
            0 => cells.all(true).map(Some).ok_or_else(Failure::interrupted),
            _ => Err(Failure::interrupted()),
        }
    }
}
