//! One launch: the ranks of a job as processes of this computer, each a program that uses the library.
//!
//! The principal function is [`measure`]. It ends with all its processes, whatever happens to them.

use super::rank::{LaunchEnd, RankWord, TuneJob};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::binary;
use comm::CellSamples;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How much longer than its budget a launch may take: it joins, plans and checks.
const SLACK: Duration = Duration::from_secs(60);
/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The processes of a launch. They are ended when this is dropped.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts `ranks` processes, and returns what they have measured.
///
/// # Errors
/// What the first process that failed says.
pub(super) fn measure(
    ranks: usize,
    job: &TuneJob,
    folder: &Path,
    mut progress: impl FnMut(&CellSamples),
) -> Outcome<(Vec<CellSamples>, LaunchEnd)> {
    let path = folder.join("job.json");
    std::fs::write(&path, serde_json::to_vec(job).map_err(Failure::no)?).map_err(Failure::no)?;
    let (binary, master, secret) = (binary()?, free_address()?, random_secret()?);
    let mut processes = Processes(Vec::with_capacity(ranks));
    for rank in 0..ranks {
        let child = Command::new(&binary)
            .arg("tune-rank")
            .arg(&path)
            .env("ANTIPHON_RANK", rank.to_string())
            .env("ANTIPHON_SIZE", ranks.to_string())
            .env("ANTIPHON_MASTER", &master)
            .env("ANTIPHON_SECRET", &secret)
            .env_remove("ANTIPHON_TABLE")
            .stdin(Stdio::null())
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .stderr(Stdio::piped())
            .spawn();
        processes.0.push(child.map_err(|error| Failure::no(error).context("a rank cannot be started"))?);
    }
    let heard = processes.0[0].stdout.take().map(hear);
    let deadline = Instant::now() + job.options.budget + job.options.limit + SLACK;
    let (mut cells, mut end) = (Vec::new(), None);
    let mut take = |word: RankWord| match word {
        RankWord::Cell(cell) => {
            progress(&cell);
            cells.push(cell);
        }
        RankWord::End(told) => end = Some(told),
    };
    loop {
        let is_over = processes.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))));
        heard.iter().flat_map(|words| words.try_iter()).for_each(&mut take);
        if is_over {
            break;
        }
        if interrupt::was_raised() {
            return Err(Failure::interrupted());
        }
        if Instant::now() > deadline {
            return Err(Failure::no(anyhow::anyhow!("the ranks did not end within their budget and {SLACK:?} more")));
        }
        std::thread::sleep(LOOK);
    }
    // What was written before the end, and not heard yet.
    heard.iter().flat_map(|words| words.iter()).for_each(&mut take);
    match end {
        Some(end) => Ok((cells, end)),
        None => Err(Failure::no(anyhow::anyhow!(complaints(&mut processes)))),
    }
}

/// The lines of rank 0, as they come.
fn hear(stdout: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<RankWord> {
    let (sender, words) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Ok(word) = serde_json::from_str(&line)
                && sender.send(word).is_err()
            {
                return;
            }
        }
    });
    words
}

/// What the processes said that failed, each text once.
fn complaints(processes: &mut Processes) -> String {
    let mut all: Vec<String> = Vec::new();
    for (rank, child) in processes.0.iter_mut().enumerate() {
        let mut said = String::new();
        if let Some(stderr) = &mut child.stderr {
            let _ = stderr.read_to_string(&mut said);
        }
        let status = child.try_wait().ok().flatten();
        let said = match said.trim() {
            "" => match status.filter(|status| !status.success()) {
                Some(status) => format!("rank {rank} ended: {status}"),
                None => continue,
            },
            said => said.strip_prefix("error: ").unwrap_or(said).to_owned(),
        };
        if !all.contains(&said) {
            all.push(said);
        }
    }
    if all.is_empty() { "rank 0 ended without a result".to_owned() } else { all.join("; ") }
}

/// An address of this computer that nobody uses now.
fn free_address() -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::no)?;
    Ok(listener.local_addr().map_err(Failure::no)?.to_string())
}

fn random_secret() -> Outcome<String> {
    let mut bytes = [0; 24];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(Failure::no)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
