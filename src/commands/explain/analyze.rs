//! What a plan takes on real ranks, message by message, against what the model predicts.
//!
//! The principal function is [`analyze`]. Times come from the interpreters' own clock: a message begins when its sender could
//! send it, and ends when its receiver has all of it. What messages take beyond α + β·bytes is the host's share: the processor
//! handles them, and ranks wait for each other where they share cores. It is shown as a line over bytes, one for messages
//! inside machines and one for those between them, because these use different transports. A corrected topology is fitted to
//! the times of the whole plan instead ([`host`](super::host)).

use super::host::{HostTerm, PlanTime, fitted, with_host};
use crate::amounts::count;
use crate::cli::{ExplainArgs, LoweringArgs};
use crate::failure::{Failure, Outcome, write_to};
use crate::launch::Launch;
use crate::loading::MemoryMode;
use crate::screen::{Screen, percent, table, time};
use crate::workbench::{Installed, Setup, Workbench};
use runtime::{Check, DType, Moment, StepTime, Trial, TrialReport};
use schedule::{TimedMessage, Timeline, VerifiedSchedule};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use synth::{Constraints, SizeTask};
use topology::{Micros, Rank, Topology, counted};
use tune::{kendall_tau, q_error, robust_line, summarize};

/// How many messages are shown.
const SHOWN: usize = 16;
/// The most messages of all repetitions that ranks report.
const MOST_REPORTED: usize = 1 << 15;
/// For fitting, the plan also runs at its size by these factors.
const SMALLER: [u64; 3] = [1, 8, 64];
/// Untimed repetitions.
const WARMUPS: u32 = 3;

/// One message, predicted and measured.
#[derive(Serialize)]
struct AnalyzedStep {
    transfer: usize,
    from: Rank,
    to: Rank,
    bytes: f64,
    predicted_start_us: f64,
    predicted_end_us: f64,
    /// When the sender could send it, in the median repetition, from the start of the first rank.
    measured_start_us: f64,
    measured_end_us: f64,
    /// By which factor the predicted end is wrong.
    q_error: f64,
}

/// A plan, predicted and measured.
#[derive(Serialize)]
pub(super) struct AnalyzedPlan {
    ranks: usize,
    repetitions: u32,
    predicted_us: f64,
    measured_us: f64,
    low_us: f64,
    high_us: f64,
    q_error: f64,
    /// The median and the 90th percentile over all messages.
    step_q_error: [f64; 2],
    /// Whether messages end in the predicted order.
    kendall_tau: Option<f64>,
    host: Vec<HostTerm>,
    /// What the model with the host's share predicts, and by which factor that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    corrected: Option<CorrectedTime>,
    pub(super) wrong: u64,
    steps: Vec<AnalyzedStep>,
}

/// A prediction with the host's share.
#[derive(Clone, Copy, Serialize)]
struct CorrectedTime {
    predicted_us: f64,
    q_error: f64,
    /// The same at an eighth of the size, which was not fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out_q_error: Option<f64>,
}

/// A message at one size: bytes, and begin and end in each repetition, in microseconds.
struct MeasuredMessage {
    bytes: f64,
    times: Vec<[f64; 2]>,
}

/// A plan's ranks, ready to measure it.
struct PlanAnalysis<'a> {
    args: &'a ExplainArgs,
    schedule: &'a VerifiedSchedule,
    timeline: Timeline,
    bench: Workbench,
    installed: Installed,
}

/// What was measured at one size.
struct MeasuredPlan {
    bytes: u64,
    report: TrialReport,
    messages: Vec<MeasuredMessage>,
}

/// Runs a plan and compares.
pub(super) fn analyze(schedule: &VerifiedSchedule, args: &ExplainArgs, screen: &Screen) -> Outcome<AnalyzedPlan> {
    screen.may_write(&args.corrected)?;
    let bar = screen.progress("analyze");
    bar.message("running the plan");
    let request = schedule.schedule().demand.request();
    let setup = Setup {
        launch: Launch::local(request.ranks)?,
        transport: args.transport,
        emulate: args.emulate.clone().map(|spec| (spec, args.slowdown)),
        ready_timeout: Duration::from_secs(60),
        timeout: None,
        lowering: LoweringArgs::default(),
    };
    let bench = Workbench::open(&setup)?;
    let installed = bench.install(schedule)?;
    let mut analysis = PlanAnalysis { args, schedule, timeline: Timeline::of(schedule), bench, installed };
    let measured = analysis.measure(request.size_bytes)?;
    let mut all = vec![measured];
    if args.corrected.is_some() {
        for factor in &SMALLER[1..] {
            all.push(analysis.measure(request.size_bytes / factor)?);
        }
    }
    analysis.compare(&all)
}

impl PlanAnalysis<'_> {
    /// Runs the plan at about a size.
    fn measure(&mut self, size: u64) -> Outcome<MeasuredPlan> {
        let request = self.installed.request().clone();
        let (count, bytes) = count(&request, size, DType::F32, self.installed.granularity());
        let messages = self.timeline.messages.len();
        let most = (MOST_REPORTED / messages.max(1)).clamp(1, u32::MAX as usize) as u32;
        let trial = Trial {
            count,
            dtype: DType::F32,
            warmups: WARMUPS,
            repetitions: self.args.iterations.min(most),
            seed: 0,
            check: Check::FirstAndLast,
            steps: true,
        };
        let memory =
            if self.installed.serves(MemoryMode::OutOfPlace) { MemoryMode::OutOfPlace } else { MemoryMode::InPlace };
        let report = self.bench.run(&self.installed, memory, &trial)?;
        let scale = bytes as f64 / request.size_bytes.max(1) as f64;
        let sizes = self.timeline.messages.iter().map(|message| message.bytes.0 * scale);
        let messages = sizes.zip(times(&report, messages)).map(|(bytes, times)| MeasuredMessage { bytes, times });
        Ok(MeasuredPlan { bytes, messages: messages.collect(), report })
    }

    /// What the model leaves out of each message, as points (bytes, microseconds), of messages inside machines or between them.
    fn residuals(&self, all: &[MeasuredPlan], between: bool) -> Vec<(f64, f64)> {
        let topology = &self.timeline.topology;
        let mut points = Vec::new();
        for measured in all {
            for (message, own) in self.timeline.messages.iter().zip(&measured.messages) {
                let link = topology.link(message.link);
                if topology.crosses_machines(link) == between && !own.times.is_empty() {
                    let took = median(own.times.iter().map(|[begin, end]| end - begin));
                    let model = (link.alpha.0 + link.beta.0 * own.bytes) * self.args.slowdown;
                    points.push((own.bytes, (took - model) / self.args.slowdown));
                }
            }
        }
        points
    }

    /// Every message at the plan's own size.
    fn steps(&self, measured: &MeasuredPlan) -> Vec<AnalyzedStep> {
        let slowdown = self.args.slowdown;
        let messages = self.timeline.messages.iter().zip(&measured.messages).enumerate();
        let step = |(transfer, (message, own)): (usize, (&TimedMessage, &MeasuredMessage))| {
            let of = |which: usize| median(own.times.iter().map(|times| times[which]));
            let (predicted_end_us, measured_end_us) = (message.end.0 * slowdown, of(1));
            AnalyzedStep {
                transfer,
                from: message.from,
                to: message.to,
                bytes: own.bytes,
                predicted_start_us: message.start.0 * slowdown,
                predicted_end_us,
                measured_start_us: of(0),
                measured_end_us,
                q_error: q_error(predicted_end_us, measured_end_us),
            }
        };
        messages.filter(|(_, (_, own))| !own.times.is_empty()).map(step).collect()
    }

    fn compare(&self, all: &[MeasuredPlan]) -> Outcome<AnalyzedPlan> {
        let (measured, slowdown) = (&all[0], self.args.slowdown);
        let steps = self.steps(measured);
        let spans: Vec<f64> = measured.report.spans().iter().map(|span| span.0).collect();
        let whole = summarize(&spans).ok_or_else(|| Failure::no(anyhow::anyhow!("nothing was measured")))?;
        let mut errors: Vec<f64> = steps.iter().map(|step| step.q_error).collect();
        errors.sort_by(f64::total_cmp);
        let at = |share: f64| errors.get((share * errors.len() as f64) as usize).copied().unwrap_or(1.0);
        let ends: Vec<(f64, f64)> = steps.iter().map(|step| (step.predicted_end_us, step.measured_end_us)).collect();
        let seen = [false, true].into_iter().filter_map(|between| host_term(&self.residuals(all, between), between));
        let mut host: Vec<HostTerm> = seen.collect();
        let predicted_us = self.timeline.makespan().0 * slowdown;
        let corrected = match &self.args.corrected {
            Some(path) => Some(self.correct(all, &mut host, path)?),
            None => None,
        };
        Ok(AnalyzedPlan {
            ranks: self.installed.request().ranks,
            repetitions: spans.len() as u32,
            predicted_us,
            measured_us: whole.median_us,
            low_us: whole.low_us,
            high_us: whole.high_us,
            q_error: q_error(predicted_us, whole.median_us),
            step_q_error: [at(0.5), at(0.9)],
            kendall_tau: kendall_tau(&ends),
            host,
            corrected,
            wrong: all.iter().map(|measured| measured.report.wrong()).sum(),
            steps,
        })
    }

    /// Fits what the host takes to the times of the plan, instead of those of its messages, and writes the topology.
    fn correct(&self, all: &[MeasuredPlan], host: &mut Vec<HostTerm>, path: &Path) -> Outcome<CorrectedTime> {
        let time = |measured: &MeasuredPlan| PlanTime {
            bytes: measured.bytes,
            measured_us: median(measured.report.spans().iter().map(|span| span.0)) / self.args.slowdown,
        };
        let times: Vec<PlanTime> = all.iter().map(time).collect();
        let known = &self.timeline.topology;
        let played = |topology: Topology, bytes: u64| self.played_on(topology, bytes).map(|time| time.0);
        let ends = [times[times.len() - 1], times[0]];
        *host = fitted(known, host, ends, &played)
            .ok_or_else(|| Failure::no(anyhow::anyhow!("the plan cannot be played at other sizes")))?;
        let topology = with_host(known, host)?;
        let about = "α and β with what the ranks of `antiphon explain --analyze` take beyond them";
        write_to(path, |out| out.write_all(topology::to_yaml(&topology, about).as_bytes()))?;
        let error = |time: &PlanTime| Some(q_error(played(topology.clone(), time.bytes)?, time.measured_us));
        let predicted_us = played(topology.clone(), times[0].bytes).unwrap_or(0.0) * self.args.slowdown;
        Ok(CorrectedTime {
            predicted_us,
            q_error: q_error(predicted_us, times[0].measured_us * self.args.slowdown),
            held_out_q_error: error(&times[1]),
        })
    }

    /// What the plan would take on another topology with the same links.
    fn played_on(&self, topology: Topology, bytes: u64) -> Option<Micros> {
        let request = self.schedule.schedule().demand.request().clone();
        let constraints = Arc::new(Constraints::none());
        let chunks = Some(request.chunks_per_rank);
        let task = SizeTask { topology: Arc::new(topology), constraints, request, chunks };
        Some(synth::retimed(self.schedule, &task, bytes)?.makespan())
    }
}

/// Begin and end of every message in every repetition, in microseconds from the start of the first rank.
fn times(report: &TrialReport, messages: usize) -> Vec<Vec<[f64; 2]>> {
    let mut all = vec![Vec::new(); messages];
    let repetitions = report.ranks.iter().map(|rank| rank.samples.len()).min().unwrap_or(0);
    for repetition in 0..repetitions {
        let start = report.ranks.iter().map(|rank| rank.samples[repetition].start).min().unwrap_or_default();
        let mut seen: Vec<(Option<Moment>, Option<Moment>)> = vec![(None, None); messages];
        for StepTime { transfer, sends, begin, end } in
            report.ranks.iter().filter_map(|rank| rank.steps.get(repetition)).flatten().copied()
        {
            // A message may be several steps.
            if let Some((began, ended)) = seen.get_mut(transfer as usize) {
                match sends {
                    true => *began = Some(began.map_or(begin, |known| known.min(begin))),
                    false => *ended = Some(ended.map_or(end, |known| known.max(end))),
                }
            }
        }
        for (message, seen) in all.iter_mut().zip(seen) {
            if let (Some(began), Some(ended)) = seen {
                message.push([began, ended].map(|moment| moment.micros_since(start).0));
            }
        }
    }
    all
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    summarize(&values.collect::<Vec<_>>()).map_or(0.0, |summary| summary.median_us)
}

/// A line through what the model leaves out.
fn host_term(points: &[(f64, f64)], between_machines: bool) -> Option<HostTerm> {
    let (alpha_us, beta_us_per_byte) = robust_line(points)?;
    Some(HostTerm { between_machines, alpha_us, beta_us_per_byte, messages: points.len() })
}

/// The comparison, for people.
pub(super) fn text(plan: &AnalyzedPlan) -> String {
    let mut lines = vec![format!(
        "\non {} local ranks, median of {}: predicted {}, measured {} ({} to {}), q-error {:.2}",
        plan.ranks,
        plan.repetitions,
        time(plan.predicted_us),
        time(plan.measured_us),
        time(plan.low_us),
        time(plan.high_us),
        plan.q_error
    )];
    let [median, high] = plan.step_q_error;
    let order = plan.kendall_tau.map_or_else(|| "–".to_owned(), |tau| format!("{tau:.2}"));
    lines.push(format!(
        "messages end with a q-error of {median:.2} (median; 90 % below {high:.2}); Kendall's τ of their order {order}"
    ));
    for term in &plan.host {
        let place = if term.between_machines { "between machines" } else { "inside machines" };
        lines.push(format!(
            "beyond the model, a message {place} takes {:.2} µs and {:.3} ns for each byte ({})",
            term.alpha_us,
            term.beta_us_per_byte * 1e3,
            counted(term.messages, "message")
        ));
    }
    lines.extend(plan.corrected.map(|corrected| {
        let held_out = corrected.held_out_q_error.map_or_else(String::new, |error| {
            format!(" (fitted); {error:.2} at an eighth of the size, which was not fitted")
        });
        format!("with that, predicted {}, q-error {:.2}{held_out}", time(corrected.predicted_us), corrected.q_error)
    }));
    let mut worst: Vec<&AnalyzedStep> = plan.steps.iter().collect();
    let miss = |step: &AnalyzedStep| (step.measured_end_us - step.predicted_end_us).abs();
    worst.sort_by(|one, other| miss(other).total_cmp(&miss(one)));
    worst.truncate(SHOWN);
    worst.sort_by(|one, other| one.measured_end_us.total_cmp(&other.measured_end_us));
    let row = |step: &&AnalyzedStep| {
        let late = (step.measured_end_us - step.predicted_end_us) / plan.measured_us.max(f64::MIN_POSITIVE);
        vec![
            format!("{}: {} → {}", step.transfer, step.from, step.to),
            topology::quantity::show_bytes(topology::Bytes(step.bytes)),
            format!("{} to {}", time(step.predicted_start_us), time(step.predicted_end_us)),
            format!("{} to {}", time(step.measured_start_us), time(step.measured_end_us)),
            format!("{:.2}", step.q_error),
            percent(Some(late)),
        ]
    };
    let rows: Vec<Vec<String>> = worst.iter().map(row).collect();
    lines.push(table(&["message", "size", "predicted", "measured", "q-error", "late, of the whole"], &rows));
    if plan.steps.len() > rows.len() {
        lines.push(format!("… the {} that are off most, of {}", rows.len(), plan.steps.len()));
    }
    lines.join("\n")
}
