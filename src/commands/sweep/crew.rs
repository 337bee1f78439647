//! Workers: processes of this program that plan one cell after the other.
//!
//! The principal type is [`Local`], the workers of this computer. It talks to them over pipes, one JSON object per line
//! ([`PlanningOrder`], [`Reply`]). A worker that dies is a [`CrewEvent`], like an answer; it is started again with its
//! next cell. A worker that takes too long is killed, which has the same effect. A worker whose sweep has ended sees
//! the end of its input and ends itself.

use super::cells::SweepCell;
use super::store::Record;
use crate::cli::SearchArgs;
use crate::failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The longest line, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

/// A cell to plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanningOrder {
    /// Its number.
    pub number: usize,
    /// What to plan.
    pub cell: SweepCell,
    /// Plans of other sizes to start from.
    pub warm: Vec<PathBuf>,
    /// Where the plan is to be saved.
    pub plan: PathBuf,
}

/// The result of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reply {
    /// The number of the cell.
    pub number: usize,
    /// How it ended.
    pub record: Record,
}

/// An answer of a worker, or the end of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum News {
    /// It has planned its cell.
    Done(Reply),
    /// It has ended, with the reason.
    Died(String),
}

/// An answer or an end, with the worker.
#[derive(Debug)]
pub(super) struct CrewEvent {
    /// The worker.
    pub worker: usize,
    /// Its answer or its end.
    pub news: News,
}

/// Workers, numbered from 0. After an event, the worker can take another order.
pub(super) trait Crew {
    /// How many there are.
    fn size(&self) -> usize;
    /// Gives an order to a worker that has none, and returns the worker's name. If the worker cannot take it, an event
    /// reports this.
    fn give(&mut self, worker: usize, order: &PlanningOrder) -> Outcome<String>;
    /// Waits for the next event, at most for `patience`.
    fn next(&mut self, patience: Duration) -> Outcome<Option<CrewEvent>>;
}

/// How workers are started and how long they may take.
#[derive(Clone, Debug)]
pub(super) struct Hiring {
    /// Arguments of `sweep-worker`.
    words: Vec<String>,
    /// A worker that is busy for longer is killed.
    limit: Duration,
}

impl Hiring {
    pub(super) fn new(search: &SearchArgs) -> Self {
        let limit = match search.time_limit {
            Some(limit) => limit * 2 + Duration::from_secs(60),
            None => Duration::from_secs(3600),
        };
        let words = SearchArgs { threads: search.threads.or(Some(1)), ..search.clone() }.to_words();
        Self { words, limit }
    }
}

/// The workers of this computer.
pub(super) struct Local {
    hiring: Hiring,
    desks: Vec<Option<WorkerProcess>>,
    news: Receiver<(usize, u64, io::Result<Reply>)>,
    /// The channel of the threads that read the workers' answers.
    ears: Sender<(usize, u64, io::Result<Reply>)>,
    hired: u64,
}

/// A worker process.
struct WorkerProcess {
    child: Child,
    /// Distinguishes this process from earlier ones with the same worker number.
    badge: u64,
    /// When to kill it; `None` while it has no order.
    until: Option<Instant>,
    late: bool,
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // A process that is already dead cannot be killed, but must be waited for.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Local {
    /// This many workers; none of them is started yet.
    pub(super) fn new(hiring: Hiring, size: usize) -> Self {
        let (ears, news) = channel();
        Self { hiring, desks: (0..size).map(|_| None).collect(), news, ears, hired: 0 }
    }

    fn hire(&mut self, worker: usize) -> Outcome<WorkerProcess> {
        let fail = |error: io::Error| Failure::no(error).context("a worker cannot be started");
        let binary = std::env::current_exe().map_err(fail)?;
        let mut command = Command::new(binary);
        command.arg("sweep-worker").args(&self.hiring.words);
        // In its own process group: Ctrl-C reaches only the sweep, which then ends its workers.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(fail)?;
        self.hired += 1;
        let (badge, ears, output) = (self.hired, self.ears.clone(), child.stdout.take());
        std::thread::spawn(move || {
            let mut lines = output.map(BufReader::new);
            while let Some(reply) = lines.as_mut().and_then(|lines| read_line(lines).transpose()) {
                let is_last = reply.is_err();
                if ears.send((worker, badge, reply)).is_err() || is_last {
                    return;
                }
            }
            drop(ears.send((worker, badge, Err(io::ErrorKind::UnexpectedEof.into()))));
        });
        Ok(WorkerProcess { child, badge, until: None, late: false })
    }

    /// Kills workers that are late, and returns when the next one will be.
    fn look_at_the_clock(&mut self) -> Option<Instant> {
        let now = Instant::now();
        for desk in self.desks.iter_mut().flatten().filter(|desk| desk.until.is_some_and(|until| until <= now)) {
            (desk.late, desk.until) = (true, None);
            drop(desk.child.kill());
        }
        self.desks.iter().flatten().filter_map(|desk| desk.until).min()
    }

    /// Why a worker died.
    fn bury(&mut self, worker: usize, error: &io::Error) -> String {
        let Some(mut desk) = self.desks[worker].take() else { return error.to_string() };
        if desk.late {
            return format!("it took longer than {:?}", self.hiring.limit);
        }
        drop(desk.child.kill());
        match desk.child.wait() {
            Ok(status) if error.kind() == io::ErrorKind::UnexpectedEof => format!("its worker ended with {status}"),
            _ => format!("its worker wrote nonsense: {error}"),
        }
    }
}

impl Crew for Local {
    fn size(&self) -> usize {
        self.desks.len()
    }

    fn give(&mut self, worker: usize, order: &PlanningOrder) -> Outcome<String> {
        let mut desk = match self.desks[worker].take() {
            Some(desk) => desk,
            None => self.hire(worker)?,
        };
        let mut line = serde_json::to_string(order).map_err(Failure::no)?;
        line.push('\n');
        // A worker that does not read is dead; the thread that reads its answers reports this.
        if let Some(input) = &mut desk.child.stdin {
            drop(input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        }
        desk.until = Instant::now().checked_add(self.hiring.limit);
        let name = format!("pid {}", desk.child.id());
        self.desks[worker] = Some(desk);
        Ok(name)
    }

    fn next(&mut self, patience: Duration) -> Outcome<Option<CrewEvent>> {
        let until = Instant::now() + patience;
        loop {
            let until = self.look_at_the_clock().map_or(until, |late| late.min(until));
            let (worker, badge, reply) = match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(news) => news,
                // This never fails, because we keep a sender ourselves.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            };
            if self.desks[worker].as_ref().is_none_or(|desk| desk.badge != badge) {
                continue;
            }
            let news = match reply {
                Ok(reply) => {
                    self.desks[worker].iter_mut().for_each(|desk| desk.until = None);
                    News::Done(reply)
                }
                Err(error) => News::Died(self.bury(worker, &error)),
            };
            return Ok(Some(CrewEvent { worker, news }));
        }
    }
}

/// The next line as a value; `None` at the end.
pub(super) fn read_line<T: for<'de> Deserialize<'de>>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    input.take(LONGEST).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) if line.len() as u64 == LONGEST => Err(io::Error::other("a line without end")),
        // The writer died within a line.
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
