//! The end of the demo: what was planned is tuned, and a small program runs with the table.
//!
//! The principal function is [`tuned`].

use super::program::ProgramTimes;
use super::{COLLECTIVES, RANKS, SIZES};
use crate::failure::{Failure, Outcome};
use crate::launch::binary;
use crate::launch::library::LibraryRanks;
use crate::screen::{Screen, bytes, table, time};
use schedule::Collective;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tune::{Choice, Summary, decide, summarize};

/// How long tuning may measure.
const BUDGET: &str = "20s";
/// How often the program runs with and without the table, in turn: ranks may be placed well in one run and badly in another.
const RUNS: usize = 2;
/// How long a run of the program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// One kind of call at one size, without a table and with it.
#[derive(Serialize)]
pub(super) struct TunedCall {
    collective: Collective,
    size_bytes: u64,
    stock: Summary,
    tuned: Summary,
    /// What served it with the table.
    plan: String,
    choice: Choice,
    speedup: f64,
    pub(super) wrong: u64,
}

/// Tunes with the plans that were made, and runs the program without the table and with it.
pub(super) fn tuned(output: &Path, plans: &[PathBuf], screen: &Screen) -> Outcome<Vec<TunedCall>> {
    let file = output.join("tuning.json");
    tune(&file, plans, screen)?;
    let bar = screen.progress("program");
    let mut runs: [Vec<Vec<ProgramTimes>>; 2] = [Vec::new(), Vec::new()];
    for run in 0..RUNS {
        bar.message(format!("run {} without the table and with it", run + 1));
        runs[0].push(program(None)?);
        runs[1].push(program(Some(&file))?);
    }
    let calls = COLLECTIVES.len() * SIZES.len();
    (0..calls).map(|call| compared(call, &runs)).collect()
}

/// Runs `antiphon tune` as a user would, and says so.
fn tune(file: &Path, plans: &[PathBuf], screen: &Screen) -> Outcome {
    let list = |items: Vec<String>| items.join(",");
    let collectives = list(COLLECTIVES.iter().map(Collective::to_string).collect());
    let sizes = list(SIZES.iter().map(u64::to_string).collect());
    let plans = list(plans.iter().map(|plan| plan.display().to_string()).collect());
    let ranks = RANKS.to_string();
    let mut command = Command::new(binary()?);
    command.args(["tune", "--ranks", &ranks, "--collective", &collectives, "--sizes", &sizes]);
    command
        .args(["--budget", BUDGET, "--launches", "2", "--plans", &plans, "--quiet", "--force", "--output"])
        .arg(file);
    screen.say(&format!("tune     antiphon tune --ranks {ranks} --budget {BUDGET} --plans … -o {}", file.display()));
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(Failure::no)?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(Failure::no(anyhow::anyhow!("{}", String::from_utf8_lossy(&ended.stderr).trim().to_owned()))),
    }
}

/// What one run of the program has measured.
fn program(table: Option<&PathBuf>) -> Outcome<Vec<ProgramTimes>> {
    let mut ranks = LibraryRanks::start(RANKS as usize, |command| {
        command.arg("demo-rank");
        if let Some(table) = table {
            command.env("ANTIPHON_TABLE", table);
        }
    })?;
    let mut times = Vec::new();
    ranks.finish(LIMIT, |line| times.extend(serde_json::from_str::<ProgramTimes>(line).ok()))?;
    match times.len() == COLLECTIVES.len() * SIZES.len() {
        true => Ok(times),
        false => Err(Failure::no(anyhow::anyhow!(ranks.complaints()))),
    }
}

/// One call in all runs.
fn compared(call: usize, runs: &[Vec<Vec<ProgramTimes>>; 2]) -> Outcome<TunedCall> {
    let of = |runs: &[Vec<ProgramTimes>]| {
        summarize(&runs.iter().flat_map(|run| run[call].times_us.iter().copied()).collect::<Vec<f64>>())
    };
    let nothing = || Failure::no(anyhow::anyhow!("the program has measured nothing"));
    let (stock, tuned) = (of(&runs[0]).ok_or_else(nothing)?, of(&runs[1]).ok_or_else(nothing)?);
    let decision = decide(&stock, &tuned);
    let first = &runs[1][0][call];
    Ok(TunedCall {
        collective: first.collective,
        size_bytes: first.bytes,
        stock,
        tuned,
        plan: first.plan.clone(),
        choice: decision.choice,
        speedup: decision.speedup,
        wrong: runs.iter().flatten().map(|run| run[call].wrong).sum(),
    })
}

/// The calls of the program, stock against tuned.
pub(super) fn report(calls: &[TunedCall]) -> String {
    let row = |call: &TunedCall| {
        let verdict = match call.choice {
            Choice::Candidate => "tuned",
            Choice::Stock => "stock",
            Choice::Tie => "tie",
        };
        let plan = call.plan.rsplit_once(": ").map_or(&*call.plan, |(_, plan)| plan);
        vec![
            format!("{} {}", call.collective, bytes(call.size_bytes)),
            time(call.stock.median_us),
            time(call.tuned.median_us),
            format!("{:.2}×", call.speedup),
            verdict.to_owned(),
            topology::shorten(plan).to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = calls.iter().map(row).collect();
    let wrong: u64 = calls.iter().map(|call| call.wrong).sum();
    format!(
        "a small program with the library, first without a table, then with ANTIPHON_TABLE=tuning.json:\n{}\n\
         every last result compared with what it must be: {wrong} wrong elements",
        table(&["", "stock", "tuned", "", "wins", "what served it"], &rows)
    )
}
