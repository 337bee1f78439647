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
use tune::{Choice, FunctionRange, Summary, TuningTable, decide, summarize};

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
    /// Whether the table leaves it to stock.
    is_stock: bool,
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
    let table = TuningTable::read(&file).map_err(Failure::no)?;
    let calls = COLLECTIVES.len() * SIZES.len();
    (0..calls).map(|call| compared(call, &runs, &table)).collect()
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

/// Whether a table leaves calls of a size to stock.
fn is_left_to_stock(table: &TuningTable, collective: Collective, bytes: u64) -> bool {
    let has_function = |(of, range): (Collective, &FunctionRange)| {
        of == collective && range.from_bytes <= bytes && bytes < range.to_bytes
    };
    let has_plan = table.find(collective, bytes).is_some_and(|range| range.plan.is_some());
    !has_plan && !table.functions().any(has_function)
}

/// One call in all runs. Where the table leaves it to stock, what differs between the runs is noise.
fn compared(call: usize, runs: &[Vec<Vec<ProgramTimes>>; 2], table: &TuningTable) -> Outcome<TunedCall> {
    let of = |runs: &[Vec<ProgramTimes>]| {
        summarize(&runs.iter().flat_map(|run| run[call].times_us.iter().copied()).collect::<Vec<f64>>())
    };
    let nothing = || Failure::no(anyhow::anyhow!("the program has measured nothing"));
    let (stock, tuned) = (of(&runs[0]).ok_or_else(nothing)?, of(&runs[1]).ok_or_else(nothing)?);
    let decision = decide(&stock, &tuned);
    let first = &runs[1][0][call];
    let is_stock = is_left_to_stock(table, first.collective, first.bytes);
    Ok(TunedCall {
        collective: first.collective,
        size_bytes: first.bytes,
        stock,
        tuned,
        plan: first.plan.clone(),
        is_stock,
        choice: if is_stock { Choice::Tie } else { decision.choice },
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
        let plan = call.plan.split_once(": ").map_or(&*call.plan, |(_, plan)| plan);
        let plan = plan.rsplit_once(", because ").map_or(plan, |(plan, _)| plan);
        vec![
            format!("{} {}", call.collective, bytes(call.size_bytes)),
            time(call.stock.median_us),
            time(call.tuned.median_us),
            format!("{:.2}×", call.speedup),
            verdict.to_owned(),
            if call.is_stock { "stock".to_owned() } else { topology::shorten(plan).to_string() },
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
