//! The log of a coordinator in a form that does not depend on which rank was faster: the tests of the simulation and of real jobs
//! compare it with the same files.
//!
//! For each epoch and rank it has what the rank was told and what it said, each in order and without repetitions. In an
//! epoch that ended with a verdict, some ranks may have answered the last question, and some not: what not all have said is
//! left out. So is how workers end after a verdict, which is a race with the coordinator that kills them, and in which phase of
//! a running task a rank was hit.

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
        let is_end = ENDS.iter().any(|end| what.starts_with(end));
        if !is_end && !list.contains(&what) {
            list.push(what);
        }
    }
    drop_partial_answers(&mut transcript);
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

/// In epochs with a verdict, drops what not all ranks with agents have said.
fn drop_partial_answers(transcript: &mut Transcript) {
    let is_verdict = |what: &String| what.starts_with("rank ");
    let judged: BTreeSet<u64> =
        transcript.iter().filter(|(_, list)| list.iter().any(is_verdict)).map(|((epoch, ..), _)| *epoch).collect();
    for epoch in judged {
        let said = |rank: u32| (epoch, rank, 1);
        let ranks: Vec<u32> = transcript.keys().filter(|key| key.0 == epoch && key.1 > 0).map(|key| key.1).collect();
        let of_all = |what: &String, transcript: &Transcript| {
            ranks.iter().all(|&rank| transcript.get(&said(rank)).is_some_and(|list| list.contains(what)))
        };
        let whole = transcript.clone();
        for rank in ranks.iter().copied().chain([0]) {
            if let Some(list) = transcript.get_mut(&said(rank)) {
                list.retain(|what| of_all(what, &whole));
            }
        }
    }
}
