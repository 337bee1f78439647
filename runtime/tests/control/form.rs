//! The log of a coordinator in a form that does not depend on which rank was faster: the tests of the simulation and of real jobs
//! compare it with the same files.
//!
//! For each epoch and rank it has what the rank was told and what it said, each in order and without repetitions. An epoch
//! that ended with a verdict also ended all at once: some ranks may have answered the last order, and some not. So the
//! answers to it are left out there, and how workers end, which is a race with the coordinator that kills them. In which phase
//! of a running task a rank was hit is left out too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{Read, Seek};
use std::sync::{Arc, OnceLock};

/// What was told, and what was said.
const DIRECTIONS: [&str; 2] = ["told", "said"];
/// How lines about the end of a worker or an agent begin.
const ENDS: [&str; 3] = ["it failed", "its worker is gone", "its agent has left"];

/// The phases of ranks that run a task, in a verdict.
const PHASES: [&str; 3] = ["during the common start", "during the work", "during the report"];

/// By epoch (the greatest for what belongs to none), rank and direction.
type Transcript = BTreeMap<(u64, u32, usize), Vec<String>>;

/// Runs `job`, and returns the form of what it writes to the log in this thread.
pub(crate) fn transcript_of(job: impl FnOnce()) -> String {
    // With a single subscriber, `tracing` may ask the wrong thread whether a line is wanted.
    static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| tracing::Dispatch::new(tracing_subscriber::registry()));
    let log = Arc::new(tempfile::tempfile().expect("there is a disk"));
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).without_time();
    let subscriber = lines.with_level(false).with_target(false).with_writer(log.clone()).finish();
    tracing::subscriber::with_default(subscriber, job);
    let mut text = String::new();
    let mut file = &*log;
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("the log can be read");
    form(&text)
}

fn form(log: &str) -> String {
    let mut transcript = Transcript::new();
    for line in log.lines() {
        let Some((key, what)) = parsed(line.trim()) else { continue };
        // In each repetition of a trial, a rank passes these phases.
        let what = PHASES.iter().fold(what.to_owned(), |what, phase| what.replace(phase, "while the task ran"));
        let list = transcript.entry(key).or_default();
        if !list.contains(&what) {
            list.push(what);
        }
    }
    drop_last_answers(&mut transcript);
    let mut text = String::new();
    for ((epoch, rank, direction), list) in &transcript {
        let when = if *epoch == u64::MAX { "at the end".to_owned() } else { format!("epoch {epoch}") };
        writeln!(text, "{when}, rank {rank} {}: {}", DIRECTIONS[*direction], list.join("; ")).expect("it is text");
    }
    text
}

/// `rank 1, epoch 2, told: run task 3`; the epoch may be missing.
fn parsed(line: &str) -> Option<((u64, u32, usize), &str)> {
    let (place, what) = line.strip_prefix("rank ")?.split_once(": ")?;
    let mut words = place.split(", ");
    let rank = words.next()?.parse().ok()?;
    let (mut epoch, mut direction) = (u64::MAX, None);
    for word in words {
        match word.strip_prefix("epoch ") {
            Some(number) => epoch = number.parse().ok()?,
            None => direction = DIRECTIONS.iter().position(|known| *known == word),
        }
    }
    Some(((epoch, rank, direction?), what))
}

/// In epochs with a verdict, drops how ranks ended, and the answers to the last order.
fn drop_last_answers(transcript: &mut Transcript) {
    let is_verdict = |what: &&String| what.starts_with("rank ");
    let judged: BTreeSet<u64> = transcript
        .iter()
        .filter(|(_, list)| list.iter().any(|it| is_verdict(&it)))
        .map(|((epoch, ..), _)| *epoch)
        .collect();
    for epoch in judged {
        // All ranks are told the same orders.
        let mut told = transcript.get(&(epoch, 1, 0)).into_iter().flatten();
        let last = told.rfind(|what| !is_verdict(what)).cloned().unwrap_or_default();
        let answers = match last.split_once(" task ") {
            Some(("prepare", task)) => {
                vec![format!("it listens for task {task}"), format!("it is ready for task {task}")]
            }
            Some(("connect for", task)) => vec![format!("it is ready for task {task}")],
            Some(("run", task)) => vec![format!("it has done task {task}")],
            _ => Vec::new(),
        };
        for ((_, _, direction), list) in transcript.range_mut((epoch, 0, 0)..(epoch + 1, 0, 0)) {
            let is_end = |what: &String| ENDS.iter().any(|end| what.starts_with(end));
            list.retain(|what| *direction == 0 || !is_end(what) && !answers.contains(what));
        }
    }
}
