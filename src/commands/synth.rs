//! `antiphon synth`: plans, verifies, saves, reports.

use crate::answer::answer;
use crate::cli::SynthArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan::{self, PlanningTask};
use crate::screen::{Screen, bytes, percent, table_with_remarks, time};
use schedule::{MOST_PLAIN_TRANSFERS, Schedule};
use std::path::Path;
use std::time::{Duration, Instant};
use synth::{
    Candidate, CompressedSynthesis, Problem, Report, SearchOptions, StopReason, StrategyKind, SynthError, Synthesis,
};
use topology::shorten;

/// Runs the command.
pub(crate) fn run(args: &SynthArgs, screen: &Screen) -> Outcome {
    if let Some(sizes) = &args.sizes {
        return super::sizes::run(args, sizes, screen);
    }
    screen.may_write(&args.output)?;
    if args.pareto {
        return super::pareto::run(args, screen);
    }
    let started = Instant::now();
    let mut task = plan::task(&args.request, args.size, screen)?;
    let mut options = plan::options(&args.search, task.sketch.as_ref());
    // Making the machine and the demand is a part of the time that the user has.
    let limit = options.time_limit;
    let left = || limit.map(|limit| time_left(limit, started.elapsed()));
    options.time_limit = left();
    let warm = args.warm.as_deref().map(|path| task.warm_start(path, &args.request, (&options, screen))).transpose()?;
    if let Some(large) = compressed(&task.problems, &options, screen).filter(|_| warm.is_none()) {
        return finish_compressed(&large, options.time_limit, args.output.as_deref(), screen);
    }
    refuse_too_large(&task.problems, whole_memory())?;
    warn_of_long(&task.problems, &options, screen);
    options.time_limit = left();
    let synthesis = synthesize(&task, warm.as_slice(), &options, args.request.sketch.as_deref(), screen)?;
    if let Some(path) = &args.output {
        plan::save(&synthesis.schedule, path)?;
    }
    tell(&synthesis.report, synthesis.schedule.schedule(), args.output.as_deref(), screen)
}

/// Prints the report, with the memory used.
fn tell(told: &Report, schedule: &Schedule, output: Option<&Path>, screen: &Screen) -> Outcome {
    let mut value = answer("synth", Some(&schedule.topology), Some(schedule.demand.request()), told)?;
    if let Some(peak) = peak_memory() {
        value["peak_memory_bytes"] = peak.into();
    }
    screen.result(&value, || report(told, schedule, output, screen))?;
    if told.stop_reason == StopReason::Interrupted {
        screen.note("note: interrupted; this is the best plan so far");
    }
    if output.is_none() {
        screen.note("note: the plan was not kept; -o plan.json writes it");
    }
    Ok(())
}

/// A compressed plan, if a plain one would be too large and symmetries allow it; otherwise the planner says why there
/// is none.
fn compressed(problems: &[Problem], options: &SearchOptions, screen: &Screen) -> Option<CompressedSynthesis> {
    let is_asked_for = options.strategy.is_none_or(|it| it == StrategyKind::Orbits);
    let is_too_large = |problem| synth::is_too_large_for_plain(problem, options.time_limit);
    if !is_asked_for || !problems.first().is_some_and(is_too_large) {
        return None;
    }
    let bar = screen.progress("planning");
    let found = synth::synthesize_compressed(problems, options, &|progress| bar.show(&progress));
    drop(bar);
    let must_be = synth::wants_compression(&problems[0], MOST_PLAIN_TRANSFERS);
    let why = found.as_ref().err().filter(|_| must_be);
    why.iter().for_each(|error| screen.note(&format!("note: no compressed plan: {error}")));
    found.ok()
}

/// What is left of a time limit. A limit that is used up is not zero, which means the first plan, however long it takes.
fn time_left(limit: Duration, used: Duration) -> Duration {
    limit.saturating_sub(used).max(limit.min(Duration::from_millis(1)))
}

/// The memory that a plain plan takes each time that a chunk passes a link, in bytes: 98 were measured with 17 million.
const PASSAGE_BYTES: f64 = 100.0;

/// Refuses, before anything is planned, what is certainly too large for a computer with so much memory.
fn refuse_too_large(problems: &[Problem], memory: Option<u64>) -> Outcome {
    let (Some(problem), Some(memory)) = (problems.first(), memory) else { return Ok(()) };
    let passages = synth::passages(problem);
    let needed = passages * PASSAGE_BYTES;
    if needed <= memory as f64 {
        return Ok(());
    }
    let [needed, memory] = [needed as u64, memory].map(bytes);
    let what = format!(
        "chunks pass links about {passages:.0} times: a plan takes about {needed} of memory, and this computer has {memory}"
    );
    Err(Failure::no(anyhow::anyhow!(what))
        .hint("plan fewer or smaller collectives, fewer chunks, or a part of the machine"))
}

/// The memory of this computer, if the system tells it.
fn whole_memory() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemTotal:")
}

/// A number of kB in a file of the system, in bytes.
fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Says so where even the smallest plan takes longer to verify than the time limit.
fn warn_of_long(problems: &[Problem], options: &SearchOptions, screen: &Screen) {
    let (Some(problem), Some(limit)) = (problems.first(), options.time_limit) else { return };
    let passages = synth::passages(problem);
    let needed = synth::verification_time(passages);
    if needed > limit {
        let needed = time(needed.as_secs_f64() * 1e6);
        screen.note(&format!(
            "note: chunks pass links about {passages:.0} times, which takes about {needed} to verify: longer than the time limit"
        ));
    }
}

fn finish_compressed(
    found: &CompressedSynthesis,
    limit: Option<Duration>,
    output: Option<&Path>,
    screen: &Screen,
) -> Outcome {
    if let Some(path) = output {
        plan::save_compressed(&found.schedule, limit, path)?;
    }
    tell(&found.report, found.schedule.base(), output, screen)
}

/// Plans with a progress line; a failure names the sketch line to relax.
fn synthesize(
    task: &PlanningTask,
    warm: &[Schedule],
    options: &SearchOptions,
    sketch: Option<&Path>,
    screen: &Screen,
) -> Outcome<Synthesis> {
    let bar = screen.progress("planning");
    let show = |progress| bar.show(&progress);
    let outcome = match &task.joint {
        Some(joint) => synth::synthesize_joint(joint, warm, options, &show),
        None => synth::synthesize_from(&task.problems, warm, options, &show),
    };
    drop(bar);
    outcome.map_err(|error| explain(error, sketch, options.strategy))
}

/// The reason why there is no plan: the sketch line to relax, or what else to try.
pub(crate) fn explain(error: SynthError, sketch: Option<&Path>, asked: Option<StrategyKind>) -> Failure {
    let line = match &error {
        SynthError::Infeasible { relax, .. } => relax.map(synth::Hindrance::line),
        SynthError::Demand(_) => return Failure::bad_input(error),
        SynthError::NothingYet if interrupt::was_raised() => return Failure::interrupted(),
        _ => None,
    };
    let named = asked.is_some() && matches!(error, SynthError::NotApplicable { .. });
    let is_early = matches!(error, SynthError::NothingYet);
    let infeasible = matches!(error, SynthError::Infeasible { .. });
    let failure = Failure::no(error);
    match (sketch, line) {
        (Some(path), Some(line)) => failure
            .context(format!("the sketch is infeasible for this topology\n  {}:{line}", path.display()))
            .hint(format!("relax line {line} of {}", path.display())),
        _ if infeasible => failure
            .context("the topology is not connected well enough for this collective")
            .hint("`antiphon topology show` lists the links"),
        _ if named => failure.hint("`--strategy auto` tries all of them"),
        _ if is_early && asked.is_some() => {
            failure.hint("`--strategy auto` tries all of them, and --warm PLAN.json begins with a plan")
        }
        _ => failure,
    }
}

/// The most memory that this process has used, if the system tells it.
fn peak_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}

/// How many other candidates are listed without `-v`.
const RUNNERS_UP: usize = 3;

/// The report for people: the answer first, then the closest candidates, or all of them.
fn report(report: &Report, schedule: &Schedule, output: Option<&Path>, screen: &Screen) -> String {
    let Report { makespan_us, lower_bound_us, bound, gap, strategy, stop_reason, seconds, candidates, .. } = report;
    let warm =
        report.warm_start.as_ref().map_or(String::new(), |warm| format!("\nbegan with   a plan by {}", shorten(warm)));
    let shown = match screen.is_verbose() {
        true => told_once(candidates),
        false => closest(candidates).into_iter().map(|it| (it, it.chunks_per_rank.to_string())).collect(),
    };
    let rows = shown.iter().map(|(candidate, chunks)| {
        vec![
            candidate.strategy.clone(),
            chunks.clone(),
            candidate.makespan_us.map_or_else(|| "–".to_owned(), time),
            candidate.transfers.to_string(),
            format!("{:.3} s", candidate.seconds),
            format!("{}{}", candidate.stop_reason, candidate.note.as_ref().map_or(String::new(), |n| format!(": {n}"))),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let rest = match candidates.len() - rows.len() {
        _ if screen.is_verbose() => String::new(),
        0 => String::new(),
        rest => format!("\n… and {rest} more (-v)"),
    };
    let saved = output.map_or(String::new(), |path| format!("\nwritten to {}", path.display()));
    format!(
        "{} on {}\n\
         makespan     {} ({strategy}, {stop_reason}, {seconds:.2} s)\n\
         lower bound  {} ({bound})\n\
         gap          {}{warm}{saved}\n\n{}{rest}",
        plan::describe(schedule),
        shorten(&schedule.topology.name),
        time(*makespan_us),
        time(*lower_bound_us),
        percent(*gap),
        table_with_remarks(&["candidate", "chunks", "makespan", "transfers", "took", "ended"], &rows, screen.width()),
    )
}

/// All candidates with their chunk counts; what a strategy cannot plan for the same reason at several is one line.
fn told_once(candidates: &[Candidate]) -> Vec<(&Candidate, String)> {
    let mut told: Vec<(&Candidate, String)> = Vec::new();
    for candidate in candidates {
        let is_same = |other: &Candidate| {
            candidate.makespan_us.is_none()
                && other.makespan_us.is_none()
                && (&other.strategy, other.stop_reason, &other.note)
                    == (&candidate.strategy, candidate.stop_reason, &candidate.note)
        };
        let count = candidate.chunks_per_rank.to_string();
        match told.iter_mut().find(|(other, _)| is_same(other)) {
            Some((_, counts)) if counts.split(',').all(|known| known != count) => *counts += &format!(",{count}"),
            Some(_) => {}
            None => told.push((candidate, count)),
        }
    }
    told
}

/// The best candidates, one for each strategy, the winner first. Those that do not apply come after those that tried.
fn closest(candidates: &[Candidate]) -> Vec<&Candidate> {
    let time = |candidate: &Candidate| candidate.makespan_us.unwrap_or(f64::INFINITY);
    let applies = |candidate: &Candidate| candidate.stop_reason != StopReason::NotApplicable;
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by(|one, other| time(one).total_cmp(&time(other)).then(applies(other).cmp(&applies(one))));
    let mut best: Vec<&Candidate> = Vec::new();
    for candidate in sorted {
        if best.len() <= RUNNERS_UP && best.iter().all(|it| it.strategy != candidate.strategy) {
            best.push(candidate);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_does_not_fit_into_memory_is_refused() {
        let topology = std::sync::Arc::new(topology::resolve("ring:8").expect("a known topology"));
        let request = schedule::Request::new(schedule::Collective::AllToAll, 8, 1 << 10);
        let demand = schedule::Demand::new(request).expect("a valid request");
        // 56 chunks with ways of 4 links on average take 224 × 100 bytes.
        let problems = [Problem::new(topology, std::sync::Arc::new(demand))];
        assert!(refuse_too_large(&problems, Some(22_400)).is_ok() && refuse_too_large(&problems, None).is_ok());
        let refused = refuse_too_large(&problems, Some(22_000)).expect_err("it is too large");
        assert!(format!("{refused:?}").contains("about 22.4 KB of memory"), "{refused:?}");
    }

    /// Zero means the first plan, however long it takes: only who asks for that gets it.
    #[test]
    fn a_limit_that_is_used_up_is_not_zero() {
        let (second, millisecond) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(time_left(second, Duration::from_millis(400)), Duration::from_millis(600));
        assert_eq!(time_left(second, Duration::from_secs(9)), millisecond);
        assert_eq!(time_left(millisecond / 2, second), millisecond / 2);
        assert_eq!(time_left(Duration::ZERO, second), Duration::ZERO);
    }
}
