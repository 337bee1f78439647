//! Programs that use the library, as processes of this computer.
//!
//! The principal type is [`LibraryRanks`]. It ends with all its processes, whatever happens to them.

use super::binary;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The ranks of a program. They are ended when this is dropped.
pub(crate) struct LibraryRanks {
    children: Vec<Child>,
    /// The lines of rank 0.
    heard: Receiver<String>,
}

impl Drop for LibraryRanks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl LibraryRanks {
    /// Starts this program so many times, as ranks that find each other. `configure` adds arguments and variables.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(crate) fn start(ranks: usize, configure: impl Fn(&mut Command)) -> Outcome<Self> {
        let (binary, master, secret) = (binary()?, free_address()?, random_secret()?);
        let (sender, heard) = std::sync::mpsc::channel();
        let mut started = Self { children: Vec::with_capacity(ranks), heard };
        for rank in 0..ranks {
            let mut command = Command::new(&binary);
            command
                .env("ANTIPHON_RANK", rank.to_string())
                .env("ANTIPHON_SIZE", ranks.to_string())
                .env("ANTIPHON_MASTER", &master)
                .env("ANTIPHON_SECRET", &secret)
                .env_remove("ANTIPHON_TABLE")
                .stdin(Stdio::null())
                .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
                .stderr(Stdio::piped());
            configure(&mut command);
            let child = command.spawn();
            started.children.push(child.map_err(|error| Failure::no(error).context("a rank cannot be started"))?);
        }
        if let Some(stdout) = started.children.first_mut().and_then(|child| child.stdout.take()) {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(started)
    }

    /// Hands each line of rank 0 to `take`, until all processes have ended.
    ///
    /// # Errors
    /// If they take longer than `limit`, or the user has interrupted this program.
    pub(crate) fn finish(&mut self, limit: Duration, mut take: impl FnMut(&str)) -> Outcome {
        let deadline = Instant::now() + limit;
        loop {
            let is_over = self.children.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_))));
            self.heard.try_iter().for_each(|line| take(&line));
            if is_over {
                // What was written before the end, and not heard yet.
                self.heard.iter().for_each(|line| take(&line));
                return Ok(());
            }
            if interrupt::was_raised() {
                return Err(Failure::interrupted());
            }
            if Instant::now() > deadline {
                return Err(Failure::no(anyhow::anyhow!("the ranks did not end within {limit:?}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What the processes said that failed, each text once.
    pub(crate) fn complaints(&mut self) -> String {
        let mut all: Vec<String> = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
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
}

/// Lets the kernel end this process, a rank that [`LibraryRanks`] has started, when the process that did so ends, however it
/// ends.
pub(crate) fn end_with_launcher() {
    // Where this is forbidden, a rank ends with its work.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
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
