//! Programs that use the library, as processes of this computer.
//!
//! The principal type is [`LibraryRanks`]. It ends with all its processes, whatever happens to them.

use super::binary;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use comm::Config;
use comm::launcher::command::COMMAND;
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the processes are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// How long to wait for what a process that has ended has said.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Of what a process says on its standard error, so many bytes are kept.
const KEPT: usize = 4096;

/// The ranks of a program. They are ended when this is dropped.
pub(crate) struct LibraryRanks {
    children: Vec<Child>,
    /// Those of which it is known that they have ended.
    seen: BTreeSet<usize>,
    /// What each has said on its standard error.
    said: Vec<Complaints>,
    /// The lines of rank 0.
    heard: Receiver<String>,
    /// The rank of the first of them.
    first: usize,
}

/// Ends what a rank has started, and the rank. Its number has to be its own still: it has not ended, or just now.
fn end_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

impl Drop for LibraryRanks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that was waited for has left its number, and what it has started was ended then.
            if matches!(child.try_wait(), Ok(None)) {
                end_group(child);
            }
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
        Self::start_program(binary()?.as_os_str(), ranks, configure)
    }

    /// Starts any program that uses the library.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(crate) fn start_program(program: &OsStr, ranks: usize, configure: impl Fn(&mut Command)) -> Outcome<Self> {
        Self::start_from(program, (0, ranks), (&free_address()?, &random_secret()?), configure)
    }

    fn start_from(
        program: &OsStr,
        (first, ranks): (usize, usize),
        (master, secret): (&str, &str),
        configure: impl Fn(&mut Command),
    ) -> Outcome<Self> {
        let (sender, heard) = std::sync::mpsc::channel();
        let (children, said) = (Vec::with_capacity(ranks), Vec::with_capacity(ranks));
        let mut started = Self { children, seen: BTreeSet::new(), said, heard, first };
        for rank in first..ranks {
            let mut command = Command::new(program);
            command
                .env("ANTIPHON_RANK", rank.to_string())
                .env("ANTIPHON_SIZE", ranks.to_string())
                .env("ANTIPHON_MASTER", master)
                .env("ANTIPHON_SECRET", secret)
                .env(COMMAND, std::process::id().to_string())
                .env_remove("ANTIPHON_TABLE")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
                .stderr(Stdio::piped());
            configure(&mut command);
            let child = command.spawn();
            let failed = |error| Failure::no(error).context(format!("{} cannot be started", program.display()));
            let mut child = child.map_err(failed)?;
            started.said.push(Complaints::of(child.stderr.take()));
            started.children.push(child);
        }
        if let Some(stdout) = started.children.first_mut().and_then(|child| child.stdout.take()) {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(started)
    }

    /// How the process of a rank has ended, if it has.
    pub(crate) fn ended(&mut self, rank: usize) -> Option<ExitStatus> {
        let child = self.children.get_mut(rank)?;
        let has_been_seen = self.seen.contains(&rank);
        let status = child.try_wait().ok().flatten()?;
        if !has_been_seen {
            self.seen.insert(rank);
            end_group(child);
        }
        Some(status)
    }

    /// Starts this program as the ranks from 1 on, and tells how this process joins them as rank 0.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(crate) fn start_others(ranks: usize, configure: impl Fn(&mut Command)) -> Outcome<(Self, Config)> {
        let (master, secret) = (free_address()?, random_secret()?);
        let started = Self::start_from(binary()?.as_os_str(), (1, ranks), (&master, &secret), configure)?;
        let mut config = Config { secret: Some(secret), ..Config::new(0, ranks, master) };
        config.read_env().map_err(Failure::bad_input)?;
        Ok((started, config))
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
        self.said_by_failed().unwrap_or_else(|| "rank 0 ended without a result".to_owned())
    }

    /// The same; `None` if none of them has said anything or failed.
    pub(crate) fn said_by_failed(&mut self) -> Option<String> {
        let mut all: Vec<String> = Vec::new();
        for (rank, (child, said)) in self.children.iter_mut().zip(&mut self.said).enumerate() {
            let status = child.try_wait().ok().flatten();
            let said = said.text(status.is_some());
            let said = match said.trim() {
                "" => match status.filter(|status| !status.success()) {
                    Some(status) => format!("rank {} ended: {status}", self.first + rank),
                    None => continue,
                },
                said => said.strip_prefix("error: ").unwrap_or(said).to_owned(),
            };
            if !all.contains(&said) {
                all.push(said);
            }
        }
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Lets the kernel end this process, a rank that [`LibraryRanks`] has started, when the process that did so ends, however it
/// ends.
pub(crate) fn end_with_launcher() {
    // Where this is forbidden, a rank ends with its work.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have ended before.
    let launcher = std::env::var(COMMAND).ok();
    if launcher.is_some_and(|launcher| getppid().is_none_or(|parent| parent.to_string() != launcher)) {
        std::process::exit(1);
    }
}

/// The end of what a process says on its standard error. It is read all the time, so that no process waits for a reader.
struct Complaints {
    text: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

impl Complaints {
    fn of(stderr: Option<ChildStderr>) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let shared = text.clone();
        let read = move |mut stderr: ChildStderr| {
            let mut piece = [0; 1024];
            while let Ok(length @ 1..) = stderr.read(&mut piece) {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..length]);
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
            }
        };
        let reading = stderr.map(|stderr| std::thread::spawn(move || read(stderr)));
        Self { text, reading }
    }

    /// What was said so far; if the process has ended, all of it.
    fn text(&mut self, has_ended: bool) -> String {
        // Something that the process has started may hold the pipe open for ever.
        let until = Instant::now() + LAST_WORDS;
        while has_ended && self.reading.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
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
